"""A run's session: opened, asked, closed; agents in one process land in their own runs whatever client they use."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from llmproxy.client.control import ControlApiClient, ControlError
from llmproxy.errors import MachineError, SettingsError
from llmproxy.scenario.agent_adapter import AgentAdapter
from llmproxy.scenario.run_session import (
    _OWN,
    FairLock,
    RunSession,
    bind_process_calls_to_session,
    build_process_session_name,
    copy_env_without_proxy_changes,
    find_or_start_proxy,
    get_session_lock,
    list_session_names_in_env_urls,
    redirect_session_to_other_session,
    run_in_thread_to_end,
    wait_despite_cancel,
)
from llmproxy.scenario.running.run import run_sync
from llmproxy.scenario.script import agent, judge, user
from llmproxy.scenario.types import (
    AdapterModelAccessThroughProxy,
    AgentInput,
    AgentReturnTypes,
    AgentRole,
    ScenarioResult,
)
from tests.provider import Provider, step
from tests.scenario.agents_fixtures import given
from tests.scenario.parties import run_session
from tests.support import Proxy, proxy
from tests.support.proxy import ask_chat


@pytest.fixture(scope="module")
def px(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """Run a recording proxy before a provider that says hello to everybody."""
    with (
        Provider([step(say="hello", times=None)]) as provider,
        proxy("record", tmp_path_factory.mktemp("proxy") / "x.db", upstreams={"openai": provider.url}) as running,
    ):
        yield running


class Calls(AgentAdapter):
    """An agent that asks a model in the way that it was given."""

    def __init__(self, how: Callable[[str], Awaitable[object]]) -> None:
        self.how = how

    async def call(self, input: AgentInput) -> AgentReturnTypes:  # noqa: A002
        await self.how(input.last_new_user_message_str())
        return "done"


MESSAGE: Callable[[str], list[dict[str, str]]] = lambda text: [{"role": "user", "content": text}]  # noqa: E731


def body(text: str) -> dict[str, Any]:
    return {"model": "gpt-4o", "messages": MESSAGE(text)}


def address() -> str:
    return os.environ["OPENAI_BASE_URL"] + "/chat/completions"


async def openai_built_now(text: str) -> None:
    from openai import AsyncOpenAI

    async with AsyncOpenAI(api_key="none") as client:
        await client.chat.completions.create(model="gpt-4o", messages=MESSAGE(text))  # type: ignore[arg-type]


async def openai_in_a_thread(text: str) -> None:
    from openai import OpenAI

    def work() -> None:
        with OpenAI(api_key="none") as client:
            client.chat.completions.create(model="gpt-4o", messages=MESSAGE(text))  # type: ignore[arg-type]

    await asyncio.to_thread(work)


async def litellm_called(text: str) -> None:
    os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS="True")
    import litellm

    await litellm.acompletion(model="openai/gpt-4o", messages=MESSAGE(text), api_key="none")


async def requests_called(text: str) -> None:
    import requests

    await asyncio.to_thread(requests.post, address(), json=body(text), timeout=20)


async def httpx_called(text: str) -> None:
    import httpx

    async with httpx.AsyncClient() as client:
        await client.post(address(), json=body(text))


async def aiohttp_called(text: str) -> None:
    import aiohttp

    async with aiohttp.ClientSession() as client, client.post(address(), json=body(text)) as answer:
        await answer.read()


async def a_child_process(text: str) -> None:
    """A program that the agent starts, which inherits the environment."""
    code = (
        "import os, sys, urllib.request as u\n"
        "r = u.Request(os.environ['OPENAI_BASE_URL'] + '/chat/completions', sys.argv[1].encode(), "
        "{'content-type': 'application/json'})\n"
        "u.urlopen(r, timeout=20).read()"
    )
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code, json.dumps(body(text))], check=True)


def built_before() -> Callable[[str], Awaitable[object]]:
    """A client that was built long before any run, as at import."""
    from openai import OpenAI

    client = OpenAI(api_key="none")

    def ask(text: str) -> object:
        return client.chat.completions.create(model="gpt-4o", messages=MESSAGE(text))  # type: ignore[arg-type]

    return lambda text: asyncio.to_thread(ask, text)


async def one_run(px: Proxy, name: str, agent: AgentAdapter, turns: int = 2) -> list[str]:
    """Let an agent speak in a session of its own and return what was asked there."""
    async with run_session(px.url, cassette=name, mode="record") as session:
        for n in range(turns):
            async with session.speaking_turn(agent):
                await agent.call(given(f"{name}, turn {n}", llm=session.llm))
        calls = await session.calls()
        assert await session.count_unattributed() == 0
        return [json.loads((call.recording or {})["body"])["messages"][-1]["content"] for call in calls]


@pytest.fixture
def eight(px: Proxy, monkeypatch: pytest.MonkeyPatch) -> dict[str, Calls]:
    """Return an agent for each way, in a process whose environment names a session as `llmproxy env` sets it."""
    monkeypatch.setenv("OPENAI_BASE_URL", f"{px.url}/s/worker-7/v1")
    ways = [
        openai_built_now, openai_in_a_thread, litellm_called, requests_called, httpx_called, aiohttp_called,
        a_child_process,
    ]  # fmt: skip
    return {way.__name__: Calls(way) for way in ways} | {"built_before": Calls(built_before())}


async def test_agents_in_one_process_land_in_their_own_runs_in_one_loop(px: Proxy, eight: dict[str, Calls]) -> None:
    """Eight ways to ask a model, in parallel: eight of eight."""
    found = await asyncio.gather(*(one_run(px, f"loop-{name}", agent) for name, agent in eight.items()))
    assert dict(zip(eight, found, strict=True)) == {
        name: [f"loop-{name}, turn {n}" for n in range(2)] for name in eight
    }


def test_agents_in_one_process_land_in_their_own_runs_in_threads(px: Proxy, eight: dict[str, Calls]) -> None:
    """As scenarios run: each in a thread and an event loop of its own."""
    found: dict[str, list[str]] = {}

    def work(name: str, agent: AgentAdapter) -> None:
        found[name] = asyncio.run(one_run(px, f"thread-{name}", agent))

    threads = [threading.Thread(target=work, args=row) for row in eight.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == {name: [f"thread-{name}, turn {n}" for n in range(2)] for name in eight}


async def test_without_variables_an_agent_lands_in_its_run_all_the_same(px: Proxy) -> None:
    """The proxy was given as an argument: five in parallel, five right, and the environment is as it was."""
    before = dict(os.environ)

    assert (await asyncio.gather(*(one_run(px, f"bare-{n}", Calls(httpx_called)) for n in range(5)))) == [
        [f"bare-{n}, turn 0", f"bare-{n}, turn 1"] for n in range(5)
    ]
    assert dict(os.environ) == before


class Uses(Calls):
    """An agent that sends its calls by `input.llm`."""

    uses_session: ClassVar[bool] = True


class Judge(Calls):
    """A judge of the user's own, which asks a model as it likes."""

    role: ClassVar[AgentRole] = AgentRole.JUDGE


def test_a_judge_of_ones_own_lands_in_its_run_as_the_judge(px: Proxy) -> None:
    """What it asks is recorded there, and is no call of the agent's; asked again, it has its answer from there."""

    async def run(mode: str) -> list[tuple[str, str]]:
        async with run_session(px.url, cassette="own-judge", mode=mode) as session:
            for agent in (Calls(httpx_called), Judge(httpx_called), Judge(httpx_called), Calls(httpx_called)):
                async with session.speaking_turn(agent):
                    await agent.call(given("the same", llm=session.llm))
            assert await session.count_unattributed() == 0
            return [(call.party, call.decision) for call in await session.calls()]

    parties = ["agent", "judge", "judge", "agent"]
    assert asyncio.run(run("record")) == [(party, "RECORD") for party in parties]
    assert asyncio.run(run("replay")) == [(party, "REPLAY") for party in parties]


class Told(AgentAdapter):
    """Somebody who asks a model by `input.llm`, by its URL or by its headers."""

    def __init__(self, role: AgentRole, way: str, *, alone: bool) -> None:
        self.role = role  # type: ignore[misc] # a table below is shorter than four classes
        self.uses_session = alone  # type: ignore[misc]
        self.way = way

    async def call(self, input: AgentInput) -> AgentReturnTypes:  # noqa: A002
        assert input.llm is not None
        ways: dict[str, Callable[[AdapterModelAccessThroughProxy], tuple[str, dict[str, str]]]] = {
            "url": lambda llm: (llm.base_url("openai"), {}),
            "headers": lambda llm: (f"{llm.proxy}/v1", llm.headers),
            "both": lambda llm: (llm.base_url("openai"), llm.headers),
            "env": lambda llm: (llm.env["OPENAI_BASE_URL"], {}),
        }
        await asyncio.to_thread(ask_chat, ways[self.way](input.llm)[0], "the same", ways[self.way](input.llm)[1])
        said = f"asked by {self.way}"
        return ScenarioResult(success=True, messages=[], reasoning=said) if self.role is AgentRole.JUDGE else said


@pytest.mark.parametrize("alone", [True, False], ids=["in parallel", "in turns"])
@pytest.mark.parametrize("way", ["url", "headers", "both", "env"])
def test_who_asks_by_the_runs_own_access_is_known(px: Proxy, way: str, alone: bool) -> None:
    """A judge or user that uses `input.llm` is counted as what it is, not as the agent; in replay as well."""

    def run(mode: str) -> dict[str, int]:
        people = [Told(role, way, alone=alone) for role in (AgentRole.USER, AgentRole.AGENT, AgentRole.JUDGE)]
        name = f"access-{way}-{alone}"
        how = {"proxy": px.url, "mode": mode, "cassette": name, "verbose": False}
        result = run_sync(name=name, description="d", agents=people, script=[user(), agent(), judge()], **how)
        assert result.success, result.reasoning
        assert result.usage is not None
        return {party: use.calls for party, use in result.usage.items()}

    assert run("record") == run("replay") == {"agent": 1, "judge": 1, "user": 1}


class Elsewhere(Calls):
    in_process: ClassVar[bool] = False


@pytest.mark.parametrize("kind", [Uses, Elsewhere])
async def test_whoever_needs_no_turn_gets_none(px: Proxy, kind: type[Calls]) -> None:
    """Two are in their turns at the same time."""
    agent = kind(httpx_called)
    async with (
        run_session(px.url, cassette="no-turn") as session,
        session.speaking_turn(agent),
        asyncio.timeout(10),
        session.speaking_turn(agent) as waited,
    ):
        assert waited == 0.0


async def test_the_wait_for_a_turn_is_measured(px: Proxy) -> None:
    """So that a report can say what taking turns costs."""
    asked: list[int] = []

    async def one(session: RunSession) -> float:
        asked.append(1)
        async with session.speaking_turn(Calls(httpx_called)) as waited:
            while len(asked) < 2:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
        return waited

    async with run_session(px.url, cassette="waits") as session:
        first, second = sorted(await asyncio.gather(one(session), one(session)))
    assert first == 0.0
    assert second > 0.0


async def test_traffic_while_nobody_has_the_turn_is_unattributed_and_counted(px: Proxy) -> None:
    """Not in the session, and not hidden: a turn led the agent there, which asks once more when it is over."""

    async def nothing(text: str) -> None:
        assert text

    async with run_session(px.url, cassette="attributed") as session:
        async with session.speaking_turn(Calls(nothing)):
            pass
        await asyncio.to_thread(ask_chat, f"{px.url}/s/{build_process_session_name()}/v1", "who am I?")
        assert (await session.count_unattributed(), len(await session.calls())) == (1, 0)


async def test_a_run_says_who_used_what(px: Proxy) -> None:
    """By party, from the proxy; a sum that nobody reported is unknown, not 0."""
    async with run_session(px.url, cassette="parties") as session:
        for headers in (session.llm.headers, session.party_headers("user"), session.party_headers("judge.2")):
            await asyncio.to_thread(ask_chat, f"{px.url}/v1", "hi", headers)
        usage = dict(await session.usage())
    assert [(party, use.calls) for party, use in usage.items()] == [("agent", 1), ("judge.2", 1), ("user", 1)]


async def test_a_mark_divides_what_was_before_from_what_comes_after(px: Proxy) -> None:
    """Calls after a mark are those that arrived later."""
    async with run_session(px.url, cassette="marks") as session:
        url = session.llm.base_url("openai")
        await asyncio.to_thread(ask_chat, url, "one")
        mark = (await session.report()).arrived
        await asyncio.to_thread(ask_chat, url, "two")
        assert (mark, [call.seq for call in await session.calls(mark)]) == (1, [2])


async def test_misses_are_seen_with_their_texts(px: Proxy) -> None:
    """Of all, or of those after a mark."""
    async with run_session(px.url, cassette="misses", mode="replay") as session:
        url = session.llm.base_url("openai")
        assert await session.misses() == ()
        await asyncio.to_thread(ask_chat, url, "never recorded")
        mark = (await session.report()).arrived
        assert await session.misses(mark) == ()
        await asyncio.to_thread(ask_chat, url, "nor this")
        (one,) = await session.misses(mark)
        assert "nor this" in one
        assert len(await session.misses()) == 2


async def test_a_session_is_closed_once_and_says_the_same_again(px: Proxy) -> None:
    """Its name is free for the next run, and samples are told apart."""
    for _ in range(2):
        session = await RunSession.open(px.url, cassette="samples", sample=3, mode="record")
        assert (session.name, session.opened.cassette, session.opened.sample, session.mode) == (
            "samples~3", "samples", 3, "record",
        )  # fmt: skip
        assert await session.close() == await session.close()


async def test_a_session_that_is_open_is_waited_for_and_then_an_error(px: Proxy) -> None:
    async with run_session(px.url, cassette="busy"):
        with pytest.raises(ControlError, match="busy"):
            await RunSession.open(px.url, cassette="busy", patience=0.2)


def test_a_name_that_cannot_travel_in_a_header_is_refused(px: Proxy) -> None:
    """Before anything is opened; where no proxy answers, the error names the address."""
    with pytest.raises(SettingsError, match="ASCII"):
        asyncio.run(RunSession.open(px.url, cassette="天気"))
    with pytest.raises(MachineError, match=r"http://127\.0\.0\.1:9"):
        asyncio.run(RunSession.open("http://127.0.0.1:9", cassette="x"))


@pytest.mark.parametrize(("run_proxy", "configured", "env", "found"), [
    (None, None, {}, None),
    (None, None, {"LLMPROXY_URL": "http://127.0.0.1:1/"}, "http://127.0.0.1:1"),
    (None, "http://b", {"LLMPROXY_URL": "http://c"}, "http://b"),
    ("http://a/", "http://b", {"LLMPROXY_URL": "http://c"}, "http://a"),
    (False, "http://b", {"LLMPROXY_URL": "http://c"}, None),
    (True, None, {"LLMPROXY_URL": "http://c"}, "http://c"),
    ("", None, {}, None),
])  # fmt: skip
def test_the_proxy_is_the_runs_the_configured_one_or_the_environments(
    run_proxy: str | bool | None, configured: str | bool | None, env: dict[str, str], found: str | None
) -> None:
    """In this order; False is none at all."""
    assert find_or_start_proxy(run_proxy, configured, env) == found


@pytest.mark.slow
def test_true_starts_one_proxy_for_all_and_it_ends(tmp_path: Path) -> None:
    """Asked twice it is the same; ended it does not answer any more."""
    env = {**os.environ, "LLMPROXY_STORE": str(tmp_path / "own.db")}

    async def run(url: str) -> str:
        session = await RunSession.open(url, cassette="own", mode="once")
        await session.close()
        return session.mode

    try:
        url = find_or_start_proxy(True, None, env)
        assert url is not None
        assert find_or_start_proxy(None, True, env) == url
        assert asyncio.run(run(url)) == "once"
    finally:
        _OWN.end_proxy()
    with pytest.raises(MachineError):
        asyncio.run(run(url))


@pytest.mark.parametrize("times", [1, 3])
async def test_a_call_in_a_thread_is_over_when_its_waiter_is_cancelled(times: int) -> None:
    """However often it is cancelled, nothing of it happens afterwards; then the cancellation is raised."""
    begun, go, done = threading.Event(), threading.Event(), []

    def act() -> None:
        begun.set()
        go.wait(10)
        done.append(1)

    task = asyncio.ensure_future(run_in_thread_to_end(act))
    await asyncio.to_thread(begun.wait, 10)
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == [1]


async def test_what_was_not_cancelled_gives_its_result_or_its_error() -> None:
    async def broken() -> None:
        raise LookupError("gone")

    assert await wait_despite_cancel(asyncio.sleep(0, 7)) == 7
    with pytest.raises(LookupError, match="gone"):
        await wait_despite_cancel(broken())


@pytest.fixture(scope="module")
def replaying(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    with proxy("replay", tmp_path_factory.mktemp("proxy") / "x.db") as running:
        yield running


@pytest.fixture
def control(replaying: Proxy) -> Iterator[ControlApiClient]:
    """Return its control API with a session `run`; sessions are closed at the end."""
    made = ControlApiClient(replaying.url)
    made.open_session("run")
    yield made
    for report in made.sessions():
        made.close_session(report.name)


def test_a_queue_lasts_as_long_as_somebody_has_or_wants_it() -> None:
    """Ten thousand runs leave none behind; two that meet find the same one."""
    door = get_session_lock("http://p", "s")
    assert get_session_lock("http://p", "s") is door
    assert get_session_lock("http://p", "other") is not door
    gone = weakref.ref(door)
    del door
    gc.collect()
    assert gone() is None


def test_a_queue_is_first_come_first_served_across_threads_and_loops() -> None:
    """Each waiter is in an event loop and a thread of its own."""
    queue, order, ready = FairLock(), list[int](), threading.Barrier(2)

    async def wait(n: int) -> None:
        task = asyncio.ensure_future(queue.acquire_lock())
        await asyncio.sleep(0)
        await asyncio.to_thread(ready.wait, 10)
        await task
        order.append(n)
        queue.release_lock()

    async def all_of_them() -> list[threading.Thread]:
        assert await queue.acquire_lock() == 0.0
        threads = []
        for n in range(5):
            threads.append(threading.Thread(target=asyncio.run, args=(wait(n),)))
            threads[-1].start()
            await asyncio.to_thread(ready.wait, 10)
        assert order == []
        queue.release_lock()
        return threads

    for thread in asyncio.run(all_of_them()):
        thread.join(10)
    assert order == [0, 1, 2, 3, 4]


async def test_a_waiter_that_is_cancelled_is_passed_over() -> None:
    """Whoever comes after it gets the turn, also when it is cancelled just then; the seconds are measured."""
    queue = FairLock()
    await queue.acquire_lock()
    gone = asyncio.create_task(queue.acquire_lock())
    patient = asyncio.create_task(queue.acquire_lock())
    await asyncio.sleep(0.05)
    gone.cancel()
    await asyncio.sleep(0.05)
    queue.release_lock()
    assert (await asyncio.wait_for(patient, 120)) >= 0.05
    queue = FairLock()
    await queue.acquire_lock()
    gone = asyncio.create_task(queue.acquire_lock())
    await asyncio.sleep(0.05)
    queue.release_lock()
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert (await asyncio.wait_for(queue.acquire_lock(), 120)) == 0.0


@pytest.mark.parametrize(
    ("env", "found"),
    [
        ({}, ()),
        ({"OPENAI_BASE_URL": "https://api.openai.com/v1"}, ()),
        ({"OPENAI_BASE_URL": "http://127.0.0.1:8080/s/p-1/v1"}, ("p-1",)),
        ({"OPENAI_BASE_URL": "http://localhost:8080/s/a%2Fb/v1"}, ("a/b",)),
        ({"OPENAI_BASE_URL": "http://127.0.0.1:8080/v1"}, ("default",)),
        ({"OPENAI_BASE_URL": "http://127.0.0.1:8080/s/x/v1", "ANTHROPIC_BASE_URL": "http://127.0.0.1:8080/s/y/anthropic"}, ("x", "y")),
    ],
)  # fmt: skip
def test_the_process_is_known_by_what_its_base_urls_name(env: dict[str, str], found: tuple[str, ...]) -> None:
    """Every session that one of them names; none where none points at the proxy."""
    assert list_session_names_in_env_urls(env, "http://127.0.0.1:8080") == found


async def test_during_a_turn_the_environment_names_the_proxy_and_afterwards_it_does_not(
    replaying: Proxy, control: ControlApiClient
) -> None:
    """What was there is there again, and what somebody changed meanwhile is theirs."""
    env = {"OPENAI_BASE_URL": "https://api.openai.com/v1"}
    async with bind_process_calls_to_session(control, "run", replay=True, env=env):
        assert env["OPENAI_BASE_URL"] == f"{replaying.url}/s/{build_process_session_name()}/v1"
        assert env["OPENAI_API_KEY"]
        assert "LLMPROXY_URL" not in env  # by it a run without a proxy would find one
        ask_chat(env["OPENAI_BASE_URL"])
        env["ANTHROPIC_BASE_URL"] = "mine"
    assert env == {"OPENAI_BASE_URL": "https://api.openai.com/v1", "ANTHROPIC_BASE_URL": "mine"}
    assert control.report("run").misses == 1


async def test_others_see_the_environment_as_it_is_without_the_turn(control: ControlApiClient) -> None:
    """A run that opens meanwhile finds the user's own gateway, not the proxy."""
    env = {"OPENAI_BASE_URL": "https://gateway.example/v1"}
    async with bind_process_calls_to_session(control, "run", replay=True, env=env):
        assert env["OPENAI_BASE_URL"] != "https://gateway.example/v1"
        assert copy_env_without_proxy_changes(env) == {"OPENAI_BASE_URL": "https://gateway.example/v1"}
    assert copy_env_without_proxy_changes(env) == env


async def test_a_turn_ends_with_an_exception_too(control: ControlApiClient) -> None:
    """The name is free again, for the next one."""
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            async with bind_process_calls_to_session(control, "run", replay=True, env={}):
                raise ZeroDivisionError
    control.bind_session_name(build_process_session_name(), "run")


async def test_a_turn_that_is_cancelled_is_undone(control: ControlApiClient) -> None:
    """A run that is called off leaves neither binding nor lock."""

    async def long() -> None:
        async with bind_process_calls_to_session(control, "run", replay=True, env={}):
            await asyncio.sleep(60)

    task = asyncio.create_task(long())
    await asyncio.sleep(0.3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with bind_process_calls_to_session(control, "run", replay=True, env={}) as waited:
        assert waited < 60


async def test_what_a_fixture_bound_is_borrowed_and_given_back(replaying: Proxy, control: ControlApiClient) -> None:
    """With the fixture `llmproxy`, a turn's run hears the agent, and the test hears it again afterwards."""
    name = f"pytest-host-{os.getpid()}"
    env = {"OPENAI_BASE_URL": f"{replaying.url}/s/{name}/v1"}
    control.open_session("test")
    control.bind_session_name(name, "test")
    async with bind_process_calls_to_session(control, "run", replay=True, env=env):
        ask_chat(env["OPENAI_BASE_URL"])
    ask_chat(env["OPENAI_BASE_URL"])
    assert (control.report("run").misses, control.report("test").misses) == (1, 1)


async def test_a_session_that_another_process_has_is_waited_for(control: ControlApiClient) -> None:
    control.open_session("theirs")
    control.bind_session_name("shared", "theirs")
    asyncio.get_running_loop().call_later(0.3, control.unbind_session_name, "shared")
    async with redirect_session_to_other_session(control, "shared", "run") as waited:
        found = waited
    assert found > 0.0


async def test_a_session_that_stays_bound_is_an_error_of_the_environment(control: ControlApiClient) -> None:
    """It names who has it, and what frees it."""
    control.open_session("theirs")
    control.bind_session_name("shared", "theirs")
    with pytest.raises(MachineError, match=r"'shared'.*'theirs'[\s\S]*unbind") as caught:
        async with redirect_session_to_other_session(control, "shared", "run", patience=0.1):
            pass
    assert caught.value.exit_code == 3


def test_a_proxy_that_is_gone_frees_the_turn(tmp_path: Path) -> None:
    """The error is said, and the next one is not locked out."""

    async def run() -> None:
        for _ in range(2):
            with pytest.raises(MachineError, match="no llmproxy answers"):
                async with bind_process_calls_to_session(
                    ControlApiClient("http://127.0.0.1:9"), "run", replay=True, env={}
                ):
                    pass

    asyncio.run(asyncio.wait_for(run(), 20))
