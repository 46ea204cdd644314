"""What sessions come to, in words."""

from __future__ import annotations

from decimal import Decimal

from llmproxy.client.control.summary import add, brief, first_lines, one_line
from llmproxy.client.control.values import Report, Unused


def report(**facts: object) -> Report:
    """Return a report with these facts."""
    return Report(name="a", cassette="a", **facts)  # type: ignore[arg-type]


def test_the_line_leaves_out_what_is_nothing() -> None:
    """Hits, misses and recorded are always there."""
    assert one_line(report()) == "0 hits, 0 misses, 0 recorded"
    full = report(hits=1, misses=1, recorded=2, passed=1, refused=1, failed=1, cost_not_spent=Decimal("0.00123"))
    assert one_line(full) == "1 hit, 1 miss, 2 recorded, 1 passed, 1 refused, 1 lost; $0.0012 not spent"
    assert one_line(report(hits=1, unpriced=1)) == "1 hit, 0 misses, 0 recorded; (1 call of unknown price)"


def test_reports_add_up_and_an_unknown_price_stays_unknown() -> None:
    """It is never counted as 0."""
    total = add(
        [report(hits=1), report(hits=2, cost_spent=Decimal("0.1"), unused=(Unused(1, "messages", None, None),))]
    )
    assert (total.hits, total.cost_spent, total.cost_not_spent, len(total.unused or ())) == (3, Decimal("0.1"), None, 1)
    assert add([]).calls == 0


def test_a_miss_is_its_first_sentence_fit_for_a_terminal() -> None:
    """What was asked came over the wire: it moves no cursor."""
    assert brief("llmproxy: no recorded response\x1b[2J:\nthe nearest is #1\nmore") == (
        "no recorded response\N{REPLACEMENT CHARACTER}[2J: the nearest is #1"
    )
    assert len(brief("x" * 1000)) == 300
    assert brief("") == ""


def test_many_misses_are_counted_not_listed() -> None:
    """Equal ones once; how many more there are."""
    lines = first_lines(["same", "same", *(f"other {n}" for n in range(9))])
    assert lines[0] == "  same (2 times)"
    assert lines[-1] == "  ... and 5 more"
