"""What a shim and its proxy say to each other for each call of a tool, once the control API has let the shim in: frames on the same connection.

    0, kind, length of the rest (4 bytes)      LINE    a line of the client's          -> HEARD   what becomes of it
                                               ANSWER  what the server answered        -> DONE    when that is stored
                                                                                       -> FAILED  why not, a text
Everything else (the first call, an answer that was cancelled, a loss, the end, what is long) is said in JSON as the API takes it; so a proxy that offers
no frames is spoken to in JSON alone. JSON, heads and their rules took a fifth of a call.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

HEAD = struct.Struct(">BBI")
MARK = 0
"""The byte that a frame begins with, and no head of HTTP."""
LINE, ANSWER, HEARD, DONE, FAILED = range(1, 6)
LONGEST = 1 << 20
"""Bytes that are said in a frame."""
OFFERED = "llmproxy-frames"
"""Header of the API's answer that offers them."""
_HEARD = struct.Struct(">QdB")
_NUMBER = struct.Struct(">Q")
_ITEM = struct.Struct(">QI")


def frame(kind: int, *parts: bytes) -> bytes:
    return b"".join((HEAD.pack(MARK, kind, sum(map(len, parts))), *parts))


def write_heard(out: bytes, forward: int | None, late: float, *, gone: bool) -> bytes:
    """Write what becomes of a line: `core.control.tool_lines.Heard`."""
    return frame(HEARD, _HEARD.pack(forward or 0, late, gone), out)


def read_heard(data: bytes) -> tuple[bytes, int | None, float, bool]:
    """Read it: out, forward, late, gone. Raises ValueError."""
    try:
        forward, late, gone = _HEARD.unpack_from(data)
    except struct.error as error:
        raise ValueError(str(error)) from error
    return data[_HEARD.size :], forward or None, late, bool(gone)


def write_answer(number: int, lines: Sequence[tuple[int, bytes]]) -> bytes:
    """Write what a server answered under a number: (microseconds, line), in order."""
    parts = [_NUMBER.pack(number)]
    for offset, line in lines:
        parts += (_ITEM.pack(offset, len(line)), line)
    return frame(ANSWER, *parts)


def read_answer(data: bytes) -> tuple[int, list[tuple[int, bytes]]]:
    """Read it. Raises ValueError."""
    try:
        (number,), at, lines = _NUMBER.unpack_from(data), _NUMBER.size, []
        while at < len(data):
            offset, length = _ITEM.unpack_from(data, at)
            at += _ITEM.size + length
            if at > len(data):
                raise ValueError("a line is longer than its frame")
            lines.append((offset, data[at - length : at]))
    except struct.error as error:
        raise ValueError(str(error)) from error
    return number, lines
