"""A client that closes its sending side after its request, as `nc -N` does, gets what every other client gets."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from llmproxy.core.traffic.interaction import Ending
from llmproxy.mitm.idle_connections_and_resets import (
    FAILURES,
    RESTLESS,
    ClientCpuActivityDetector,
    is_client_process_idle,
    is_peer_process_gone,
)
from tests.mitm.rig import Rig, recorded
from tests.mitm.wire import Received, chat
from tests.provider import Answer, Piece, Provider, Script, Step, json_answer
from tests.provider.answer import Framing
from tests.support.process import until

SSE = (("content-type", "text/event-stream"),)
PIECES = (b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n', b"data: [DONE]\n\n")


def stream(framing: Framing) -> Answer:
    return Answer(200, SSE, tuple(Piece(piece, 0.05) for piece in PIECES), framing)


ANSWERS = {
    "length": Answer(
        200, (("content-type", "application/json"),), (Piece(b'{"id":', 0.05), Piece(b'"x"}', 0.05)), "length"
    ),
    "chunked": stream("chunked"),
    "until close": stream("close"),
    "an error": json_answer({"error": {"message": "no"}}, 429),
}


def ask_and_shut(rig: Rig) -> Received:
    with rig.client() as c:
        c.send(chat(stream=True))
        c.sock.shutdown(socket.SHUT_WR)
        answer = c.response()
        assert c.rest() == b"", "the connection ends after the answer"
        return answer


@pytest.mark.parametrize("kind", ANSWERS)
def test_who_half_closes_gets_the_whole_answer_and_it_is_recorded_and_replayed(tmp_path: Path, kind: str) -> None:
    """Passed on, recorded, replayed at once and in its time: the same bytes each time, and the recording is whole."""
    store, wanted = tmp_path / "x.db", b"".join(piece.data for piece in ANSWERS[kind].pieces)
    with Provider(Script((Step(ANSWERS[kind], times=2),))) as p:
        for mode in ("passthrough", "record"):
            with Rig(mode, store, {"openai": p.url}) as rig:
                assert ask_and_shut(rig).body == wanted
                rig.wait_idle()
                assert rig.wait_outcomes(1)[0].note == ""
    (kept,) = recorded(store)
    assert (kept.response.body, kept.response.ending) == (wanted, Ending.COMPLETE)
    for speed in (0, 1):
        with Rig("replay", store, speed=speed) as rig:
            assert ask_and_shut(rig).body == wanted
            assert not rig.wait_outcomes(1)[0].note.startswith("client left")


def test_who_sent_half_a_request_and_no_more_is_gone(tmp_path: Path) -> None:
    with Provider(Script(())) as p, Rig("record", tmp_path / "x.db", {"openai": p.url}) as rig:
        with rig.client() as c:
            c.send(chat()[:-3])
            c.sock.shutdown(socket.SHUT_WR)
            assert c.rest() == b""
        rig.wait_idle()


def test_who_shuts_and_then_closes_is_noticed_with_the_next_piece(store: Path) -> None:
    """The provider is not listened to for ever for somebody who has gone meanwhile."""
    endless = Answer(200, SSE, tuple(Piece(PIECES[0], 0.02) for _ in range(2_000)), "chunked")
    with Provider(Script((Step(endless),))) as p, Rig("record", store, {"openai": p.url}) as rig:
        with rig.client() as c:
            c.send(chat(stream=True))
            c.sock.shutdown(socket.SHUT_WR)
            c.until(PIECES[0])
        rig.wait_idle()
    (kept,) = recorded(store)
    assert kept.response.ending is Ending.LEFT


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="only Linux tells")
@pytest.mark.parametrize("gone", [False, True])
def test_on_this_machine_it_is_known_who_has_gone(*, gone: bool) -> None:
    """And who has read. A socket that was shut still belongs to its process; one that was closed to none."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        served, peer = server.accept()
        with served, client:
            served.sendall(b"read it")
            assert not is_client_process_idle((peer, served.getsockname()))
            client.recv(100)
            assert is_client_process_idle((peer, served.getsockname()))
            client.shutdown(socket.SHUT_WR)
            if gone:
                client.close()
            assert served.recv(1) == b""
            until(lambda: is_peer_process_gone(peer, served.getsockname()) is gone)


@pytest.mark.parametrize("addresses", [(None, None), (("a",), ("b",)), ("", ""), (os.sep, os.sep)])
def test_what_is_no_address_says_nothing(addresses: tuple[object, object]) -> None:
    assert not is_peer_process_gone(*addresses)


@pytest.mark.parametrize(("states", "runs"), [("S", False), ("SR", True), ("SD", True), ("ST", False), ("", False)])
def test_client_with_something_left_to_do_is_known_by_its_threads(states: str, runs: bool, tmp_path: Path) -> None:
    """One that runs, or waits for a processor or a disk, is enough; one that never rests is not waited for for long."""
    now = [0.0]
    processes = ClientCpuActivityDetector(tmp_path, clock=lambda: now[0])
    (tmp_path / "self").mkdir()
    for pid in (7, 8):
        (tmp_path / f"{pid}/fd").mkdir(parents=True)
    (tmp_path / "7/fd/3").symlink_to("socket:[11]")
    for number, state in enumerate(states):
        (tmp_path / f"7/task/{number}").mkdir(parents=True)
        (tmp_path / f"7/task/{number}/stat").write_text(f"{number} (a) b) {state} 1 2")
    assert processes.is_running(11) is runs
    assert not processes.is_running(0)
    last = True
    for _ in range(int(RESTLESS / 0.05) + 2):
        now[0] += 0.05
        last = processes.is_running(11)
    assert not last
    for inode in range(20, 20 + FAILURES):
        assert not processes.is_running(inode)
    (tmp_path / "7/fd/4").symlink_to("socket:[99]")
    assert not processes.is_running(99), "who finds nobody looks no more"
