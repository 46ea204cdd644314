"""The conversation in a request, read once.

An agent sends everything said so far again with each request. `core.dialects.conversation.read_conversation` reads it all; here the part that
a recent request had already is found by comparing, and what was read then is used again: same messages, same objects.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from llmproxy.core.dialects.conversation import read_conversation
from llmproxy.core.dialects.messages import Message, entry_messages, words
from llmproxy.core.providers.routing import family_of
from llmproxy.core.traffic.interaction import Interaction

_REMEMBERED = 16
_LARGEST = 1 << 18
"""Bytes of a body that is remembered; so the memory is at most some megabytes."""
# A request with one of these is read as a whole: its conversation is not in `messages` alone.
_ELSEWHERE = frozenset({"instructions", "systemInstruction", "system_instruction", "preamble", "chat_history", "contents",
                        "input", "message", "prompt", "inputText", "inputs", "query", "texts", "content", "instances",
                        "request"})  # fmt: skip


class History:
    """What the last requests said."""

    def __init__(self) -> None:
        """Remember nothing yet."""
        self._recent: OrderedDict[int, tuple[list[Any], list[list[Message]]]] = OrderedDict()
        self._count = 0

    def messages(self, interaction: Interaction, tree: dict[str, Any]) -> Sequence[Message]:
        """Return the conversation in a request, whose body is `tree`: what `core.dialects.conversation.read_conversation` returns."""
        entries = tree.get("messages")
        if not isinstance(entries, list) or tree.keys() & _ELSEWHERE:
            family = family_of(interaction.provider, interaction.operation)
            return read_conversation(family, interaction.operation, interaction.request.body)
        read = self._read(entries)
        if len(interaction.request.body) <= _LARGEST:
            self._count += 1
            self._recent[self._count] = entries, read
            if len(self._recent) > _REMEMBERED:
                self._recent.popitem(last=False)
        system = words(tree["system"]) if tree.get("system") else ""
        messages = [Message("system", system)] if system else []
        messages += [message for found in read for message in found if _says(message)]
        return messages

    def _read(self, entries: list[Any]) -> list[list[Message]]:
        best: list[list[Message]] = []
        source = None
        for number in reversed(self._recent):
            known, read = self._recent[number]
            same = 0
            while same < min(len(known), len(entries)) and known[same] == entries[same]:
                same += 1
            if same > len(best):
                best, source = read[:same], number
            if same == len(known):
                break  # the request before this one of the same conversation
        if source is not None:
            del self._recent[source]  # what goes on with it takes its place
        return best + [entry_messages(entry) for entry in entries[len(best) :]]


class PlainMessages:
    """Messages as plain values; the same message gives the same object, so that long histories cost little."""

    def __init__(self) -> None:
        """Remember nothing yet."""
        self._made: OrderedDict[int, tuple[Message, dict[str, Any]]] = OrderedDict()

    def of(self, message: Message) -> dict[str, Any]:
        """Return role, content, tool calls, the id of the call that it answers, and reasoning, as far as there is any."""
        known = self._made.get(id(message))  # what is remembered is alive, so its id is nobody else's
        if known is not None:
            return known[1]
        plain = _plain(message)
        self._made[id(message)] = message, plain
        if len(self._made) > _PLAIN:
            self._made.popitem(last=False)
        return plain


_PLAIN = 512


def _plain(message: Message) -> dict[str, Any]:
    plain: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.tool_calls:
        plain["tool_calls"] = [
            {"id": call.id, "name": call.name, "arguments": call.arguments} for call in message.tool_calls
        ]
    if message.tool_call_id:
        plain["tool_call_id"] = message.tool_call_id
    if message.reasoning:
        plain["reasoning"] = message.reasoning
    return plain


def _says(message: Message) -> bool:
    return bool(message.text or message.tool_calls or message.reasoning or message.tool_call_id)
