"""Counts, money, durations and times."""

from __future__ import annotations

from datetime import UTC
from decimal import Decimal

import pytest

from llmproxy.amount_formatting import (
    dollars,
    format_clock,
    format_count,
    format_local_time,
    format_milliseconds,
    format_seconds,
    format_tokens_in_out,
    number,
)

DURATIONS = (
    (0.04, "0.0 ms"),
    (3.2, "3 ms"),
    (999.7, "1.0 s"),
    (9999, "10.0 s"),
    (12345, "12.3 s"),
    (59_970, "1 min 0 s"),
    (125_000, "2 min 5 s"),
    (3_599_800, "1 h 0 min"),
    (7_500_000, "2 h 5 min"),
)
"""Milliseconds -> what is shown, here and in the browser (tests/ui/test_format.py)."""
COSTS = {0: "$0", 1234.5: "$1,234.50", 0.25: "$0.2500", 0.000098: "$0.000098", 0.000000098: "$0.000000098"}
"""Dollars -> the same."""
COUNTS = (
    ((1, "miss", "misses"), "1 miss"),
    ((2, "miss", "misses"), "2 misses"),
    ((1000, "hit", "hits"), "1,000 hits"),
    ((0, "hit", "hits"), "0 hits"),
)
"""How many of what -> the same."""


def test_unknown_is_said_and_zero_is_not_invented() -> None:
    assert (number(None), number(0), number(12345)) == ("?", "0", "12,345")
    assert (format_tokens_in_out(None, None), format_tokens_in_out(1200, None)) == ("", "1,200>?")
    assert format_milliseconds(None) == ""


@pytest.mark.parametrize(
    ("cost", "text"), [*COSTS.items(), (Decimal("0.04211"), "$0.0421"), (Decimal("0.0000012"), "$0.0000012")]
)
def test_money_has_one_form(cost: Decimal | float, text: str) -> None:
    """To a cent, below one to a hundredth of it, finer where that would read 0."""
    assert dollars(cost) == text


@pytest.mark.parametrize(("ms", "text"), [*DURATIONS, (None, "")])
def test_a_duration_has_the_digits_that_say_something(ms: float | None, text: str) -> None:
    """Milliseconds, seconds, minutes, hours; none is sixty of what stands before the next."""
    assert format_milliseconds(ms) == format_seconds(None if ms is None else ms / 1000) == text


def test_times_are_told_by_one_clock() -> None:
    """The machine's own unless a zone is given; what no calendar has stays a number."""
    assert (format_clock(45296.0, UTC), format_local_time(45296.0, UTC)) == ("12:34:56", "1970-01-01 12:34:56")
    assert format_local_time(45296.0).endswith(format_clock(45296.0))
    assert (format_local_time(0), format_local_time(1e300)) == ("", "1e+300")


@pytest.mark.parametrize(("many", "text"), COUNTS)
def test_nouns_have_their_number(many: tuple[int, str, str], text: str) -> None:
    assert format_count(*many) == text
