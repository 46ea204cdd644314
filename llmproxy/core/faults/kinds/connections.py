"""Connections that do not come to be, break, or fail to be encrypted, and answers that come late."""

from __future__ import annotations

from collections.abc import Sequence

from llmproxy.core.faults.pieces import MICROSECONDS, after, is_streamed, scale_offset, time_pieces, with_pieces
from llmproxy.core.faults.values import CHUNK, Broken, FaultKind, FaultTarget, Needs, Parameter, Values
from llmproxy.core.traffic.interaction import Chunk
from llmproxy.protocol import Channel


def _refuse_connection(_call: FaultTarget, values: Values) -> Broken:
    return Broken(None, reset=True, shut=values["seconds"])


def _reset(_call: FaultTarget, _values: Values) -> Broken:
    return Broken(None, reset=True)


_AGAIN = "tries again on a new connection, and says after some attempts that the provider cannot be reached"
_ALL = tuple(Channel)
_BOTH = ("http", "websocket")

CONNECTIONS = (
    FaultKind(
        "refused", "connection refused: this connection is reset, and the port takes no new one for `seconds`",
        _AGAIN, _refuse_connection,
        (Parameter("seconds", 1, "seconds for which the port is closed, to everybody", 0.01, 60),), channels=_ALL,
        transports=_BOTH, shared=True, sweep=None,
    ),
    FaultKind("reset", "the connection is reset before any answer", _AGAIN, _reset, channels=_ALL, transports=_BOTH),
)  # fmt: skip


def _failure(_call: FaultTarget, _values: Values) -> Broken:
    return Broken(None)


HANDSHAKES = (
    FaultKind(
        "tls-failure",
        "the TLS handshake of an intercepted connection fails with an alert",
        "tries again, and says after some attempts that the provider cannot be reached; never goes on without TLS",
        _failure,
        transports=("tls",),
        sweep=None,
    ),
)


def _delay(pieces: Sequence[Chunk], seconds: float) -> list[Chunk]:
    return [Chunk(each.offset + round(seconds * MICROSECONDS), each.data) for each in pieces]


def _stall(call: FaultTarget, values: Values) -> Broken | None:
    if (answer := call.answer()) is None:
        return None
    sent, left = after(time_pieces(answer, call.speed), values["chunk"])
    return Broken(with_pieces(answer, [*sent, *_delay(left, values["seconds"])], call.speed))


def _slow_start(call: FaultTarget, values: Values) -> Broken | None:
    if (answer := call.answer()) is None:
        return None
    pieces = _delay(time_pieces(answer, call.speed), values["seconds"])
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
    slow = [late for number, each in enumerate(pieces) for late in _delay([each], number * values["seconds"])]
    return Broken(with_pieces(answer, slow, call.speed))


LATE = (
    FaultKind(
        "slow-start", "the first event, or the whole body, comes `seconds` late",
        "waits as long as its own limit allows, then asks again or says so", _slow_start,
        (Parameter("seconds", 10, "seconds to wait"),), Needs.ANSWER, sweep=None,
    ),
    FaultKind(
        "slow-tokens", "`seconds` pass between two events of a stream",
        "goes on reading: something comes all the time", _slow_tokens,
        (Parameter("seconds", 0.5, "seconds between two events"),), Needs.ANSWER, sweep=None,
    ),
    FaultKind(
        "stall", "nothing comes for `seconds` in the middle of the answer, then it goes on",
        "gives up at a limit of its own, and asks again or says so; never waits for ever", _stall,
        (Parameter("seconds", 30, "seconds of silence"), CHUNK), Needs.ANSWER, sweep={"seconds": 5},
    ),
)  # fmt: skip
