"""Runs come to a verdict, and a test to an exit code."""

from __future__ import annotations

import pytest

from llmproxy.errors import Exit, MissError, SuiteError
from llmproxy.report.events import Status
from llmproxy.suite.run.case_runner import CaseResult
from llmproxy.suite.run.runner import choose_exit_code, summarize_scenario_runs

P, F, A, E, S = Status.PASSED, Status.FAILED, Status.AGENT_ERROR, Status.ENVIRONMENT_ERROR, Status.SKIPPED


@pytest.mark.parametrize(("runs", "least", "status", "rate"), [
    ([P], 1.0, "passed", 1.0), ([F], 1.0, "failed", 0.0), ([A], 1.0, "agent_error", 0.0), ([E], 1.0, "environment_error", None),
    ([S], 1.0, "skipped", None), ([P, F], 1.0, "flaky", 0.5), ([P, P, P, F], 0.75, "passed", 0.75),
    ([P, P, F, F], 0.75, "flaky", 0.5), ([P, P, E], 1.0, "environment_error", 1.0), ([F, A], 1.0, "failed", 0.0),
])  # fmt: skip
def test_a_scenario_passes_if_all_its_runs_do(
    runs: list[Status], least: float, status: str, rate: float | None
) -> None:
    """Or the share that it asks for; what cannot be judged counts neither way and is an error."""
    made = summarize_scenario_runs("s", [CaseResult(each) for each in runs], least)
    assert (made["status"], made["rate"]) == (status, rate)


def test_several_runs_are_told_with_their_interval() -> None:
    """A rate of three runs proves little, and says so."""
    made = summarize_scenario_runs(
        "s", [CaseResult(P), CaseResult(P), CaseResult(F, reasoning="step 1: tools.a: never\nmore")], 1.0
    )
    assert "2 of 3 runs passed (67%, 95 % interval 21% to 94%); all passed: no" in made["told"]
    assert made["errors"] == ["step 1: tools.a: never"]
    assert made["pass_hat"][1] == pytest.approx(2 / 3)
    assert made["pass_hat"][3] == 0


@pytest.mark.parametrize(("ran", "code"), [
    ([CaseResult(P)], Exit.OK), ([CaseResult(S)], Exit.NOTHING), ([CaseResult(S), CaseResult(P)], Exit.OK), ([CaseResult(F)], Exit.FAILED), ([CaseResult(A)], Exit.FAILED), ([CaseResult(P), CaseResult(F)], Exit.FAILED),
    ([CaseResult(E)], Exit.ENVIRONMENT), ([CaseResult(E, MissError("x"))], Exit.MISS), ([CaseResult(E, SuiteError("x"))], Exit.USAGE),
    ([CaseResult(F), CaseResult(E, MissError("x"))], Exit.MISS), ([CaseResult(E), CaseResult(E, MissError("x"))], Exit.ENVIRONMENT),
])  # fmt: skip
def test_exit_codes(ran: list[CaseResult], code: Exit) -> None:
    """Of several, the one that says most about what to do first."""
    assert choose_exit_code([summarize_scenario_runs(str(n), [each]) for n, each in enumerate(ran)], ran) == code
    if len(ran) == 2 and ran[0].status is P:
        assert choose_exit_code([summarize_scenario_runs("one", ran)], ran) == Exit.FAILED  # flaky fails


def test_replayed_samples_say_how_old_they_are() -> None:
    """Five runs in replay are five old answers, which is another thing than five runs of today's model."""
    day = 86_400.0
    told = summarize_scenario_runs("s", [CaseResult(P, recorded_at=10 * day), CaseResult(P, recorded_at=10 * day)])[
        "told"
    ]
    assert told.endswith("; the samples were recorded on 1970-01-11")
    apart = [CaseResult(P, recorded_at=10 * day), CaseResult(P), CaseResult(P, recorded_at=12 * day)]
    assert summarize_scenario_runs("s", apart)["told"].endswith("recorded between 1970-01-11 and 1970-01-13")
    assert "recorded" not in summarize_scenario_runs("s", [CaseResult(P), CaseResult(P)])["told"]
