"""The pieces of an answer pass as they came, in order, no faster than the client reads, until the client leaves."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

import pytest
from mitmproxy import http

from llmproxy.mitm.recorder import RecordingAddon
from tests.mitm.rig import Rig, recorded
from tests.mitm.wire import chat
from tests.provider import Provider, Reply, Script, Step
from tests.provider.answer import Answer, Framing, Piece

PARTS = tuple(b"data: %d\n\n" % number for number in range(30))
BIG = 8 << 20
SSE = (("content-type", "text/event-stream"),)


class Late(RecordingAddon):
    """A recorder that has to think about a head while pieces are coming already."""

    async def responseheaders(self, flow: http.HTTPFlow) -> None:
        await asyncio.sleep(0.1)
        await super().responseheaders(flow)


@pytest.mark.parametrize("recorder", [RecordingAddon, Late])
@pytest.mark.parametrize("framing", ["chunked", "close", "length"])
def test_pieces_keep_their_order_and_framing(store: Path, framing: Framing, recorder: type[RecordingAddon]) -> None:
    """None overtakes its head, an end or another piece, and what is recorded is what the client got."""
    answer = Answer(200, SSE, tuple(Piece(part, 0.01 if n % 5 == 0 else 0) for n, part in enumerate(PARTS)), framing)
    steps = (Step(answer, times=None),)
    with Provider(Script(steps)) as p, Rig("record", store, {"openai": p.url}, recorder=recorder) as rig:
        for _ in range(2):
            with rig.client() as c:
                got = c.ask(chat("one", stream=True))
                assert (got.body, got.whole) == (b"".join(PARTS), True)
                if framing == "chunked":
                    assert b"".join(got.frames) == got.body
        rig.wait_idle()
    assert recorded(store)[0].response.body == b"".join(PARTS)


def test_the_connection_goes_on(tmp_path: Path) -> None:
    """Streams and plain answers in turn, all over one connection to the client and one to the upstream."""
    stream = Answer(200, SSE, tuple(Piece(part) for part in PARTS), "chunked")
    steps = tuple(Step(answer) for _ in range(4) for answer in (stream, Reply("plain")))
    with Provider(Script(steps)) as p, Rig("record", tmp_path / "x.db", {"openai": p.url}) as rig, rig.client() as c:
        for number in range(8):
            got = c.ask(chat(f"{number}", stream=number % 2 == 0))
            assert got.whole
            assert (got.body == b"".join(PARTS)) == (number % 2 == 0)
        assert p.connections == 1


def test_who_does_not_read_is_not_read_for(store: Path) -> None:
    """An upstream is read as fast as the client takes it, on a connection's first answer and on later ones; then all of it arrives."""
    pieces = tuple(Piece(b"x" * 65_536) for _ in range(BIG // 65_536))
    steps = (Step(Answer(200, SSE, pieces, "chunked"), times=None),)
    with Provider(Script(steps)) as p, Rig("record", store, {"openai": p.url}) as rig, rig.client(60) as c:
        c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        for number in range(2):
            c.send(chat(f"{number}", stream=True)).head()
            (exchange,) = rig.proxy.open.values()
            seen = [-1, 0]
            while seen[-1] != seen[-2]:
                time.sleep(0.3)
                seen.append(sum(exchange.recording._lengths))
            assert seen[-1] < BIG
            frames, whole = c.frames()
            assert (sum(map(len, frames)), whole) == (BIG, True)
            rig.wait_idle(30)
    assert [len(made.response.body) for made in recorded(store)] == [BIG, BIG]
