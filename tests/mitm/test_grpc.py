"""gRPC with a real client and a real server: recorded and replayed with trailers and statuses; a miss is a status of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest

from llmproxy.core.dialects.dialect_table import REASONS
from llmproxy.protocol import Decision
from tests.mitm.rig import Rig, recorded
from tests.provider.tls import server_context

grpc: Any = pytest.importorskip("grpc", reason="no wheels for this Python")

KEY = "xai-a8Qz2LmW4nV7bX1cR5tY9uP3"
TRAILER = ("x-cost", "3")


class Upstream:
    """A server of gRPC whose answers say what it was asked; it counts, and leaves connections in the middle of an answer."""

    def __init__(self, folder: Path | None = None) -> None:
        """Serve; with TLS where `folder` is given."""
        self.asked: list[dict[str, str]] = []
        both, one = grpc.stream_stream_rpc_method_handler, grpc.unary_unary_rpc_method_handler
        methods = {
            "Say": one(self._say),
            "Many": grpc.unary_stream_rpc_method_handler(self._many),
            "Both": both(self._both),
        }
        short = (("grpc.max_connection_age_ms", 200), ("grpc.max_connection_age_grace_ms", 9000))
        self._server = grpc.server(ThreadPoolExecutor(8), options=short)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("xai_api.Test", methods),))
        if folder is None:
            self.url = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        else:
            pem = (folder / "leaf.pem").read_bytes()  # the certificate, then its key
            port = self._server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(pem, pem)]))
            self.url = f"https://localhost:{port}"
        self._server.start()

    def _note(self, context: Any) -> None:
        self.asked.append({name: str(value) for name, value in context.invocation_metadata()})
        context.set_trailing_metadata((TRAILER,))

    def _say(self, request: bytes, context: Any) -> bytes:
        self._note(context)
        if request == b"fail":
            context.abort(grpc.StatusCode.NOT_FOUND, "no such thing: ä%")
        if request == b"once" and len(self.asked) == 1:
            context.abort(grpc.StatusCode.UNAVAILABLE, "in a moment")
        return b"answer to " + request

    def _many(self, request: bytes, context: Any) -> Iterator[bytes]:
        self._note(context)
        for number in range(5):
            if request == b"die" and number == 3:
                context.abort(grpc.StatusCode.DATA_LOSS, "died")
            time.sleep(0.1 * (request == b"slow"))
            yield b"%d" % number * (40_000 if request == b"large" else 1)

    def _both(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        self._note(context)
        yield from requests

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait()


def say(channel: Any, text: bytes, **metadata: str) -> tuple[object, ...]:
    """Call, and return all that came: status, text, answer, trailer."""
    given = (("authorization", f"Bearer {KEY}"), *((name.replace("_", "-"), value) for name, value in metadata.items()))
    try:
        answer, call = channel.unary_unary("/xai_api.Test/Say").with_call(text, timeout=30, metadata=given)
    except grpc.RpcError as error:
        return error.code(), error.details(), None, TRAILER in error.trailing_metadata()
    return call.code(), call.details(), answer, TRAILER in call.trailing_metadata()


def many(channel: Any, text: bytes) -> tuple[object, ...]:
    call, got = channel.unary_stream("/xai_api.Test/Many")(text, timeout=30), list[bytes]()
    try:
        got.extend(call)
    except grpc.RpcError as error:
        return error.code(), error.details(), got
    return call.code(), call.details(), got


def play(channel: Any) -> list[tuple[object, ...]]:
    calls = [say(channel, text) for text in (b"hello", b"", b"fail")]
    return [*calls, *(many(channel, text) for text in (b"x", b"die", b"large", b"slow"))]


@contextmanager
def channel(rig: Rig) -> Iterator[Any]:
    with grpc.insecure_channel(f"127.0.0.1:{rig.port}") as made:
        yield made


def test_calls_replay_with_their_trailers_and_statuses(store: Path) -> None:
    """Unary calls and streams, at full speed and in their time; nothing reaches the server again, nor a file the key."""
    with Upstream() as up:
        with grpc.insecure_channel(up.url.partition("://")[2]) as direct:
            wanted = play(direct)
        assert wanted[2][:2] == (grpc.StatusCode.NOT_FOUND, "no such thing: ä%")
        with Rig("record", store, {"xai": up.url}) as rig, channel(rig) as c:
            assert play(c) == wanted
            assert say(c, f"with {KEY} in it".encode())[2] == f"answer to with {KEY} in it".encode()
        asked = len(up.asked)
        assert up.asked[-1].get("grpc-accept-encoding") in (None, "identity")
        for speed in (0, 1):
            with Rig("replay", store, {"xai": up.url}, speed=speed) as rig, channel(rig) as c:
                assert play(c) == wanted
        assert len(up.asked) == asked == 15
    assert {each.provider for each in recorded(store)} == {"xai"}
    kept = recorded(store)[-1]
    assert b"with [REDACTED-1:credential] in it" in kept.request.body
    assert kept.response.body.startswith(b"\0\0\0\0\x31answer to with REDACTED")
    assert len(kept.response.body) == 5 + 0x31
    assert not any(KEY in str(each) for each in recorded(store))


def test_a_key_is_path_metadata_that_counts_and_bytes(tmp_path: Path) -> None:
    """Another deadline, key or version of the SDK is the same question; another message or tenant is another."""
    with Upstream() as up, Rig("once", tmp_path / "x.db", {"xai": up.url}) as rig, channel(rig) as c:
        say(c, b"one", xai_sdk_version="1", x_request_id="a")
        call = c.unary_unary("/xai_api.Test/Say")
        found = call(b"one", timeout=9, metadata=(("authorization", "Bearer other"), ("xai-sdk-version", "2")))
        assert found == b"answer to one"
        assert len({each.key for each in rig.wait_outcomes(2)}) == 1
        say(c, b"two")
        say(c, b"one", x_tenant="b")
        assert len({each.key for each in rig.wait_outcomes(4)}) == 3


def test_a_miss_is_a_status_with_our_text(tmp_path: Path) -> None:
    """No client asks twice; the text names the nearest recording, and arrives whole."""
    with Upstream() as up, Rig("record", tmp_path / "x.db", {"xai": up.url}) as rig, channel(rig) as c:
        say(c, b"\x0a\x05hello")
    with Rig("replay", tmp_path / "x.db", {"xai": "http://127.0.0.1:9"}) as rig, channel(rig) as c:
        code, text, *_ = say(c, b"hello there")
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert isinstance(text, str)
        assert "no recorded response" in text
        assert "hello there" in text
        assert many(c, b"x")[0] is grpc.StatusCode.FAILED_PRECONDITION
        assert 'message 1: "hello" -> "hi"' in str(say(c, b"\x0a\x02hi")[1])
        assert len(rig.outcomes) == 3


def test_a_call_that_failed_is_asked_anew(store: Path) -> None:
    """As after 503: `replay` repeats the failure, `auto` and `once` ask again; a call that was answered with a refusal stands."""
    with Upstream() as up:
        for mode, code in (("record", "UNAVAILABLE"), ("replay", "UNAVAILABLE"), ("auto", "OK"), ("replay", "OK")):
            with Rig(mode, store, {"xai": up.url}) as rig, channel(rig) as c:
                assert say(c, b"once")[0] is getattr(grpc.StatusCode, code), mode
        for _ in range(2):
            with Rig("auto", store, {"xai": up.url}) as rig, channel(rig) as c:
                assert say(c, b"fail")[0] is grpc.StatusCode.NOT_FOUND
        assert len(up.asked) == 3
    assert [each.response.ending.value for each in recorded(store)] == ["complete", "complete"]


@pytest.mark.parametrize(("kind", "code"), [
    ("http-429", "RESOURCE_EXHAUSTED"), ("http-500", "INTERNAL"), ("http-503", "UNAVAILABLE"),
    ("http-529", "UNAVAILABLE"),
])  # fmt: skip
def test_an_injected_failure_is_a_status_of_grpc(tmp_path: Path, kind: str, code: str) -> None:
    """Not one of HTTP, in which clients see an unknown failure; the next attempt has the recorded answer."""
    with Upstream() as up:
        with Rig("record", tmp_path / "x.db", {"xai": up.url}) as rig, channel(rig) as c:
            say(c, b"hello")
        with Rig("replay", tmp_path / "x.db", {"xai": up.url}, faults=kind) as rig, channel(rig) as c:
            assert say(c, b"hello")[:2] == (getattr(grpc.StatusCode, code), f"{kind[5:]} {REASONS[int(kind[5:])]}")
            assert say(c, b"hello")[2] == b"answer to hello"


def test_an_upstream_that_is_away_is_unavailable(tmp_path: Path) -> None:
    """What a client may try again says so."""
    with Rig("record", tmp_path / "x.db", {"xai": "http://127.0.0.1:9"}) as rig, channel(rig) as c:
        code, text, *_ = say(c, b"hello")
        assert code is grpc.StatusCode.UNAVAILABLE
        assert "could not be reached" in str(text)


@pytest.mark.parametrize("sent", [[b"1", b"2"], [b"1"]], ids=["two messages", "no end"])
def test_a_stream_of_requests_is_refused_in_words(tmp_path: Path, sent: Sequence[bytes]) -> None:
    """Nothing of it reaches the server, in a mode that forwards."""

    def requests() -> Iterator[bytes]:
        yield from sent
        ended.result(30)

    async def ask(port: int) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as c:
            await c.unary_unary("/xai_api.Test/Say")(b"asyncio", timeout=30)

    with Upstream() as up, Rig("record", tmp_path / "x.db", {"xai": up.url}) as rig, ThreadPoolExecutor(1) as pool:
        ended = pool.submit(lambda: rig.wait_outcomes(1, 20))
        with channel(rig) as c, pytest.raises(grpc.RpcError) as refused:
            list(c.stream_stream("/xai_api.Test/Both")(requests(), timeout=30))
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert "more than one message" in refused.value.details()
        assert up.asked == []
        asyncio.run(ask(rig.port))
        assert len(up.asked) == 1


def test_tls_through_the_proxy_and_at_the_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP/2 by ALPN on both sides; what was recorded so replays for a client that asks the port."""
    ca = server_context(("localhost",))[1]
    monkeypatch.setenv("SSL_CERT_FILE", str(ca))
    with Upstream(ca.parent) as up, Rig("auto", tmp_path / "x.db", {"xai": up.url}, forward=True) as rig:
        trusted = grpc.ssl_channel_credentials(Path(rig.proxy.ca).read_bytes())
        with monkeypatch.context() as env:
            env.setenv("https_proxy", rig.url)
            env.delenv("no_proxy", raising=False)
            with grpc.secure_channel(up.url.partition("://")[2], trusted) as c:
                through = play(c)
        with grpc.secure_channel(f"localhost:{rig.port}", trusted) as c:
            assert say(c, b"hello") == through[0]
        assert through[0][0] is grpc.StatusCode.OK
        assert [each.decision for each in rig.wait_outcomes(8)] == [*[Decision.RECORD] * 7, Decision.REPLAY]
