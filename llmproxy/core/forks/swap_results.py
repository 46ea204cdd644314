"""Replacement of tools' results in a request before its key is derived: a pure function over the body.

It recognizes structures rather than providers, as `messages` does. A result is found by the id of its call, in the same
request's history or in an earlier answer (`known`); in a dialect without ids by its tool's name, else by its position.
A request without replacements keeps its exact bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from llmproxy.core.dialects.messages import as_dict, as_list, entry_messages
from llmproxy.core.forks.overrides import Overrides, ToolOverride
from llmproxy.core.traffic.canonical_json import parse_json

Node = dict[str, Any]
Known = Callable[[str], "NumberedCall | None"]
"""Returns the call of an id that is not in the request's history."""
_LISTS = ("chat_history", "messages", "contents", "input")
_WRAPPERS = ("result", "output")
"""Members in which SDKs wrap a result for a dialect that requires an object."""


@dataclass(frozen=True, slots=True)
class NumberedCall:
    """A call to a tool: the n-th of its name, from 1."""

    tool: str
    nth: int
    arguments: str | None = field(default=None, compare=False)
    """As JSON; None if unknown."""


@dataclass(frozen=True, slots=True)
class Swap:
    override: ToolOverride
    place: NumberedCall


@dataclass(slots=True)
class Swapped:
    body: bytes
    swaps: tuple[Swap, ...] = ()
    seen: tuple[str, ...] = ()
    """Names of tools with calls or results in the request."""
    calls: dict[str, NumberedCall] = field(default_factory=dict)
    """Calls in its history, by id."""


def swap_results(body: bytes, overrides: Overrides, known: Known = lambda _id: None) -> Swapped:
    """Replace the results of a request. A body that is no JSON object is returned unchanged."""
    tree = parse_json(body)
    if not isinstance(tree, dict):
        return Swapped(body)
    reader = _ResultSwapper(overrides, known)
    reader.swap_body_in_place(as_dict(tree.get("request")) or tree)  # Code Assist wraps it
    if reader.swaps:
        body = json.dumps(tree, separators=(",", ":")).encode()
    return Swapped(body, tuple(reader.swaps), tuple(dict.fromkeys(reader.seen)), reader.calls)


class _ResultSwapper:
    def __init__(self, overrides: Overrides, known: Known) -> None:
        self._overrides, self._known = overrides, known
        self.swaps: list[Swap] = []
        self.seen: list[str] = []
        self.calls: dict[str, NumberedCall] = {}
        self._counts: dict[str, int] = {}
        self._results: dict[str, int] = {}
        self._open: list[NumberedCall] = []

    def swap_body_in_place(self, tree: Node) -> None:
        for name in _LISTS:
            value = tree.get(name)
            for entry in [value] if isinstance(value, dict) else as_list(value):
                if isinstance(entry, dict):
                    self._swap_entry_in_place(entry)
        self._swap_cohere_outputs(tree)

    def _swap_entry_in_place(self, entry: Node) -> None:
        for message in entry_messages(entry):
            for call in message.tool_calls:
                self._counts[call.name] = nth = self._counts.get(call.name, 0) + 1
                place = NumberedCall(call.name, nth, call.arguments)
                self.seen.append(call.name)
                self._open.append(place)
                if call.id:
                    self.calls[call.id] = place
        if entry.get("role") in ("tool", "function") and not _has_result_blocks(entry):
            # Chat completions, Ollama, Cohere v2, or OpenAI's old functions.
            found = self._take_override(entry.get("tool_call_id"), entry.get("tool_name") or entry.get("name"))
            if found is not None:
                entry["content"] = _build_content(entry.get("content"), found)
        else:
            for block in _iter_entry_and_blocks(entry):
                self._swap_block_in_place(block)
        self._swap_cohere_outputs(entry)

    # -- the result of which call?

    def _take_override(self, call_id: object, name: object) -> ToolOverride | None:
        if (place := self._find_call_of_result(call_id, name)) is None:
            return None
        if place in self._open:
            self._open.remove(place)
        self.seen.append(place.tool)
        self._results[place.tool] = max(self._results.get(place.tool, 0), place.nth)
        found = self._overrides.find_tool_override(place.tool, place.nth, place.arguments)
        if found is not None:
            self.swaps.append(Swap(found, place))
        return found

    def _find_call_of_result(self, call_id: object, name: object) -> NumberedCall | None:
        if isinstance(call_id, str) and call_id and (place := self.calls.get(call_id) or self._known(call_id)):
            return place
        for tool in (name, call_id):  # without ids, some clients send the tool's name as id
            if isinstance(tool, str) and tool and (tool is name or tool in self._counts):
                waiting = next((each for each in self._open if each.tool == tool), None)
                return waiting or NumberedCall(tool, self._results.get(tool, 0) + 1)
        return self._open[0] if self._open and not call_id else None

    # -- the shapes of results

    def _swap_block_in_place(self, block: Node) -> None:
        kind = block.get("type")
        if kind in ("tool_result", "mcp_tool_result"):
            if (found := self._take_override(block.get("tool_use_id"), None)) is not None:
                block["content"] = _build_content(block.get("content"), found)
                block.pop("is_error", None)
        elif isinstance(kind, str) and kind.endswith("_call_output"):
            if (found := self._take_override(block.get("call_id"), None)) is not None:
                block["output"] = _build_content(block.get("output"), found)
        elif isinstance(result := block.get("toolResult"), dict):
            if (found := self._take_override(result.get("toolUseId"), None)) is not None:
                value = found.parsed_value
                result["content"] = [{"json": value} if isinstance(value, dict) else {"text": found.text}]
                if result.get("status") == "error":
                    result["status"] = "success"
        else:
            for name in ("functionResponse", "function_response"):
                if isinstance(result := block.get(name), dict):
                    found = self._take_override(result.get("id"), result.get("name"))
                    if found is not None:
                        result["response"] = _build_object(result.get("response"), found)

    def _swap_cohere_outputs(self, tree: Node) -> None:
        """Replace outputs of Cohere v1, where the call itself is next to them."""
        for result in map(as_dict, as_list(tree.get("tool_results"))):
            found = self._take_override(None, as_dict(result.get("call")).get("name"))
            if found is not None:
                value = found.parsed_value
                result["outputs"] = value if isinstance(value, list) else [_build_object(None, found)]


def _has_result_blocks(entry: Node) -> bool:
    """Return whether a tool message's content contains its own results (parts under the role ``tool``)."""
    return any(block.keys() & {"functionResponse", "function_response", "toolResult"} or
               block.get("type") == "tool_result" for block in _iter_entry_and_blocks(entry))  # fmt: skip


def _iter_entry_and_blocks(entry: Node) -> Iterator[Node]:
    yield entry
    for name in ("content", "parts"):
        yield from (block for block in as_list(entry.get(name)) if isinstance(block, dict))


def _build_content(old: object, found: ToolOverride) -> object:
    """Return a result in the form of the old one: a text, or a list of blocks of its kind."""
    if not isinstance(old, list):
        return found.text
    first = as_dict(next((block for block in old if isinstance(block, dict)), None))
    if isinstance(document := first.get("document"), dict):  # Cohere v2
        return [{**first, "document": {**document, "data": found.text}}]
    kind = first.get("type")
    return [{"type": kind if kind in ("input_text", "output_text") else "text", "text": found.text}]


def _build_object(old: object, found: ToolOverride) -> object:
    """Return a result as an object, wrapped like the old one."""
    value = found.parsed_value
    wrapped = next((name for name in _WRAPPERS if isinstance(old, dict) and list(old) == [name]), None)
    if wrapped is not None and not (isinstance(value, dict) and list(value) == [wrapped]):
        inner = as_dict(old)[wrapped]
        return {wrapped: found.text if isinstance(inner, str) else value}
    return value if isinstance(value, dict) else {"result": value}
