"""Formulas against published tables, against direct enumeration, and by their properties."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import combinations
from math import isclose

import pytest
from hypothesis import given, strategies as st

from llmproxy.report.scenario_rows import ConfidenceInterval, wilson
from llmproxy.scenario.repeats.statistics import (
    JudgeVarianceSplit,
    bootstrap_confidence_interval,
    bootstrap_judge_variance,
    estimate_judge_variance,
    kappa,
    mean,
    pass_at_k,
    pass_hat_k,
)
from tests.support.narrowing import known

COUNTS = st.integers(0, 60).flatmap(lambda runs: st.tuples(st.integers(0, runs), st.just(runs)))
LABELS = st.lists(st.tuples(st.sampled_from("pfi"), st.sampled_from("pfi")), max_size=40)


@pytest.mark.parametrize(("passed", "runs", "low", "high"), [
    (81, 263, 0.2553, 0.3662),
    (15, 148, 0.0624, 0.1605),
    (0, 20, 0.0000, 0.1611),
    (1, 29, 0.0061, 0.1718),
    (29, 29, 0.8830, 1.0000),
])  # fmt: skip
def test_wilson_gives_the_published_intervals(passed: int, runs: int, low: float, high: float) -> None:
    """Newcombe 1998, table I, method 3; the last row is its mirror image by hand."""
    found = known(wilson(passed, runs))
    assert (round(found.low, 4), round(found.high, 4)) == (low, high)


@given(COUNTS)
def test_wilson_holds_the_rate_and_stays_a_share(counts: tuple[int, int]) -> None:
    """0 <= low <= rate <= high <= 1, and failing has the mirror image of passing; no runs, no interval."""
    passed, runs = counts
    found, mirrored = wilson(passed, runs), wilson(runs - passed, runs)
    if not runs:
        assert found is None
        return
    assert found is not None
    assert mirrored is not None
    assert 0 <= found.low <= passed / runs <= found.high <= 1
    assert isclose(found.low, 1 - mirrored.high, abs_tol=1e-12)


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n), st.integers(1, n))))
def test_pass_k_is_what_enumeration_counts(chosen: tuple[int, int, int]) -> None:
    """Of all choices of k runs: the share with at least one pass, and the share that passes whole."""
    passed, runs, k = chosen
    choices = list(combinations([True] * passed + [False] * (runs - passed), k))
    some = Fraction(sum(any(each) for each in choices), len(choices))
    every = Fraction(sum(all(each) for each in choices), len(choices))
    assert isclose(pass_at_k(passed, runs, k) or 0, some, abs_tol=1e-12)
    assert isclose(pass_hat_k(passed, runs, k) or 0, every, abs_tol=1e-12)


@given(COUNTS, st.integers(1, 70))
def test_pass_k_above_the_runs_is_unknown(counts: tuple[int, int], k: int) -> None:
    """None, never 0; and of one run both are the rate."""
    passed, runs = counts
    for found in (pass_at_k(passed, runs, k), pass_hat_k(passed, runs, k)):
        assert (found is None) == (k > runs)
    if runs:
        assert isclose(pass_at_k(passed, runs, 1) or 0, passed / runs, abs_tol=1e-12)
        assert isclose(pass_hat_k(passed, runs, 1) or 0, passed / runs, abs_tol=1e-12)


@pytest.mark.parametrize("nonsense", [(2, 1, 1), (-1, 3, 1), (1, 3, 0)])
def test_nonsense_is_a_mistake_of_the_program(nonsense: tuple[int, int, int]) -> None:
    """More passes than runs, or none of k."""
    with pytest.raises(ValueError, match=r"cannot have passed|from 1 on"):
        pass_at_k(*nonsense)


def test_kappa_gives_published_values() -> None:
    """[[20, 5], [10, 15]] is 0.4 (the worked example of most textbooks); [[45, 15], [25, 15]] 0.1304, [[25, 35], [5,
    35]] 0.2593.
    """
    for table, expected in (((20, 5, 10, 15), 0.4), ((45, 15, 25, 15), 0.1304), ((25, 35, 5, 35), 0.2593)):
        cells = (("y", "y"), ("y", "n"), ("n", "y"), ("n", "n"))
        pairs = [pair for pair, count in zip(cells, table, strict=True) for _ in range(count)]
        assert round(kappa(pairs) or 0, 4) == expected


@given(LABELS)
def test_kappa_is_undefined_with_a_single_class_on_a_side(pairs: list[tuple[str, str]]) -> None:
    """Else it is at most 1, which only full agreement reaches, and the raters may change sides."""
    found = kappa(pairs)
    single = len({one for one, _ in pairs}) < 2 or len({other for _, other in pairs}) < 2
    assert (found is None) == single
    if found is not None:
        assert -1 <= found <= 1
        assert (found == 1) == all(one == other for one, other in pairs)
        assert isclose(found, kappa([(other, one) for one, other in pairs]) or 0, abs_tol=1e-12)


def test_the_bootstrap_repeats_itself_and_agrees_with_theory() -> None:
    """Same generator, same interval; of 200 values about mean +- 1.96 standard errors; one value has none."""
    values = [float(n % 10) for n in range(200)]
    found = bootstrap_confidence_interval(values, mean, random.Random(7))
    assert found == bootstrap_confidence_interval(values, mean, random.Random(7))
    assert found is not None
    error = 2.8794 / 200**0.5  # the sample's standard deviation, by hand
    assert isclose(found.low, 4.5 - 1.96 * error, abs_tol=0.06)
    assert isclose(found.high, 4.5 + 1.96 * error, abs_tol=0.06)
    assert bootstrap_confidence_interval([1.0], mean, random.Random(7)) is None
    assert mean([]) is None


def test_a_statistic_that_is_mostly_undefined_has_no_interval() -> None:
    """The resamples in which it happens to be defined would be a convenient choice."""
    rare = [("p", "p")] * 9 + [("f", "f")]
    assert bootstrap_confidence_interval(rare, kappa, random.Random(1)) is None
    common = [("p", "p")] * 9 + [("f", "f")] * 9
    assert bootstrap_confidence_interval(common, kappa, random.Random(1)) == ConfidenceInterval(1.0, 1.0)


def test_the_spread_follows_its_formula() -> None:
    """By hand: p = 1, 1, 1/2, 1/4, 0; equal shares everywhere leave no rest; below five transcripts nothing is computed."""
    judge = (0 + 0 + 1 / 4 + 3 / 16 + 0) / 5 * 4 / 3
    middle = 2.75 / 5
    variance = (2 * (1 - middle) ** 2 + (0.5 - middle) ** 2 + (0.25 - middle) ** 2 + middle**2) / 4
    found = known(estimate_judge_variance([4, 4, 2, 1, 0], 4))
    assert isclose(found.judge, judge)
    assert isclose(found.rest, variance - judge / 4)
    assert isclose(found.judge_share or 0, judge / (judge + variance - judge / 4))
    assert estimate_judge_variance([2] * 6, 4) == JudgeVarianceSplit(0.25 * 4 / 3, 0.0)
    steady = known(estimate_judge_variance([4] * 6, 4))
    assert steady.judge_share is None
    assert estimate_judge_variance([1, 2, 3, 4], 4) is None
    assert bootstrap_judge_variance([1, 2, 3, 4], 4, random.Random(1)) == (None, None)
    with pytest.raises(ValueError, match="at least twice"):
        estimate_judge_variance([1] * 5, 1)


@given(st.lists(st.integers(0, 3), min_size=5, max_size=12), st.integers(0, 100))
def test_spread_intervals_hold_no_nonsense(passes: list[int], seed: int) -> None:
    """Variances are not negative, and low is not above high."""
    for found in bootstrap_judge_variance(passes, 3, random.Random(seed), 200):
        assert found is not None
        assert 0 <= found.low <= found.high


def test_a_simulated_judge_is_recognised() -> None:
    """Transcripts with p of 0.2 or 0.8, R = 6: judge share near E[p(1-p)] = 0.16, rest near the variance of p, 0.09."""
    rng = random.Random(3)
    passes = [sum(rng.random() < p for _ in range(6)) for p in [0.2, 0.8] * 1000]
    found = known(estimate_judge_variance(passes, 6))
    assert isclose(found.judge, 0.16, abs_tol=0.01)
    assert isclose(found.rest, 0.09, abs_tol=0.01)
