"""Connections that fail or break, delayed answers, and streams that are truncated or end in an error event.

Sources: the providers' references of their streams, read 2026-07.
"""

from __future__ import annotations

from dataclasses import replace

from llmproxy.core.dialects.answers import dump_json, sse
from llmproxy.core.dialects.codecs import find_operation_codec, get_dialect
from llmproxy.core.dialects.streams import write_aws_frame
from llmproxy.core.faults.answer_pieces import (
    MICROSECONDS,
    build_piece_kind,
    get_framing,
    is_streamed,
    scale_time_by_speed,
    split_after_piece,
    split_between_pieces,
    time_pieces,
    with_pieces,
)
from llmproxy.core.faults.rules import CHUNK, CandidateCall, FaultKind, FaultyAnswer, Parameter, Values
from llmproxy.core.traffic.interaction import Chunk, Response
from llmproxy.protocol import Channel


def write_error_event(call: CandidateCall, answer: Response, number: int) -> bytes:
    """Return the provider's error event in the framing of `answer`, after `number` other events."""
    kind = get_framing(answer)
    if kind == "aws":
        about = {":exception-type": "modelStreamErrorException", ":content-type": "application/json"}
        body = {"message": "The model stream was interrupted.", "originalStatusCode": 500}
        return write_aws_frame({**about, ":message-type": "exception"}, dump_json(body))
    codec = find_operation_codec(call.operation)
    write = (codec and codec.error_event) or get_dialect(call.family).error_event
    name, value = write(number)
    return dump_json(value) + b"\n" if kind == "ndjson" else sse([(name, value)])


FIRST_BYTE = "é".encode()[:1]


def _cut_frame(_call: CandidateCall, _answer: Response, pieces: list[Chunk], values: Values) -> list[Chunk]:
    sent, left = split_after_piece(pieces, values["chunk"])
    return [*sent, *(replace(each, data=each.data[: max(1, len(each.data) // 2)]) for each in left[:1])]


def _cut_character(_call: CandidateCall, answer: Response, pieces: list[Chunk], values: Values) -> list[Chunk] | None:
    if not answer.body:
        return None
    sent, left = split_after_piece(pieces, values["chunk"])
    wide = ((n, at) for n, each in enumerate(left) for at, byte in enumerate(each.data) if byte >= 0xC0)
    found = None if get_framing(answer) == "aws" else next(wide, None)  # the first multi-byte character
    if found is None:  # only ASCII: cut inside a character that was not there
        half = left[0].data[: max(1, len(left[0].data) // 2)]
        return [*sent, replace(left[0], data=half + FIRST_BYTE)]
    number, at = found
    return [*sent, *left[:number], replace(left[number], data=left[number].data[: at + 1])]


def _send_error_event(call: CandidateCall, answer: Response, pieces: list[Chunk], values: Values) -> list[Chunk]:
    sent, left = split_between_pieces(pieces, values["chunk"])
    return [*sent, Chunk(left[0].offset if left else 0, write_error_event(call, answer, len(sent)))]


def _delay(piece: Chunk, seconds: float) -> Chunk:
    return Chunk(piece.offset + round(seconds * MICROSECONDS), piece.data)


def _stall_stream(_call: CandidateCall, _answer: Response, pieces: list[Chunk], values: Values) -> list[Chunk]:
    sent, left = split_after_piece(pieces, values["chunk"])
    return [*sent, *(_delay(each, values["seconds"]) for each in left)]


def _delay_start(call: CandidateCall, values: Values) -> FaultyAnswer | None:
    if (answer := call.answer()) is None:
        return None
    pieces = [_delay(each, values["seconds"]) for each in time_pieces(answer, call.speed)]
    head = scale_time_by_speed(answer.head_offset, call.speed)
    if not is_streamed(answer):  # the head is sent with the body
        head += round(values["seconds"] * MICROSECONDS)
    return FaultyAnswer(with_pieces(answer, pieces, call.speed, head=head))


def _pause_between_events(
    _call: CandidateCall, _answer: Response, pieces: list[Chunk], values: Values
) -> list[Chunk] | None:
    return [_delay(each, n * values["seconds"]) for n, each in enumerate(pieces)] if len(pieces) > 1 else None


_WHOLE = "does not use the partial answer: retries, or reports that the answer was cut"
_AGAIN = "retries on a new connection, and reports after some attempts that the provider is unreachable"
_ALL = tuple(Channel)
_BOTH = ("http", "websocket")

ROWS = (
    FaultKind(
        "refused", "the connection is reset, and the port refuses new connections for `seconds`",
        _AGAIN, lambda _call, values: FaultyAnswer(None, reset=True, shut=values["seconds"]),
        (Parameter("seconds", 1, "seconds for which the port is closed, for all clients", 0.01, 60),), channels=_ALL,
        transports=_BOTH, shared=True, sweep=None,
    ),
    FaultKind(
        "reset", "the connection is reset before any answer", _AGAIN,
        lambda _call, _values: FaultyAnswer(None, reset=True),
        channels=_ALL, transports=_BOTH,
    ),
    FaultKind(
        "tls-failure", "the TLS handshake of an intercepted connection fails with an alert",
        "retries, and reports after some attempts that the provider is unreachable; never continues without TLS",
        lambda _call, _values: FaultyAnswer(None), transports=("tls",), sweep=None,
    ),
    FaultKind(
        "slow-start", "the first event, or the whole body, is `seconds` late",
        "waits until its own timeout, then retries or reports the timeout", _delay_start,
        (Parameter("seconds", 10, "seconds to wait"),), needs_answer=True, sweep=None,
    ),
    build_piece_kind(
        "slow-tokens", "a pause of `seconds` before each event of a stream but the first",
        "continues to read, because data still arrives", _pause_between_events,
        Parameter("seconds", 0.5, "seconds between two events"), streamed=True, sweep=None,
    ),
    build_piece_kind(
        "stall", "the answer pauses for `seconds` after `chunk` events, then continues",
        "stops at its own timeout, and retries or reports it; never waits forever", _stall_stream,
        Parameter("seconds", 30, "seconds of silence"), CHUNK, sweep={"seconds": 5},
    ),
    build_piece_kind(
        "reset-after", "the connection is reset after `chunk` events of the answer", _WHOLE,
        lambda _call, _answer, pieces, values: split_after_piece(pieces, values["chunk"])[0], CHUNK, cut=True,
        reset=True,
    ),
    build_piece_kind(
        "cut-frame", "the connection ends in the middle of an event, after `chunk` complete events", _WHOLE, _cut_frame,
        CHUNK, cut=True,
    ),
    build_piece_kind(
        "cut-character", "the connection ends inside the first multi-byte character after `chunk` events",
        _WHOLE, _cut_character, CHUNK, cut=True,
    ),
    build_piece_kind(
        "early-end", "a stream ends normally after `chunk` events, without the provider's last ([DONE], message_stop)",
        "notices that the end is missing, and does not use the partial answer",
        lambda _call, _answer, pieces, values: split_between_pieces(pieces, values["chunk"])[0], CHUNK, streamed=True,
    ),
    build_piece_kind(
        "error-event", "a stream ends after `chunk` events, with the provider's own error event",
        "does not use the partial answer: retries, or reports the provider's error", _send_error_event, CHUNK,
        streamed=True,
    ),
)  # fmt: skip
