"""Decoding of content-encodings, whole or piece by piece, and parsing of multipart forms.

Encodings may be stacked (``gzip, br``: undone from the right). Output is limited at every step, because one kilobyte of
a hostile body inflates to gigabytes. Nothing is guessed: unknown, corrupt and truncated bodies raise ValueError.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from email.message import Message

LIMIT = 64 << 20
"""Default limit of a decoded body in bytes; the same as ``--max-request``."""

_SLICE = 1 << 10
"""zstandard's decompressor has no limit; a block of 4 bytes can become 128 KiB, so 1 KiB at most 32 MiB."""
_STEP = 1 << 20


class _Zlib:
    """Decoder of gzip (of several members) and deflate (with or without zlib's wrapper: servers send both)."""

    error: type[Exception] = zlib.error
    """Exception of each class here for corrupt data."""
    complete = False
    """Whether the end of the coded body was seen."""

    def __init__(self, *, gzip: bool) -> None:
        self._gzip = gzip
        self._head = b""
        self._decoder = zlib.decompressobj(16 + zlib.MAX_WBITS) if gzip else None

    def iter_decoded(self, data: bytes, limit: int) -> Iterator[bytes]:
        """Decode some more, as each class here, in parts of at most `limit` bytes and one, or `_SLICE` decoded."""
        if self._decoder is None:
            data = self._head + data
            if len(data) < 2:  # zlib's header of two bytes distinguishes it from raw deflate
                self._head = data
                return
            wrapped = data[0] & 0x0F == zlib.DEFLATED and int.from_bytes(data[:2]) % 31 == 0
            self._decoder = zlib.decompressobj(zlib.MAX_WBITS if wrapped else -zlib.MAX_WBITS)
        while data:
            if self._decoder.eof:
                if not self._gzip:
                    raise zlib.error("bytes after the end")
                if not data.strip(b"\0"):  # zeros after the last member are padding
                    break
                self._decoder = zlib.decompressobj(16 + zlib.MAX_WBITS)
            yield self._decoder.decompress(data, limit + 1)
            data = self._decoder.unused_data or self._decoder.unconsumed_tail
        self.complete = self._decoder.eof


class _Brotli:
    complete = False

    def __init__(self) -> None:
        try:
            import brotli
        except ImportError as error:
            raise ValueError("brotli is not installed (it comes with the extra `proxy`)") from error
        self._decoder = brotli.Decompressor()
        self.error: type[Exception] = brotli.error

    def iter_decoded(self, data: bytes, limit: int) -> Iterator[bytes]:
        more = True
        while more:
            yield self._decoder.process(data, output_buffer_limit=min(_STEP, limit + 1))
            data = b""
            self.complete = self._decoder.is_finished()
            more = not self.complete and not self._decoder.can_accept_more_data()


class _Zstd:
    complete = False

    def __init__(self) -> None:
        try:
            import zstandard
        except ImportError as error:
            raise ValueError("zstandard is not installed (it comes with the extra `proxy`)") from error
        self._new: Callable[[], zstandard.ZstdDecompressionObj] = zstandard.ZstdDecompressor().decompressobj
        self.error: type[Exception] = zstandard.ZstdError
        self._decoder = self._new()

    def iter_decoded(self, data: bytes, _: int) -> Iterator[bytes]:
        for start in range(0, len(data), _SLICE):
            piece = data[start : start + _SLICE]
            while piece:
                if self._decoder.eof:
                    self._decoder = self._new()
                yield self._decoder.decompress(piece)
                piece = self._decoder.unused_data if self._decoder.eof else b""
        self.complete = self._decoder.eof


_STAGES: dict[str, Callable[[], _Zlib | _Brotli | _Zstd]] = {
    "gzip": lambda: _Zlib(gzip=True),
    "x-gzip": lambda: _Zlib(gzip=True),
    "deflate": lambda: _Zlib(gzip=False),
    "br": _Brotli,
    "zstd": _Zstd,
}


class BodyDecoder:
    def __init__(self, encoding: str, limit: int = LIMIT) -> None:
        """Prepare for a Content-Encoding such as ``gzip``. Raises ValueError if it is unknown."""
        names = [name.strip().lower() for name in encoding.split(",")]
        coded = [name for name in names if name not in ("", "identity")]
        if unknown := next((name for name in coded if name not in _STAGES), None):
            raise ValueError(f"unknown content-encoding {unknown!r}")
        self._decoders = [_STAGES[name]() for name in reversed(coded)]
        self._left = limit
        self._limit = limit
        self._too_large = f"decoded body is larger than {limit} bytes"
        self._fed = False

    @property
    def is_complete(self) -> bool:
        """Whether the coded body is complete. An empty body, which servers send for HEAD or 204, is."""
        return not self._fed or all(stage.complete for stage in self._decoders)

    def decode_piece(self, data: bytes) -> bytes:
        """Decode the next piece. Raises ValueError if it is corrupt or the total exceeds the limit."""
        self._fed = self._fed or bool(data)
        for stage in self._decoders:
            out = bytearray()
            try:
                for piece in stage.iter_decoded(data, self._limit):
                    out += piece
                    if len(out) > self._limit:
                        raise ValueError(self._too_large)
            except MemoryError as error:
                raise ValueError(self._too_large) from error
            except stage.error as error:
                raise ValueError("corrupt brotli data" if isinstance(stage, _Brotli) else str(error)) from error
            data = bytes(out)
        self._left -= len(data)
        if self._left < 0:
            raise ValueError(self._too_large)
        return data


def decode_body(body: bytes, encoding: str, limit: int = LIMIT) -> bytes:
    """Undo a Content-Encoding. Raises ValueError: unknown, corrupt, cut, or larger than `limit` bytes."""
    inflater = BodyDecoder(encoding, limit)
    decoded = inflater.decode_piece(body)
    if not inflater.is_complete:
        raise ValueError(f"truncated {encoding} body")
    return decoded


class MultipartField(NamedTuple):
    name: str | None
    filename: str | None
    """None for a plain field."""
    content_type: str
    parameters: list[str]
    """Further parameters of its disposition, such as a second file name (``filename*``)."""
    headers: dict[str, str]
    """Its header fields, by their names in lower case."""
    data: bytes


def read_multipart_boundary(content_type: str) -> bytes | None:
    if not content_type.strip().lower().startswith("multipart/"):
        return None
    message = _create_empty_email_message()
    message["content-type"] = content_type
    boundary = message.get_boundary()
    return boundary.encode("latin-1", "replace") if boundary else None


def parse_multipart(body: bytes, content_type: str) -> tuple[MultipartField, ...] | None:
    """Return a multipart body's parts; None if it is none, is truncated, or has transfer-encodings (unusual)."""
    if (boundary := read_multipart_boundary(content_type)) is None:
        return None
    pieces = (b"\r\n" + body).split(b"\r\n--" + boundary)
    if len(pieces) < 3 or not pieces[-1].startswith(b"--"):  # preamble, a part, the end
        return None
    parts = []
    for piece in pieces[1:-1]:
        padding, line_end, rest = piece.partition(b"\r\n")
        if padding.strip(b" \t") or not line_end:
            return None
        head, empty_line, data = (b"\r\n" + rest).partition(b"\r\n\r\n")
        part = _parse_part(head.removeprefix(b"\r\n"), data) if empty_line else None
        if part is None:
            return None
        parts.append(part)
    return tuple(parts)


def _parse_part(head: bytes, data: bytes) -> MultipartField | None:
    try:
        lines = head.decode("utf-8").split("\r\n") if head else []
    except UnicodeDecodeError:
        return None
    fields = _create_empty_email_message()
    for line in lines:
        header, colon, value = line.partition(":")
        if not colon or (header := header.strip()) in fields:
            return None
        fields[header.lower()] = value.strip()
    if fields.get("content-transfer-encoding", "binary").lower() not in ("binary", "8bit", "7bit"):
        return None
    known: dict[str, str | None] = dict.fromkeys(("form-data", "name", "filename"))
    others = []
    params: list[tuple[str, str | tuple[str, str, str]]] = list(fields.get_params([], "content-disposition"))
    for key, said in params:
        if known.get(key.lower(), "") is None:
            known[key.lower()] = said if isinstance(said, str) else said[2]  # by RFC 2231: filename*=utf-8''...
        else:
            others.append(f"{key}={said!r}")
    kind = str(fields.get("content-type", ""))
    return MultipartField(known["name"], known["filename"], kind, others, dict(fields.items()), data)


def _create_empty_email_message() -> Message:
    from email.message import Message  # takes 6 ms, needed only for uploads

    return Message()
