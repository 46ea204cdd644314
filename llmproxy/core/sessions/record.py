"""A response as it arrives, written down: head, chunks with their borders and times, and how it ended.

A `Recording` is fed by whoever carries the bytes to the client. It never changes or delays them. It keeps the *decoded*
body (what was compressed is inflated chunk by chunk), since bodies are stored decoded and served as identity.
"""

from __future__ import annotations

import io
from array import array
from collections.abc import Iterator

from llmproxy.core.dialects.streams import ending
from llmproxy.core.providers.table import Family
from llmproxy.core.traffic.encoding import Inflater
from llmproxy.core.traffic.interaction import Cut, Ending, Headers, Response, header, without


class Recording:
    """One response on its way; call `head`, then `data` for each piece, then `end`."""

    def __init__(self) -> None:
        """Start with nothing seen."""
        self.status = 0
        self._reason = ""
        self._headers: Headers = ()
        self._head_offset = 0
        self._body = io.BytesIO()  # its value is not copied unless more is written
        self._offsets, self._lengths = array("q"), array("q")
        self._chunked = False
        self._expected: int | None = None
        self._received = 0
        self.damaged = False
        """A piece was lost on its way into the recording, which must not be stored then."""
        self.left = False
        """The client ended it before its end."""
        self.overwritten = False
        """What `end` returned is not what came: a secret was taken out."""

    @property
    def started(self) -> bool:
        """Whether the head was seen."""
        return self.status != 0

    @property
    def seen(self) -> tuple[int, Headers]:
        """The head: when it came, microseconds, and its fields."""
        return self._head_offset, self._headers

    @property
    def so_far(self) -> bytes:
        """The body as far as it has come; nothing while it is compressed."""
        coding = header(self._headers, "content-encoding")
        return b"" if coding and coding.strip().lower() != "identity" else self._body.getvalue()

    @property
    def size(self) -> int:
        """Bytes of the body so far."""
        return self._received

    @property
    def kind(self) -> str:
        """Its content type."""
        return header(self._headers, "content-type") or ""

    @property
    def whole(self) -> bool:
        """Whether all that the head announced is here; never for a body without a length."""
        return self._expected is not None and self._received >= self._expected

    @property
    def holds_end(self) -> bool:
        """Whether what comes next may hold the end: its length was announced."""
        return self._expected is not None

    @property
    def first_offset(self) -> int | None:
        """Microseconds until the first byte of the body, or of the head where there is no body."""
        if self._offsets:
            return self._offsets[0]
        return self._head_offset if self.started else None

    def head(self, offset: int, status: int, reason: str, headers: Headers) -> None:
        """Note the response's head, `offset` microseconds after the request's release."""
        self.status, self._reason, self._headers, self._head_offset = status, reason, headers, offset
        length = header(headers, "content-length")
        self._chunked = length is None
        self._expected = int(length) if length is not None and length.isdecimal() else None

    def data(self, offset: int, data: bytes) -> None:
        """Note bytes of the body as they came from the wire."""
        self._received += len(data)
        if data:
            self._body.write(data)
            self._offsets.append(offset)
            self._lengths.append(len(data))

    def end(self, family: Family, operation: str, *, stream: bool, proper: bool) -> Response:
        """Close the recording; `proper` means that HTTP framing said the message is over.

        Not quick: off the event loop.
        """
        proper = proper or self.whole
        chunks, undone = self._cut()
        body = chunks.body
        kind = header(self._headers, "content-type") or ""
        how = ending(family, operation, stream, self.status, kind, body, proper)
        if how is Ending.CUT and (proper or self.left):
            how = Ending.UNTERMINATED if proper else Ending.LEFT
        return Response(
            status=self.status,
            reason=self._reason,
            headers=without(self._headers, "content-encoding") if undone else self._headers,
            chunks=chunks,
            ending=how,
            head_offset=self._head_offset,
            chunked=self._chunked,
        )

    def _cut(self) -> tuple[Cut, bool]:
        """Return what came, and whether its content-encoding is undone.

        What does not decode stays as it came, and says so.
        """
        coding = header(self._headers, "content-encoding")
        if coding is not None and coding.strip().lower() != "identity":
            try:
                return _inflate_pieces(self._pieces(), coding), True
            except ValueError:
                pass
        plain = coding is None or coding.strip().lower() == "identity"
        return Cut(self._body.getvalue(), zip(self._offsets, self._lengths, strict=True)), plain

    def _pieces(self) -> Iterator[tuple[int, bytes]]:
        body, at = self._body.getvalue(), 0
        for offset, length in zip(self._offsets, self._lengths, strict=True):
            yield offset, body[at : at + length]
            at += length


def _inflate_pieces(pieces: Iterator[tuple[int, bytes]], coding: str) -> Cut:
    """Undo a content-encoding, keeping borders and times. Raises ValueError for what does not decode."""
    inflater, out = Inflater(coding), io.BytesIO()
    borders: list[tuple[int, int]] = []
    offset = 0
    for offset, piece in pieces:
        if data := inflater.feed(piece):
            borders.append((offset, out.write(data)))
    if rest := inflater.finish():
        borders.append((offset, out.write(rest)))
    return Cut(out.getvalue(), borders)
