"""Messages of a chat, as agents and models send them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def user(text: object) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def call(
    name: str = "get_weather", arguments: Mapping[str, Any] | str = '{"city": "Paris"}', call_id: str = "call_1"
) -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


def asks(*calls: Mapping[str, Any], text: str | None = None) -> dict[str, Any]:
    return {"role": "assistant", "content": text, "tool_calls": list(calls)}


def result(text: str = '{"temp": 18}', call_id: str = "call_1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def used(
    name: str, arguments: Mapping[str, Any] | str, text: str = "ok", call_id: str = "call#1"
) -> list[dict[str, Any]]:
    return [asks(call(name, arguments, call_id)), result(text, call_id)]


def answer(message: Mapping[str, Any]) -> bytes:
    return json.dumps({"choices": [{"index": 0, "message": message}]}).encode()
