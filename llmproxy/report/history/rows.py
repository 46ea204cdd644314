"""A scenario of a test in Python as a row, by what its runs came to: what tables, baselines and the trend are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from llmproxy.report.forms.intervals import wilson
from llmproxy.report.revive import is_amount, is_of

_KINDS = {
    "scenario": "str", "status": "str", "runs": "int | None", "passed": "int | None", "rate": "float | None", "cost_usd": "str | None",
    "latency_ms": "float | None",
}  # fmt: skip
"""Of a row that was kept: what its values are."""


def check_row(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row that was read if it is one. Raises TypeError."""
    for name, kind in _KINDS.items():
        value = row.get(name)
        if not is_of(value, kind) or (name == "cost_usd" and value is not None and not is_amount(value)):
            raise TypeError(f"`{name}` of a scenario is {value!r:.60}, which is no {kind}")
    return row


def row_of_runs(name: str, runs: Sequence[Mapping[str, Any]], *, good: bool | None = None) -> Mapping[str, Any]:
    """Return the row of a scenario whose runs are told as results; `good` says whether it passed, whatever became of them; None: if all did."""
    statuses = [str(run.get("status")) for run in runs]
    passed = statuses.count("passed")
    counted = passed + sum(status in ("failed", "agent_error") for status in statuses)
    bad = next((status for status in statuses if status not in ("passed", "skipped")), None)
    interval = wilson(passed, counted) if counted else None
    return {
        "scenario": name,
        "status": "passed" if (not bad if good is None else good) else bad or "failed",
        "runs": len(runs),
        "passed": passed,
        "rate": passed / counted if good is None and counted == len(runs) else None,
        "interval": None if interval is None else (interval.low, interval.high),
        "cost_usd": _mean_cost(runs),
    }


def _mean_cost(runs: Sequence[Mapping[str, Any]]) -> str | None:
    """Return US dollars of the agent in a run, the mean of several; None where one of them does not say it."""
    costs = [run.get("cost_usd") for run in runs]
    known = [Decimal(cost) for cost in costs if cost is not None]
    return format(sum(known, Decimal(0)) / len(known), "f") if known and len(known) == len(costs) else None
