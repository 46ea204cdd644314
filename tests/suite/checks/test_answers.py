"""What is said about an answer: its text, the JSON in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmproxy.errors import MachineError, SuiteError
from llmproxy.report.events import Status
from llmproxy.suite.checks.chat_step_assertions import SuiteSnapshotFile, check_text, refuse_snapshot_update_in_ci
from llmproxy.suite.matchers.apply import all_assertions_hold
from llmproxy.suite.matchers.variable_references import CaseVariables
from llmproxy.suite.schema.assertions import Response
from tests.suite import rig
from tests.suite.run.test_runner import suite

ANSWER = "Task 'Buy milk' created successfully."


@pytest.mark.parametrize(("wanted", "answer", "holds"), [
    ({"contains": ["created", "successfully"]}, ANSWER, True),
    ({"contains": ["created", "failed"]}, ANSWER, False),
    ({"contains": "CREATED"}, ANSWER, False),
    ({"contains": "CREATED", "ignoreCase": True}, ANSWER, True),
    ({"notContains": ["error", "failed"]}, ANSWER, True),
    ({"regex": "Task .* created"}, ANSWER, True),
    ({"regex": "^created"}, ANSWER, False),
    ({"json": {"a.b": {"gt": 1}}}, '```json\n{"a": {"b": 2}}\n```', True),
    ({"json": {"a.b": 3}}, '{"a": {"b": 2}}', False),
    ({"json": {"$": {"eq": [1]}}}, "[1]", True),
    ({"json": {"a": 1}}, "no json", False),
    ({"anyOf": [{"contains": "x"}, {"contains": "milk"}]}, ANSWER, True),
    ({"not": {"contains": "milk"}}, ANSWER, False),
])  # fmt: skip
def test_text_is_matched(wanted: object, answer: str, holds: bool) -> None:
    """And what does not hold shows the answer."""
    found = check_text(Response.model_validate(wanted), answer, CaseVariables())
    assert all_assertions_hold(found) is holds
    for each in found:
        if each.status is Status.FAILED:
            assert any(word in each.message for word in ("milk", "found 2", "no JSON")), each.message


STEP = "{chat: x, label: first, response: {snapshot: true}}"


def test_a_snapshot_is_stored_then_compared(tmp_path: Path) -> None:
    """Without one it is an error; `--update` stores it; afterwards a difference is a failure that shows both."""

    def run(answer: str, *, update: bool = False) -> rig.Result:
        return rig.run(rig.cases_of(tmp_path, suite(rig.echo(tmp_path, f"return {answer!r}"), STEP)), update=update)

    missing = run("hello")
    assert (missing.statuses, "--update" in missing.why) == (["environment_error"], True)
    assert not list(tmp_path.glob("*.snapshots.json"))
    assert run("hello", update=True).statuses == ["passed"]
    assert run("hello  ").statuses == ["passed"]
    other = run("goodbye")
    assert other.statuses == ["failed"]
    assert "hello" in other.why
    assert "goodbye" in other.why


def test_a_snapshot_has_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor one that only the environment knows; and a snapshot that has one already still fits."""
    monkeypatch.setenv("SHOP_TOKEN", "bq7xk2mz9w4tr0")
    key = "sk-proj-Zq8Jw3Lx7Vn2Rt5Yb9Kd4Mf6Hg1Pc0"

    def run(*, update: bool = False) -> list[str]:
        answer = rig.echo(tmp_path, f"return 'use {key} and bq7xk2mz9w4tr0'")
        return rig.run(rig.cases_of(tmp_path, suite(answer, STEP)), update=update).statuses

    assert run(update=True) == ["passed"]
    (path,) = tmp_path.glob("*.snapshots.json")
    assert '"response": "use [REDACTED] and [REDACTED]"' in path.read_text()
    assert run() == ["passed"]
    path.write_text(path.read_text().replace("use [REDACTED]", f"use {key}"))
    assert run() == ["passed"]
    assert run(update=True) == ["passed"]
    assert key not in path.read_text()


def test_runs_that_answer_differently_have_no_snapshot(tmp_path: Path) -> None:
    """`--update` says so instead of storing the last answer, with which the next test would be flaky."""

    def update(body: str) -> rig.Result:
        twice = suite(rig.echo(tmp_path, body), STEP, scenario="    runs: 2\n")
        return rig.run(rig.cases_of(tmp_path, twice), update=True)

    found = update("answer.n = getattr(answer, 'n', 0) + 1; return f'number {answer.n}'")
    assert sorted(found.statuses) == ["environment_error", "passed"]
    assert "the scenario's runs differ" in found.why
    assert update("return 'x'").statuses == ["passed", "passed"]


def test_a_file_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    """It is neither taken for an empty one nor written over."""
    path = tmp_path / "t.suite.snapshots.json"
    shapes = ('{"version": 1, "scenarios": {"a": []}}', '{"version": 1, "scenarios": {"a": {"1": []}}}')
    for text in ("{", "[]", '{"version": 99, "scenarios": {}}', *shapes):
        path.write_text(text)
        with pytest.raises(SuiteError, match=path.name):
            SuiteSnapshotFile.load_for_suite(tmp_path / "t.suite.yaml")


def test_only_changes_are_written(tmp_path: Path) -> None:
    silent = SuiteSnapshotFile.load_for_suite(tmp_path / "t.yaml")
    silent.store_value("a", "1", "response", "x")
    assert silent.save_changes() is False
    asked = SuiteSnapshotFile.load_for_suite(tmp_path / "t.yaml", update=True)
    asked.store_value("a", "1", "response", "x")
    assert (asked.save_changes(), asked.save_changes()) == (True, False)
    asked.store_value("a", "1", "response", "x")
    assert asked.save_changes() is False
    nowhere = SuiteSnapshotFile(asked.path / "t.json", update=True, changed=True)
    with pytest.raises(MachineError, match="cannot write"):
        nowhere.save_changes()


def test_ci_refuses() -> None:
    """A snapshot that nobody looked at proves nothing."""
    refuse_snapshot_update_in_ci({"CI": "false"})
    refuse_snapshot_update_in_ci({})
    with pytest.raises(SuiteError, match="CI"):
        refuse_snapshot_update_in_ci({"CI": "true"})


def test_tools_need_traffic(tmp_path: Path) -> None:
    """A snapshot of calls that were not seen is an error, also when it is to be stored."""
    text = suite(rig.echo(tmp_path), "{chat: x, toolsSnapshot: names}")
    found = rig.run(rig.cases_of(tmp_path, text), update=True)
    assert found.told.assertion("toolsSnapshot").status is Status.ENVIRONMENT_ERROR
