"""Parser of HTTP/1 requests from a client's bytes: one at a time, with the raw bytes kept for forwarding.

No library offers exact bytes, bodies in pieces, and strictness where two parsers could disagree (request smuggling).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from string import punctuation
from urllib.parse import quote

from llmproxy.core.traffic.interaction import Headers
from llmproxy.errors import RefusedError

MAX_HEAD = 64 << 10
"""Maximum bytes of request line and headers; node allows 16 KiB, Apache, nginx 8 KiB a line; tokens are long."""

SHORT_HEAD = 4096
"""Maximum bytes of a cached head; with 512 of them at most 2 MiB."""

_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_WORD = re.compile(rb"([A-Za-z]+(?:-[A-Za-z]+){0,3}|[0-9]{1,5})(?=[ \t:;,])")
_REQUEST_LINE = re.compile(rb"([A-Za-z-]{1,24}) ([^ \x00-\x20\x7f]+) HTTP/1\.([01])")
"""Longer methods, and such with digits, do not exist: they are keys in the wrong place, and methods are logged."""
_SIZE = re.compile(rb"[0-9A-Fa-f]{1,16}")
_BARE_LINE_FEED = re.compile(rb"(?<!\r)\n")
_LENGTH = re.compile(r"[0-9]{1,18}")
_HTTP2 = b"PRI * HTTP/2.0"


class BadHttp1Request(RefusedError):
    """Bytes that are not one well-formed HTTP/1 request; the connection cannot continue."""

    code = "llmproxy_bad_request"


class HeadTooLarge(BadHttp1Request):
    status = 431


class HeadTooSlow(BadHttp1Request):
    status = 408

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"llmproxy: the request's head did not end within {seconds:g} seconds; the connection is closed."
            " Send the request again: nothing of it was looked up, counted or forwarded."
        )


class BodyTooSlow(BadHttp1Request):
    """The body has begun, or was announced, and no more bytes arrive."""

    status = 408

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"llmproxy: nothing of the request's body came for {seconds:g} seconds; the connection is closed."
            " Send the request again, whole: its head announced more than came."
        )


@dataclass(frozen=True, slots=True)
class Head:
    raw: bytes
    method: str
    target: str
    http10: bool
    headers: Headers
    length: int | None
    """Length of the body; None: chunked."""
    keep_alive: bool
    expects: bool
    upgrade: str
    """Lower-case value of Upgrade, if Connection names it."""


class Http1RequestParser:
    def __init__(self) -> None:
        self._buffer = bytearray()
        self._scanned = 0
        self._left = 0
        self._chunked = False
        self._in_chunk = False
        self._over = True
        self.heads = 0

    def add_bytes(self, data: bytes) -> None:
        self._buffer += data

    @property
    def waiting_byte_count(self) -> int:
        return len(self._buffer)

    def take_rest(self) -> bytes:
        data = bytes(self._buffer)
        self._buffer.clear()
        self._scanned = 0
        return data

    def take_head(self) -> Head | None:
        """Return the next request's head, None if incomplete. Raises BadHttp1Request: no HTTP/1, or ambiguous."""
        buffer = self._buffer
        while buffer[:2] == b"\r\n":  # RFC 9112 2.2: ignore empty lines before a request
            del buffer[:2]
            self._scanned = 0
        end = buffer.find(b"\r\n\r\n", max(0, self._scanned - 3))
        if (len(buffer) if end < 0 else end) > MAX_HEAD:
            raise HeadTooLarge(f"llmproxy: the request's head is over {MAX_HEAD} bytes.")
        if end < 0:
            self._scanned = len(buffer)
            if _BARE_LINE_FEED.search(buffer):
                raise BadHttp1Request("llmproxy: a line of the request's head ends without a carriage return.")
            return None
        raw = bytes(buffer[: end + 4])
        del buffer[: end + 4]
        self._scanned = 0
        head = parse_head(raw)
        self._chunked, self._left, self._in_chunk = head.length is None, head.length or 0, False
        self._over = head.length == 0
        self.heads += 1
        return head

    def take_received_body_part(self) -> tuple[bytes, bytes, bool]:
        """Return the received (raw bytes, decoded bytes, is it all?), without trailers. Raises BadHttp1Request."""
        if self._over:
            return b"", b"", True
        if self._chunked:
            return self._take_chunks()
        data = bytes(self._buffer[: self._left]) if len(self._buffer) > self._left else bytes(self._buffer)
        del self._buffer[: len(data)]
        self._left -= len(data)
        self._over = not self._left
        return data, data, self._over

    def _take_chunks(self) -> tuple[bytes, bytes, bool]:
        raw, decoded, at = bytearray(), bytearray(), 0
        buffer = self._buffer
        while not self._over:
            if self._in_chunk:
                data = bytes(buffer[at : at + self._left])
                at += len(data)
                self._left -= len(data)
                raw += data
                decoded += data
                if self._left or len(buffer) < at + 2:
                    break
                if buffer[at : at + 2] != b"\r\n":
                    raise BadHttp1Request("llmproxy: a chunk of the request's body does not end where it says.")
                raw += b"\r\n"
                at, self._in_chunk = at + 2, False
                continue
            if (line_end := buffer.find(b"\r\n", at)) < 0:
                if len(buffer) - at > MAX_HEAD:
                    raise BadHttp1Request("llmproxy: a chunk's size line is too long.")
                break
            size = bytes(buffer[at:line_end]).split(b";", 1)[0].strip(b" \t")
            if not _SIZE.fullmatch(size):
                raise BadHttp1Request(f"llmproxy: {_describe_line_safely(size)} is no chunk size.")
            if int(size, 16) == 0:
                if (after := self._find_trailers_end(line_end)) is None:
                    break
                raw += b"0\r\n\r\n"
                at, self._over = after, True
            else:
                self._left, self._in_chunk = int(size, 16), True
                raw += size + b"\r\n"
                at = line_end + 2
        del buffer[:at]
        return bytes(raw), bytes(decoded), self._over

    def _find_trailers_end(self, line_end: int) -> int | None:
        if self._buffer[line_end + 2 : line_end + 4] == b"\r\n":
            return line_end + 4
        end = self._buffer.find(b"\r\n\r\n", line_end)
        if end < 0 and len(self._buffer) - line_end > MAX_HEAD:
            raise BadHttp1Request("llmproxy: the trailers of the request's body are too long.")
        return None if end < 0 else end + 4


def replace_body(head: Head, body: bytes) -> bytes:
    """Return a request with another body: framing and coding headers are rewritten, all others stay."""
    first, *lines = head.raw[:-4].split(b"\r\n")
    gone = (
        b"content-length", b"transfer-encoding", b"content-encoding", b"expect", b"trailer", b"content-md5", b"digest",
    )  # fmt: skip
    kept = [line for line in lines if line.partition(b":")[0].lower() not in gone]
    return b"\r\n".join([first, *kept, b"content-length: %d" % len(body)]) + b"\r\n\r\n" + body


def parse_head(raw: bytes) -> Head:
    return _remembered(raw) if len(raw) <= SHORT_HEAD else _parse_head_bytes(raw)


def _describe_line_safely(line: bytes) -> str:
    """Describe a line for an error without its content: in a broken head a key can be anywhere."""
    word = _WORD.match(line)
    begins = f" that begins with {word[1].decode()!r}" if word else ""
    return f"a line of {len(line)} bytes{begins}"


def _parse_head_bytes(raw: bytes) -> Head:
    lines = raw[:-4].split(b"\r\n")
    if lines[0] == _HTTP2:
        raise BadHttp1Request("llmproxy: HTTP/2 is not served here; use HTTP/1.1.")
    if (match := _REQUEST_LINE.fullmatch(lines[0])) is None:
        raise BadHttp1Request(f"llmproxy: {_describe_line_safely(lines[0])} is no HTTP/1 request line.")
    headers: list[tuple[str, str]] = []
    lengths: set[str] = set()
    codings: list[str] = []
    connection, upgrade, expect, hosts = "", "", "", 0
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        if not colon or not _TOKEN.fullmatch(name) or b"\n" in value or b"\r" in value or b"\0" in value:
            raise BadHttp1Request(f"llmproxy: {_describe_line_safely(line)} is no header field.")
        text = value.strip(b" \t").decode("latin-1")
        headers.append((name.decode("ascii"), text))
        match name.lower():
            case b"content-length":
                lengths.add(text)
            case b"transfer-encoding":
                codings.append(text.lower())
            case b"connection":
                connection += "," + text.lower()
            case b"upgrade":
                upgrade = text.lower()
            case b"expect":
                expect = text.lower()
            case b"host":
                hosts += 1
    if hosts > 1:
        raise BadHttp1Request("llmproxy: the request names two Hosts.")
    http10 = match[3] == b"0"
    tokens = {token.strip() for token in connection.split(",")}
    return Head(
        raw=raw, method=match[1].decode("ascii"), target=quote(match[2], safe=punctuation), http10=http10,
        headers=tuple(headers), length=_determine_body_length(lengths, codings, http10=http10),
        keep_alive="keep-alive" in tokens if http10 else "close" not in tokens,
        expects=expect == "100-continue" and not http10, upgrade=upgrade if "upgrade" in tokens else "",
    )  # fmt: skip


def _determine_body_length(lengths: set[str], codings: list[str], *, http10: bool) -> int | None:
    if codings:
        if lengths or http10 or codings != ["chunked"]:
            raise BadHttp1Request(
                "llmproxy: content-length and transfer-encoding of the request contradict each other."
            )
        return None
    if len(lengths) > 1 or not all(map(_LENGTH.fullmatch, lengths)):
        given = ", ".join(sorted(lengths)).encode("latin-1")
        raise BadHttp1Request(f"llmproxy: {_describe_line_safely(given)} is no content-length.")
    return int(lengths.pop()) if lengths else 0


_remembered = lru_cache(512)(_parse_head_bytes)
