"""Counting: what counts, what does not, and what may be said of it."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from llmproxy.report.events import Status
from llmproxy.report.scenario_rows import ConfidenceInterval, wilson
from llmproxy.scenario.repeats.statistics import pass_hat_k
from llmproxy.scenario.repeats.verdicts import RunStatusCounts, decide_repeated_run_status

P, F, A, E, S = Status.PASSED, Status.FAILED, Status.AGENT_ERROR, Status.ENVIRONMENT_ERROR, Status.SKIPPED
STATUSES = st.lists(st.sampled_from([P, F, A, E, S]), min_size=1, max_size=12)


def test_agent_errors_count_and_environment_errors_do_not() -> None:
    """Rate = passed / (passed + failed + agent_error)."""
    found = RunStatusCounts.from_statuses([P, P, F, A, E])
    assert (found.runs, found.counted_runs, found.pass_rate) == (5, 4, 0.5)
    assert found.pass_interval == wilson(2, 4)
    assert found.pass_hat_k(2) == pass_hat_k(2, 4, 2)
    assert found.pass_at_k(5) is None
    assert "1 of 5 runs say nothing about the agent" in found.summary_lines()[1]
    assert "(4 of 5 count)" in found.summary_lines()[1]


@pytest.mark.parametrize(("statuses", "allowed", "verdict"), [
    ([P, P], False, P),
    ([P, F], False, Status.FLAKY),
    ([P, A], False, Status.FLAKY),
    ([F, A], False, F),
    ([A, A], False, A),
    ([P, E], False, E),
    ([P, E], True, P),
    ([P, F, E], True, Status.FLAKY),
    ([E, E], True, E),
    ([S, S], False, S),
    ([], True, E),
])  # fmt: skip
def test_the_verdict(statuses: list[Status], allowed: bool, verdict: Status) -> None:
    """Environment errors make it an error unless allowed, and nothing that counts is always one."""
    assert (
        decide_repeated_run_status(RunStatusCounts.from_statuses(statuses), allow_environment_errors=allowed) is verdict
    )


@given(STATUSES, st.integers(0, 5))
def test_nothing_is_known_without_runs_that_count(statuses: list[Status], left: int) -> None:
    """A rate only of a whole series; whatever comes, it would have been within the bounds."""
    found = RunStatusCounts.from_statuses(statuses, len(statuses) + left)
    assert found.runs_not_made == left
    assert (found.pass_rate is None) == (left > 0 or found.counted_runs == 0)
    assert (found.possible_pass_rate_range is None) == (found.counted_runs + left == 0)
    for more in ([P] * left, [F] * left):
        whole = RunStatusCounts.from_statuses([*statuses, *more])
        if whole.pass_rate is not None and found.possible_pass_rate_range is not None:
            assert found.possible_pass_rate_range.low <= whole.pass_rate <= found.possible_pass_rate_range.high


def test_a_stopped_series_prints_bounds_and_no_rate() -> None:
    found = RunStatusCounts.from_statuses([P, F], 10)
    assert found.summary_lines() == [
        "stopped after 2 of 10 runs, 1 of 2 passed, 1 failed: the rate would have been between 10.0% and 90.0%"
    ]
    unknown = (found.pass_rate, found.pass_interval, found.pass_at_k(1))
    assert (unknown, found.possible_pass_rate_range) == ((None,) * 3, ConfidenceInterval(0.1, 0.9))


@pytest.mark.parametrize(("statuses", "runs", "threshold", "decided"), [
    ([F], 10, 1.0, True),
    ([P] * 9, 10, 1.0, False),
    ([P] * 8, 10, 0.8, True),
    ([P] * 7, 10, 0.8, False),
    ([F] * 3, 10, 0.8, True),
    ([F] * 2, 10, 0.8, False),
    ([], 10, 0.5, False),
])  # fmt: skip
def test_when_it_is_decided(statuses: list[Status], runs: int, threshold: float, decided: bool) -> None:
    """When no run that is left can change the side of the threshold."""
    assert RunStatusCounts.from_statuses(statuses, runs).is_decided(threshold) is decided


def test_pass_to_the_n_is_a_yes_or_no() -> None:
    """Of all n there is no estimate, only what happened."""
    assert RunStatusCounts.from_statuses([P, P, P]).summary_lines()[-1].endswith("all 3 passed: yes")
    assert RunStatusCounts.from_statuses([P, P, F]).summary_lines()[-1].endswith("all 3 passed: no")
    assert RunStatusCounts.from_statuses([E]).summary_lines()[0] == "0 of 1 runs count"
