"""`run`, `arun`, `run_sync`: the documented parameters, what they inherit, limits of concurrency, plans."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from llmproxy import scenario
from llmproxy.report.events import Status
from llmproxy.scenario.running.run import RunPlan
from llmproxy.scenario.values.run_ids_and_options import RunOptions
from tests.scenario.people import Agent, Ear, Judge, User, after, finished, said

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


def test_run_returns_the_result() -> None:
    result = quiet(User("u"), Agent("a"), Judge(), max_turns=1, set_id="s")
    assert (result.success, said(result)) == (True, ["u", "a"])


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


@pytest.mark.parametrize(
    ("given", "want"),
    [({}, "k"), ({"cache_key": None}, None), ({"cache_key": ""}, None), ({"cache_key": "own"}, "own")],
)
def test_cache_key_none_is_off_although_configure_says_on(given: dict[str, Any], want: str | None) -> None:
    """Row 5: None is an order here, not "inherit"."""
    scenario.configure(cache_key="k")
    keys: list[Any] = []
    quiet(Agent(lambda each: after(keys.append, each.scenario_state.config.cache_key)), max_turns=1, **given)
    assert keys == [want]


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
    plan = RunPlan(name="n", description="d", agents=[User("u"), Agent("a", error)], verbose=False)
    ended = asyncio.run(plan.once(sample=2, runs=3))
    assert (ended.status, ended.error, said(ended.result)) == (Status.AGENT_ERROR, error, ["u", "a", "u"])
    assert (ended.result.sample, ended.result.error) == (2, "RuntimeError: crash")
    with pytest.raises(RuntimeError, match="crash"):
        ended.result_or_raise()


def test_samples_of_a_plan_have_adapters_of_their_own() -> None:
    """Clones, so that no sample sees the state of another; a single run uses the object itself."""
    agent = Agent("a")
    agent.mark = "original"  # type: ignore[attr-defined]
    plan = RunPlan(name="n", description="d", agents=[agent], max_turns=1, verbose=False)
    assert plan.build_executor(1, 2).agents[0] is not agent
    assert plan.build_executor().agents[0] is agent
    assert plan.build_executor(2, 3).options == RunOptions(sample=2, runs=3)


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
