"""Tool calls of a run for scripts: those in messages, and those only on the wire.

    messages + observed traffic before each of them -> ToolCalls, in order: `.first`, `.last`, `.inputs`, `.outputs`

A call in both is one call; if the messages lack its result, the wire's is used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

from llmproxy.core.traffic.canonical_json import parse_json_or_text
from llmproxy.scenario.types import Message
from llmproxy.trace.observing.tool_calls import ToolUse

type _Wire = Mapping[int, Sequence[ToolUse]]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call. A missing one (`ToolCalls.first` of none) is false."""

    name: str
    input: Any = None
    """Its arguments."""
    output: Any = None
    """Its result; None if not observed."""
    turn: int | None = None
    source: str | None = None
    """``message``, ``wire`` or ``server``; None for a missing call."""

    def __bool__(self) -> bool:
        return self.source is not None


class ToolCalls(Sequence[ToolCall]):
    def __init__(self, calls: Sequence[ToolCall], name: str | None = None) -> None:
        self._calls = tuple(calls)
        self._name = name or ""

    @overload
    def __getitem__(self, index: int) -> ToolCall: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ToolCall]: ...
    def __getitem__(self, index: int | slice) -> ToolCall | Sequence[ToolCall]:
        return self._calls[index]

    def __len__(self) -> int:
        return len(self._calls)

    def __repr__(self) -> str:
        return f"ToolCalls({list(self._calls)!r})"

    @property
    def first(self) -> ToolCall:
        """The first call; a false one without input and output if there is none."""
        return self._calls[0] if self._calls else ToolCall(self._name)

    @property
    def last(self) -> ToolCall:
        """The last call; a false one without input and output if there is none."""
        return self._calls[-1] if self._calls else ToolCall(self._name)

    @property
    def inputs(self) -> list[Any]:
        return [call.input for call in self._calls]

    @property
    def outputs(self) -> list[Any]:
        return [call.output for call in self._calls]


@dataclass(frozen=True, slots=True)
class Turn:
    """The messages and tool calls of a turn."""

    index: int
    messages: list[Message]
    _calls: Sequence[ToolCall] = field(default=(), repr=False)

    def tool_calls(self, name: str | None = None) -> ToolCalls:
        return ToolCalls([call for call in self._calls if name in {None, call.name}], name)


def merge_calls(messages: Sequence[Message], turns: Sequence[int], wire: _Wire | None = None) -> list[ToolCall]:
    """Return all calls in order; `turns`: of each message, `wire`: calls by the position of the following message."""
    found: list[ToolCall] = []
    outputs = {str(each.get("tool_call_id")): each.get("content") for each in messages if each.get("role") == "tool"}
    for place, (message, turn) in enumerate(zip(messages, turns, strict=True)):
        found += [_read_wire_call(each, turn) for each in (wire or {}).get(place, ())]
        found += _read_message_calls(message, turn, outputs)
    found += [_read_wire_call(each, turns[-1] if turns else 0) for each in (wire or {}).get(len(messages), ())]
    return _drop_reported_wire_calls(found)


def render_message(message: Message) -> str:
    """Return a message as text: its content, then its tool calls as JSON."""
    content = message.get("content")
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) and part.get("type") == "text" else part for part in parts]
    found = [text if isinstance(text, str) else json.dumps(text, default=str) for text in texts if text is not None]
    found += [json.dumps(call, default=str) for call in message.get("tool_calls") or ()]
    return "\n".join(filter(None, found))


def _read_message_calls(message: Message, turn: int, outputs: Mapping[str, object]) -> list[ToolCall]:
    if message.get("role") != "assistant":
        return []
    calls = [call for call in message.get("tool_calls") or () if isinstance(call, Mapping)]
    return [
        ToolCall(
            str(function.get("name", "")),
            _parse_arguments(function.get("arguments")),
            outputs.get(str(call.get("id"))),
            turn,
            "message",
        )
        for call in calls
        if isinstance(function := call.get("function"), Mapping)
    ]


def _read_wire_call(call: ToolUse, turn: int) -> ToolCall:
    return ToolCall(call.name, _parse_arguments(call.arguments), call.result, turn, "wire")


def _drop_reported_wire_calls(calls: Sequence[ToolCall]) -> list[ToolCall]:
    """Return calls without those of the wire that a message of the same turn reports, matched one to one."""
    left = [call for call in calls if call.source == "wire"]
    if not any(call.source == "message" for call in calls) or not left:
        return list(calls)
    found: list[ToolCall] = []
    for call in calls:
        if call.source == "wire":
            continue
        said = (call.name, call.turn, call.input)
        twin = next((each for each in left if (each.name, each.turn, each.input) == said), None)
        if twin is not None:
            left.remove(twin)
        found.append(replace(call, output=twin.output) if twin is not None and call.output is None else call)
    return sorted([*found, *left], key=lambda call: -1 if call.turn is None else call.turn)


def _parse_arguments(arguments: object) -> object:
    """Return parsed arguments; the text itself if it is no JSON."""
    return parse_json_or_text(arguments) if isinstance(arguments, str) else arguments
