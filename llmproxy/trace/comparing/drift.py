"""Whether a model behaves otherwise than before: one verdict over all sampled calls, a permutation test within each.

    distances between the earlier and the new answers of each call -> p, and what a change would have had to be

Within a call earlier and new answers would be exchangeable if nothing had changed. The statistic of a call is the mean
distance between an earlier and a new answer; its distribution comes from all ways to say which answers were the earlier
ones (Fisher's randomization test, stratified by call; Good, *Permutation Tests*, 2000). The sum over the calls is
compared with sums drawn by lot, so its p is exact at whatever number is drawn (Phipson and Smyth, 2010). Of a single
call with one earlier and three new answers no p below 1/4 is possible: single calls are never called significant.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb, prod, sqrt
from statistics import fmean

ALPHA = 0.05
DRAWN = 9_999
_SIMULATED = 400
_DRAWN_IN_SIMULATIONS = 199
NOISE = 0.1
"""How often two answers to one request differ though nothing changed, where nothing is known of it."""
PLANTED = (0.1, 0.3, 0.6)
"""Shares of calls that go another way, for which it is said how probably that would have been seen."""
_MOST_ARRANGEMENTS = 2_000


@dataclass(frozen=True, slots=True)
class CallStatistic:
    """One call: how far its new answers are from the earlier ones, and what that could have been."""

    seen: float
    possible: tuple[float, ...]
    """The same for each way to say which answers were the earlier ones; `seen` is one of them."""


def measure_call[Answer](
    old: Sequence[Answer], new: Sequence[Answer], distance: Callable[[Answer, Answer], float]
) -> CallStatistic:
    """Return the statistic of a call, less its mean over all arrangements. Raises ValueError: a side is empty."""
    if not old or not new:
        raise ValueError("a call is compared by an earlier answer and a new one at least")
    every = [*old, *new]
    apart = [[distance(one, other) for other in every] for one in every]
    chosen = list(combinations(range(len(every)), len(old)))[:_MOST_ARRANGEMENTS]
    means = [_between(apart, frozenset(earlier)) for earlier in chosen]
    middle = fmean(means)
    return CallStatistic(means[0] - middle, tuple(mean - middle for mean in means))


def _between(apart: Sequence[Sequence[float]], earlier: frozenset[int]) -> float:
    return fmean(apart[one][other] for one in earlier for other in range(len(apart)) if other not in earlier)


def find_p(calls: Sequence[CallStatistic], *, both: bool = False, seed: int = 0, drawn: int = DRAWN) -> float:
    """Return how probable a sum as large as the one that was seen is if nothing has changed.

    `both`: or as small, which says that new answers vary more than earlier ones. Not for recordings: one that was kept
    because its test passed is more usual than an answer drawn by lot.
    """
    lot = random.Random(seed)  # noqa: S311 - no secret: the same answers give the same verdict
    seen = sum(call.seen for call in calls)
    moving = [call.possible for call in calls if len(set(call.possible)) > 1]
    if not moving:
        return 1.0
    sums = (sum(lot.choice(possible) for possible in moving) for _ in range(drawn))
    least = (abs(seen) if both else seen) - 1e-9
    return (1 + sum((abs(each) if both else each) >= least for each in sums)) / (1 + drawn)


def find_least_p(sizes: Sequence[tuple[int, int]]) -> float:
    """Return a bound below which no p of these calls can lie: one arrangement of all."""
    return prod(1 / comb(old + new, old) for old, new in sizes)


def correct(ps: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number (Holm, 1979), in the order in which they came."""
    order = sorted(range(len(ps)), key=lambda at: ps[at])
    found, highest = [1.0] * len(ps), 0.0
    for rank, at in enumerate(order):
        highest = max(highest, min(1.0, ps[at] * (len(ps) - rank)))
        found[at] = highest
    return found


def find_power(
    sizes: Sequence[tuple[int, int]], share: float, *, noise: float = NOISE, alpha: float = ALPHA, seed: int = 0
) -> float:
    """Return how probably a change would be seen in which that share of the calls goes another way.

    `sizes` has for each call how many earlier and new answers there are. Answers are simulated: each goes the call's
    own way or another one, so that two of them differ with the probability `noise`.
    """
    stray = (1 - sqrt(max(0.0, 1 - 2 * noise))) / 2
    lot = random.Random(seed)  # noqa: S311 - a simulation
    known: dict[tuple[tuple[int, ...], int], CallStatistic] = {}
    found = 0
    for number in range(_SIMULATED):
        calls = []
        for old, new in sizes:
            other = lot.random() < share
            answers = tuple(int((lot.random() < stray) ^ (at >= old and other)) for at in range(old + new))
            if (answers, old) not in known:
                known[answers, old] = measure_call(answers[:old], answers[old:], lambda one, two: float(one != two))
            calls.append(known[answers, old])
        found += find_p(calls, seed=number, drawn=_DRAWN_IN_SIMULATIONS) <= alpha
    return found / _SIMULATED
