"""The values of users: roles, input, result."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmproxy.report.events import PartyUse, Status
from llmproxy.scenario import AgentInput, AgentRole, CriterionResult, ScenarioResult


def given(*new: dict[str, Any]) -> AgentInput:
    """Return an input with new messages."""
    return AgentInput(thread_id="t", messages=[], new_messages=list(new), scenario_state=None)


def test_roles_have_their_words() -> None:
    """In the order in which they speak."""
    assert [role.value for role in AgentRole] == ["User", "Agent", "Judge"]


def test_the_last_new_user_message() -> None:
    """The newest of the new ones, whatever others said after it."""
    found = given({"role": "user", "content": "1"}, {"role": "user", "content": "2"}, {"role": "tool", "content": "3"})
    assert found.last_new_user_message() == {"role": "user", "content": "2"}
    assert found.last_new_user_message_str() == "2"


def test_no_user_message_is_an_error_with_advice() -> None:
    """The literal that users know."""
    with pytest.raises(ValueError, match="No new user messages found") as caught:
        given({"role": "assistant", "content": "1"}).last_new_user_message()
    assert str(caught.value) == (
        "No new user messages found, did you mean to call the assistant twice? "
        "Perhaps change your adapter to use the full messages list instead."
    )


def test_a_user_message_that_is_no_text_is_an_error_with_advice() -> None:
    """Also for what merely behaves like a text."""

    class Text(str):
        __slots__ = ()

    for content in ([1], None, Text("x")):
        with pytest.raises(ValueError, match="Please use the full messages list instead") as caught:
            given({"role": "user", "content": content}).last_new_user_message_str()
        assert str(caught.value).startswith(f"Last user message is not a string: {content!r}.")


def test_the_llm_is_in_no_dump() -> None:
    """Nothing that a cache key is made from names a session."""
    dump = given().model_dump()
    assert set(dump) == {
        "thread_id",
        "messages",
        "new_messages",
        "judgment_request",
        "scenario_state",
        "propagation_headers",
    }
    assert given().llm is None


@pytest.mark.parametrize(
    ("success", "reasoning", "want"),
    [
        (True, "ok", "ScenarioResult(success=True, status=PASSED, reasoning='ok')"),
        (False, None, "ScenarioResult(success=False, status=FAILED, reasoning='None')"),
        (False, "it's", "ScenarioResult(success=False, status=FAILED, reasoning='it's')"),
    ],
)
def test_the_repr_of_a_result(success: bool, reasoning: str | None, want: str) -> None:
    """The literal that users know; nothing of ours is in it."""
    assert repr(ScenarioResult(success=success, messages=[], reasoning=reasoning)) == want


def test_documented_defaults_of_a_result() -> None:
    """As the pages list them; what only a proxy knows is None or empty, never 0."""
    result = ScenarioResult(success=True, messages=[])
    assert (result.passed_criteria, result.failed_criteria, result.total_time, result.agent_time) == (
        [],
        [],
        None,
        None,
    )
    assert (result.tool_calls, result.replayed, result.waited, dict(result.usage)) == (None, None, None, {})
    assert ScenarioResult(success=True, messages=[]).passed_criteria is not result.passed_criteria


def test_the_status_follows_success_unless_it_is_said() -> None:
    """A crash is no mere failure."""
    assert ScenarioResult(success=True, messages=[]).status is Status.PASSED
    assert ScenarioResult(success=False, messages=[]).status is Status.FAILED
    assert ScenarioResult(success=False, messages=[], status=Status.AGENT_ERROR).status is Status.AGENT_ERROR


def test_a_result_can_be_dumped() -> None:
    """As data and as JSON, with what is inside."""
    result = ScenarioResult(
        success=True,
        messages=[{"role": "user", "content": "ü"}],
        criteria=[CriterionResult(id="c1", text="polite", status="passed")],
        usage={"agent": PartyUse(calls=1)},
    )
    dump = result.model_dump(exclude_none=True)
    assert dump["criteria"][0]["text"] == "polite"
    assert "total_time" not in dump
    assert json.loads(result.model_dump_json(indent=1))["usage"]["agent"]["calls"] == 1


def test_a_criterion_survives_a_copy() -> None:
    """Deep copies and pickles keep what the judge restated; without that it is the criterion."""
    import copy
    import pickle

    made = CriterionResult(criterion="polite", requirement="is polite", reasoning="said please", status="passed")
    for again in (copy.deepcopy(made), pickle.loads(pickle.dumps(made)), copy.copy(made)):
        assert (again, again.requirement, again.reasoning) == (made, "is polite", "said please")
    result = ScenarioResult(success=True, messages=[], criteria=[CriterionResult(criterion="c", status="passed")])
    assert result.model_copy(deep=True).criteria[0].requirement == "c"
