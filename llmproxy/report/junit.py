"""JUnit XML in the form read by Jenkins, GitLab, GitHub's actions and Azure: one `testcase` a run.

A failed run has a `failure`; a crashed agent and a failed environment an `error`, of type ``agent_error`` and
``environment_error``.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from xml.etree import ElementTree as ET

from llmproxy.lazy_regex import late
from llmproxy.report.events import Status
from llmproxy.report.run_tree import (
    EventsGroupedByRun,
    Run,
    RunsOfOneScenario,
    describe_abnormal_test_end,
    describe_assertion,
    describe_replay_match_kinds,
    format_conversation,
)

WHOLE = "the test as a whole"
"""Test case for a bad end that no run explains."""

_KINDS = {Status.FAILED: "failure", Status.AGENT_ERROR: "error", Status.ENVIRONMENT_ERROR: "error"}
_ODD = late("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters invalid in XML 1.0."""


def render_junit(run_tree: EventsGroupedByRun) -> bytes:
    root = ET.Element("testsuites", name=_escape_text(run_tree.title))
    scenarios = run_tree.scenarios()
    for name in dict.fromkeys(scenario.suite for scenario in scenarios):
        root.append(_build_suite(name or run_tree.title, [each for each in scenarios if each.suite == name], run_tree))
    ended = run_tree.completed
    seconds = ended.seconds if ended else sum(float(suite.get("time", "0")) for suite in root)
    if (why := describe_abnormal_test_end(ended)) and not any(root.iter("error")):
        # One case for the whole test, so that this file alone does not look like a success.
        title = _escape_text(run_tree.title)
        about = {"name": title, "tests": "1", "failures": "0", "errors": "1", "skipped": "0", "time": "0.000"}
        case = ET.SubElement(ET.SubElement(root, "testsuite", about), "testcase", name=WHOLE, classname=title)
        message = _escape_text(why.partition("\n")[0])
        ET.SubElement(case, "error", type=Status.ENVIRONMENT_ERROR.value, message=message).text = _escape_text(why)
    for name in ("tests", "failures", "errors"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root.iter("testsuite"))))
    root.set("time", f"{seconds:.3f}")
    ET.indent(root)
    return bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True))


def _build_suite(name: str, scenarios: list[RunsOfOneScenario], run_tree: EventsGroupedByRun) -> ET.Element:
    runs = [(scenario, run) for scenario in scenarios for run in scenario.runs]
    kinds = [_choose_outcome_element_name(scenario, run) for scenario, run in runs]
    seconds = sum((run.finished.total_seconds or 0.0) if run.finished else 0.0 for _, run in runs)
    counts = {
        "tests": len(runs),
        "failures": kinds.count("failure"),
        "errors": kinds.count("error"),
        "skipped": sum(run.status is Status.SKIPPED for _, run in runs),
    }
    about = {"name": _escape_text(name), **{key: str(number) for key, number in counts.items()}}
    suite = ET.Element("testsuite", about, time=f"{seconds:.3f}")
    if run_tree.selected and run_tree.selected.at:
        suite.set("timestamp", datetime.fromtimestamp(run_tree.selected.at, UTC).strftime("%Y-%m-%dT%H:%M:%S"))
    suite.extend(_build_case(name, scenario, run) for scenario, run in runs)
    return suite


def _build_case(suite: str, scenario: RunsOfOneScenario, run: Run) -> ET.Element:
    title = scenario.id if scenario.id == scenario.name else f"{scenario.id} {scenario.name}"
    title += f" [{run.started.sample} of {run.started.runs}]" if run.started.runs > 1 else ""
    case = ET.Element("testcase", name=_escape_text(title), classname=_escape_text(suite))
    ended = run.finished
    if ended and ended.total_seconds is not None:
        case.set("time", f"{ended.total_seconds:.3f}")
    if run.status is Status.SKIPPED:
        ET.SubElement(case, "skipped", message=_escape_text(run.reason))
    elif kind := _choose_outcome_element_name(scenario, run):
        lines = list(_list_failure_reasons(run))
        message = _escape_text(lines[0] if lines else run.status.value)
        ET.SubElement(case, kind, type=run.status.value, message=message).text = _escape_text("\n".join(lines))
    partly = ended and (ended.bound or ended.carried or ended.stale or ended.dealt)
    bound = describe_replay_match_kinds(ended) if ended and partly else ""
    labels = ended.labels if ended else ()
    if run.status in _KINDS and _choose_outcome_element_name(scenario, run) is None:
        passes = f"{run.status.value}, and the scenario passes with its other runs"
        labels = (passes, *_list_failure_reasons(run), *labels)
    if said := "\n".join(filter(None, (bound, *labels, format_conversation(run)))):
        ET.SubElement(case, "system-out").text = _escape_text(said)
    return case


def _choose_outcome_element_name(scenario: RunsOfOneScenario, run: Run) -> str | None:
    """Return the JUnit outcome of a run; none for a failed one whose scenario passes (`minPassRate`)."""
    return None if scenario.status is Status.PASSED else _KINDS.get(run.status)


def _list_failure_reasons(run: Run) -> Iterator[str]:
    failed = run.failed_assertions
    if run.reason and not failed:
        yield run.reason
    for step, each in failed:
        yield f"{step.label or f'step {step.index + 1}'}: {describe_assertion(each)}"
    for step in run.steps:
        if step.message and step.status not in (Status.PASSED, Status.SKIPPED):
            yield f"{step.label or f'step {step.index + 1}'}: {step.message}"
    for criterion in run.criteria:
        if criterion.status != "passed":
            yield f"{criterion.status}: {criterion.text}: {criterion.reason}"
            if criterion.evidence:
                yield f"    {criterion.evidence!r}"
    if run.finished:
        yield from run.finished.misses
    if run.rerun:
        yield f"again: {run.rerun}"


def _escape_text(text: str) -> str:
    return _ODD.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
