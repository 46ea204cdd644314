"""Injected faults at servers of tools: over HTTP and over stdio, never at the server, never stored, and the retry gets its recorded answer."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from llmproxy.core.faults.kinds import KINDS
from llmproxy.protocol import Channel, Decision
from tests.mitm.rig import Rig, recorded
from tests.mitm.test_faults import was_reset
from tests.mitm.wire import Received, request
from tests.provider import Provider, Script, Step
from tests.provider.answer import Answer, Piece
from tests.support.services import QuietHandler, serving
from tests.support.tools import http_server, use

KINDS_OF_TOOLS = [name for name, kind in KINDS.items() if kind.channels == (Channel.MCP,)]
RULES = {name: {"kind": name} | ({"seconds": 0.01} if name == "mcp-silent" else {}) for name in KINDS_OF_TOOLS}
SESSION = {"mcp_session_id": "s1", "accept": "application/json, text/event-stream"}
MODES = ["record", "auto", "once", "passthrough"]


@dataclass
class Tools:
    """A server of tools that counts what it is told."""

    url: str = ""
    told: Counter[str] = field(default_factory=Counter)

    def answer(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """Answer as a tool does that says what it was told, and how often."""
        self.told[message["method"]] += 1
        if "id" not in message:
            return None
        told = message["params"].get("arguments", {}).get("text", "")
        content = [{"type": "text", "text": f"{told} {self.told[message['method']]}"}]
        return {"jsonrpc": "2.0", "id": message["id"], "result": {"content": content}}


@contextmanager
def tools() -> Iterator[Tools]:
    made = Tools()

    class Handler(QuietHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:  # noqa: N802 - as the library names it
            said = made.answer(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.answer(b"" if said is None else json.dumps(said).encode(), status=202 if said is None else 200)

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as made.url:
        yield made


def message(id_: object = 1, text: str = "a", method: str = "tools/call") -> dict[str, Any]:
    params = {"name": "echo", "arguments": {"text": text}} if method == "tools/call" else {}
    return {"jsonrpc": "2.0", "id": id_, "method": method, "params": params}


def ask(rig: Rig, what: dict[str, Any]) -> Received:
    with rig.client() as c:
        return c.ask(request(json.dumps(what).encode(), "/tools/mcp", **SESSION))


class Line:
    """A client over stdio, as its shim speaks for it; the server behind it is `Tools`."""

    def __init__(self, rig: Rig, server: Tools) -> None:
        self._rig, self._server = rig, server
        self._about = {"connection": "c1", "server": "echo"}

    def say(self, what: dict[str, Any]) -> dict[str, Any]:
        """Hand over a line; what is to be done with it, done where that is to ask the server."""
        heard = self._rig.control("sessions/default/tools", {**self._about, "line": json.dumps(what)})
        if heard["forward"] is not None:
            said = json.dumps(self._server.answer(what))
            told = {"number": heard["forward"], "lines": [[1, said]]}
            self._rig.control("sessions/default/tools", {**self._about, **told})
            heard["out"] = said
        return dict(heard)


@pytest.fixture(scope="module")
def tape(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with calls over both transports; their server is dead."""
    store = tmp_path_factory.mktemp("tape") / "x.db"
    with tools() as server, Rig("record", store, {"tools": server.url}) as rig:
        line = Line(rig, server)
        for what in (message(0, method="initialize"), message(), message(2, "b")):
            assert ask(rig, what).status == 200
            line.say(what)
        rig.wait_idle()
    assert len(recorded(store)) == 6
    return store


def is_error(body: str | bytes) -> bool:
    """Return whether an answer is one that a fault made."""
    said = json.loads(body)
    return "error" in said or said["result"].get("isError") is True


@pytest.mark.parametrize("kind", KINDS_OF_TOOLS)
def test_over_http_a_call_is_struck_and_its_retry_gets_the_recorded_answer(tape: Path, kind: str) -> None:
    """Initialize is let alone; the error carries the asker's id; nothing is stored, no occurrence is used up."""
    before = tape.read_bytes()
    with Rig("replay", tape, {"tools": "http://127.0.0.1:9"}) as rig:
        rig.control("sessions", {"name": "default", "faults": [RULES[kind]]})
        assert not is_error(ask(rig, message(0, method="initialize")).body)
        first, again, other = ask(rig, message("x")), ask(rig, message("y")), ask(rig, message("z", "b"))
        rig.wait_idle()
        assert first.headers["x-llmproxy-fault"] == kind
        assert (first.json["id"], is_error(first.body), first.status) == ("x", True, 404 if kind == "mcp-gone" else 200)
        assert (again.json["id"], again.json["result"]["content"][0]["text"]) == ("y", "a 1")
        assert is_error(other.body)
        found = [(each.decision, each.fault, each.occurrence) for each in rig.outcomes[1:3]]
        assert found == [(Decision.FAULT, kind, None), (Decision.REPLAY, None, 1)]
    assert tape.read_bytes() == before


@pytest.mark.parametrize("kind", KINDS_OF_TOOLS)
def test_over_stdio_likewise(tape: Path, kind: str) -> None:
    """The shim is told what to say and when, or that its server is gone; the line is never forwarded."""
    with Rig("replay", tape) as rig:
        rig.control("sessions", {"name": "default", "faults": [RULES[kind]]})
        line = Line(rig, Tools())
        assert not is_error(line.say(message(0, method="initialize"))["out"])
        first, again = line.say(message("x")), line.say(message("y"))
        assert first["forward"] is None
        assert first.get("gone", False) is (kind == "mcp-gone")
        assert first.get("late", 0) == (0.01 if kind == "mcp-silent" else 0)
        if kind != "mcp-gone":
            assert (json.loads(first["out"])["id"], is_error(first["out"])) == ("x", True)
        assert json.loads(again["out"])["result"]["content"][0]["text"] == "a 2"
        assert [each.fault for each in rig.outcomes if each.fault] == [kind]


@pytest.mark.parametrize("mode", MODES)
def test_live_too_the_server_never_hears_of_it(store: Path, mode: str) -> None:
    """In every mode that asks a server, each kind strikes before it is asked; what is recorded then is as if nothing had been."""
    with tools() as server, Rig(mode, store, {"tools": server.url}) as rig:
        line = Line(rig, stdio := Tools())
        rig.control("sessions", {"name": "default"})
        for number, kind in enumerate(KINDS_OF_TOOLS):
            rig.control("sessions/default/faults", {"faults": [RULES[kind]]})
            assert ask(rig, message("x", kind)).headers["x-llmproxy-fault"] == kind
            assert line.say(message("s", kind))["forward"] is None
            assert (server.told["tools/call"], stdio.told["tools/call"]) == (number, number)
            assert f"{kind} {number + 1}" in ask(rig, message("y", kind)).body.decode()
            assert f"{kind} {number + 1}" in line.say(message("s", kind))["out"]
        rig.wait_idle()
        assert server.told["tools/call"] == stdio.told["tools/call"] == len(KINDS_OF_TOOLS)
    rows = [] if mode == "passthrough" else recorded(store)
    assert [(row.occurrence, is_error(row.response.body)) for row in rows] == [(1, False)] * len(rows)
    assert len(rows) == (0 if mode == "passthrough" else 2 * len(KINDS_OF_TOOLS))


def test_a_server_without_sessions_is_gone_by_a_reset(tape: Path) -> None:
    """There is no session that it could have forgotten."""
    with Rig("replay", tape, {"tools": "http://127.0.0.1:9"}, faults="mcp-gone") as rig, rig.client() as c:
        c.send(request(json.dumps(message()).encode(), "/tools/mcp"))
        assert was_reset(c)


def test_faults_of_a_model_s_provider_leave_tools_alone(tape: Path) -> None:
    """Unless the rule says `channel: mcp`; then they meet calls of tools, over HTTP."""
    with Rig("replay", tape, {"tools": "http://127.0.0.1:9"}, faults="http-500") as rig:
        assert ask(rig, message()).status == 200
        rig.control("sessions/default/faults", {"faults": [{"kind": "http-500", "channel": "mcp", "tool": "echo"}]})
        assert ask(rig, message(0, method="initialize")).status == 200
        assert ask(rig, message(2, "b")).status == 500
        assert Line(rig, Tools()).say(message(3, "b"))["forward"] is None
        rig.wait_idle()
        assert [each.fault for each in rig.outcomes if each.fault] == ["http-500"]


def test_a_call_that_replay_would_refuse_stays_a_miss(tape: Path) -> None:
    """One of other words, and one more than was recorded: no fault hides what was never recorded."""
    with Rig("replay", tape, {"tools": "http://127.0.0.1:9"}) as rig:
        assert not is_error(ask(rig, message()).body)
        rig.control("sessions/default/faults", {"faults": ["mcp-gone"]})
        for what in (message(4, "never"), message()):
            assert ask(rig, what).headers["x-llmproxy-cache"] == "miss"
        assert Line(rig, Tools()).say(message(5, "never")).get("gone") is None


def test_what_struck_nothing_is_said(tape: Path) -> None:
    """A tool that nobody calls; over what a kind comes; of a preset only what the recording could have met."""
    with Rig("replay", tape, {"tools": "http://127.0.0.1:9"}) as rig:
        ask(rig, message())
        rules = [{"kind": "mcp-error", "tool": "ecko"}, {"kind": "reset"}]
        idle = rig.control("sessions/default/faults", {"faults": rules})["idle"]
        assert idle[0].endswith("no recording has tool ecko; there is echo")
        assert "no recording is of a channel that it meets unless one is named: llm, http" in idle[1]
        assert len(rig.control("sessions/default/faults", {"faults": "flaky-network"})["idle"]) == 2


def test_the_official_client_reads_the_errors_and_goes_on(tmp_path: Path) -> None:
    """Over HTTP: a tool's error is a result, JSON-RPC's an exception; each retry is answered, and each tool ran once."""
    log, store = tmp_path / "log", tmp_path / "x.db"
    calls: list[Any] = [["echo", {"text": text}] for text in ("a", "a", "b", "b")]
    faults = tmp_path / "f.json"
    faults.write_text(json.dumps(["mcp-tool-error@1", "mcp-error@2"]))
    with http_server(log, tmp_path) as origin, Rig("record", store, {"tools": origin}, faults=str(faults)) as rig:
        ((one, again, two, last),) = use([f"{rig.url}/tools/mcp"], cwd=tmp_path, calls=calls)
    assert (one["error"], one["text"]) == (True, "Error executing tool echo: the service behind it is unavailable")
    assert (two["error"], two["text"]) == (True, "Internal error")
    assert (again["text"], last["text"]) == ("echo: a", "echo: b")
    assert log.read_text().splitlines() == ["echo a", "echo b"]


ALONE: list[Any] = [
    ["echo", {"text": "a"}], ["count", {}], ["count", {}], ["steps", {"number": 3}], ["fail", {}], ["delete_all", {}],
    ["poem", {"about": "x"}],
]  # fmt: skip
TOGETHER: list[Any] = [["echo", {"text": str(number)}] for number in range(5)]
DEAD = "http://127.0.0.1:9"


class Tape(NamedTuple):
    store: Path
    log: Path
    alone: list[dict[str, Any]]
    together: list[dict[str, Any]]
    calls: int
    """Lines that the server's tools wrote while it was recorded."""


@pytest.fixture(scope="module")
def tape_mcp_http(tmp_path_factory: pytest.TempPathFactory) -> Tape:
    """Record a client's calls, one after the other and at once; the server is dead afterwards."""
    folder = tmp_path_factory.mktemp("tools")
    store, log = folder / "x.db", folder / "log"
    with http_server(log, folder) as origin, Rig("record", store, {"tools": origin}) as rig:
        (alone,) = use([f"{rig.url}/s/alone/tools/mcp"], cwd=folder, calls=ALONE)
        (together,) = use([f"{rig.url}/s/together/tools/mcp"], cwd=folder, calls=TOGETHER, together=True)
        rig.wait_idle()
        assert not [outcome for outcome in rig.outcomes if outcome.note.startswith("incomplete")]
    return Tape(store, log, alone, together, len(log.read_text().splitlines()))


def test_every_call_is_answered_without_the_server(tape_mcp_http: Tape, tmp_path: Path) -> None:
    """Results, errors of tools, progress, consent, what the client's model wrote: all as recorded, in a session of its own; no tool runs."""
    with Rig("replay", tape_mcp_http.store, {"tools": DEAD}) as rig:
        runs = use([f"{rig.url}/s/alone/tools/mcp"], cwd=tmp_path, calls=ALONE, runs=3)
        rig.wait_idle()
        missed = [outcome.operation for outcome in rig.outcomes if outcome.decision != "REPLAY"]
    assert runs == [tape_mcp_http.alone] * 3
    assert missed == []
    assert tape_mcp_http.alone[2]["text"] == "2"
    assert tape_mcp_http.alone[3]["progress"] == [1.0, 2.0, 3.0]
    assert len(tape_mcp_http.log.read_text().splitlines()) == tape_mcp_http.calls


def test_parallel_calls_may_come_in_any_order(tape_mcp_http: Tape, tmp_path: Path) -> None:
    """Ids are given back to who asked, whatever ids the recorded client gave."""
    with Rig("replay", tape_mcp_http.store, {"tools": DEAD}) as rig:
        url = f"{rig.url}/s/together/tools/mcp"
        runs = use([url], cwd=tmp_path, calls=TOGETHER, together=True, runs=10, shuffle=7)
        rig.wait_idle()
        assert {outcome.decision for outcome in rig.outcomes} == {"REPLAY"}
    assert runs == [tape_mcp_http.together] * 10


DECLINED = (5, {"consent": "decline"}, '$.result.action: "accept" -> "decline"')


@pytest.mark.parametrize(("call", "other", "said"), [DECLINED, (6, {"poem": "violets"}, "violets")])
def test_what_the_client_or_its_model_said_otherwise_counts(
    tape_mcp_http: Tape, tmp_path: Path, call: int, other: dict[str, Any], said: str
) -> None:
    """Consent that is declined is never served the consented result, nor a poem another one's: the tool's result is an error with our text."""
    with Rig("replay", tape_mcp_http.store, {"tools": DEAD}) as rig:
        ((answer,),) = use([f"{rig.url}/s/alone/tools/mcp"], cwd=tmp_path, calls=[ALONE[call]], **other)
    assert (answer["error"], said in answer["text"]) == (True, True)
    assert "everything is deleted" not in answer["text"]


def test_a_changed_argument_is_an_error_of_the_tool(tape_mcp_http: Tape, tmp_path: Path) -> None:
    """The model reads what differs from the nearest recording; the session goes on."""
    calls = [["echo", {"text": "changed"}], ["echo", {"text": "a"}]]
    with Rig("replay", tape_mcp_http.store, {"tools": DEAD}) as rig:
        ((changed, same),) = use([f"{rig.url}/s/alone/tools/mcp"], cwd=tmp_path, calls=calls)
        assert [outcome.status for outcome in rig.outcomes if outcome.miss] == [200]
    assert changed["error"] is True
    assert '$.params.arguments.text: "a" -> "changed"' in changed["text"]
    assert (same["error"], same["text"]) == (False, "echo: a")


def test_errors_speak_json_rpc(tape_mcp_http: Tape) -> None:
    """A probe of the stateless era is answered so that clients go on with initialize; what needs no answer gets none, and is no miss."""

    def said(body: dict[str, Any]) -> bytes:
        return request(json.dumps({"jsonrpc": "2.0", **body}).encode(), "/s/alone/tools/mcp")

    with Rig("replay", tape_mcp_http.store, {"tools": DEAD}) as rig, rig.client() as c:
        probe = c.ask(said({"id": 1, "method": "server/discover", "params": {"_meta": {}}}))
        unknown = c.ask(said({"id": "x", "method": "resources/list"}))
        notified = c.ask(said({"method": "notifications/roots/list_changed"}))
        assert [outcome.miss for outcome in rig.outcomes] == [False, True, False]
    assert (probe.status, probe.json["error"]["code"]) == (200, -32601)
    assert (unknown.status, unknown.json["id"]) == (200, "x")
    assert "mcp:resources/list" in unknown.json["error"]["message"]
    assert (notified.status, notified.body) == (202, b"")


def test_where_the_server_broke_off_the_connection_ends_again(tmp_path: Path) -> None:
    """Killed in the middle of a call, say: nobody waits for ever for what never came, and half a result is none."""
    asked = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "t"}}).encode()
    half = Answer(
        200, (("content-type", "text/event-stream"),), (Piece(b"event: message\n"), Piece(b"data: {")), "chunked"
    )
    store, fields = tmp_path / "x.db", {"Accept": "application/json, text/event-stream"}
    with Provider(Script((Step(half.cut(1)),))) as server, Rig("record", store, {"tools": server.url}) as rig:
        with rig.client() as client:
            assert client.ask(request(asked, "/tools/mcp", **fields)).whole is False
        rig.wait_idle()
    with Rig("replay", store, {"tools": DEAD}) as rig, rig.client() as client:
        got = client.ask(request(asked, "/tools/mcp", **fields))
        assert (got.whole, got.headers["x-llmproxy-cache"]) == (False, "hit")
