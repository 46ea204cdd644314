"""Parts of spans: ids, tokens, arguments and results as values. Pure functions below `trace.reading.spans`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from hashlib import sha256
from typing import Any

from llmproxy.core.dialects.messages import ToolCall
from llmproxy.core.traffic.interaction import Interaction, Usage
from llmproxy.trace.reading.exchange import OpenedExchange
from llmproxy.trace.values.model import Span, TokenUsage

_DEPTH = 8
"""Levels of a value that are looked into for texts."""


def span_id(interaction: Interaction, part: str) -> str:
    """Return the id of a span: 32 hex digits, the same for the same recording."""
    i = interaction
    text = f"{i.cassette}\0{i.sample}\0{i.party}\0{i.key}\0{i.occurrence}\0{i.started_at!r}\0{part}"
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def token_usage(usage: Usage) -> TokenUsage:
    """Return tokens as the trace counts them: the prompt is its fresh part, the total all of them."""
    fresh = None if usage.input is None else max(usage.input - (usage.cached or 0) - (usage.cache_written or 0), 0)
    total = None if usage.input is None or usage.output is None else usage.input + usage.output
    return TokenUsage(fresh, usage.output, total, usage.cached, usage.cache_written)


def set_arguments(span: Span, call: ToolCall) -> None:
    """Set the arguments; what is no JSON object is kept as it came, and marked."""
    try:
        value = json.loads(call.arguments) if call.arguments.strip() else {}
    except (ValueError, RecursionError):
        span.input = call.arguments
        span.metadata["llmproxy.arguments"] = "not JSON"
        return
    if isinstance(value, dict):
        span.tool_args = value
    else:
        span.input = value
        span.metadata["llmproxy.arguments"] = "not an object"


def result_value(text: str) -> Any:  # noqa: ANN401 - JSON
    """Return what a tool answered: an object or a list if it is one, else the text."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            pass
    return text


def texts(value: Any, depth: int = 0) -> str:  # noqa: ANN401 - JSON
    """Return the texts in a value, a line each."""
    if isinstance(value, str):
        return value
    if depth > _DEPTH:
        return ""
    parts: Iterable[Any] = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return "\n".join(texts(part, depth + 1) for part in parts)


def tool_name(exchange: OpenedExchange, call_id: str | None) -> str | None:
    """Return the tool of a call that stands in the request's history only."""
    calls = [call for message in exchange.messages for call in message.tool_calls]
    named = next((call.name for call in calls if call_id and call.id == call_id), None)
    return named or (call_id if any(call.name == call_id for call in calls) else None)
