"""Rows of scenarios with the results of their runs, for tables, baselines and the trend, and intervals of rates.

    weather: 3 cases, 1 not passed; * not as most are (passed)
    * failed  rome   $0.0021  1.20 s
      passed  paris  $0.0014  0.84 s

Cost and latency are the agent's in a run, as recorded; the mean of several runs. Unknown values are left out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import sqrt
from pathlib import Path
from typing import Any

from llmproxy.amount_formatting import align_rows, dollars, format_count, format_milliseconds, mean_if_all_known
from llmproxy.errors import SettingsError
from llmproxy.file_io import read_bounded_text
from llmproxy.report.events import Completed, Event, EventHandlerWithNothingToClose, Status
from llmproxy.report.run_tree import is_decimal, value_has_annotated_type

Z95 = 1.959963984540054
"""The 97.5 % point of the normal distribution: two-sided 95 %."""


@dataclass(frozen=True, slots=True)
class ConfidenceInterval:
    """A 95 % interval, both ends included."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:.3f}..{self.high:.3f}"


def wilson(passed: int, runs: int) -> ConfidenceInterval | None:
    """Return the Wilson score interval of a proportion, or None. Source: Wilson 1927; Newcombe 1998, method 3."""
    validate_passed_and_run_counts(passed, runs)
    if not runs:
        return None
    share, square = passed / runs, Z95 * Z95
    middle = share + square / (2 * runs)
    reach = Z95 * sqrt(share * (1 - share) / runs + square / (4 * runs * runs))
    whole = 1 + square / runs
    # The ends are exact at 0 and n; rounding must not put them a hair beyond.
    low = 0.0 if passed == 0 else max(0.0, (middle - reach) / whole)
    return ConfidenceInterval(low, 1.0 if passed == runs else min(1.0, (middle + reach) / whole))


def validate_passed_and_run_counts(passed: int, runs: int, k: int = 1) -> None:
    """Raise ValueError for more passes than runs, and for a `k` below 1."""
    if not 0 <= passed <= runs:
        raise ValueError(f"{passed} of {runs} runs cannot have passed")
    if k < 1:
        raise ValueError(f"k counts runs, from 1 on; it is {k}")


_KINDS = {
    "scenario": "str", "status": "str", "runs": "int | None", "passed": "int | None", "rate": "float | None",
    "cost_usd": "str | None", "latency_ms": "float | None",
}  # fmt: skip


def validate_report_row(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row after checking it. Raises TypeError."""
    for name, kind in _KINDS.items():
        value = row.get(name)
        if not (value_has_annotated_type(value, kind) and (name != "cost_usd" or value is None or is_decimal(value))):
            raise TypeError(f"`{name}` of a scenario is {value!r:.60}, which is no {kind}")
    return row


_SHOWN = 30
_WORD = 30
_GOOD = (Status.PASSED.value, Status.SKIPPED.value)
_COUNTED = tuple(each.value for each in (Status.PASSED, Status.FAILED, Status.AGENT_ERROR, Status.FLAKY))
"""Statuses of cells that say something about the agent."""


def format_case_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    groups: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for row in rows:
        name, bracket, rest = str(row.get("scenario", "")).partition("[")
        if bracket and rest.endswith("]"):
            groups.setdefault(name, []).append((rest[:-1], row))
    return [
        line
        for name, cases in groups.items()
        if len(cases) > 1
        for line in (*_format_case_group(name, cases), *_format_axis_lines(cases))
    ]


def _format_axis_lines(cases: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """Return a line for each value of each axis of a matrix: passed cells, mean cost and latency.

    The interval is of the share of cells: runs of different cells are never pooled. Cells that say nothing about the
    agent are left out.
    """
    names = dict.fromkeys(name for _, row in cases for name in row.get("axes") or ())
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for axis in names:
        for _, row in cases:
            if axis in (row.get("axes") or {}):
                found.setdefault((axis, row["axes"][axis]), []).append(row)
    if all(len(rows) == 1 for rows in found.values()):
        return []  # one axis alone: the cells say it all
    cells = []
    for (name, value), rows in found.items():
        good = sum(row.get("status") in _GOOD for row in rows)
        passed = f"{good} of {len(rows)} cells passed{_format_pass_interval(rows)}"
        costs = [None if row.get("cost_usd") is None else Decimal(row["cost_usd"]) for row in rows]
        latencies = [row.get("latency_ms") for row in rows]
        means = {"cost_usd": mean_if_all_known(costs), "latency_ms": mean_if_all_known(latencies)}
        cells.append([f"  {name}={value[:_WORD]}", passed, _format_cost(means), _format_latency(means)])
    return align_rows(cells)


def _format_pass_interval(rows: Sequence[Mapping[str, Any]]) -> str:
    counted = [row.get("status") == Status.PASSED.value for row in rows if row.get("status") in _COUNTED]
    interval = wilson(sum(counted), len(counted)) if len(counted) > 1 else None
    return "" if interval is None else _format_interval((interval.low, interval.high))


def _format_interval(interval: Sequence[float]) -> str:
    return f" (95 % interval {interval[0]:.0%} to {interval[1]:.0%})"


def _format_case_group(name: str, cases: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    bad = sum(row.get("status") not in _GOOD for _, row in cases)
    usual, number = Counter(str(row.get("status")) for _, row in cases).most_common(1)[0]
    usual = usual if number * 2 > len(cases) else ""  # of more than half of the cases
    shown = sorted(cases, key=lambda case: case[1].get("status") in _GOOD)[:_SHOWN]
    cells = []
    for case, row in shown:
        mark = "* " if usual and row.get("status") != usual else "  "
        status = mark + str(row.get("status")).replace("_", " ")
        cells.append([status, case, _format_pass_count(row), _format_cost(row), _format_latency(row)])
    left = len(cases) - len(shown)
    more = [f"  ... and {format_count(left, 'more case')}"] if left else []
    others = usual and any(row.get("status") != usual for _, row in shown)
    marked = f"; * not as most are ({str(usual).replace('_', ' ')})" if others else ""
    return [f"{name}: {format_count(len(cases), 'case')}, {bad:,} not passed{marked}", *align_rows(cells), *more]


def _format_pass_count(row: Mapping[str, Any]) -> str:
    runs, interval = int(row.get("runs") or 0), row.get("interval")
    if runs < 2:
        return ""
    return f"{row.get('passed', 0)} of {runs} runs passed{_format_interval(interval) if interval else ''}"


def _format_cost(row: Mapping[str, Any]) -> str:
    cost = row.get("cost_usd")
    return "" if cost is None else dollars(Decimal(cost))


def _format_latency(row: Mapping[str, Any]) -> str:
    latency = row.get("latency_ms")
    return format_milliseconds(None if latency is None else float(latency))


_OTHERS = "Compare with a report of the same suites; a scenario is known by its id."
_ORDER = ("worse", "missing", "new", "better")
_WORST = ("passed", "skipped", "flaky", "failed", "agent_error", "environment_error")


def read_baseline(
    path: Path, scenarios: Collection[str] | None = None, flag: str = "--baseline"
) -> dict[str, Mapping[str, Any]]:
    """Return a JSON report's rows by scenario, of those selected, if known. Raises SettingsError: none of these."""
    try:
        rows = {row["scenario"]: validate_report_row(row) for row in json.loads(read_bounded_text(path))["summary"]}
    except OSError as error:
        raise SettingsError(f"{flag} {path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        hint = "`llmproxy test --report json=FILE` writes one, and `pytest --scenario-report json=FILE`."
        raise SettingsError(f"{flag} {path} is no JSON report of a test.", hint=hint) from error
    if scenarios is not None and not rows.keys() & set(scenarios):
        raise SettingsError(f"{flag} {path} {_describe_suite_mismatch(rows)} that are selected.", hint=_OTHERS)
    return rows


def _describe_suite_mismatch(rows: Collection[str]) -> str:
    return f"is of other suites: it has {', '.join(list(rows)[:3]) or 'nothing'}, and none of the scenarios"


class BaselineChangePrinter(EventHandlerWithNothingToClose):
    def __init__(
        self, rows: Mapping[str, Mapping[str, Any]], write: Callable[[str], object], selected: Sequence[str]
    ) -> None:
        """Compare with `rows`; rows that are not `selected` are only counted."""
        self._rows = {name: row for name, row in rows.items() if name in set(selected)}
        self._left = len(rows) - len(self._rows)
        self._write = write

    def handle(self, event: Event) -> None:
        if isinstance(event, Completed):
            for line in [*format_baseline_changes(self._rows, event.scenarios), *_format_not_run_count(self._left)]:
                self._write(line + "\n")


def format_baseline_comparison(
    before: Mapping[str, Mapping[str, Any]], now: Sequence[Mapping[str, Any]], path: Path, flag: str
) -> list[str]:
    """Return lines about a test, scenarios known at its end, missing ones counted. Raises SettingsError."""
    ran = {str(row.get("scenario")) for row in now}
    if not ran & before.keys():
        raise SettingsError(f"{flag} {path} {_describe_suite_mismatch(before)} that ran.", hint=_OTHERS)
    known = {name: row for name, row in before.items() if name in ran}
    return [*format_baseline_changes(known, now), *_format_not_run_count(len(before) - len(known))]


def _format_not_run_count(number: int) -> list[str]:
    return [f"  {number:,} of the baseline did not run"] if number else []


def format_baseline_changes(before: Mapping[str, Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = {str(row.get("scenario")): row for row in now}
    changed = [_describe_change(name, before.get(name), rows.get(name)) for name in dict.fromkeys([*before, *rows])]
    told = sorted((each for each in changed if each), key=lambda each: _ORDER.index(each[0]))
    same = len(changed) - len(told)
    worse, better = (sum(kind == word for kind, _ in told) for word in ("worse", "better"))
    head = f"against the baseline: {worse} worse, {better} better, {same} as before"
    return [head, *(f"  {kind:<7}  {text}" for kind, text in told)]


def _describe_change(name: str, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> tuple[str, str] | None:
    if old is None:
        return "new", f"{name}: {_describe_row_status(new or {})}"
    if new is None:
        return "missing", f"{name}: was {_describe_row_status(old)}"
    if (old.get("status") == "skipped") is not (new.get("status") == "skipped"):
        kind = "missing" if new.get("status") == "skipped" else "new"
        return kind, f"{name}: {_describe_row_status(old)} -> {_describe_row_status(new)}"
    if (order := measure_drop_in_rate_or_status(old, new)) == 0:
        return None
    chance = "; the intervals overlap: this may be chance" if _intervals_overlap(old, new) else ""
    text = f"{name}: {_describe_row_status(old)} -> {_describe_row_status(new)}{chance}"
    return "worse" if order > 0 else "better", text


def measure_drop_in_rate_or_status(old: Mapping[str, Any], new: Mapping[str, Any]) -> float:
    """Return how much worse a row is than an older one, 0 if equal: by rates if both were judged, else by statuses."""
    statuses, rates = [str(row.get("status")) for row in (old, new)], [row.get("rate") for row in (old, new)]
    if None in rates or "environment_error" in statuses:
        before, now = (_WORST.index(each) if each in _WORST else len(_WORST) for each in statuses)
        return now - before
    return float(rates[0] or 0) - float(rates[1] or 0)


def _intervals_overlap(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    one, other = old.get("interval"), new.get("interval")
    if not one or not other or max(int(old.get("runs") or 0), int(new.get("runs") or 0)) < 2:
        return False
    return bool(one[0] <= other[1] and other[0] <= one[1])


def _describe_row_status(row: Mapping[str, Any]) -> str:
    runs, rate, interval = int(row.get("runs") or 0), row.get("rate"), row.get("interval")
    status = str(row.get("status")).replace("_", " ")
    if runs < 2 or rate is None or not interval:
        return status
    return f"{status}, {row.get('passed')} of {runs} ({interval[0]:.0%} to {interval[1]:.0%})"
