"""Handwritten answers in a provider's format: whole, or as the stream that the client requests.

Ids are derived from the message and the call's number, so that the same override gives the same bytes: nine letters and
digits, which every provider accepts when the client returns them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from llmproxy.core.dialects.dialect_table import (
    Json,
    ParsedRequestToAnswer,
    SpokenTurn,
    find_dialect_codec,
    get_dialect_codec_or_default,
)
from llmproxy.core.dialects.messages import Message, as_dict
from llmproxy.core.traffic.canonical_json import parse_json_or_none
from llmproxy.core.traffic.interaction import Chunk, Headers, Response

SSE: Headers = (("content-type", "text/event-stream; charset=utf-8"),)
WHOLE: Headers = (("content-type", "application/json"),)
LINES: Headers = (("content-type", "application/x-ndjson"),)
AWS: Headers = (("content-type", "application/vnd.amazon.eventstream"),)
_NONE = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


def can_build_provider_answer(operation: str) -> bool:
    codec = find_dialect_codec(operation)
    return codec is not None and codec.write is not None


def has_tool_arguments_as_text(operation: str, *, stream: bool) -> bool:
    """Return whether an answer's tool arguments are text, which may be incomplete, and not an object."""
    codec = get_dialect_codec_or_default(operation)
    return codec.text_streamed if stream else codec.text_whole


def build_provider_answer(
    operation: str, body: bytes, target: str, model: str | None, said: Message, *, stream: bool, call: int,
    finish: str = "", usage: Mapping[str, int] | None = None,
) -> Response:  # fmt: skip
    """Return the answer for the agent's `call`-th call of a model. Raises LookupError: this cannot be built."""
    if (writer := get_dialect_codec_or_default(operation).write) is None:
        raise LookupError(operation)
    seed = f"{call}\0{said!r}".encode("utf-8", "surrogatepass")
    calls = tuple(
        replace(each, id=each.id or hashlib.sha256(seed + bytes([n % 256, n // 256])).hexdigest()[:9])
        for n, each in enumerate(said.tool_calls)
    )
    answer = SpokenTurn(model or "", replace(said, tool_calls=calls), usage or _NONE, finish)
    headers, pieces = writer(answer, ParsedRequestToAnswer(as_dict(parse_json_or_none(body)), stream, target))
    return Response(200, "OK", headers, tuple(Chunk(0, piece) for piece in pieces if piece), chunked=stream)


def dump_json(value: object) -> bytes:
    """Write JSON in one line; a lone surrogate has no UTF-8 form, but JSON can escape it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


def sse(events: Sequence[tuple[str, object]]) -> bytes:
    pieces = ((name, value.encode() if isinstance(value, str) else dump_json(value)) for name, value in events)
    return b"".join(
        (f"event: {name}\n".encode() if name else b"") + b"data: " + data + b"\n\n" for name, data in pieces
    )


def parse_tool_args(text: str) -> object:
    """Return a call's arguments as a value; invalid JSON as the model's text."""
    value = parse_json_or_none(text or "{}")
    return text if value is None else value


def drop_none(**values: object) -> Json:
    return {name: value for name, value in values.items() if value is not None}


def build_event_type_predicate(*types: str) -> Callable[[Json], bool]:
    return lambda value: value.get("type") in types


def choose_error_type_by_status(table: Mapping[int, str], status: int, client: str, server: str) -> str:
    return table.get(status, server if status >= 500 else client)
