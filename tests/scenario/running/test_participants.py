"""Objects with a name and `invoke` as agents; the turns themselves are compared in test_today.

Who plays: adapters, factories, clones; opened before, closed after.
"""

from __future__ import annotations

import asyncio
from typing import Any, Self

import pytest

from llmproxy import scenario
from llmproxy.scenario import AgentAdapter, AgentRole
from llmproxy.scenario.running.executor import ScenarioExecutor
from llmproxy.scenario.running.participants import ConnectedAgentAdapter, Participants, build_adapters
from tests.scenario.people import Agent, Ear, User, executor, finished, play, said


class Plain:
    name = "plain"

    def invoke(self, call: Any) -> Any:
        return {"output": f"{len(call.messages)} heard", "session": len(call.messages)}


def test_it_need_not_be_callable_or_async() -> None:
    """A name and `invoke` are enough."""
    script = [scenario.user(), scenario.agent(), scenario.succeed()]
    assert said(play(User("hi"), Plain(), script=script)) == ["hi", "1 heard"]


def test_sessions_belong_to_a_conversation() -> None:
    """A clone begins without any; an object that has no name and `invoke` is refused."""
    adapter = ConnectedAgentAdapter(Plain())
    given = scenario.AgentInput(thread_id="t", messages=[], new_messages=[], scenario_state=None)
    assert asyncio.run(adapter.call(given)) == "0 heard"
    assert (adapter.session_for("t"), adapter.session_for("u"), adapter.clone().session_for("t")) == (0, None, None)
    with pytest.raises(TypeError, match="takes an object with a name and a method invoke"):
        ConnectedAgentAdapter(object())


class Service(Agent):
    """An agent with a life: it notes what happens to it."""

    def __init__(self, log: list[str], *lines: Any, name: str = "A") -> None:
        super().__init__(*(lines or ("x",)))
        self.log, self.name, self.clones = log, name, 0

    async def open(self, session: object) -> None:
        self.log.append(f"open {self.name} {session}")

    async def close(self) -> None:
        self.log.append(f"close {self.name}")

    def clone(self) -> Self:
        self.clones += 1
        return type(self)(self.log, *self.lines, name=f"{self.name}{self.clones}")


def test_classes_and_functions_make_an_adapter_for_each_run() -> None:
    """A factory stands for one adapter per run."""
    made: list[Agent] = []

    def factory() -> Agent:
        made.append(Agent("made"))
        return made[-1]

    assert said(play(factory, Agent, max_turns=1)) == ["made", "agent"]
    play(factory, max_turns=1)
    assert len(made) == 2


@pytest.mark.parametrize("wrong", ["my agent", None, lambda: None, {"role": "agent"}])
def test_what_is_no_agent_is_refused_with_an_example(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"agents\[1\] is .* no agent; wrap it in a class") as caught:
        build_adapters([Agent(), wrong])
    assert "async def call(self" in str(caught.value)


def test_adapters_are_opened_once_and_closed_in_reverse() -> None:
    """Before the first call and after the last, whatever happened; also when listed twice; without a proxy the session is None."""
    log: list[str] = []
    first, second = Service(log), Service(log, name="B")
    play(first, second, first, max_turns=1)
    assert log == ["open A None", "open B None", "close B", "close A"]
    log = []
    with pytest.raises(ValueError, match="broken"):
        play(Service(log, ValueError("broken")))
    assert log[-1] == "close A"


def test_an_adapter_that_cannot_open_ends_the_run_and_the_others_are_closed() -> None:
    """The error comes out; it is the fault of whose adapter it is."""
    log: list[str] = []

    class Broken(Agent):
        async def open(self, session: object) -> None:
            raise ConnectionError("no such machine")

    ear = Ear()
    with pytest.raises(ConnectionError, match="no such machine"):
        play(Service(log), Broken(), ear=ear)
    assert log == ["open A None", "close A"]
    assert finished(ear).status == "agent_error"


def test_an_adapter_that_cannot_close_changes_no_verdict() -> None:
    """It is told as a label, and the others are closed."""
    log: list[str] = []

    class Sticky(Agent):
        async def close(self) -> None:
            raise OSError("file is busy")

    result = play(Service(log), Sticky(), max_turns=1)
    assert result.labels == ("Sticky could not close: file is busy",)
    assert log[-1] == "close A"


def test_an_object_with_a_life_belongs_to_one_run_at_a_time() -> None:
    """A run that starts meanwhile works with a clone, one for all its places in the list."""
    log: list[str] = []

    async def meanwhile(_given: object) -> str:
        while sum(line.startswith("open") for line in log) < 2:
            await asyncio.sleep(0.01)
        return "x"

    service = Service(log, meanwhile)

    async def both() -> None:
        await asyncio.gather(*(executor(service, User(), service, max_turns=1).run() for _ in range(2)))

    asyncio.run(both())
    assert sorted(log) == ["close A", "close A1", "open A None", "open A1 None"]
    asyncio.run(executor(service, max_turns=1).run())
    assert log[-1] == "close A", "free again"


async def test_other_objects_are_shared() -> None:
    """Users look into the agent that they handed in."""
    agent = Agent(lambda _given: asyncio.sleep(0.02, "x"))

    await asyncio.gather(*(executor(agent, max_turns=1).run() for _ in range(3)))
    assert len(agent.inputs) == 3


def test_the_default_clone_is_a_shallow_copy() -> None:
    """Enough for adapters without state of their own."""
    agent = Agent("x")
    copy = agent.clone()
    assert copy is not agent
    assert copy.lines is agent.lines


async def test_a_cast_can_be_entered_again() -> None:
    cast, log = Participants([Service([])]), []

    for _ in range(2):
        cast.claim_adapters()
        await cast.open_adapters(None)
        log.append(await cast.close_adapters())
    assert log == [[], []]


def test_an_adapter_without_call_cannot_be_made() -> None:
    """`call` is abstract; the role is AGENT unless it says otherwise."""
    with pytest.raises(TypeError, match="call"):
        AgentAdapter()  # type: ignore[abstract]
    assert AgentAdapter.role is AgentRole.AGENT
    assert isinstance(executor(), ScenarioExecutor)
