"""Differences of another model from the recorded one, over several runs: each with its rate, and usage with intervals.

One run of a model says little: so a difference is reported with the number of runs that had it, and its 95 % interval.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

from llmproxy.amount_formatting import dollars, format_count, number
from llmproxy.report.scenario_rows import ConfidenceInterval, wilson
from llmproxy.scenario.repeats.statistics import bootstrap_confidence_interval, mean
from llmproxy.trace.comparing.behavior_comparison import (
    BehaviorChange,
    RunBehaviorSummary,
    compare_behaviors,
    count_calls_per_tool,
)

_SEED = 7  # the same runs give the same interval
_FEWEST = 3  # runs for the interval of a mean


@dataclass(frozen=True, slots=True)
class RunAndRecordedBehavior:
    name: str
    policy: RunBehaviorSummary
    recorded: RunBehaviorSummary
    """The recorded run, with this run's values: its folder, its day."""
    verdict: str = ""  # ``pass``, ``fail``, ``exit 0``; empty if not judged
    unanswered_tools: tuple[str, ...] = ()

    @property
    def broke_off(self) -> bool:
        """Whether it was cut (a provider failed, Ctrl-C): missing calls say nothing about its model."""
        return not self.policy.requests or (self.recorded.ended and not self.policy.ended)


@dataclass(frozen=True, slots=True)
class BehaviorVsRecording:
    parent: str  # cassette of the recorded run
    recorded: RunBehaviorSummary
    runs: tuple[RunAndRecordedBehavior, ...]
    verdict: str = ""

    @property
    def completed_runs(self) -> tuple[RunAndRecordedBehavior, ...]:
        return tuple(run for run in self.runs if not run.broke_off)

    @property
    def behavior_change_counts(self) -> list[tuple[BehaviorChange, int]]:
        found: Counter[BehaviorChange] = Counter()
        for run in self.completed_runs:
            changes = set(compare_behaviors(run.recorded, run.policy))
            if self.verdict and run.verdict and run.verdict != self.verdict:
                changes.add(BehaviorChange("verdict", old=self.verdict, new=run.verdict))
            found.update(changes)
        return sorted(found.items(), key=lambda pair: (-pair[1], pair[0]))

    @property
    def verdicts(self) -> Counter[str]:
        return Counter(run.verdict for run in self.completed_runs if run.verdict)

    @property
    def unanswered_tools(self) -> Counter[str]:
        return Counter(name for run in self.runs for name in run.unanswered_tools)

    def to_json(self) -> dict[str, object]:
        many = len(self.completed_runs)
        return {
            "compared": many,
            "cassette": self.parent,
            "recorded": {**self.recorded.to_json(), "verdict": self.verdict or None},
            "runs": [
                {
                    **run.policy.to_json(),
                    "cassette": run.name,
                    "verdict": run.verdict or None,
                    "unknown": list(run.unanswered_tools),
                    "broke_off": run.broke_off,
                }
                for run in self.runs
            ],
            "changes": [
                {**change.to_json(), "runs": times, "of": many, "interval": _interval_ends(wilson(times, many))}
                for change, times in self.behavior_change_counts
            ],
            "tools": {tool: {"recorded": before, "mean": after} for tool, before, after in self._tool_count_rows()},
            "verdicts": [
                {"verdict": verdict, "runs": times, "of": many, "interval": _interval_ends(wilson(times, many))}
                for verdict, times in sorted(self.verdicts.items())
            ],
            "used": {
                name: {
                    "recorded": None if before is None else float(before),
                    "mean": found and mean(found),
                    "interval": _interval_ends(_mean_interval(found)),
                }
                for name, before, found in self._list_resource_usage()
            },
            "unknown_tools": dict(sorted(self.unanswered_tools.items())),
        }

    def summary_lines(self) -> Iterator[str]:
        many = len(self.completed_runs)
        models = ", ".join(dict.fromkeys(name for run in self.runs for name in run.policy.models)) or "a model"
        before = ", ".join(self.recorded.models) or "a model"
        yield f"{models} in {format_count(many, 'run')} against {before} in cassette {self.parent}:"
        if broken := len(self.runs) - many:
            yield f"  {format_count(broken, 'run')} broke off before the model had said its last words: not compared"
        changes = self.behavior_change_counts
        if many and not changes:
            yield "  the same calls in the same order, the same last words"
        for change, times in changes:
            yield f"  {_format_x_of_n(times, many)}  {change.describe()}"
        for name, recorded, found in self._list_resource_usage() if many else ():
            shown = dollars if name == "cost_usd" else _format_number
            told = "unknown" if not found else shown(mean(found) or 0) + _format_interval(_mean_interval(found), shown)
            before = "unknown" if recorded is None else shown(recorded)
            yield f"  {name.replace('_usd', '').replace('_', ' ')}: {before} -> {told}"
        beside = f" (recorded: {self.verdict})" if self.verdict else ""
        for verdict, times in sorted(self.verdicts.items()):
            yield f"  {_format_x_of_n(times, many)}  {verdict}{beside}"
        if self.unanswered_tools:
            names = ", ".join(f"{name} {times}x" for name, times in self.unanswered_tools.most_common())
            yield f"  calls that no recording answers there: {names}"

    def _tool_count_rows(self) -> Iterator[tuple[str, int, float]]:
        before = count_calls_per_tool(self.recorded.calls)
        after = [count_calls_per_tool(run.policy.calls) for run in self.completed_runs]
        for tool in sorted(before.keys() | {name for each in after for name in each}):
            yield tool, before[tool], sum(each[tool] for each in after) / max(len(after), 1)

    def _list_resource_usage(self) -> Iterator[tuple[str, float | Decimal | None, list[float]]]:
        """Yield usage: name, of the recorded run, of each run; no values if one is unknown."""
        for name, of in _USED:
            found = [of(run.policy) for run in self.completed_runs]
            known = [] if any(each is None for each in found) else [float(each) for each in found if each is not None]
            yield name, of(self.recorded), known


_USED: tuple[tuple[str, Callable[[RunBehaviorSummary], int | Decimal | None]], ...] = (
    ("requests", lambda run: run.requests),
    ("tokens_in", lambda run: run.tokens_in),
    ("tokens_out", lambda run: run.tokens_out),
    ("cost_usd", lambda run: run.cost),
)


def _format_x_of_n(times: int, many: int) -> str:
    interval = wilson(times, many)
    if many == 1 or interval is None:
        return f"{times} of {many}"
    return f"{times} of {many} ({interval.low:.0%} to {interval.high:.0%})"


def _mean_interval(values: Sequence[float]) -> ConfidenceInterval | None:
    if len(values) < _FEWEST:
        return None
    return bootstrap_confidence_interval(values, mean, random.Random(_SEED))  # noqa: S311 - a bootstrap


def _interval_ends(interval: ConfidenceInterval | None) -> list[float] | None:
    return None if interval is None else [round(interval.low, 6), round(interval.high, 6)]


def _format_interval(interval: ConfidenceInterval | None, shown: Callable[[float], str]) -> str:
    ends = [] if interval is None else [shown(interval.low), shown(interval.high)]
    return f" ({ends[0]} to {ends[1]})" if len(set(ends)) > 1 else ""


def _format_number(value: float | Decimal) -> str:
    return number(int(value)) if value == int(value) else f"{float(value):,.1f}"
