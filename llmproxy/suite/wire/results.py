"""What a request says about the results of tools.

`core.dialects.messages` gives a tool's result as text; whether the tool failed stands beside it in some dialects, or in the text. Nothing here
raises on odd input.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llmproxy.core.dialects.messages import as_dict, as_list

if TYPE_CHECKING:
    from llmproxy.trace.reading.exchange import Exchange

__all__ = ["Result", "results_of"]

_FAILED = ("error", "Error", "ERROR")


@dataclass(frozen=True, slots=True)
class Result:
    """What a tool answered."""

    text: str
    errored: bool


def results_of(exchange: Exchange) -> dict[str, Result]:
    """Return the results that a request carries, by call id (by tool name where the dialect has no ids); of equal ids the last."""
    failed = set(_declared_failures(exchange.tree))
    return {
        message.tool_call_id: Result(message.text, message.tool_call_id in failed or _says_error(message.text))
        for message in exchange.messages
        if message.role == "tool" and message.tool_call_id
    }


def _declared_failures(tree: dict[str, Any]) -> Iterator[str]:
    """Yield the ids of results that the dialect marks as failed: Anthropic's is_error, Bedrock's status."""
    for message in as_list(tree.get("messages")):
        for part in as_list(as_dict(message).get("content")):
            block = as_dict(part)
            inner = as_dict(block.get("toolResult"))
            if block.get("is_error") is True and isinstance(block.get("tool_use_id"), str):
                yield block["tool_use_id"]
            if inner.get("status") == "error" and isinstance(inner.get("toolUseId"), str):
                yield inner["toolUseId"]


def _says_error(text: str) -> bool:
    """Tell whether a result says that the tool failed: an object with an error, or a text that begins with the word."""
    stripped = text.lstrip()
    if stripped[:1] == "{":
        try:
            value = json.loads(stripped)
        except (ValueError, RecursionError):
            return False
        return isinstance(value, dict) and (bool(value.get("error")) or value.get("isError") is True)
    return stripped.startswith(_FAILED)
