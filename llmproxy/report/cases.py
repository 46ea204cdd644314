"""The cases of a scenario side by side, at the end: those that did not pass first, and no more lines than a reader wants.

weather: 3 cases, 1 not passed
  failed  rome   1 of 2 runs
  passed  paris  2 of 2 runs
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmproxy.report.events import Status

__all__ = ["table"]

_SHOWN = 30
"""Lines of one scenario; after so many, the report files have the rest."""
_GOOD = (Status.PASSED.value, Status.SKIPPED.value)


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines for the rows of `Completed.scenarios`: of each scenario with several cases."""
    groups: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for row in rows:
        name, bracket, rest = str(row.get("scenario", "")).partition("[")
        if bracket and rest.endswith("]"):
            groups.setdefault(name, []).append((rest[:-1], row))
    return [line for name, cases in groups.items() if len(cases) > 1 for line in _group(name, cases)]


def _group(name: str, cases: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    bad = sum(row.get("status") not in _GOOD for _, row in cases)
    ordered = sorted(cases, key=lambda case: case[1].get("status") in _GOOD)
    shown = ordered[: max(_SHOWN, 0)]
    wide = max(len(str(row.get("status"))) for _, row in shown), max(len(case) for case, _ in shown)
    lines = [
        f"  {str(row.get('status')).replace('_', ' '):<{wide[0]}}  {case:<{wide[1]}}  {_runs(row)}".rstrip()
        for case, row in shown
    ]
    left = len(cases) - len(shown)
    more = [f"  ... and {left:,} more cases"] if left else []
    return [f"{name}: {len(cases):,} cases, {bad:,} not passed", *lines, *more]


def _runs(row: Mapping[str, Any]) -> str:
    runs, interval = int(row.get("runs") or 0), row.get("interval")
    if runs < 2:
        return ""
    sure = f" (95 % interval {interval[0]:.0%} to {interval[1]:.0%})" if interval else ""
    return f"{row.get('passed', 0)} of {runs} runs passed{sure}"
