"""What a request says about the results of tools.

`core.messages` gives a tool's result as text; whether the tool failed stands beside it in some dialects, or in the text. Nothing here
raises on odd input.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llmproxy.core.dialects.messages import as_dict, as_list, as_str

if TYPE_CHECKING:
    from llmproxy.trace.reading.exchange import OpenedExchange

_FAILED = re.compile(
    r"(?:errors?|exception)(?![a-z])|an error occurred|traceback \(most recent call last\)|[\w.]*(?:error|exception)\b\s*[:(]",
    re.IGNORECASE,
)
"""How texts of failed tools begin: our own words for it, and those of frameworks."""
_ERRORS = ("error", "errors", "exception")
"""Members of an object that say what went wrong, if there is anything in them."""
_FLAGS = (("isError", True), ("is_error", True), ("success", False), ("ok", False))
"""Members of an object that say whether it failed."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a tool answered."""

    text: str
    errored: bool

    @classmethod
    def of(cls, text: str, *, declared: bool) -> Result:
        """Make one; `declared`: the dialect says that the tool failed."""
        return cls(text, declared or _says_error(text))


def results_of(exchange: OpenedExchange) -> list[Result | None]:
    """Return for each message of a request the result that it is, None for what is none."""
    declared: dict[str, list[bool]] = {}
    for call_id, failed in _read_marks(exchange.tree):
        declared.setdefault(call_id, []).append(failed)
    counts: dict[str, int] = {}
    found: list[Result | None] = []
    for message in exchange.messages:
        if message.role != "tool":
            found.append(None)
            continue
        call_id = message.tool_call_id or ""
        counts[call_id] = number = counts.get(call_id, -1) + 1  # an id may come again with each turn
        flags = declared.get(call_id, [])
        found.append(Result.of(message.text, declared=number < len(flags) and flags[number]))
    return found


def _read_marks(tree: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield the ids of results, and whether the dialect marks them as failed: Anthropic's is_error, Bedrock's status."""
    for message in as_list(tree.get("messages")):
        for part in as_list(as_dict(message).get("content")):
            block = as_dict(part)
            inner = as_dict(block.get("toolResult"))
            if as_str(block.get("type")).endswith("tool_result"):
                yield as_str(block.get("tool_use_id")), block.get("is_error") is True
            elif inner:
                yield as_str(inner.get("toolUseId")), inner.get("status") == "error"


def _says_error(text: str) -> bool:
    """Tell whether a result says that the tool failed: an object with an error, or a text that begins as those of frameworks do."""
    stripped = text.lstrip()
    if stripped[:1] == "{":
        try:
            value = json.loads(stripped)
        except (ValueError, RecursionError):
            return False
        return isinstance(value, dict) and _holds_error(value)
    return _FAILED.match(stripped) is not None


def _holds_error(value: Mapping[str, object]) -> bool:
    named = any(value.get(name) for name in _ERRORS)
    return named or any(value.get(name) is flag for name, flag in _FLAGS)
