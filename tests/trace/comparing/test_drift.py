"""The verdict over all sampled calls: how often it is wrong, and how often it sees what is there."""

from __future__ import annotations

import random
from math import sqrt

import pytest

from llmproxy.trace.comparing.answer_drift_statistics import (
    ALPHA,
    compute_least_p_value,
    compute_permutation_p_value,
    compute_statistic_per_permutation,
    correct_p_values,
    estimate_answer_drift_test_power,
)

STRAY = (1 - sqrt(0.8)) / 2
"""How often an answer goes another way so that two of them differ in 10 %."""


def apart(one: int, other: int) -> float:
    return float(one != other)


def nights(share: float, count: int, *, calls: int = 20, earlier: int = 1, seed: int = 7) -> float:
    """Return in which share of the nights drift was told, where it is planted in a share of the calls."""
    lot = random.Random(seed)
    found = 0
    for night in range(count):
        told = []
        for _ in range(calls):
            other = lot.random() < share
            answers = [int((lot.random() < STRAY) ^ (at >= earlier and other)) for at in range(earlier + 3)]
            told.append(compute_statistic_per_permutation(answers[:earlier], answers[earlier:], apart))
        found += compute_permutation_p_value(told, seed=night, drawn=99) <= ALPHA
    return found / count


@pytest.mark.parametrize("earlier", [1, 3])
def test_false_alarms_are_rare(earlier: int) -> None:
    """At most as many as was said, over 1,000 nights in which nothing changed."""
    assert nights(0, 1_000, earlier=earlier) <= ALPHA


@pytest.mark.parametrize(("share", "about"), [(0.1, 0.22), (0.3, 0.75), (0.6, 0.99)])
def test_what_is_said_of_power_is_so(share: float, about: float) -> None:
    """Twenty calls, three answers, one recorded: what was said, and what comes of it, within five points."""
    told = estimate_answer_drift_test_power([(1, 3)] * 20, share)
    assert told == pytest.approx(about, abs=0.05)
    assert nights(share, 800) == pytest.approx(told, abs=0.05)


def test_a_single_call_is_never_significant() -> None:
    """One recorded answer and three others: one of four arrangements is as far apart."""
    assert compute_permutation_p_value([compute_statistic_per_permutation([0], [1, 1, 1], apart)]) == pytest.approx(
        0.25, abs=0.02
    )
    assert compute_least_p_value([(1, 3)]) == 0.25
    with pytest.raises(ValueError, match="an earlier answer"):
        compute_statistic_per_permutation([], [1], apart)


def test_more_variety_than_before_is_seen_where_the_earlier_ones_are_a_sample() -> None:
    """A recording is none: it was kept because it was usual."""
    calls = [compute_statistic_per_permutation([0, 0, 0], [0, 0, 1], apart)] * 20
    assert compute_permutation_p_value(calls) > 0.5
    assert (
        compute_permutation_p_value([compute_statistic_per_permutation([0], [0, 0, 1], apart)] * 20, both=True) < ALPHA
    )


def test_several_models_are_corrected_for() -> None:
    """As Holm has it."""
    assert correct_p_values([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
