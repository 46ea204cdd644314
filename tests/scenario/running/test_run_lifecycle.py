"""What an agent calls late: it belongs to the run while that goes on; after its end it is an error that names it, where somebody looked.

The life of a run at a real proxy: recorded, replayed offline with equal ids, missed, measured.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar
from urllib.error import HTTPError

import pytest

from llmproxy import scenario
from llmproxy.client.control import ControlApiClient
from llmproxy.errors import MachineError, MissError, SettingsError, UpstreamError
from llmproxy.report.events import HOST, Message, Status
from llmproxy.scenario import AgentAdapter, AgentInput, ScenarioResult
from llmproxy.scenario.run_session import RunSession
from llmproxy.scenario.running.run_lifecycle import LateCallsError
from tests.provider import Provider, step
from tests.scenario.parties import bodies, finish, served, words
from tests.scenario.people import Agent, Ear, Judge, User, executor, finished, said
from tests.support import free_port, near, proxy
from tests.support.process import ROOT, clean_env
from tests.support.proxy import DIRECT, Listening

# ruff: noqa: A002


DELETES = "please delete all"


@pytest.fixture(scope="module")
def late_recording(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
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
def test_a_call_after_the_end_is_an_error_that_names_it(late_recording: Listening, arun: bool) -> None:
    """Somebody looked, and what he saw was not all."""
    ear = Ear()
    with pytest.raises(
        LateCallsError, match=r"after the end of the scenario the agent made further calls: deleteTask \(interaction"
    ):
        play(late_recording, f"after {arun}", Late(at_close=True), looks, scenario.succeed(), ear=ear, arun=arun)
    assert (finished(ear).status.value, "deleteTask" in finished(ear).error) == ("environment_error", True)


def test_where_nobody_looked_it_is_said(late_recording: Listening) -> None:
    """The result stands, and the calls are said beside it: it says nothing about calls, or is a failure already."""
    ear = Ear()
    result = play(late_recording, "unlooked", Late(at_close=True), scenario.succeed(), ear=ear)
    assert (result.success, [call.name for call in result.tool_calls or ()]) == (True, ["deleteTask"])
    assert "after the end of the scenario the agent made further calls: deleteTask" in " ".join(finished(ear).labels)
    ear = Ear()
    result = play(late_recording, "failed", Late(at_close=True), looks, scenario.fail("no"), ear=ear)
    assert (result.success, "deleteTask" in " ".join(finished(ear).labels)) == (False, True)


def test_a_call_while_the_run_goes_on_belongs_to_it(late_recording: Listening) -> None:
    """Also where it comes after the answer: whoever looks next sees it."""
    agent, seen = Late(), list[bool]()
    steps = [lambda _: agent.go_on(), lambda state: seen.append(state.has_tool_call("deleteTask")), scenario.succeed()]
    assert play(late_recording, "between", agent, *steps, ear=Ear()).success
    assert seen == [True]


def test_a_call_while_the_judge_decides_is_an_error(late_recording: Listening) -> None:
    agent = Late()
    with pytest.raises(LateCallsError, match="deleteTask"):
        play(late_recording, "judged", agent, scenario.judge(), judge=Hasty(agent), ear=Ear())


def test_a_call_that_belongs_to_nobody_is_an_error(late_recording: Listening) -> None:
    """An agent in this process that goes on when its turn is over: whose call it was nobody knows, which somebody who looked must know."""
    with pytest.raises(MachineError, match="1 call arrived that belongs to no run, since nobody had its turn then"):
        play(late_recording, "stray", InProcess(at_close=True), looks, scenario.succeed(), ear=Ear())


class Elsewhere(InProcess):
    """One that goes on under another name of its process: that of the test which goes on."""

    def __init__(self, url: str) -> None:
        super().__init__(at_close=True)
        self.elsewhere = url

    def go_on(self) -> None:
        ask(self.elsewhere, [{"role": "user", "content": DELETES}])


def test_a_call_in_the_session_of_the_test_is_named(late_recording: Listening, monkeypatch: pytest.MonkeyPatch) -> None:
    """With pytest's fixture nothing of the process is without a name; what a step of the script calls there is the test's own."""
    monkeypatch.setattr(HOST, "session", "the-test")
    ControlApiClient(late_recording.url).open_session("the-test")
    agent = Elsewhere(f"{late_recording.url}/s/the-test/v1")
    with pytest.raises(
        LateCallsError, match=r"1 call arrived that belongs to no run, .* then: deleteTask \(interaction"
    ):
        play(late_recording, "fixture", agent, looks, scenario.succeed(), ear=Ear())
    agent.at_close = False
    assert play(late_recording, "steps", agent, lambda _: agent.go_on(), looks, scenario.succeed(), ear=Ear()).success


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


TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}


class Calls(AgentAdapter):
    """An agent of today: a client that reads OPENAI_BASE_URL, a tool, no word about it in what it returns."""

    async def call(self, input: AgentInput) -> str:
        messages: list[Any] = [{"role": "user", "content": input.last_new_user_message_str()}]
        for _ in range(5):
            message = await asyncio.to_thread(ask, os.environ["OPENAI_BASE_URL"], messages)
            messages.append(message)
            called = message.get("tool_calls") or ()
            messages += [{"role": "tool", "tool_call_id": call["id"], "content": "12 degrees"} for call in called]
            if not called:
                return str(message["content"])
        return "I give up"


class Direct(Calls):
    """An agent that sends its calls by `input.llm`."""

    uses_session = True

    async def call(self, input: AgentInput) -> str:
        assert input.llm is not None
        messages = [{"role": "user", "content": input.last_new_user_message_str()}]
        return str((await asyncio.to_thread(ask, input.llm.base_url("openai"), messages))["content"])


class Sorry(Calls):
    async def call(self, input: AgentInput) -> str:
        try:
            return await super().call(input)
        except OSError:
            return "Sorry, something went wrong."


def ask(base: str, messages: list[Any]) -> dict[str, Any]:
    body = json.dumps({"model": "gpt-4o", "messages": messages, "tools": [TOOL]}).encode()
    headers = {"content-type": "application/json", "authorization": "Bearer none"}
    try:
        with DIRECT.open(urllib.request.Request(f"{base}/chat/completions", body, headers), timeout=60) as answer:
            found: dict[str, Any] = json.loads(answer.read())["choices"][0]["message"]
            return found
    except HTTPError as error:
        error.close()
        raise


@contextmanager
def recording(store: Path, *steps: Any) -> Iterator[tuple[Listening, Provider]]:
    """Run a recording proxy before a provider that plays these steps."""
    with Provider(steps) as provider, near("record", store, upstreams={"openai": provider.url}) as running:
        yield running, provider


@contextmanager
def replaying(store: Path) -> Iterator[Listening]:
    with near("replay", store, upstreams={"openai": f"http://127.0.0.1:{free_port()}"}) as running:
        yield running


ASKS = [scenario.user("weather?"), scenario.agent(), scenario.succeed()]


def run(px: Listening, agent: AgentAdapter, ear: Ear | None = None, **given: Any) -> ScenarioResult:
    script = given.pop("script", ASKS)
    return asyncio.run(executor(agent, script=script, proxy=px.url, ear=ear, **given).run())


WEATHER = (
    step(user="weather?", call=[{"name": "get_weather", "arguments": {"city": "Oslo"}}]),
    step(tool_result="12 degrees", say="12 degrees in Oslo"),
)


def test_a_run_is_recorded_and_replayed_without_a_call(tmp_path: Path) -> None:
    """The same messages, the same ids, nothing upstream; tool calls are seen although the agent reports none."""
    store = tmp_path / "x.db"
    tools: list[Any] = []

    def look(state: scenario.ScenarioState) -> None:
        tools.append(state.last_tool_call("get_weather"))
        assert not state.has_tool_call("delete_everything")

    script = [scenario.user("weather?"), scenario.agent(), look, scenario.succeed()]
    with recording(store, *WEATHER) as (px, provider):
        first = run(px, Calls(), script=script)
        assert len(provider.requests) == 2
    ear = Ear()
    with replaying(store) as px:
        second = run(px, Calls(), ear, script=script)
    assert said(first) == said(second) == ["weather?", "12 degrees in Oslo"]
    assert (first.thread_id, first.replayed, second.replayed) == (second.thread_id, False, True)
    assert [json.loads(call["function"]["arguments"]) for call in tools] == [{"city": "Oslo"}] * 2
    (call,) = second.tool_calls or ()
    assert (call.name, call.executed, call.result) == ("get_weather", True, "12 degrees")
    assert (second.cassette, second.usage["agent"].calls, second.waited is None) == (first.cassette, 2, False)
    end = finished(ear)
    assert (end.replayed, end.usage["agent"].calls, end.misses) == (True, 2, ())
    shown = next(each.tool_calls for each in ear.events if isinstance(each, Message) and each.author == "Calls")
    assert [(each["name"], each["where"][:11]) for each in shown] == [("get_weather", "interaction")]


@pytest.mark.parametrize("agent", [Sorry, Calls], ids=["swallows", "raises"])
def test_a_miss_is_an_error_whatever_the_agent_says(tmp_path: Path, agent: type[Calls]) -> None:
    """A polite "sorry" must not pass: the run ends with the proxy's own text."""
    ear = Ear()
    with replaying(tmp_path / "empty.db") as px, pytest.raises(MissError, match="weather") as caught:
        run(px, agent(), ear)
    end = finished(ear)
    assert (end.status, len(end.misses)) == (Status.ENVIRONMENT_ERROR, 1)
    assert end.misses[0] == str(caught.value)
    assert ear.kinds().endswith("Step Finished")


def test_a_provider_that_cannot_be_reached_is_no_fault_of_the_agent(tmp_path: Path) -> None:
    """It raises, since nobody answered it: who could not be reached is said, and nothing about the agent."""
    ear, url = Ear(), f"http://127.0.0.1:{free_port()}"
    with (
        near("record", tmp_path / "x.db", upstreams={"openai": url}) as px,
        pytest.raises(UpstreamError, match=f"^openai at {url} could not be reached: Connection refused"),
    ):
        run(px, Calls(), ear)
    assert finished(ear).status == Status.ENVIRONMENT_ERROR


def test_an_agent_that_breaks_after_a_retry_broke_by_itself(tmp_path: Path) -> None:
    """A provider that was there the second time is no excuse."""
    port = free_port()

    class Breaks(Calls):
        async def call(self, input: AgentInput) -> str:
            with pytest.raises(HTTPError):
                await super().call(input)
            with Provider([step(say="hello")], port=port):
                await super().call(input)
            raise RuntimeError("a bug of mine")

    ear = Ear()
    with (
        near("record", tmp_path / "x.db", upstreams={"openai": f"http://127.0.0.1:{port}"}) as px,
        pytest.raises(RuntimeError, match="a bug of mine"),
    ):
        run(px, Breaks(), ear)
    assert finished(ear).status == Status.AGENT_ERROR


def test_runs_of_one_recording_come_one_after_the_other(tmp_path: Path) -> None:
    """Not an error about a session that is open."""

    async def go(px: Listening) -> list[ScenarioResult]:
        runs = (scenario.run("same", "d", [Direct()], script=ASKS, verbose=False, proxy=px.url) for _ in range(3))
        return await asyncio.gather(*runs)

    with recording(tmp_path / "x.db", step(user="weather?", say="fine", times=None)) as (px, _):
        assert [said(result)[1] for result in asyncio.run(go(px))] == ["fine"] * 3


def test_samples_and_fresh_ids(tmp_path: Path) -> None:
    """Samples have ids of their own; fresh_ids are random although there is a recording."""
    with recording(tmp_path / "x.db", step(user="weather?", say="fine", times=None)) as (px, _):
        ids = [run(px, Direct(), sample=sample).thread_id for sample in (1, 2, 1)]
        fresh = [run(px, Direct(), fresh_ids=True).thread_id for _ in range(2)]
    assert ids[0] == ids[2] != ids[1]
    assert len({*ids, *fresh}) == 4


def test_the_simulators_miss_counts_too(tmp_path: Path) -> None:
    """A user of one's own that calls a model by the session."""

    class Simulates(User):
        async def call(self, input: AgentInput) -> str:
            assert input.llm is not None
            try:
                return str((await asyncio.to_thread(ask, input.llm.base_url("openai"), []))["content"])
            except OSError:
                return "whatever"

    with replaying(tmp_path / "x.db") as px, pytest.raises(MissError):
        asyncio.run(executor(Simulates(), Judge(), proxy=px.url, max_turns=1).run())


def test_the_session_is_closed_whatever_happens(tmp_path: Path) -> None:
    """It can be opened again at once, after an error and after a cancellation."""
    begun = threading.Event()

    class Breaks(Direct):
        async def call(self, input: AgentInput) -> str:
            raise RuntimeError("crash")

    class Hangs(Direct):
        async def call(self, input: AgentInput) -> str:
            begun.set()
            await asyncio.sleep(30)
            return "never"

    async def cancelled(px: Listening) -> None:
        script = [scenario.user("x"), scenario.agent()]
        made = asyncio.ensure_future(scenario.run("n", "d", [Hangs()], script=script, verbose=False, proxy=px.url))
        assert await asyncio.to_thread(begun.wait, 30)
        made.cancel()
        with pytest.raises(asyncio.CancelledError):
            await made
        session = await RunSession.open(px.url, cassette="n", patience=5)
        await session.close()

    with recording(tmp_path / "x.db") as (px, _):
        with pytest.raises(RuntimeError, match="crash"):
            run(px, Breaks())
        asyncio.run(cancelled(px))


def test_a_proxy_that_is_not_there_is_an_error_of_the_environment() -> None:
    """Nothing was tested, and nobody was called: the events say so; who asks for a replay is not sent to the provider."""
    ear, user = Ear(), User()
    with pytest.raises(MachineError, match="no llmproxy answers"):
        asyncio.run(executor(user, proxy=f"http://127.0.0.1:{free_port()}", ear=ear).run())
    assert (finished(ear).status, user.inputs, ear.kinds()) == (Status.ENVIRONMENT_ERROR, [], "Started Finished")
    ear, user = Ear(), User()
    with pytest.raises(SettingsError, match="there is none"):
        asyncio.run(executor(user, proxy=False, mode="replay", ear=ear).run())
    assert (finished(ear).status, user.inputs, ear.kinds()) == (Status.ENVIRONMENT_ERROR, [], "Started Finished")


def test_a_step_that_calls_sys_exit_ends_no_program() -> None:
    """A script that tests with `asyncio.run(scenario.run(...))` would end with 0."""
    ear = Ear()
    script = [scenario.user("hi"), lambda _state: (_ for _ in ()).throw(SystemExit(0)), scenario.succeed()]
    with pytest.raises(MachineError, match=r"a step of the script called sys.exit\(0\)"):
        asyncio.run(executor(Agent(), script=script, handlers=[ear]).run())
    assert finished(ear).status is Status.ENVIRONMENT_ERROR


def test_the_environment_names_the_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LLMPROXY_URL, unless the run says otherwise."""
    with recording(tmp_path / "x.db", step(user="weather?", say="fine", times=None)) as (px, _):
        monkeypatch.setenv("LLMPROXY_URL", px.url)
        found = asyncio.run(executor(Direct(), script=ASKS).run())
        without = asyncio.run(executor(User(), proxy=False, max_turns=1).run())
    assert (found.cassette[:1], without.cassette, without.tool_calls) == ("n", "", None)


WHOLE = """
import asyncio, sys
from llmproxy import scenario
assert "httpx" not in sys.modules

class Looks(scenario.AgentAdapter):
    async def call(self, input):
        return str(hasattr(sys.modules["httpx"], "Timeout"))

async def main():
    script = [scenario.user("hi"), scenario.agent(), scenario.succeed()]
    runs = (scenario.run(name=name, description="d", agents=[Looks()], script=script, verbose=False) for name in "abcd")
    print({result.messages[-1]["content"] for result in await asyncio.gather(*runs)})

asyncio.run(main())
"""


def test_an_agent_finds_a_whole_http_client(tmp_path: Path) -> None:
    """SDKs look for httpx in `sys.modules`: no other run imports it while an agent answers."""
    env = clean_env({"PYTHONPATH": str(ROOT)})
    command = [sys.executable, "-c", WHOLE]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "{'True'}\n", done.stderr
