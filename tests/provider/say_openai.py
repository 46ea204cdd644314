"""A reply as OpenAI says it: chat completions and responses, whole and streamed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from .answer import dumps, event
from .script import Reply


def words(text: str) -> list[str]:
    """Cut a text into words, each with the white space before it."""
    return re.findall(r"\s*\S+|\s+$", text)


def tool_calls(reply: Reply, ident: str) -> list[dict[str, Any]]:
    """List the calls as a chat message holds them; ids are made from the answer's."""
    return [
        {
            "id": f"call_{ident[-6:]}{index}",
            "type": "function",
            "function": {"name": call.name, "arguments": dumps(call.arguments)},
        }
        for index, call in enumerate(reply.call)
    ]


def _usage(tokens: tuple[int, int]) -> dict[str, Any]:
    details = {"prompt_tokens_details": {"cached_tokens": 0}, "completion_tokens_details": {"reasoning_tokens": 0}}
    return {"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "total_tokens": sum(tokens), **details}


def chat(reply: Reply, head: Mapping[str, Any], tokens: tuple[int, int]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.say or None, "refusal": None}
    calls = tool_calls(reply, head["id"])
    if calls:
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "tool_calls" if calls else "stop"}
    return {**head, "object": "chat.completion", "choices": [choice], "usage": _usage(tokens)}


def chat_stream(reply: Reply, head: Mapping[str, Any], tokens: tuple[int, int] | None) -> Iterator[bytes]:
    """Stream it; the usage chunk only if `tokens` are given (as with stream_options.include_usage)."""
    frame = {**head, "object": "chat.completion.chunk"}
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": "" if reply.say else None, "refusal": None}]
    deltas += [{"content": word} for word in words(reply.say)]
    calls = tool_calls(reply, head["id"])
    for index, call in enumerate(calls):
        arguments = call["function"]["arguments"]
        first = call | {"index": index, "function": {"name": call["function"]["name"], "arguments": ""}}
        deltas.append({"tool_calls": [first]})
        deltas += [
            {"tool_calls": [{"index": index, "function": {"arguments": arguments[at : at + 7]}}]}
            for at in range(0, len(arguments), 7)
        ]
    usage = {} if tokens is None else {"usage": None}
    for delta in deltas:
        yield event({**frame, "choices": [{"index": 0, "delta": delta, "finish_reason": None}], **usage})
    end = {"index": 0, "delta": {}, "finish_reason": "tool_calls" if calls else "stop"}
    yield event({**frame, "choices": [end], **usage})
    if tokens is not None:
        yield event({**frame, "choices": [], "usage": _usage(tokens)})
    yield event("[DONE]")


def response(
    reply: Reply, request: Mapping[str, Any], number: int, created: int, tokens: tuple[int, int]
) -> dict[str, Any]:
    output: list[dict[str, Any]] = []
    if reply.say:
        part = {"type": "output_text", "text": reply.say, "annotations": [], "logprobs": []}
        item = {"id": f"msg_{number:06d}", "type": "message", "status": "completed", "role": "assistant"}
        output.append({**item, "content": [part]})
    for index, call in enumerate(reply.call):
        ids = {"id": f"fc_{number:06d}{index}", "call_id": f"call_{number:06d}{index}"}
        body = {**_named(call.name, request), "arguments": dumps(call.arguments), "status": "completed"}
        output.append({"type": "function_call", **ids, **body})
    usage = {"input_tokens": tokens[0], "input_tokens_details": {"cached_tokens": 0}, "output_tokens": tokens[1]}
    usage |= {"output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": sum(tokens)}
    echoed = {
        "model": request.get("model"), "instructions": request.get("instructions"),
        "previous_response_id": request.get("previous_response_id"), "tools": request.get("tools", []),
        "text": request.get("text", {"format": {"type": "text"}}), "metadata": request.get("metadata", {}),
    }  # fmt: skip
    fixed: dict[str, Any] = {
        "error": None, "incomplete_details": None, "parallel_tool_calls": True, "tool_choice": "auto",
    }  # fmt: skip
    fixed |= {"temperature": 1.0, "top_p": 1.0, "truncation": "disabled", "store": True}
    head = {"id": f"resp_{number:06d}", "object": "response", "created_at": created, "status": "completed"}
    return {**head, **echoed, **fixed, "output": output, "usage": usage}


def _named(name: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Name a tool as its client offered it: in a namespace (`mcp__tools`, as Codex has one for each server) or alone."""
    for tool in request.get("tools", []):
        if tool.get("type") == "namespace" and name.startswith(f"{tool['name']}__"):
            return {"namespace": tool["name"], "name": name.removeprefix(f"{tool['name']}__")}
    return {"name": name}


def response_stream(final: dict[str, Any]) -> Iterator[bytes]:
    for number, (name, data) in enumerate(_response_events(final)):
        yield event({"type": name, "sequence_number": number, **data}, name)


def _response_events(final: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    begun = {**final, "status": "in_progress", "output": [], "usage": None}
    yield "response.created", {"response": begun}
    yield "response.in_progress", {"response": begun}
    for index, item in enumerate(final["output"]):
        where = {"output_index": index, "item_id": item["id"]}
        empty: dict[str, Any] = {"content": []} if item["type"] == "message" else {"arguments": ""}
        started = {**item, "status": "in_progress", **empty}
        yield "response.output_item.added", {"output_index": index, "item": started}
        yield from _text_events(item, where) if item["type"] == "message" else _argument_events(item, where)
        yield "response.output_item.done", {"output_index": index, "item": item}
    yield "response.completed", {"response": final}


def _text_events(item: dict[str, Any], where: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    part = item["content"][0]
    here = {**where, "content_index": 0}
    yield "response.content_part.added", {**here, "part": {**part, "text": ""}}
    for word in words(part["text"]):
        yield "response.output_text.delta", {**here, "delta": word, "logprobs": []}
    yield "response.output_text.done", {**here, "text": part["text"], "logprobs": []}
    yield "response.content_part.done", {**here, "part": part}


def _argument_events(item: dict[str, Any], where: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    arguments = item["arguments"]
    for at in range(0, len(arguments), 7):
        yield "response.function_call_arguments.delta", {**where, "delta": arguments[at : at + 7]}
    yield "response.function_call_arguments.done", {**where, "name": item["name"], "arguments": arguments}
