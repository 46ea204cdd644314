"""An answer in the pieces in which its reader takes it."""

from __future__ import annotations

import struct

import pytest

from llmproxy.core.faults.pieces import after, split, time_pieces
from llmproxy.core.traffic.interaction import Chunk, Response
from tests.core.faults.cases import answer

SSE = b"data: 1\n\ndata: 2\r\n\r\ndata: [DONE]\n\n"
FRAME = struct.pack(">III", 20, 0, 0) + b"abcd" + b"\0\0\0\0"


@pytest.mark.parametrize(("kind", "body", "parts"), [
    ("text/event-stream", SSE, [b"data: 1\n\n", b"data: 2\r\n\r\n", b"data: [DONE]\n\n"]),
    ("text/event-stream", b"data: 1\n\ndata: unfin", [b"data: 1\n\n", b"data: unfin"]),
    ("application/x-ndjson", b"{}\n[]\n", [b"{}\n", b"[]\n"]),
    ("application/vnd.amazon.eventstream", FRAME + FRAME, [FRAME, FRAME]),
    ("application/vnd.amazon.eventstream", b"\0" * 30, [b"\0" * 30]),
    ("application/json", b'{"a": 1}', [b'{"a": 1}']),
    ("application/json", b"", []),
])  # fmt: skip
def test_pieces_joined_are_the_body(kind: str, body: bytes, parts: list[bytes]) -> None:
    """Events with their framing; of anything else the whole."""
    assert split(kind, body) == parts
    assert b"".join(split(kind, body)) == body


def test_a_piece_is_due_when_its_last_byte_came() -> None:
    """Whatever borders the network put; at speed 0 at once."""
    chunks = (Chunk(10, SSE[:4]), Chunk(20, SSE[4:12]), Chunk(40, SSE[12:]))
    response = Response(200, "OK", (("content-type", "text/event-stream"),), chunks)
    assert [each.offset for each in time_pieces(response, 1)] == [20, 40, 40]
    assert [each.offset for each in time_pieces(response, 2)] == [10, 20, 20]
    assert [each.offset for each in time_pieces(response, 0)] == [0, 0, 0]


def test_what_comes_before_a_break_is_never_the_whole() -> None:
    """With too few pieces the last one is cut in two."""
    pieces = time_pieces(answer(SSE, "text/event-stream"), 0)
    assert [len(part) for part in after(pieces, 1)] == [1, 2]
    sent, left = after(pieces, 9)
    assert b"".join(each.data for each in (*sent, *left)) == SSE
    assert left[-1].data
    assert after([], 1) == ([], [])
