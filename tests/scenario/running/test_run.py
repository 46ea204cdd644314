"""`run`, `arun`, `run_sync`: the documented parameters, what they inherit, limits of concurrency, plans, threads."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from llmproxy import scenario
from llmproxy.errors import AgentError, MachineError
from llmproxy.report.events import Status
from llmproxy.scenario import ScenarioResult, run_sync
from llmproxy.scenario.running.run import ScenarioRunFunctionArguments, run_coroutine_to_end, run_scenario_in_new_thread
from llmproxy.scenario.values.run_ids_and_options import ScenarioRunOptions
from tests.scenario.people import Agent, Ear, Judge, User, after, executor, finished, said

pytestmark = pytest.mark.usefixtures("untouched")


def quiet(*agents: Any, **given: Any) -> scenario.ScenarioResult:
    found: scenario.ScenarioResult = asyncio.run(scenario.run("n", "d", list(agents), verbose=False, **given))
    return found


def test_the_documented_signature() -> None:
    """Names, order and printed defaults are those of the pages; ours come after a star."""
    shown = str(inspect.signature(scenario.run)).partition(" -> ")[0].replace("'", "")
    parameters = inspect.signature(scenario.run).parameters
    documented = [name for name, each in parameters.items() if each.kind is each.POSITIONAL_OR_KEYWORD]
    assert documented == [
        "name", "description", "agents", "max_turns", "verbose", "cache_key", "debug", "script", "set_id",
    ]  # fmt: skip
    assert "cache_key: str | None = None" in shown
    assert {"proxy", "runs", "timeout", "call_timeout", "max_concurrency", "fresh_ids"} < set(parameters)
    assert parameters["call_timeout"].default == 120
    assert str(inspect.signature(scenario.arun)) == str(inspect.signature(scenario.run))


async def test_arun_stays_on_the_callers_loop() -> None:
    seen: list[bool] = []

    here = asyncio.get_running_loop(), threading.get_ident()
    agent = Agent(lambda _given: after(seen.append, here == (asyncio.get_running_loop(), threading.get_ident())))
    assert said(await scenario.arun("n", "d", [agent], 1, False)) == ["x"]
    assert seen == [True]


def test_run_has_a_thread_and_a_loop_of_its_own() -> None:
    seen: list[int] = []
    quiet(Agent(lambda _given: after(seen.append, threading.get_ident())), max_turns=1)
    assert seen != [threading.get_ident()]


async def test_parallel_runs_do_not_serialise_on_a_loop() -> None:
    """Row 20: four arun, each of which waits until all four are under way."""
    together = asyncio.Barrier(4)

    async def wait(_given: object) -> str:
        await together.wait()
        return "x"

    await asyncio.gather(*(scenario.arun("n", "d", [Agent(wait)], 1, False) for _ in range(4)))


async def test_max_concurrency_limits_runs_that_name_the_same_number() -> None:
    now, most = 0, 0

    async def work(_given: object) -> str:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.05)
        now -= 1
        return "x"

    runs = (scenario.run("n", "d", [Agent(work)], 1, False, max_concurrency=2) for _ in range(6))
    await asyncio.gather(*runs)
    assert most == 2


def test_what_configure_says_holds_until_run_says_otherwise() -> None:
    """Successive calls accumulate; None inherits."""
    scenario.configure(max_turns=2, verbose=False)
    scenario.configure(cache_key="k")
    keys: list[Any] = []
    agent = Agent(lambda given: after(keys.append, given.scenario_state.config.cache_key))
    assert len(asyncio.run(scenario.run("n", "d", [agent])).messages) == 2
    assert len(asyncio.run(scenario.run("n", "d", [agent], max_turns=1)).messages) == 1
    assert keys == ["k"] * 3


def test_handlers_hear_one_run_or_all() -> None:
    """Of a run, and configured ones of every run."""
    every, one = Ear(), Ear()
    scenario.configure(handlers=(every,))
    quiet(Agent(), max_turns=1, handlers=(one,))
    quiet(Agent(), max_turns=1)
    assert finished(one).status is Status.FAILED
    assert every.kinds() == " ".join([one.kinds()] * 2)


def test_numbers_that_cannot_be_meant_are_refused() -> None:
    for name in ("timeout", "call_timeout", "max_concurrency"):
        with pytest.raises(ValueError, match=f"{name} takes a number above 0, not 0"):
            quiet(Agent(), **{name: 0})


def test_a_seeded_history_comes_first() -> None:
    """Everybody hears it; where the user had the last word, the agent answers."""
    agent, user = Agent("a"), User("u")
    before = [{"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "My lamp is broken."}]
    result = quiet(user, agent, max_turns=2, history=before)
    assert said(result) == ["Hello!", "My lamp is broken.", "a", "u", "a"]
    assert [message["content"] for message in agent.inputs[0].new_messages] == ["Hello!", "My lamp is broken."]
    assert said(quiet(user, agent, max_turns=1, history=before[:1])) == ["Hello!", "u", "a"]


def test_a_plan_tells_how_each_sample_ended() -> None:
    """With an exception too: status, what was said by then, and the exception itself."""
    error = RuntimeError("crash")
    plan = ScenarioRunFunctionArguments(name="n", description="d", agents=[User("u"), Agent("a", error)], verbose=False)
    ended = asyncio.run(plan.once(sample=2, runs=3))
    assert (ended.status, ended.error, said(ended.result)) == (Status.AGENT_ERROR, error, ["u", "a", "u"])
    assert (ended.result.sample, ended.result.error) == (2, "RuntimeError: crash")
    with pytest.raises(RuntimeError, match="crash"):
        ended.result_or_raise()


def test_samples_of_a_plan_have_adapters_of_their_own() -> None:
    """Clones, so that no sample sees the state of another; a single run uses the object itself."""
    agent = Agent("a")
    agent.mark = "original"  # type: ignore[attr-defined]
    plan = ScenarioRunFunctionArguments(name="n", description="d", agents=[agent], max_turns=1, verbose=False)
    assert plan.build_executor(1, 2).agents[0] is not agent
    assert plan.build_executor().agents[0] is agent
    assert plan.build_executor(2, 3).options == ScenarioRunOptions(sample=2, runs=3)


async def test_gather_of_runs_is_the_parallel_idiom() -> None:
    found = await asyncio.gather(
        *(scenario.run(f"n{n}", "d", [User(f"u{n}"), Agent("a"), Judge()], 2, False) for n in range(50))
    )
    assert [said(result)[0] for result in found] == [f"u{n}" for n in range(50)]


def test_a_miss_is_shown_without_frames_of_ours(tmp_path: Path) -> None:
    """Its text explains it: the caller's line, one of ours, the agent's; not what lies between in clients, loops and threads."""
    code = (
        "from llmproxy import scenario\n"
        "from llmproxy.errors import MissError\n"
        "class Agent(scenario.AgentAdapter):\n"
        "    async def call(self, input):\n"
        "        try:\n"
        "            raise ValueError('404')\n"
        "        except ValueError as error:\n"
        "            raise MissError('never recorded', hint='record it') from error\n"
        "steps = [scenario.user('hi'), scenario.agent()]\n"
        "scenario.run_sync(name='n', description='d', agents=[Agent()], script=steps, verbose=False)\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False)
    said = done.stderr.splitlines()
    assert said[-2:] == ["llmproxy.errors.MissError: never recorded", "record it"]
    assert done.stderr.count("Traceback") == 1
    assert sum(line.startswith("  File") for line in said) == 3, done.stderr


MARK: contextvars.ContextVar[str] = contextvars.ContextVar("mark", default="nothing")


async def test_context_variables_are_copied_into_the_thread() -> None:
    """What the caller set, the agent sees; what the agent sets, stays with it."""

    def read(_given: object) -> str:
        found = MARK.get()
        MARK.set("changed")
        return f"{found} on {threading.current_thread().name}"

    MARK.set("set by the caller")
    result = await run_scenario_in_new_thread(executor(Agent(read), name="where", max_turns=1))
    assert MARK.get() == "set by the caller"
    assert said(result) == ["set by the caller on scenario where"]


async def test_blocking_adapters_do_not_stop_each_other() -> None:
    """Four runs that each wait for the others, blocking their threads, all go on."""
    together = threading.Barrier(4)
    makers = [executor(Agent(lambda _given: after(together.wait, 30)), max_turns=1) for _ in range(4)]
    await asyncio.gather(*(run_scenario_in_new_thread(each) for each in makers))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (SystemExit(3), AgentError),
        (StopIteration("x"), RuntimeError),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (KeyError("my own"), KeyError),
    ],
)
def test_what_an_adapter_raises_comes_out(error: BaseException, kind: type[BaseException]) -> None:
    """As it is, also what a future would not carry; an agent that would end the program has gone wrong."""

    async def go() -> BaseException:
        try:
            await run_scenario_in_new_thread(executor(Agent(error)))
        except BaseException as caught:  # noqa: BLE001 (whatever comes out)
            return caught
        raise AssertionError("nothing was raised")

    runner = asyncio.new_event_loop()
    try:
        caught = runner.run_until_complete(go())
    finally:
        runner.close()
    assert type(caught) is kind
    assert (caught is error) is isinstance(error, kind)


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
        await asyncio.wait_for(run_scenario_in_new_thread(executor(Agent(wait), ear=ear)), 0.2)
    assert seen == ["cancelled"]
    assert finished(ear).error == "interrupted: the run was cancelled before it ended"


def test_a_blocked_run_is_left_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    """Python cannot stop a thread; the caller does not wait for it, and Finished comes once."""
    release, ear = threading.Event(), Ear()

    async def go() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(
                run_scenario_in_new_thread(executor(Agent(lambda _given: release.wait() and "x"), ear=ear)), 0.2
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
        await run_scenario_in_new_thread(made)
    release.set()
    _ended("scenario n")
    assert finished(ear).status is Status.AGENT_ERROR


@pytest.mark.parametrize(("who", "error"), [(Agent, AgentError), (User, MachineError)])
async def test_a_blocked_run_runs_into_its_limit(who: Any, error: type[Exception]) -> None:
    """The limit of the whole run likewise; whose fault it is depends on who was called."""
    release = threading.Event()
    made = executor(who(lambda _given: release.wait() and "x"), timeout=0.1, name="slow")

    with pytest.raises(error, match=r"did not end in 0.1 s: it was in turn 0 while .* its thread is blocked"):
        await run_scenario_in_new_thread(made)
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

    asyncio.run(run_scenario_in_new_thread(executor(Agent(start), max_turns=1)))
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
            run_coroutine_to_end(fail)

    with pytest.raises(LookupError, match="no"):
        run_coroutine_to_end(fail)
    asyncio.run(inside())


def _ended(name: str) -> None:
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join(20)
            assert not thread.is_alive()
