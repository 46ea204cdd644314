"""Which conversation a step speaks in, and what the agent is given of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from llmproxy.errors import AgentError, LLMProxyError
from llmproxy.scenario.agent_adapter import AgentAdapter
from llmproxy.scenario.running.conversing.calling import Caller
from llmproxy.scenario.types import AgentInput, AgentReturnTypes, ScenarioResult
from llmproxy.suite.run.acting.conversations import Conversation, Conversations, speak


class Agent(AgentAdapter):
    """Answers with what it was told to; remembers what it was given."""

    def __init__(self, answer: Any = "ok") -> None:  # noqa: ANN401
        self.answer = answer
        self.given: list[AgentInput] = []

    async def call(self, input: AgentInput) -> AgentReturnTypes:  # noqa: A002
        self.given.append(input)
        if isinstance(self.answer, Exception):
            raise self.answer
        if isinstance(self.answer, float):
            await asyncio.sleep(self.answer)
        return self.answer


def say(agent: Agent, conversation: Conversation, text: str, limit: float | None = 5) -> Any:  # noqa: ANN401
    """Speak."""
    return asyncio.run(speak(Caller(None), agent, conversation, text, limit=limit, user="anna"))


def test_a_step_opens_a_conversation_of_its_own() -> None:
    """Unless it names one, or goes on."""
    known = Conversations("c", 1)
    first, second = known.choose(), known.choose()
    assert first is not second
    assert known.choose(goes_on=True) is second
    named = known.choose("a")
    assert (known.choose("b") is named, known.choose("a") is named) == (False, True)
    assert known.choose(goes_on=True) is named
    assert (known.named("a"), known.named(None), known.named("z")) == (named, named, None)


def test_there_must_be_something_to_go_on_with() -> None:
    """The first step cannot."""
    with pytest.raises(LLMProxyError, match="no step has talked"):
        Conversations("c", 1).choose(goes_on=True)


def test_ids_are_those_of_the_recording_or_new() -> None:
    """The same in every execution of a run, others in another run; new each time for an agent that outlives it."""
    ids = [Conversations("c", sample).choose("a").thread_id for sample in (1, 1, 2)]
    assert (ids[0] == ids[1], ids[0] == ids[2]) == (True, False)
    assert Conversations("c", 1).choose().thread_id != Conversations("c", 1).choose("a").thread_id
    assert (
        Conversations("c", 1, fresh=True).choose("a").thread_id
        != Conversations("c", 1, fresh=True).choose("a").thread_id
    )


def test_an_agent_is_given_the_history_and_what_is_new() -> None:
    """And whose rows it works on."""
    agent, talk = Agent(), Conversations("c", 1).choose()
    say(agent, talk, "one")
    spoken = say(agent, talk, "two")
    last = agent.given[-1]
    assert [message["content"] for message in last.messages] == ["one", "ok", "two"]
    assert [message["content"] for message in last.new_messages] == ["two"]
    assert (spoken.text, last.scenario_state.user_id, last.thread_id) == ("ok", "anna", talk.thread_id)


def test_the_last_words_are_the_answer() -> None:
    """Of several messages, tool messages among them."""
    messages = [
        {"role": "assistant", "content": "looking"},
        {"role": "tool", "tool_call_id": "c", "content": "found"},
        {"role": "assistant", "content": "here it is"},
        {"role": "assistant", "content": ""},
    ]
    assert say(Agent(messages), Conversations("c", 1).choose(), "x").text == "here it is"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("", "empty answer"), ([], "empty answer"), (KeyError("oops"), "KeyError"), (7, "returned"), (0.5, "within 0.05 s"),
        (ScenarioResult(success=True, messages=[]), "ScenarioResult"), (TimeoutError("mine"), "raised TimeoutError"),
        (asyncio.CancelledError(), "nobody cancelled it"),
    ],
)  # fmt: skip
def test_what_is_no_answer_is_the_agents_error(answer: object, message: str) -> None:
    """Whatever it did, it was reached."""
    agent = Agent(answer)
    if isinstance(answer, asyncio.CancelledError):

        async def cancelled(_: object) -> str:
            raise answer

        agent.call = cancelled  # type: ignore[method-assign,assignment]
    with pytest.raises(AgentError, match=message):
        say(agent, Conversations("c", 1).choose(), "x", limit=0.05)
