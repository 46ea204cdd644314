"""HTTP/2 at the port and under interception, with a real client: recorded and replayed as over HTTP/1, and the other way round."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import h2.events as h2_events
import httpx
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from hyperframe.frame import GoAwayFrame

from llmproxy.core.traffic.interaction import Ending
from tests.mitm.rig import Rig, recorded
from tests.mitm.wire import CHAT, body_of, chat
from tests.provider import Answer, Piece, Provider, Reply, Script, Step
from tests.provider.tls import server_context
from tests.support.http2_frames import client as h2_client, hostile
from tests.support.services import one_connection

STREAM = Answer(
    200, (("content-type", "text/event-stream"),), tuple(Piece(b"data: %d\n\n" % n, 0.002) for n in range(9))
)
HELLO = Script((Step(Reply("hello"), times=None),))


@contextmanager
def client(rig: Rig) -> Iterator[httpx.Client]:
    with httpx.Client(http1=False, http2=True, base_url=rig.url, timeout=60, trust_env=False) as made:
        yield made


def ask(c: httpx.Client, text: str, **more: object) -> httpx.Response:
    got = c.post("/v1/chat/completions", content=body_of(text, **more), headers={"content-type": "application/json"})
    assert got.http_version == "HTTP/2"
    return got


@pytest.mark.parametrize("speed", [0, 1])
def test_what_is_recorded_over_one_version_replays_over_the_other(store: Path, speed: float) -> None:
    """The same key, the same bytes, streams too, at any speed."""
    script = Script((Step(Reply("one")), Step(STREAM), Step(Reply("two"))))
    with Provider(script) as p, Rig("record", store, {"openai": p.url}) as rig, client(rig) as c, rig.client() as wire:
        first, stream = ask(c, "1").content, ask(c, "2", stream=True).content
        second = wire.ask(chat("3")).body
    assert stream == b"".join(piece.data for piece in STREAM.pieces)
    with Rig("replay", store, speed=speed) as rig, client(rig) as c, rig.client() as wire:
        assert (wire.ask(chat("1")).body, wire.ask(chat("2", stream=True)).body) == (first, stream)
        got = [ask(c, "1"), ask(c, "2", stream=True), ask(c, "3")]
        assert [each.content for each in got] == [first, stream, second]
        assert {each.headers["x-llmproxy-cache"] for each in got} == {"hit"}
        missed = ask(c, "4")
        assert (missed.status_code, missed.headers["x-llmproxy-cache"]) == (404, "miss")
        assert "no recorded response" in missed.text
        assert c.get("/_llmproxy/sessions").json()["sessions"][0]["name"] == "default"


def take(sock: socket.socket) -> bytes:
    """Return what has come; the connection must not end."""
    data = sock.recv(9999)
    assert data
    return data


def send(
    h2: H2Connection, sock: socket.socket, stream: int, body: bytes, path: str = CHAT, then: bytes = b"", **more: str
) -> None:
    """Send a request on a stream, and `then` in the same packet."""
    fields = {":method": "POST", ":scheme": "http", ":authority": "127.0.0.1", ":path": path}
    more = {"content_type": "application/json", **more}
    h2.send_headers(stream, [*fields.items(), *((name.replace("_", "-"), value) for name, value in more.items())])
    h2.send_data(stream, body, end_stream=True)
    sock.sendall(h2.data_to_send() + then)


def receive(h2: H2Connection, sock: socket.socket, *kinds: type) -> list[object]:
    """Return what comes up to the first event of one of these kinds."""
    got = list[object]()
    while not any(isinstance(each, kinds) for each in got):
        sock.sendall(h2.data_to_send())
        got += h2.receive_data(take(sock))
    return got


async def ask_all(rig: Rig, texts: list[str]) -> list[httpx.Response]:
    one = httpx.Limits(max_connections=1)
    async with httpx.AsyncClient(http1=False, http2=True, limits=one, timeout=60, trust_env=False) as c:
        url = f"{rig.url}/v1/chat/completions"
        return await asyncio.gather(*(c.post(url, content=body_of(text)) for text in texts))


def test_a_hundred_streams_share_one_connection(tmp_path: Path) -> None:
    """Each is recorded, each replays, and the upstream's connections are used again."""
    store, texts = tmp_path / "x.db", [f"q{n}" for n in range(100)]
    with Provider(HELLO) as p, Rig("record", store, {"openai": p.url}) as rig:
        assert {each.status_code for each in asyncio.run(ask_all(rig, texts))} == {200}
        with client(rig) as c:
            ask(c, "one")
            connections = p.connections
            ask(c, "two")
        assert (len(p.requests), p.connections) == (102, connections)
    with Rig("replay", store) as rig:
        assert {each.headers["x-llmproxy-cache"] for each in asyncio.run(ask_all(rig, texts))} == {"hit"}
        rig.wait_idle()


def test_a_stream_that_is_reset_ends_upstream_and_the_others_go_on(store: Path) -> None:
    """What came of its answer is kept as left; nothing of it stays open."""
    slow = Answer(200, STREAM.headers, (Piece(b"data: 1\n\n"), *(Piece(b"data: 2\n\n", 0.05) for _ in range(600))))
    with Provider(Script((Step(slow), Step(Reply("hello"))))) as p, Rig("record", store, {"openai": p.url}) as rig:
        h2 = h2_client()
        with socket.create_connection(("127.0.0.1", rig.port)) as sock:
            send(h2, sock, 1, body_of("hi", stream=True))
            receive(h2, sock, h2_events.DataReceived)
            h2.reset_stream(1, 8)
            send(h2, sock, 3, body_of("other"))
            receive(h2, sock, h2_events.StreamEnded)
            rig.wait_idle(20)
    assert [each.response.ending for each in recorded(store)] == [Ending.LEFT, Ending.COMPLETE]


@contextmanager
def breaking(code: int) -> Iterator[str]:
    """Serve one request over HTTP/2 without TLS: the beginning of a stream, then a reset with this code."""

    def serve(sock: socket.socket) -> None:
        h2 = H2Connection(H2Configuration(client_side=False))
        h2.initiate_connection()
        receive(h2, sock, h2_events.StreamEnded)
        h2.send_headers(1, [(":status", "200"), ("content-type", "application/grpc")])
        h2.send_data(1, b"\0\0\0\0\1x")
        sock.sendall(h2.data_to_send())
        h2.reset_stream(1, code)
        sock.sendall(h2.data_to_send())
        sock.recv(9999)

    with one_connection(serve) as port:
        yield f"http://127.0.0.1:{port}"


def test_an_answer_that_its_server_resets_is_reset_with_the_same_code(tmp_path: Path) -> None:
    """While it is recorded, and in replay; of gRPC the code says whether a call may be made again."""
    with breaking(11) as url:
        for mode in ("record", "replay"):
            with Rig(mode, tmp_path / "x.db", {"xai": url}) as rig:
                h2 = h2_client()
                with socket.create_connection(("127.0.0.1", rig.port), timeout=20) as sock:
                    send(
                        h2, sock, 1, b"\0\0\0\0\1a", "/xai_api.Test/Say", content_type="application/grpc", te="trailers"
                    )
                    got = receive(h2, sock, h2_events.StreamReset, h2_events.StreamEnded)
                assert [each.error_code for each in got if isinstance(each, h2_events.StreamReset)] == [11], mode
    assert [each.response.ending for each in recorded(tmp_path / "x.db")] == [Ending.CUT]


def data_of(got: list[object]) -> bytes:
    return b"".join(each.data for each in got if isinstance(each, h2_events.DataReceived))


def test_a_cut_answer_comes_whole_though_its_client_reads_slowly(store: Path) -> None:
    """While it is recorded, and in replay: what lies beyond the client's flow-control window comes before the reset."""
    said = b"data: %s\n\n" % (b"x" * 300_000)
    cut = Answer(200, STREAM.headers, (Piece(said),), framing="chunked", ends="close")
    with Provider(Script((Step(cut),))) as p:
        for mode in ("record", "replay"):
            with Rig(mode, store, {"openai": p.url}) as rig:
                h2, got = h2_client(), list[object]()
                with socket.create_connection(("127.0.0.1", rig.port), timeout=20) as sock:
                    send(h2, sock, 1, body_of("hi", stream=True))
                    while len(data_of(got)) < 65_535:
                        got += receive(h2, sock, h2_events.DataReceived)
                    rig.wait_idle()  # to the proxy the call is over
                    for window in (None, 1):
                        h2.increment_flow_control_window(1_000_000, window)
                    got += receive(h2, sock, h2_events.StreamReset)
                assert data_of(got) == said, mode
    assert [each.response.ending for each in recorded(store)] == [Ending.CUT]


def test_a_client_that_asks_nothing_more_gets_its_answer(tmp_path: Path) -> None:
    """GOAWAY without an error, as AWS's SDK for JavaScript sends it when it has seen the head."""
    slow = Answer(200, (("content-type", "application/json"),), (Piece(b"1"), Piece(b"2", 0.1)))
    with Provider(Script((Step(slow),))) as p, Rig("record", tmp_path / "x.db", {"openai": p.url}) as rig:
        h2 = h2_client()
        with socket.create_connection(("127.0.0.1", rig.port), timeout=20) as sock:
            send(h2, sock, 1, b'{"model": "m"}', "/v1/completions", GoAwayFrame(0).serialize())
            got = receive(h2, sock, h2_events.StreamEnded)
    assert b"".join(each.data for each in got if isinstance(each, h2_events.DataReceived)) == b"12"


def test_an_intercepted_client_gets_the_version_that_it_offers(store: Path) -> None:
    """HTTP/2 by ALPN, though the provider speaks HTTP/1 alone; and HTTP/1 where nothing else is offered."""
    with Provider(HELLO, tls=True) as p, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(p.ca_pem))
        with Rig("auto", store, {"openai": p.url}, forward=True) as rig:
            for http2, version in ((True, "HTTP/2"), (False, "HTTP/1.1")):
                with httpx.Client(
                    http2=http2,
                    verify=ssl.create_default_context(cafile=rig.proxy.ca),
                    proxy=rig.url,
                    timeout=60,
                    trust_env=False,
                ) as c:
                    got = c.post(f"{p.url}/v1/chat/completions", content=body_of("hi"))
                    assert (got.http_version, got.status_code) == (version, 200)
        assert len(p.requests) == 2


def test_hostile_frames_reach_nobody_and_hold_nothing_up(tmp_path: Path) -> None:
    """A hundred hostile clients, in a mode that would forward: none hangs, nothing goes upstream, others are served."""
    with Provider(Script(())) as p, Rig("replay", tmp_path / "x.db", {"openai": p.url}) as rig:

        def attack(seed: int) -> None:
            where = ("127.0.0.1", rig.port)
            with suppress(ConnectionError), socket.create_connection(where, timeout=20) as sock:
                sock.sendall(hostile(seed))  # it may be closed while we send
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(1 << 16):
                    pass

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(attack, range(100)))
        with client(rig) as c:
            assert ask(c, "hi").status_code == 404
        rig.wait_idle(20)
        assert p.connections == 0
        assert threading.active_count() < 50


def test_trailers_that_have_no_place_go_to_no_other_answer(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer with a length ends without trailers over HTTP/1, as which it is passed on."""
    context, ca = server_context(("localhost",))
    context.set_alpn_protocols(["h2"])
    monkeypatch.setenv("SSL_CERT_FILE", str(ca))

    def serve(plain: socket.socket) -> None:
        with context.wrap_socket(plain, server_side=True) as sock:
            c = H2Connection(H2Configuration(client_side=False))
            c.initiate_connection()
            answers = iter(((("content-length", "2"),), ()))
            sock.sendall(c.data_to_send())
            while data := sock.recv(65536):
                for event in c.receive_data(data):
                    if isinstance(event, h2_events.StreamEnded):
                        c.send_headers(event.stream_id, [(":status", "200"), *(length := next(answers))])
                        c.send_data(event.stream_id, b"{}", end_stream=not length)
                        if length:
                            c.send_headers(event.stream_id, [("x-sum", "of the first")], end_stream=True)
                sock.sendall(c.data_to_send())

    ended: list[object] = []
    with one_connection(serve) as port, Rig("record", store, {"openai": f"https://localhost:{port}"}) as rig:
        c = h2_client()
        with socket.create_connection(("127.0.0.1", rig.port), 20) as sock:
            for stream in (1, 3):
                send(c, sock, stream, body_of(str(stream)))
                heard = receive(c, sock, h2_events.StreamEnded)
                ended += [each for each in heard if isinstance(each, h2_events.TrailersReceived)]
    assert [kept.response.body for kept in recorded(store)] == [b"{}"] * 2
    assert ended == []
