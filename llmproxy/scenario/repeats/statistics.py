"""Statistics of repeated runs: exact formulas, without clock or global random numbers.

An unknown value is None (no runs, k above n, a rater with a single answer), never 0. Invalid input (more passes than
runs) is a ValueError.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from math import comb, fsum

from llmproxy.report.scenario_rows import ConfidenceInterval, validate_passed_and_run_counts

RESAMPLES = 2000
"""Resamples of a bootstrap: each end of a 95 % interval is then based on 50 values."""
FEWEST_TRANSCRIPTS = 5  # below, only counts are reported
_DEFINED = 0.9
"""Least share of resamples with a defined statistic for an interval."""


def pass_at_k(passed: int, runs: int, k: int) -> float | None:
    """Return the estimate of one in `k` passing, 1 - C(n-c,k)/C(n,k), or None. Source: Chen et al. 2021 (HumanEval)."""
    validate_passed_and_run_counts(passed, runs, k)
    return None if k > runs else 1 - comb(runs - passed, k) / comb(runs, k)


def pass_hat_k(passed: int, runs: int, k: int) -> float | None:
    """Return the estimate of `k` of `k` passing, C(c,k)/C(n,k), or None. Source: Yao et al. 2024 (tau-bench)."""
    validate_passed_and_run_counts(passed, runs, k)
    return None if k > runs else comb(passed, k) / comb(runs, k)


def mean(values: Sequence[float]) -> float | None:
    return fsum(values) / len(values) if values else None


def bootstrap_confidence_interval[T](
    items: Sequence[T], statistic: Callable[[Sequence[T]], float | None], rng: random.Random, resamples: int = RESAMPLES
) -> ConfidenceInterval | None:
    """Return the percentile bootstrap interval of a statistic, whole items drawn with replacement.

    None for fewer than two items, and if more than a tenth of the resamples leave the statistic undefined: the rest
    would be biased.
    """
    if len(items) < 2:
        return None
    drawn = (statistic(rng.choices(items, k=len(items))) for _ in range(resamples))
    found = sorted(value for value in drawn if value is not None)
    if len(found) < _DEFINED * resamples or not found:
        return None
    return ConfidenceInterval(_interpolate_quantile(found, 0.025), _interpolate_quantile(found, 0.975))


def _interpolate_quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def kappa(pairs: Sequence[tuple[Hashable, Hashable]]) -> float | None:
    """Return Cohen's kappa (1960) of two raters, unweighted; None if one of them gives a single answer throughout.

    With one class on a side chance explains all observations, and 0 or 1 would be misleading.
    """
    ours, theirs = (Counter(side) for side in zip(*pairs, strict=True)) if pairs else (Counter(), Counter())
    if len(ours) < 2 or len(theirs) < 2:
        return None
    total = len(pairs)
    agreed = sum(one == other for one, other in pairs) / total
    by_chance = sum(count * theirs[label] for label, count in ours.items()) / (total * total)
    return (agreed - by_chance) / (1 - by_chance)


@dataclass(frozen=True, slots=True)
class JudgeVarianceSplit:
    judge: float
    """Part from differing answers of the judge about one transcript: mean of p(1-p)R/(R-1)."""
    rest: float
    """Differences between transcripts: sample variance of p less judge/R, at least 0."""

    @property
    def judge_share(self) -> float | None:
        whole = self.judge + self.rest
        return self.judge / whole if whole else None


def estimate_judge_variance(passes: Sequence[int], repeats: int) -> JudgeVarianceSplit | None:
    """Return the spread of transcripts that were each judged `repeats` times, from the number of passes of each.

    None below `FEWEST_TRANSCRIPTS`. Raises ValueError if nothing was repeated.
    """
    if repeats < 2:
        raise ValueError(f"a judge must be asked at least twice about each transcript, not {repeats} times")
    for passed in passes:
        validate_passed_and_run_counts(passed, repeats)
    if len(passes) < FEWEST_TRANSCRIPTS:
        return None
    return _split_judge_variance([passed / repeats for passed in passes], repeats)


def bootstrap_judge_variance(
    passes: Sequence[int], repeats: int, rng: random.Random, resamples: int = RESAMPLES
) -> tuple[ConfidenceInterval | None, ConfidenceInterval | None]:
    if estimate_judge_variance(passes, repeats) is None:
        return None, None
    shares = [passed / repeats for passed in passes]
    return (
        bootstrap_confidence_interval(
            shares, lambda drawn: _split_judge_variance(drawn, repeats).judge, rng, resamples
        ),
        bootstrap_confidence_interval(shares, lambda drawn: _split_judge_variance(drawn, repeats).rest, rng, resamples),
    )


def _split_judge_variance(shares: Sequence[float], repeats: int) -> JudgeVarianceSplit:
    judge = fsum(p * (1 - p) for p in shares) / len(shares) * repeats / (repeats - 1)
    middle = fsum(shares) / len(shares)
    variance = fsum((p - middle) ** 2 for p in shares) / (len(shares) - 1)
    return JudgeVarianceSplit(judge, max(0.0, variance - judge / repeats))
