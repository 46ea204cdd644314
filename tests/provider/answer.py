"""What the scripted provider sends, down to the pieces that leave the socket together.

An `Answer` is plain data: status, headers and pieces of body with the pause before each, plus how the body is framed and how
it ends. The methods return changed copies, so that a test reads as what is odd about the answer:
`render(...).recut(7).paced(0.05).cut(3, "reset")`. Sizes are bytes, times seconds.
"""

from __future__ import annotations

import gzip
import threading
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

Framing = Literal["length", "chunked", "close"]
"""Content-Length, chunked coding, or the end of the connection ends the body."""
Cut = Literal["", "close", "reset"]
"""How the answer breaks off: not at all, an orderly FIN, or an RST."""

HeaderFields = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes that are written at once, `wait` seconds after the piece before."""

    data: bytes
    wait: float = 0.0
    after: threading.Event | None = None
    """If given, what a test sets when these bytes may be written: neither a quick nor a slow machine changes the order of things then."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int = 200
    headers: HeaderFields = (("content-type", "application/json"),)
    pieces: tuple[Piece, ...] = ()
    framing: Framing = "length"
    version: str = "HTTP/1.1"
    interim: tuple[int, ...] = ()
    """1xx statuses sent before the head."""
    trailers: HeaderFields = ()
    """Only with chunked framing."""
    wait: float = 0.0
    """Pause before the head."""
    ends: Cut = ""
    """Break off after the last piece, without a proper end of the body."""

    @property
    def body(self) -> bytes:
        """All pieces together, as sent (still compressed if it was)."""
        return b"".join(piece.data for piece in self.pieces)

    def framed(self, framing: Framing) -> Answer:
        return replace(self, framing=framing)

    def with_headers(self, *fields: tuple[str, str]) -> Answer:
        return replace(self, headers=self.headers + fields)

    def recut(self, size: int) -> Answer:
        """Cut the body into pieces of `size` bytes, wherever that falls (also inside a UTF-8 character); waits are lost."""
        body = self.body
        return replace(self, pieces=tuple(Piece(body[i : i + size]) for i in range(0, len(body), size)))

    def at(self, *borders: int) -> Answer:
        """Cut the body at these byte offsets; waits are lost."""
        body, edges = self.body, [0, *borders, len(self.body)]
        return replace(self, pieces=tuple(Piece(body[a:b]) for a, b in pairwise(edges)))

    def paced(self, *waits: float) -> Answer:
        """Wait before each piece: the n-th wait before the n-th piece, the last one before all further ones."""
        pieces = tuple(replace(p, wait=waits[min(i, len(waits) - 1)]) for i, p in enumerate(self.pieces))
        return replace(self, pieces=pieces)

    def late(self, seconds: float) -> Answer:
        return replace(self, wait=seconds)

    def cut(self, pieces: int, how: Cut = "close") -> Answer:
        """Send only so many pieces, then break off (a body with Content-Length still announces its whole length)."""
        fields = self.headers
        if self.framing == "length":
            fields += (("content-length", str(len(self.body))),)
        return replace(self, headers=fields, pieces=self.pieces[:pieces], ends=how)

    def compressed(self, *codings: str) -> Answer:
        """Encode the body as a whole (gzip, deflate, br, zstd; several are stacked in this order) as one piece."""
        body = self.body
        for coding in codings:
            body = compress(body, coding)
        return replace(self, pieces=(Piece(body),)).with_headers(("content-encoding", ", ".join(codings)))


def compress(body: bytes, coding: str) -> bytes:
    """Encode `body`; ValueError for a coding that nobody sends."""
    if coding == "gzip":
        return gzip.compress(body, mtime=0)
    if coding == "deflate":
        return zlib.compress(body)
    if coding == "br":
        import brotli

        return bytes(brotli.compress(body))
    if coding == "zstd":
        import zstandard

        return zstandard.ZstdCompressor().compress(body)
    raise ValueError(f"unknown content-coding {coding!r}")


def json_answer(value: object, status: int = 200, *fields: tuple[str, str]) -> Answer:
    """Answer with one JSON value (compact, UTF-8 not escaped, as providers send it)."""
    return Answer(status, (("content-type", "application/json"), *fields), (Piece(dumps(value).encode()),))


def stream_answer(parts: Iterable[bytes], content_type: str = "text/event-stream; charset=utf-8") -> Answer:
    """Answer with a chunked stream, one piece for each part."""
    return Answer(200, (("content-type", content_type),), tuple(Piece(part) for part in parts), "chunked")


def event(data: object, name: str | None = None, end: str = "\n\n") -> bytes:
    """Format one server-sent event; `data` is text as it is, or anything else as JSON."""
    text = data if isinstance(data, str) else dumps(data)
    return ((f"event: {name}\n" if name else "") + f"data: {text}{end}").encode()


def dumps(value: object) -> str:
    """Write JSON as the providers do: compact, characters as they are."""
    import json

    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def throttled(seconds: float = 1, message: str = "Rate limit reached, please wait") -> Answer:
    """Answer 429 with retry-after, in a shape that every SDK reads as its rate-limit error."""
    error = {"type": "rate_limit_error", "message": message, "code": "rate_limit_exceeded", "param": None}
    return json_answer({"type": "error", "error": error}, 429, ("retry-after", f"{seconds:g}"))


def failed(status: int = 500, message: str = "The server had an error") -> Answer:
    error = {"type": "server_error", "message": message, "code": None, "param": None}
    return json_answer({"type": "error", "error": error}, status)
