"""Injected faults at servers of tools: over HTTP and over stdio, never at the server, never stored, and the retry gets its recorded answer."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from llmproxy.core.faults import KINDS
from llmproxy.protocol import Channel, Decision
from tests.mitm.rig import Rig, recorded
from tests.mitm.test_faults import was_reset
from tests.mitm.wire import Received, request
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
    """Run one over HTTP for the block."""
    made = Tools()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            said = made.answer(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            body = b"" if said is None else json.dumps(said).encode()
            self.send_response(200 if body else 202)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.url = f"http://127.0.0.1:{server.server_port}"
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()


def message(id_: object = 1, text: str = "a", method: str = "tools/call") -> dict[str, Any]:
    """Write a call of a tool."""
    params = {"name": "echo", "arguments": {"text": text}} if method == "tools/call" else {}
    return {"jsonrpc": "2.0", "id": id_, "method": method, "params": params}


def ask(rig: Rig, what: dict[str, Any]) -> Received:
    """Send a message over HTTP, on a connection of its own."""
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
    """Tell whether an answer is one that a fault made."""
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
        assert [(each.decision, each.fault, each.occurrence) for each in rig.outcomes[1:3]] == [
            (Decision.FAULT, kind, None),
            (Decision.REPLAY, None, 1),
        ]
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
def test_live_too_the_server_never_hears_of_it(tmp_path: Path, mode: str) -> None:
    """In every mode that asks a server, each kind strikes before it is asked; what is recorded then is as if nothing had been."""
    store = tmp_path / "x.db"
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
