"""Scenarios in real pytest processes: recorded once, replayed offline, reported whatever becomes of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from llmproxy.report.trend import format_trend, read_recent_tests
from tests.provider import Provider, step
from tests.scenario.parties import finish
from tests.support.pytest_run import APP, at, run, write

PLAIN = """
import pytest
from llmproxy import scenario

class Echo(scenario.AgentAdapter):
    async def call(self, input):
        return "you said " + input.last_new_user_message_str()

class Crash(scenario.AgentAdapter):
    async def call(self, input):
        raise RuntimeError("boom")

class Judge(scenario.AgentAdapter):
    role = scenario.AgentRole.JUDGE
    criteria = ["is polite"]
    async def call(self, input):
        return scenario.ScenarioResult(success=False, messages=[], reasoning="rude", failed_criteria=["is polite"])

HI = [scenario.user("hi"), scenario.agent()]

@pytest.mark.agent_test
@pytest.mark.asyncio
async def test_good(scenario_reporter):
    result = await scenario.run("good", "d", [Echo()], script=[*HI, scenario.succeed("fine")])
    assert result.success
    assert scenario_reporter.results[-1]["result"] is result
    assert scenario_reporter.results[-1]["scenario"].name == "good"
    assert scenario_reporter.get_summary()["passed"] >= 1

@pytest.mark.agent_test
async def test_bad():
    result = await scenario.run("bad", "d", [Echo(), Judge()], script=[*HI, scenario.judge()])
    assert result.success, result.reasoning

def test_raises():
    scenario.configure(handlers=())     # the user's own are not ours
    scenario.run_sync("raises", "d", [Crash()], script=HI)

async def test_repeats():
    await scenario.run("often", "d", [Echo], script=[*HI, scenario.succeed()], runs=2)
"""
REPORT = [
    "=== Scenario Test Report ===", "Total Scenarios: 5", "Passed: 3", "Failed: 2", "Success Rate: 60%",
    "*. good - PASSED in *s (agent: *s)", "   Reasoning: fine",
]  # fmt: skip
LIVE = """
import os
import pytest
from app import ask
from llmproxy import scenario

scenario.configure(default_model="openai/gpt-4.1-mini", verbose=False)

class Support(scenario.AgentAdapter):
    async def call(self, input):
        return ask(input.last_new_user_message_str())

def agents():
    return [Support(), scenario.UserSimulatorAgent(), scenario.JudgeAgent(criteria=["Agent is polite"])]

@pytest.mark.agent_test
async def test_lamp():
    result = await scenario.run("lamp", os.environ.get("CHANGED", "A lamp is missing."), agents(), max_turns=2)
    assert result.success, result.reasoning
    assert result.cassette.endswith("/lamp")

@pytest.mark.agent_test
def test_beside_the_fixture(llmproxy):
    result = scenario.run_sync("vase", "A vase is missing.", agents(), max_turns=2)
    assert result.success, result.reasoning
    assert result.usage["agent"].calls == 1
    assert llmproxy.report().calls == 0       # the run has a session of its own
    from llmproxy.report.events import HOST
    assert HOST.session == llmproxy.name         # where an agent's calls land that it makes too late
"""


SAME = """
import pytest
from app import ask
from llmproxy import scenario

SEEN = []

class Support(scenario.AgentAdapter):
    async def call(self, input):
        return ask(input.last_new_user_message_str())

async def again(text):
    script = [scenario.user(text), scenario.agent(), scenario.succeed()]
    result = await scenario.run("same", "d", [Support()], script=script)
    said = result.messages[-1]["content"]
    SEEN.append(result.cassette)
    assert text in said, f"{text!r} was answered {said!r}"
    return result

@pytest.fixture(scope="module")
def wide():
    import asyncio
    asyncio.run(again("FILE wide"))

@pytest.mark.agent_test
@pytest.mark.parametrize("n", [1, 2])
async def test_sets(n):
    await again(f"FILE set {n}")

@pytest.mark.agent_test
async def test_loop():
    for n in range(3):
        await again(f"FILE loop {n}")

@pytest.mark.agent_test
async def test_runs(wide):
    script = [scenario.user("FILE runs"), scenario.agent(), scenario.succeed()]
    await scenario.run("same", "d", [Support], script=script, runs=2)

def test_all_recordings_differ():
    assert len(set(SEEN)) == len(SEEN) == 6
"""


@pytest.mark.slow
def test_scenarios_are_recorded_once_and_replayed_offline(tmp_path: Path) -> None:
    """Simulated user, judge and agent of each run, in the run's own session; in a second process, and in workers, 0 calls."""
    write(tmp_path, app=APP, test_live=LIVE)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    steps = [
        finish("passed", evidence=["On its way."], contains="finish_test", times=None),
        step(model="gpt-4o", say="On its way.", times=None),
        step(model="gpt-4.1-mini", say="Where is it?", times=None),
    ]
    with Provider(steps, ordered=False) as provider:
        recorded = run(tmp_path, "--llmproxy-mode", "record", **at(provider))
        recorded.assert_outcomes(passed=2)
        asked = len(provider.requests)
    assert asked == 6, recorded.stdout.str()
    replayed = run(tmp_path, "--llmproxy-mode", "replay", "-n", "2", "--junitxml=j.xml")
    replayed.assert_outcomes(passed=2)
    replayed.stdout.fnmatch_lines(["2 tests: 6 hits, 0 misses, 0 recorded*", "Success Rate: 100%"])
    found = {
        case.get("name"): {each.get("name"): each.get("value") for each in case.iter("property")}
        for case in ET.parse(tmp_path / "j.xml").iter("testcase")
    }
    lamp = found["test_lamp"]
    assert lamp["scenario.status"] == "passed"
    assert str(lamp["scenario.cassette"]).partition("-")[0] == "test_live.test_lamp"
    assert lamp["scenario.run_id"]
    assert float(str(lamp["scenario.cost_usd"])) > 0
    missed = run(tmp_path, "--llmproxy-mode", "replay", "-k", "lamp", CHANGED="Another lamp is missing.")
    missed.assert_outcomes(failed=1, deselected=1)
    again = 'run it again: pytest --llmproxy-mode replay "test_live.py::test_lamp"'
    missed.stdout.fnmatch_lines(['* scenario "lamp": environment error *', again])
    said = missed.stdout.str()
    assert said.count("nA lamp is missing.") == 1, "a miss is shown once"
    assert "llmproxy start" not in said, "what starts a proxy is not what a user of pytest types"
    assert "record what is missing: pytest --llmproxy-mode auto" in said
    first, *_, last = format_trend(read_recent_tests(tmp_path / ".llmproxy" / "llmproxy.db.state.db"))[1:]
    worse = "  ..E  test_live.py::test_lamp                passed 2 of 3  worse"
    assert first.startswith(worse), "with what it cost before"
    told = (tmp_path / ".llmproxy" / "last-report.jsonl").read_text(encoding="utf-8")
    assert json.loads(told.splitlines()[0])["title"] == "pytest"
    assert "Another lamp is missing." in told, "for `llmproxy label`"
    assert last.startswith(". passed")


@pytest.mark.slow
def test_scenarios_of_one_name_are_recorded_apart(tmp_path: Path) -> None:
    """Two files, sets of parameters, a loop, a fixture that tests share: each replays its own answer, in any order of tests."""
    write(tmp_path, app=APP, test_a=SAME.replace("FILE", "a"), test_b=SAME.replace("FILE", "b"))
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    names = ("wide", "set 1", "set 2", "loop 0", "loop 1", "loop 2", "runs")
    texts = [f"{file} {name}" for file in "ab" for name in names]
    answers = [step(say=f"{text}: done", contains=text, times=None) for text in texts]
    with Provider(answers, ordered=False) as provider:
        run(tmp_path, "--llmproxy-mode", "record", **at(provider)).assert_outcomes(passed=10)
        assert len(provider.requests) == 16
    report = "--scenario-report=html=o.html"
    run(tmp_path, "--llmproxy-mode", "replay", "test_b.py", "test_a.py", report).assert_outcomes(passed=10)
    assert '"recordings":true' in (tmp_path / "o.html").read_text(), "the calls that it stands on are in the file"


WORKERS = pytest.mark.parametrize(
    "workers", [pytest.param((), id="one process"), pytest.param(("-n", "2"), id="xdist", marks=pytest.mark.slow)]
)


@WORKERS
def test_every_run_is_in_the_report(tmp_path: Path, workers: tuple[str, ...]) -> None:
    """Also those that raise, async tests without the plugin that they are marked for, runs of one scenario; in workers, too."""
    write(tmp_path, test_plain=PLAIN)
    reports = ("--scenario-report", "json=o.json", "--scenario-report=html=o.html")
    result = run(tmp_path, *workers, "--strict-markers", *reports)
    result.assert_outcomes(passed=2, failed=2)
    for lines in (
        REPORT,
        ["*. raises - FAILED (agent error) in *", "   Reasoning: Scenario failed with error: boom"],
        ["*. bad - FAILED in *", "   Reasoning: rude", "   Passed Criteria: 0/1", "   Failed Criteria: 1"],
    ):
        result.stdout.fnmatch_lines(lines)
    result.stdout.fnmatch_lines(["*. often [[]1/2] - PASSED*"])
    written = json.loads((tmp_path / "o.json").read_text())
    assert {row["scenario"]: row["status"] for row in written["summary"]} == {
        "good": "passed", "bad": "failed", "raises": "agent_error", "often": "passed",
    }  # fmt: skip
    assert written["exit_code"] == 1
    assert "you said hi" in (tmp_path / "o.html").read_text()


def test_a_failed_test_tells_its_conversation_and_how_to_run_it_again(tmp_path: Path) -> None:
    """What was said, what the judge found, and no frames of the engine and its loops between test and agent."""
    write(tmp_path, test_plain=PLAIN)
    result = run(tmp_path, "-k", "bad or raises")
    result.stdout.fnmatch_lines(
        [
            '* scenario "bad": failed *', "user: hi", "assistant: you said hi", "why: rude", "criteria:",
            "  failed       is polite", 'run it again: pytest "test_plain.py::test_bad"',
            '* scenario "raises": agent error *', "why: RuntimeError: boom",
        ]
    )  # fmt: skip
    assert "running/executor.py" not in result.stdout.str()
    result.stdout.no_fnmatch_line("*scenario/running/run_lifecycle.py*")
    result.stdout.no_fnmatch_line("*asyncio/base_events.py*")


@pytest.mark.slow
def test_without_a_scenario_nothing_is_said(tmp_path: Path) -> None:
    """No report, no import of scenarios; pytest's own --debug stays pytest's; nothing runs where tests are only collected."""
    none = "import sys\nasync def test_it():\n    assert 'llmproxy.scenario' not in sys.modules\n"
    write(tmp_path, test_none=none, test_plain=PLAIN)
    result = run(tmp_path, "test_none.py", "--debug=trace.log", python=sys.executable)
    result.assert_outcomes(passed=1)
    assert "Scenario" not in result.stdout.str()
    assert (tmp_path / "trace.log").is_file()
    collected = run(tmp_path, "test_plain.py", "--collect-only", "-q")
    collected.stdout.fnmatch_lines(["test_plain.py::test_good"])
    assert "Scenario" not in collected.stdout.str()


@pytest.mark.slow
def test_without_the_plugin_tests_run_as_ever(tmp_path: Path) -> None:
    """`-p no:llmproxy`: scenarios work, nobody reports them."""
    write(tmp_path, test_plain=PLAIN)
    result = run(tmp_path, "-p", "no:llmproxy", "-k", "raises", plugin=False)
    result.assert_outcomes(failed=1, deselected=3)
    assert "Scenario Test Report" not in result.stdout.str()


def test_debug_mode_needs_a_terminal_and_reports_need_a_file(tmp_path: Path) -> None:
    """Usage errors, before anything runs; a person's text joins the conversation."""
    write(tmp_path, test_plain=PLAIN)
    parallel = run(tmp_path, "--scenario-debug", "-n", "2")
    parallel.stderr.fnmatch_lines(["*--scenario-debug needs the terminal*"])
    nowhere = run(tmp_path, "--scenario-report", "html")
    nowhere.stderr.fnmatch_lines(["*--scenario-report 'html': it needs a file*"])
    assert parallel.ret == nowhere.ret == pytest.ExitCode.USAGE_ERROR
