"""Chats of an agent as a run meets them on the wire: calls of the proxy with what was recorded, made without a proxy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from llmproxy.calls_and_totals import Call
from llmproxy.core.dialects.usage_and_cost import read_usage
from llmproxy.core.providers.provider_table import Family
from llmproxy.core.traffic.interaction import Chunk, Ending, Interaction, Key, Request, Response
from llmproxy.trace.observing.agent_activity import ModelCallObserver

NOW = 1_800_000_000.0
JSON = (("content-type", "application/json"),)
TOOLS = ("createTask", "updateTask")
Pair = tuple[Call, Interaction | None]


class Chats:
    """Makes the calls of one session, numbered as they come."""

    def __init__(self) -> None:
        self.calls: list[Pair] = []

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        answer: Mapping[str, Any],
        *,
        tools: Sequence[str] = TOOLS,
        usage: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Pair:
        body: dict[str, Any] = {"model": "gpt-4o-mini", "messages": list(messages)} | more.pop("body", {})
        if tools:
            body["tools"] = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in tools]
        value: dict[str, Any] = {"id": "c", "choices": [{"index": 0, "message": answer, "finish_reason": "stop"}]}
        if usage is None:
            usage = {"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}
        if usage:
            value["usage"] = usage
        return self.add("openai", "chat.completions", "/v1/chat/completions", body, value, **more)

    def add(
        self, provider: Family, operation: str, path: str, body: Mapping[str, Any], value: object, **more: Any
    ) -> Pair:
        """Add a call: its recording is there unless `recorded` is False, `ending` as `Ending`."""
        asked, answered = json.dumps(body).encode(), json.dumps(value).encode()
        status = more.pop("status", 200)
        headers = tuple(more.pop("headers", {}).items())
        number = len(self.calls) + 1
        key = Key(f"v1:{hash(asked) & 0xFFFFFFFFFFFFFFFF:064x}")
        recorded = more.pop("recorded", True)
        ending = Ending(more.pop("ending", "complete"))
        made = Interaction(
            provider=provider,
            operation=operation,
            key=key,
            request=Request("POST", path, JSON + headers, asked),
            response=Response(status, "", JSON, (Chunk(1000, answered),), ending),
            started_at=NOW + number,
            id=100 + number,
            model=str(body.get("model")),
            usage=read_usage(provider, operation, "application/json", answered),
        )
        facts: dict[str, Any] = {
            "party": "agent", "decision": "REPLAY", "miss": False, "note": "", "occurrence": 1,
        } | more  # fmt: skip
        about = Call(
            seq=number, at=NOW + number, ms=1.0, first_ms=None, status=status, key=key, provider=provider,
            operation=operation, model=made.model, interaction=made.id if recorded else None, recording=None, **facts,
        )  # fmt: skip
        pair = about, made if recorded else None
        self.calls.append(pair)
        return pair

    @property
    def wire(self) -> ModelCallObserver:
        wire = ModelCallObserver()
        wire.add_calls(self.calls)
        return wire
