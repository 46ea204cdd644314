"""AWS's binary event stream -> headers and payloads. Bedrock streams its answers in it.

A frame is its total length, the length of its headers, a CRC-32 of those two, headers, payload and a CRC-32 of all
that. Source: AWS, "Event stream encoding", read 2026-07.
"""

from __future__ import annotations

import binascii
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_PRELUDE = struct.Struct(">III")
_WORD = struct.Struct(">I")
_FIXED = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
"""Bytes of a header value by its type; 6 (bytes) and 7 (string) carry a length instead."""
_FRAME_LIMIT = 24 << 20
"""A frame is at most 16 MiB of payload and 128 KiB of headers, says AWS."""


def frames(data: bytes) -> list[tuple[dict[str, str], bytes]]:
    """Return headers and payload of each whole frame of an AWS event stream; an unfinished last one is left out.

    Values of headers that are no strings are given in hex. Raises ValueError for a wrong checksum or length.
    """
    return list(iter_frames(data))


def iter_frames(data: bytes) -> Iterator[tuple[dict[str, str], bytes]]:
    """Yield what :func:`frames` returns, as far as the bytes are sound."""
    view = memoryview(data)
    start = 0
    while start + _PRELUDE.size <= len(view):
        total, header_length, prelude_crc = _PRELUDE.unpack_from(view, start)
        if binascii.crc32(view[start : start + 8]) != prelude_crc:
            message = f"event stream: the checksum of the frame's prelude at byte {start} is wrong"
            raise ValueError(message)
        if not 16 + header_length <= total <= _FRAME_LIMIT:
            message = f"event stream: the frame at byte {start} has an impossible length of {total} bytes"
            raise ValueError(message)
        end = start + total
        if end > len(view):
            return
        if binascii.crc32(view[start : end - 4]) != _WORD.unpack_from(view, end - 4)[0]:
            message = f"event stream: the checksum of the frame at byte {start} is wrong"
            raise ValueError(message)
        payload = start + 12 + header_length
        yield _frame_headers(bytes(view[start + 12 : payload])), bytes(view[payload : end - 4])
        start = end


def write_frame(headers: Mapping[str, str], payload: bytes) -> bytes:
    """Write one frame; every header is a string (type 7)."""
    packed = b"".join(
        bytes([len(name)]) + name.encode() + b"\x07" + struct.pack("!H", len(text.encode())) + text.encode()
        for name, text in headers.items()
    )
    prelude = struct.pack("!II", 16 + len(packed) + len(payload), len(packed))
    frame = prelude + _WORD.pack(binascii.crc32(prelude)) + packed + payload
    return frame + _WORD.pack(binascii.crc32(frame))


def _frame_headers(data: bytes) -> dict[str, str]:
    headers: dict[str, str] = {}
    position = 0
    try:
        while position < len(data):
            name_end = position + 1 + data[position]
            name = data[position + 1 : name_end].decode("utf-8", "replace")
            kind = data[name_end]
            position = name_end + 1
            if kind in _FIXED:
                length = _FIXED[kind]
            else:
                length = int.from_bytes(data[position : position + 2])
                position += 2
            value = data[position : position + length]
            headers[name] = value.decode("utf-8", "replace") if kind == 7 else value.hex()
            position += length
    except IndexError as error:
        message = "event stream: the headers of a frame are cut short"
        raise ValueError(message) from error
    return headers
