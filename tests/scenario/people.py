"""Adapters for tests that say what they are told to say, remember how they were called, and call no model."""

# ruff: noqa: A002

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from llmproxy import scenario
from llmproxy.report.events import Event, Finished
from llmproxy.scenario.running.executor import ScenarioExecutor
from llmproxy.scenario.values.run_ids_and_options import ScenarioRunOptions

__all__ = ["Agent", "Ear", "Judge", "Person", "User", "after", "executor", "finished", "play", "roles", "said"]


class Person(scenario.AgentAdapter):
    """Answers with its lines, in a circle; a line that is an exception is raised, one that is callable is called."""

    def __init__(self, *lines: Any) -> None:
        self.lines = lines or (type(self).__name__.lower(),)
        self.inputs: list[scenario.AgentInput] = []

    async def call(self, input: scenario.AgentInput) -> scenario.AgentReturnTypes:
        line = self.lines[len(self.inputs) % len(self.lines)]
        self.inputs.append(input)
        if isinstance(line, BaseException):
            raise line
        if callable(line):
            line = line(input)
            return await line if asyncio.iscoroutine(line) else line
        return line


class Agent(Person):
    """The agent under test."""


class User(Person):
    role = scenario.AgentRole.USER


class Judge(Person):
    """A judge that wants to see more, unless it is told otherwise; forced, it says passed."""

    role = scenario.AgentRole.JUDGE

    def __init__(self, *lines: Any, criteria: Sequence[str] | None = None) -> None:
        def decide(given: scenario.AgentInput) -> Any:
            return scenario.ScenarioResult(success=True, messages=[]) if given.judgment_request else []

        super().__init__(*(lines or (decide,)))
        if criteria is not None:
            self.criteria = list(criteria)


class Ear:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def handle(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None:
        """Nothing is kept back."""

    def kinds(self) -> str:
        return " ".join(type(event).__name__ for event in self.events)


def after(do: Callable[[Any], object], value: Any, says: str = "x") -> str:
    do(value)
    return says


def executor(*agents: Any, script: Any = None, ear: Ear | None = None, **given: Any) -> ScenarioExecutor:
    names = ScenarioRunOptions.__dataclass_fields__
    options = {name: given.pop(name) for name in tuple(given) if name in names}
    if ear:
        options["handlers"] = (ear,)
    named: dict[str, Any] = {"name": "n", "description": "d", "verbose": False} | given
    return ScenarioExecutor(agents=agents, script=script, options=ScenarioRunOptions(**options), **named)


def play(*agents: Any, **given: Any) -> scenario.ScenarioResult:
    return asyncio.run(executor(*agents, **given).run())


def finished(ear: Ear) -> Finished:
    """Return the one event that says how it ended, which is the last."""
    (found,) = (event for event in ear.events if isinstance(event, Finished))
    assert ear.events[-1] is found
    return found


def roles(result: scenario.ScenarioResult) -> str:
    """Return who spoke: u, a, t, s."""
    return "".join(message["role"][0] for message in result.messages)


def said(result: scenario.ScenarioResult) -> list[Any]:
    return [message.get("content") for message in result.messages]
