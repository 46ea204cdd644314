"""A response as it arrives, written down: head, chunks with their borders and times, and how it ended.

A `Recording` is fed by whoever carries the bytes to the client. It never changes or delays them. It keeps the *decoded* body
(what was compressed is inflated chunk by chunk), since bodies are stored decoded and served as identity.
"""

from __future__ import annotations

from llmproxy.core.dialects.streams import ending
from llmproxy.core.providers.routing import Family
from llmproxy.core.traffic.encoding import Inflater
from llmproxy.core.traffic.interaction import Chunk, Ending, Headers, Response, header, without


class Recording:
    """One response on its way; call `head`, then `data` for each piece, then `end`."""

    def __init__(self) -> None:
        """Start with nothing seen."""
        self.status = 0
        self._reason = ""
        self._headers: Headers = ()
        self._head_offset = 0
        self._chunks: list[Chunk] = []
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
        return b"" if coding and coding.strip().lower() != "identity" else b"".join(each.data for each in self._chunks)

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
        if self._chunks:
            return self._chunks[0].offset
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
            self._chunks.append(Chunk(offset, data))

    def end(self, family: Family, operation: str, *, stream: bool, proper: bool) -> Response:
        """Close the recording; `proper` means that HTTP framing said the message is over. Not quick: off the event loop."""
        proper = proper or self.whole
        chunks = _inflated(self._chunks, header(self._headers, "content-encoding"))
        body = b"".join(chunk.data for chunk in chunks)
        kind = header(self._headers, "content-type") or ""
        how = ending(family, operation, stream, self.status, kind, body, proper)
        if how is Ending.CUT and (proper or self.left):
            how = Ending.UNTERMINATED if proper else Ending.LEFT
        return Response(
            status=self.status,
            reason=self._reason,
            headers=without(self._headers, "content-encoding"),
            chunks=chunks,
            ending=how,
            head_offset=self._head_offset,
            chunked=self._chunked,
        )


def _inflated(chunks: list[Chunk], coding: str | None) -> tuple[Chunk, ...]:
    """Undo the content-encoding, keeping borders and times; what does not decode stays as it came."""
    if coding is None or coding.strip().lower() == "identity":
        return tuple(chunks)
    inflated: list[Chunk] = []
    try:
        inflater = Inflater(coding)
        inflated.extend(Chunk(chunk.offset, data) for chunk in chunks if (data := inflater.feed(chunk.data)))
        if rest := inflater.finish():
            inflated.append(Chunk(chunks[-1].offset if chunks else 0, rest))
    except ValueError:
        return tuple(chunks)
    return tuple(inflated)
