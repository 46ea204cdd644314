"""The report of scenarios, and what a failed test says: the texts. That pytest shows them is tested in real processes."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from llmproxy.pytest.scenario_report import (
    ScenarioReporter,
    build_failed_scenario_sections,
    build_scenario_rows,
    deserialize_scenario_run,
    list_junit_run_properties,
    serialize_scenario_run,
)
from llmproxy.report.events import Finished, JudgedCriterion, Message, PartyUse, Started, Status
from llmproxy.report.run_tree import EventsGroupedByRun
from llmproxy.scenario.types import ScenarioResult


def result(success: bool = True, **more: Any) -> ScenarioResult:
    return ScenarioResult(**{"success": success, "messages": [], "reasoning": "so it is", **more})


def report(*results: ScenarioResult, colour: bool = False) -> list[str]:
    reporter, lines = ScenarioReporter(), list[str]()
    for each in results:
        reporter.add_result(SimpleNamespace(name="refund"), each)
    reporter.print_report(lines.append, colour=colour)
    return lines


def test_nothing_is_printed_when_nothing_ran() -> None:
    assert report() == []
    assert ScenarioReporter().get_summary() == {"total": 0, "passed": 0, "failed": 0, "success_rate": 0}


def test_the_report_has_the_original_s_words() -> None:
    """Times only where both are known; criteria that nobody decided are no passes."""
    good = result(total_time=1.239, agent_time=0.5, passed_criteria=["a", "b"])
    decided: dict[str, Any] = {"passed_criteria": ["a"], "failed_criteria": ["b"], "inconclusive_criteria": ["c"]}
    bad = result(success=False, total_time=1.0, **decided)
    assert report(good, bad) == [
        "", "=== Scenario Test Report ===", "Total Scenarios: 2", "Passed: 1", "Failed: 1", "Success Rate: 50%", "",
        "1. refund - PASSED in 1.24s (agent: 0.50s)", "   Reasoning: so it is", "   Passed Criteria: 2/2", "",
        "2. refund - FAILED", "   Reasoning: so it is", "   Passed Criteria: 1/3", "   Failed Criteria: 1",
        "   Inconclusive Criteria: 1",
    ]  # fmt: skip


@pytest.mark.parametrize(("passed", "failed", "code"), [(3, 0, "32"), (7, 3, "33"), (2, 1, "31")])
def test_the_rate_has_a_colour_on_a_terminal(passed: int, failed: int, code: str) -> None:
    """Green at 100 %, yellow from 70 %, red below."""
    lines = report(*[result()] * passed, *[result(success=False)] * failed, colour=True)
    assert f"\x1b[{code}m" in next(line for line in lines if line.startswith("Success Rate"))


def test_an_error_is_told_by_its_first_line_and_its_kind() -> None:
    """A miss explains itself over many lines, which stand in the failure already."""
    lines = report(result(success=False, status=Status.ENVIRONMENT_ERROR, error="x", reasoning="one\ntwo"))
    assert "1. refund - FAILED (environment error)" in lines
    assert "   Reasoning: one" in lines


def test_a_run_travels_as_plain_values() -> None:
    third = SimpleNamespace(name="refund", options=SimpleNamespace(sample=2, runs=3))
    used = {"agent": PartyUse(calls=1, cost_usd="0.10")}
    packed = serialize_scenario_run(
        third, result(status=Status.AGENT_ERROR, success=False, reasoning="\ud800", usage=used)
    )
    who, back = deserialize_scenario_run(json.loads(json.dumps(packed)))
    found = (who.name, back.success, back.status, back.reasoning, back.usage)
    assert found == ("refund [2/3]", False, Status.AGENT_ERROR, "\\ud800", used)


def test_properties_leave_out_what_is_unknown() -> None:
    """A cost of which a part is unknown is no cost."""
    agent, user = (PartyUse(calls=1, cost_usd=cost) for cost in ("0.10", "0.05"))
    used = {"agent": agent, "user": user, "judge": PartyUse()}
    known = result(usage=used, cassette="refund", run_id="r1")
    assert list_junit_run_properties(SimpleNamespace(name="refund"), known, 1) == [
        ("scenario.name", "refund"), ("scenario.status", "passed"), ("scenario.cassette", "refund"),
        ("scenario.cost_usd", "0.15"), ("scenario.run_id", "r1"),
    ]  # fmt: skip
    unknown = result(usage={**used, "judge": PartyUse(calls=1)}, run_id="r2")
    assert list_junit_run_properties(SimpleNamespace(name="refund"), unknown, 2) == [
        ("scenario.2.name", "refund"), ("scenario.2.status", "passed"), ("scenario.2.run_id", "r2"),
    ]  # fmt: skip


def story(*statuses: Status, **finished: Any) -> EventsGroupedByRun:
    made = EventsGroupedByRun()
    for number, status in enumerate(statuses, 1):
        who: dict[str, Any] = {"run_id": f"r{number}", "scenario": "refund"}
        more: dict[str, Any] = {"rerun": 'pytest "t.py::test_it"', "criteria": ["is polite"]}
        made.add_event(Started(**who, name="refund", sample=number, runs=len(statuses), **more))
        made.add_event(Message(run_id=who["run_id"], message={"role": "user", "content": f"hi {number}"}))
        made.add_event(Finished(**who, status=status, **finished))
    return made


def test_a_failure_tells_the_runs_that_went_wrong_with_criteria_and_evidence() -> None:
    """All runs if none did, for then something else of the test is wrong; many are cut."""
    why: dict[str, Any] = {"evidence": "“no”", "reason": "rude", "votes": ["failed", "passed"]}
    criterion = JudgedCriterion(id="c1", text="is polite", status="failed", **why)
    told = story(Status.PASSED, Status.FAILED, criteria=[criterion], reasoning="rude", misses=["m1"])
    (section,) = build_failed_scenario_sections(list(told.runs.values()), {})
    assert section[0] == 'scenario "refund" [2/2]: failed'
    assert section[1] == (
        "user: hi 2\n\nwhy: rude\n\ncriteria:\n  failed       is polite\n               evidence: “no”\n"
        "               because: rude\n               votes: failed, passed\n\nnever recorded:\n\nm1\n\n"
        'run it again: pytest "t.py::test_it"'
    )
    every = build_failed_scenario_sections(list(story(*[Status.PASSED] * 8).runs.values()), {})
    assert len(every) == 6
    assert "3 more runs" in every[-1][1]


def test_criteria_of_a_judge_without_evidence_come_from_its_result() -> None:
    """A judge of one's own lists them; one that never spoke has judged nothing."""
    runs = list(story(Status.FAILED).runs.values())
    listed = build_failed_scenario_sections(runs, {"r1": result(success=False, failed_criteria=["is polite"])})
    assert "  failed       is polite" in listed[0][1]
    assert "  not judged   is polite" in build_failed_scenario_sections(runs, {})[0][1]


def test_no_secret_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by a failed test's sections nor by the table at the end: pytest's console is one of scenarios."""
    monkeypatch.setenv("MY_TOKEN", secret := "tok7Zp9Kd3vBq8Lm2")
    told = story(Status.FAILED, reasoning=f"told {secret}")
    told.add_event(Started(run_id="r2", scenario="s", name=f"try {secret}"))
    told.add_event(Message(run_id="r2", message={"role": "assistant", "content": f"My key is {secret}"}))
    told.add_event(Finished(run_id="r2", scenario="s", status=Status.FAILED))
    sections = build_failed_scenario_sections(list(told.runs.values()), {})
    shown = "\n".join([*report(result(success=False, reasoning=f"told {secret}")), *map("\n".join, sections)])
    assert secret not in shown
    assert shown.count("[REDACTED]") == 4


def test_rows_count_each_kind_and_keep_what_is_known() -> None:
    """A rate leaves out what says nothing about the agent."""
    (row,) = build_scenario_rows(story(Status.PASSED, Status.AGENT_ERROR, Status.ENVIRONMENT_ERROR))
    assert (row["status"], row["passed"], row["agent_error"], row["rate"], row["runs"]) == ("flaky", 1, 1, 0.5, 3)
    assert build_scenario_rows(story(Status.PASSED), [{"scenario": "refund", "rate": 0.9}]) == [
        {"scenario": "refund", "rate": 0.9}
    ]
