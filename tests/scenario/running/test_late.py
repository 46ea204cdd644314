"""What an agent calls late: it belongs to the run while that goes on; after its end it is an error that names it, where somebody looked."""

# ruff: noqa: A002, ANN401

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from llmproxy import scenario
from llmproxy.client.control import Control
from llmproxy.client.host import HOST
from llmproxy.errors import MachineError
from llmproxy.scenario import AgentAdapter, AgentInput, ScenarioResult
from llmproxy.scenario.running.late import LateCallsError
from tests.provider import Provider, step
from tests.scenario.parties import bodies, finish, served, words
from tests.scenario.people import Ear, finished
from tests.scenario.running.test_life import ask
from tests.support import Listening, near, proxy

DELETES = "please delete all"


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    """Share a proxy that records a provider whose model deletes things when it is asked to."""
    calls = [{"name": "deleteTask", "arguments": {"id": 1}}]
    plan = [step(user=DELETES, call=calls, times=None), step(user="hello", say="done", times=None)]
    with Provider(plan, ordered=False) as provider:
        store = tmp_path_factory.mktemp("late") / "x.db"
        with proxy("record", store, upstreams={"openai": provider.url}) as px:
            yield px


class Late(AgentAdapter):
    """An agent that may go on after its answer; it sends its calls by `input.llm`."""

    uses_session: ClassVar[bool] = True

    def __init__(self, at_close: bool = False) -> None:
        self.at_close, self.url = at_close, ""

    async def call(self, input: AgentInput) -> str:
        self.url = self._url(input)
        await asyncio.to_thread(ask, self.url, [{"role": "user", "content": "hello"}])
        return "done"

    def _url(self, input: AgentInput) -> str:
        assert input.llm is not None
        return str(input.llm.base_url("openai"))

    def go_on(self) -> None:
        ask(self.url, [{"role": "user", "content": DELETES}])

    async def close(self) -> None:
        if self.at_close:
            await asyncio.to_thread(self.go_on)


class InProcess(Late):
    """One that reads the environment, as most do."""

    uses_session: ClassVar[bool] = False

    def _url(self, input: AgentInput) -> str:
        return os.environ["OPENAI_BASE_URL"]


class Hasty(AgentAdapter):
    """A judge that looks, and meanwhile the agent goes on."""

    role = scenario.AgentRole.JUDGE

    def __init__(self, agent: Late) -> None:
        self.agent = agent

    async def call(self, input: AgentInput) -> ScenarioResult:
        assert not input.scenario_state.has_tool_call("deleteTask")
        await asyncio.to_thread(self.agent.go_on)
        return ScenarioResult(success=True, messages=[], reasoning="nothing was deleted")


def looks(state: Any) -> None:
    """Look at the wire."""
    assert not state.has_tool_call("deleteTask")


def play(
    px: Listening, name: str, agent: Late, *steps: Any, ear: Ear, arun: bool = False, judge: Any = None
) -> ScenarioResult:
    """Run a scenario: the agent answers, then the steps."""
    script = [scenario.user("hello"), scenario.agent(), *steps]
    run = scenario.arun if arun else scenario.run
    agents = [agent, judge] if judge else [agent]
    return asyncio.run(run(name, "d", agents, script=script, proxy=px.url, handlers=[ear]))


@pytest.mark.parametrize("arun", [False, True])
def test_a_call_after_the_end_is_an_error_that_names_it(recording: Listening, arun: bool) -> None:
    """Somebody looked, and what he saw was not all."""
    ear = Ear()
    with pytest.raises(
        LateCallsError, match=r"after the end of the scenario the agent made further calls: deleteTask \(interaction"
    ):
        play(recording, f"after {arun}", Late(at_close=True), looks, scenario.succeed(), ear=ear, arun=arun)
    assert (finished(ear).status.value, "deleteTask" in finished(ear).error) == ("environment_error", True)


def test_where_nobody_looked_it_is_said(recording: Listening) -> None:
    """The result stands: it says nothing about calls."""
    ear = Ear()
    result = play(recording, "unlooked", Late(at_close=True), scenario.succeed(), ear=ear)
    assert (result.success, [call.name for call in result.tool_calls or ()]) == (True, ["deleteTask"])
    assert "after the end of the scenario the agent made further calls: deleteTask" in " ".join(finished(ear).labels)


def test_a_failure_stays_one(recording: Listening) -> None:
    """And the calls are said beside it."""
    ear = Ear()
    result = play(recording, "failed", Late(at_close=True), looks, scenario.fail("no"), ear=ear)
    assert (result.success, "deleteTask" in " ".join(finished(ear).labels)) == (False, True)


def test_a_call_while_the_run_goes_on_belongs_to_it(recording: Listening) -> None:
    """Also where it comes after the answer: whoever looks next sees it."""
    agent, seen = Late(), list[bool]()
    steps = [lambda _: agent.go_on(), lambda state: seen.append(state.has_tool_call("deleteTask")), scenario.succeed()]
    assert play(recording, "between", agent, *steps, ear=Ear()).success
    assert seen == [True]


def test_a_call_while_the_judge_decides_is_an_error(recording: Listening) -> None:
    """He did not know of it."""
    agent = Late()
    with pytest.raises(LateCallsError, match="deleteTask"):
        play(recording, "judged", agent, scenario.judge(), judge=Hasty(agent), ear=Ear())


def test_a_call_that_belongs_to_nobody_is_an_error(recording: Listening) -> None:
    """An agent in this process that goes on when its turn is over: whose call it was nobody knows, which somebody who looked must know."""
    with pytest.raises(MachineError, match="1 call arrived that belongs to no run, since nobody had its turn then"):
        play(recording, "stray", InProcess(at_close=True), looks, scenario.succeed(), ear=Ear())


class Elsewhere(InProcess):
    """One that goes on under another name of its process: that of the test which goes on."""

    def __init__(self, url: str) -> None:
        super().__init__(at_close=True)
        self.elsewhere = url

    def go_on(self) -> None:
        ask(self.elsewhere, [{"role": "user", "content": DELETES}])


def test_a_call_in_the_session_of_the_test_is_named(recording: Listening, monkeypatch: pytest.MonkeyPatch) -> None:
    """With pytest's fixture nothing of the process is without a name; what a step of the script calls there is the test's own."""
    monkeypatch.setattr(HOST, "walk", "the-test")
    Control(recording.url).open("the-test")
    agent = Elsewhere(f"{recording.url}/s/the-test/v1")
    with pytest.raises(
        LateCallsError, match=r"1 call arrived that belongs to no run, .* then: deleteTask \(interaction"
    ):
        play(recording, "fixture", agent, looks, scenario.succeed(), ear=Ear())
    agent.at_close = False
    assert play(recording, "steps", agent, lambda _: agent.go_on(), looks, scenario.succeed(), ear=Ear()).success


def test_the_judge_is_told_of_answers_that_nobody_can_read(tmp_path: Path) -> None:
    """What is not in the transcript may have been called all the same."""
    robot = {"id": "r1", "type": "robot", "robot": {"name": "deleteTask"}}
    message = {"role": "assistant", "content": "done", "tool_calls": [robot]}
    answer = {"id": "x", "object": "chat.completion", "model": "m", "choices": [{"index": 0, "message": message}]}
    plan = [step(user="hello", json=answer), finish("passed")]
    with Provider(plan) as provider, near("record", tmp_path / "x.db", upstreams={"openai": provider.url}) as px:
        judge = scenario.JudgeAgent(criteria=["Nothing was deleted."], model=served(provider))
        play(px, "unread", Late(), scenario.judge(), judge=judge, ear=Ear())
        asked = words(bodies(provider)[-1])
    assert "- holds what is not known, and may call a tool: robot" in asked
    assert "a criterion that holds only if something was not called, or not more often, is inconclusive" in asked
