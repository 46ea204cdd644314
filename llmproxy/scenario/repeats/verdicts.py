"""Outcomes of runs and their combination: a rate with its interval, pass@k, pass^k, one status.

A series that was stopped early ended depending on its results, so it has bounds and no rate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llmproxy.report.events import Status
from llmproxy.report.scenario_rows import ConfidenceInterval, wilson
from llmproxy.scenario.repeats.statistics import pass_at_k, pass_hat_k

COUNTED = (Status.PASSED, Status.FAILED, Status.AGENT_ERROR)
"""Statuses that say something about the agent."""


@dataclass(frozen=True, slots=True)
class RunStatusCounts:
    runs: int
    passed: int = 0
    failed: int = 0
    agent_errors: int = 0
    environment_errors: int = 0
    skipped: int = 0

    @classmethod
    def from_statuses(cls, statuses: Sequence[Status], runs: int | None = None) -> RunStatusCounts:
        found, in_order = Counter(statuses), (*COUNTED, Status.ENVIRONMENT_ERROR, Status.SKIPPED)  # as the fields
        return cls(len(statuses) if runs is None else runs, *(found[each] for each in in_order))

    @property
    def counted_runs(self) -> int:
        return self.passed + self.failed + self.agent_errors

    @property
    def runs_not_made(self) -> int:
        return self.runs - self.counted_runs - self.environment_errors - self.skipped

    @property
    def pass_rate(self) -> float | None:
        """Passed of counted; None without any, and for a series that was stopped early depending on its results."""
        return None if self.runs_not_made or not self.counted_runs else self.passed / self.counted_runs

    @property
    def pass_interval(self) -> ConfidenceInterval | None:
        return None if self.runs_not_made else wilson(self.passed, self.counted_runs)

    @property
    def possible_pass_rate_range(self) -> ConfidenceInterval | None:
        """Least and greatest rate over all outcomes of the runs not made."""
        whole = self.counted_runs + self.runs_not_made
        return ConfidenceInterval(self.passed / whole, (self.passed + self.runs_not_made) / whole) if whole else None

    def pass_at_k(self, k: int) -> float | None:
        return None if self.runs_not_made else pass_at_k(self.passed, self.counted_runs, k)

    def pass_hat_k(self, k: int) -> float | None:
        return None if self.runs_not_made else pass_hat_k(self.passed, self.counted_runs, k)

    def is_decided(self, threshold: float) -> bool:
        bounds = self.possible_pass_rate_range
        return bounds is not None and (bounds.low >= threshold or bounds.high < threshold)

    def to_row(self, scenario: str, status: str) -> dict[str, Any]:
        interval = self.pass_interval
        row: dict[str, Any] = {"scenario": scenario, "status": status, "runs": self.runs, "passed": self.passed}
        row |= {"failed": self.failed, "agent_error": self.agent_errors, "environment_error": self.environment_errors}
        row |= {"skipped": self.skipped, "rate": self.pass_rate}
        return row | {"interval": None if interval is None else (interval.low, interval.high)}

    def summary_lines(self) -> list[str]:
        told = [self._format_pass_rate()]
        if self.environment_errors:
            told.append(
                f"{self.environment_errors} of {self.runs} runs say nothing about the agent: the environment failed "
                f"({self.counted_runs} of {self.runs} count)"
            )
        if self.counted_runs > 1 and not self.runs_not_made:
            ks = [k for k in (2, 4, 8, 16, 32) if k < self.counted_runs]
            parts = [f"pass^{k} {self.pass_hat_k(k):.3f}" for k in ks]
            parts += [f"pass@{k} {self.pass_at_k(k):.3f}" for k in ks]
            every = "yes" if self.passed == self.counted_runs else "no"
            told.append("; ".join([*parts, f"all {self.counted_runs} passed: {every}"]))
        return told

    def _format_pass_rate(self) -> str:
        kinds = ((self.failed, "failed"), (self.agent_errors, "agent errors"))
        parts = "".join(f", {number} {what}" for number, what in kinds if number)
        bounds = self.possible_pass_rate_range
        if self.runs_not_made and bounds is not None:
            made = self.runs - self.runs_not_made
            return (
                f"stopped after {made} of {self.runs} runs, {self.passed} of {self.counted_runs} passed{parts}: "
                f"the rate would have been between {bounds.low:.1%} and {bounds.high:.1%}"
            )
        if self.pass_rate is None:
            return f"0 of {self.runs} runs count"
        interval = self.pass_interval
        spread = f", 95 % interval {interval.low:.1%} to {interval.high:.1%}" if interval else ""
        return f"{self.passed} of {self.counted_runs} runs passed ({self.pass_rate:.1%}{spread}){parts}"


def decide_repeated_run_status(
    found: RunStatusCounts, least: float = 1.0, *, allow_environment_errors: bool = False
) -> Status:
    """Return what runs come to together; from a share of `least` on they have passed."""
    if not found.counted_runs or (found.environment_errors and not allow_environment_errors):
        return Status.SKIPPED if found.skipped and found.skipped == found.runs else Status.ENVIRONMENT_ERROR
    if found.passed / found.counted_runs >= least:
        return Status.PASSED
    if found.passed:
        return Status.FLAKY
    return Status.FAILED if found.failed else Status.AGENT_ERROR
