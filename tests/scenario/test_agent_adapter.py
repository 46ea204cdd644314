"""The base class of adapters: one method to write, hooks that do nothing."""

# ruff: noqa: A002 (JSON, and adapters as their users write them)

from __future__ import annotations

import asyncio
from typing import Any

from llmproxy import scenario
from llmproxy.scenario import AgentAdapter, AgentInput, AgentRole
from llmproxy.scenario.agent_adapter import (
    OptionalAdapterAttributes,
    find_scenario_session,
    get_scenario_description,
    get_tool_calls_seen_by_proxy,
    is_conversation_unscripted,
)
from tests.scenario.people import Agent, User, play, said


class Echo(AgentAdapter):
    """Written as in the documentation; its own constructor calls no other."""

    def __init__(self, word: str) -> None:
        self.word = word

    async def call(self, input: AgentInput) -> str:
        return f"{self.word} {input.last_new_user_message_str()}"


def test_only_call_has_to_be_written() -> None:
    """No constructor of the base has to run."""
    from llmproxy import scenario

    result = play(Echo("I heard:"), script=[scenario.user("hi"), scenario.agent(), scenario.succeed()])
    assert said(result) == ["hi", "I heard: hi"]


def test_defaults_are_those_of_an_agent_in_this_process() -> None:
    """It takes turns, and the hooks do nothing."""
    agent = Echo("x")
    assert (agent.role, agent.uses_session, agent.in_process) == (AgentRole.AGENT, False, True)
    assert asyncio.run(agent.open(None)) is None
    assert asyncio.run(agent.close()) is None


def test_what_an_adapter_may_offer_is_an_attribute_or_a_property() -> None:
    """Whatever it does not have is the default; what it has is read when it is needed."""

    class OutcomeRecorder(Echo):
        notes = ("slow today",)

        @property
        def who(self) -> str:
            return f"the echo {self.word}"

    agent = OutcomeRecorder("x")
    assert OptionalAdapterAttributes.of_adapter(Echo("x")) == OptionalAdapterAttributes()
    assert OptionalAdapterAttributes.of_adapter(agent) == OptionalAdapterAttributes(
        who="the echo x", notes=("slow today",)
    )
    agent.word = "y"
    assert OptionalAdapterAttributes.of_adapter(agent).who == "the echo y"


def around(given: AgentInput) -> tuple[Any, ...]:
    told = (is_conversation_unscripted(given), get_scenario_description(given))
    return *told, find_scenario_session(given), get_tool_calls_seen_by_proxy(given)


def test_without_a_run_there_is_nothing() -> None:
    """An adapter that is called by hand has no session, no wire, no description, and is scripted."""
    given = AgentInput(thread_id="t", messages=[], new_messages=[], scenario_state=None)
    assert around(given) == (False, "", None, {})


def test_a_script_and_a_conversation_by_itself_are_told_apart() -> None:
    """In `proceed` whoever speaks next is open; in a script it has been decided."""
    seen: list[Any] = []

    def look(given: AgentInput) -> str:
        seen.append(around(given))
        return "hi"

    play(Agent(), User(look), script=[scenario.user(), scenario.proceed(turns=2), scenario.user(), scenario.succeed()])
    assert seen == [(False, "d", None, {}), (True, "d", None, {}), (False, "d", None, {})]
