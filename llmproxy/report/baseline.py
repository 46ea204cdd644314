"""Comparison of a test with an earlier one; regressions come first.

    the JSON report of the earlier test + the rows of this one -> lines

Rates are compared by their 95 % intervals: if those overlap, a change may be chance, and the line says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from llmproxy.errors import SettingsError
from llmproxy.files import read_bounded_text
from llmproxy.report.events import Completed, Event, ImmediateHandler
from llmproxy.report.scenario_rows import validate_row

_OTHERS = "Compare with a report of the same suites; a scenario is known by its id."
_ORDER = ("worse", "missing", "new", "better")
_WORST = ("passed", "skipped", "flaky", "failed", "agent_error", "environment_error")


def read_baseline(
    path: Path, scenarios: Collection[str] | None = None, flag: str = "--baseline"
) -> dict[str, Mapping[str, Any]]:
    """Return a JSON report's rows by scenario, of those selected, if known. Raises SettingsError: none of these."""
    try:
        rows = {row["scenario"]: validate_row(row) for row in json.loads(read_bounded_text(path))["summary"]}
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


class BaselineComparisonHandler(ImmediateHandler):
    def __init__(
        self, rows: Mapping[str, Mapping[str, Any]], write: Callable[[str], object], selected: Sequence[str]
    ) -> None:
        """Compare with `rows`; rows that are not `selected` are only counted."""
        self._rows = {name: row for name, row in rows.items() if name in set(selected)}
        self._left = len(rows) - len(self._rows)
        self._write = write

    def handle(self, event: Event) -> None:
        if isinstance(event, Completed):
            for line in [*format_rows_comparison(self._rows, event.scenarios), *_format_not_run_count(self._left)]:
                self._write(line + "\n")


def format_baseline_comparison(
    before: Mapping[str, Mapping[str, Any]], now: Sequence[Mapping[str, Any]], path: Path, flag: str
) -> list[str]:
    """Return lines about a test, scenarios known at its end, missing ones counted. Raises SettingsError."""
    ran = {str(row.get("scenario")) for row in now}
    if not ran & before.keys():
        raise SettingsError(f"{flag} {path} {_describe_suite_mismatch(before)} that ran.", hint=_OTHERS)
    known = {name: row for name, row in before.items() if name in ran}
    return [*format_rows_comparison(known, now), *_format_not_run_count(len(before) - len(known))]


def _format_not_run_count(number: int) -> list[str]:
    return [f"  {number:,} of the baseline did not run"] if number else []


def format_rows_comparison(before: Mapping[str, Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> list[str]:
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
    order = compute_row_badness(new) - compute_row_badness(old)
    if order == 0:
        return None
    chance = "; the intervals overlap: this may be chance" if _intervals_overlap(old, new) else ""
    return (
        "worse" if order > 0 else "better",
        f"{name}: {_describe_row_status(old)} -> {_describe_row_status(new)}{chance}",
    )


def compute_row_badness(row: Mapping[str, Any]) -> float:
    """Return the badness of a row: by its rate, else its status; incompletely judged rates do not count."""
    status = str(row.get("status"))
    if status == "environment_error" or row.get("rate") is None:
        return _WORST.index(status) if status in _WORST else len(_WORST)
    return 1.0 - float(row["rate"])


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
