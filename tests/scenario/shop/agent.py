"""The shop's agent in Python: asks its model with two tools over plain HTTP, and reports to nobody which tools it called."""

# ruff: noqa: A002 (an adapter as its users write it)

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

from llmproxy import scenario

PROMPT = os.environ.get("SHOP_PROMPT", "You work for a lamp shop.")
ORDERS = {"A-1": {"item": "lamp", "status": "delivered on May 2", "paid": 30}}
_DIRECT = build_opener(ProxyHandler({}))


def look_up_order(id: str) -> dict[str, Any]:
    return ORDERS.get(id, {"error": "no such order"})


def refund(id: str, amount: int) -> dict[str, Any]:
    return {"order": id, "refunded": amount}


TOOLS: dict[str, Callable[..., dict[str, Any]]] = {"look_up_order": look_up_order, "refund": refund}


def ask(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Ask the model for its next message, at the address that the environment names."""
    tools = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in TOOLS]
    body = json.dumps({"model": "gpt-4o", "messages": messages, "tools": tools}).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
    url = f"{os.environ['OPENAI_BASE_URL']}/chat/completions"
    with _DIRECT.open(Request(url, body, headers), timeout=30) as answer:
        message: dict[str, Any] = json.loads(answer.read())["choices"][0]["message"]
    return message


class Shop(scenario.AgentAdapter):
    async def call(self, input: scenario.AgentInput) -> scenario.AgentReturnTypes:
        messages = [{"role": "system", "content": PROMPT}, *input.messages]
        while True:
            said = ask(messages)
            if not said.get("tool_calls"):
                return str(said["content"])
            messages.append(said)
            for call in said["tool_calls"]:
                result = TOOLS[call["function"]["name"]](**json.loads(call["function"]["arguments"]))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": json.dumps(result)})
