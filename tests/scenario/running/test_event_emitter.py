"""The events of a run: which, in which order, and exactly one Finished."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any

import pytest

from llmproxy import scenario
from llmproxy.report.events import Event, Message, Started, Status, Step, Verdict
from llmproxy.scenario.running.run_lifecycle import EventEmitter
from llmproxy.scenario.types import ScenarioResult
from tests.scenario.people import Agent, Ear, Judge, User, executor, finished, play


def heard[E: Event](kind: type[E], *people: Any, **given: Any) -> list[E]:
    ear = Ear()
    play(*people, ear=ear, **given)
    return [event for event in ear.events if isinstance(event, kind)]


def test_the_events_of_a_run() -> None:
    """Started, then a message and a step for every call, verdicts, Finished."""
    ear = Ear()
    play(User("u"), Agent("a"), Judge(), ear=ear, max_turns=2)
    turn = "Message Step Message Step Verdict Step"
    assert ear.kinds() == f"Started {turn} {turn} Finished"
    assert len({event.run_id for event in ear.events}) == 1  # type: ignore[union-attr]


def test_started_says_what_it_is_about() -> None:
    """With the criteria of all judges; without a proxy there is no cassette."""
    judges = Judge(criteria=["polite"]), Judge(criteria=["quick"])
    (begun,) = heard(Started, *judges, name="x", description="y", set_id="s", sample=2, runs=3)
    assert (begun.name, begun.scenario, begun.description, begun.set_id) == ("x", "x", "y", "s")
    assert (begun.criteria, begun.sample, begun.runs, begun.cassette, begun.mode) == (("polite", "quick"), 2, 3, "", "")


def test_messages_say_who_wrote_them() -> None:
    """With the turn and the time; scripted text has no author."""
    two = [{"role": "assistant", "content": "b"}, {"role": "assistant", "content": "c"}]
    found = heard(Message, Agent("a", two), User(), script=[scenario.user("x"), scenario.agent(), scenario.agent()])
    assert [(each.message["content"], each.author, each.turn, each.ms is not None) for each in found] == [
        ("x", "", 0, False), ("a", "Agent", 0, True), ("b", "Agent", 1, True), ("c", "Agent", 1, False),
    ]  # fmt: skip


def test_steps_say_what_they_are() -> None:
    """Calls by their role, scripted text, functions of the test by their name."""

    def my_check(_state: object) -> None:
        """Check nothing."""

    script = [scenario.user("x"), scenario.agent(), my_check, scenario.judge()]
    found = heard(Step, User(), Agent(), Judge(), script=script)
    assert [(each.index, each.kind, each.label) for each in found] == [
        (0, "user", "scripted"), (1, "agent", "Agent"), (2, "script", "my_check"), (3, "judge", "Judge"),
    ]  # fmt: skip


def test_verdicts_say_whether_they_decide() -> None:
    """None: it goes on."""
    open_one = ScenarioResult(success=False, messages=[], inconclusive_criteria=["c"], reasoning="unsure")
    judge = Judge([], open_one, ScenarioResult(success=True, messages=[]))
    found = heard(Verdict, judge, script=[scenario.proceed(turns=1), scenario.judge(), scenario.judge()])
    told = [(each.success, each.forced, each.reasoning) for each in found]
    assert told == [(None, False, ""), (None, True, "unsure"), (True, True, "")]


@pytest.mark.parametrize(("script", "people", "status", "error"), [
    ([scenario.succeed()], (), Status.PASSED, ""),
    ([scenario.fail()], (), Status.FAILED, ""),
    ([scenario.agent()], (Agent(ValueError("no")),), Status.AGENT_ERROR, "ValueError: no"),
    ([scenario.user()], (User(ValueError("no")),), Status.ENVIRONMENT_ERROR, "ValueError: no"),
    ([lambda _state: 1 / 0], (), Status.ENVIRONMENT_ERROR, "ZeroDivisionError: division by zero"),
])  # fmt: skip
def test_finished_says_how(script: Any, people: Any, status: Status, error: str) -> None:
    """Once, at the end, with the error in words."""
    ear = Ear()
    with suppress(ValueError, ZeroDivisionError):
        play(*people, script=script, ear=ear)
    end = finished(ear)
    assert (end.status, end.error) == (status, error)
    assert end.total_seconds is not None
    assert end.replayed is None


def test_an_assertion_in_a_step_is_a_failed_check() -> None:
    """It comes out unchanged, and the run counts as failed."""
    ear = Ear()
    error = AssertionError("the total is wrong")

    def check(_state: object) -> None:
        raise error

    with pytest.raises(AssertionError) as caught:
        play(script=[check], ear=ear)
    assert caught.value is error
    assert finished(ear).status is Status.FAILED
    (step,) = (event for event in ear.events if isinstance(event, Step))
    assert (step.label, step.status, step.message) == ("check", Status.FAILED, "AssertionError: the total is wrong")


def test_a_handler_that_fails_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged; the others hear everything."""

    class Broken:
        def handle(self, event: Event) -> None:
            raise OSError("disk full")

        def close(self) -> None: ...

    ear = Ear()
    with (
        caplog.at_level(logging.ERROR),
        pytest.warns(RuntimeWarning, match="the handler .*Broken failed: OSError: disk full"),
    ):
        asyncio.run(executor(Agent(), max_turns=1, handlers=(Broken(), ear)).run())
    assert ear.kinds() == "Started Message Step Finished"
    assert "Broken failed at Started" in caplog.text


def test_the_end_is_told_once() -> None:
    """Whoever says it first; nothing comes after it."""
    ear = Ear()
    emitter = EventEmitter(Started(name="n", scenario="n", run_id="r"), (ear,), clock=lambda: 5.0)
    emitter.emit_start()
    emitter.emit_start()
    emitter.emit_result(ScenarioResult(success=True, messages=[]))
    emitter.emit_result(ScenarioResult(success=False, messages=[]))
    emitter.emit_message({"role": "user", "content": "late"})
    emitter.emit_step("agent")
    emitter.emit_verdict("Judge", None, forced=False, decided=False)
    assert ear.kinds() == "Started Finished"
    assert (finished(ear).status, finished(ear).at) == (Status.PASSED, 5.0)


def test_without_run_nothing_is_told() -> None:
    """An executor that is used by hand is nobody's run."""
    ear = Ear()
    made = executor(Agent(), ear=ear)
    asyncio.run(made.agent())
    assert ear.events == []


def test_what_handlers_get_is_a_copy() -> None:
    line = scenario.user({"role": "user", "content": ["x"]})
    script = [line, lambda state: state.messages[0]["content"].clear(), scenario.succeed()]
    (told,) = heard(Message, script=script)
    assert told.message["content"] == ["x"]
