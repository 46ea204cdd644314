"""Taking turns: in order, across threads and loops, undone whatever happens."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmproxy.client.control import Control
from llmproxy.errors import MachineError
from llmproxy.scenario.turn_taking import (
    FairLock,
    bind_service,
    env_without_turn,
    get_session_lock,
    hold_process_turn,
    list_base_url_sessions,
    process_session_name,
)
from tests.support import Proxy, proxy
from tests.support.proxy import ask_chat


@pytest.fixture(scope="module")
def px(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    with proxy("replay", tmp_path_factory.mktemp("proxy") / "x.db") as running:
        yield running


@pytest.fixture
def control(px: Proxy) -> Iterator[Control]:
    """Return its control API with a session `run`; sessions are closed at the end."""
    made = Control(px.url)
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
    assert list_base_url_sessions(env, "http://127.0.0.1:8080") == found


async def test_during_a_turn_the_environment_names_the_proxy_and_afterwards_it_does_not(
    px: Proxy, control: Control
) -> None:
    """What was there is there again, and what somebody changed meanwhile is theirs."""
    env = {"OPENAI_BASE_URL": "https://api.openai.com/v1"}
    async with hold_process_turn(control, "run", replay=True, env=env):
        assert env["OPENAI_BASE_URL"] == f"{px.url}/s/{process_session_name()}/v1"
        assert env["OPENAI_API_KEY"]
        assert "LLMPROXY_URL" not in env  # by it a run without a proxy would find one
        ask_chat(env["OPENAI_BASE_URL"])
        env["ANTHROPIC_BASE_URL"] = "mine"
    assert env == {"OPENAI_BASE_URL": "https://api.openai.com/v1", "ANTHROPIC_BASE_URL": "mine"}
    assert control.report("run").misses == 1


async def test_others_see_the_environment_as_it_is_without_the_turn(control: Control) -> None:
    """A run that opens meanwhile finds the user's own gateway, not the proxy."""
    env = {"OPENAI_BASE_URL": "https://gateway.example/v1"}
    async with hold_process_turn(control, "run", replay=True, env=env):
        assert env["OPENAI_BASE_URL"] != "https://gateway.example/v1"
        assert env_without_turn(env) == {"OPENAI_BASE_URL": "https://gateway.example/v1"}
    assert env_without_turn(env) == env


async def test_a_turn_ends_with_an_exception_too(control: Control) -> None:
    """The name is free again, for the next one."""
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            async with hold_process_turn(control, "run", replay=True, env={}):
                raise ZeroDivisionError
    control.bind_session_name(process_session_name(), "run")


async def test_a_turn_that_is_cancelled_is_undone(control: Control) -> None:
    """A run that is called off leaves neither binding nor lock."""

    async def long() -> None:
        async with hold_process_turn(control, "run", replay=True, env={}):
            await asyncio.sleep(60)

    task = asyncio.create_task(long())
    await asyncio.sleep(0.3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with hold_process_turn(control, "run", replay=True, env={}) as waited:
        assert waited < 60


async def test_what_a_fixture_bound_is_borrowed_and_given_back(px: Proxy, control: Control) -> None:
    """With the fixture `llmproxy`, a turn's run hears the agent, and the test hears it again afterwards."""
    name = f"pytest-host-{os.getpid()}"
    env = {"OPENAI_BASE_URL": f"{px.url}/s/{name}/v1"}
    control.open_session("test")
    control.bind_session_name(name, "test")
    async with hold_process_turn(control, "run", replay=True, env=env):
        ask_chat(env["OPENAI_BASE_URL"])
    ask_chat(env["OPENAI_BASE_URL"])
    assert (control.report("run").misses, control.report("test").misses) == (1, 1)


async def test_a_session_that_another_process_has_is_waited_for(control: Control) -> None:
    control.open_session("theirs")
    control.bind_session_name("shared", "theirs")
    asyncio.get_running_loop().call_later(0.3, control.unbind_session_name, "shared")
    async with bind_service(control, "shared", "run") as waited:
        found = waited
    assert found > 0.0


async def test_a_session_that_stays_bound_is_an_error_of_the_environment(control: Control) -> None:
    """It names who has it, and what frees it."""
    control.open_session("theirs")
    control.bind_session_name("shared", "theirs")
    with pytest.raises(MachineError, match=r"'shared'.*'theirs'[\s\S]*unbind") as caught:
        async with bind_service(control, "shared", "run", patience=0.1):
            pass
    assert caught.value.exit_code == 3


async def test_turns_at_a_service_are_taken_one_after_the_other(px: Proxy, control: Control) -> None:
    """Each message lands in its own run, whoever asks first."""
    names = [f"run-{n}" for n in range(4)]

    async def one(name: str) -> None:
        async with bind_service(control, "service", name):
            await asyncio.to_thread(ask_chat, f"{px.url}/s/service/v1")

    for name in names:
        control.open_session(name)
    await asyncio.gather(*map(one, names))
    assert [control.report(name).misses for name in names] == [1, 1, 1, 1]


def test_a_proxy_that_is_gone_frees_the_turn(tmp_path: Path) -> None:
    """The error is said, and the next one is not locked out."""

    async def run() -> None:
        for _ in range(2):
            with pytest.raises(MachineError, match="no llmproxy answers"):
                async with hold_process_turn(Control("http://127.0.0.1:9"), "run", replay=True, env={}):
                    pass

    asyncio.run(asyncio.wait_for(run(), 20))
