"""Turn whatever an adapter returns into messages, and copy messages so that nobody's changes leak.

    text -> one message;  dict or model with a role -> its JSON form;  list of those -> each;  anything else ->
    ValueError

A message is never decorated: what comes out holds the author's keys and no others. An adapter that leaves a
conversation which goes on by itself returns its last messages as a Farewell: a list like any other, perhaps an empty
one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any, cast

from llmproxy.scenario.types import AgentRole, Message

_KEPT = ("role", "content", "tool_calls", "tool_call_id", "name")
"""Members of a message object that are kept even where they equal the default of their class."""
_SHOWN = 100
"""Characters of a wrong return value that the error quotes."""


def copy_value[T](value: T) -> T:
    """Return a copy that shares no list and no dict with the value; a message of JSON values is copied whole."""
    if isinstance(value, dict):
        return cast("T", {key: copy_value(each) for key, each in value.items()})
    if isinstance(value, list):
        return cast("T", [copy_value(each) for each in value])
    return value


def copies(messages: Iterable[Message]) -> list[Message]:
    return [copy_value(message) for message in messages]


def text_of(message: Message) -> str:
    """Return what a message says, as text: parts that are no text are left out."""
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "\n".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else "" if content is None else str(content)


def messages_of(returned: object, role: AgentRole, author: str) -> list[Message]:
    """Return the messages that an adapter of class `author` meant. Raises ValueError: what it should return."""
    if isinstance(returned, str):
        return [{"role": "user" if role is AgentRole.USER else "assistant", "content": returned}]
    several = returned if isinstance(returned, list) else [returned]
    try:
        return [_to_dict(each) for each in several]
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(_wrong_return_error(returned, author)) from error


def as_message(content: object, role: AgentRole) -> Message:
    """Return what a script wrote down as a message of this role; a dict is used as it is."""
    if isinstance(content, dict):
        return copy_value(cast("Message", content))
    return messages_of(content, role, "script")[0]


def not_awaitable(author: str) -> str:
    """Return the text for an adapter whose `call` is not async."""
    return (
        f"The call method of the {author} agent adapter returned a non-awaitable response, "
        "you probably forgot to add the async keyword to the method definition:\n\n"
        f"    class {author}(scenario.AgentAdapter):\n"
        "        async def call(self, input: scenario.AgentInput) -> scenario.AgentReturnTypes:\n"
        "            ...\n"
    )


def _to_dict(message: object) -> Message:
    if isinstance(message, dict):
        if "role" not in message:
            raise ValueError("no role")
        found: dict[str, Any] = message
    elif _is_model(message) and hasattr(message, "role"):
        dump = cast("Any", message).model_dump
        found = dump(exclude_unset=True, exclude_none=True, exclude_defaults=True, warnings=False)
        for name in _KEPT:
            value = getattr(message, name, None)
            if name not in found and value is not None:
                found[name] = value
    else:
        raise ValueError("neither dict nor message")
    return cast("Message", json.loads(json.dumps(found, default=_encode_value)))


def _encode_value(value: object) -> object:
    if _is_model(value):
        return cast("Any", value).model_dump(exclude_unset=True)
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def _is_model(value: object) -> bool:
    """Return whether it is a pydantic object; nobody has one who has not imported pydantic."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(value, pydantic.BaseModel)


def _wrong_return_error(returned: object, author: str) -> str:
    shown = repr(returned)
    shown = shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "..."
    return (
        f"On the call method of the {author} agent adapter, you returned:\n\n    {shown}\n\n"
        "But the adapter should return either a string, a dict on the OpenAI messages format, or a list of messages in "
        "the "
        "OpenAI messages format so the testing agent can understand what happened. For example:\n\n"
        f"    class {author}(scenario.AgentAdapter):\n"
        "        async def call(self, input: scenario.AgentInput) -> scenario.AgentReturnTypes:\n"
        "            response = call_my_agent(input.messages)\n"
        '            return response.output_text    # or [{"role": "assistant", "content": response.output_text}]\n'
    )


class Farewell(list[Message]):
    """Last messages. The judge is next, and has to decide."""

    def __init__(self, messages: Iterable[Message] = (), *, reached: bool | None = None) -> None:
        """Leave with these words; `reached`: with what one came for, None if one does not say."""
        super().__init__(messages)
        self.reached = reached
