"""A reply as Anthropic says it: messages, whole and streamed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .answer import dumps, event
from .say_openai import words
from .script import Reply


def message(reply: Reply, model: str | None, number: int, tokens: tuple[int, int]) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "text", "text": reply.say}] if reply.say else []
    content += [
        {"type": "tool_use", "id": f"toolu_{number:06d}{index}", "name": call.name, "input": dict(call.arguments)}
        for index, call in enumerate(reply.call)
    ]
    usage = {"input_tokens": tokens[0], "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    return {
        "id": f"msg_{number:06d}", "type": "message", "role": "assistant", "model": model, "content": content,
        "stop_reason": "tool_use" if reply.call else "end_turn", "stop_sequence": None,
        "usage": {**usage, "output_tokens": tokens[1]},
    }  # fmt: skip


def message_stream(whole: dict[str, Any]) -> Iterator[bytes]:
    for name, data in _events(whole):
        yield event({"type": name, **data}, name)


def _events(whole: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    begun: dict[str, Any] = {"content": [], "stop_reason": None, "usage": {**whole["usage"], "output_tokens": 1}}
    yield "message_start", {"message": {**whole, **begun}}
    for index, block in enumerate(whole["content"]):
        is_text = block["type"] == "text"
        empty: dict[str, Any] = {"text": ""} if is_text else {"input": {}}
        yield "content_block_start", {"index": index, "content_block": {**block, **empty}}
        if index == 0:
            yield "ping", {}
        for delta in _text(block["text"]) if is_text else _input(dumps(block["input"])):
            yield "content_block_delta", {"index": index, "delta": delta}
        yield "content_block_stop", {"index": index}
    ending = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield "message_delta", {"delta": ending, "usage": {"output_tokens": whole["usage"]["output_tokens"]}}
    yield "message_stop", {}


def _text(text: str) -> list[dict[str, str]]:
    return [{"type": "text_delta", "text": word} for word in words(text)]


def _input(arguments: str) -> list[dict[str, str]]:
    cuts = ["", *(arguments[at : at + 7] for at in range(0, len(arguments), 7))]
    return [{"type": "input_json_delta", "partial_json": cut} for cut in cuts]
