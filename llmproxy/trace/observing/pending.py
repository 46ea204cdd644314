"""Calls of tools that wait for their results, and which of them a result in a request is for.

A request repeats the history. Its new results stand behind the last answer that called tools, and no model has answered to them yet; which
call each is for, the request itself says: the call in that answer with this id (or the next of this name, where a dialect has no ids).
Ids alone tell little: servers number the calls of each answer anew, and a recording may be played twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from llmproxy.core.dialects.messages import Message, ToolCall
    from llmproxy.trace.observing.tools import ToolUse
    from llmproxy.trace.reading.conversations import RecordedConversation

__all__ = ["Waiting", "find_new_results"]


class Waiting:
    """The calls of one run whose results have not come yet."""

    def __init__(self) -> None:
        """Know none."""
        self._calls: list[_Call] = []
        self._answers = 0
        self._ids: dict[str, int] = {}

    def add(self, conversation: RecordedConversation, tools: Sequence[ToolUse], *, cut: bool = False) -> None:
        """Remember what an answer asks the agent for; `cut`: the answer was cut off."""
        self._answers += 1
        for tool in tools:
            self._calls.append(_Call(tool, conversation, self._answers, cut))
            if tool.id:
                self._ids[tool.id] = self._ids.get(tool.id, 0) + 1

    def take(self, conversation: RecordedConversation, call_id: str | None, asked: ToolCall | None) -> ToolUse | None:
        """Take the call that a result is for; `asked` is the call as the request's own history has it, None if it has none."""
        found = next(self._candidates(conversation, call_id, asked), None)
        if found is None:
            return None
        self._calls.remove(found)
        return found.tool

    def _candidates(
        self, conversation: RecordedConversation, call_id: str | None, asked: ToolCall | None
    ) -> Iterator[_Call]:
        # Of whole answers before those that were cut off, of the latest answer first, there in their order.
        latest = sorted(self._calls, key=lambda each: (each.cut, -each.answer))
        own = [each for each in latest if each.conversation is conversation]
        if asked is not None:
            exact = [each for each in latest if _same(each.tool, asked)]
            yield from (each for each in own if each in exact)
            yield from exact
        by_id = [each for each in latest if call_id and each.tool.id == call_id]
        if self._ids.get(call_id or "") == 1:
            yield from by_id
        if asked is None:
            yield from (each for each in own if each in by_id)
            last = own[0].answer if own else 0
            yield from (each for each in own if each.answer == last and call_id in (None, each.tool.name))


class _Call(NamedTuple):
    tool: ToolUse
    conversation: RecordedConversation
    answer: int
    """Number of the answer that asked for it."""
    cut: bool


def _same(tool: ToolUse, asked: ToolCall) -> bool:
    if tool.name != asked.name or (tool.id and asked.id and tool.id != asked.id):
        return False
    return tool.raw == asked.arguments or _layout(tool.raw) == _layout(asked.arguments)


def _layout(text: str) -> str:
    try:
        return json.dumps(json.loads(text or "{}"), sort_keys=True)
    except (ValueError, RecursionError):
        return text


def find_new_results(messages: Sequence[Message]) -> Iterator[tuple[int, ToolCall | None]]:
    """Yield the places of the results that nobody has answered to yet, with the call that the history says each is for."""
    start = next((n for n in range(len(messages), 0, -1) if messages[n - 1].tool_calls), 0)
    answered = [n for n in range(start, len(messages) - 1) if messages[n].role == "assistant"]
    if answered:
        start = answered[-1] + 1
    asked = list(messages[start - 1].tool_calls) if start and messages[start - 1].tool_calls else []
    for place in range(start, len(messages)):
        message = messages[place]
        if message.role != "tool":
            continue
        call = next((each for each in asked if message.tool_call_id and each.id == message.tool_call_id), None)
        call = call or next((each for each in asked if message.tool_call_id in (None, each.name)), None)
        if call is not None:
            asked.remove(call)
        yield place, call
