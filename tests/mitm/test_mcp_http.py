"""MCP over HTTP: a real server of tools recorded once, then dead; a real client gets every answer, and never one that is not its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.mitm.rig import Rig
from tests.mitm.wire import request
from tests.provider import Provider, Script, Step
from tests.provider.answer import Answer, Piece
from tests.support.tools import http_server, use

ALONE: list[Any] = [
    ["echo", {"text": "a"}], ["count", {}], ["count", {}], ["steps", {"number": 3}], ["fail", {}], ["delete_all", {}],
    ["poem", {"about": "x"}],
]  # fmt: skip
TOGETHER: list[Any] = [["echo", {"text": str(number)}] for number in range(5)]
DEAD = "http://127.0.0.1:9"


class Tape(NamedTuple):
    """A recording."""

    store: Path
    log: Path
    alone: list[dict[str, Any]]
    together: list[dict[str, Any]]
    calls: int
    """Lines that the server's tools wrote while it was recorded."""


@pytest.fixture(scope="module")
def tape(tmp_path_factory: pytest.TempPathFactory) -> Tape:
    """Record a client's calls, one after the other and at once; the server is dead afterwards."""
    folder = tmp_path_factory.mktemp("tools")
    store, log = folder / "x.db", folder / "log"
    with http_server(log, folder) as origin, Rig("record", store, {"tools": origin}) as rig:
        (alone,) = use([f"{rig.url}/s/alone/tools/mcp"], cwd=folder, calls=ALONE)
        (together,) = use([f"{rig.url}/s/together/tools/mcp"], cwd=folder, calls=TOGETHER, together=True)
        rig.wait_idle()
        assert not [outcome for outcome in rig.outcomes if outcome.note.startswith("incomplete")]
    return Tape(store, log, alone, together, len(log.read_text().splitlines()))


def test_every_call_is_answered_without_the_server(tape: Tape, tmp_path: Path) -> None:
    """Results, errors of tools, progress, consent, what the client's model wrote: all as recorded, in a session of its own; no tool runs."""
    with Rig("replay", tape.store, {"tools": DEAD}) as rig:
        runs = use([f"{rig.url}/s/alone/tools/mcp"], cwd=tmp_path, calls=ALONE, runs=3)
        rig.wait_idle()
        missed = [outcome.operation for outcome in rig.outcomes if outcome.decision != "REPLAY"]
    assert runs == [tape.alone] * 3
    assert missed == []
    assert tape.alone[2]["text"] == "2"
    assert tape.alone[3]["progress"] == [1.0, 2.0, 3.0]
    assert len(tape.log.read_text().splitlines()) == tape.calls


def test_parallel_calls_may_come_in_any_order(tape: Tape, tmp_path: Path) -> None:
    """Ids are given back to who asked, whatever ids the recorded client gave."""
    with Rig("replay", tape.store, {"tools": DEAD}) as rig:
        url = f"{rig.url}/s/together/tools/mcp"
        runs = use([url], cwd=tmp_path, calls=TOGETHER, together=True, runs=10, shuffle=7)
        rig.wait_idle()
        assert {outcome.decision for outcome in rig.outcomes} == {"REPLAY"}
    assert runs == [tape.together] * 10


def test_consent_declined_is_never_served_the_consented_result(tape: Tape, tmp_path: Path) -> None:
    """The client said another thing than while it was recorded: the tool's result is an error with our text."""
    with Rig("replay", tape.store, {"tools": DEAD}) as rig:
        ((answer,),) = use([f"{rig.url}/s/alone/tools/mcp"], cwd=tmp_path, calls=[ALONE[5]], consent="decline")
    assert answer["error"] is True
    assert '$.result.action: "accept" -> "decline"' in answer["text"]
    assert "everything is deleted" not in answer["text"]


def test_what_the_client_s_model_wrote_counts(tape: Tape, tmp_path: Path) -> None:
    """Another poem is another result, which nobody has recorded."""
    with Rig("replay", tape.store, {"tools": DEAD}) as rig:
        ((answer,),) = use([f"{rig.url}/s/alone/tools/mcp"], cwd=tmp_path, calls=[ALONE[6]], poem="violets")
    assert answer["error"] is True
    assert "violets" in answer["text"]


def test_a_changed_argument_is_an_error_of_the_tool(tape: Tape, tmp_path: Path) -> None:
    """The model reads what differs from the nearest recording; the session goes on."""
    calls = [["echo", {"text": "changed"}], ["echo", {"text": "a"}]]
    with Rig("replay", tape.store, {"tools": DEAD}) as rig:
        ((changed, same),) = use([f"{rig.url}/s/alone/tools/mcp"], cwd=tmp_path, calls=calls)
        assert [outcome.status for outcome in rig.outcomes if outcome.miss] == [200]
    assert changed["error"] is True
    assert '$.params.arguments.text: "a" -> "changed"' in changed["text"]
    assert (same["error"], same["text"]) == (False, "echo: a")


def test_errors_speak_json_rpc(tape: Tape) -> None:
    """A probe of the stateless era is answered so that clients go on with initialize; what needs no answer gets none, and is no miss."""

    def said(body: dict[str, Any]) -> bytes:
        return request(json.dumps({"jsonrpc": "2.0", **body}).encode(), "/s/alone/tools/mcp")

    with Rig("replay", tape.store, {"tools": DEAD}) as rig, rig.client() as c:
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
