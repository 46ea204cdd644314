"""Repeated runs of the same scenario, recorded separately, and their combined result.

A run in which the environment failed (proxy, store, provider, a request that was never recorded) says nothing about the
agent: it is left out of the rate, and makes the verdict an error unless that is allowed. N runs in replay are the N
recorded conversations: they add no evidence, and the result says so.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from llmproxy.amount_formatting import sum_if_all_known, sum_known
from llmproxy.errors import MissError
from llmproxy.report.events import PartyUse, Status
from llmproxy.report.scenario_rows import ConfidenceInterval
from llmproxy.scenario.models.errors import ModelError
from llmproxy.scenario.repeats.verdicts import COUNTED, RunStatusCounts, decide_repeated_run_status
from llmproxy.scenario.run_session import gather_with_limit
from llmproxy.scenario.types import ScenarioResult
from llmproxy.scenario.values.run_ids_and_options import describe_error, strip_own_frames_from_error

_REASON = 200  # characters of a run's failure reason in the combined one
CONCURRENCY = 8
"""Default concurrent runs: fast enough, and below a provider's limits of a new account."""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    status: Status
    result: ScenarioResult
    """Also after an exception: the known part."""
    error: BaseException | None = None

    def result_or_raise(self) -> ScenarioResult:
        if isinstance(self.error, MissError | ModelError):
            raise strip_own_frames_from_error(self.error) from None  # nor those of the client that was told so
        if self.error is not None:
            raise strip_own_frames_from_error(self.error)
        return self.result


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleResult:
    sample: int  # from 1; also the sample of its recording
    status: Status
    result: ScenarioResult
    error: str = ""


class RepeatResult(ScenarioResult):
    """Result of a repeated scenario.

    Its fields are those of one run, combined: it succeeds when enough runs passed (`threshold`; by default all), has
    the messages of the first run that did not pass, and describes the rest in `reasoning`.
    """

    runs: int = 1
    samples: list[SampleResult] = Field(default_factory=list)
    threshold: float = 1.0
    verdicts: RunStatusCounts = RunStatusCounts(0)

    def __repr__(self) -> str:
        return f"RepeatResult(success={self.success}, status={self.status}, reasoning={self.reasoning!r})"

    @property
    def rate(self) -> float | None:
        """Passed of counted runs; None without any, or if the series was stopped early."""
        return self.verdicts.pass_rate

    @property
    def interval(self) -> ConfidenceInterval | None:
        return self.verdicts.pass_interval

    def pass_at_k(self, k: int) -> float | None:
        return self.verdicts.pass_at_k(k)

    def pass_hat_k(self, k: int) -> float | None:
        return self.verdicts.pass_hat_k(k)

    @property
    def counted_of_total_runs(self) -> str:
        """Counted runs, "8 of 10"."""
        return f"{self.verdicts.counted_runs} of {self.runs}"


async def run_repeatedly(
    once: Callable[[int, int], Awaitable[RunOutcome]], runs: int, *, max_concurrency: int | None = None,
    early_stop: bool = False, allow_environment_errors: bool = False, threshold: float = 1.0,
) -> RepeatResult:  # fmt: skip
    """Run a scenario several times, run i with sample i of its recording, and combine the results.

    `early_stop` ends once no further run can change on which side of `threshold` the rate ends; never while recording.
    `allow_environment_errors`: the verdict may be based on fewer runs if the environment failed in some.
    """
    if runs < 1:
        raise ValueError(f"runs takes a number from 1 on, not {runs!r}")
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold takes a share above 0 and at most 1, not {threshold!r}")
    began = time.monotonic()
    done: list[SampleResult] = []
    numbers = iter(range(1, runs + 1))

    async def run_samples_in_turn() -> None:
        while not (early_stop and _is_rate_decided(done, runs, threshold)) and (sample := next(numbers, 0)):
            ended = await once(sample, runs)
            error = ended.result.error or ("" if ended.error is None else describe_error(ended.error))
            done.append(SampleResult(sample=sample, status=ended.status, result=ended.result, error=error))

    workers = min(max_concurrency or CONCURRENCY, runs)
    await gather_with_limit([run_samples_in_turn() for _ in range(workers)], workers)
    samples = sorted(done, key=lambda each: each.sample)
    return _build_repeat_result(
        samples, runs, threshold, time.monotonic() - began, allow_environment_errors=allow_environment_errors
    )


def _is_rate_decided(done: Sequence[SampleResult], runs: int, threshold: float) -> bool:
    if any(each.result.cassette and not each.result.replayed for each in done):
        return False  # a recording with samples missing would replay differently
    return RunStatusCounts.from_statuses([each.status for each in done], runs).is_decided(threshold)


def _build_repeat_result(
    samples: list[SampleResult], runs: int, threshold: float, seconds: float, *, allow_environment_errors: bool
) -> RepeatResult:
    found = RunStatusCounts.from_statuses([each.status for each in samples], runs)
    status = decide_repeated_run_status(found, allow_environment_errors=allow_environment_errors)
    enough = found.possible_pass_rate_range is not None and found.possible_pass_rate_range.low >= threshold
    shown = next((each for each in samples if each.status is not Status.PASSED), samples[0]).result
    answered = [each.result.replayed for each in samples]
    replayed = None if None in answered else all(answered)
    times = (each.result.recorded_at for each in samples)
    recorded_at = min((at for at in times if at is not None), default=None)
    counted = [each for each in samples if each.status in COUNTED]
    usage: dict[str, PartyUse] = {}
    for party, use in (used for each in samples for used in each.result.usage.items()):
        usage[party] = usage.get(party, PartyUse()) + use
    lines = found.summary_lines()
    if replayed:
        on = "" if recorded_at is None else f" on {dt.datetime.fromtimestamp(recorded_at, dt.UTC):%Y-%m-%d}"
        lines.append(f"{len(samples)} samples recorded{on or ' earlier'}: replaying them adds no evidence")
    lines += [
        f"sample {each.sample}: {each.status.value}: {_shorten_reason(each.error or each.result.reasoning or '')}"
        for each in samples
        if each.status is not Status.PASSED
    ]
    return RepeatResult(
        success=enough and status in {Status.PASSED, Status.FLAKY}, status=status, messages=shown.messages,
        reasoning="\n".join(lines), **_merge_criteria_verdicts(counted), total_time=seconds,
        agent_time=sum_known(each.result.agent_time for each in samples), usage=usage,
        misses=tuple(miss for each in samples for miss in each.result.misses), thread_id=shown.thread_id,
        run_id=shown.run_id, cassette=shown.cassette, sample=shown.sample, replayed=replayed,
        bound=sum_if_all_known(each.result.bound for each in samples),
        stale=sum(each.result.stale for each in samples),
        carried=sum(each.result.carried for each in samples),
        carried_names=tuple(sorted({name for each in samples for name in each.result.carried_names})),
        bound_names=tuple(sorted({name for each in samples for name in each.result.bound_names})),
        waited=sum_known(each.result.waited for each in samples),
        labels=tuple(dict.fromkeys(label for each in samples for label in each.result.labels)),
        error=next((each.error for each in samples if each.error), ""), runs=runs, samples=samples,
        threshold=threshold, verdicts=found, recorded_at=recorded_at if replayed else None,
    )  # fmt: skip


def _merge_criteria_verdicts(counted: Sequence[SampleResult]) -> dict[str, Any]:
    """Return the criteria over all runs: failed if one failed, passed if each passed, else inconclusive."""
    results = [each.result for each in counted]
    lists = ((each.passed_criteria, each.failed_criteria, each.inconclusive_criteria) for each in results)
    texts = dict.fromkeys(text for judged in lists for criteria in judged for text in criteria)
    failed = [text for text in texts if any(text in each.failed_criteria for each in results)]
    passed = [text for text in texts if all(text in each.passed_criteria for each in results)]
    others = [text for text in texts if text not in failed and text not in passed]
    return {"passed_criteria": passed, "failed_criteria": failed, "inconclusive_criteria": others}


def _shorten_reason(reason: str) -> str:
    said = " ".join(reason.split())
    return said if len(said) <= _REASON else f"{said[: _REASON - 1]}…"
