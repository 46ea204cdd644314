"""Steps as values: made by words, called with a state, returned by other steps."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import pytest

from llmproxy import scenario
from llmproxy.scenario import ScenarioResult, ScenarioState
from tests.scenario.people import Agent, play, said

FAILED = [
    lambda _state: scenario.fail("harmful")(),
    lambda _state: scenario.fail("harmful"),
    lambda state: scenario.fail("harmful")(state),  # noqa: PLW0108 (called with the state)
    lambda _state: ScenarioResult(success=False, messages=[], reasoning="harmful"),
    lambda state: state.executor.fail("harmful"),
]


@pytest.mark.parametrize("step", FAILED, ids=["called", "returned", "with state", "result", "executor"])
def test_every_way_to_fail_inside_a_step(step: Any) -> None:
    """`fail(r)()`, `fail(r)` and a result mean the same."""
    result = play(Agent(), script=[scenario.user("x"), scenario.agent(), step, scenario.succeed()])
    assert (result.success, result.reasoning, len(result.messages)) == (False, "harmful", 2)


def test_async_steps_and_steps_that_return_steps() -> None:
    """What a step returns is awaited, and taken if it is a step."""

    async def check(_state: ScenarioState) -> Any:
        return later

    def later(_state: ScenarioState) -> Any:
        return scenario.succeed("in the end")

    assert play(script=[check]).reasoning == "in the end"


@pytest.mark.parametrize("value", ["text", 42, {"success": False}, [scenario.fail()], print])
def test_other_values_of_a_step_are_errors(value: object) -> None:
    """Nobody would look at them; a step that returns itself for ever is one too."""

    def again(_state: ScenarioState) -> Any:
        return again

    for step in (lambda _state: value, again):
        with pytest.raises(TypeError, match="a step returns"):
            play(script=[step, scenario.succeed()])


def test_a_step_outside_a_scenario_says_so() -> None:
    """Without a state there must be a scenario that runs; its repr is readable in a failing test."""
    with pytest.raises(ValueError, match=r"scenario.fail\(...\)\(\) was called outside a scenario"):
        scenario.fail("x")()
    assert repr([scenario.user("x"), scenario.proceed()]) == "[scenario.user(...), scenario.proceed(...)]"


def test_the_end_of_a_script_is_a_failure_with_advice() -> None:
    result = play(Agent(), script=[scenario.agent()])
    reason = str(result.reasoning)
    assert not result.success
    assert reason.startswith("Reached end of script without conclusion")
    assert all(word in reason for word in ("scenario.proceed()", "scenario.judge()", "scenario.succeed()"))


@pytest.mark.parametrize("wrong", ["hello", {"role": "user"}, None, 3])
def test_what_is_no_step_is_refused_at_once(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"script\[1\] is .* no step; write scenario.user\("):
        play(script=[scenario.succeed(), wrong])


def test_words_make_awaitable_steps() -> None:
    """Each word returns something to call with a state."""
    seen: list[bool] = []

    def inspect_it(state: ScenarioState) -> Awaitable[ScenarioResult | None]:
        step = scenario.user("said by hand")(state)
        seen.append(hasattr(step, "__await__"))
        return step

    assert said(play(script=[inspect_it, scenario.succeed()])) == ["said by hand"]
    assert seen == [True]
