"""What a provider itself says about a history: context editing and compaction that it did, and histories that it keeps to itself.

Sources (read 2026-11): Anthropic, "Context editing" (``context_management.applied_edits``) and "Compaction"; OpenAI, "Compaction" of
the Responses API (its summary is encrypted) and ``previous_response_id``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from llmproxy.core.dialects.messages import as_dict, as_list, as_str, words
from llmproxy.core.dialects.streams import events_of
from llmproxy.core.traffic.interaction import header
from llmproxy.trace.reading.exchange import earlier_ids

if TYPE_CHECKING:
    from llmproxy.trace.reading.exchange import OpenedExchange


@dataclass(frozen=True, slots=True)
class Declared:
    """A processor that the provider says it ran."""

    processor: str
    reason: str
    values: Mapping[str, int | None] = field(default_factory=dict)
    summaries: list[str] | None = field(default_factory=list)
    """None: there is one, and nobody can read it."""


def declared_by(exchange: OpenedExchange) -> Iterator[Declared]:
    """Yield what an answer declares."""
    response = exchange.interaction.response
    kind = header(response.headers, "content-type") or ""
    compactions: dict[int, str] = {}
    for event in events_of(kind, response.body):
        value = as_dict(event)
        for place in (value, as_dict(value.get("message")), as_dict(value.get("delta"))):
            for edit in as_list(as_dict(place.get("context_management")).get("applied_edits")):
                yield from _edit(as_dict(edit))
        for number, block in _blocks(value):
            if block.get("type") == "compaction":
                compactions[number] = words(block.get("content"))
        delta = as_dict(value.get("delta"))
        if delta.get("type") == "compaction_delta":
            index = value.get("index")
            at = index if isinstance(index, int) else 0
            compactions[at] = compactions.get(at, "") + as_str(delta.get("content"))
    for text in compactions.values():
        unknown: dict[str, int | None] = {"condensedMessages": None, "recentMessages": None, "totalMessages": None}
        yield Declared("condenser", "the provider compacted the conversation", unknown, [text] if text else None)


def _edit(edit: dict[str, Any]) -> Iterator[Declared]:
    kind = as_str(edit.get("type"))
    for prefix, member in (("clear_tool_uses", "cleared_tool_uses"), ("clear_thinking", "cleared_thinking_turns")):
        if kind.startswith(prefix):
            count = edit.get(member)
            parts = count if isinstance(count, int) and not isinstance(count, bool) else None
            yield Declared("pruner", f"the provider applied {kind}", {"partsRemoved": parts})


def _blocks(value: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the parts of an answer with their number: Anthropic's content, OpenAI's output, whole or in events."""
    response = as_dict(value.get("response")) or value
    for number, part in enumerate((*as_list(response.get("content")), *as_list(response.get("output")))):
        yield number, as_dict(part)
    index = value.get("index")
    yield (index if isinstance(index, int) else 0), as_dict(value.get("content_block"))
    output_index = value.get("output_index")
    yield (output_index if isinstance(output_index, int) else 0), as_dict(value.get("item"))


def hidden_history(exchange: OpenedExchange) -> str:
    """Say why the history of a request cannot be seen in it; empty where it can."""
    if earlier_ids(exchange.tree):
        return "the provider keeps the history (previous_response_id or conversation), so it is not in the request"
    if exchange.tree.get("truncation") == "auto":
        return "truncation: auto lets the provider drop messages without saying so"
    return ""
