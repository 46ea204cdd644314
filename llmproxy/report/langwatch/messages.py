"""Messages as a LangWatch endpoint takes them: with an id, and with text where a conversation may have parts.

Nothing is refused: a message without content is posted with an empty one, a role that is not known as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass(kw_only=True)
class FunctionCall:
    """A function and its arguments, as JSON text."""

    name: str
    arguments: str

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"name": self.name, "arguments": self.arguments}


@dataclass(kw_only=True)
class LangWatchToolCall:
    id: str
    function: FunctionCall
    type_: str = "function"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"id": self.id, "type": self.type_, "function": self.function.to_dict()}


@dataclass(kw_only=True)
class MessageType:
    kind: ClassVar[str] = ""
    id: str
    role: str = ""
    content: str = ""

    def __post_init__(self) -> None:
        """Fill in the role of the class."""
        self.role = self.role or self.kind

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"id": self.id, "role": self.role, "content": self.content}


@dataclass(kw_only=True)
class DeveloperMessage(MessageType):
    kind: ClassVar[str] = "developer"


@dataclass(kw_only=True)
class SystemMessage(MessageType):
    kind: ClassVar[str] = "system"


@dataclass(kw_only=True)
class UserMessage(MessageType):
    kind: ClassVar[str] = "user"


@dataclass(kw_only=True)
class AssistantMessage(MessageType):
    """What the agent said, and which tools it called."""

    kind: ClassVar[str] = "assistant"
    tool_calls: list[LangWatchToolCall] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return super().to_dict() | {"toolCalls": [each.to_dict() for each in self.tool_calls]}


@dataclass(kw_only=True)
class ToolMessage(MessageType):
    kind: ClassVar[str] = "tool"
    tool_call_id: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return super().to_dict() | {"toolCallId": self.tool_call_id}


_KINDS: dict[str, type[MessageType]] = {each.kind: each for each in (DeveloperMessage, SystemMessage, UserMessage)}


def convert_messages_to_api_client_messages(messages: Iterable[Mapping[str, Any]]) -> list[MessageType]:
    """Return a conversation in the endpoint's form; a message's id is its place unless it has one."""
    return [_convert_message(index, message) for index, message in enumerate(messages)]


def _convert_message(index: int, message: Mapping[str, Any]) -> MessageType:
    said, role = message.get("content"), str(message.get("role"))
    content = said if isinstance(said, str) else "" if said is None else str(said)
    name = str(message.get("id") or f"scenariomsg_{index}")
    if role == "assistant":
        calls = [_call(number, call) for number, call in enumerate(message.get("tool_calls") or ())]
        return AssistantMessage(id=name, content=content, tool_calls=calls)
    if role == "tool":
        return ToolMessage(id=name, content=content, tool_call_id=str(message.get("tool_call_id") or ""))
    return _KINDS.get(role, MessageType)(id=name, role=role, content=content)


def _call(number: int, call: Mapping[str, Any]) -> LangWatchToolCall:
    function = call.get("function") or {}
    made = FunctionCall(name=str(function.get("name", "unknown")), arguments=str(function.get("arguments", "{}")))
    return LangWatchToolCall(id=str(call.get("id") or f"call_{number}"), function=made)
