"""All kinds of faults: one row of `KINDS` for each.

An error has its provider's own body and header fields; a changed body differs from the recorded bytes in one point.
Content is read from the recorded answer, changed, and written in the provider's format (`dialects.answers`). Sources:
the providers' references of their streams, read 2026-07.
"""

from __future__ import annotations

import base64
import json
import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

from llmproxy.core.dialects import dialect_table
from llmproxy.core.dialects.answer_writing import (
    build_provider_answer,
    can_build_provider_answer,
    dump_json,
    has_tool_arguments_as_text,
    sse,
)
from llmproxy.core.dialects.conversation import parse_model_response_message
from llmproxy.core.dialects.messages import Message, ToolCall
from llmproxy.core.dialects.stream_events import detect_framing, iter_aws_event_frames, write_aws_frame
from llmproxy.core.dialects.usage_and_cost import COUNT_MEMBERS, read_usage
from llmproxy.core.faults.rules import CHUNK, CallSeenByFaultRules, FaultKind, FaultParameter, FaultyAnswer, Values
from llmproxy.core.mcp_answer_replay import build_mcp_error_answer, parse_jsonrpc_body
from llmproxy.core.traffic.canonical_json import parse_json_or_none
from llmproxy.core.traffic.grpc import build_grpc_failure_headers
from llmproxy.core.traffic.interaction import Chunk, Ending, Headers, Response, remove_headers
from llmproxy.core.traffic.response_plan import scale_time_by_speed
from llmproxy.protocol import Channel

_BLANK = re.compile(rb"\r\n\r\n|\n\n|\r\r")
MICROSECONDS = 1_000_000


def detect_response_stream_format(response: Response) -> str:
    return detect_framing(response.mime_type, response.body)


def is_streamed(response: Response) -> bool:
    return detect_response_stream_format(response) in ("sse", "ndjson", "aws")


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


def split_answer_into_timed_pieces(response: Response, speed: float) -> list[Chunk]:
    """Return the pieces, each with the time (microseconds) at which it is complete, at the session's speed."""
    ends = list(accumulate(len(chunk.data) for chunk in response.chunks))
    found, at = [], 0
    for data in split_events(response.mime_type, response.body):
        at += len(data)
        found.append(Chunk(scale_time_by_speed(response.chunks[bisect_left(ends, at)].offset, speed), data))
    return found


def replace_response_chunks(
    response: Response, pieces: Sequence[Chunk], speed: float, *, cut: bool = False, head: int | None = None
) -> Response:
    """Return the answer with other pieces. `cut`: without a proper end; `head`: microseconds until its head."""
    return replace(
        response,
        chunks=tuple(pieces),
        ending=Ending.CUT if cut else Ending.COMPLETE,
        head_offset=scale_time_by_speed(response.head_offset, speed) if head is None else head,
    )


ChangePieces = Callable[[CallSeenByFaultRules, Response, list[Chunk], Values], Sequence[Chunk] | None]
"""Returns the pieces that are sent instead of an answer's; None if the answer is unsuitable."""


NO_VALUES: Values = {}


def build_piece_changing_fault_kind(
    name: str, about: str, sound: str, change: ChangePieces, *takes: FaultParameter, streamed: bool = False,
    cut: bool = False, reset: bool = False, sweep: Values | None = NO_VALUES,
) -> FaultKind:  # fmt: skip
    """Return a kind that sends other pieces; `cut`: without a proper end; `reset`: with a reset after them."""

    def do(call: CallSeenByFaultRules, values: Values) -> FaultyAnswer | None:
        if (answer := call.answer()) is None or (streamed and not is_streamed(answer)):
            return None
        if (pieces := change(call, answer, split_answer_into_timed_pieces(answer, call.speed), values)) is None:
            return None
        return FaultyAnswer(replace_response_chunks(answer, pieces, call.speed, cut=cut), reset)

    return FaultKind(name, about, sound, do, takes, needs_answer=True, sweep=sweep)


def split_after_nth_chunk(pieces: Sequence[Chunk], number: float) -> tuple[list[Chunk], list[Chunk]]:
    """Split after the `number`-th piece (0: in the middle), before the end; with fewer pieces, inside the last one."""
    many = int(number) or len(pieces) // 2
    if 0 < many < len(pieces):
        return list(pieces[:many]), list(pieces[many:])
    if not pieces:
        return [], []
    last = pieces[-1]
    half = len(last.data) // 2
    return [*pieces[:-1], replace(last, data=last.data[:half])], [replace(last, data=last.data[half:])]


def split_pieces_in_two_after_nth(pieces: Sequence[Chunk], number: float) -> tuple[list[Chunk], list[Chunk]]:
    """Split between two pieces, after the `number`-th (0: in the middle), but never after the last."""
    many = min(int(number) or len(pieces) // 2, max(0, len(pieces) - 1))
    return list(pieces[:many]), list(pieces[many:])


_ALL = tuple(Channel)
_BOTH = ("http", "websocket")


# -- statuses

_AFTER_PAUSE = "retries with growing pauses, and reports after some attempts that the provider failed"


def _build_status_kind(
    number: int, about: str, sound: str = _AFTER_PAUSE, *takes: FaultParameter, sweep: Values | None = NO_VALUES
) -> FaultKind:
    def do(call: CallSeenByFaultRules, values: Values) -> FaultyAnswer:
        wait = values.get("retry_after", 0)
        if call.rpc:
            head = build_grpc_failure_headers(number, f"{number} {dialect_table.REASONS[number]}", wait)
            return FaultyAnswer(Response(200, "OK", head, ()))
        failed = dialect_table.InjectedErrorParameters(call.model, wait)
        headers, body = dialect_table.build_provider_error_response(call.family, number, failed)
        return FaultyAnswer(Response(number, dialect_table.REASONS[number], headers, (Chunk(0, body),)))

    about = f"status {number}, {about}"
    return FaultKind(f"http-{number}", about, sound, do, takes, channels=_ALL, transports=_BOTH, sweep=sweep)


# -- connections and streams


def _write_error_event(call: CallSeenByFaultRules, answer: Response, number: int) -> bytes:
    """Return the provider's error event in the framing of `answer`, after `number` other events."""
    kind = detect_response_stream_format(answer)
    if kind == "aws":
        about = {":exception-type": "modelStreamErrorException", ":content-type": "application/json"}
        body = {"message": "The model stream was interrupted.", "originalStatusCode": 500}
        return write_aws_frame({**about, ":message-type": "exception"}, dump_json(body))
    codec = dialect_table.find_dialect_codec(call.operation)
    write = (codec and codec.error_event) or dialect_table.get_provider_dialect(call.family).error_event
    name, value = write(number)
    return dump_json(value) + b"\n" if kind == "ndjson" else sse([(name, value)])


_FIRST_BYTE = "é".encode()[:1]


def _halve_bytes(data: bytes) -> bytes:
    return data[: max(1, len(data) // 2)]


def _cut_frame(_call: CallSeenByFaultRules, _answer: Response, pieces: list[Chunk], values: Values) -> list[Chunk]:
    sent, left = split_after_nth_chunk(pieces, values["chunk"])
    return [*sent, *(replace(each, data=_halve_bytes(each.data)) for each in left[:1])]


def _cut_character(
    _call: CallSeenByFaultRules, answer: Response, pieces: list[Chunk], values: Values
) -> list[Chunk] | None:
    if not answer.body:
        return None
    sent, left = split_after_nth_chunk(pieces, values["chunk"])
    wide = ((n, at) for n, each in enumerate(left) for at, byte in enumerate(each.data) if byte >= 0xC0)
    found = None if detect_response_stream_format(answer) == "aws" else next(wide, None)  # first multi-byte character
    if found is None:  # only ASCII: cut inside a character that was not there
        return [*sent, replace(left[0], data=_halve_bytes(left[0].data) + _FIRST_BYTE)]
    number, at = found
    return [*sent, *left[:number], replace(left[number], data=left[number].data[: at + 1])]


def _send_error_event(call: CallSeenByFaultRules, answer: Response, pieces: list[Chunk], values: Values) -> list[Chunk]:
    sent, left = split_pieces_in_two_after_nth(pieces, values["chunk"])
    return [*sent, Chunk(left[0].offset if left else 0, _write_error_event(call, answer, len(sent)))]


def _delay(piece: Chunk, seconds: float) -> Chunk:
    return Chunk(piece.offset + round(seconds * MICROSECONDS), piece.data)


def _stall_stream(_call: CallSeenByFaultRules, _answer: Response, pieces: list[Chunk], values: Values) -> list[Chunk]:
    sent, left = split_after_nth_chunk(pieces, values["chunk"])
    return [*sent, *(_delay(each, values["seconds"]) for each in left)]


def _delay_start(call: CallSeenByFaultRules, values: Values) -> FaultyAnswer | None:
    if (answer := call.answer()) is None:
        return None
    pieces = [_delay(each, values["seconds"]) for each in split_answer_into_timed_pieces(answer, call.speed)]
    head = scale_time_by_speed(answer.head_offset, call.speed)
    if not is_streamed(answer):  # the head is sent with the body
        head += round(values["seconds"] * MICROSECONDS)
    return FaultyAnswer(replace_response_chunks(answer, pieces, call.speed, head=head))


# -- bodies

_DATA = re.compile(rb"^data:[ \t]?([^\r\n]*)", re.MULTILINE)


def _edit_piece(kind: str, piece: bytes, edit: Callable[[bytes], bytes]) -> bytes:
    if kind == "sse":
        return _DATA.sub(lambda found: b"data: " + edit(found[1]), piece)
    if kind == "ndjson":
        text = piece.rstrip(b"\r\n")
        return edit(text) + piece[len(text) :]
    return _edit_aws_frame(piece, edit) if kind == "aws" else edit(piece)


def _edit_aws_frame(piece: bytes, edit: Callable[[bytes], bytes]) -> bytes:
    try:
        ((headers, payload),) = iter_aws_event_frames(piece)
    except ValueError:
        return piece
    value = parse_json_or_none(payload)
    if isinstance(value, dict) and isinstance(value.get("bytes"), str):  # an inner event of the model
        inner = edit(base64.b64decode(value["bytes"]))
        return write_aws_frame(headers, dump_json({**value, "bytes": base64.b64encode(inner).decode()}))
    return write_aws_frame(headers, edit(payload))


def _malform_json(
    _call: CallSeenByFaultRules, answer: Response, pieces: list[Chunk], values: Values
) -> list[Chunk] | None:
    if not answer.body:
        return None
    if len(pieces) == 1:
        return [replace(pieces[0], data=_halve_bytes(pieces[0].data))]
    sent, left = split_after_nth_chunk(pieces, values["chunk"])
    broken = replace(left[0], data=_edit_piece(detect_response_stream_format(answer), left[0].data, _halve_bytes))
    return [*sent, broken, *left[1:]]


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


def _change_answer_json(call: CallSeenByFaultRules, change: Callable[[Any], Any]) -> FaultyAnswer | None:
    if (answer := call.answer()) is None:
        return None
    found = []

    def edit(text: bytes) -> bytes:
        value = parse_json_or_none(text)
        if (changed := change(value)) == value:
            return text
        found.append(1)
        return dump_json(changed)

    kind = detect_response_stream_format(answer)
    pieces = [
        replace(each, data=_edit_piece(kind, each.data, edit))
        for each in split_answer_into_timed_pieces(answer, call.speed)
    ]
    headers = remove_headers(answer.headers, *dialect_table.get_dialect_codec_or_default(call.operation).count_headers)
    if not found and len(headers) == len(answer.headers):
        return None
    return FaultyAnswer(replace_response_chunks(replace(answer, headers=headers), pieces, call.speed))


# -- complete but bad answers of a model, or of its provider

_Change = Callable[[Message, CallSeenByFaultRules], tuple[Message, str] | None]
"""Returns the new content and OpenAI's finish reason (empty: the matching one); None if nothing can be changed."""


def _build_content_kind(name: str, about: str, sound: str, change: _Change) -> FaultKind:
    def do(call: CallSeenByFaultRules, _values: Values) -> FaultyAnswer | None:
        answer = call.answer()
        if answer is None or not 200 <= answer.status < 300 or not can_build_provider_answer(call.operation):
            return None
        said = parse_model_response_message(call.operation, answer)
        changed = None if said is None else change(said, call)
        if changed is None:
            return None
        used = read_usage(call.family, call.operation, answer.mime_type, answer.body, answer.headers)
        tokens = {"prompt_tokens": used.input or 0, "completion_tokens": used.output or 0}
        message, finish = changed
        made = build_provider_answer(
            call.operation, call.body, call.target, call.model, message, stream=call.stream, call=call.nth,
            finish=finish, usage={**tokens, "total_tokens": sum(tokens.values())},
        )  # fmt: skip
        headers = (*remove_headers(answer.headers, "content-type"), ("content-type", made.mime_type))
        last = split_answer_into_timed_pieces(answer, call.speed)
        at = last[-1].offset if last else 0
        pieces = [Chunk(at, each.data) for each in made.chunks]
        made = replace(made, headers=headers, head_offset=answer.head_offset)
        return FaultyAnswer(replace_response_chunks(made, pieces, call.speed))

    return FaultKind(name, about, sound, do, needs_answer=True, again=False)


def _halve(text: str) -> str:
    return text[: (len(text) + 1) // 2]


def _cut_at_length(said: Message, call: CallSeenByFaultRules) -> tuple[Message, str] | None:
    if said.text:
        return Message("assistant", _halve(said.text)), "length"
    cut = _truncate_arguments(said, call)
    return None if cut is None else (cut[0], "length")


def _list_agent_calls(said: Message) -> tuple[ToolCall, ...]:
    return tuple(call for call in said.tool_calls if not call.hosted)


def _truncate_arguments(said: Message, call: CallSeenByFaultRules) -> tuple[Message, str] | None:
    if not (calls := _list_agent_calls(said)):
        return None
    last = calls[-1]
    cut = _halve if has_tool_arguments_as_text(call.operation, stream=call.stream) else _drop_last_argument
    return replace(said, tool_calls=(*calls[:-1], replace(last, arguments=cut(last.arguments)))), ""


def _drop_last_argument(arguments: str) -> str:
    """Return arguments without the last one, for dialects that send an object, whose text cannot be cut."""
    value = parse_json_or_none(arguments)
    return dump_json(dict(list(value.items())[:-1])).decode() if isinstance(value, dict) else "{}"


def _duplicate_call(said: Message, _call: CallSeenByFaultRules) -> tuple[Message, str] | None:
    calls = _list_agent_calls(said)
    return (replace(said, tool_calls=(*calls, replace(calls[-1], id=None))), "") if calls else None


def _misname_tool(said: Message, _call: CallSeenByFaultRules) -> tuple[Message, str] | None:
    if not (calls := _list_agent_calls(said)):
        return None
    return replace(said, tool_calls=(replace(calls[0], name=f"{calls[0].name}_v2"), *calls[1:])), ""


# -- MCP servers

_JSON: Headers = (("content-type", "application/json"),)
_INTERNAL_ERROR = -32603
_SESSION_GONE = -32001
"""Code that servers of the official SDKs use for an unknown session."""


def _build_mcp_kind(
    name: str, about: str, sound: str,
    answer: Callable[[dict[str, Any], CallSeenByFaultRules, Values], FaultyAnswer | None], *takes: FaultParameter,
    sweep: Values = NO_VALUES,
) -> FaultKind:  # fmt: skip
    """Return a kind for requests (`asked`) that expect an answer; no server is called."""

    def do(call: CallSeenByFaultRules, values: Values) -> FaultyAnswer | None:
        asked = parse_jsonrpc_body(call.body)
        waits = isinstance(asked.get("method"), str) and asked.get("id") is not None
        return answer(asked, call, values) if waits else None

    return FaultKind(name, about, sound, do, takes, channels=(Channel.MCP,), transports=("http", "stdio"), sweep=sweep)


def _answer_message(message: dict[str, Any], status: int = 200, reason: str = "OK", *, late: float = 0) -> FaultyAnswer:
    offset = round(late * MICROSECONDS)
    chunks = (Chunk(offset, json.dumps(message).encode()),)
    return FaultyAnswer(Response(status, reason, _JSON, chunks, head_offset=offset))


def _build_error(asked: dict[str, Any], code: int, text: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": asked["id"], "error": {"code": code, "message": text}}


def _answer_tool_error(asked: dict[str, Any], call: CallSeenByFaultRules, _values: Values) -> FaultyAnswer | None:
    if asked["method"] != "tools/call":
        return None
    name = (*call.tools(), "it")[0]
    text = f"Error executing tool {name}: the service behind it is unavailable"
    return _answer_message(build_mcp_error_answer(call.body, text))


def _lose_session(asked: dict[str, Any], call: CallSeenByFaultRules, _values: Values) -> FaultyAnswer:
    if call.transport == "http" and call.in_session:  # as after a restart, which loses all sessions
        return _answer_message(_build_error(asked, _SESSION_GONE, "Session not found"), 404, "Not Found")
    return FaultyAnswer(None, reset=True)


_WHOLE = "does not use the partial answer: retries, or reports that the answer was cut"
_AGAIN = "retries on a new connection, and reports after some attempts that the provider is unreachable"
_NO_JSON = "reports that the answer is unreadable, or retries"
_COUNT = "continues: it treats the usage as unknown, not as 0, and decides nothing by it"
_ERROR_RESULT = "returns an error to the model as the tool's result, retries, or reports it; does not run the tool"
_FAILS = "returns an error to the model as the tool's result, or retries if that is harmless; does not exit"

_ROWS = (
    _build_status_kind(
        429, "a rate limit with retry-after", "waits for the time in retry-after, then retries",
        FaultParameter("retry_after", 1, "seconds in the header retry-after"),
    ),
    _build_status_kind(500, "the provider's internal error"),
    _build_status_kind(502, "a gateway's HTML page"),
    _build_status_kind(503, "service unavailable", sweep=None),
    _build_status_kind(529, "the provider is overloaded", sweep=None),
    FaultKind(
        "refused", "the connection is reset, and the port refuses new connections for `seconds`",
        _AGAIN, lambda _call, values: FaultyAnswer(None, reset=True, shut=values["seconds"]),
        (FaultParameter("seconds", 1, "seconds for which the port is closed, for all clients", 0.01, 60),),
        channels=_ALL, transports=_BOTH, shared=True, sweep=None,
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
        (FaultParameter("seconds", 10, "seconds to wait"),), needs_answer=True, sweep=None,
    ),
    build_piece_changing_fault_kind(
        "slow-tokens", "a pause of `seconds` before each event of a stream but the first",
        "continues to read, because data still arrives",
        lambda _call, _answer, pieces, values:
            [_delay(each, n * values["seconds"]) for n, each in enumerate(pieces)] if len(pieces) > 1 else None,
        FaultParameter("seconds", 0.5, "seconds between two events"), streamed=True, sweep=None,
    ),
    build_piece_changing_fault_kind(
        "stall", "the answer pauses for `seconds` after `chunk` events, then continues",
        "stops at its own timeout, and retries or reports it; never waits forever", _stall_stream,
        FaultParameter("seconds", 30, "seconds of silence"), CHUNK, sweep={"seconds": 5},
    ),
    build_piece_changing_fault_kind(
        "reset-after", "the connection is reset after `chunk` events of the answer", _WHOLE,
        lambda _call, _answer, pieces, values: split_after_nth_chunk(pieces, values["chunk"])[0], CHUNK, cut=True,
        reset=True,
    ),
    build_piece_changing_fault_kind(
        "cut-frame", "the connection ends in the middle of an event, after `chunk` complete events", _WHOLE, _cut_frame,
        CHUNK, cut=True,
    ),
    build_piece_changing_fault_kind(
        "cut-character", "the connection ends inside the first multi-byte character after `chunk` events",
        _WHOLE, _cut_character, CHUNK, cut=True,
    ),
    build_piece_changing_fault_kind(
        "early-end", "a stream ends normally after `chunk` events, without the provider's last ([DONE], message_stop)",
        "notices that the end is missing, and does not use the partial answer",
        lambda _, __, pieces, values: split_pieces_in_two_after_nth(pieces, values["chunk"])[0], CHUNK, streamed=True,
    ),
    build_piece_changing_fault_kind(
        "error-event", "a stream ends after `chunk` events, with the provider's own error event",
        "does not use the partial answer: retries, or reports the provider's error", _send_error_event, CHUNK,
        streamed=True,
    ),
    build_piece_changing_fault_kind(
        "malformed-json", "status 200 with truncated JSON; in a stream one truncated event, after `chunk` others",
        _NO_JSON, _malform_json, CHUNK,
    ),
    build_piece_changing_fault_kind("empty-body", "status 200 with an empty body", _NO_JSON, lambda *_: []),
    FaultKind(
        "no-usage", "the answer without token counts", _COUNT,
        lambda call, _values: _change_answer_json(call, _remove_usage), needs_answer=True,
    ),
    FaultKind(
        "wrong-usage", "the answer with wrong token counts: `factor` times the recorded ones", _COUNT,
        lambda call, values: _change_answer_json(call, lambda value: _falsify_usage(value, values["factor"])),
        (FaultParameter("factor", 10, "factor for the token counts", 0, 1e6),), needs_answer=True, sweep=None,
    ),
    _build_content_kind(
        "empty-answer", "an answer without text and without tool calls", "retries, or reports that the answer is empty",
        lambda _said, _call: (Message("assistant", ""), ""),
    ),
    _build_content_kind(
        "length", "half of the answer, with the finish reason of a token limit",
        "does not use the half as an answer: asks for the rest, retries, or reports the limit", _cut_at_length,
    ),
    _build_content_kind(
        "content-filter", "half of the answer, with the finish reason of the provider's content filter",
        "does not show the half as an answer; reports the content filter",
        lambda said, _call: (Message("assistant", _halve(said.text)), "content_filter"),
    ),
    _build_content_kind(
        "refusal", "the model refuses, in the provider's format", "reports a refusal, not a result",
        lambda _said, _call: (Message("assistant", "I'm sorry, but I can't help with that."), "refusal"),
    ),
    _build_content_kind(
        "truncated-arguments", "a tool call with truncated arguments", _ERROR_RESULT, _truncate_arguments,
    ),
    _build_content_kind(
        "duplicate-call", "the same tool call twice in one answer",
        "runs the call once, unless a second run is harmless", _duplicate_call,
    ),
    _build_content_kind(
        "unknown-tool", "a call of a tool that does not exist: the name with _v2", _ERROR_RESULT, _misname_tool,
    ),
    _build_mcp_kind(
        "mcp-error", "the MCP server answers with the JSON-RPC error `code`", _FAILS,
        lambda asked, _call, values: _answer_message(_build_error(asked, int(values["code"]), "Internal error")),
        FaultParameter("code", _INTERNAL_ERROR, "the error's code", -32768, -32000, whole=True),
    ),
    _build_mcp_kind(
        "mcp-tool-error", "the tool fails: a result with isError",
        "lets its model read the error and continue; does not exit", _answer_tool_error,
    ),
    _build_mcp_kind(
        "mcp-silent", "the MCP server answers only after `seconds`, with a JSON-RPC error",
        "stops at its own timeout, and lets its model read that; never waits forever",
        lambda asked, _call, values: _answer_message(
            _build_error(asked, _INTERNAL_ERROR, "Request timed out"), late=values["seconds"]
        ),
        FaultParameter("seconds", 60, "seconds of silence"), sweep={"seconds": 5},
    ),
    _build_mcp_kind(
        "mcp-gone",
        "the MCP server is gone: over stdio it exits; over HTTP the session is unknown (404), or without a session the "
        "connection is reset",
        "restarts the server or the session, and retries; or lets its model read that the tool is gone",
        _lose_session,
    ),
)  # fmt: skip

KINDS: Mapping[str, FaultKind] = {kind.name: kind for kind in _ROWS}
"""Kinds by name, in the order of display."""
