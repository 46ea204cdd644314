"""Shims' calls: answered once, by the control API's own rules, and when what they tell is stored."""

from __future__ import annotations

import asyncio
import gc
import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from llmproxy.core.control.mcp_shim_endpoint import ProxySideStdioSession, StdioShimSessions
from llmproxy.core.engine.engine import Engine, EngineComponentClasses
from llmproxy.core.engine.recording_and_accounting import RecordingStoreWriter
from llmproxy.core.engine.request_stages import RequestDecider
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.traffic.interaction import Usage
from llmproxy.errors import CassetteCorrupt, RecordingError
from llmproxy.mitm import serve
from llmproxy.mitm.http1.fast_path import MAX_HELD, ClientLeaveWatchingHandler
from llmproxy.mitm.proxy_context import ProxyContext
from llmproxy.protocol import Decision
from tests.mitm.rig import Rig
from tests.mitm.wire import Wire, chunked, request

PATH = "/_llmproxy/sessions/default/tools"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a proxy that ends wait half a second for calls that nobody answers."""
    monkeypatch.setattr(serve, "PATIENCE", 0.5)


def told(**what: Any) -> bytes:
    return json.dumps({"connection": "c", "server": "s", **what}).encode()


def heard(number: int) -> bytes:
    """Make the call that hears a call of a tool."""
    params = {"name": "t", "arguments": {"n": number}}
    return told(line=json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}))


def answered(number: int, text: str = "x") -> bytes:
    return told(number=number, lines=[[5, json.dumps({"jsonrpc": "2.0", "id": number, "result": {"content": text}})]])


def post(client: Wire, body: bytes, **headers: str) -> tuple[int, Any]:
    got = client.ask(request(body, PATH, **headers))
    return got.status, json.loads(got.body or b"null")


def rows(store: Path) -> int:
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as db:
        return int(db.execute("select count(*) from interactions").fetchone()[0])


def test_an_answer_that_was_acknowledged_is_stored(store: Path) -> None:
    """The shim hears of it when others can read it; the limit of requests that are matched is none for a tool's answer."""
    with Rig("record", store, max_request=1000) as rig, rig.client() as client:
        for number, text in ((1, "x"), (2, "x"), (3, "x" * MAX_HELD)):
            assert post(client, heard(number)) == (200, {"out": "", "forward": number})
            assert post(client, answered(number, text)) == (200, {})
            assert rows(store) == number
    with Rig("replay", store) as rig, rig.client() as client:
        assert json.loads(post(client, heard(2))[1]["out"]) == {"jsonrpc": "2.0", "id": 2, "result": {"content": "x"}}


def test_calls_in_pieces_and_many_at_once_are_answered_in_order(tmp_path: Path) -> None:
    """What comes while an answer is being stored waits for it."""
    with Rig("record", tmp_path / "x.db") as rig, rig.client() as client:
        calls = [part for number in range(1, 20) for part in (heard(number), answered(number))]
        raw = b"".join(request(each, PATH) for each in calls)
        for at in range(0, len(raw), 700):
            client.send(raw[at : at + 700])
        got = [json.loads(client.response().body) for _ in calls]
        assert got == [each for number in range(1, 20) for each in ({"out": "", "forward": number}, {})]
        rig.wait_idle()


def test_the_rules_of_the_control_api_hold(tmp_path: Path) -> None:
    """No page, no foreign host; a mistake is said, and the connection goes on; chunked bodies are read."""
    with Rig("record", tmp_path / "x.db") as rig, rig.client() as client:
        assert post(client, heard(1), Origin="http://evil.example")[0] == 403
        assert post(client, heard(1), Sec_Fetch_Site="cross-site")[0] == 403
        assert post(client, b"[]")[0] == 400
        assert client.ask(chunked(heard(1), 30, PATH)).status == 200
        assert post(client, heard(2)) == (200, {"out": "", "forward": 2})


class NotWriting(RecordingStoreWriter):
    def store_answers(self, ended: Sequence[tuple[Exchange, bool]]) -> list[Usage]:
        raise RecordingError("The store did not take the recording: disk full.")


class NotReading(RequestDecider):
    def identify_and_decide(self, exchange: Exchange, body: bytes) -> None:
        raise CassetteCorrupt("The store is damaged.")


class FullDisk(Engine):
    parts = EngineComponentClasses(writer=NotWriting)


class Damaged(Engine):
    parts = EngineComponentClasses(stages=NotReading)


@contextmanager
def failing(store: Path, engine: type[Engine]) -> Iterator[tuple[Rig, Wire]]:
    """Record through a proxy whose engine fails; it knows the shim."""
    with Rig("record", store, engine=engine) as rig, rig.client() as client:
        assert rig.proxy.lines is not None
        rig.proxy.lines._lines["default", "c"] = ProxySideStdioSession(
            rig.proxy.engine, rig.proxy, "default", "s", _number=9
        )
        yield rig, client


def test_an_answer_that_could_not_be_stored_is_not_acknowledged(tmp_path: Path) -> None:
    """The shim hears why, and lets its client read an error instead."""
    with failing(tmp_path / "x.db", FullDisk) as (rig, client):
        for number, text in ((10, "x"), (11, "x" * MAX_HELD)):
            assert post(client, heard(number)) == (200, {"out": "", "forward": number})
            status, said = post(client, answered(number, text))
            assert (status >= 400, "disk full" in said["error"]["message"]) == (True, True)
        rig.wait_idle()
        assert [each.decision for each in rig.outcomes] == [Decision.RECORD] * 2


def test_what_cannot_be_read_goes_to_no_server(tmp_path: Path) -> None:
    """Its answer could not be kept: the shim hears why before anything is done."""
    with failing(tmp_path / "x.db", Damaged) as (rig, client):
        status, said = post(client, heard(10))
        assert (status >= 400, "is damaged" in said["error"]["message"]) == (True, True)
        rig.wait_idle()
        assert len(rig.outcomes) == 1


def test_nobody_is_taken_for_somebody_else(tmp_path: Path) -> None:
    """A proxy that was started in another's place knows neither its shims nor the calls that they wait for."""
    with Rig("record", tmp_path / "x.db") as rig, rig.client() as client:
        for call in (told(line="{}", known=True), answered(1)):
            status, said = post(client, call)
            assert (status, "was started after the server of tools" in said["error"]["message"]) == (400, True)
        assert post(client, heard(1))[0] == 200
        assert post(client, answered(2))[0] == 400
        assert post(client, told(number=7, lost="gone")) == (200, {})


def test_who_was_idle_goes_on_with_another_connection(tmp_path: Path) -> None:
    """The proxy has closed the one that was held; its shim is still there, and what it waits for is not lost."""
    with Rig("record", tmp_path / "x.db") as rig, rig.client() as client:
        with rig.client() as idle:
            assert post(idle, told(**json.loads(heard(1)) | {"held": True}))[0] == 200
            (handler,) = (
                each
                for each in gc.get_objects()
                if isinstance(each, ClientLeaveWatchingHandler) and each.client.peername == idle.sock.getsockname()
            )
            handler.timeout_watchdog.last_activity = 0.0
            for front in rig.proxy.fronts.values():
                front.heard = 0.0
            asyncio.run_coroutine_threadsafe(handler.on_timeout(), rig._loop).result(60)
            assert idle.rest() == b""
        assert post(client, told(**json.loads(heard(2)) | {"held": True, "known": True}))[1]["forward"] == 2
        assert post(client, answered(1)) == (200, {})


def test_what_a_killed_shim_waited_for_is_lost(store: Path) -> None:
    """Nothing half is kept, and nobody waits for it; another shim's calls go on."""
    with Rig("record", store) as rig, rig.client() as other:
        assert post(other, told(line=json.loads(heard(1))["line"], connection="d"))[0] == 200
        with rig.client() as client:
            assert post(client, told(**json.loads(heard(2)) | {"held": True}))[0] == 200
        (lost,) = rig.wait_outcomes(1)
        assert ("the client left" in lost.note, len(rig.proxy.open)) == (True, 1)
        assert post(other, told(**json.loads(answered(1)) | {"connection": "d"})) == (200, {})
        rig.wait_idle()
    assert rows(store) == 1


def test_what_a_proxy_that_ends_waits_for_is_not_kept(store: Path) -> None:
    """A call of a tool without its answer is no recording, not even of a cut answer."""
    with Rig("record", store) as rig, rig.client() as client:
        assert post(client, heard(1))[0] == 200
        assert post(client, heard(2))[0] == 200
        assert post(client, answered(1)) == (200, {})
    assert rows(store) == 1


def test_servers_whose_names_begin_alike_are_two(store: Path) -> None:
    """A name with a slash is a name: the one is not answered with what the other said."""
    with Rig("record", store) as rig, rig.client() as client:
        assert post(client, told(**json.loads(heard(1)) | {"server": "a/b"}))[0] == 200
        assert post(client, answered(1)) == (200, {})
    with Rig("replay", store) as rig, rig.client() as client:
        for server, hit in (("a/b", True), ("a", False)):
            call = told(**json.loads(heard(1)) | {"server": server, "connection": server})
            assert ("isError" not in post(client, call)[1]["out"]) is hit


def test_what_a_server_never_answered_is_an_error_in_replay(store: Path) -> None:
    """A proxy of before that ended in the middle of a call stored that it was cut; nobody waits for ever for the rest."""
    with Rig("record", store) as rig, rig.client() as client:
        assert post(client, heard(1))[0] == 200
        assert post(client, answered(1)) == (200, {})
    with closing(sqlite3.connect(store)) as db, db:
        db.execute("update interactions set ending = 'cut'")
    with Rig("replay", store) as rig, rig.client() as client:
        last = json.loads(post(client, heard(1))[1]["out"].splitlines()[-1])
        assert (last["id"], last["result"]["isError"], "broke off" in json.dumps(last)) == (1, True, True)


class FailingLines(StdioShimSessions):
    times = 0

    def serve(self, *_: object) -> dict[str, Any]:
        self.times += 1
        raise ZeroDivisionError


class FailingShell(ProxyContext):
    def __post_init__(self) -> None:
        self.lines = FailingLines(self)


def test_a_failure_ends_the_connection_and_serves_nothing_twice(tmp_path: Path) -> None:
    """An exception is no reason to ask once more: the call may have been counted."""
    with Rig("record", tmp_path / "x.db", shell=FailingShell) as rig, rig.client() as client:
        assert client.ask(request(heard(1), PATH)).status == 500
        assert client.rest() == b""
        assert isinstance(rig.proxy.lines, FailingLines)
        assert rig.proxy.lines.times == 1
