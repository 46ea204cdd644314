"""What a run is recorded as: by its test's place, by its own name, or by its number among scenarios of one name.

The executor as users and their tests touch it.
"""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from typing import Any

import pytest

from llmproxy import scenario
from llmproxy.report.events import HOST, RunSettingsFromPytest
from llmproxy.report.langwatch import ScenarioEventBus
from llmproxy.scenario import ScenarioExecutor
from llmproxy.scenario.running.executor import choose_cassette_name
from llmproxy.scenario.values.run_ids_and_options import ScenarioRunOptions
from llmproxy.trace import Cassette
from llmproxy.trace.assertions import evaluate, tool_called
from tests.provider import Provider, step
from tests.scenario.people import Agent, Judge, User, executor, play, said
from tests.support import near


class Program:
    def __init__(self) -> None:
        self.namesakes: dict[str, dict[str, int]] = {}

    def named(self, name: str, description: str = "d", script: Any = None, **more: Any) -> str:
        who: dict[str, Any] = {"host": RunSettingsFromPytest(), "namesakes": self.namesakes}
        return choose_cassette_name(name, None, description, script, ScenarioRunOptions(**more), **who)


def test_scenarios_of_one_name_that_differ_have_numbers() -> None:
    """In description, fields, scripted words; the same scenario again is itself."""
    named = Program().named
    said = scenario.user("Rome?"), scenario.user("Oslo?")
    assert [named("w", "Rome"), named("w", "Oslo"), named("w", "Rome"), named("v", "Oslo")] == ["w", "w.2", "w", "v"]
    assert [named("f", fields={"n": each}) for each in (1, 2, 1)] == ["f", "f.2", "f"]
    assert [named("s", script=[each, scenario.agent()]) for each in (*said, scenario.user("Rome?"))] == [
        "s", "s.2", "s",
    ]  # fmt: skip


def test_a_name_that_is_given_is_taken() -> None:
    """`cassette=` is the user's word, a place the test runner's: nothing is numbered here."""
    named = Program().named
    assert [named("w", each, cassette="mine") for each in ("a", "b")] == ["mine", "mine"]
    host = RunSettingsFromPytest(place=lambda name: f"test/{name}")
    assert {choose_cassette_name("w", None, each, None, ScenarioRunOptions(), host=host) for each in ("a", "b")} == {
        "test/w"
    }


def test_objects_and_functions_do_not_make_a_scenario_another() -> None:
    def check(state: object) -> None:
        """Look at nothing."""

    named = Program().named
    assert {named("o", script=[check, lambda _: None], parameters={"client": object()}) for _ in range(2)} == {"o"}


class Speaker(scenario.AgentAdapter):
    async def call(self, input: scenario.AgentInput) -> str:  # noqa: A002
        from openai import OpenAI

        made = OpenAI(api_key="k").chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": "hi"}])
        return str(made.choices[0].message.content)


def test_a_loop_replays_each_as_it_was_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two scenarios of one name ask the same and were answered otherwise."""
    monkeypatch.setattr(HOST, "place", None)  # be a plain program

    def loop(proxy: str, mode: str) -> list[str]:
        script = [scenario.user("hi"), scenario.agent(), scenario.succeed()]
        runs = [
            scenario.run_sync("a loop", city, [Speaker()], script=script, proxy=proxy, mode=mode, verbose=False)
            for city in ("Rome", "Oslo")
        ]
        return [str(run.messages[-1]["content"]) for run in runs]

    with Provider([step(say="sun"), step(say="rain")]) as provider:
        with near("record", tmp_path / "x.db", upstreams={"openai": provider.url}) as px:
            assert loop(px.url, "record") == ["sun", "rain"]
        with near("replay", tmp_path / "x.db") as px:
            assert loop(px.url, "replay") == ["sun", "rain"]


class Posts:
    def __init__(self) -> None:
        self.events: list[Any] = []

    async def post_event(self, event: Any) -> None:
        self.events.append(event)


def test_the_documented_parameters() -> None:
    """Usable without `run()`."""
    names = list(inspect.signature(ScenarioExecutor).parameters)
    assert names[:10] == [
        "name", "description", "agents", "script", "max_turns", "verbose", "cache_key", "debug", "event_bus", "set_id",
    ]  # fmt: skip
    made = ScenarioExecutor("n", "d")
    assert (made.scenario_set_id, made.batch_run_id != "", made._state.thread_id[:7]) == ("default", True, "thread_")


def test_every_run_begins_anew_with_a_thread_id_of_its_own() -> None:
    """One for everybody in the run; the constructor has one, too."""
    agent, user = Agent("a"), User("u")
    made = executor(user, agent, max_turns=1)
    first = made._state.thread_id
    second, third = (asyncio.run(made.run()) for _ in range(2))
    assert len({first, second.thread_id, third.thread_id}) == 3
    assert agent.inputs[0].thread_id == user.inputs[0].thread_id == second.thread_id
    assert said(second) == said(third) == ["u", "a"]


def test_langwatch_events_of_a_run() -> None:
    """Started, a snapshot for every message, finished; ids and set in each."""
    posts = Posts()
    seen: list[Any] = []
    bus = ScenarioEventBus(posts)
    made = executor(User("u"), Agent("a"), Judge(), max_turns=2, event_bus=bus, set_id="s", name="x")
    made.events.subscribe(seen.append)
    asyncio.run(made.run())
    bus.drain()
    kinds = [event.type_.removeprefix("SCENARIO_") for event in posts.events]
    assert kinds == ["RUN_STARTED", *["MESSAGE_SNAPSHOT"] * 4, "RUN_FINISHED"]
    assert seen == posts.events
    assert bus.is_completed()
    ids = {(each.scenario_id, each.scenario_set_id, each.batch_run_id) for each in seen}
    assert ids == {("x", "s", made.batch_run_id)}
    assert [len(each.messages) for each in seen[1:-1]] == [1, 2, 3, 4]
    assert seen[-1].to_dict()["results"]["verdict"] == "success"


def test_an_exception_is_told_before_it_comes_out() -> None:
    """FINISHED with ERROR, then the original exception."""
    seen: list[Any] = []
    made = executor(Agent(LookupError("gone")))
    made.events.subscribe(seen.append)
    with pytest.raises(LookupError, match="gone"):
        asyncio.run(made.run())
    assert seen[-1].to_dict()["status"] == "ERROR"
    assert seen[-1].results.reasoning == "Scenario failed with error: gone"


def test_what_a_step_brings_is_kept() -> None:
    """Its own messages, criteria and reason; times are filled in."""
    excerpt: Any = [{"role": "user", "content": "excerpt"}]
    own = scenario.ScenarioResult(success=False, messages=excerpt, failed_criteria=["polite"])
    result = play(script=[scenario.user("x"), lambda _state: own])
    assert (said(result), result.failed_criteria, result.total_time is None) == (["excerpt"], ["polite"], False)


@pytest.mark.parametrize(("step", "error", "words"), [
    (lambda state: state.has_tool_call("pay"), AssertionError, "the step <lambda> returned False"),
    (lambda _state: type("bool_", (int,), {})(0), AssertionError, "returned False"),  # numpy's
    (lambda _state: (_ for _ in ()), TypeError, "returned <generator"),
    (lambda _state: tool_called(Cassette(), "pay"), AssertionError, "'pay' was never called"),
    (lambda _state: evaluate(tool_called(Cassette(), "pay")), AssertionError, "'pay' was never called"),
    (lambda _state: {"success": False}, TypeError, "a step returns"),
    (lambda _state: (False, "why"), TypeError, "a step returns"),
    (lambda _state: [scenario.fail()], TypeError, "a step returns"),
    (lambda state: state.tool_calls("pay"), TypeError, "a step returns"),
])  # fmt: skip
def test_a_step_that_says_no_does_not_pass(step: Any, error: type[Exception], words: str) -> None:
    """A check that was not asserted, and one that never ran; True, None, messages and the state go on."""
    with pytest.raises(error, match=words):
        play(Agent(), script=[scenario.user("hi"), step, scenario.succeed()])
    fine: list[Any] = [lambda _state: True, lambda state: state.rollback_messages_to(0), lambda state: state]
    assert play(Agent(), script=[*fine, scenario.succeed()]).success


@pytest.mark.parametrize("success", ["false", float("nan"), 1, None])
def test_a_verdict_is_true_or_false(success: object) -> None:
    """What is merely true enough for Python passes nobody."""
    result = scenario.ScenarioResult(success=True, messages=[]).model_copy(update={"success": success})
    with pytest.raises(ValueError, match="it is True or False"):
        play(Agent(), Judge(result), script=[scenario.user("hi"), scenario.judge()])


def test_verbose_prints_the_conversation(capsys: pytest.CaptureFixture[str]) -> None:
    """True by default; from 2 on each line names its scenario; no escapes where nobody sees colours."""
    printed: tuple[tuple[dict[str, Any], str], ...] = (
        ({}, "\nAgent: hello\n"),
        ({"verbose": 3}, "\n[Scenario: x] Agent: hello\n"),
        ({"verbose": False}, ""),
    )
    for given, out in printed:
        asyncio.run(ScenarioExecutor("x", "d", [Agent("hello")], max_turns=1, **given).run())
        assert capsys.readouterr().out == out


@pytest.mark.parametrize(("who", "error"), [(Agent, "AgentError"), (User, "MachineError")])
def test_a_run_has_a_limit_of_time(who: Any, error: str) -> None:
    """The error says where it was, and is the fault of whoever was at work: where nobody was called, the test's own."""
    with pytest.raises(
        Exception, match=rf"scenario 'n' did not end in 0.1 s: it was in turn 0 while {who.__name__} was called"
    ) as caught:
        play(who(lambda _given: asyncio.sleep(30)), timeout=0.1)
    assert type(caught.value).__name__ == error
    with pytest.raises(Exception, match=r"did not end in 0.1 s: it was in turn 0\.") as caught:
        play(script=[lambda _state: asyncio.sleep(30)], timeout=0.1)
    assert type(caught.value).__name__ == "MachineError"
