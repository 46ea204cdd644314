"""Bad input over sockets: a clear error, the connection ended where it must be, the proxy unharmed."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from llmproxy.core.traffic.interaction import Ending
from llmproxy.protocol import Decision
from tests.mitm.rig import Rig, recorded
from tests.mitm.wire import BAD, CHAT, body_of, chat, chunked, request
from tests.provider import Answer, Piece, Provider, Reply, Script, Step


@pytest.fixture(scope="module")
def player(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Replay one answer, to "hi"; its provider is there, and is not asked."""
    store = tmp_path_factory.mktemp("tape") / "x.db"
    with Provider(Script((Step(Reply("hello")),))) as p:
        with Rig("record", store, {"openai": p.url}) as rig, rig.client() as c:
            assert c.ask(chat("hi")).status == 200
        with Rig("replay", store, {"openai": p.url}, max_request=12_000_000) as rig:
            yield rig
        assert len(p.requests) == 1


CUT_GZIP = gzip.compress(body_of("hi"))[:-10]
NO_MATCH = {
    "broken JSON": request(b'{"model": "gpt-4o", "messages": ['),
    "no JSON at all": request(b"\x00\x01\x02"),
    "invalid UTF-8": request(b'{"model": "\xff\xfe", "messages": []}'),
    "lone surrogate": request(b'{"model": "\\ud800", "messages": []}'),
    "deeply nested": request(b"[" * 100_000 + b"]" * 100_000),
    "huge number": request(b'{"seed": ' + b"9" * 10_000 + b"}"),
    "truncated gzip": request(CUT_GZIP, content_encoding="gzip"),
    "not gzip": request(body_of("no gzip"), content_encoding="gzip"),
    "unknown coding": request(body_of("snappy"), content_encoding="snappy"),
    "gzip bomb": request(gzip.compress(b"\0" * 70_000_000, 1), content_encoding="gzip"),
    "empty body": request(b""),
    "JSON that is no object": request(b'"hi"'),
    "messages that are none": request(b'{"model": 3, "messages": [1, null, {"role": {}}]}'),
    "broken multipart": request(b"--x\r\nno", "/v1/files", content_type="multipart/form-data; boundary=x"),
    "unknown path of a provider": request(b"{}", "/v1/unknown/thing"),
}


@pytest.mark.parametrize("raw", NO_MATCH.values(), ids=NO_MATCH.keys())
def test_a_body_that_says_nothing_is_a_miss_like_any_other(player: Rig, raw: bytes) -> None:
    """404 in the provider's envelope; the connection goes on."""
    with player.client() as c:
        got = c.ask(raw)
        assert (got.status, got.headers["x-llmproxy-cache"]) == (404, "miss")
        assert "llmproxy" in got.message
        assert c.ask(chat("hi")).status == 200


REFUSED = {
    "unknown path": (request(b"{}", "/nowhere"), 400, "/openai"),
    "unknown host": (chat("hi", "http://example.org/v1/chat/completions"), 403, "example.org"),
    "endless session name": (chat("hi", f"/s/{'x' * 500}{CHAT}"), 400, "printable characters"),
    "session name of bytes": (chat("hi", f"/s/%ff{CHAT}"), 400, "UTF-8"),
    "empty session name": (chat("hi", f"/s/{CHAT}"), 400, "empty session"),
}


@pytest.mark.parametrize(("raw", "status", "word"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_served_is_refused_with_a_reason(player: Rig, raw: bytes, status: int, word: str) -> None:
    with player.client() as c:
        got = c.ask(raw)
        assert got.status == status
        assert word in got.body.decode()


NO_HTTP = {
    "garbage": (BAD, 400),
    "two hosts": (chat("hi", headers={"Host": "y"}), 400),
    "length and chunked": (chunked(body_of("hi"), 5, content_length="5"), 400),
    "bare LF": (chat("hi").replace(b"\r\n", b"\n"), 400),
    "head over 64 KiB": (chat("hi", headers={"x-long": "x" * 70_000}), 431),
    "endless head": (b"GET / HTTP/1.1\r\nx: " + b"x" * 200_000, 431),
    "broken chunk": (chunked(body_of("hi"), 5).replace(b"\r\n5\r\n", b"\r\nzz\r\n"), 400),
    "a body longer than it said": (request(body_of("hi") + b"\r\n\r\n", content_length="3"), 404),
}


@pytest.mark.parametrize(("raw", "status"), NO_HTTP.values(), ids=NO_HTTP.keys())
def test_what_is_no_http_ends_the_connection_with_an_answer(player: Rig, raw: bytes, status: int) -> None:
    """The client reads why, even while it is still sending, and the connection ends."""
    with player.client() as c:
        got = c.ask(raw)
        assert got.status == status
        if status == 404:
            got = c.response()  # what was left over is no request of its own
            assert got.status == 400
        assert got.headers["connection"] == "close"
        assert c.rest() == b""
    with player.client() as c:
        assert c.ask(chat("hi")).status == 200


def test_a_body_shorter_than_it_said_is_waited_for_and_forgotten(player: Rig) -> None:
    player.wait_idle()
    before = len(player.outcomes)
    with player.client() as c:
        c.send(request(body_of("hi"), content_length="1000"))
    (outcome,) = player.wait_outcomes(before + 1)[before:]
    assert (outcome.decision, outcome.status) == (Decision.REFUSE, 0)
    player.wait_idle()


def test_slow_and_half_open_clients_disturb_nobody(player: Rig) -> None:
    """Fifty that began to speak, or never do, and others are served meanwhile."""
    with ExitStack() as stack:
        for n in range(50):
            stack.enter_context(player.client()).send(chat("hi")[: n * 3])
        with player.client() as c:
            for _ in range(10):
                assert c.ask(chat("hi")).status == 200
    player.wait_idle()


@pytest.mark.slow
def test_a_big_body_is_matched_up_to_the_limit(player: Rig) -> None:
    """10 MB are read, in reasonable time, and missed; over the limit is 413 with the option's name."""
    big = body_of("x" * 10_000_000)
    with player.client(240) as c:
        assert c.ask(request(big)).status == 404
        assert c.ask(chat("hi")).status == 200
    with player.client(240) as c:
        got = c.ask(request(body_of("x" * 12_200_000)))
        assert (got.status, got.headers["connection"]) == (413, "close")
        assert "--max-request" in got.message
    with player.client(240) as c:
        assert c.ask(chunked(body_of("x" * 12_200_000), 1 << 20)).status == 413


def test_who_sends_far_ahead_of_its_answer_is_stopped(tmp_path: Path) -> None:
    """A megabyte of waiting requests is enough; what was answered is recorded, nothing stays open."""
    store, more = tmp_path / "x.db", chat("x" * 100_000)
    slow = Answer(
        200, (("content-type", "text/event-stream"),), (Piece(b"data: 1\n\n"), Piece(b"data: 2\n\n", 20)), "chunked"
    )
    with Provider(Script((Step(slow),)), check=False) as p:
        with Rig("record", store, {"openai": p.url}) as rig, rig.client() as c:
            c.send(chat("first", stream=True)).until(b"data: 1\n\n")
            with suppress(OSError):
                for _ in range(40):
                    c.send(more)
            c.rest()
            rig.wait_idle()
            assert len(rig.outcomes) == 1
        assert len(p.requests) == 1
    (made,) = recorded(store)
    assert made.response.ending is Ending.LEFT, "its client is gone; the provider broke nothing off"


BODY = body_of("hi")
UNDONE: dict[str, Callable[[bytes], bytes]] = {
    "identity": bytes,
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "gzip, gzip": lambda body: gzip.compress(gzip.compress(body)),
    "deflate, gzip": lambda body: gzip.compress(zlib.compress(body)),
    "deflate\r\ncontent-encoding: gzip": lambda body: gzip.compress(zlib.compress(body)),
}
"""Content-encodings that the body has: the same question."""
HALF = gzip.compress(BODY)
LIES: dict[str, bytes] = {
    **dict.fromkeys(("gzip", "GZip", "x-gzip", "Deflate", "br", "zstd", "gzip, br", "foo", "utf-8", "chunked"), BODY),
    "gzip ": HALF[:-6],
    "gzip,": HALF + b"and more",
    "deflate ,gzip": HALF,
    "gzip\r\ncontent-encoding: br": HALF,
    "deflate": zlib.compress(BODY) + b"and more",
    "identity, foo": BODY,
}
"""Ones that it does not have, or not whole: a provider refuses them, or reads something else."""


@pytest.mark.parametrize("coding", UNDONE)
def test_a_coding_that_the_body_has_is_the_same_question(player: Rig, coding: str) -> None:
    with player.client() as c:
        assert c.ask(request(UNDONE[coding](BODY), content_encoding=coding)).headers["x-llmproxy-cache"] == "hit"


@pytest.mark.parametrize("coding", LIES)
def test_a_coding_that_the_body_does_not_have_is_another_question(player: Rig, coding: str) -> None:
    """Answered with the recording of the plain one, a client that is broken would pass."""
    with player.client() as c:
        assert c.ask(request(LIES[coding], content_encoding=coding)).headers.get("x-llmproxy-cache") == "miss"


def test_lies_are_recorded_and_replayed_as_what_they_are(store: Path) -> None:
    """Each has a recording of its own, and a later session finds each one's."""
    lies = ["gzip", "br", "foo"]
    with Provider(Script(tuple(Step(Reply(text)) for text in ("plain", *lies)))) as p:
        with Rig("record", store, {"openai": p.url}) as rig, rig.client() as c:
            for coding in ("", *lies):
                assert c.ask(request(BODY, content_encoding=coding)).status == 200
        with Rig("replay", store, {"openai": p.url}) as rig, rig.client() as c:
            for coding in reversed(("", *lies)):
                said = c.ask(request(BODY, content_encoding=coding)).json["choices"][0]["message"]["content"]
                assert said == (coding or "plain")


@pytest.mark.parametrize("line", [
    "CONNECT ::::: HTTP/1.1", "CONNECT /v1/x HTTP/1.1", "CONNECT * HTTP/1.1", "CONNECT http://x/ HTTP/1.1", "CONNECT x HTTP/1.1", "CONNECT x:0 HTTP/1.1",
    "CONNECT x:99999 HTTP/1.1", "CONNECT x:80:80 HTTP/1.1", "CONNECT u:p@x:80 HTTP/1.1", "CONNECT [::1:80 HTTP/1.1", "CONNECT <script>:80 HTTP/1.1",
    "connect x:443 HTTP/1.1", "Connect x:443 HTTP/1.1", "CONNECT x:443 HTTP/3.0", "CONNECT x:443", "CONNECT  x:443 HTTP/1.1", "CONNECT \xff:443 HTTP/1.1",
])  # fmt: skip
@pytest.mark.parametrize("field", ["host: x", "no field at all", "content-length: -1", "transfer-encoding: x"])
def test_a_connect_that_names_no_place_is_refused_in_words(player: Rig, line: str, field: str) -> None:
    """Never by a page in HTML, which says nothing of us and repeats what was sent."""
    with player.client() as c:
        got = c.ask(f"{line}\r\n{field}\r\n\r\n".encode("latin-1"))
        assert (got.status, got.whole) == (400, True)
        assert got.headers["content-type"] == "text/plain; charset=utf-8"
        assert got.body.startswith(b"llmproxy: ")
        assert b"<script>" not in got.body


def test_a_connect_without_an_end_is_not_held(player: Rig) -> None:
    """A head that is too long is refused while it comes."""
    with player.client() as c:
        got = c.ask(b"CONNECT x:443 HTTP/1.1\r\n" + b"a: b\r\n" * 20_000)
        assert got.status == 431
        assert b"65536" in got.body


@pytest.mark.parametrize("port", ["0", "65536", "99999", "9" * 5_000, "-1", "+80", "8_0", "x"])
@pytest.mark.parametrize("scheme", ["http", "HTTPS"])
def test_a_port_that_is_none_is_refused_in_words(
    player: Rig, scheme: str, port: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also in absolute form: it is the client's mistake, no internal error."""
    with player.client() as c:
        got = c.ask(request(BODY, f"{scheme}://127.0.0.1:{port}/v1/chat/completions"))
    assert (got.status, "is no port" in got.message, caplog.text) == (400, True, "")


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "garbage": lambda data: b"garbage" * (len(data) // 7),
    "half of it": lambda data: data[: len(data) // 2],
    "every page": lambda data: bytes(255 - each if at % 900 == 500 else each for at, each in enumerate(data)),
    "a page of zeros": lambda data: data[:4096] + bytes(len(data) - 4096),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_store_that_is_damaged_under_a_replay_is_named(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Overwritten in place: what can still be served is, the rest is an error that says so; no traceback, nothing upstream."""
    store, texts = tmp_path / "x.db", [f"{n} " + "long " * 900 for n in range(20)]
    with Provider(Script((Step(Reply("a"), times=None),))) as p:
        with Rig("record", store, {"openai": p.url}) as rig, rig.client() as c:
            for text in texts:
                assert c.ask(request(body_of(text))).status == 200
        with Rig("replay", store, {"openai": p.url}) as rig:
            with rig.client() as c:
                assert c.ask(request(body_of(texts[0]))).status == 200
            with store.open("r+b") as file:
                data = DAMAGE[how](file.read())
                file.seek(0)
                file.write(data)
                file.truncate()
            for text in texts[1:]:
                with rig.client() as c:
                    got = c.ask(request(body_of(text)))
                assert got.status in (200, 500), got.body
                if got.status == 500:
                    assert "internal error" not in got.message
                    assert str(store) in got.message
        assert len(p.requests) == len(texts)
    assert "Traceback" not in caplog.text
