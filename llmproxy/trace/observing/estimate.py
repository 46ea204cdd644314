"""Tokens counted by us, for ``estimate: true``: a rough number where a provider reports none, marked as an estimate wherever it is shown.

Four characters a token, over the words and tool calls of a conversation: within a third for English prose, worse for code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from llmproxy.core.dialects.messages import Message
    from llmproxy.trace.observing.wire import Observed

CHARACTERS = 4
"""Of a token."""


def estimate_usage(key: str, step: Observed) -> int | None:
    """Return an estimate of what suites call `key`; None if it is none of those that can be estimated."""
    if key not in ("inputTokens", "outputTokens", "totalTokens") or step.unrecorded:
        return None
    total = 0
    for seen in step.seen:
        if seen.exchange is None or not seen.answered:
            continue
        usage, exchange = seen.exchange.interaction.usage, seen.exchange
        if key != "outputTokens":
            total += _tokens(exchange.messages) if usage.input is None else usage.input
        if key != "inputTokens":
            answer = () if exchange.answer is None else (exchange.answer,)
            total += _tokens(answer) if usage.output is None else usage.output
    return total


def _tokens(messages: Iterable[Message]) -> int:
    characters = 0
    for message in messages:
        characters += len(message.text) + len(message.reasoning)
        characters += sum(len(call.name) + len(call.arguments) for call in message.tool_calls)
    return -(-characters // CHARACTERS)
