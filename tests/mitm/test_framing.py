"""Framing: one request at a time out of any cutting of the bytes, and strict where two readers could disagree."""

from __future__ import annotations

import pytest

from llmproxy.mitm.http1_parser import (
    MAX_HEAD,
    BadHttp1Request,
    Head,
    HeadTooLarge,
    Http1RequestParser,
    parse_head,
    replace_body,
)
from tests.mitm.wire import body_of, chunked, request


def read(pieces: list[bytes]) -> list[tuple[Head, bytes, bytes]]:
    """Feed pieces; return (head, raw body, decoded body) of each request that is whole."""
    reader, found = Http1RequestParser(), []
    head: Head | None = None
    raw, decoded = bytearray(), bytearray()
    for piece in pieces:
        reader.add_bytes(piece)
        while True:
            if head is None and (head := reader.take_head()) is None:
                break
            more_raw, more, over = reader.take_received_body_part()
            raw += more_raw
            decoded += more
            if not over:
                break
            found.append((head, bytes(raw), bytes(decoded)))
            head, raw, decoded = None, bytearray(), bytearray()
    return found


BODY = body_of("Grüße")
STREAM = (
    request(BODY)
    + chunked(BODY, 7)
    + b"\r\n\r\n"
    + request(b"", "/v1/models", "GET", content_length="")
    + chunked(BODY, 50, end=b"0;x=y\r\nx-a: 1\r\nx-b: 2\r\n\r\n")
    + request(b"")
)


@pytest.mark.parametrize("size", [1, 2, 3, 17, 100, 10_000])
def test_any_cutting_gives_the_same_requests(size: int) -> None:
    found = read([STREAM[at : at + size] for at in range(0, len(STREAM), size)])
    assert [decoded for _, _, decoded in found] == [BODY, BODY, b"", BODY, b""]
    assert [head.method for head, _, _ in found] == ["POST", "POST", "GET", "POST", "POST"]
    assert found[0][1] == BODY
    assert found[3][1].endswith(b"\r\n0\r\n\r\n"), "extensions and trailers are not handed on"
    assert b"x-a" not in found[3][1]


def head(*lines: str, first: str = "POST /x HTTP/1.1") -> Head:
    return parse_head("\r\n".join((first, "Host: h", *lines, "", "")).encode("latin-1"))


@pytest.mark.parametrize(("lines", "first", "expected"), [
    ((), "POST /x HTTP/1.1", {"keep_alive": True, "length": 0, "expects": False, "http10": False}),
    ((), "POST /x HTTP/1.0", {"keep_alive": False, "http10": True}),
    (("Connection: Keep-Alive",), "GET / HTTP/1.0", {"keep_alive": True}),
    (("Connection: foo, CLOSE",), "GET / HTTP/1.1", {"keep_alive": False}),
    (("connection: a", "Connection: close"), "GET / HTTP/1.1", {"keep_alive": False}),
    (("Content-Length: 5", "content-length: 5"), "POST / HTTP/1.1", {"length": 5}),
    (("Transfer-Encoding: Chunked",), "POST / HTTP/1.1", {"length": None}),
    (("Expect: 100-Continue",), "POST / HTTP/1.1", {"expects": True}),
    (("Expect: 100-continue",), "POST / HTTP/1.0", {"expects": False}),
    (("Upgrade: h2c",), "GET / HTTP/1.1", {"upgrade": ""}),
    (("Upgrade: WebSocket", "Connection: Upgrade"), "GET / HTTP/1.1", {"upgrade": "websocket"}),
    (("X-A:\t padded \t",), "GET / HTTP/1.1", {"headers": (("Host", "h"), ("X-A", "padded"))}),
    ((), "GET /\xc3\xa9?q=%c3\xa9&a=[~'] HTTP/1.1", {"target": "/%C3%A9?q=%c3%A9&a=[~']"}),
    (("X-A: \xe9",), "GET / HTTP/1.1", {"headers": (("Host", "h"), ("X-A", "\xe9"))}),
])  # fmt: skip
def test_a_head_says_how_the_request_goes_on(lines: tuple[str, ...], first: str, expected: dict[str, object]) -> None:
    """Length, keep-alive, Expect and Upgrade as HTTP/1 defines them."""
    made = head(*lines, first=first)
    assert {name: getattr(made, name) for name in expected} == expected


BAD_HEADS = {
    "no request line": b"hello\r\n\r\n",
    "a key for a method": b"ghp_0123456789 / HTTP/1.1\r\n\r\n",
    "no version": b"GET /\r\n\r\n",
    "HTTP/2": b"GET / HTTP/2.0\r\n\r\n",
    "h2c": b"PRI * HTTP/2.0\r\n\r\n",
    "space in the target": b"GET /a b HTTP/1.1\r\n\r\n",
    "control character in the target": b"GET /a\x01b HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n",
    "length and chunked": b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    "chunked in HTTP/1.0": b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
    "chunked not alone": b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
    "chunked twice": b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
    "chunked, hidden": b"POST / HTTP/1.1\r\nTransfer-Encoding: \x0bchunked\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "list of lengths": b"POST / HTTP/1.1\r\nContent-Length: 1, 1\r\n\r\n",
    "negative length": b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    "length with a sign": b"POST / HTTP/1.1\r\nContent-Length: +1\r\n\r\n",
    "length with _": b"POST / HTTP/1.1\r\nContent-Length: 1_0\r\n\r\n",
    "empty length": b"POST / HTTP/1.1\r\nContent-Length:\r\n\r\n",
    "endless length": b"POST / HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
    "superscript length": b"POST / HTTP/1.1\r\nContent-Length: \xb2\r\n\r\n",
    "space before the colon": b"GET / HTTP/1.1\r\nHost : a\r\n\r\n",
    "folded line": b"GET / HTTP/1.1\r\nA: b\r\n c\r\n\r\n",
    "no colon": b"GET / HTTP/1.1\r\nAb\r\n\r\n",
    "empty name": b"GET / HTTP/1.1\r\n: b\r\n\r\n",
    "NUL": b"GET / HTTP/1.1\r\nA: b\0c\r\n\r\n",
    "bare CR": b"GET / HTTP/1.1\r\nA: b\rc\r\n\r\n",
    "bare LF": b"GET / HTTP/1.1\r\nA: b\nContent-Length: 9\r\n\r\n",
    "only bare LF": b"GET / HTTP/1.1\nHost: a\n\n",
    "bare LF at last": b"GET / HTTP/1.1\r\nHost: a\n\n",
    "a lone LF": b"\nGET / HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("raw", BAD_HEADS.values(), ids=BAD_HEADS.keys())
@pytest.mark.parametrize("size", [1, 5, 100_000])
def test_a_head_that_could_be_read_in_two_ways_is_refused(raw: bytes, size: int) -> None:
    """Request smuggling lives where two readers of the same bytes disagree."""
    with pytest.raises(BadHttp1Request):
        read([raw[at : at + size] for at in range(0, len(raw), size)])


BAD_CHUNKS = {
    "no size": b"xyz\r\nabc\r\n0\r\n\r\n",
    "negative": b"-1\r\n\r\n",
    "0x": b"0x5\r\nabcde\r\n0\r\n\r\n",
    "empty": b"\r\n",
    "too long by one": b"3\r\nabcd\r\n0\r\n\r\n",
    "no line end": b"3\r\nabcXX0\r\n\r\n",
    "endless size": b"1" * 17 + b"\r\n",
    "endless line": b"5;" + b"x" * (MAX_HEAD + 1),
    "endless trailers": b"0\r\n" + b"a: b\r\n" * 20_000,
}


@pytest.mark.parametrize("raw", BAD_CHUNKS.values(), ids=BAD_CHUNKS.keys())
def test_a_broken_chunk_is_refused(raw: bytes) -> None:
    with pytest.raises(BadHttp1Request):
        read([b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", raw])


@pytest.mark.parametrize("end", [b"", b"\r\n\r\n"], ids=["unfinished", "finished"])
def test_a_head_has_a_limit(end: bytes) -> None:
    """64 KiB, also when its end never comes."""
    with pytest.raises(HeadTooLarge):
        read([b"GET / HTTP/1.1\r\nA: " + b"x" * MAX_HEAD + end])
    assert read([b"GET / HTTP/1.1\r\nA: " + b"x" * (MAX_HEAD - 100) + b"\r\n\r\n"])


def test_what_is_over_the_request_waits() -> None:
    """The bytes of the next request are not touched."""
    reader = Http1RequestParser()
    reader.add_bytes(request(b"abc") + b"GET /next")
    made = reader.take_head()
    assert made is not None
    assert made.raw.endswith(b"\r\n\r\n")
    assert reader.take_received_body_part() == (b"abc", b"abc", True)
    assert reader.waiting_byte_count == len(b"GET /next")
    assert reader.take_head() is None


def test_a_request_with_another_body_says_its_framing_anew() -> None:
    """Length, chunks, coding and digests were those of the old body; every other field stays as it came, in its order."""
    raw = request(b"old", content_encoding="gzip", x_a="1", expect="100-continue", content_md5="x", x_b="2")
    (made,) = read([replace_body(parse_head(raw[:-3]), b"the new body")])
    head, body, _ = made
    assert body == b"the new body"
    assert [name.lower() for name, _ in head.headers] == ["host", "content-type", "x-a", "x-b", "content-length"]
    old = chunked(b"old", 2)
    (made,) = read([replace_body(parse_head(old[: old.index(b"\r\n\r\n") + 4]), b"n")])
    assert (made[0].length, made[1]) == (1, b"n")


@pytest.mark.parametrize("head", [
    "GET /v1/x?key=hunter2-hunter2 HTTX/1\r\n",
    "POST /v1/x HTTP/1.1\r\nAuthorization Bearer hunter2-hunter2\r\n",
    "POST /v1/x HTTP/1.1\r\nhunter2-hunter2\r\n",
    "POST /v1/x HTTP/1.1\r\nx-api-key : hunter2-hunter2\r\n",
    "POST /v1/x HTTP/1.1\r\ncontent-length: hunter2-hunter2\r\n",
])  # fmt: skip
def test_a_broken_head_is_not_quoted(head: str) -> None:
    """Errors are logged, and a key can stand anywhere in a head that cannot be read."""
    with pytest.raises(BadHttp1Request) as error:
        parse_head((head + "\r\n").encode())
    assert "hunter2" not in str(error.value)
    assert "line of" in str(error.value)
