"""The front: hits are answered before the stream, everything else reaches the layer byte for byte, in order, and nothing is lost between."""

from __future__ import annotations

import asyncio
import gc
import shutil
import socket
import time
from itertools import pairwise
from pathlib import Path

import pytest

from llmproxy.core.traffic.origin_guard import OriginGuard
from llmproxy.mitm.http1.fast_path import (
    MAX_HELD,
    ClientLeaveWatchingHandler,
    FastPathAsyncioProtocol,
    HeadCache,
)
from llmproxy.mitm.http1.replay_layer import RecordReplayLayer
from llmproxy.protocol import Decision
from tests.mitm.rig import Rig, recorded
from tests.mitm.wire import body_of, chat, chunked
from tests.provider import Provider, Reply, Script, Step
from tests.support.process import until


class Counting(RecordReplayLayer):
    bytes_seen = 0

    def _receive_data(self, data: bytes):  # type: ignore[no-untyped-def]  # noqa: ANN202
        type(self).bytes_seen += len(data)
        return super()._receive_data(data)


@pytest.fixture(scope="module")
def tape(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store that knows the answers to "one" and "two", the second streamed."""
    store = tmp_path_factory.mktemp("tape") / "x.db"
    steps = (Step(Reply("first"), times=None),)
    with Provider(Script(steps)) as p, Rig("record", store, {"openai": p.url}) as rig, rig.client() as c:
        assert c.ask(chat("one")).status == 200
        assert c.ask(chat("two", stream=True)).status == 200
    return store


@pytest.fixture
def layer() -> type[Counting]:
    """Return a layer class with a count of its own."""
    return type("Counted", (Counting,), {"bytes_seen": 0})


def test_a_hit_does_not_reach_the_layer(tape: Path, layer: type[Counting]) -> None:
    """Plain and streamed hits are answered in front, byte for byte as the layer would, and reported like any other."""
    with Rig("replay", tape, layer=layer) as rig:
        with rig.client() as c:
            front = [c.ask(chat("one")), c.ask(chat("two", stream=True))]
        assert layer.bytes_seen == 0
        with rig.client() as c:  # a chunked body is the layer's
            behind = [c.ask(chunked(body_of("one"), 30)), c.ask(chunked(body_of("two", stream=True), 30))]
        assert layer.bytes_seen > 0
        assert [(each.status, each.body) for each in front] == [(each.status, each.body) for each in behind]
        same = ("content-type", "x-llmproxy-key", "x-llmproxy-cache", "transfer-encoding", "content-length")
        for one, other in zip(front, behind, strict=True):
            assert [one.headers.get(name) for name in same] == [other.headers.get(name) for name in same]
        done = rig.wait_outcomes(4)
        assert [outcome.decision for outcome in done] == [Decision.REPLAY] * 4
        assert [outcome.interaction for outcome in done] == [1, 2, 1, 2]
        assert [outcome.occurrence for outcome in done] == [1, 1, 1, 1]  # the first key again: the session walks anew
        rig.wait_idle()


def test_who_is_answered_in_front_is_not_idle(tape: Path) -> None:
    """The layers behind hear nothing of it, and would close the connection as one on which nothing was said for hours."""
    with Rig("replay", tape) as rig, rig.client() as client:
        client.ask(chat("one"))
        (front,) = rig.proxy.fronts.values()
        assert isinstance(front, FastPathAsyncioProtocol)
        found = [each for each in gc.get_objects() if isinstance(each, ClientLeaveWatchingHandler)]
        (handler,) = (each for each in found if each.client.peername == front._place[0])
        handler.timeout_watchdog.last_activity = front.heard - 7200

        async def look() -> asyncio.Task[None]:
            task = asyncio.ensure_future(handler.on_timeout())
            await asyncio.sleep(0)
            return task

        watching = asyncio.run_coroutine_threadsafe(look(), rig._loop).result(60)
        assert client.ask(chat("one")).status == 200
        rig._loop.call_soon_threadsafe(watching.cancel)
        handler.timeout_watchdog.last_activity = front.heard = 0.0  # nothing for hours
        asyncio.run_coroutine_threadsafe(look(), rig._loop).result(60)
        assert client.rest() == b""


def test_after_a_miss_the_connection_comes_back(tape: Path, layer: type[Counting]) -> None:
    """A miss is the layer's; the hits after it are answered in front again."""
    with Rig("replay", tape, layer=layer) as rig, rig.client() as c:
        assert c.ask(chat("never")).status == 404
        seen = layer.bytes_seen
        assert seen == len(chat("never"))
        for _ in range(3):
            assert c.ask(chat("one")).status == 200
        assert layer.bytes_seen == seen
        assert [outcome.seq for outcome in rig.wait_outcomes(4)] == [1, 2, 3, 4]


def test_a_request_in_any_two_pieces_is_answered(tape: Path) -> None:
    """Cut anywhere, the answer is the same, and each request is counted once."""
    raw = chat("one")
    cuts = [1, 5, raw.index(b"\r\n") + 1, raw.index(b"\r\n\r\n") + 2, raw.index(b"\r\n\r\n") + 4, len(raw) - 1]
    with Rig("replay", tape) as rig:
        for cut in cuts:
            with rig.client() as c:
                c.send(raw[:cut])
                time.sleep(0.05)
                c.send(raw[cut:])
                assert c.response().status == 200, cut
        assert [outcome.occurrence for outcome in rig.wait_outcomes(len(cuts))] == list(range(1, len(cuts) + 1))
        rig.wait_idle()


@pytest.mark.parametrize("sent", [10, -5])
def test_a_client_that_leaves_in_the_middle_is_forgotten(tape: Path, sent: int) -> None:
    """In the head or in the body: nothing stays open, nothing is answered."""
    with Rig("replay", tape) as rig:
        with rig.client() as c:
            c.send(chat("one")[:sent])
        rig.wait_idle()
        until(lambda: not rig.proxy.fronts)  # a connection that is gone is known no more
        assert rig.proxy.arrived == {}
        assert [outcome.status for outcome in rig.outcomes] in ([], [0])


def test_who_does_not_read_is_not_served_without_end(tape: Path) -> None:
    """A client that pipelines for ever and reads nothing is stopped by its own full pipe: in the end the proxy takes nothing more."""
    block, offered = chat("one") * 50, 2000
    with Rig("replay", tape) as rig, socket.create_connection(("127.0.0.1", rig.port), timeout=2) as plain:
        with pytest.raises(TimeoutError):  # else the proxy took everything although nobody reads
            plain.sendall(block * offered)
        served, last, latest = len(rig.outcomes), -1, time.monotonic() + 120
        while served != last or not served:  # the machine may be busy: what is still in its pipes is served
            assert time.monotonic() < latest, "the proxy goes on although nobody reads"
            time.sleep(1)
            served, last = len(rig.outcomes), served
        assert 0 < served < offered * 50 / 2


def test_after_the_last_answer_nothing_more_is_served(tape: Path) -> None:
    """What a client sends behind a request that closes its connection is neither answered nor counted."""
    with Rig("replay", tape) as rig:
        with rig.client() as c:
            c.send(chat("one", headers={"connection": "close"}) + chat("two", stream=True) * 3)
            assert c.rest().count(b"HTTP/1.1 200") == 1
        rig.wait_idle()
        time.sleep(0.1)
        assert [outcome.interaction for outcome in rig.outcomes] == [1]


def test_a_body_over_what_is_held_is_the_layers(tape: Path, layer: type[Counting]) -> None:
    """A long body is not kept here, and is still looked up."""
    with Rig("replay", tape, layer=layer) as rig, rig.client(30) as c:
        assert c.ask(chat("x" * (MAX_HELD + 10))).status == 404
        assert layer.bytes_seen > MAX_HELD
        assert c.ask(chat("one")).status == 200


@pytest.mark.parametrize("mode", ["auto", "record"])
def test_recording_goes_through_the_layer_once(tape: Path, store: Path, mode: str) -> None:
    """What is forwarded is counted once, recorded once and asked upstream once, in front of hits or behind them."""
    shutil.copy(tape, store)
    with Provider(Script((Step(Reply("live"), times=None),))) as p:
        with Rig(mode, store, {"openai": p.url}) as rig, rig.client() as c:
            for text in ("one", "new", "one", "newer"):
                assert c.ask(chat(text)).status == 200
            rig.wait_idle()
            seen = [(outcome.decision, outcome.occurrence) for outcome in rig.wait_outcomes(4)]
        live = Decision.RECORD
        # In auto the cassette's first key walks it anew; in record it is the second of its kind.
        one, again = ((live, 1), (live, 2)) if mode == "record" else ((Decision.REPLAY, 1), (Decision.REPLAY, 1))
        assert seen == [one, (live, 1), again, (live, 1)]
        assert len(p.requests) == sum(decision is live for decision, _ in seen)
    assert len(recorded(store)) >= 4


@pytest.mark.parametrize("method", ["_serve_complete_requests", "_begin_request", "_send_replay", "_take_back_if_idle"])
def test_whatever_raises_in_front_the_layer_serves(tape: Path, method: str) -> None:
    """A fault here costs speed, not an answer: hits and misses are what they would be, and nothing hangs."""

    def boom(*_args: object) -> None:
        raise RuntimeError(method)

    with Rig("replay", tape, front=type("Broken", (FastPathAsyncioProtocol,), {method: boom})) as rig:
        for text, status in (("one", 200), ("never", 404), ("one", 200)):
            with rig.client(5) as c:
                answers = (
                    [c.ask(chat(text)).status, c.ask(chat(text)).status]
                    if method != "_take_back_if_idle"
                    else [c.ask(chat(text)).status]
                )
                assert set(answers) == {status}
        rig.wait_idle()


HEAD = b"POST /v1/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\nX-A: b\r\n\r\n"


def test_heads_that_differ_in_length_alone_are_one_entry() -> None:
    """The length is the request's own, whatever was remembered."""
    heads = HeadCache(OriginGuard())
    first, second = heads.find_head(HEAD % 5), heads.find_head(HEAD % 1234)
    assert first is not None
    assert second is not None
    assert (first.length, second.length) == (5, 1234)
    assert first.plain is second.plain


@pytest.mark.parametrize(
    "name", [b"authorization: Bearer ", b"Authorization: Bearer ", b"x-api-key: ", b"api-key: ", b"x-goog-api-key: "]
)
def test_heads_that_differ_in_the_credential_alone_are_one_entry(name: bytes) -> None:
    """The credential is the request's own; whoever wants to read it gets a head of its own, and the next ones differ from that."""
    heads = HeadCache(OriginGuard())
    raw = HEAD.replace(b"X-A: b", name + b"%b") % (5, b"a" * 20), HEAD.replace(b"X-A: b", name + b"%b") % (5, b"b" * 20)
    first, second = heads.find_head(raw[0]), heads.find_head(raw[1])
    assert first is not None
    assert second is not None
    assert (first.plain is second.plain, first.credential, second.credential) == (True, b"a" * 20, b"b" * 20)
    assert heads.parse_own_head(second).plain.head.headers[-1][1].endswith("b" * 20)
    third = heads.find_head(raw[0])
    assert third is not None
    assert third.plain.credential == b"b" * 20
    apart = HeadCache(OriginGuard(), by_credential=True)
    one, other = apart.find_head(raw[0]), apart.find_head(raw[1])
    assert one is not None
    assert other is not None
    assert one.plain is not other.plain
    short = HEAD.replace(b"X-A: b", name + b"%b") % (5, b""), HEAD.replace(b"X-A: b", name + b"%b") % (5, b"c" * 8)
    assert len({found.which for found in (*map(heads.find_head, short), second) if found is not None}) == 3


@pytest.mark.parametrize("raw", [
    b"POST /v1/x HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"POST /v1/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
    b"POST /v1/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
    b"POST /v1/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"POST /v1/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n",
    b"POST /v1/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
    b"POST /v1/x HTTP/1.0\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n",
    b"POST http://api.openai.com/v1/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n",
    b"POST /_llmproxy/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n",
    b"CONNECT a:443 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n",
    b"POST /v1/x HTTP/1.1\r\nHost: localhost\r\nProxy-Authorization: Basic eDp5\r\nContent-Length: 5\r\n\r\n",
    HEAD.replace(b"X-A: b", b"Authorization: Bearer \0") % 5,
    b"POST /v1/x HTTP/1.1\r\nHost : a\r\nContent-Length: 5\r\n\r\n",
    b"POST /v1/x HTTP/1.1\r\nHost: localhost\r\nX: 1\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
])  # fmt: skip
def test_odd_heads_are_the_layers(raw: bytes) -> None:
    """Whatever is not plain, or could be read in two ways, is not served here; also after a plain head was remembered."""
    heads = HeadCache(OriginGuard())
    assert heads.find_head(HEAD % 5) is not None
    assert heads.find_head(HEAD.replace(b"X-A: b", b"Authorization: Bearer " + b"x" * 20) % 5) is not None
    assert heads.find_head(raw) is None
    assert heads.find_head(raw) is None


def test_a_second_length_is_never_hidden_by_a_remembered_head() -> None:
    """The number that is cut out is one; a head with another of them is another head, and refused."""
    heads = HeadCache(OriginGuard())
    assert heads.find_head(HEAD % 5) is not None
    twice = HEAD.replace(b"X-A: b", b"Content-Length: 7")
    for first, second in pairwise([5, 6, 7]):
        assert heads.find_head((twice % first).replace(b"7\r\n\r\n", b"%d\r\n\r\n" % second)) is None
