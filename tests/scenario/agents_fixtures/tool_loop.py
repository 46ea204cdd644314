"""An agent with one tool, over nothing but the standard library: asks the model, runs the tool, asks again."""

from __future__ import annotations

import json
import os
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]
_DIRECT = build_opener(ProxyHandler({}))


def model(
    messages: list[dict[str, Any]], base_url: str | None = None, headers: dict[str, Any] | None = None
) -> dict[str, Any]:
    base_url = base_url or os.environ["OPENAI_BASE_URL"]
    body = json.dumps({"model": "gpt-4o", "messages": messages, "tools": TOOLS}).encode()
    fields = {"content-type": "application/json", "authorization": "Bearer none", **(headers or {})}
    with _DIRECT.open(Request(f"{base_url}/chat/completions", body, fields), timeout=30) as answer:
        message: dict[str, Any] = json.loads(answer.read())["choices"][0]["message"]
    return message


def respond(history: list[dict[str, Any]], base_url: str | None = None, headers: dict[str, Any] | None = None) -> str:
    while True:
        message = model(history, base_url, headers)
        history.append(message)
        if not message.get("tool_calls"):
            return str(message["content"])
        history += [{"role": "tool", "tool_call_id": call["id"], "content": "12"} for call in message["tool_calls"]]
