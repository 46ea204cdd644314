"""An answer made by hand, in the words of the provider that was asked: whole, or as the stream that the client wants.

    operation, request, what is said -> Response

It used no tokens, and says so where the dialect must say something. Ids are made from what is said and from the call's
number, so that the same override gives the same bytes: nine letters and digits, which every provider takes when the
client sends them back.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from llmproxy.core.dialects.aws_eventstream import write_frame
from llmproxy.core.dialects.callers import NAMESPACE
from llmproxy.core.dialects.messages import Message, as_dict
from llmproxy.core.dialects.speak import ANTHROPIC, GEMINI, OPENAI, SpokenTurn, sse, write_json
from llmproxy.core.dialects.streams import parse_json
from llmproxy.core.traffic.interaction import Chunk, Headers, Response

Json = dict[str, Any]
SSE: Headers = (("content-type", "text/event-stream; charset=utf-8"),)
WHOLE: Headers = (("content-type", "application/json"),)
LINES: Headers = (("content-type", "application/x-ndjson"),)
AWS: Headers = (("content-type", "application/vnd.amazon.eventstream"),)
_NONE = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}

Writer = Callable[[SpokenTurn, Json, bool, str], tuple[Headers, list[bytes]]]
"""(what is said, request, stream, target) -> header fields, pieces of the body."""


def can_write(operation: str) -> bool:
    return operation in WRITERS


def writes_text_arguments(operation: str, *, stream: bool) -> bool:
    """Return whether the arguments of a tool call stand there as text, which may break off, and not as an object."""
    return operation not in _OBJECTS or (stream and operation in ("messages", "invoke", "converse"))


def write(
    operation: str,
    body: bytes,
    target: str,
    model: str | None,
    said: Message,
    *,
    stream: bool,
    call: int,
    finish: str = "",
    usage: Mapping[str, int] | None = None,
) -> Response:
    """Return the answer to a request, for the agent's `call`-th call of a model. Only for what `can_write`.

    `finish` is why it ended, as `speak.Said` has it; `usage` is told by the dialects that do not always say 0.
    """
    seed = f"{call}\0{said!r}".encode("utf-8", "surrogatepass")
    calls = tuple(
        replace(each, id=each.id or hashlib.sha256(seed + bytes([n % 256, n // 256])).hexdigest()[:9])
        for n, each in enumerate(said.tool_calls)
    )
    answer = SpokenTurn(model or "", replace(said, tool_calls=calls), usage or _NONE, finish)
    headers, pieces = WRITERS[operation](answer, as_dict(parse_json(body)), stream, target)
    return Response(200, "OK", headers, tuple(Chunk(0, piece) for piece in pieces if piece), chunked=stream)


def _arguments(text: str) -> object:
    value = parse_json(text or "{}")
    return text if value is None else value


def _openai(said: SpokenTurn, tree: Json, stream: bool, _target: str) -> tuple[Headers, list[bytes]]:  # noqa: FBT001 - as its kin and its callers have it
    if not stream:
        return WHOLE, [write_json(OPENAI.answer(said))]
    events = OPENAI.stream(said)
    if as_dict(tree.get("stream_options")).get("include_usage"):
        head = {name: value for name, value in as_dict(events[0][1]).items() if name != "choices"}
        events.insert(-1, ("", {**head, "choices": [], "usage": said.usage}))
    return SSE, [sse([event]) for event in events]


def _anthropic(said: SpokenTurn, _tree: Json, stream: bool, _target: str) -> tuple[Headers, list[bytes]]:  # noqa: FBT001 - as its kin and its callers have it
    if not stream:
        return WHOLE, [write_json(ANTHROPIC.answer(said))]
    return SSE, [sse([event]) for event in ANTHROPIC.stream(said)]


def _invoke(said: SpokenTurn, tree: Json, stream: bool, target: str) -> tuple[Headers, list[bytes]]:  # noqa: FBT001 - as its kin and its callers have it
    """Bedrock's invoke, in Anthropic's words."""
    if not stream:
        return _anthropic(said, tree, stream, target)
    events = [dict(as_dict(event)) for _, event in ANTHROPIC.stream(said)]
    events[-1]["amazon-bedrock-invocationMetrics"] = {"inputTokenCount": 0, "outputTokenCount": 0}
    return AWS, [_frame("chunk", {"bytes": base64.b64encode(write_json(event)).decode()}) for event in events]


def _gemini(said: SpokenTurn, _tree: Json, stream: bool, target: str) -> tuple[Headers, list[bytes]]:  # noqa: FBT001 - as its kin and its callers have it
    answer = GEMINI.answer(said)
    if not stream:
        return WHOLE, [write_json(answer)]
    if "alt=sse" in target:
        return SSE, [sse([("", answer)])]
    return WHOLE, [b"[", write_json(answer), b"]"]


# -- OpenAI's responses


def _responses(said: SpokenTurn, tree: Json, stream: bool, _target: str) -> tuple[Headers, list[bytes]]:  # noqa: FBT001 - as its kin and its callers have it
    final = _response(said, tree)
    if said.finish in INCOMPLETE:
        final |= {"status": "incomplete", "incomplete_details": {"reason": INCOMPLETE[said.finish]}}
    if not stream:
        return WHOLE, [write_json(final)]
    events = [("response.created", {"response": {**final, "status": "in_progress", "output": [], "usage": None}})]
    for index, item in enumerate(final["output"]):
        events += _item_events(index, item)
    events.append((f"response.{final['status']}", {"response": final}))
    return SSE, [sse([(name, {"type": name, "sequence_number": n, **data})]) for n, (name, data) in enumerate(events)]


INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


def _response(said: SpokenTurn, tree: Json) -> Json:
    output: list[Json] = []
    if said.message.text or not said.message.tool_calls:
        part: Json = {"type": "output_text", "text": said.message.text, "annotations": [], "logprobs": []}
        if said.finish == "refusal":
            part = {"type": "refusal", "refusal": said.message.text}
        item = {"id": f"msg_{said.id}", "type": "message", "status": "completed", "role": "assistant"}
        output.append({**item, "content": [part]})
    for call in said.message.tool_calls:
        named = _qualify_name(call.name, tree)
        body = {"call_id": call.id, **named, "arguments": call.arguments, "status": "completed"}
        output.append({"id": f"fc_{call.id}", "type": "function_call", **body})
    echoed = {name: tree.get(name) for name in ("instructions", "previous_response_id", "metadata")}
    fixed = {"error": None, "incomplete_details": None, "parallel_tool_calls": True, "tools": tree.get("tools") or []}
    usage = {
        "input_tokens": 0,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 0,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 0,
    }
    head: Json = {
        "id": f"resp_{said.id}",
        "object": "response",
        "created_at": 0,
        "status": "completed",
        "model": said.model,
    }
    return {**head, **echoed, **fixed, "tool_choice": tree.get("tool_choice", "auto"), "output": output, "usage": usage}


def _qualify_name(name: str, tree: Json) -> Json:
    """Return a tool's name and its namespace, if it stands in one of those that the request offers."""
    asked = tree.get("input")
    places = [tree, *(asked if isinstance(asked, list) else ())]  # a search for tools adds more
    tools = (as_dict(each).get("tools") for each in places)
    offered = [as_dict(tool) for some in tools if isinstance(some, list) for tool in some]
    if any(tool.get("name") == name for tool in offered):
        return {"name": name}
    spaces = [str(tool.get("name")) for tool in offered if tool.get("type") == "namespace"]
    space = max((each for each in spaces if name.startswith(each + NAMESPACE)), key=len, default="")
    return {"namespace": space, "name": name.removeprefix(space + NAMESPACE)} if space else {"name": name}


def _item_events(index: int, item: Json) -> list[tuple[str, Json]]:
    where = {"output_index": index, "item_id": item["id"]}
    spoken = item["type"] == "message"
    empty: Json = {"content": []} if spoken else {"arguments": ""}
    events: list[tuple[str, Json]] = [
        ("response.output_item.added", {"output_index": index, "item": {**item, "status": "in_progress", **empty}})
    ]
    if spoken:
        part, here = item["content"][0], {**where, "content_index": 0}
        name = "text" if part["type"] == "output_text" else "refusal"
        logged: Json = {"logprobs": []} if name == "text" else {}
        events += [
            ("response.content_part.added", {**here, "part": {**part, name: ""}}),
            (f"response.{part['type']}.delta", {**here, "delta": part[name], **logged}),
            (f"response.{part['type']}.done", {**here, name: part[name], **logged}),
            ("response.content_part.done", {**here, "part": part}),
        ]
    else:
        events += [
            ("response.function_call_arguments.delta", {**where, "delta": item["arguments"]}),
            ("response.function_call_arguments.done", {**where, "name": item["name"], "arguments": item["arguments"]}),
        ]
    return [*events, ("response.output_item.done", {"output_index": index, "item": item})]


# -- Bedrock's converse


def _frame(kind: str, value: object) -> bytes:
    """Write one message of AWS's event stream."""
    fields = {":event-type": kind, ":content-type": "application/json", ":message-type": "event"}
    return write_frame(fields, write_json(value))


_CONVERSE_WHY = {"length": "max_tokens", "content_filter": "content_filtered"}


def _converse(said: SpokenTurn, _tree: Json, stream: bool, _target: str) -> tuple[Headers, list[bytes]]:  # noqa: FBT001 - as its kin and its callers have it
    blocks: list[Json] = [{"text": said.message.text}] if said.message.text or not said.message.tool_calls else []
    uses = [
        {"toolUseId": call.id, "name": call.name, "input": _arguments(call.arguments)}
        for call in said.message.tool_calls
    ]
    why = _CONVERSE_WHY.get(said.finish, "tool_use" if uses else "end_turn")
    usage = {"usage": {"inputTokens": 0, "outputTokens": 0, "totalTokens": 0}, "metrics": {"latencyMs": 0}}
    if not stream:
        message = {"role": "assistant", "content": [*blocks, *({"toolUse": use} for use in uses)]}
        return WHOLE, [write_json({"output": {"message": message}, "stopReason": why, **usage})]
    frames = [_frame("messageStart", {"role": "assistant"})]
    for index, block in enumerate(blocks):
        frames.append(_frame("contentBlockDelta", {"delta": block, "contentBlockIndex": index}))
        frames.append(_frame("contentBlockStop", {"contentBlockIndex": index}))
    for index, use in enumerate(uses, len(blocks)):
        start = {"toolUse": {"toolUseId": use["toolUseId"], "name": use["name"]}}
        given = use["input"]  # a text only where it is no JSON: as the model wrote it
        delta = {"toolUse": {"input": given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)}}
        frames.append(_frame("contentBlockStart", {"start": start, "contentBlockIndex": index}))
        frames.append(_frame("contentBlockDelta", {"delta": delta, "contentBlockIndex": index}))
        frames.append(_frame("contentBlockStop", {"contentBlockIndex": index}))
    return AWS, [*frames, _frame("messageStop", {"stopReason": why}), _frame("metadata", usage)]


# -- Ollama, Cohere


def _ollama(said: SpokenTurn, _tree: Json, stream: bool, _target: str) -> tuple[Headers, list[bytes]]:  # noqa: FBT001 - as its kin and its callers have it
    head = {"model": said.model, "created_at": "1970-01-01T00:00:00Z"}
    calls = [
        {"function": {"name": call.name, "arguments": _arguments(call.arguments)}} for call in said.message.tool_calls
    ]
    message = {"role": "assistant", "content": said.message.text, **({"tool_calls": calls} if calls else {})}
    end: Json = {
        "done": True,
        "done_reason": "length" if said.finish == "length" else "stop",
        "total_duration": 0,
        "load_duration": 0,
        "prompt_eval_count": 0,
    }
    end |= {"prompt_eval_duration": 0, "eval_count": 0, "eval_duration": 0}
    if not stream:
        return WHOLE, [write_json({**head, "message": message, **end})]
    lines = [{**head, "message": message, "done": False}]
    lines.append({**head, "message": {"role": "assistant", "content": ""}, **end})
    return LINES, [write_json(line) + b"\n" for line in lines]


_COHERE_WHY = {"length": "MAX_TOKENS", "content_filter": "ERROR"}
_COHERE_USAGE = {
    "billed_units": {"input_tokens": 0, "output_tokens": 0},
    "tokens": {"input_tokens": 0, "output_tokens": 0},
}


def _cohere_calls(said: SpokenTurn) -> list[Json]:
    return [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in said.message.tool_calls
    ]


def _cohere(said: SpokenTurn, _tree: Json, stream: bool, _target: str) -> tuple[Headers, list[bytes]]:  # noqa: FBT001 - as its kin and its callers have it
    calls, text = _cohere_calls(said), said.message.text
    why = _COHERE_WHY.get(said.finish, "TOOL_CALL" if calls else "COMPLETE")
    if not stream:
        message: Json = {
            "role": "assistant",
            **({"content": [{"type": "text", "text": text}]} if text or not calls else {}),
        }
        message |= {"tool_calls": calls} if calls else {}
        return WHOLE, [write_json({"id": said.id, "finish_reason": why, "message": message, "usage": _COHERE_USAGE})]
    events: list[Json] = [{"type": "message-start", "id": said.id, "delta": {"message": {"role": "assistant"}}}]
    if text or not calls:
        start = {"message": {"content": {"type": "text", "text": ""}}}
        events += [
            {"type": "content-start", "index": 0, "delta": start},
            {"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": text}}}},
            {"type": "content-end", "index": 0},
        ]
    for index, call in enumerate(calls):
        first = {**call, "function": {**call["function"], "arguments": ""}}
        rest = {"function": {"arguments": call["function"]["arguments"]}}
        events += [
            {"type": "tool-call-start", "index": index, "delta": {"message": {"tool_calls": first}}},
            {"type": "tool-call-delta", "index": index, "delta": {"message": {"tool_calls": rest}}},
            {"type": "tool-call-end", "index": index},
        ]
    events.append({"type": "message-end", "delta": {"finish_reason": why, "usage": _COHERE_USAGE}})
    return SSE, [sse([(event["type"], event)]) for event in events]


def _cohere_1(said: SpokenTurn, _tree: Json, stream: bool, _target: str) -> tuple[Headers, list[bytes]]:  # noqa: FBT001 - as its kin and its callers have it
    calls = [{"name": call.name, "parameters": _arguments(call.arguments)} for call in said.message.tool_calls]
    whole: Json = {
        "response_id": said.id,
        "generation_id": said.id,
        "text": said.message.text,
        "finish_reason": {"length": "MAX_TOKENS", "content_filter": "ERROR_TOXIC"}.get(said.finish, "COMPLETE"),
    }
    whole |= {"tool_calls": calls} if calls else {}
    whole |= {"meta": {"billed_units": {"input_tokens": 0, "output_tokens": 0}}}
    if not stream:
        return WHOLE, [write_json(whole)]
    events: list[Json] = [{"event_type": "stream-start", "is_finished": False, "generation_id": said.id}]
    if said.message.text:
        events.append({"event_type": "text-generation", "is_finished": False, "text": said.message.text})
    if calls:
        events.append({"event_type": "tool-calls-generation", "is_finished": False, "tool_calls": calls})
    events.append(
        {"event_type": "stream-end", "is_finished": True, "finish_reason": whole["finish_reason"], "response": whole}
    )
    return (("content-type", "application/stream+json"),), [write_json(event) + b"\n" for event in events]


_OBJECTS = frozenset({"messages", "invoke", "converse", "generateContent", "api.chat", "v1.chat"})
"""Operations whose tool calls have objects as arguments, at least where they are not streamed."""

WRITERS: Mapping[str, Writer] = {
    "chat.completions": _openai, "fim.completions": _openai, "agents.completions": _openai, "writer.chat": _openai,
    "responses": _responses, "messages": _anthropic, "generateContent": _gemini, "converse": _converse,
    "invoke": _invoke, "api.chat": _ollama, "v2.chat": _cohere, "v1.chat": _cohere_1,
}  # fmt: skip
"""By operation."""
