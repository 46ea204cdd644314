"""The values of users: roles, input, result."""

from __future__ import annotations

from typing import Any, get_type_hints

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError, create_model

from llmproxy import scenario
from llmproxy.report.events import PartyUse, Status
from llmproxy.scenario import AgentInput, CriterionResult, ModelConfig, ScenarioConfig, ScenarioResult, ScenarioState
from llmproxy.trace.observing.tool_calls import ToolUse
from tests.scenario.people import Agent


def given(*new: dict[str, Any]) -> AgentInput:
    return AgentInput(thread_id="t", messages=[], new_messages=list(new), scenario_state=None)


def test_the_last_new_user_message() -> None:
    """The newest of the new ones, whatever others said after it; none is an error with the advice that users know."""
    found = given({"role": "user", "content": "1"}, {"role": "user", "content": "2"}, {"role": "tool", "content": "3"})
    assert found.last_new_user_message() == {"role": "user", "content": "2"}
    assert found.last_new_user_message_str() == "2"
    with pytest.raises(
        ValueError, match=r"^No new user messages found, did you mean to call the assistant twice\? "
    ) as caught:
        given({"role": "assistant", "content": "1"}).last_new_user_message()
    assert str(caught.value).endswith("Perhaps change your adapter to use the full messages list instead.")


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
        "thread_id", "messages", "new_messages", "judgment_request", "scenario_state", "propagation_headers",
    }  # fmt: skip
    assert given().llm is None


@pytest.mark.parametrize(("success", "reasoning", "want"), [
    (True, "ok", "ScenarioResult(success=True, status=PASSED, reasoning='ok')"),
    (False, None, "ScenarioResult(success=False, status=FAILED, reasoning='None')"),
    (False, "it's", "ScenarioResult(success=False, status=FAILED, reasoning='it's')"),
])  # fmt: skip
def test_the_repr_of_a_result(success: bool, reasoning: str | None, want: str) -> None:
    """The literal that users know; nothing of ours is in it."""
    assert repr(ScenarioResult(success=success, messages=[], reasoning=reasoning)) == want


def test_documented_defaults_of_a_result() -> None:
    """As the pages list them; what only a proxy knows is None or empty, never 0; the status follows success."""
    result = ScenarioResult(success=True, messages=[])
    assert (result.passed_criteria, result.failed_criteria, result.total_time, result.agent_time) == (
        [], [], None, None,
    )  # fmt: skip
    assert (result.tool_calls, result.replayed, result.waited, dict(result.usage)) == (None, None, None, {})
    assert ScenarioResult(success=True, messages=[]).passed_criteria is not result.passed_criteria
    assert (result.status, ScenarioResult(success=False, messages=[]).status) == (Status.PASSED, Status.FAILED)
    assert ScenarioResult(success=False, messages=[], status=Status.AGENT_ERROR).status is Status.AGENT_ERROR


def test_a_criterion_survives_a_copy() -> None:
    """Deep copies and pickles keep what the judge restated; without that it is the criterion."""
    import copy
    import pickle

    made = CriterionResult(criterion="polite", requirement="is polite", reasoning="said please", status="passed")
    for again in (copy.deepcopy(made), pickle.loads(pickle.dumps(made)), copy.copy(made)):
        assert (again, again.requirement, again.reasoning) == (made, "is polite", "said please")
    result = ScenarioResult(success=True, messages=[], criteria=[CriterionResult(criterion="c", status="passed")])
    assert result.model_copy(deep=True).criteria[0].requirement == "c"


RESULT = ScenarioResult(
    success=False,
    messages=[{"role": "user", "content": [{"type": "text", "text": "hi"}], "odd": object()}],
    reasoning="because",
    criteria=[CriterionResult(criterion="polite", requirement="is polite", status="failed", votes=("failed",))],
    status=Status.AGENT_ERROR,
    usage={"agent": PartyUse(calls=1, cost_usd="0.1")},
    tool_calls=(ToolUse("look_up", '{"n": 1}', "c1", 1, 7),),
    labels=("late",),
)


def test_a_result_is_made_again_of_its_dump() -> None:
    """With the objects that it holds; messages are the very ones, whatever is in them."""
    made = ScenarioResult(**RESULT.model_dump())
    assert made == RESULT
    assert made != RESULT.model_copy(update={"success": True})
    assert (made.criteria[0].requirement, made.usage["agent"].calls) == ("is polite", 1)
    assert made.tool_calls
    assert made.tool_calls[0].arguments == {"n": 1}
    plain = RESULT.model_copy(update={"messages": []})
    assert ScenarioResult.model_validate_json(plain.model_dump_json()) == plain


VALUES: list[BaseModel] = [
    RESULT,
    given({"role": "user", "content": "1"}),
    ScenarioConfig(default_model=ModelConfig(model="m", temperature=0.3)),
    ScenarioState(description="d", messages=[], thread_id="t", current_turn=0, config=ScenarioConfig()),
]
OWN = [type(each) for each in VALUES]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_are_models_of_pydantic(value: BaseModel) -> None:
    """By isinstance, in a model of one's own, with TypeAdapter; type hints can be read and a schema made."""
    kind = type(value)
    holder = create_model("Holder", inner=(kind, ...))
    assert isinstance(value, BaseModel)
    assert getattr(holder(inner=value), "inner") is value  # noqa: B009 (a field made at run time)
    dumped = holder(inner=value).model_dump()
    assert holder.model_validate(dumped).model_dump() == dumped
    assert TypeAdapter(kind).validate_python(value.model_dump()) == value
    assert TypeAdapter(list[kind]).validate_python([value]) == [value]  # type: ignore[valid-type] # made at run time
    assert set(kind.model_json_schema()["properties"]) == set(kind.model_fields)
    assert holder.model_json_schema()["$defs"]
    assert get_type_hints(kind)


@pytest.mark.parametrize("kind", OWN)
def test_what_is_no_such_value_is_refused(kind: type[BaseModel]) -> None:
    """By pydantic's own error, which is a ValueError; also a field that nobody knows."""
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        kind(nothing_of_the_kind=1)
    with pytest.raises(ValidationError):
        kind.model_validate("x")


def test_messages_are_not_checked_and_not_copied() -> None:
    """A message may be an object of any library; the list is the one that was given."""
    messages: list[Any] = [{"role": "user", "content": None, "tool_calls": ({"id": 1},)}, RESULT]
    state = ScenarioState(description="d", messages=messages, thread_id="t", current_turn=0, config=ScenarioConfig())
    result = ScenarioResult(success=True, messages=messages)
    entry = AgentInput(thread_id="t", messages=messages, new_messages=messages, scenario_state=state)
    assert all(each is messages for each in (state.messages, result.messages, entry.messages, entry.new_messages))


@pytest.mark.parametrize(
    ("said", "asked", "context"),
    [
        (True, True, None), (False, False, None), (None, False, None),
        ({"criteria": ["c"], "additional_context": "The shop is closed."}, True, "The shop is closed."),
    ],
)  # fmt: skip
def test_a_judgment_is_asked_for_by_a_bool_too(said: Any, asked: bool, context: str | None) -> None:
    """Which was right before 1.6; a mapping is the request in plain data."""
    made = AgentInput(thread_id="t", messages=[], new_messages=[], scenario_state=None, judgment_request=said)
    assert (bool(made.judgment_request), made.judgment_context) == (asked, context)


def test_a_deep_copy_shares_the_run_alone() -> None:
    """A state can be copied while its scenario runs."""
    seen: list[ScenarioState] = []

    def look(state: ScenarioState) -> None:
        made = state.model_copy(deep=True)
        made.messages.clear()
        assert made.executor is state.executor
        seen.append(state)

    scenario.run_sync("n", "d", [Agent()], script=[scenario.user("hi"), look, scenario.succeed()], verbose=False)
    assert seen[0].messages == [{"role": "user", "content": "hi"}]
