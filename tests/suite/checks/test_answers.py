"""What is said about an answer: its text, the JSON in it."""

from __future__ import annotations

import pytest

from llmproxy.report.events import Status
from llmproxy.suite.checks.answers import check_text
from llmproxy.suite.checks.tools import all_hold
from llmproxy.suite.matchers.variables import VariableScope
from llmproxy.suite.schema.response import Response

ANSWER = "Task 'Buy milk' created successfully."


@pytest.mark.parametrize(
    ("wanted", "answer", "holds"),
    [
        ({"contains": ["created", "successfully"]}, ANSWER, True),
        ({"contains": ["created", "failed"]}, ANSWER, False),
        ({"contains": "CREATED"}, ANSWER, False),
        ({"contains": "CREATED", "ignoreCase": True}, ANSWER, True),
        ({"notContains": ["error", "failed"]}, ANSWER, True),
        ({"regex": "Task .* created"}, ANSWER, True),
        ({"regex": "^created"}, ANSWER, False),
        ({"json": {"a.b": {"gt": 1}}}, '```json\n{"a": {"b": 2}}\n```', True),
        ({"json": {"a.b": 3}}, '{"a": {"b": 2}}', False),
        ({"json": {"$": {"eq": [1]}}}, "[1]", True),
        ({"json": {"a": 1}}, "no json", False),
        ({"anyOf": [{"contains": "x"}, {"contains": "milk"}]}, ANSWER, True),
        ({"not": {"contains": "milk"}}, ANSWER, False),
    ],
)
def test_text_is_matched(wanted: object, answer: str, holds: bool) -> None:
    """And what does not hold shows the answer."""
    found = check_text(Response.model_validate(wanted), answer, VariableScope())
    assert all_hold(found) is holds
    for each in found:
        if each.status is Status.FAILED:
            assert any(word in each.message for word in ("milk", "found 2", "no JSON")), each.message


@pytest.mark.slow
def test_a_pattern_that_never_ends_is_an_error() -> None:
    """Neither a pass nor a failure, and not for ever."""
    (found,) = check_text(Response.model_validate({"regex": "(a|a)*$"}), "a" * 40 + "b", VariableScope())
    assert found.status is Status.ENVIRONMENT_ERROR
