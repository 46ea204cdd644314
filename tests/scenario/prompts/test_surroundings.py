"""What an adapter finds around it: in a run, and without one."""

from __future__ import annotations

from typing import Any

from llmproxy import scenario
from llmproxy.scenario.prompts.surroundings import description_of, is_unscripted, session_of, wire_of
from llmproxy.scenario.types import AgentInput
from tests.scenario.people import Agent, User, play


def test_without_a_run_there_is_nothing() -> None:
    """An adapter that is called by hand has no session, no wire, no description, and is scripted."""
    given = AgentInput(thread_id="t", messages=[], new_messages=[], scenario_state=None)
    assert (session_of(given), is_unscripted(given), wire_of(given), description_of(given)) == (None, False, {}, "")


def test_a_script_and_a_conversation_by_itself_are_told_apart() -> None:
    """In `proceed` whoever speaks next is open; in a script it has been decided."""
    seen: list[Any] = []

    def look(given: AgentInput) -> str:
        seen.append((is_unscripted(given), description_of(given), session_of(given), wire_of(given)))
        return "hi"

    play(Agent(), User(look), script=[scenario.user(), scenario.proceed(turns=2), scenario.user(), scenario.succeed()])
    assert seen == [(False, "d", None, {}), (True, "d", None, {}), (False, "d", None, {})]
