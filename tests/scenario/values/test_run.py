"""A run beside its conversation: names that are the same tomorrow, options, the scenario that runs here, whose fault an error is."""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
import sys
import threading
import traceback
from typing import Any

import pytest

from llmproxy import scenario
from llmproxy.errors import AgentError, AgentUnreachable, MachineError, MissError, UpstreamError
from llmproxy.report.events import Status
from llmproxy.scenario import AgentInput, AgentRole, agent, run_sync, user
from llmproxy.scenario.values.run_ids_and_options import (
    ScenarioRunOptions,
    batch_run_id,
    classify_run_error,
    context_scenario,
    derive_thread_id,
    describe_error,
    make_run_id,
    name_cassette,
    strip_own_frames_from_error,
)
from tests.scenario.people import Agent, Person, executor, play


@pytest.mark.parametrize(("name", "set_id", "want"), [
    ("refund", None, "refund"),
    ("refund", "default", "refund"),
    ("refund", "shop", "shop--refund"),
    ("Refund a lamp!", None, "refund-a-lamp-f9af2838"),
    ("客户退款", None, "scenario-"),
    ("a" * 300, None, "a" * 80 + "-"),
])  # fmt: skip
def test_a_cassette_is_named_after_its_scenario(name: str, set_id: str | None, want: str) -> None:
    """ASCII that a header and a file name take; a digest follows where something was lost."""
    found = name_cassette(name, set_id)
    assert found.startswith(want)
    assert found.isascii()
    assert len(found) < 100


def test_different_names_are_different_cassettes() -> None:
    """Also where their slugs are equal, and where set and name meet elsewhere."""
    alone = ["a b", "a-b", "A b", "a!b", "退款", "退货", ""]
    found = {name_cassette(name) for name in alone} | {name_cassette("b", set_id) for set_id in ("a ", "a")}
    assert len(found) == len(alone) + 2


def test_thread_ids_of_a_recording_are_the_same_tomorrow() -> None:
    """In another process, too; another sample has another one."""
    code = "from llmproxy.scenario.values.run_ids_and_options import derive_thread_id; print(derive_thread_id('c', 1, 'n'))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert told.strip() == derive_thread_id("c", 1, "n")
    recordings = (("c", 1, "n"), ("c", 2, "n"), ("d", 1, "n"), ("c", 1, "m"))
    assert len({derive_thread_id(*each) for each in recordings}) == 4


def test_without_a_recording_ids_are_random() -> None:
    """Never twice the same; a batch is the process, and its environment carries it."""
    assert len({derive_thread_id() for _ in range(100)} | {make_run_id() for _ in range(100)}) == 200
    assert derive_thread_id().startswith("thread_")
    assert batch_run_id() == batch_run_id() == os.environ["SCENARIO_BATCH_RUN_ID"]


def test_defaults_neither_limit_a_run_nor_reach_for_a_proxy() -> None:
    options = ScenarioRunOptions()
    assert (options.proxy, options.timeout, options.call_timeout, options.sample) == (None, None, 120, 1)


@pytest.mark.parametrize(
    "wrong", [{"timeout": math.nan}, {"call_timeout": -1}, {"sample": 0}, {"runs": 0}, {"max_concurrency": 0}]
)
def test_numbers_below_one_are_refused(wrong: dict[str, Any]) -> None:
    """With name and value; None is no number."""
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} takes a number above 0"):
        ScenarioRunOptions(**wrong)
    assert ScenarioRunOptions(call_timeout=None).call_timeout is None


U, A, J = AgentRole.USER, AgentRole.AGENT, AgentRole.JUDGE
AGENT, ENVIRONMENT, FAILED = Status.AGENT_ERROR, Status.ENVIRONMENT_ERROR, Status.FAILED


@pytest.mark.parametrize(("error", "role", "want"), [
    (ValueError("x"), A, AGENT),
    (AssertionError("x"), A, AGENT),
    (AgentError("x"), A, AGENT),
    (AgentError("x"), None, AGENT),
    (AgentUnreachable("x"), A, ENVIRONMENT),
    (MissError("x"), A, ENVIRONMENT),
    (UpstreamError("x"), J, ENVIRONMENT),
    (MachineError("x"), None, ENVIRONMENT),
    (ValueError("x"), U, ENVIRONMENT),
    (ValueError("x"), J, ENVIRONMENT),
    (AssertionError("x"), J, ENVIRONMENT),
    (AssertionError("x"), None, FAILED),
    (ValueError("x"), None, ENVIRONMENT),
    (asyncio.CancelledError(), A, ENVIRONMENT),
    (KeyboardInterrupt(), None, ENVIRONMENT),
])  # fmt: skip
def test_whose_fault(error: BaseException, role: AgentRole | None, want: Status) -> None:
    """An agent that crashes counts against it; whatever says nothing about it does not."""
    assert classify_run_error(error, role) is want


def test_errors_in_words() -> None:
    """Ours say it themselves; others are named by their kind."""
    assert describe_error(MissError("never recorded", hint="record it")) == "never recorded\nrecord it"
    assert describe_error(KeyError("x")) == "KeyError: 'x'"
    assert describe_error(TimeoutError()) == "TimeoutError"
    for error in (asyncio.CancelledError("cancelled"), KeyboardInterrupt()):
        assert describe_error(error) == "interrupted: the run was cancelled before it ended"


def test_a_traceback_begins_where_its_author_is() -> None:
    """Frames of the engine, of loops and threads are left out; an error of ours that nobody else raised has none."""

    class Broken(Person):
        async def call(self, input: AgentInput) -> str:  # noqa: A002 (as its users write it)
            raise KeyError(input.thread_id)

    with pytest.raises(KeyError) as broken:
        play(Broken(), script=[user("hi"), agent()])
    assert len(broken.traceback) > 5
    assert [each.name for each in traceback.extract_tb(strip_own_frames_from_error(broken.value).__traceback__)][
        -1
    ] == "call"
    with pytest.raises(KeyError) as raised:
        run_sync("n", "d", [Broken()], script=[user("hi"), agent()], verbose=False)
    names = [each.name for each in traceback.extract_tb(raised.value.__traceback__)]
    assert (names[0], names[-1]) == ("test_a_traceback_begins_where_its_author_is", "call")
    assert len(names) <= 4, names
    ours = AgentError("x")
    assert strip_own_frames_from_error(ours) is ours


def test_inside_it_is_the_executor() -> None:
    """For agents and steps, also in tasks and threads that asyncio starts; not in threads of one's own."""
    seen: list[Any] = []

    async def look(_given: object) -> str:
        seen.append(context_scenario.get())
        seen.append(await asyncio.to_thread(context_scenario.get))
        thread = threading.Thread(target=lambda: seen.append(context_scenario.get()))
        thread.start()
        thread.join()
        return "x"

    made = executor(Agent(look), script=[scenario.agent(), lambda _state: seen.append(context_scenario.get())])
    asyncio.run(made.run())
    assert seen == [made, made, None, made]


async def test_afterwards_it_is_what_it_was() -> None:
    """A run leaves nothing behind in the caller's context, nor does making an executor."""
    made = executor(Agent(), max_turns=1)
    assert context_scenario.get() is None
    await made.run()
    assert context_scenario.get() is None
    await made.agent()
    assert context_scenario.get() is None
