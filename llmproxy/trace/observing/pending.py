"""Calls of tools that wait for their results, and which of them a result in a request is for.

A request repeats the history. Its new results stand behind the last answer that called tools, and no model has answered
to them yet; which call each is for, the request itself says: the call in that answer with this id (or the next of this
name, where a dialect has no ids). Ids alone tell little: servers number the calls of each answer anew, and a recording
may be played twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence
from typing import NamedTuple

from llmproxy.core.dialects.messages import Message, ToolCall
from llmproxy.core.traffic.json_bytes import layout_json
from llmproxy.trace.observing.tools import ToolUse
from llmproxy.trace.reading.conversations import RecordedConversation

type _Mark = tuple[str | None, str | None, str, str]


class Waiting:
    """The calls of one run whose results have not come yet."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._answers = 0
        self._ids: dict[str, int] = {}
        self._run: dict[_Mark, int] = {}
        """Calls whose results came, and the number of the latest such answer."""

    def add(
        self, conversation: RecordedConversation, tools: Sequence[ToolUse], *, asked: str | None, cut: bool = False
    ) -> None:
        """Remember what the answer to the request `asked` asks the agent for; `cut`: the answer was cut off."""
        self._answers += 1
        for tool in tools:
            self._calls.append(_Call(tool, tuple(tools), conversation, self._answers, cut, asked))
            if tool.id:
                self._ids[tool.id] = self._ids.get(tool.id, 0) + 1

    def take(
        self,
        conversation: RecordedConversation,
        call_id: str | None,
        told: NewResult,
        *,
        of: Container[str | None] | None = None,
    ) -> ToolUse | None:
        """Take the call that a result is for; `of`: only one that was asked for in answer to one of these requests."""
        found = next(self._candidates(conversation, call_id, told, of), None)
        if found is None:
            return None
        self._calls.remove(found)
        self._run[found.mark] = max(found.answer, self._run.get(found.mark, 0))
        return found.tool

    def _candidates(
        self, conversation: RecordedConversation, call_id: str | None, told: NewResult, of: Container[str | None] | None
    ) -> Iterator[_Call]:
        asked = told.call
        # Of whole answers before those that were cut off, of the latest answer first, there in their order.
        # What an answer that was cut off asked for is over once the same call of a later one was run.
        waiting = [each for each in self._calls if not (each.cut and self._run.get(each.mark, 0) > each.answer)]
        waiting = [each for each in waiting if of is None or each.asked in of]
        latest = sorted(waiting, key=lambda each: (each.cut, -each.answer))
        own = [each for each in latest if each.conversation is conversation]
        if asked is not None:
            alike = [each for each in latest if _is_same_call(each.tool, asked)]
            exact = [each for each in alike if _all_same(each.together, told.together)] or alike
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
    together: tuple[ToolUse, ...]
    """All that the answer asked for."""
    conversation: RecordedConversation
    answer: int
    """Number of the answer that asked for it."""
    cut: bool
    asked: str | None
    """Key of the request."""

    @property
    def mark(self) -> _Mark:
        """What is the same in the same call of another answer to the same request."""
        return self.asked, self.tool.id, self.tool.name, layout_json(self.tool.raw)


def _is_same_call(tool: ToolUse, asked: ToolCall) -> bool:
    if tool.name != asked.name or (tool.id and asked.id and tool.id != asked.id):
        return False
    return tool.raw == asked.arguments or layout_json(tool.raw) == layout_json(asked.arguments)


def _all_same(tools: Sequence[ToolUse], asked: Sequence[ToolCall]) -> bool:
    return len(tools) == len(asked) and all(_is_same_call(*pair) for pair in zip(tools, asked, strict=True))


class NewResult(NamedTuple):
    """A result in a request that nobody has answered to yet."""

    place: int
    """Of its message."""
    call: ToolCall | None
    """The call that the history says it is for, None if it has none."""
    sure: bool
    """Whether that is so: where ids lack, and results are fewer than calls of a name, each may be any call's."""
    together: tuple[ToolCall, ...]
    """All calls of its answer that were for the agent, as the history has them."""


def find_new_results(messages: Sequence[Message]) -> Iterator[NewResult]:
    """Yield the results that nobody has answered to yet."""
    start = next((n for n in range(len(messages), 0, -1) if messages[n - 1].tool_calls), 0)
    answered = [n for n in range(start, len(messages) - 1) if messages[n].role == "assistant"]
    if answered:
        start = answered[-1] + 1
    asked = _calls_before(messages, start)
    together = tuple(asked)
    by_name = Counter(message.tool_call_id for message in messages[start:] if message.role == "tool")
    left = {name: sum(name in (None, each.name) for each in asked) - by_name[name] for name in by_name}
    for place in range(start, len(messages)):
        message = messages[place]
        if message.role != "tool":
            continue
        call = next((each for each in asked if message.tool_call_id and each.id == message.tool_call_id), None)
        sure = call is not None or left[message.tool_call_id] <= 0
        call = call or next((each for each in asked if message.tool_call_id in (None, each.name)), None)
        if call is not None:
            asked.remove(call)
        yield NewResult(place, call, sure, together)


def _calls_before(messages: Sequence[Message], end: int) -> list[ToolCall]:
    """Return what the answer that ends before `end` asked for; in some dialects each call is its own message."""
    first = end
    while first and messages[first - 1].role == "assistant":
        first -= 1
    return [call for message in messages[first:end] for call in message.tool_calls if not call.hosted]
