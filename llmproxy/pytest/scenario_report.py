"""Report of scenarios in pytest: the table at the end, and a failed test's sections about its runs.

Imported when a scenario has run, or a test uses the fixture `scenario_reporter`. Runs travel from xdist's workers to
the controller as plain values (`serialize_scenario_run`, `deserialize_scenario_run`).
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

from llmproxy.amount_formatting import mean_if_all_known
from llmproxy.core.secrets.redact import Redactor
from llmproxy.protocol import AGENT
from llmproxy.report.events import JudgedCriterion, PartyUse, Started, Status
from llmproxy.report.run_tree import EventsGroupedByRun, Run, describe_assertion, format_conversation, to_plain
from llmproxy.scenario.repeats.verdicts import RunStatusCounts
from llmproxy.scenario.types import ScenarioResult

HEADER = "=== Scenario Test Report ==="
_COLOURS = {"green": "32", "yellow": "33", "red": "31", "cyan": "36"}
_GOOD, _FAIR = 100, 70

_SHOWN = 5
_BAD = (Status.FAILED, Status.AGENT_ERROR, Status.ENVIRONMENT_ERROR)


class ScenarioReporter:
    def __init__(self) -> None:
        self.results: list[dict[str, Any]] = []
        """``{"scenario": executor, "result": ScenarioResult}``, in the order of their ends."""

    def add_result(self, scenario: Any, result: ScenarioResult) -> None:
        self.results.append({"scenario": scenario, "result": result})

    def get_summary(self) -> dict[str, float]:
        """Return total, passed, failed and success_rate (per cent; 0 without runs)."""
        total = len(self.results)
        passed = sum(bool(each["result"].success) for each in self.results)
        rate = round(passed / total * 100, 2) if total else 0
        return {"total": total, "passed": passed, "failed": total - passed, "success_rate": rate}

    def print_report(self, write: Callable[[str], object] = print, *, colour: bool | None = None) -> None:
        coloured = sys.stdout.isatty() if colour is None else colour

        def paint(text: str, name: str) -> str:
            return f"\x1b[{_COLOURS[name]}m{text}\x1b[0m" if coloured else text

        for line in map(Redactor(os.environ).text, self._format_report(paint) if self.results else ()):
            write(line)

    def _format_report(self, paint: Callable[[str, str], str]) -> Iterator[str]:
        found = self.get_summary()
        rate = found["success_rate"]
        yield ""
        yield paint(HEADER, "cyan")
        yield f"Total Scenarios: {found['total']}"
        yield f"Passed: {paint(str(found['passed']), 'green')}"
        yield f"Failed: {paint(str(found['failed']), 'red' if found['failed'] else 'green')}"
        level = "green" if rate >= _GOOD else "yellow" if rate >= _FAIR else "red"
        yield f"Success Rate: {paint(f'{rate:g}%', level)}"
        for number, each in enumerate(self.results, 1):
            yield ""
            yield from _format_run(number, each["scenario"], each["result"], paint)


def _format_run(number: int, scenario: Any, result: ScenarioResult, paint: Callable[[str, str], str]) -> Iterator[str]:
    word, colour = ("PASSED", "green") if result.success else ("FAILED", "red")
    errors = (Status.AGENT_ERROR, Status.ENVIRONMENT_ERROR)
    kind = result.status.value.replace("_", " ") if result.status in errors else ""
    times = ""
    if result.total_time is not None and result.agent_time is not None:
        times = f" in {result.total_time:.2f}s (agent: {result.agent_time:.2f}s)"
    yield f"{number}. {_format_name(scenario)} - {paint(word, colour)}{f' ({kind})' if kind else ''}{times}"
    reasoning = result.reasoning or ""
    yield paint(f"   Reasoning: {reasoning.partition('\n')[0] if result.error else reasoning}", colour)
    judged = len(result.passed_criteria) + len(result.failed_criteria) + len(result.inconclusive_criteria)
    if judged:
        yield paint(f"   Passed Criteria: {len(result.passed_criteria)}/{judged}", "green")
    if result.failed_criteria:
        yield paint(f"   Failed Criteria: {len(result.failed_criteria)}", "red")
    if result.inconclusive_criteria:
        yield paint(f"   Inconclusive Criteria: {len(result.inconclusive_criteria)}", "yellow")


def _format_name(scenario: Any) -> str:
    """Return a scenario's name, of one of several runs with its number; one from another process has it already."""
    options = getattr(scenario, "options", None)
    number = f" [{options.sample}/{options.runs}]" if options is not None and options.runs > 1 else ""
    return f"{scenario.name}{number}"


_KEPT = {
    "success", "reasoning", "passed_criteria", "failed_criteria", "inconclusive_criteria", "total_time", "agent_time",
    "status", "usage", "cassette", "run_id", "error",
}  # fmt: skip


def serialize_scenario_run(scenario: Any, result: ScenarioResult) -> dict[str, Any]:
    return {"name": _format_name(scenario), "result": to_plain(result.model_dump(include=_KEPT, warnings=False))}


def deserialize_scenario_run(tree: Mapping[str, Any]) -> tuple[Any, ScenarioResult]:
    return SimpleNamespace(name=tree["name"]), ScenarioResult(messages=[], **tree["result"])


def prefix_junit_properties(prefix: str, **known: str | None) -> list[tuple[str, object]]:
    return [(f"{prefix}.{name}", value) for name, value in known.items() if value]


def list_junit_run_properties(scenario: Any, result: ScenarioResult, number: int) -> list[tuple[str, object]]:
    return prefix_junit_properties(
        "scenario" if number == 1 else f"scenario.{number}",
        name=str(scenario.name),
        status=to_plain(result.status),
        cassette=result.cassette,
        cost_usd=sum(result.usage.values(), PartyUse()).cost_usd,
        run_id=result.run_id,
    )


def build_scenario_rows(
    run_tree: EventsGroupedByRun, known: Iterable[Mapping[str, Any]] = ()
) -> list[Mapping[str, Any]]:
    """Return a row for each scenario of a run tree, for the end of a report; `known` rows are kept."""
    made = {str(row["scenario"]): row for row in known}
    scenarios = run_tree.scenarios()
    names = Counter(scenario.id for scenario in scenarios)
    for number, scenario in enumerate(scenarios, 1):
        if scenario.id in made:
            continue
        name = scenario.id if names[scenario.id] == 1 else f"{scenario.id} [{number}: {scenario.runs[0].started.place}]"
        found = RunStatusCounts.from_statuses([run.status for run in scenario.runs])
        made[name] = found.to_row(name, scenario.status.value) | {"flaky": 0}  # a member that readers of reports know
    return list(made.values())


def build_test_row(name: str, results: Sequence[ScenarioResult], *, passed: bool) -> Mapping[str, Any]:
    """Return the row of a case of a test in Python, ``test_weather[rome]``, from its runs. `passed` counts, regardless
    of the runs: a test may expect a failure. So the rate of its runs is not the test's.
    """
    statuses = [each.status or Status.FAILED for each in results]
    bad = next((each for each in statuses if each not in (Status.PASSED, Status.SKIPPED)), Status.FAILED)
    costs = [each.usage.get(AGENT, PartyUse()).cost_usd for each in results]
    cost = mean_if_all_known([None if each is None else Decimal(each) for each in costs])
    row = RunStatusCounts.from_statuses(statuses).to_row(name, (Status.PASSED if passed else bad).value)
    return row | {"rate": None, "cost_usd": None if cost is None else format(cost, "f")}


def build_failed_scenario_sections(
    runs: Sequence[Run], results: Mapping[str, ScenarioResult], shown: str = ""
) -> list[tuple[str, str]]:
    """Return a failed test's sections about its failed runs, or all; without `shown` misses; results by run id."""
    chosen = [run for run in runs if run.status in _BAD] or list(runs)
    found = [_build_run_section(run, results.get(run.started.run_id), shown) for run in chosen[:_SHOWN]]
    if len(chosen) > _SHOWN:
        more = f"... and {len(chosen) - _SHOWN} more runs; --scenario-report html=FILE has them all"
        found.append(("scenarios", more))
    redact = Redactor(os.environ).text
    return [(redact(title), redact(text)) for title, text in found]


def _build_run_section(run: Run, result: ScenarioResult | None, shown: str) -> tuple[str, str]:
    start = run.started
    number = f" [{start.sample}/{start.runs}]" if start.runs > 1 else ""
    title = f'scenario "{start.name}"{number}: {run.status.value.replace("_", " ")}'
    parts = [format_conversation(run) or "(nobody said anything)"]
    misses = run.finished.misses if run.finished else ()
    untold = [miss for miss in misses if not _is_already_shown(miss, shown)]
    if run.reason and not (misses and _is_already_shown(run.reason, shown)):
        parts.append(f"why: {run.reason.splitlines()[0] if any(miss in run.reason for miss in misses) else run.reason}")
    wrong = [
        describe_assertion(each) for step in run.steps for each in step.assertions if each.status is not Status.PASSED
    ]
    parts += ["\n".join(wrong)] if wrong else []
    if criteria := run.criteria or _list_criteria(start, result):
        parts.append("\n".join(["criteria:", *(line for each in criteria for line in _format_criterion(each))]))
    parts += ["\n\n".join(["never recorded:", *untold])] if untold else []
    parts.append(f"run it again: {run.rerun}")
    return title, "\n\n".join(parts)


def _is_already_shown(text: str, shown: str) -> bool:
    """Return whether a failed test already shows a text, line by line (pytest puts an ``E`` before each)."""
    return all(line.strip() in shown for line in text.splitlines())


def _list_criteria(start: Started, result: ScenarioResult | None) -> list[JudgedCriterion]:
    states = ("passed", "failed", "inconclusive")
    found = [(text, state) for state in states for text in getattr(result, f"{state}_criteria", ())]
    found = found or [(text, "not judged") for text in start.criteria]
    return [JudgedCriterion(id=f"c{n}", text=text, status=status) for n, (text, status) in enumerate(found, 1)]


def _format_criterion(criterion: JudgedCriterion) -> Iterator[str]:
    yield f"  {criterion.status:<12} {criterion.text}"
    more = {"evidence": criterion.evidence, "because": criterion.reason, "votes": ", ".join(criterion.votes)}
    yield from (f"{'':15}{name}: {text}" for name, text in more.items() if text)
