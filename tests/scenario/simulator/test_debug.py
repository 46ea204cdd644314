"""Debug mode: what a person types joins the conversation, or ends it."""

# ruff: noqa: ANN401

from __future__ import annotations

import asyncio
import io
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from llmproxy import scenario
from llmproxy.errors import MachineError
from llmproxy.scenario.simulator.debug import Said, ask, parse
from tests.scenario.people import Agent, Judge, User, play, said


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("", Said()),
        ("   ", Said()),
        ("hello there ", Said("hello there ")),
        ("/pass", Said("", success=True)),
        ("/pass all good", Said("all good", success=True)),
        ("/fail  rude", Said("rude", success=False)),
        ("/judge", Said(judge=True)),
        ("/judge now", Said("/judge now")),
        ("/passport please", Said("/passport please")),
        ("/etc/hosts", Said("/etc/hosts")),
    ],
)
def test_what_a_line_means(line: str, want: Said) -> None:
    """Enter is nothing, a known word after a slash is an order, all else is said."""
    assert parse(line) == want


def test_asking_does_not_block_the_loop() -> None:
    """Others go on while somebody thinks."""
    prompts: list[str] = []
    thought = threading.Event()

    def read(prompt: str) -> str:
        prompts.append(prompt)
        assert thought.wait(600)
        return "typed"

    async def go() -> None:
        asked = asyncio.ensure_future(ask("mine", read))
        while not prompts:
            await asyncio.sleep(0.01)
        thought.set()
        assert (await asked).text == "typed"

    asyncio.run(go())
    assert "[Scenario: mine] User: " in prompts[0]


@pytest.mark.parametrize("error", [EOFError(), OSError("reading from stdin while output is captured")])
def test_without_a_terminal_it_says_so(error: Exception) -> None:
    """In CI nobody would ever answer."""

    def read(_prompt: str) -> str:
        raise error

    with pytest.raises(MachineError, match="debug=True asks at the terminal, and there is none"):
        asyncio.run(ask(read=read))


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Type into standard input."""
    return lambda text: monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def debug(terminal: Callable[[str], None], text: str, *people: Any, **given: Any) -> scenario.ScenarioResult:
    """Play with what a person types."""
    terminal(text)
    return play(*people, debug=True, **given)


def test_typed_text_is_what_the_user_says(terminal: Callable[[str], None]) -> None:
    """Row 11: it is in the conversation, the agent hears it, and the simulator is not called."""
    user, agent = User("simulated"), Agent("a")
    result = debug(terminal, "I typed this\n\n", user, agent, max_turns=2)
    assert said(result) == ["I typed this", "a", "simulated", "a"]
    assert [message["content"] for message in agent.inputs[0].new_messages] == ["I typed this"]
    assert len(user.inputs) == 1


def test_scripted_text_asks_nobody(terminal: Callable[[str], None]) -> None:
    """Only turns of the simulator stop."""
    assert said(debug(terminal, "", User(), Agent("a"), script=[scenario.user("x"), scenario.agent()])) == ["x", "a"]


@pytest.mark.parametrize(
    ("line", "success", "reasoning"),
    [
        ("/pass good", True, "good"),
        ("/fail", False, "Ended by hand with /fail"),
        ("/pass", True, "Ended by hand with /pass"),
    ],
)
def test_a_person_can_end_it(terminal: Callable[[str], None], line: str, success: bool, reasoning: str) -> None:
    """With or without a reason."""
    result = debug(terminal, f"{line}\n", User(), Agent(), max_turns=3)
    assert (result.success, result.reasoning, result.messages) == (success, reasoning, [])


def test_a_person_can_ask_the_judge(terminal: Callable[[str], None]) -> None:
    """At once, with a verdict demanded; without a judge it says so."""
    judge = Judge()
    assert debug(terminal, "hi\n/judge\n", User(), Agent(), judge, max_turns=5).success
    assert [bool(given.judgment_request) for given in judge.inputs] == [False, True]
    assert debug(terminal, "/judge\n", User(), max_turns=2).reasoning == "/judge: there is no judge."
