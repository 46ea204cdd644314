"""Suites in real pytest processes: items, marks, sub-reports, collection errors; recorded once, replayed offline."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from llmproxy.pytest.suite_items import report_subtest
from llmproxy.report.events import Status
from tests.provider import Provider, step
from tests.suite import rig
from tests.support.process import ROOT, llmproxy
from tests.support.pytest_run import APP, at, run, write

SUITE = """
name: t
agent: {"python": "echo.py:answer"}
hooks:
  beforeAll: [{command: [sh, -c, "echo before >> hooks.txt"]}]
  afterAll: [{command: [sh, -c, "echo after >> hooks.txt"]}]
defaults: {observe: none}
scenarios:
  - {id: one, tags: [smoke], steps: [{chat: hello, response: {contains: hello}}]}
  - {id: two, tags: [slow-ish], runs: 2, steps: [{chat: hello, response: {contains: bye}}]}
  - {id: three, skip: not today, steps: [{chat: hello, response: {contains: bye}}]}
  - {id: four, xfail: known, steps: [{chat: hello, response: {contains: bye}}]}
  - {id: five, runs: 2, minPassRate: 0.5, steps: [{chat: "$runIndex", response: {contains: "said 1"}}]}
"""
ECHO = "def answer(message, messages, thread_id):\n    return 'you said ' + message\n"


def project(folder: Path, text: str = SUITE, name: str = "suite.yaml") -> Path:
    (folder / "echo.py").write_text(ECHO, encoding="utf-8")
    (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize("workers", [
    pytest.param((), id="one process"),
    pytest.param(("-n", "2", "--dist", "loadfile"), id="xdist", marks=pytest.mark.slow),
])  # fmt: skip
def test_each_scenario_is_an_item_and_its_runs_are_sub_reports(tmp_path: Path, workers: tuple[str, ...]) -> None:
    """Skip, xfail, the share that must pass, hooks once, what the console of suites says, and no traceback."""
    project(tmp_path)
    words = ["--strict-markers", "--junitxml=j.xml", "--scenario-report", "json=o.json", "-v"]
    result = run(tmp_path, *workers, *words)
    # two: the item and its two runs
    assert result.parseoutcomes() == {"failed": 3, "passed": 2, "skipped": 1, "xfailed": 1, "subtests": 1}
    result.stdout.fnmatch_lines([
        "*two [[]run 1/2]*", "FAIL  two [[]1/2]  (*)", "    step 1 chat: failed, 0 of 1 assertion held",
        '      !! response.contains: "bye" is not in it; it is "you said hello"',
        '      run it again: pytest "suite.yaml::two"',
        "two: 0 of 2 runs passed (0%, 95 % interval 0% to 66%); all passed: no",
    ])  # fmt: skip
    assert "Traceback" not in result.stdout.str()
    assert "pytest_items.py" not in result.stdout.str()
    assert (tmp_path / "hooks.txt").read_text().split() == ["before", "after"]
    written = json.loads((tmp_path / "o.json").read_text())
    rows = {row["scenario"]: row["status"] for row in written["summary"]}
    assert rows == {"one": "passed", "two": "failed", "four": "passed", "five": "passed"}
    cases = {case.get("name"): case for case in ET.parse(tmp_path / "j.xml").iter("testcase")}
    found = {each.get("name"): each.get("value") for each in cases["one"].iter("property")}
    assert (found["scenario.status"], found["scenario.cassette"]) == ("passed", "t/one")


@pytest.mark.parametrize(("words", "ids"), [
    (("-m", "slow-ish or smoke"), ["one", "two"]),
    (("suite.yaml::three",), ["three"]),
    (("-k", "smoke or fou"), ["one", "four"]),
])  # fmt: skip
def test_items_are_selected_as_any_test(tmp_path: Path, words: tuple[str, ...], ids: list[str]) -> None:
    """Tags are registered marks, so --strict-markers passes; collecting starts no proxy."""
    project(tmp_path)
    result = run(tmp_path, "--collect-only", "-q", "--strict-markers", *words, LLMPROXY_COMMAND="/nosuch")
    assert [line for line in result.outlines if "::" in line] == [f"suite.yaml::{each}" for each in ids]


@pytest.mark.slow
def test_a_suite_is_recorded_once_and_replayed_by_pytest_and_by_the_command(tmp_path: Path) -> None:
    """One place for recordings. What was never recorded says how to record it."""
    agent = rig.lines(tmp_path / "rows.db")
    text = f"""
name: hello
agent: {json.dumps(agent)}
scenarios:
  - {{id: greets, steps: [{{chat: "Say hello", response: {{contains: "hello"}}}}]}}
"""
    project(tmp_path, text, "greet.suite.yaml")
    missing = run(tmp_path)
    missing.assert_outcomes(failed=1)
    missing.stdout.fnmatch_lines(["*no recorded response for this request*"])
    said = missing.stdout.str()
    assert said.count("no recorded response for this request") == 1, "a miss is shown once"
    assert 'to add it: pytest "greet.suite.yaml::greets" --llmproxy-mode auto' in said
    assert "llmproxy start" not in said
    assert "llmproxy test" not in said
    with Provider([step(user="Say hello", say="hello", times=None)]) as provider:
        run(tmp_path, "--llmproxy-mode", "record", **at(provider)).assert_outcomes(passed=1)
        assert len(provider.requests) == 1
    assert list((tmp_path / "tests" / "cassettes").rglob("*.yaml"))
    again = run(tmp_path)
    again.assert_outcomes(passed=1)
    again.stdout.fnmatch_lines(["1 test: 1 hit, 0 misses, 0 recorded*"])
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = llmproxy("test", "greet.suite.yaml", cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "PATH": path})
    assert done.returncode == 0, done.stdout + done.stderr
    run(tmp_path, CI="1").assert_outcomes(passed=1)
    shutil.rmtree(tmp_path / "tests")
    alone = run(tmp_path)
    alone.assert_outcomes(passed=1)
    alone.stdout.fnmatch_lines(["*1 hit is of what stands in the store alone*llmproxy export --all tests/cassettes*"])
    run(tmp_path, CI="1").assert_outcomes(failed=1)
    project(tmp_path, f"{text}  - {{id: other, steps: [{{chat: hi, totalToolCalls: 0}}]}}\n", "greet.suite.yaml")
    more = run(tmp_path, "-k", "other")
    more.assert_outcomes(failed=1, deselected=1)
    advice = 'nothing is recorded for other; record it: pytest "greet.suite.yaml::other" --llmproxy-mode record'
    more.stdout.fnmatch_lines([advice])


def test_what_is_wrong_in_a_file_is_a_collection_error_with_its_place(tmp_path: Path) -> None:
    """No traceback; the other tests of the project are collected."""
    project(tmp_path, "name: t\nscenarios:\n  - id: one\n    stepz: []\n")
    result = run(tmp_path)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*suite.yaml:4:5: *stepz*"])
    assert "Traceback" not in result.stdout.str()


@pytest.mark.slow
def test_a_file_of_another_tool_is_left_alone(tmp_path: Path) -> None:
    """With one warning, which does not break a project where warnings are errors; one that was named is ours."""
    (tmp_path / "suite.yaml").write_text("config: {target: x}\nscenarios:\n  - flow: []\n")
    (tmp_path / "test_it.py").write_text("def test_it(): ...\n")
    result = run(tmp_path, PYTHONWARNINGS="")
    result.assert_outcomes(passed=1, warnings=1)
    result.stdout.fnmatch_lines(["*suite.yaml is no suite of llmproxy; it is left alone*"])
    run(tmp_path, "-W", "error").assert_outcomes(passed=1)
    run(tmp_path, "suite.yaml").assert_outcomes(errors=1)


@pytest.mark.slow
def test_a_proxy_that_cannot_start_is_an_error_of_each_scenario(tmp_path: Path) -> None:
    """Told once a scenario, tried once; no scenario counts as failed for it."""
    project(tmp_path)
    result = run(tmp_path, "-k", "one or two", LLMPROXY_COMMAND="/nosuch/llmproxy")
    result.assert_outcomes(errors=2, deselected=3)
    result.stdout.fnmatch_lines(["*cannot start the proxy: /nosuch/llmproxy*"])
    assert "Traceback" not in result.stdout.str()


@pytest.mark.slow
def test_suites_and_the_fixture_have_proxies_of_their_own(tmp_path: Path) -> None:
    """In one run: neither's calls go through the other's proxy, and the environment of the fixture is there again afterwards."""
    agent = json.dumps(rig.lines(tmp_path / "rows.db"))
    text = f"name: hello\nagent: {agent}\nscenarios:\n  - {{id: greets, steps: [{{chat: Say hello, response: {{contains: hello}}}}]}}\n"
    project(tmp_path, text, "a.suite.yaml")
    test = "from app import ask\ndef test_it(llmproxy):\n    assert ask('Say hello') == 'hello' and llmproxy.report().calls == 1\n"
    write(tmp_path, app=APP, test_b=test)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    with Provider([step(user="Say hello", say="hello", times=None)]) as provider:
        run(tmp_path, "--llmproxy-mode", "record", **at(provider)).assert_outcomes(passed=2)
        assert len(provider.requests) == 2
    result = run(tmp_path)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["2 tests: 2 hits, 0 misses, 0 recorded*"])


@pytest.mark.parametrize(("status", "outcome"), [
    (Status.PASSED, "passed"),
    (Status.FAILED, "failed"),
    (Status.AGENT_ERROR, "failed"),
    (Status.ENVIRONMENT_ERROR, "failed"),
    (Status.SKIPPED, "skipped"),
])  # fmt: skip
def test_a_run_is_a_report_of_its_item(status: Status, outcome: str) -> None:
    """What says nothing about the agent is no pass either."""
    pytest.importorskip("_pytest.subtests", reason="this pytest has no subtests")
    sent: list[pytest.TestReport] = []
    item: Any = SimpleNamespace(
        nodeid="s.yaml::one", location=("s.yaml", 1, "one"), path="s.yaml",
        config=SimpleNamespace(pluginmanager=SimpleNamespace(getplugin=lambda name: None)),
        ihook=SimpleNamespace(pytest_runtest_logreport=lambda *, report: sent.append(report)),
    )  # fmt: skip
    assert report_subtest(item, "run 1/2", status, "why")
    assert [(each.nodeid, each.outcome) for each in sent] == [("s.yaml::one", outcome)]
