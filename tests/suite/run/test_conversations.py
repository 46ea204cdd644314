"""Which conversation a step speaks in, and what the agent is given of it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from llmproxy.errors import AgentError, LLMProxyError
from llmproxy.scenario.agent_adapter import AgentAdapter
from llmproxy.scenario.running.agent_caller import AgentCaller
from llmproxy.scenario.types import AgentInput, AgentReturnTypes, ScenarioResult
from llmproxy.suite.run.step_context import (
    NamedConversationRegistry,
    StepContext,
    SuiteAgentCaller,
    SuiteConversation,
    UserIdForAgent,
)


class Agent(AgentAdapter):
    """Answers with what it was told to; remembers what it was given."""

    def __init__(self, answer: Any = "ok") -> None:
        self.answer = answer
        self.given: list[AgentInput] = []

    async def call(self, input: AgentInput) -> AgentReturnTypes:  # noqa: A002
        self.given.append(input)
        if isinstance(self.answer, Exception):
            raise self.answer
        if isinstance(self.answer, float):
            await asyncio.sleep(self.answer)
        return self.answer


class Listener:
    async def on_answer(self, conversation: object, answer: object) -> None:
        pass

    def on_user_message(self, conversation: object, message: object) -> None:
        pass

    def on_agent_message(self, conversation: object, message: object, *, first: bool) -> None:
        pass


def talks(
    agent: Agent | None = None, sample: int = 1, *, fresh: bool = False, limit: float = 5
) -> NamedConversationRegistry:
    """Return the conversations of a run with an agent that may take so many seconds for an answer."""
    asking = SuiteAgentCaller(limit)
    caller = AgentCaller(None, ask=asking.call_adapter_in_time, read=asking.read_answer)

    def make(name: str, thread: str) -> SuiteConversation:
        listener = cast("StepContext", Listener())
        return SuiteConversation(
            name, thread, agent or Agent(), caller, player=UserIdForAgent("anna"), listener=listener
        )

    return NamedConversationRegistry("c", sample, make, fresh=fresh)


def say(talk: SuiteConversation, text: str) -> str:
    return asyncio.run(talk.send_user_message(text))


def test_a_step_opens_a_conversation_of_its_own() -> None:
    known = talks()
    first, second = known.choose_conversation(), known.choose_conversation()
    assert first is not second
    assert known.choose_conversation(goes_on=True) is second
    named = known.choose_conversation("a")
    assert (known.choose_conversation("b") is named, known.choose_conversation("a") is named) == (False, True)
    assert known.choose_conversation(goes_on=True) is named
    assert (known.find_conversation("a"), known.find_conversation(None), known.find_conversation("z")) == (
        named, named, None,
    )  # fmt: skip


def test_there_must_be_something_to_go_on_with() -> None:
    with pytest.raises(LLMProxyError, match="no step has talked"):
        talks().choose_conversation(goes_on=True)


def test_ids_are_those_of_the_recording_or_new() -> None:
    """The same in every execution of a run, others in another run; new each time for an agent that outlives it."""
    ids = [talks(sample=sample).choose_conversation("a").thread_id for sample in (1, 1, 2)]
    assert (ids[0] == ids[1], ids[0] == ids[2]) == (True, False)
    assert talks().choose_conversation().thread_id != talks().choose_conversation("a").thread_id
    assert talks(fresh=True).choose_conversation("a").thread_id != talks(fresh=True).choose_conversation("a").thread_id


def test_an_agent_is_given_the_history_and_what_is_new() -> None:
    agent = Agent()
    talk = talks(agent).choose_conversation()
    say(talk, "one")
    answer = say(talk, "two")
    last = agent.given[-1]
    assert [message["content"] for message in last.messages] == ["one", "ok", "two"]
    assert [message["content"] for message in last.new_messages] == ["two"]
    assert (answer, last.scenario_state.user_id, last.thread_id) == ("ok", "anna", talk.thread_id)


def test_the_last_words_are_the_answer() -> None:
    messages = [
        {"role": "assistant", "content": "looking"},
        {"role": "tool", "tool_call_id": "c", "content": "found"},
        {"role": "assistant", "content": "here it is"},
        {"role": "assistant", "content": ""},
    ]
    assert say(talks(Agent(messages)).choose_conversation(), "x") == "here it is"


@pytest.mark.parametrize(("answer", "message"), [
    ("", "empty answer"), ([], "empty answer"), (KeyError("oops"), "KeyError"), (7, "returned"), (0.5, "within 0.05 s"),
    (ScenarioResult(success=True, messages=[]), "ScenarioResult"), (TimeoutError("mine"), "raised TimeoutError"),
    (asyncio.CancelledError(), "nobody cancelled it"),
])  # fmt: skip
def test_what_is_no_answer_is_the_agents_error(answer: object, message: str) -> None:
    agent = Agent(answer)
    if isinstance(answer, asyncio.CancelledError):

        async def cancelled(_: object) -> str:
            raise answer

        agent.call = cancelled  # type: ignore[method-assign,assignment]
    with pytest.raises(AgentError, match=message):
        say(talks(agent, limit=0.05).choose_conversation(), "x")
