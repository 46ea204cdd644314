"""Answers with an error status, and answers with invalid JSON or wrong token counts.

An error has its provider's own body and header fields; a changed body differs from the recorded bytes in one point.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from llmproxy.core.dialects.answers import dump_json
from llmproxy.core.dialects.codecs import REASONS, FailedCallFacts, get_codec_or_default, write_provider_failure
from llmproxy.core.dialects.streams import iter_aws_event_frames, write_aws_frame
from llmproxy.core.dialects.usage_and_cost import COUNT_MEMBERS
from llmproxy.core.faults.answer_pieces import (
    build_piece_kind,
    get_framing,
    split_after_piece,
    time_pieces,
    with_pieces,
)
from llmproxy.core.faults.rules import CHUNK, Break, CandidateCall, FaultKind, FaultyAnswer, Parameter, Values
from llmproxy.core.traffic.canonical_json import parse_json
from llmproxy.core.traffic.grpc import build_failure_head
from llmproxy.core.traffic.interaction import Chunk, Response, without
from llmproxy.protocol import Channel


def fail_with(number: int) -> Break:
    def do(call: CandidateCall, values: Values) -> FaultyAnswer:
        if call.rpc:
            head = build_failure_head(number, f"{number} {REASONS[number]}", values.get("retry_after", 0))
            return FaultyAnswer(Response(200, "OK", head, ()))
        headers, body = write_provider_failure(
            call.family, number, FailedCallFacts(call.model, values.get("retry_after", 0))
        )
        return FaultyAnswer(Response(number, REASONS[number], headers, (Chunk(0, body),)))

    return do


_WAIT = Parameter("retry_after", 1, "seconds in the header retry-after")
_AFTER_PAUSE = "retries with growing pauses, and reports after some attempts that the provider failed"
_ALL = tuple(Channel)
_BOTH = ("http", "websocket")

STATUSES = (
    FaultKind(
        "http-429", "status 429, a rate limit with retry-after", "waits for the time in retry-after, then retries",
        fail_with(429), (_WAIT,), channels=_ALL, transports=_BOTH,
    ),
    FaultKind(
        "http-500", "status 500, the provider's internal error", _AFTER_PAUSE, fail_with(500), channels=_ALL,
        transports=_BOTH,
    ),
    FaultKind(
        "http-502", "status 502, a gateway's HTML page", _AFTER_PAUSE, fail_with(502), channels=_ALL, transports=_BOTH,
    ),
    FaultKind(
        "http-503", "status 503, service unavailable", _AFTER_PAUSE, fail_with(503), channels=_ALL, transports=_BOTH,
        sweep=None,
    ),
    FaultKind(
        "http-529", "status 529, the provider is "
        "overloaded", _AFTER_PAUSE, fail_with(529), channels=_ALL, transports=_BOTH,
        sweep=None,
    ),
)  # fmt: skip


Edit = Callable[[bytes], bytes]
_DATA = re.compile(rb"^data:[ \t]?([^\r\n]*)", re.MULTILINE)


def edit_piece(kind: str, piece: bytes, edit: Edit) -> bytes:
    """Return an event, or a body, with its JSON changed; the framing stays."""
    if kind == "sse":
        return _DATA.sub(lambda found: b"data: " + edit(found[1]), piece)
    if kind == "ndjson":
        text = piece.rstrip(b"\r\n")
        return edit(text) + piece[len(text) :]
    return _edit_aws_frame(piece, edit) if kind == "aws" else edit(piece)


def _edit_aws_frame(piece: bytes, edit: Edit) -> bytes:
    try:
        ((headers, payload),) = iter_aws_event_frames(piece)
    except ValueError:
        return piece
    value = parse_json(payload)
    if isinstance(value, dict) and isinstance(value.get("bytes"), str):  # an inner event of the model
        inner = edit(base64.b64decode(value["bytes"]))
        return write_aws_frame(headers, dump_json({**value, "bytes": base64.b64encode(inner).decode()}))
    return write_aws_frame(headers, edit(payload))


def _halve_text(text: bytes) -> bytes:
    return text[: max(1, len(text) // 2)] if text else text


def _malform_json(_call: CandidateCall, answer: Response, pieces: list[Chunk], values: Values) -> list[Chunk] | None:
    if not answer.body:
        return None
    if len(pieces) == 1:
        return [replace(pieces[0], data=_halve_text(pieces[0].data))]
    sent, left = split_after_piece(pieces, values["chunk"])
    broken = replace(left[0], data=edit_piece(get_framing(answer), left[0].data, _halve_text))
    return [*sent, broken, *left[1:]]


# -- usage

_AROUND = frozenset({"response", "message", "delta", "metadata", "meta"})
"""Members that may contain members with token counts."""


def _remove_usage(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {n: _remove_usage(v) if n in _AROUND else v for n, v in value.items() if n not in COUNT_MEMBERS}


def _multiply_counts(value: Any, factor: float) -> Any:
    if isinstance(value, dict):
        return {name: _multiply_counts(each, factor) for name, each in value.items()}
    return round(value * factor) if isinstance(value, int) and not isinstance(value, bool) else value


def _falsify_usage(value: Any, factor: float) -> Any:
    if not isinstance(value, dict):
        return value
    return {
        n: _multiply_counts(v, factor) if n in COUNT_MEMBERS else _falsify_usage(v, factor) if n in _AROUND else v
        for n, v in value.items()
    }


def _change_answer_json(call: CandidateCall, change: Callable[[Any], Any]) -> FaultyAnswer | None:
    if (answer := call.answer()) is None:
        return None
    found = []

    def edit(text: bytes) -> bytes:
        value = parse_json(text)
        if (changed := change(value)) == value:
            return text
        found.append(1)
        return dump_json(changed)

    kind = get_framing(answer)
    pieces = [replace(each, data=edit_piece(kind, each.data, edit)) for each in time_pieces(answer, call.speed)]
    headers = without(answer.headers, *get_codec_or_default(call.operation).count_headers)
    if not found and len(headers) == len(answer.headers):
        return None
    return FaultyAnswer(with_pieces(replace(answer, headers=headers), pieces, call.speed))


_NO_JSON = "reports that the answer is unreadable, or retries"
_COUNT = "continues: it treats the usage as unknown, not as 0, and decides nothing by it"

BODIES = (
    build_piece_kind(
        "malformed-json", "status 200 with truncated JSON; in a stream one truncated event, after `chunk` others",
        _NO_JSON, _malform_json, CHUNK,
    ),
    build_piece_kind("empty-body", "status 200 with an empty body", _NO_JSON, lambda *_: []),
    FaultKind(
        "no-usage", "the answer without token counts", _COUNT,
        lambda call, _values: _change_answer_json(call, _remove_usage), needs_answer=True,
    ),
    FaultKind(
        "wrong-usage", "the answer with wrong token counts: `factor` times the recorded ones", _COUNT,
        lambda call, values: _change_answer_json(call, lambda value: _falsify_usage(value, values["factor"])),
        (Parameter("factor", 10, "factor for the token counts", 0, 1e6),), needs_answer=True, sweep=None,
    ),
)  # fmt: skip
