"""A reply as Gemini says it: one GenerateContentResponse, or several that add up to it."""

from __future__ import annotations

from typing import Any

from .say_openai import words
from .script import Reply


def whole(reply: Reply, model: str | None, number: int, tokens: tuple[int, int]) -> dict[str, Any]:
    parts = [{"text": reply.say}] if reply.say else []
    return _answer([*parts, *_calls(reply)], model, number, tokens, last=True)


def chunks(reply: Reply, model: str | None, number: int, tokens: tuple[int, int]) -> list[dict[str, Any]]:
    """Build the answers of a stream; only the last one has a finishReason."""
    parts: list[dict[str, Any]] = [{"text": word} for word in words(reply.say)] + _calls(reply)
    last = len(parts) - 1
    return [_answer([part], model, number, tokens, last=index == last) for index, part in enumerate(parts)]


def _calls(reply: Reply) -> list[dict[str, Any]]:
    return [{"functionCall": {"name": call.name, "args": dict(call.arguments)}} for call in reply.call]


def _answer(
    parts: list[dict[str, Any]], model: str | None, number: int, tokens: tuple[int, int], *, last: bool
) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"parts": parts, "role": "model"}, "index": 0}
    if last:
        candidate["finishReason"] = "STOP"
    usage = {"promptTokenCount": tokens[0], "candidatesTokenCount": tokens[1], "totalTokenCount": sum(tokens)}
    ident = f"resp{number:06d}"
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": model, "responseId": ident}
