"""Shims' calls before the stream: answered there, once, by the control API's own rules, and when what they tell is stored."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from llmproxy.core.control.tool_lines import ToolLine, ToolLines
from llmproxy.core.engine.deciding.identifying import Identifying
from llmproxy.core.engine.engine import Engine, Parts
from llmproxy.core.engine.storing.writing import AnswerWriter
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.traffic.interaction import Usage
from llmproxy.errors import CassetteCorrupt, RecordingError
from llmproxy.mitm.http1.front import MAX_HELD, ConnectionHandler, Front
from llmproxy.mitm.http1.told_lines import find_head
from llmproxy.mitm.shell import Shell
from llmproxy.protocol import Decision
from llmproxy.tool_frames import ANSWER, DONE, FAILED, HEAD, HEARD, LINE, OFFERED, frame, read_heard, write_answer
from tests.mitm.http1.test_front import Counting
from tests.mitm.rig import Rig
from tests.mitm.wire import Wire, chunked, request
from tests.support.process import until

PATH = "/_llmproxy/sessions/default/tools"


@pytest.fixture
def layer() -> type[Counting]:
    """Return a layer class with a count of its own."""
    return type("Counted", (Counting,), {"bytes_seen": 0})


def told(**what: Any) -> bytes:  # noqa: ANN401 - JSON
    """Make a call of a shim."""
    return json.dumps({"connection": "c", "server": "s", **what}).encode()


def heard(number: int) -> bytes:
    """Make the call that hears a call of a tool."""
    asked = {
        "jsonrpc": "2.0",
        "id": number,
        "method": "tools/call",
        "params": {"name": "t", "arguments": {"n": number}},
    }
    return told(line=json.dumps(asked))


def answered(number: int, text: str = "x") -> bytes:
    """Make the call that tells its answer."""
    return told(number=number, lines=[[5, json.dumps({"jsonrpc": "2.0", "id": number, "result": {"content": text}})]])


def post(client: Wire, body: bytes, **headers: str) -> tuple[int, Any]:
    """Ask, and read the answer."""
    got = client.ask(request(body, PATH, **headers))
    return got.status, json.loads(got.body or b"null")


def rows(store: Path) -> int:
    """Count what another process would see in the store."""
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as db:
        return int(db.execute("select count(*) from interactions").fetchone()[0])


def test_an_answer_that_was_acknowledged_is_stored(tmp_path: Path, layer: type[Counting]) -> None:
    """In front, and by the layer for a body that is too long: the shim hears of it when others can read it.

    The limit of requests that are matched is none for what a server of tools answers.
    """
    store = tmp_path / "x.db"
    with Rig("record", store, layer=layer, max_request=1000) as rig, rig.client() as client:
        for number in (1, 2):
            assert post(client, heard(number)) == (200, {"out": "", "forward": number})
            assert post(client, answered(number)) == (200, {})
            assert rows(store) == number
        assert layer.bytes_seen == 0
        assert post(client, heard(3))[0] == 200
        assert post(client, answered(3, "x" * MAX_HELD)) == (200, {})
        assert (layer.bytes_seen > MAX_HELD, rows(store)) == (True, 3)
    with Rig("replay", store, layer=type("Counted", (Counting,), {"bytes_seen": 0})) as rig, rig.client() as client:
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
    """No page, no foreign host; a mistake is said, and the connection goes on; chunked bodies are the layer's."""
    with Rig("record", tmp_path / "x.db") as rig, rig.client() as client:
        assert post(client, heard(1), Origin="http://evil.example")[0] == 403
        assert post(client, heard(1), Sec_Fetch_Site="cross-site")[0] == 403
        assert post(client, b"[]")[0] == 400
        assert client.ask(chunked(heard(1), 30, PATH)).status == 200
        assert post(client, heard(2)) == (200, {"out": "", "forward": 2})


def asked(number: int) -> bytes:
    """Return the line of a call of a tool."""
    return str(json.loads(heard(number))["line"]).encode()


def say(client: Wire, *frames: bytes) -> list[tuple[int, bytes]]:
    """Say frames at once, and read as many answers."""
    client.send(b"".join(frames))
    got = []
    for _ in frames:
        _, kind, length = HEAD.unpack(client.exactly(HEAD.size))
        got.append((kind, client.exactly(length)))
    return got


def told_by(number: int) -> bytes:
    """Make the frame that tells the answer to a call."""
    return write_answer(
        number, [(5, json.dumps({"jsonrpc": "2.0", "id": number, "result": {"content": "x"}}).encode())]
    )


def let_in(client: Wire, **more: Any) -> bool:  # noqa: ANN401 - JSON
    """Make the first call of a shim; whether frames are offered."""
    got = client.ask(request(told(**json.loads(heard(1)) | more), PATH))
    assert json.loads(got.body) == {"out": "", "forward": 1}
    return got.headers.get(OFFERED) == "1"


def test_who_was_let_in_says_the_rest_in_frames(tmp_path: Path, layer: type[Counting]) -> None:
    """In pieces and many at once too; what was acknowledged is stored, and JSON is understood between them."""
    store = tmp_path / "x.db"
    with Rig("record", store, layer=layer) as rig, rig.client() as client:
        assert let_in(client, held=True)
        assert say(client, told_by(1)) == [(DONE, b"")]
        assert rows(store) == 1
        for number in (2, 3):
            (kind, data), over = say(client, frame(LINE, asked(number)), told_by(number))
            assert (kind, read_heard(data), over) == (HEARD, (b"", number, 0.0, False), (DONE, b""))
            assert rows(store) == number
        for at in frame(LINE, asked(4)):
            client.send(bytes((at,)))
        assert client.exactly(HEAD.size)[1] == HEARD
        assert read_heard(client.exactly(17))[1] == 4
        assert post(client, answered(4)) == (200, {})
        assert say(client, told_by(4), frame(99, b"?"), frame(ANSWER, b"?"), frame(LINE, asked(5)))[3][0] == HEARD
        assert (layer.bytes_seen, rows(store)) == (0, 4)
    with Rig("replay", store) as rig, rig.client() as client:
        got = client.ask(request(told(**json.loads(heard(2)) | {"held": True}), PATH))
        assert json.loads(json.loads(got.body)["out"])["id"] == 2
        ((kind, data),) = say(client, frame(LINE, asked(3)))
        assert (kind, json.loads(read_heard(data)[0])["id"]) == (HEARD, 3)


def test_what_goes_wrong_in_a_frame_is_told_in_a_frame(tmp_path: Path) -> None:
    """An answer to nothing, a frame that lacks something, one of no kind: the connection goes on."""
    with Rig("record", tmp_path / "x.db") as rig, rig.client() as client:
        assert let_in(client, held=True)
        for said, why in (
            (told_by(9), b"nothing of s waits"),
            (frame(ANSWER, b"?"), b"requires"),
            (frame(77), b"kind"),
        ):
            ((kind, text),) = say(client, said)
            assert (kind, why in text) == (FAILED, True), text
        assert say(client, told_by(1)) == [(DONE, b"")]
        rig.shell.draining = True
        assert say(client, frame(LINE, asked(2))) == [(FAILED, b"the proxy is ending.")]


def test_frames_are_for_who_was_let_in(tmp_path: Path) -> None:
    """Nobody else is offered them, or heard: neither who has not asked nor who may leave without a word."""
    with Rig("record", tmp_path / "x.db") as rig:
        with rig.client() as client:
            assert not let_in(client)
            client.send(frame(LINE, asked(2)) + b"\r\n\r\n")
            assert b"400" in client.rest()
        with rig.client() as client:
            client.send(frame(LINE, asked(2)) + b"\r\n\r\n")
            assert b"400" in client.rest()


class Hasty(Shell):
    """Gives what is held to the layer at once."""

    held_for = 0.01


def test_half_a_frame_waits_for_its_rest_and_is_nobody_else_s(tmp_path: Path, layer: type[Counting]) -> None:
    """Of a shim that is slow, and of one that ends in the middle: the layer would take it for a broken request."""
    with Rig("record", tmp_path / "x.db", layer=layer, shell=Hasty) as rig, rig.client() as client:
        assert let_in(client, held=True)
        raw = told_by(1)
        client.send(raw[:9])
        until(lambda: any(each._look is not None for each in rig.shell.fronts.values() if isinstance(each, Front)))
        first = next(each._look for each in rig.shell.fronts.values() if isinstance(each, Front))
        until(lambda: all(each._look is not first for each in rig.shell.fronts.values() if isinstance(each, Front)))
        assert say(client, raw[9:]) == [(DONE, b"")]
        client.send(raw[:9])
        client.sock.shutdown(socket.SHUT_WR)
        assert client.rest() == b""
        rig.wait_idle()
        assert (layer.bytes_seen, [each.decision for each in rig.outcomes]) == (0, [Decision.RECORD])


def test_a_frame_that_has_no_end_is_not_waited_for(tmp_path: Path) -> None:
    """A shim says nothing so long in one."""
    with Rig("record", tmp_path / "x.db") as rig, rig.client() as client:
        assert let_in(client, held=True)
        client.send(HEAD.pack(0, LINE, MAX_HELD))
        client.send(b"x" * MAX_HELD)
        assert client.rest() == b""


class NotWriting(AnswerWriter):
    """Stores nothing."""

    def stored_together(self, ended: Sequence[tuple[Exchange, bool]]) -> list[Usage]:
        raise RecordingError("The store did not take the recording: disk full.")


class NotReading(Identifying):
    """Cannot say what a message is."""

    def identify(self, exchange: Exchange, body: bytes) -> None:
        raise CassetteCorrupt("The store is damaged.")


class FullDisk(Engine):
    """An engine that stores nothing."""

    parts = Parts(writing=NotWriting)


class Damaged(Engine):
    """An engine that reads nothing."""

    parts = Parts(identifying=NotReading)


@pytest.mark.parametrize(("engine", "why"), [(FullDisk, "disk full"), (Damaged, "is damaged")])
def test_an_answer_that_could_not_be_stored_is_not_acknowledged(tmp_path: Path, engine: type[Engine], why: str) -> None:
    """The shim hears why, and lets its client read an error instead; in front and by the layer."""
    with Rig("record", tmp_path / "x.db", engine=engine) as rig, rig.client() as client:
        assert rig.shell.lines is not None
        rig.shell.lines._lines["default", "c"] = ToolLine(rig.shell.engine, rig.shell, "default", "s", _number=9)
        for number, text in ((10, "x"), (11, "x" * MAX_HELD)):
            assert post(client, heard(number)) == (200, {"out": "", "forward": number})
            status, said = post(client, answered(number, text))
            assert (status >= 400, why in said["error"]["message"]) == (True, True)
        rig.wait_idle()
        assert [each.decision for each in rig.outcomes] == [Decision.RECORD] * 2


@pytest.mark.parametrize(("engine", "why"), [(FullDisk, b"disk full"), (Damaged, b"is damaged")])
def test_nor_is_one_that_was_told_in_a_frame(tmp_path: Path, engine: type[Engine], why: bytes) -> None:
    """While other calls are open, too: then it is stored elsewhere."""
    with Rig("record", tmp_path / "x.db", engine=engine) as rig, rig.client() as client:
        assert rig.shell.lines is not None
        rig.shell.lines._lines["default", "c"] = ToolLine(rig.shell.engine, rig.shell, "default", "s", held=True)
        rig.shell.lines._lines["default", "c"]._number = 9
        assert post(client, heard(10))[0] == 200
        assert say(client, frame(LINE, asked(11)))[0][0] == HEARD
        for number in (10, 11):
            ((kind, text),) = say(client, told_by(number))
            assert (kind, why in text) == (FAILED, True), text
        rig.wait_idle()
        assert [each.decision for each in rig.outcomes] == [Decision.RECORD] * 2


def test_nobody_is_taken_for_somebody_else(tmp_path: Path) -> None:
    """A proxy that was started in another's place knows neither its shims nor the calls that they wait for."""
    with Rig("record", tmp_path / "x.db") as rig, rig.client() as client:
        for call in (told(line="{}", known=True), answered(1)):
            status, said = post(client, call)
            assert (status, "was started after the server of tools" in said["error"]["message"]) == (400, True)
        assert post(client, heard(1))[0] == 200
        assert post(client, answered(2))[0] == 400
        assert post(client, told(number=7, lost="gone")) == (200, {})


def test_what_a_killed_shim_waited_for_is_lost(tmp_path: Path) -> None:
    """Nothing half is kept, and nobody waits for it; another shim's calls go on."""
    store = tmp_path / "x.db"
    with Rig("record", store) as rig, rig.client() as other:
        assert post(other, told(line=json.loads(heard(1))["line"], connection="d"))[0] == 200
        with rig.client() as client:
            assert post(client, told(**json.loads(heard(2)) | {"held": True}))[0] == 200
        (lost,) = rig.wait_outcomes(1)
        assert ("the client left" in lost.note, len(rig.shell.open)) == (True, 1)
        assert post(other, told(**json.loads(answered(1)) | {"connection": "d"})) == (200, {})
        rig.wait_idle()
    assert rows(store) == 1


def test_what_a_proxy_that_ends_waits_for_is_not_kept(tmp_path: Path) -> None:
    """A call of a tool without its answer is no recording, not even of a cut answer."""
    store = tmp_path / "x.db"
    with Rig("record", store) as rig, rig.client() as client:
        assert post(client, heard(1))[0] == 200
        assert post(client, heard(2))[0] == 200
        assert post(client, answered(1)) == (200, {})
    assert rows(store) == 1


def test_servers_whose_names_begin_alike_are_two(tmp_path: Path) -> None:
    """A name with a slash is a name: the one is not answered with what the other said."""
    store = tmp_path / "x.db"
    with Rig("record", store) as rig, rig.client() as client:
        assert post(client, told(**json.loads(heard(1)) | {"server": "a/b"}))[0] == 200
        assert post(client, answered(1)) == (200, {})
    with Rig("replay", store) as rig, rig.client() as client:
        for server, hit in (("a/b", True), ("a", False)):
            call = told(**json.loads(heard(1)) | {"server": server, "connection": server})
            assert ("isError" not in post(client, call)[1]["out"]) is hit


def test_what_a_server_never_answered_is_an_error_in_replay(tmp_path: Path) -> None:
    """A proxy of before that ended in the middle of a call stored that it was cut; nobody waits for ever for the rest."""
    store = tmp_path / "x.db"
    with Rig("record", store) as rig, rig.client() as client:
        assert post(client, heard(1))[0] == 200
        assert post(client, answered(1)) == (200, {})
    with closing(sqlite3.connect(store)) as db, db:
        db.execute("update interactions set ending = 'cut'")
    with Rig("replay", store) as rig, rig.client() as client:
        last = json.loads(post(client, heard(1))[1]["out"].splitlines()[-1])
        assert (last["id"], last["result"]["isError"], "broke off" in json.dumps(last)) == (1, True, True)


def test_who_is_answered_here_is_not_idle(tmp_path: Path) -> None:
    """The layers behind hear nothing of it, and would close the connection as one on which nothing was said for hours."""
    with Rig("record", tmp_path / "x.db") as rig, rig.client() as client:
        assert post(client, heard(1))[0] == 200
        (front,) = rig.shell.fronts.values()
        assert isinstance(front, Front)
        found = [each for each in gc.get_objects() if isinstance(each, ConnectionHandler)]
        (handler,) = (each for each in found if each.client.peername == front._place[0])
        handler.timeout_watchdog.last_activity = front.heard - 7200

        async def look() -> asyncio.Task[None]:
            task = asyncio.ensure_future(handler.on_timeout())
            await asyncio.sleep(0)
            return task

        watching = asyncio.run_coroutine_threadsafe(look(), rig._loop).result(60)
        assert post(client, answered(1)) == (200, {})
        rig._loop.call_soon_threadsafe(watching.cancel)
        handler.timeout_watchdog.last_activity = front.heard = 0.0  # nothing for hours
        asyncio.run_coroutine_threadsafe(look(), rig._loop).result(60)
        assert client.rest() == b""


class FailingLines(ToolLines):
    """Fails, and counts."""

    times = 0

    def serve(self, *_: object) -> dict[str, Any]:
        self.times += 1
        raise ZeroDivisionError


class FailingShell(Shell):
    """Carries them."""

    def __post_init__(self) -> None:
        self.lines = FailingLines(self)


def test_a_failure_ends_the_connection_and_serves_nothing_twice(tmp_path: Path) -> None:
    """An exception is no reason to ask once more: the call may have been counted."""
    with Rig("record", tmp_path / "x.db", shell=FailingShell) as rig, rig.client() as client:
        assert client.ask(request(heard(1), PATH)).status == 500
        assert client.rest() == b""
        assert isinstance(rig.shell.lines, FailingLines)
        assert rig.shell.lines.times == 1


@pytest.mark.parametrize(
    "head",
    [
        b"GET /_llmproxy/sessions/x/tools HTTP/1.1\r\ncontent-length: 2\r\n\r\n",
        b"POST /_llmproxy/sessions/x/reset HTTP/1.1\r\ncontent-length: 2\r\n\r\n",
        b"POST /_llmproxy/sessions/x/tools HTTP/1.1\r\ncontent-length: 2\r\nconnection: close\r\n\r\n",
        b"POST /_llmproxy/sessions/x/tools HTTP/1.1\r\ncontent-length: 2\r\nexpect: 100-continue\r\n\r\n",
        b"POST /_llmproxy/sessions/x/tools HTTP/1.1\r\ncontent-length: 2",
        b"POST /_llmproxy/sessions/x/tools HTTP/1.1\r\n: x\r\n\r\n",
    ],
)
def test_other_heads_are_the_layer_s(head: bytes) -> None:
    """Another call, another way of asking, or not all of it."""
    assert find_head(head) is None
