"""A farewell ends the turns that go on by themselves; the judge is next and must decide."""

from __future__ import annotations

from typing import Any

from llmproxy import scenario
from llmproxy.scenario.values.farewell import Farewell
from tests.scenario.people import Agent, Judge, User, play, roles, said

BYE = Farewell([{"role": "user", "content": "bye"}])


def test_the_judge_decides_after_a_farewell() -> None:
    """Row 32: the last words join the conversation, the agent is not called again, and the verdict is demanded."""
    agent, judge = Agent(), Judge()
    result = play(agent, User("hi", BYE), judge)
    assert (roles(result), said(result)[-1], result.success) == ("uau", "bye", True)
    assert [bool(given.judgment_request) for given in judge.inputs] == [False, True]
    assert len(agent.inputs) == 1


def test_a_silent_farewell_adds_nothing() -> None:
    """Row 32: somebody may leave without a word."""
    assert roles(play(Agent(), User("hi", Farewell()), Judge())) == "ua"


def test_without_a_judge_the_script_goes_on() -> None:
    """What comes after `proceed` is played; at the end the result says who ended it."""
    seen: list[int] = []
    script: list[Any] = [
        scenario.proceed(),
        lambda state: seen.append(len(state.messages)),
        scenario.succeed("all good"),
    ]
    assert play(Agent(), User("hi", BYE), script=script).reasoning == "all good"
    assert seen == [3]
    assert (play(Agent(), User("hi", BYE)).reasoning or "").startswith(
        "The user ended the conversation, and no judge decided."
    )


def test_a_later_proceed_begins_anew() -> None:
    """A farewell ends one `proceed`, not the scenario."""
    result = play(
        Agent(), User("hi", BYE, "again"), script=[scenario.proceed(), scenario.proceed(turns=1), scenario.succeed()]
    )
    assert roles(result) == "uauua"


def test_the_farewell_of_an_agent_means_nothing() -> None:
    """Only the user can leave; from anybody else it is a list of messages."""
    leaving = Farewell([{"role": "assistant", "content": "bye"}])
    assert roles(play(Agent(leaving), User(), max_turns=2)) == "uaua"
