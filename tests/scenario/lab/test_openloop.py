"""A recorded user's lines, the agent of today."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from llmproxy import scenario
from llmproxy.errors import SettingsError
from llmproxy.scenario.lab.judgements import Transcript
from llmproxy.scenario.lab.openloop import OpenLoop, open_loop
from llmproxy.scenario.values.run import RunOptions
from tests.scenario.people import Agent, Ear, Judge, User, finished, said


def message(role: str, content: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return a message."""
    return {"role": role, "content": content, **more}


SAID = [
    message("user", "hello"),
    message("assistant", "hi"),
    message("user", "weather?"),
    message("assistant", "", tool_calls=[{"id": "1", "function": {"name": "w", "arguments": "{}"}}]),
    message("tool", "12", tool_call_id="1"),
    message("assistant", "12 degrees"),
    message("user", "thanks"),
]


def loop(*agents: Any, messages: list[dict[str, Any]] = SAID, ear: Ear | None = None, **given: Any) -> OpenLoop:  # noqa: ANN401
    """Play it."""
    options = RunOptions(proxy=False, handlers=(ear,) if ear else ())
    return asyncio.run(
        open_loop(Transcript(id="t", messages=messages, description="d"), agents, options=options, **given)
    )


def test_the_first_other_answer_marks_the_run() -> None:
    """In the result and in its events; the user's lines go on as they were."""
    ear = Ear()
    found = loop(Agent("hi", "13 degrees"), Judge(), ear=ear)
    assert (found.turn, found.recorded, found.said) == (2, "12 degrees", "13 degrees")
    assert found.label == "open-loop from turn 2"
    assert "open-loop from turn 2" in found.result.labels
    assert "open-loop from turn 2" in finished(ear).labels
    assert said(found.result) == ["hello", "hi", "weather?", "13 degrees", "thanks"]
    assert found.result.success


def test_the_same_answers_are_no_open_loop() -> None:
    """Texts count, not how the agent came to them."""
    found = loop(Agent("hi", "12 degrees"), Judge())
    assert (found.turn, found.label, list(found.result.labels)) == (None, "", [])


def test_an_agent_that_says_nothing_says_something_else() -> None:
    """And the first difference stays the one that is told."""
    found = loop(Agent([], "13 degrees"), Judge())
    assert (found.turn, found.recorded, found.said) == (1, "hi", "")


def test_what_comes_before_the_user_is_kept() -> None:
    """A system message, an agent that speaks first: scripted, not asked, and no turn of their own."""
    agent = Agent("hi!")
    messages = [message("system", "Be brief."), message("assistant", "Welcome"), *SAID[:2]]
    found = loop(agent, Judge(), messages=messages)
    assert said(found.result) == ["Be brief.", "Welcome", "hello", "hi!"]
    assert (found.turn, len(agent.inputs)) == (1, 1)


def test_what_the_agent_raises_is_raised() -> None:
    """As in any run."""
    with pytest.raises(RuntimeError, match="down"):
        loop(Agent(RuntimeError("down")), Judge())


@pytest.mark.parametrize(
    ("agents", "says"),
    [
        ((Agent(), User(), Judge()), "everything is live"),
        ((Agent(), User()), "the recorded judge judged another"),
        ((Agent(),), "what the user and judge would answer"),
        ((Judge(),), "no agent among the agents"),
    ],
)
def test_other_casts_are_refused(agents: tuple[Any, ...], says: str) -> None:
    """With the reason."""
    with pytest.raises(SettingsError, match=says):
        loop(*agents)


def test_a_conversation_without_a_user_is_refused() -> None:
    """There are no lines to play."""
    with pytest.raises(SettingsError, match="nobody speaks as the user"):
        loop(Agent(), Judge(), messages=[message("assistant", "hi")])


def test_it_is_recorded_under_its_own_name() -> None:
    """Never over the recording that it is compared with."""
    agent = Agent("hi", "12 degrees")
    loop(agent, Judge())
    names = {given.scenario_state.executor.cassette for given in agent.inputs}
    assert names == {"t-open-loop-" + name.rpartition("-")[2] for name in names}
    assert isinstance(agent.inputs[0], scenario.AgentInput)
