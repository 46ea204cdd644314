"""Answers that come late: what a client without a limit of time waits for."""

from __future__ import annotations

from collections.abc import Sequence

from llmproxy.core.faults.kinds.parameters import CHUNK
from llmproxy.core.faults.pieces import MICROSECONDS, after, is_streamed, scale_offset, time_pieces, with_pieces
from llmproxy.core.faults.values import Broken, FaultKind, FaultTarget, Needs, Parameter, Values
from llmproxy.core.traffic.interaction import Chunk


def _later(pieces: Sequence[Chunk], seconds: float) -> list[Chunk]:
    return [Chunk(each.offset + round(seconds * MICROSECONDS), each.data) for each in pieces]


def _stall(call: FaultTarget, values: Values) -> Broken | None:
    if (answer := call.answer()) is None:
        return None
    sent, left = after(time_pieces(answer, call.speed), values["chunk"])
    return Broken(with_pieces(answer, [*sent, *_later(left, values["seconds"])], call.speed))


def _slow_start(call: FaultTarget, values: Values) -> Broken | None:
    if (answer := call.answer()) is None:
        return None
    pieces = _later(time_pieces(answer, call.speed), values["seconds"])
    head = scale_offset(answer.head_offset, call.speed)
    if not is_streamed(answer):  # its head comes with it
        head += round(values["seconds"] * MICROSECONDS)
    return Broken(with_pieces(answer, pieces, call.speed, head=head))


def _slow_tokens(call: FaultTarget, values: Values) -> Broken | None:
    answer = call.answer()
    if answer is None or not is_streamed(answer):
        return None
    if len(pieces := time_pieces(answer, call.speed)) < 2:
        return None
    slow = [late for number, each in enumerate(pieces) for late in _later([each], number * values["seconds"])]
    return Broken(with_pieces(answer, slow, call.speed))


ROWS = (
    FaultKind(
        "slow-start",
        "the first event, or the whole body, comes `seconds` late",
        "waits as long as its own limit allows, then asks again or says so",
        _slow_start,
        (Parameter("seconds", 10, "seconds to wait"),),
        Needs.ANSWER,
        sweep=None,
    ),
    FaultKind(
        "slow-tokens",
        "`seconds` pass between two events of a stream",
        "goes on reading: something comes all the time",
        _slow_tokens,
        (Parameter("seconds", 0.5, "seconds between two events"),),
        Needs.ANSWER,
        sweep=None,
    ),
    FaultKind(
        "stall",
        "nothing comes for `seconds` in the middle of the answer, then it goes on",
        "gives up at a limit of its own, and asks again or says so; never waits for ever",
        _stall,
        (Parameter("seconds", 30, "seconds of silence"), CHUNK),
        Needs.ANSWER,
        sweep={"seconds": 5},
    ),
)
