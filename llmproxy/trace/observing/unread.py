"""Answers that nobody can read, or only in part: what they asked for is not known, and so is nothing that depends on it.

A table says which requests are no questions to a model that could call a tool. What is in no table and looks as if it did is not passed over.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from llmproxy.core.traffic.interaction import header

if TYPE_CHECKING:
    from llmproxy.trace.reading.exchange import OpenedExchange

_CALLERS = ("realtime", "threads", "threads.runs", "responses/", "interactions", "predictions", "async-invoke",
            "rawPredict", "messages/batches", "batches", "agents/")  # fmt: skip
"""Operations whose answers can call tools, and which nobody reads here; one that ends in ``/``: what stands below it."""
_LOOKS_LIKE = re.compile(
    rb'"tool_calls"\s*:\s*\[\s*\{|"type"\s*:\s*"(?:\w+_)?(?:tool_use|function_call|tool_call|function\.call)"|"functionCall"\s*:\s*\{|"toolUse"\s*:\s*\{'
)
"""What answers that call tools have in common, whatever the path."""


def why_unread(exchange: OpenedExchange) -> str:
    """Say why a whole answer of a model cannot be read, or not all of it; empty where it can."""
    answer = exchange.answer
    if answer is None and not exchange.finish_reasons:
        kind = header(exchange.interaction.response.headers, "content-type") or "no content-type"
        return f"could not be read as an answer of {exchange.interaction.operation} ({kind})"
    if answer is not None and answer.unknown:
        return f"holds what is not known, and may call a tool: {', '.join(answer.unknown)}"
    return ""


def can_ask_unseen(operation: str, body: bytes | None) -> bool:
    """Tell whether an exchange that is no conversation as we know them may hold tool calls; `body` is its answer, if it was kept."""
    first = operation.partition("/")[0]
    if operation in _CALLERS or first in _CALLERS or (f"{first}/" in _CALLERS and operation != first):
        return True
    return body is not None and _LOOKS_LIKE.search(body) is not None
