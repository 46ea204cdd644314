"""Tokens, calls and cost against what was reported; what was not is an error."""

from __future__ import annotations

from typing import Any

from llmproxy.report.events import Assertion, Status
from llmproxy.suite.checks.chat_step_assertions import check_token_usage_and_cost
from llmproxy.suite.matchers.apply import all_assertions_hold
from llmproxy.suite.matchers.variable_references import CaseVariables
from llmproxy.suite.schema.assertions import Usage
from tests.support.messages import said, user
from tests.trace.observing.chats import Chats


def check(step: Any, **wanted: Any) -> list[Assertion]:
    return check_token_usage_and_cost(Usage.model_validate(wanted), step, CaseVariables())


def step(*usages: dict[str, Any] | None) -> Any:
    chats = Chats()
    for number, usage in enumerate(usages):
        chats.chat([user(f"x{number}")], said("y"), usage=usage)
    return chats.wire.build_step(0)


COUNTED = {"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 40}}


def test_numbers_are_compared() -> None:
    """All keys must hold, each is an assertion of its own."""
    wanted = {"inputTokens": {"gt": 0}, "totalTokens": {"lt": 50000}, "callCount": 2, "cacheReadTokens": 80}
    found = check(step(COUNTED, COUNTED), **wanted)
    assert all_assertions_hold(found)
    assert [each.name for each in found] == [
        "usage.inputTokens.gt", "usage.totalTokens.lt", "usage.callCount", "usage.cacheReadTokens",
    ]  # fmt: skip
    assert {each.evidence for each in found} == {"recorded"}
    assert not all_assertions_hold(check(step(COUNTED), totalTokens={"lt": 10}))


def test_what_was_not_reported_is_an_error() -> None:
    """OpenAI has no such number: not 0, not a pass, not a failure."""
    for wanted in ({"gt": 0}, 0, {"lte": 5}):
        (found,) = check(step(COUNTED), cacheCreationTokens=wanted)
        assert (found.status, "not reported" in found.message) == (Status.ENVIRONMENT_ERROR, True)


def test_the_known_part_may_decide() -> None:
    """One call of two reported 40 cached tokens: that is more than 0, whatever the other one did; an upper bound is not known."""
    some = step(COUNTED, {"prompt_tokens": 10, "completion_tokens": 1})
    (found,) = check(some, cacheReadTokens={"gt": 0})
    assert (found.status, found.evidence) == (Status.PASSED, "lower bound")
    for wanted in ({"lt": 1000}, 40, {"gt": 100}):
        assert check(some, cacheReadTokens=wanted)[0].status is Status.ENVIRONMENT_ERROR


def test_any_branch_is_enough() -> None:
    """A branch that cannot be told does not matter where another one holds; siblings must hold as well."""
    cold_or_warm = [{"cacheCreationTokens": {"gt": 0}}, {"cacheReadTokens": {"gt": 0}}]
    assert all_assertions_hold(check(step(COUNTED), anyOf=cold_or_warm))
    none = check(step({"prompt_tokens": 1, "completion_tokens": 1}), anyOf=cold_or_warm)
    assert none[0].status is Status.ENVIRONMENT_ERROR
    assert check(step(COUNTED), anyOf=[{"callCount": 7}])[0].status is Status.FAILED
    assert not all_assertions_hold(check(step(COUNTED), callCount=9, anyOf=cold_or_warm))
    assert all_assertions_hold(check(step(COUNTED), allOf=[{"callCount": 1}, {"inputTokens": 100}]))


def test_an_estimate_has_to_be_asked_for() -> None:
    """Without usage in the answer it is an error, with `estimate` a number that says what it is."""
    silent = step({})
    assert check(silent, inputTokens={"lt": 100})[0].status is Status.ENVIRONMENT_ERROR
    (found,) = check(silent, inputTokens={"lt": 100}, estimate=True)
    assert (found.status, found.evidence) == (Status.PASSED, "estimated")


def test_costs_are_decimal_dollars() -> None:
    assert all_assertions_hold(check(step(COUNTED), costUsd={"gt": 0, "lt": 0.01}))


def test_times_are_those_of_the_recording() -> None:
    """All calls together, and the slowest first bytes; in replay it is said that they were recorded."""
    found = check(step(COUNTED, COUNTED), latencyMs={"lte": 2}, firstTokenMs={"lt": 2})
    assert all_assertions_hold(found)
    assert {each.evidence for each in found} == {"recorded"}
    (slow,) = check(step(COUNTED, COUNTED), latencyMs={"lt": 2})
    assert (slow.status, slow.actual) == (Status.FAILED, 2)


def test_times_that_nobody_has_are_an_error() -> None:
    """Passed through and not recorded: not 0."""
    chats = Chats()
    chats.chat([user("x")], said("y"), recorded=False, decision="PASS")
    (found,) = check(chats.wire.build_step(0), latencyMs={"lt": 1000})
    assert (found.status, "latencyMs is not known" in found.message) == (Status.ENVIRONMENT_ERROR, True)
