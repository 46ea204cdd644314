"""Threads for runs: isolation, cancellation within a second, blocked threads that are reported and left."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from typing import Any

import pytest

from llmproxy.errors import AgentError, MachineError
from llmproxy.report.events import Status
from llmproxy.scenario import ScenarioResult, run_sync
from llmproxy.scenario.running.run_thread import run_in_new_thread, run_to_end
from tests.scenario.people import Agent, Ear, User, after, executor, finished, said

MARK: contextvars.ContextVar[str] = contextvars.ContextVar("mark", default="nothing")


async def test_context_variables_are_copied_into_the_thread() -> None:
    """What the caller set, the agent sees; what the agent sets, stays with it."""

    def read(_given: object) -> str:
        found = MARK.get()
        MARK.set("changed")
        return f"{found} on {threading.current_thread().name}"

    MARK.set("set by the caller")
    result = await run_in_new_thread(executor(Agent(read), name="where", max_turns=1))
    assert MARK.get() == "set by the caller"
    assert said(result) == ["set by the caller on scenario where"]


async def test_blocking_adapters_do_not_stop_each_other() -> None:
    """Four runs that each wait for the others, blocking their threads, all go on."""
    together = threading.Barrier(4)
    makers = [executor(Agent(lambda _given: after(together.wait, 30)), max_turns=1) for _ in range(4)]
    await asyncio.gather(*(run_in_new_thread(each) for each in makers))


async def test_what_an_adapter_raises_comes_out_as_it_is() -> None:
    error = KeyError("my own")

    with pytest.raises(KeyError) as caught:
        await run_in_new_thread(executor(Agent(error)))
    assert caught.value is error


@pytest.mark.parametrize(
    ("error", "kind"),
    [(SystemExit(3), AgentError), (StopIteration("x"), RuntimeError), (KeyboardInterrupt(), KeyboardInterrupt)],
)
def test_odd_exceptions_come_out_too(error: BaseException, kind: type[BaseException]) -> None:
    """What a future would not carry; an agent that would end the program has gone wrong."""

    async def go() -> BaseException:
        try:
            await run_in_new_thread(executor(Agent(error)))
        except BaseException as caught:  # noqa: BLE001 (whatever comes out)
            return caught
        raise AssertionError("nothing was raised")

    runner = asyncio.new_event_loop()
    try:
        caught = runner.run_until_complete(go())
    finally:
        runner.close()
    assert type(caught) is kind


async def test_cancelling_the_awaiter_cancels_the_run() -> None:
    """The agent gets CancelledError, the events say so, and the caller is free at once."""
    seen: list[str] = []
    ear = Ear()

    async def wait(_given: object) -> str:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        return "never"

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(run_in_new_thread(executor(Agent(wait), ear=ear)), 0.2)
    assert seen == ["cancelled"]
    assert finished(ear).error == "interrupted: the run was cancelled before it ended"


def test_a_blocked_run_is_left_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    """Python cannot stop a thread; the caller does not wait for it, and Finished comes once."""
    release, ear = threading.Event(), Ear()

    async def go() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(
                run_in_new_thread(executor(Agent(lambda _given: release.wait() and "x"), ear=ear)), 0.2
            )

    with caplog.at_level(logging.WARNING):
        asyncio.run(go())  # for ever, if it waited for the thread
    assert "given up while its thread is blocked in Agent.call" in caplog.text
    assert finished(ear).labels == ("blocked thread",)
    release.set()
    _ended("scenario n")
    assert finished(ear).labels == ("blocked thread",), "the thread, once it goes on, says nothing more"


async def test_a_blocked_call_runs_into_its_limit() -> None:
    """A loop that is blocked cannot notice; who waits for it does."""
    release, ear = threading.Event(), Ear()
    made = executor(Agent(lambda _given: release.wait() and "x"), ear=ear, call_timeout=0.1)

    with pytest.raises(AgentError, match=r"Agent \(Agent\) gave no answer in 0.1 s.\n.*It blocks its thread"):
        await run_in_new_thread(made)
    release.set()
    _ended("scenario n")
    assert finished(ear).status is Status.AGENT_ERROR


@pytest.mark.parametrize(("who", "error"), [(Agent, AgentError), (User, MachineError)])
async def test_a_blocked_run_runs_into_its_limit(who: Any, error: type[Exception]) -> None:
    """The limit of the whole run likewise; whose fault it is depends on who was called."""
    release = threading.Event()
    made = executor(who(lambda _given: release.wait() and "x"), timeout=0.1, name="slow")

    with pytest.raises(error, match=r"did not end in 0.1 s: it was in turn 0 while .* its thread is blocked"):
        await run_in_new_thread(made)
    release.set()
    _ended("scenario slow")


def test_what_an_agent_leaves_running_is_ended() -> None:
    """Tasks that outlive the run are cancelled, so that no loop is closed under them."""
    seen: list[str] = []

    async def background() -> None:
        try:
            await asyncio.sleep(30)
        finally:
            seen.append("ended")

    tasks = []

    async def start(_given: object) -> str:
        tasks.append(asyncio.create_task(background()))
        await asyncio.sleep(0)
        return "x"

    asyncio.run(run_in_new_thread(executor(Agent(start), max_turns=1)))
    assert seen == ["ended"]


def test_run_sync_works_with_and_without_a_loop() -> None:
    """From a script, and from a notebook whose loop is running."""

    async def inside() -> ScenarioResult:
        return run_sync("n", "d", [Agent("x")], max_turns=1, verbose=False)

    assert said(asyncio.run(inside())) == said(run_sync("n", "d", [Agent("x")], 1, False)) == ["x"]


def test_finish_raises_what_the_coroutine_raises() -> None:
    async def fail() -> ScenarioResult:
        raise LookupError("no")

    async def inside() -> None:
        with pytest.raises(LookupError, match="no"):
            run_to_end(fail)

    with pytest.raises(LookupError, match="no"):
        run_to_end(fail)
    asyncio.run(inside())


def _ended(name: str) -> None:
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join(20)
            assert not thread.is_alive()
