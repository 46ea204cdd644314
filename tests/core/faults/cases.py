"""Calls and answers to try faults on."""

from __future__ import annotations

from typing import Any

from llmproxy.core.faults.rules import CallSeenByFaultRules
from llmproxy.core.traffic.interaction import Chunk, Response


def call(**given: Any) -> CallSeenByFaultRules:
    plain: dict[str, Any] = {
        "session": "default", "party": "agent", "provider": "openai", "model": "gpt-4o",
        "operation": "chat.completions", "channel": "llm", "transport": "http", "key": "v2:1", "nth": 1,
        "family": "openai", "recording": 1,
    }  # fmt: skip
    return CallSeenByFaultRules(**plain | given)


def answer(body: bytes, kind: str = "application/json", *, chunked: bool = False) -> Response:
    return Response(200, "OK", (("content-type", kind),), (Chunk(1000, body),), chunked=chunked)
