"""The cases of a scenario side by side, at the end: those that did not pass first, and no more lines than a reader wants.

weather: 3 cases, 1 not passed; * not as most are (passed)
* failed  rome   $0.0021  1.20 s
  passed  paris  $0.0014  0.84 s
  passed  oslo   $0.0015  0.90 s

Cost and latency are those of the agent's calls in a run, as they were recorded; of several runs the mean. What is not known is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from llmproxy.amounts import dollars, duration, format_count
from llmproxy.report.events import Status
from llmproxy.report.forms.intervals import wilson

_SHOWN = 30
"""Lines of one scenario; after so many, the report files have the rest."""
_WORD = 30
"""Characters of an axis's value."""
_GOOD = (Status.PASSED.value, Status.SKIPPED.value)
_COUNTED = tuple(each.value for each in (Status.PASSED, Status.FAILED, Status.AGENT_ERROR, Status.FLAKY))
"""How a cell ends that says something about the agent."""


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines for the rows of `Completed.scenarios`: of each scenario with several cases."""
    groups: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for row in rows:
        name, bracket, rest = str(row.get("scenario", "")).partition("[")
        if bracket and rest.endswith("]"):
            groups.setdefault(name, []).append((rest[:-1], row))
    return [line for name, cases in groups.items() if len(cases) > 1 for line in (*_group(name, cases), *_axes(cases))]


def _axes(cases: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """Return a line for each value of each axis of a matrix: how many of its cells passed, and their mean cost and latency.

    The interval is of the share of cells: runs of different cells are never pooled, a cell counts once. Cells that say nothing about the
    agent are left out of it.
    """
    names = dict.fromkeys(name for _, row in cases for name in row.get("axes") or ())
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for axis in names:
        for _, row in cases:
            if axis in (row.get("axes") or {}):
                found.setdefault((axis, row["axes"][axis]), []).append(row)
    if all(len(rows) == 1 for rows in found.values()):
        return []  # one axis alone: the cells say it all
    cells = [
        [
            f"  {name}={value[:_WORD]}",
            f"{sum(row.get('status') in _GOOD for row in rows)} of {len(rows)} cells passed{_share(rows)}",
            _cost(_mean(rows)),
            _latency(_mean(rows)),
        ]
        for (name, value), rows in found.items()
    ]
    wide = [max(len(row[column]) for row in cells) for column in range(4)] if cells else []
    return [
        "  ".join(f"{cell:<{room}}" for cell, room in zip(row, wide, strict=True) if room).rstrip() for row in cells
    ]


def _share(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the interval of the share of cells that pass; empty where two cells or more do not say it."""
    counted = [row.get("status") == Status.PASSED.value for row in rows if row.get("status") in _COUNTED]
    interval = wilson(sum(counted), len(counted)) if len(counted) > 1 else None
    return "" if interval is None else _sure((interval.low, interval.high))


def _sure(interval: Sequence[float]) -> str:
    return f" (95 % interval {interval[0]:.0%} to {interval[1]:.0%})"


def _mean(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return mean cost and latency of cells; None where one of them is not known."""
    costs = [Decimal(row["cost_usd"]) for row in rows if row.get("cost_usd") is not None]
    times = [float(row["latency_ms"]) for row in rows if row.get("latency_ms") is not None]
    return {
        "cost_usd": sum(costs, Decimal(0)) / len(costs) if len(costs) == len(rows) else None,
        "latency_ms": sum(times) / len(times) if len(times) == len(rows) else None,
    }


def _group(name: str, cases: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    bad = sum(row.get("status") not in _GOOD for _, row in cases)
    usual = _usual(cases)
    ordered = sorted(cases, key=lambda case: case[1].get("status") in _GOOD)
    shown = ordered[:_SHOWN]
    cells = [
        [
            ("* " if usual and row.get("status") != usual else "  ") + str(row.get("status")).replace("_", " "),
            case,
            _runs(row),
            _cost(row),
            _latency(row),
        ]
        for case, row in shown
    ]
    wide = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = [
        "  ".join(f"{cell:<{room}}" for cell, room in zip(row, wide, strict=True) if room).rstrip() for row in cells
    ]
    left = len(cases) - len(shown)
    more = [f"  ... and {format_count(left, 'more case')}"] if left else []
    marked = (
        f"; * not as most are ({str(usual).replace('_', ' ')})" if any(line.startswith("*") for line in lines) else ""
    )
    return [f"{name}: {format_count(len(cases), 'case')}, {bad:,} not passed{marked}", *lines, *more]


def _usual(cases: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Return how most cases ended, more than half of them; empty where there is no such status."""
    status, number = Counter(str(row.get("status")) for _, row in cases).most_common(1)[0]
    return status if number * 2 > len(cases) else ""


def _runs(row: Mapping[str, Any]) -> str:
    runs, interval = int(row.get("runs") or 0), row.get("interval")
    if runs < 2:
        return ""
    sure = _sure(interval) if interval else ""
    return f"{row.get('passed', 0)} of {runs} runs passed{sure}"


def _cost(row: Mapping[str, Any]) -> str:
    cost = row.get("cost_usd")
    return "" if cost is None else dollars(Decimal(cost))


def _latency(row: Mapping[str, Any]) -> str:
    latency = row.get("latency_ms")
    return duration(None if latency is None else float(latency))
