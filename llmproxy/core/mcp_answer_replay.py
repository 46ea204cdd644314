"""Replay of recorded MCP messages (the agent's tools) to another client in another run. Keys: `core.keys.mcp`.

A request without a recording is answered so that the client's user can read the proxy's text, mostly with status 200
(`build_mcp_refusal_response`): after a 404 clients start a new session (eight times). A recorded answer gets the
present JSON-RPC id and progress token; all else stays. It is sent in parts: a server may send requests while it answers
(sampling, elicitation, roots), and the next part is sent only after the client answered as recorded.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import Enum, auto
from typing import Any, NamedTuple

from llmproxy.core.dialects.stream_events import (
    ByteReplacement,
    JsonValueSpanInBody,
    apply_edits_to_chunks,
    split_body_into_json_values,
)
from llmproxy.core.keys.mcp import ANSWER, DISCOVER, END, NOTIFICATION, STREAM
from llmproxy.core.traffic.canonical_json import parse_json_or_none
from llmproxy.core.traffic.interaction import Headers, Interaction, Response, remove_headers

_SPACE = re.compile(r"(?:\xef\xbb\xbf)?[ \t\r\n]*")
_LINE_END = re.compile(rb"\r\n?|\n")
_EMPTY_LINE = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_decoder = json.JSONDecoder()


def list_messages_in_mcp_response(response: Response) -> list[JsonValueSpanInBody]:
    return split_body_into_json_values(response.mime_type, response.body)


def adapt_mcp_answer_ids(response: Response, recorded: bytes, asked: bytes) -> Response:
    """Return the answer to `recorded` adapted to the request `asked`; the same object if nothing changes."""
    was, now = parse_jsonrpc_body(recorded), parse_jsonrpc_body(asked)
    if was.get("id") == now.get("id") and _token(was) == _token(now) and type(was.get("id")) is type(now.get("id")):
        return response
    edits = [edit for part in list_messages_in_mcp_response(response) for edit in _list_edits(part, was, now)]
    if not edits:
        return response
    chunks = apply_edits_to_chunks(response.chunks, edits)
    return replace(response, headers=remove_headers(response.headers, "content-length"), chunks=chunks)


def answers(response: Response, asked: bytes) -> bool:
    id_ = parse_jsonrpc_body(asked).get("id")
    found = (part.value for part in list_messages_in_mcp_response(response) if isinstance(part.value, dict))
    return id_ is not None and any("method" not in each and each.get("id") == id_ for each in found)


def parse_jsonrpc_body(body: bytes) -> dict[str, Any]:
    return value if isinstance(value := parse_json_or_none(body), dict) else {}


def _read_meta(message: dict[str, Any]) -> dict[str, Any]:
    params = message.get("params")
    meta = params.get("_meta") if isinstance(params, dict) else None
    return meta if isinstance(meta, dict) else {}


def _token(message: dict[str, Any]) -> object:
    return _read_meta(message).get("progressToken")


def _list_edits(part: JsonValueSpanInBody, was: dict[str, Any], now: dict[str, Any]) -> Iterator[ByteReplacement]:
    if not isinstance(message := part.value, dict):
        return
    if "method" not in message:
        if "id" in message and message["id"] == was.get("id") and "id" in now:
            yield from _list_member_edits(part, ("id",), now["id"])
    elif message["method"] == "notifications/progress" and isinstance(message.get("params"), dict):
        token = _token(now)
        if token is not None and message["params"].get("progressToken") == _token(was):
            yield from _list_member_edits(part, ("params", "progressToken"), token)


def _list_member_edits(part: JsonValueSpanInBody, path: tuple[str, ...], value: object) -> Iterator[ByteReplacement]:
    if found := find_member_span(part.data.decode("latin-1"), path):  # so that its positions are those of the bytes
        yield ByteReplacement(part.start + found[0], part.start + found[1], json.dumps(value).encode())


def find_member_span(text: str, path: tuple[str, ...], at: int = 0) -> tuple[int, int] | None:
    """Return (start, end) of a member's value in JSON text, of the last one if a name repeats; None if absent."""
    found: tuple[int, int] | None = None
    at = _skip_space(text, at)
    if text[at : at + 1] != "{":
        return None
    at = _skip_space(text, at + 1)
    while text[at : at + 1] not in ("}", ""):
        name, at = _decoder.raw_decode(text, at)
        begin = _skip_space(text, _skip_space(text, at) + 1)
        _, end = _decoder.raw_decode(text, begin)
        if name == path[0]:
            found = (begin, end) if len(path) == 1 else find_member_span(text, path[1:], begin)
        at = _skip_space(text, end)
        at = _skip_space(text, at + 1) if text[at : at + 1] == "," else at
    return found


def _skip_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


MICROSECONDS = 1_000_000
LAST_CHUNK = b"0\r\n\r\n"


class McpAnswerPrerequisiteKind(Enum):
    NOTHING = auto()
    ANSWER = auto()
    """The client answered the server's request with the id `McpAnswerPartAfterCondition.what`."""
    SERVED = auto()
    """The interaction `McpAnswerPartAfterCondition.what` was served in this run."""
    FOR_EVER = auto()
    """The recorded client left it open."""
    BROKEN = auto()
    """The server broke off: no answer can follow."""


class McpAnswerPartAfterCondition(NamedTuple):
    wait: McpAnswerPrerequisiteKind
    what: object
    data: bytes


def split_at_server_requests(response: Response) -> list[McpAnswerPartAfterCondition] | None:
    found = ((part.end, part.value) for part in list_messages_in_mcp_response(response) if isinstance(part.value, dict))
    asked = [(end, message["id"]) for end, message in found if {"method", "id"} <= message.keys()]
    if not asked:
        return None
    body = response.body
    turns, begin, wait, what = [], 0, McpAnswerPrerequisiteKind.NOTHING, None
    for said, id_ in asked:
        end = _find_event_end(body, said)
        turns.append(McpAnswerPartAfterCondition(wait, what, body[begin:end]))
        begin, wait, what = end, McpAnswerPrerequisiteKind.ANSWER, id_
    return [*turns, McpAnswerPartAfterCondition(wait, what, body[begin:])]


def split_mcp_stream_at_prior_calls(
    response: Response, started_at: float, messages: Sequence[tuple[float, int]]
) -> list[McpAnswerPartAfterCondition]:
    """Return a standalone stream, left open, in parts after `messages` (Unix seconds, interaction)."""
    times = [at for at, _ in messages]
    turns = []
    for chunk in response.chunks:
        before = bisect_right(times, started_at + chunk.offset / MICROSECONDS)
        wait = McpAnswerPrerequisiteKind.SERVED if before else McpAnswerPrerequisiteKind.NOTHING
        turns.append(McpAnswerPartAfterCondition(wait, messages[before - 1][1] if before else None, chunk.data))
    return [*turns, McpAnswerPartAfterCondition(McpAnswerPrerequisiteKind.FOR_EVER, None, b"")]


def _find_event_end(body: bytes, at: int) -> int:
    """Return the end of the event that contains a message's end: an empty line, or a line's end in other framings."""
    found = _EMPTY_LINE.search(body, at) or _LINE_END.search(body, at)
    return found.end() if found else len(body)


def encode_sse_event(message: dict[str, object]) -> bytes:
    return b"event: message\ndata: " + json.dumps(message).encode() + b"\n\n"


def frame_http_chunk(data: bytes, *, chunked: bool) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data) if chunked and data else data


NOT_RECORDED = -32020
"""The proxy's error code, from the range that JSON-RPC reserves for servers."""
NO_METHOD = -32601
_STATELESS = "io.modelcontextprotocol/protocolVersion"
"""Member of `_meta` in each request of the stateless protocol version, whose results name their type."""


def may_ignore_unrecorded_message(operation: str) -> bool:
    """Return whether an unrecorded message may stay unanswered because nothing in the run depends on it."""
    return operation in (STREAM, END, DISCOVER) or operation.startswith(NOTIFICATION)


def build_mcp_refusal_response(operation: str, body: bytes, text: str) -> tuple[int, Headers, bytes]:
    if operation == STREAM:
        return 405, (("allow", "POST"),), b""
    if operation == END:
        return 200, (), b""
    if operation == ANSWER or operation.startswith(NOTIFICATION):
        return 202, (), b""
    return 200, (("content-type", "application/json"),), json.dumps(build_mcp_error_answer(body, text)).encode()


def build_mcp_error_answer(body: bytes, text: str) -> dict[str, Any]:
    asked = parse_jsonrpc_body(body)
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    said: dict[str, Any] = {"jsonrpc": "2.0", "id": asked.get("id")}
    if asked.get("method") == "tools/call":
        kind = {"resultType": "complete"} if _STATELESS in _read_meta(asked) else {}
        return {**said, "result": {**kind, "content": [{"type": "text", "text": text}], "isError": True}}
    code = NO_METHOD if asked.get("method") == "server/discover" else NOT_RECORDED
    return {**said, "error": {"code": code, "message": text}}


class ToolCallWithResult(NamedTuple):
    tool: str
    arguments: str
    """JSON."""
    result: str
    """Its texts; for other content its type. Empty if there was no result."""
    failed: bool


def read_mcp_call_with_result(one: Interaction) -> ToolCallWithResult | None:
    try:
        if not isinstance(asked := json.loads(one.request.body), dict) or asked.get("method") != "tools/call":
            return None
        params = asked["params"]
        messages = [part.value for part in list_messages_in_mcp_response(one.response)]
        told = (m for m in reversed(messages) if "method" not in m and m.get("id") == asked.get("id"))
        arguments = json.dumps(params.get("arguments", {}), ensure_ascii=False)
        return ToolCallWithResult(str(params["name"]), arguments, *_read_result(next(told, {})))
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return None


def read_mcp_called_tool(request: bytes) -> tuple[str, ...]:
    try:
        asked = json.loads(request)
        return (str(asked["params"]["name"]),) if asked["method"] == "tools/call" else ()
    except (ValueError, RecursionError, KeyError, TypeError):
        return ()


def _read_result(message: dict[str, Any]) -> tuple[str, bool]:
    if isinstance(error := message.get("error"), dict):
        return str(error.get("message", "")), True
    result = message.get("result") or {}
    content = result.get("content") or []
    shown = [each["text"] if each.get("type") == "text" else f"[{each.get('type')}]" for each in content]
    if not shown and "structuredContent" in result:
        shown = [json.dumps(result["structuredContent"], ensure_ascii=False)]
    return "\n".join(map(str, shown)), result.get("isError") is True
