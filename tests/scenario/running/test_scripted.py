"""The verbs of a script: what they add, whom they call, what begins a new turn, what ends the run."""

# ruff: noqa: ANN401

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from llmproxy import scenario
from llmproxy.scenario import AgentInput, ScenarioResult, ScenarioState
from tests.scenario.people import Agent, Judge, User, executor, play, roles, said

OPEN = ScenarioResult(success=False, messages=[], reasoning="unsure", inconclusive_criteria=["polite"])


def test_text_is_said_and_nobody_is_called() -> None:
    """Scripted content takes the place of the agent."""
    user, agent = User(), Agent()
    result = play(user, agent, script=[scenario.user("hi"), scenario.agent("hello"), scenario.succeed()])
    assert result.messages == [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    assert user.inputs == agent.inputs == []


def test_empty_text_is_said_too() -> None:
    """Only None calls the simulator."""
    user = User("simulated")
    assert said(play(user, Agent(), script=[scenario.user(""), scenario.agent(""), scenario.succeed()])) == ["", ""]
    assert user.inputs == []


def test_a_dict_is_used_as_it_is() -> None:
    """Also with a role that is not the verb's."""
    odd = {"role": "assistant", "content": None, "name": "x"}
    assert play(User(), script=[scenario.user(odd), scenario.succeed()]).messages == [odd]


def test_a_scripted_user_needs_no_simulator() -> None:
    """Nobody has to play the user to be quoted; two lines are two turns."""
    turns: list[int] = []
    script = [scenario.user("1"), lambda s: turns.append(s.current_turn), scenario.agent(), scenario.user("2")]
    result = play(Agent("a"), script=[*script, lambda s: turns.append(s.current_turn), scenario.agent()])
    assert said(result) == ["1", "a", "2", "a"]
    assert turns == [0, 1]


def test_two_answers_in_a_row_are_two_turns() -> None:
    """The turn counter goes up when a role has spoken already."""
    turns: list[int] = []

    def note(state: ScenarioState) -> None:
        turns.append(state.current_turn)

    play(Agent(), script=[scenario.agent(), note, scenario.agent(), note])
    assert turns == [0, 1]


def test_scripted_steps_are_not_limited_by_max_turns() -> None:
    """Only proceed looks at the limit."""
    assert len(play(Agent(), script=[scenario.agent()] * 5, max_turns=2).messages) == 5


@pytest.mark.parametrize(
    ("step", "want"),
    [
        (scenario.user(), "role `User` because no agent with this role was found, please add a scenario.UserSimulatorAgent() to"),
        (scenario.judge(), "role `Judge` because no agent with this role was found, please add a scenario.JudgeAgent()"),
        (scenario.agent(), "role `Agent` because no agent with this role was found, please add your agent"),
        (scenario.agent("hello"), "role `Agent` with content `hello` because no agent with this role was found"),
        (scenario.message({"role": "assistant", "content": "x"}), "with content `{'role': 'assistant', 'content': 'x'}`"),
    ],
)  # fmt: skip
def test_a_role_that_nobody_plays_is_an_error_that_says_what_to_add(step: Any, want: str) -> None:
    """The content is quoted where there is some."""
    with pytest.raises(ValueError, match="Cannot generate") as caught:
        play(script=[step])
    assert want in str(caught.value)


@pytest.mark.parametrize(("role", "first"), [("user", "u"), ("assistant", "a"), ("system", "s"), ("tool", "t")])
def test_message_adds_any_role(role: str, first: str) -> None:
    """A user's and an assistant's message take the turn of that role, others none."""
    seen: list[int] = []
    message = {"role": role, "content": "x", "tool_call_id": "1"}
    step = scenario.message(message)
    result = play(Agent(), script=[step, step, lambda s: seen.append(s.current_turn), scenario.succeed()])
    assert roles(result) == first * 2
    assert seen == [1 if first in "ua" else 0]


def test_proceed_counts_the_turn_of_its_first_step() -> None:
    """After user and agent, with a judge pending: the judge and one whole turn; without one, two whole turns."""
    start = [scenario.user("x"), scenario.agent(), scenario.proceed(turns=2)]
    assert roles(play(User(), Agent(), Judge([]), script=start)) == "uaua"
    assert roles(play(User(), Agent(), script=start)) == "uauaua"


@pytest.mark.parametrize("turns", [0, 1])
def test_no_turns_are_one(turns: int) -> None:
    """proceed(turns=0) is proceed(turns=1)."""
    assert roles(play(User(), Agent(), script=[scenario.proceed(turns=turns)])) == "ua"


def test_proceed_without_a_number_goes_on_to_the_limit() -> None:
    """None: until there is a result."""
    assert roles(play(User(), Agent(), script=[scenario.proceed()], max_turns=4)) == "ua" * 4


def test_on_turn_is_called_when_a_turn_begins() -> None:
    """Never for the first, and once more for the turn that is one too many."""
    turns: list[int] = []
    play(User(), Agent(), script=[scenario.proceed(on_turn=lambda s: turns.append(s.current_turn))], max_turns=3)
    assert turns == [1, 2, 3]


@pytest.mark.parametrize("turns", [None, 2])
def test_on_turn_end_is_called_when_a_turn_has_ended(turns: int | None) -> None:
    """Once for every turn in which somebody spoke, with that turn's number."""
    ended: list[tuple[int, int]] = []

    async def note(state: ScenarioState) -> None:
        ended.append((state.current_turn, len(state.messages)))

    play(User(), Agent(), script=[scenario.proceed(turns=turns, on_turn_end=note)], max_turns=2)
    assert ended == [(0, 2), (1, 4)]


def test_on_turn_end_sees_the_turn_of_the_result() -> None:
    """A turn that a verdict ends has ended; one in which proceed did nothing is none of its turns."""
    ended: list[int] = []
    end = ScenarioResult(success=True, messages=[])
    script = [
        scenario.user("x"),
        scenario.agent(),
        scenario.proceed(on_turn_end=lambda s: ended.append(s.current_turn)),
    ]
    play(User(), Agent("a", end), script=script)
    assert ended == [1]


def test_on_step_is_called_after_every_call() -> None:
    """Also after the one that ended the run."""
    counts: list[int] = []
    end = ScenarioResult(success=True, messages=[])
    play(User(), Agent(), Judge([], end), script=[scenario.proceed(on_step=lambda s: counts.append(len(s.messages)))])
    assert counts == [1, 2, 2, 3, 4, 4]


@pytest.mark.parametrize("name", ["on_turn", "on_step", "on_turn_end"])
def test_what_a_callback_raises_comes_out(name: str) -> None:
    """Callbacks are a place for assertions."""

    async def refuse(_state: ScenarioState) -> None:
        raise AssertionError("too slow")

    callback: dict[str, Any] = {name: refuse}
    with pytest.raises(AssertionError, match="too slow"):
        play(User(), Agent(), script=[scenario.proceed(None, **callback)], max_turns=2)


def test_judge_demands_a_verdict() -> None:
    """The script step sets judgment_request."""
    judge = Judge()
    assert play(Agent(), judge, script=[scenario.agent(), scenario.judge()]).success
    assert judge.inputs[0].judgment_request


def test_text_for_the_judge_is_context_and_no_message() -> None:
    """Nothing joins the conversation."""
    judge = Judge()
    result = play(Agent("a"), judge, script=[scenario.agent(), scenario.judge("The refund was paid out.")])
    assert judge.inputs[0].judgment_context == "The refund was paid out."
    assert said(result) == ["a"]


def test_an_open_verdict_in_mid_script_lets_the_script_go_on() -> None:
    """Something is inconclusive, nothing failed, and there is more to come."""
    result = play(
        Agent(), Judge(OPEN), script=[scenario.agent(), scenario.judge(), scenario.agent(), scenario.succeed("end")]
    )
    assert (result.success, result.reasoning, len(result.messages)) == (True, "end", 2)


def test_an_open_verdict_at_the_end_is_the_end() -> None:
    """No steps remain: it is the result, and no pass."""
    result = play(Agent(), Judge(OPEN), script=[scenario.agent(), scenario.judge()])
    assert (result.success, result.reasoning, result.inconclusive_criteria) == (False, "unsure", ["polite"])


@pytest.mark.parametrize(
    "verdict",
    [
        ScenarioResult(success=False, messages=[], failed_criteria=["a"], inconclusive_criteria=["b"], reasoning="end"),
        ScenarioResult(success=True, messages=[], passed_criteria=["a"], reasoning="end"),
        ScenarioResult(success=False, messages=[], reasoning="end"),
    ],
    ids=["failed and open", "passed", "failed"],
)
def test_a_decided_verdict_in_mid_script_ends_it(verdict: ScenarioResult) -> None:
    """A criterion failed, or all passed."""
    result = play(Agent(), Judge(verdict), script=[scenario.judge(), scenario.agent(), scenario.succeed()])
    assert (result.reasoning, result.messages) == ("end", [])


def test_succeed_and_fail_have_their_words() -> None:
    """Defaults that tests assert, and times."""
    passed, failed = play(script=[scenario.succeed()]), play(script=[scenario.fail()])
    assert (passed.success, passed.reasoning) == (True, "Scenario marked as successful with scenario.succeed()")
    assert (failed.success, failed.reasoning) == (False, "Scenario marked as failed with scenario.fail()")
    assert play(script=[scenario.fail("because")]).reasoning == "because"
    assert None not in (passed.total_time, passed.agent_time, failed.total_time)


def test_verbs_return_results_by_hand() -> None:
    """Without run, judge and agent hand back the result."""
    made = executor(Agent(ScenarioResult(success=False, messages=[])), Judge(OPEN))

    async def by_hand() -> list[Any]:
        return [await made.agent(), await made.judge(), await made.user("x"), await made.succeed("s")]

    ended, verdict, nothing, passed = asyncio.run(by_hand())
    assert (ended.success, verdict.reasoning, nothing, passed.success) == (False, "unsure", None, True)


def test_an_adapter_can_add_messages_meanwhile() -> None:
    """Through the state that it is given."""

    def add(given: AgentInput) -> str:
        given.scenario_state.add_message({"role": "system", "content": "looked it up"})
        return "found"

    assert said(play(Agent(add), script=[scenario.user("?"), scenario.agent()])) == ["?", "looked it up", "found"]
