"""Checkpoints add up, and one without a verdict has failed."""

# ruff: noqa: ANN401

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from llmproxy import scenario
from llmproxy.report.events import Status
from tests.scenario.people import Agent, Ear, Judge, User, executor, finished, play


def verdict(*texts: str, success: bool = True) -> scenario.ScenarioResult:
    """Return what a judge says about criteria that all pass, or all fail."""
    kept: dict[str, Any] = {"passed_criteria" if success else "failed_criteria": list(texts)}
    status = "passed" if success else "failed"
    found = [scenario.CriterionResult(id="c1", criterion=text, status=status, reasoning="seen") for text in texts]
    return scenario.ScenarioResult(success=success, messages=[], reasoning="so", criteria=found, **kept)


def test_ids_are_numbered_anew() -> None:
    """Two checkpoints have a c1 each, the result has it once."""
    result = play(Agent(), Judge(verdict("a"), verdict("b")), script=[scenario.judge(["a"]), scenario.judge(["b"])])
    assert [(each.id, each.criterion, each.reasoning) for each in result.criteria] == [
        ("c1", "a", "seen"),
        ("c2", "b", "seen"),
    ]
    assert result.status is Status.PASSED


def test_a_judge_that_says_nothing_has_not_passed() -> None:
    """A checkpoint fails closed: the script does not go on."""
    result = play(Agent(), Judge([]), script=[scenario.judge(["a"]), scenario.succeed()])
    assert (result.success, result.inconclusive_criteria) == (False, ["a"])
    assert result.reasoning == "The judge was asked at a checkpoint and gave no verdict"


def test_what_passed_is_told_when_the_turns_run_out() -> None:
    """The result of a run that nobody decided has the checkpoints, too."""
    result = play(
        User(), Agent(), Judge(verdict("a"), []), script=[scenario.judge(["a"]), scenario.proceed()], max_turns=2
    )
    assert (result.success, result.passed_criteria) == (False, ["a"])


def test_one_list_of_criteria_is_meant() -> None:
    """Two are an error, and so is a text."""
    with pytest.raises(ValueError, match="one list of criteria"):
        scenario.judge(["a"], criteria=["b"])
    with pytest.raises(ValueError, match="takes a list of criteria"):
        scenario.judge(criteria="a")


def test_an_assertion_in_a_step_is_a_failed_criterion() -> None:
    """Of the events and the report; it is raised as well. One in the agent is the agent's error."""

    def check(_state: Any) -> None:
        raise AssertionError("no refund")

    ear = Ear()
    run = executor(Agent(), Judge(verdict("a")), script=[scenario.judge(["a"]), check], ear=ear)
    with pytest.raises(AssertionError, match="no refund"):
        asyncio.run(run.run())
    told = finished(ear)
    assert (told.status, [(each.text, each.status) for each in told.criteria]) == (
        Status.FAILED,
        [("a", "passed"), ("no refund", "failed")],
    )
    assert run.outcome is not None
    assert run.outcome.failed_criteria == ["no refund"]
