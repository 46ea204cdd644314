"""Division of an answer into the pieces that its reader handles: events of a stream, or the whole body."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from llmproxy.core.dialects.streams import detect_framing
from llmproxy.core.faults.rules import CandidateCall, FaultKind, FaultyAnswer, Parameter, Values
from llmproxy.core.traffic.interaction import Chunk, Ending, Response

_BLANK = re.compile(rb"\r\n\r\n|\n\n|\r\r")
MICROSECONDS = 1_000_000


def get_framing(response: Response) -> str:
    return detect_framing(response.mime_type, response.body)


def is_streamed(response: Response) -> bool:
    return get_framing(response) in ("sse", "ndjson", "aws")


def split_events(content_type: str, body: bytes) -> list[bytes]:
    """Return a stream's events with their framing, the last one perhaps unfinished, else the body; joined: the body."""
    kind = detect_framing(content_type, body)
    if kind == "sse":
        ends = [found.end() for found in _BLANK.finditer(body)]
    elif kind == "ndjson":
        ends = [at + 1 for at, byte in enumerate(body) if byte == ord("\n")]
    elif kind == "aws":
        ends = _list_aws_frame_ends(body)
    else:
        ends = []
    return [body[start:end] for start, end in pairwise([0, *ends, len(body)]) if end > start]


def _list_aws_frame_ends(body: bytes) -> list[int]:
    ends, at = [], 0
    while at + 12 <= len(body):
        length = int.from_bytes(body[at : at + 4])
        if length < 16:  # no frame: the rest stays in one piece
            break
        at += length
        ends.append(min(at, len(body)))
    return ends


def time_pieces(response: Response, speed: float) -> list[Chunk]:
    """Return the pieces, each with the time (microseconds) at which it is complete, at the session's speed."""
    ends = list(accumulate(len(chunk.data) for chunk in response.chunks))
    found, at = [], 0
    for data in split_events(response.mime_type, response.body):
        at += len(data)
        found.append(Chunk(scale_time_by_speed(response.chunks[bisect_left(ends, at)].offset, speed), data))
    return found


def scale_time_by_speed(offset: int, speed: float) -> int:
    return round(offset / speed) if speed else 0


def with_pieces(
    response: Response, pieces: Sequence[Chunk], speed: float, *, cut: bool = False, head: int | None = None
) -> Response:
    """Return the answer with other pieces. `cut`: without a proper end; `head`: microseconds until its head."""
    return replace(
        response,
        chunks=tuple(pieces),
        ending=Ending.CUT if cut else Ending.COMPLETE,
        head_offset=scale_time_by_speed(response.head_offset, speed) if head is None else head,
    )


ChangePieces = Callable[[CandidateCall, Response, list[Chunk], Values], Sequence[Chunk] | None]
"""Returns the pieces that are sent instead of an answer's; None if the answer is unsuitable."""


NO_VALUES: Values = {}


def build_piece_kind(
    name: str, about: str, sound: str, change: ChangePieces, *takes: Parameter, streamed: bool = False,
    cut: bool = False, reset: bool = False, sweep: Values | None = NO_VALUES,
) -> FaultKind:  # fmt: skip
    """Return a kind that sends other pieces of an answer, or (`streamed`) of a stream.

    `cut`: without a proper end; `reset`: with a reset of the connection after them.
    """

    def do(call: CandidateCall, values: Values) -> FaultyAnswer | None:
        answer = call.answer()
        if answer is None or (streamed and not is_streamed(answer)):
            return None
        pieces = change(call, answer, time_pieces(answer, call.speed), values)
        return None if pieces is None else FaultyAnswer(with_pieces(answer, pieces, call.speed, cut=cut), reset)

    return FaultKind(name, about, sound, do, takes, needs_answer=True, sweep=sweep)


def split_after_piece(pieces: Sequence[Chunk], number: float) -> tuple[list[Chunk], list[Chunk]]:
    """Split after the `number`-th piece (0: in the middle), before the end; with fewer pieces, inside the last one."""
    many = int(number) or len(pieces) // 2
    if 0 < many < len(pieces):
        return list(pieces[:many]), list(pieces[many:])
    if not pieces:
        return [], []
    last = pieces[-1]
    half = len(last.data) // 2
    return [*pieces[:-1], replace(last, data=last.data[:half])], [replace(last, data=last.data[half:])]


def split_between_pieces(pieces: Sequence[Chunk], number: float) -> tuple[list[Chunk], list[Chunk]]:
    """Split between two pieces, after the `number`-th (0: in the middle), but never after the last."""
    many = min(int(number) or len(pieces) // 2, max(0, len(pieces) - 1))
    return list(pieces[:many]), list(pieces[many:])
