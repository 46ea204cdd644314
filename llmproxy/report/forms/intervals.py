"""How sure a share is: its Wilson interval. A report of cases, a verdict over runs and a calibration all say it by this one formula."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

Z95 = 1.959963984540054
"""The 97.5 % point of the normal distribution: two-sided 95 %."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A 95 % interval, both ends included."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:.3f}..{self.high:.3f}"


def wilson(passed: int, runs: int, z: float = Z95) -> Interval | None:
    """Return the Wilson score interval of a proportion; None without runs.

    Source: Wilson 1927; Newcombe 1998, method 3.
    """
    check_passes(passed, runs)
    if not runs:
        return None
    share, square = passed / runs, z * z
    middle = share + square / (2 * runs)
    reach = z * sqrt(share * (1 - share) / runs + square / (4 * runs * runs))
    whole = 1 + square / runs
    # The ends are exact at 0 and n; rounding must not put them a hair beyond.
    low = 0.0 if passed == 0 else max(0.0, (middle - reach) / whole)
    high = 1.0 if passed == runs else min(1.0, (middle + reach) / whole)
    return Interval(low, high)


def check_passes(passed: int, runs: int, k: int = 1) -> None:
    """Raise ValueError for more passes than runs, and for a `k` that counts nothing."""
    if not 0 <= passed <= runs:
        raise ValueError(f"{passed} of {runs} runs cannot have passed")
    if k < 1:
        raise ValueError(f"k counts runs, from 1 on; it is {k}")
