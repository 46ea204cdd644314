"""The order of tool calls: one after the other, before, after; calls of one answer are at once."""

from __future__ import annotations

from typing import Any

import pytest

from llmproxy.report.events import Status
from llmproxy.suite.checks.tools import check_expected_tool_calls, check_tool_sequence
from llmproxy.suite.matchers.variable_references import CaseVariables
from llmproxy.suite.schema.assertions import ToolExpect
from llmproxy.trace.observing.agent_activity import AgentActivity
from llmproxy.trace.observing.tool_calls import ExchangeTimesForOrdering, ToolUse
from tests.support.messages import asks, call, user
from tests.trace.observing.chats import Chats


def calls(*answers: str) -> list[ToolUse]:
    """Return the calls of answers; names with a + between them are of one answer."""
    return [
        ToolUse(name, "{}", f"{seq}{name}", seq, 100 + seq)
        for seq, answer in enumerate(answers, 1)
        for name in answer.split("+")
    ]


def step(*answers: str) -> Any:
    chats = Chats()
    for seq, answer in enumerate(answers):
        asked = [call(name, {}, f"{seq}{name}") for name in answer.split("+")]
        chats.chat([user(f"x{seq}")], asks(*asked), tools=answer.split("+"))
    return chats.wire.build_step(0)


@pytest.mark.parametrize(("answers", "names", "message"), [
    (["search", "book"], ["search", "book"], ""),
    (["search", "look", "search", "book", "search"], ["search", "book"], ""),
    (["search", "search"], ["search", "search"], ""),
    (["book", "search"], ["search", "book"], "book was not called after search (interaction 102); the calls: book, search"),
    (["search+book"], ["search", "book"], "book was not called after search (interaction 101); the calls: search with book"),
    (["book"], ["search", "book"], "search was not called; the calls: book"),
    ([], ["search", "book"], "search was not called; no tool was called in this step"),
])  # fmt: skip
def test_one_after_the_other(answers: list[str], names: list[str], message: str) -> None:
    found = check_tool_sequence(names, AgentActivity(tools=calls(*answers)))
    assert (found.status, found.message) == (Status.FAILED if message else Status.PASSED, message)


@pytest.mark.parametrize(("answers", "wanted", "message"), [
    (["search", "book"], {"book": {"after": "search"}}, ""),
    (["search", "book"], {"search": {"before": "book"}}, ""),
    (["book", "search", "book"], {"book": {"after": "search"}}, "book was called before search; the calls: book, search, book"),
    (["search", "book", "search"], {"search": {"before": "book"}}, "search was not called before book"),
    (["search+book"], {"book": {"after": "search"}}, "book was called before search"),
    (["search+book"], {"search": {"before": "book"}}, "search was not called before book"),
    (["book"], {"book": {"after": "search"}}, "search was never called"),
    (["search"], {"search": {"before": "book"}}, "book was never called"),
    (["search"], {"book": {"after": "search"}}, "book was never called"),
    (["search"], {"book": {"count": 0, "after": "search"}}, ""),
    (["search"], {"book": {"count": {"lte": 1}, "after": "search"}}, "book was never called"),
])  # fmt: skip
def test_before_and_after(answers: list[str], wanted: dict[str, object], message: str) -> None:
    """Every call of the tool, and the other one is called as well."""
    expected = {name: ToolExpect.model_validate(value) for name, value in wanted.items()}
    found = check_expected_tool_calls(expected, step(*answers), CaseVariables())
    found = [each for each in found if each.status is not Status.PASSED]
    assert [message in each.message for each in found] == ([True] if message else [])


def asked(place: int, live: tuple[float, float], recorded: tuple[float, float]) -> ToolUse:
    """Return a call of the tool number `place`."""
    return ToolUse("ab"[place], "{}", "x", place + 1, 100 + place, asking=ExchangeTimesForOrdering(live, recorded))


@pytest.mark.parametrize(("live", "recorded", "status"), [
    (((0, 1), (2, 3)), ((0, 1), (2, 3)), Status.PASSED),
    (((0, 4), (2, 3)), ((0, 4), (2, 3)), Status.FAILED),
    # replayed in no time: when they were recorded they were at once
    (((5, 5), (6, 6)), ((0, 4), (2, 3)), Status.FAILED),
    # recorded one by one, the second first; or one recording for both
    (((5, 5), (6, 6)), ((9, 10), (2, 3)), Status.PASSED),
    (((5, 5), (6, 6)), ((2, 3), (2, 3)), Status.PASSED),
])  # fmt: skip
def test_answers_that_come_at_the_same_time_are_in_no_order(live: Any, recorded: Any, status: Status) -> None:
    """Whoever was sent first may be answered last; what was asked for with the result of the other in hand came later."""
    uses = [asked(n, live[n], recorded[n]) for n in (0, 1)]
    assert check_tool_sequence(["a", "b"], AgentActivity(tools=uses)).status is status
    assert check_tool_sequence(["b", "a"], AgentActivity(tools=uses)).status is Status.FAILED
    uses[0].heard = 2
    assert check_tool_sequence(["a", "b"], AgentActivity(tools=uses)).status is Status.PASSED


def test_any_way_through_the_calls_will_do() -> None:
    """The first call of a tool may still go on when a second one of it is over."""
    uses = [asked(0, (0, 9), (0, 9)), asked(0, (1, 2), (1, 2)), asked(1, (3, 4), (3, 4))]
    for number, use in enumerate(uses, 1):
        use.seq = number
    assert check_tool_sequence(["a", "b"], AgentActivity(tools=uses)).status is Status.PASSED
    assert check_tool_sequence(["a", "a"], AgentActivity(tools=uses)).status is Status.FAILED
