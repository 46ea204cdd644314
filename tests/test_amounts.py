"""Counts, money, durations and times."""

from __future__ import annotations

from datetime import UTC
from decimal import Decimal

import pytest

from llmproxy.amounts import clock, counted, dollars, duration, in_and_out, number, when


def test_unknown_is_said_and_zero_is_not_invented() -> None:
    """A question mark, or nothing."""
    assert (number(None), number(0), number(12345)) == ("?", "0", "12,345")
    assert (in_and_out(None, None), in_and_out(1200, None)) == ("", "1,200>?")
    assert duration(None) == ""


@pytest.mark.parametrize(
    ("cost", "text"),
    [
        (0, "$0"),
        (Decimal("0.04211"), "$0.0421"),
        (1234.5, "$1,234.50"),
        (Decimal("0.0000012"), "$0.0000012"),
        (0.000098, "$0.000098"),
        (Decimal("0.000000098"), "$0.000000098"),
    ],
)
def test_money_has_one_form(cost: Decimal | float, text: str) -> None:
    """To a cent, below one to a hundredth of it, finer where that would read 0."""
    assert dollars(cost) == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0.04, "0.0 ms"), (3.2, "3 ms"), (9999, "9999 ms"), (12345, "12.3 s"), (125_000, "2 min 5 s")],
)
def test_a_duration_has_the_digits_that_say_something(ms: float, text: str) -> None:
    """Milliseconds, seconds, minutes."""
    assert duration(ms) == text


def test_times_are_told_by_one_clock() -> None:
    """The machine's own unless a zone is given; what no calendar has stays a number."""
    assert (clock(45296.0, UTC), when(45296.0, UTC)) == ("12:34:56", "1970-01-01 12:34:56")
    assert when(45296.0).endswith(clock(45296.0))
    assert (when(0), when(1e300)) == ("", "1e+300")


def test_nouns_have_their_number() -> None:
    """One, and several."""
    assert (counted(1, "miss", "misses"), counted(2, "miss", "misses"), counted(1000, "hit")) == (
        "1 miss",
        "2 misses",
        "1,000 hits",
    )
