"""What was said, in the words of a provider: requests and answers for formats that know the meaning only.

    messages -> (URL, header fields, body)        what is answered -> (content type, body), plain and as a stream

The smallest request that means it, and the answer as the provider's API gives it. These bytes were never on a wire.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llmproxy.core.dialects.messages import Message
from llmproxy.core.traffic.interaction import Headers

Json = dict[str, Any]
JSON: Headers = (("content-type", "application/json"),)


@dataclass(frozen=True, slots=True)
class SpokenTurn:
    model: str
    message: Message
    usage: Mapping[str, Any] = field(default_factory=dict)
    """Token counts under the names of any provider."""
    finish: str = ""
    """OpenAI's name for why it ended, or ``refusal``; empty: what fits."""

    @property
    def why(self) -> str:
        """OpenAI's finish reason."""
        if self.finish == "refusal":
            return "stop"
        return self.finish or ("tool_calls" if self.message.tool_calls else "stop")

    @property
    def id(self) -> str:
        """A part of ids, made from the content."""
        return hashlib.sha256(repr(self).encode("utf-8", "surrogatepass")).hexdigest()[:24]

    def tokens(self, *names: str) -> int | None:
        """Return the first of these counts."""
        return next((value for name in names if isinstance(value := self.usage.get(name), int)), None)


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one provider says it."""

    ask: Callable[[str, Sequence[Message], bool], tuple[str, Json]]
    """(model, messages, stream) -> URL, body."""
    answer: Callable[[SpokenTurn], Json]
    stream: Callable[[SpokenTurn], list[tuple[str, object]]]
    """Events of (name or empty, JSON value or text)."""
    error: Callable[[Json, int], Json]


def write_json(value: object) -> bytes:
    """Write JSON in one line; half a surrogate pair has no UTF-8, but JSON can escape it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


def sse(events: Sequence[tuple[str, object]]) -> bytes:
    """Write a stream of server-sent events."""
    return b"".join(
        (f"event: {name}\n".encode() if name else b"")
        + b"data: "
        + (value.encode() if isinstance(value, str) else write_json(value))
        + b"\n\n"
        for name, value in events
    )


def _parse_arguments(arguments: str) -> Any:  # noqa: ANN401 (what the arguments are)
    try:
        return json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments


def _drop_none(**values: object) -> Json:
    return {name: value for name, value in values.items() if value is not None}


# -- OpenAI's chat completions


def _openai_call(n: int, call: Any) -> Json:  # noqa: ANN401 (a ToolCall)
    return {
        "id": call.id or f"call_{n}",
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _openai_message(message: Message) -> Json:
    calls = [_openai_call(n, call) for n, call in enumerate(message.tool_calls)]
    return _drop_none(
        role=message.role,
        content=message.text or (None if calls else ""),
        tool_calls=calls or None,
        tool_call_id=message.tool_call_id,
    ) | ({"content": None} if calls and not message.text else {})


def _openai_ask(model: str, messages: Sequence[Message], stream: bool) -> tuple[str, Json]:  # noqa: FBT001 - as its kin and its callers have it
    body: Json = {"model": model, "messages": [_openai_message(each) for each in messages]}
    return "https://api.openai.com/v1/chat/completions", body | ({"stream": True} if stream else {})


def _openai_usage(said: SpokenTurn) -> Json | None:
    asked = said.tokens("prompt_tokens", "input_tokens", "promptTokenCount")
    replied = said.tokens("completion_tokens", "output_tokens", "candidatesTokenCount")
    if asked is None and replied is None:
        return None
    total = said.tokens("total_tokens", "totalTokenCount") or (asked or 0) + (replied or 0)
    details = {name: said.usage[name] for name in ("prompt_tokens_details", "completion_tokens_details")
               if isinstance(said.usage.get(name), dict)}  # fmt: skip
    return {"prompt_tokens": asked or 0, "completion_tokens": replied or 0, "total_tokens": total, **details}


def _openai_answer(said: SpokenTurn) -> Json:
    message = {**_openai_message(said.message), "role": "assistant", "refusal": None}
    if said.finish == "refusal":
        message |= {"content": None, "refusal": said.message.text}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": said.why}
    head: Json = {"id": f"chatcmpl-{said.id}", "object": "chat.completion", "created": 0, "model": said.model}
    return head | {"choices": [choice]} | _drop_none(usage=_openai_usage(said))


def _openai_stream(said: SpokenTurn) -> list[tuple[str, object]]:
    head: Json = {"id": f"chatcmpl-{said.id}", "object": "chat.completion.chunk", "created": 0, "model": said.model}

    def chunk(delta: Json, why: str | None = None) -> tuple[str, object]:
        return "", head | {"choices": [{"index": 0, "delta": delta, "finish_reason": why}]}

    events = [chunk({"role": "assistant", "content": ""})]
    if said.message.text:
        events.append(chunk({"refusal" if said.finish == "refusal" else "content": said.message.text}))
    for n, call in enumerate(said.message.tool_calls):
        events.append(chunk({"tool_calls": [{"index": n, **_openai_call(n, call)}]}))
    return [*events, chunk({}, said.why), ("", "[DONE]")]


def _openai_error(error: Json, status: int) -> Json:  # noqa: ARG001 - the same for all of its kind
    return {"error": {"message": "", "type": None, "param": None, "code": None} | error}


# -- Anthropic's messages

_ANTHROPIC_WHY = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens",
                  "content_filter": "refusal"}  # fmt: skip


def _anthropic_blocks(message: Message) -> list[Json]:
    if message.tool_call_id is not None:
        return [{"type": "tool_result", "tool_use_id": message.tool_call_id, "content": message.text}]
    blocks: list[Json] = [{"type": "text", "text": message.text}] if message.text else []
    return blocks + [
        {
            "type": "tool_use",
            "id": call.id or f"toolu_{n}",
            "name": call.name,
            "input": _parse_arguments(call.arguments),
        }
        for n, call in enumerate(message.tool_calls)
    ]


def _anthropic_ask(model: str, messages: Sequence[Message], stream: bool) -> tuple[str, Json]:  # noqa: FBT001 - as its kin and its callers have it
    system = "\n".join(each.text for each in messages if each.role == "system")
    said = [
        {
            "role": "assistant" if each.role == "assistant" else "user",
            "content": _anthropic_blocks(each) if each.tool_calls or each.tool_call_id is not None else each.text,
        }
        for each in messages
        if each.role != "system"
    ]
    body: Json = {"model": model, "max_tokens": 1024, "messages": said, **({"system": system} if system else {})}
    return "https://api.anthropic.com/v1/messages", body | ({"stream": True} if stream else {})


def _anthropic_usage(said: SpokenTurn) -> Json:
    return {
        "input_tokens": said.tokens("input_tokens", "prompt_tokens") or 0,
        "output_tokens": said.tokens("output_tokens", "completion_tokens") or 0,
    }


def _anthropic_answer(said: SpokenTurn) -> Json:
    return {
        "id": f"msg_{said.id}",
        "type": "message",
        "role": "assistant",
        "model": said.model,
        "content": _anthropic_blocks(said.message),
        "stop_reason": "refusal" if said.finish == "refusal" else _ANTHROPIC_WHY.get(said.why, said.why),
        "stop_sequence": None,
        "usage": _anthropic_usage(said),
    }


def _anthropic_stream(said: SpokenTurn) -> list[tuple[str, object]]:
    answer, usage = _anthropic_answer(said), _anthropic_usage(said)
    start = answer | {"content": [], "stop_reason": None, "usage": usage | {"output_tokens": 1}}
    events: list[Json] = [{"type": "message_start", "message": start}]
    for n, block in enumerate(answer["content"]):
        if block["type"] == "text":
            empty, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            empty = {**block, "input": {}}
            given = block["input"]  # a text only where it is no JSON: as the model wrote it
            partial = given if isinstance(given, str) else write_json(given).decode()
            delta = {"type": "input_json_delta", "partial_json": partial}
        events += [
            {"type": "content_block_start", "index": n, "content_block": empty},
            {"type": "content_block_delta", "index": n, "delta": delta},
            {"type": "content_block_stop", "index": n},
        ]
    ended = {"stop_reason": answer["stop_reason"], "stop_sequence": None}
    events += [
        {"type": "message_delta", "delta": ended, "usage": {"output_tokens": usage["output_tokens"]}},
        {"type": "message_stop"},
    ]
    return [(event["type"], event) for event in events]


_ANTHROPIC_ERRORS = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error",
                     404: "not_found_error", 429: "rate_limit_error", 529: "overloaded_error"}  # fmt: skip


def _anthropic_error(error: Json, status: int) -> Json:
    kind = _ANTHROPIC_ERRORS.get(status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.get("message", "")}}


# -- Gemini's generateContent

_GEMINI_WHY = {"stop": "STOP", "tool_calls": "STOP", "length": "MAX_TOKENS", "content_filter": "SAFETY"}


def _gemini_parts(message: Message, names: Mapping[str | None, str] | None = None) -> list[Json]:
    """Return the parts of a message; `names` are those of the functions by the ids of their calls."""
    if message.tool_call_id is not None:
        name = (names or {}).get(message.tool_call_id, message.tool_call_id)
        return [{"functionResponse": {"name": name, "response": {"result": message.text}}}]
    parts: list[Json] = [{"text": message.text}] if message.text else []
    return parts + [
        {"functionCall": {"name": c.name, "args": _parse_arguments(c.arguments)}} for c in message.tool_calls
    ]


def _gemini_ask(model: str, messages: Sequence[Message], stream: bool) -> tuple[str, Json]:  # noqa: FBT001 - as its kin and its callers have it
    how = "streamGenerateContent?alt=sse" if stream else "generateContent"
    system = [part for each in messages if each.role == "system" for part in _gemini_parts(each)]
    names = {call.id: call.name for each in messages for call in each.tool_calls}
    said = [
        {"role": "model" if each.role == "assistant" else "user", "parts": _gemini_parts(each, names)}
        for each in messages
        if each.role != "system"
    ]
    body: Json = {"contents": said, **({"systemInstruction": {"parts": system}} if system else {})}
    return f"https://generativelanguage.googleapis.com/v1beta/models/{model}:{how}", body


def _gemini_answer(said: SpokenTurn) -> Json:
    content = {"role": "model", "parts": _gemini_parts(said.message)}
    asked = said.tokens("promptTokenCount", "prompt_tokens", "input_tokens")
    replied = said.tokens("candidatesTokenCount", "completion_tokens", "output_tokens")
    counts = _drop_none(promptTokenCount=asked, candidatesTokenCount=replied)
    total = {"totalTokenCount": (asked or 0) + (replied or 0)}
    return {
        "candidates": [
            {
                "content": content,
                "finishReason": "PROHIBITED_CONTENT"
                if said.finish == "refusal"
                else _GEMINI_WHY.get(said.why, said.why),
                "index": 0,
            }
        ],
        "usageMetadata": counts | total if counts else {},
        "modelVersion": said.model,
        "responseId": said.id,
    }


def _gemini_error(error: Json, status: int) -> Json:
    return {"error": {"code": status, "message": error.get("message", ""), "status": error.get("type") or "UNKNOWN"}}


OPENAI = Dialect(_openai_ask, _openai_answer, _openai_stream, _openai_error)
ANTHROPIC = Dialect(_anthropic_ask, _anthropic_answer, _anthropic_stream, _anthropic_error)
GEMINI = Dialect(_gemini_ask, _gemini_answer, lambda said: [("", _gemini_answer(said))], _gemini_error)
_BY_MODEL = (("claude", ANTHROPIC), ("gemini", GEMINI))


def of_model(model: str) -> Dialect:
    """Return the dialect of whoever makes this model; OpenAI's, which most others speak, where that is not known."""
    return next((dialect for start, dialect in _BY_MODEL if model.startswith(start)), OPENAI)
