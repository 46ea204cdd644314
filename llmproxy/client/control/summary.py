"""What sessions come to, in a line for people, and the first words of each miss."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal

from llmproxy.amounts import dollars, format_count
from llmproxy.client.control.values import Report
from llmproxy.errors import unsign_text
from llmproxy.late import late

LONGEST = 300
"""Characters of a miss's first line that are shown."""
SHOWN = 5
"""Misses that are shown by name."""
_UNSEEN = late(r"[^\x20-\x7e\xa0-\U0010ffff]")


def add(reports: Iterable[Report]) -> Report:
    """Add reports up; tokens and money of all, unused recordings one after the other."""
    found = list(reports)
    unused = [row for report in found for row in report.unused or ()]
    return Report(
        name="",
        cassette="",
        hits=sum(each.hits for each in found),
        bound=sum(each.bound for each in found),
        bound_names=tuple(sorted({name for each in found for name in each.bound_names})),
        misses=sum(each.misses for each in found),
        recorded=sum(each.recorded for each in found),
        passed=sum(each.passed for each in found),
        refused=sum(each.refused for each in found),
        failed=sum(each.failed for each in found),
        served_failures=sum(each.served_failures for each in found),
        struck=sum(each.struck for each in found),
        live_calls=sum(each.live_calls for each in found),
        unpriced=sum(each.unpriced for each in found),
        tokens_in=sum(each.tokens_in for each in found),
        tokens_out=sum(each.tokens_out for each in found),
        cost_not_spent=_sum(each.cost_not_spent for each in found),
        cost_spent=_sum(each.cost_spent for each in found),
        unused=tuple(unused),
    )


def _sum(costs: Iterable[Decimal | None]) -> Decimal | None:
    known = [cost for cost in costs if cost is not None]
    return sum(known, Decimal(0)) if known else None


def one_line(report: Report) -> str:
    """Return ``3 hits, 1 miss, 0 recorded; $0.0012 not spent``."""
    bound = f" ({report.bound:,} bound: {', '.join(report.bound_names)})" if report.bound else ""
    counts = [
        format_count(report.hits, "hit") + bound,
        format_count(report.misses, "miss", "misses"),
        f"{report.recorded} recorded",
    ]
    more = {
        "passed": report.passed,
        "refused": report.refused,
        "lost": report.failed,
        "served although recorded as failed": report.served_failures,
        "unused": len(report.unused or ()),
    }
    counts += [f"{number} {word}" for word, number in more.items() if number]
    counts += [f"{format_count(report.struck, 'fault')} on purpose"] if report.struck else []
    money = []
    if report.cost_not_spent is not None:
        money.append(f"{dollars(report.cost_not_spent)} not spent")
    if report.cost_spent is not None:
        money.append(f"{dollars(report.cost_spent)} spent")
    if report.unpriced and report.calls:
        money.append(f"({format_count(report.unpriced, 'call')} of unknown price)")
    return "; ".join(filter(None, [", ".join(counts), " ".join(money)]))


def first_lines(texts: Sequence[str], prefix: str = "  ") -> list[str]:
    """Return the first line of each miss, equal ones once with their number; at most a handful."""
    firsts: dict[str, int] = {}
    for text in texts:
        first = brief(text)
        firsts[first] = firsts.get(first, 0) + 1
    lines = [f"{prefix}{text}" + (f" ({number} times)" if number > 1 else "") for text, number in firsts.items()]
    more = [f"{prefix}... and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    return lines[:SHOWN] + more


def brief(text: str) -> str:
    """Return a miss's first sentence on one line, fit for a terminal."""
    lines = text.strip().splitlines() or [""]
    first = lines[0] if not lines[0].endswith(":") or len(lines) == 1 else f"{lines[0]} {lines[1].strip()}"
    shown = _UNSEEN.sub("\N{REPLACEMENT CHARACTER}", unsign_text(first))
    return shown if len(shown) <= LONGEST else shown[: LONGEST - 1] + "\N{HORIZONTAL ELLIPSIS}"
