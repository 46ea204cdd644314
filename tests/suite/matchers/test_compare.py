"""Comparisons beyond the table of matchers."""

from __future__ import annotations

import pytest

from llmproxy.report.events import Status
from llmproxy.suite.matchers.apply import check_value
from llmproxy.suite.matchers.compare import is_reference, strip_fence
from llmproxy.suite.matchers.variable_references import CaseVariables


@pytest.mark.parametrize(("text", "inside"), [
    ("```json\n{}\n```", "{}"),
    ("```\n{}\n```  ", "{}"),
    ("{}", "{}"),
    ("see:\n```\n{}\n```", "see:\n```\n{}\n```"),
    ("```", "```"),
])  # fmt: skip
def test_a_fence_around_the_whole_is_taken_off(text: str, inside: str) -> None:
    """Models like to put JSON into one; text around it makes it no JSON."""
    assert strip_fence(text) == inside


def test_references_are_told_from_texts() -> None:
    """Where a number is wanted, a reference is taken and a text is not."""
    assert [is_reference(each) for each in ("$a", "${a.b}", "${env:A}", {"ref": "$a"})] == [True] * 4
    assert [is_reference(each) for each in ("a $a", "$", 5, {"ref": "$a", "x": 1}, None)] == [False] * 5


def test_nothing_is_fetched_for_a_schema() -> None:
    """A reference to the network is an error, not a request."""
    (found,) = check_value("x", "{}", {"jsonSchema": {"$ref": "http://127.0.0.1:9/x.json"}}, CaseVariables())
    assert found.status is Status.ENVIRONMENT_ERROR
    assert "could not be evaluated" in found.message


def test_a_limit_that_is_known_late_may_be_wrong() -> None:
    """A reference to a text is no number: an error of the suite, not of the agent."""
    (found,) = check_value("x", 5, {"gt": "$v"}, CaseVariables({"v": "many"}))
    assert found.status is Status.ENVIRONMENT_ERROR
