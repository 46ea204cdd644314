"""What a stranger may send: a question that only looks like a recorded one is a miss, and what nobody can read is refused in words."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.mitm.rig import Rig
from tests.mitm.wire import body_of, request
from tests.provider import Provider, Reply, Script, Step

BODY = body_of("hi")
UNDONE: dict[str, Callable[[bytes], bytes]] = {
    "identity": bytes,
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "gzip, gzip": lambda body: gzip.compress(gzip.compress(body)),
    "deflate, gzip": lambda body: gzip.compress(zlib.compress(body)),
}
"""Content-encodings that the body has: the same question."""
HALF = gzip.compress(BODY)
LIES: dict[str, bytes] = {
    **dict.fromkeys(("gzip", "GZip", "x-gzip", "deflate", "br", "zstd", "gzip, br", "foo", "utf-8", "chunked"), BODY),
    "gzip ": HALF[:-6],
    "gzip,": HALF + b"and more",
    "deflate ,gzip": HALF,
    "identity, foo": BODY,
}
"""Ones that it does not have, or not whole: a provider refuses them, or reads something else."""


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Replay a store with one answer."""
    store = tmp_path_factory.mktemp("strange") / "x.db"
    with Provider(Script((Step(Reply("plain")),))) as p:
        with Rig("record", store, {"openai": p.url}) as recording, recording.client() as c:
            assert c.ask(request(BODY)).status == 200
        with Rig("replay", store, {"openai": p.url}) as replaying:
            yield replaying
        assert len(p.requests) == 1


@pytest.mark.parametrize("coding", UNDONE)
def test_a_coding_that_the_body_has_is_the_same_question(rig: Rig, coding: str) -> None:
    """Whatever it is packed in."""
    with rig.client() as c:
        assert c.ask(request(UNDONE[coding](BODY), content_encoding=coding)).headers["x-llmproxy-cache"] == "hit"


@pytest.mark.parametrize("coding", LIES)
def test_a_coding_that_the_body_does_not_have_is_another_question(rig: Rig, coding: str) -> None:
    """Answered with the recording of the plain one, a client that is broken would pass."""
    with rig.client() as c:
        assert c.ask(request(LIES[coding], content_encoding=coding)).headers.get("x-llmproxy-cache") == "miss"


def test_lies_are_recorded_and_replayed_as_what_they_are(tmp_path: Path) -> None:
    """Each has a recording of its own, and a later session finds each one's."""
    store = tmp_path / "x.db"
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
def test_a_connect_that_names_no_place_is_refused_in_words(rig: Rig, line: str, field: str) -> None:
    """Never by a page in HTML, which says nothing of us and repeats what was sent."""
    with rig.client() as c:
        got = c.ask(f"{line}\r\n{field}\r\n\r\n".encode("latin-1"))
        assert (got.status, got.whole) == (400, True)
        assert got.headers["content-type"] == "text/plain; charset=utf-8"
        assert got.body.startswith(b"llmproxy: ")
        assert b"<script>" not in got.body


def test_a_connect_without_an_end_is_not_held(rig: Rig) -> None:
    """A head that is too long is refused while it comes."""
    with rig.client() as c:
        got = c.ask(b"CONNECT x:443 HTTP/1.1\r\n" + b"a: b\r\n" * 20_000)
        assert got.status == 431
        assert b"65536" in got.body


@pytest.mark.parametrize("port", ["0", "65536", "99999", "9" * 5_000, "-1", "+80", "8_0", "x"])
@pytest.mark.parametrize("scheme", ["http", "HTTPS"])
def test_a_port_that_is_none_is_refused_in_words(
    rig: Rig, scheme: str, port: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also in absolute form: it is the client's mistake, no internal error."""
    with rig.client() as c:
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
