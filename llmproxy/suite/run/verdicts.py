"""Verdicts of scenarios from their runs, and the exit code of a test. Pure.

Runs that say nothing about the agent (the proxy, the store or the provider failed, a request was never recorded) are
not counted, and make the scenario an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from llmproxy.amount_formatting import mean_if_all_known
from llmproxy.errors import Exit, LLMProxyError
from llmproxy.protocol import AGENT
from llmproxy.report.events import Status
from llmproxy.scenario.repeats.verdicts import COUNTED, VerdictCounts, decide_verdict
from llmproxy.suite.reading.load import SuiteCase
from llmproxy.suite.run.case_runner import CaseResult

_ORDER = (Exit.USAGE, Exit.ENVIRONMENT, Exit.MISS, Exit.FAILED, Exit.NOTHING)


def get_matrix_position(case: SuiteCase) -> dict[str, Any]:
    axes = {name: str(case.values.get(name)) for name in case.scenario.matrix or ()}
    return {"axes": axes} if axes else {}


def build_row(scenario: str, ran: Sequence[CaseResult], least: float = 1.0) -> dict[str, Any]:
    """Return a scenario's row; `least` is the required share of passed runs."""
    found = VerdictCounts.from_statuses([each.status for each in ran])
    counted = found.counted_runs
    made = found.to_row(scenario, decide_verdict(found, least).value)
    made["pass_all"] = found.passed == counted if counted else None
    made["min_pass_rate"] = least
    judged = [each for each in ran if each.status in COUNTED]
    parties = [{} if each.wire is None else each.wire.parties for each in judged]
    cost = mean_if_all_known([each[AGENT].whole_cost if AGENT in each else None for each in parties])
    made["cost_usd"] = None if cost is None else format(cost, "f")  # of a run's calls of the agent, as recorded
    made["latency_ms"] = mean_if_all_known([each.latency for each in judged])
    if len(ran) > 1:
        made["pass_hat"] = {k: found.pass_hat_k(k) for k in range(1, counted + 1)}
        made["errors"] = _list_distinct_reasons(ran)
        made["told"] = _describe_rate(made, counted) + _describe_recording_dates(ran)
    return made


def _describe_rate(made: dict[str, Any], counted: int) -> str:
    if made["rate"] is None:
        return "no run could be judged"
    low, high = made["interval"]
    every = "yes" if made["pass_all"] else "no"
    told = (
        f"{made['passed']} of {counted} runs passed ({made['rate']:.0%}, 95 % interval {low:.0%} to {high:.0%}); all "
        f"passed: {every}"
    )
    if counted < made["runs"]:
        told += f"; {made['runs'] - counted} of {made['runs']} could not be judged"
    return told


def _describe_recording_dates(ran: Iterable[CaseResult]) -> str:
    days = sorted(
        {datetime.fromtimestamp(each.recorded_at, UTC).date() for each in ran if each.recorded_at is not None}
    )
    if not days:
        return ""
    when = f"on {days[0]}" if len(days) == 1 else f"between {days[0]} and {days[-1]}"
    return f"; the samples were recorded {when}"


def _list_distinct_reasons(ran: Iterable[CaseResult]) -> list[str]:
    found = (
        each.reasoning or (str(each.error) if each.error else "") for each in ran if each.status is not Status.PASSED
    )
    return list(dict.fromkeys(text.splitlines()[0] for text in found if text))


def choose_exit_code(rows: Iterable[dict[str, Any]], ran: Sequence[CaseResult], *, trouble: bool = False) -> Exit:
    """Return the exit code that decides what to do first; `trouble`: something outside the runs failed."""
    found = {Exit.ENVIRONMENT} if trouble else set()
    if ran and all(each.status is Status.SKIPPED for each in ran):
        found.add(Exit.NOTHING)
    for each in ran:
        if each.status is Status.ENVIRONMENT_ERROR:
            known = each.error.exit_code if isinstance(each.error, LLMProxyError) else Exit.ENVIRONMENT
            found.add(known if known in (Exit.USAGE, Exit.MISS) else Exit.ENVIRONMENT)
    bad = (Status.FAILED.value, Status.AGENT_ERROR.value, Status.FLAKY.value)
    if any(made["status"] in bad for made in rows):
        found.add(Exit.FAILED)
    return next((code for code in _ORDER if code in found), Exit.OK)
