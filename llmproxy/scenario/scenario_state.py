"""The state of a run for steps of a script, callbacks and adapters: its conversation and its tool calls.

A call both in messages and on the wire is one call; if the messages lack its result, the wire's is used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, overload

from pydantic import BaseModel, ConfigDict, PrivateAttr

from llmproxy.amount_formatting import format_count
from llmproxy.core.traffic.canonical_json import parse_json_or_text
from llmproxy.errors import MachineError
from llmproxy.scenario.config import ScenarioConfig
from llmproxy.scenario.types import Message, Messages
from llmproxy.scenario.values.run_ids_and_options import ScenarioExecutorProtocol
from llmproxy.trace.observing.tool_calls import ToolCallsAtMcpServers, ToolUse, diff_asked_and_served_tool_calls

type _Wire = Mapping[int, Sequence[ToolUse]]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call. A missing one (`ToolCalls.first` of none) is false."""

    name: str
    input: Any = None
    output: Any = None
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
        return self._calls[-1] if self._calls else ToolCall(self._name)

    @property
    def inputs(self) -> list[Any]:
        return [call.input for call in self._calls]

    @property
    def outputs(self) -> list[Any]:
        return [call.output for call in self._calls]


@dataclass(frozen=True, slots=True)
class Turn:
    index: int
    messages: list[Message]
    _calls: Sequence[ToolCall] = field(default=(), repr=False)

    def tool_calls(self, name: str | None = None) -> ToolCalls:
        return ToolCalls([call for call in self._calls if name in {None, call.name}], name)


def merge_message_and_wire_calls(
    messages: Sequence[Message], turns: Sequence[int], wire: _Wire | None = None
) -> list[ToolCall]:
    """Return all calls in order; `turns`: of each message, `wire`: calls by the position of the following message."""
    found: list[ToolCall] = []
    outputs = {str(each.get("tool_call_id")): each.get("content") for each in messages if each.get("role") == "tool"}
    for place, (message, turn) in enumerate(zip(messages, turns, strict=True)):
        found += [_build_wire_tool_call(each, turn) for each in (wire or {}).get(place, ())]
        found += _read_message_calls(message, turn, outputs)
    found += [_build_wire_tool_call(each, turns[-1] if turns else 0) for each in (wire or {}).get(len(messages), ())]
    return _drop_reported_wire_calls(found)


def render_message(message: Message) -> str:
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


def _build_wire_tool_call(call: ToolUse, turn: int) -> ToolCall:
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
    return parse_json_or_text(arguments) if isinstance(arguments, str) else arguments


class ScenarioState(BaseModel):
    model_config = ConfigDict(extra="forbid")

    description: str
    messages: Messages  # the conversation itself, not a copy
    thread_id: str
    current_turn: int  # from 0
    config: ScenarioConfig
    _executor: ScenarioExecutorProtocol | None = PrivateAttr(default=None)
    _message_turns: dict[int, int] = PrivateAttr(default_factory=dict)  # by identity of the message

    def bind(self, executor: ScenarioExecutorProtocol) -> Self:
        self._executor = executor
        return self

    @property
    def executor(self) -> ScenarioExecutorProtocol:
        """The executor of this scenario. Raises ValueError for an unattached state."""
        if self._executor is None:
            raise ValueError("this ScenarioState belongs to no running scenario.")
        return self._executor

    def add_message(self, message: Message) -> None:
        self.executor.add_message(message)

    def last_message(self) -> Message:
        """Return the newest message. Raises ValueError if there is none."""
        if not self.messages:
            raise ValueError("No messages found")
        return self.messages[-1]

    def last_user_message(self) -> Message:
        """Return the newest message of the user. Raises ValueError if there is none."""
        for message in reversed(self.messages):
            if message["role"] == "user":
                return message
        raise ValueError("No user messages found")

    def first_user_message(self) -> str:
        return next((render_message(each) for each in self.messages if each["role"] == "user"), "")

    def last_agent_message(self) -> str:
        return next((render_message(each) for each in reversed(self.messages) if each["role"] == "assistant"), "")

    def transcript(self) -> str:
        """Return the conversation, a line ``role: content`` for each message."""
        return "\n".join(f"{each['role']}: {render_message(each)}" for each in self.messages)

    @property
    def criteria(self) -> list[str]:
        return list(getattr(self._executor, "criteria", ()))

    @property
    def fields(self) -> dict[str, Any]:
        return dict(getattr(getattr(self._executor, "options", None), "fields", None) or {})

    def field(self, name: str) -> Any:
        """Return one of the fields; None if missing or empty."""
        value = self.fields.get(name)
        return None if value == "" else value

    def rollback_messages_to(self, index: int) -> list[Message]:
        """Remove and return all messages from an index on. Raises ValueError for an index below 0."""
        return self.executor.rollback_messages_to(index)

    def tool_calls(self, name: str | None = None) -> ToolCalls:
        """Return a tool's calls, or all, of messages and the wire. Raises MachineError: some may be missing."""
        if self._executor is not None:
            self._require_all_calls_seen(f"what {name!r} was called with" if name else "which tools were called")
        return ToolCalls([call for call in self._all_calls() if name in {None, call.name}], name)

    def server_calls(self, name: str | None = None) -> ToolCalls:
        """Return calls received by MCP servers with results, by the server's tool name, or all. Raises MachineError."""
        what = f"what a server got for {name!r}" if name else "what servers of tools got"
        chosen = [each for each in self._require_complete_served(what).tools if name in {None, each.name}]
        # Without turns, which servers do not know.
        return ToolCalls([ToolCall(each.name, each.arguments, each.result, None, "server") for each in chosen], name)

    def server_differences(self) -> list[str]:
        """Return differences between received and requested calls. Raises MachineError: unknown."""
        what = "whether servers got what models asked for"
        found = self._require_complete_served(what)
        self._require_all_calls_seen(what)
        return diff_asked_and_served_tool_calls(self.executor.wire_calls or (), found)

    def _require_complete_served(self, what: str) -> ToolCallsAtMcpServers:
        found = None if self._executor is None else self._executor.wire_served
        why = "there is no proxy, so the agent's traffic is not seen" if found is None else found.unknown_reason
        if found is None or why:
            raise MachineError(f"nobody can tell {what}: {why}.")
        if self.executor.unattributed:
            self._require_all_calls_seen(what)
        if unfinished := next((each for each in found.tools if each.output is None), None):
            raise MachineError(f"nobody can tell {what}: the answer of {unfinished.label} did not come whole.")
        return found

    @property
    def turns(self) -> list[Turn]:
        """Messages and calls by turn; one entry for each turn with messages."""
        numbers = self._list_turn_numbers()
        calls = self._all_calls()
        return [
            Turn(
                place,
                [message for message, of in zip(self.messages, numbers, strict=True) if of == number],
                [call for call in calls if call.turn == place],
            )
            for place, number in enumerate(dict.fromkeys(numbers))
        ]

    def record_message_turn(self, message: Message) -> None:
        self._message_turns[id(message)] = self.current_turn

    def _list_turn_numbers(self) -> list[int]:
        found: list[int] = []
        for message in self.messages:
            found.append(self._message_turns.get(id(message), found[-1] if found else 0))
        return found

    def _all_calls(self) -> list[ToolCall]:
        numbers = self._list_turn_numbers()
        places = {number: place for place, number in enumerate(dict.fromkeys(numbers))}
        wire = getattr(self._executor, "wire_by_message", None)
        return merge_message_and_wire_calls(self.messages, [places[number] for number in numbers], wire)

    def last_tool_call(self, tool_name: str) -> dict[str, Any] | None:
        """Return the newest call of a tool, in OpenAI's form; of one message the first.

        Searches the messages, then the wire. Raises MachineError if it finds none and unattributed calls arrived.
        """
        for message in reversed(self.messages):
            if message.get("role") == "assistant":
                for call in message.get("tool_calls") or ():
                    if (call.get("function") or {}).get("name") == tool_name:
                        return dict(call)
        if self._executor is not None:
            for seen in reversed(self._executor.wire_calls or ()):
                if seen.name == tool_name:
                    return seen.to_message()
            self._require_all_calls_seen(f"whether {tool_name!r} was called")
        return None

    def _require_all_calls_seen(self, what: str) -> None:
        """Raise MachineError if calls may be missing."""
        if unread := self.executor.wire_unread:
            raise MachineError(f"nobody can tell {what}: the answer of {unread}.")
        if unattributed := self.executor.unattributed:
            raise MachineError(
                f"nobody can tell {what}: {format_count(unattributed, 'call')} arrived at the proxy while no "
                "agent had the turn, and whose that is is not known.",
                hint="An agent that calls models after it has answered should send them by input.llm and set "
                "uses_session = True.",
            )

    def has_tool_call(self, tool_name: str) -> bool:
        return self.last_tool_call(tool_name) is not None
