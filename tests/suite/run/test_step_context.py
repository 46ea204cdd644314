"""A step's status, and that a step sees its run."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmproxy.report.events import Assertion, Message, Status
from llmproxy.suite.run.step_context import StepResult
from llmproxy.trace.observing.agent_activity import AgentActivity
from tests.suite.run.test_runner import run

P, F, E = Status.PASSED, Status.FAILED, Status.ENVIRONMENT_ERROR


@pytest.mark.parametrize(
    ("wire", "rest", "status"), [([], [], P), ([P], [P], P), ([P], [F], F), ([E], [P], E), ([E], [F], F), ([F], [E], F)]
)
def test_what_failed_has_failed(wire: list[Status], rest: list[Status], status: Status) -> None:
    """Else what cannot be evaluated is an error; never a pass."""
    made = [[Assertion(name="x", status=each) for each in found] for found in (wire, rest)]
    assert StepResult(made[0], made[1]).decide_status() is status


def test_a_status_of_its_own_counts() -> None:
    """Of a step that could not be carried out."""
    assert StepResult(status=Status.AGENT_ERROR).decide_status() is Status.AGENT_ERROR


def test_traffic_can_be_looked_at_again() -> None:
    done = StepResult(
        rest=[Assertion(name="r", status=P)], again=lambda: ([Assertion(name="w", status=F)], AgentActivity())
    )
    done.recheck_traffic()
    assert [each.name for each in done.assertions] == ["w", "r"]
    StepResult().recheck_traffic()


def test_messages_are_told_with_turn_time_and_conversation(tmp_path: Path) -> None:
    found = run(tmp_path, "{chat: a, conversation: c}", "{chat: b}")
    told = [each for each in found.told.events if isinstance(each, Message)]
    assert [(each.turn, each.conversation, each.author) for each in told] == [
        (1, "c", ""), (1, "c", "agent"), (2, "", ""), (2, "", "agent"),
    ]  # fmt: skip
    assert told[1].ms is not None


def test_it_waits_until_the_traffic_is_quiet(tmp_path: Path) -> None:
    """As long as the scenario says, also without a proxy."""
    assert (run(tmp_path, "{chat: a}", scenario="    settle: 120\n").told.finished[0].total_seconds or 0) >= 0.12
