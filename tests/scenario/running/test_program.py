"""A program that runs scenarios without a test runner: its runs are a test of the trend, when it ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from llmproxy.cli import main
from llmproxy.report.events import PartyUse, Status
from llmproxy.report.trend import read_tests
from llmproxy.scenario.running.program import Program
from llmproxy.scenario.types import ScenarioResult
from tests.support import near
from tests.support.process import ROOT, clean_env

PROGRAM = """
import sys
from llmproxy import scenario


class Agent(scenario.AgentAdapter):
    async def call(self, input):
        return sys.argv[1]


def look(state):
    return "Rome" in state.last_agent_message()


for city in ("Rome", "Paris"):
    said = [scenario.user(city), scenario.agent(), look, scenario.succeed()]
    scenario.run_sync(name="weather", description=city, agents=[Agent()], script=said, verbose=False)
if sys.argv[2:]:
    raise KeyboardInterrupt
"""


def ended(cassette: str = "a", status: Status = Status.PASSED, cost: str | None = "0.002") -> ScenarioResult:
    """Return how a run ended."""
    use = {"agent": PartyUse(calls=1, cost_usd=cost)}
    return ScenarioResult(
        success=status is Status.PASSED, messages=[], cassette=cassette, status=status, usage=use, total_time=1.0
    )


def test_what_a_program_ran_is_one_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several runs of a scenario all count; what no proxy recorded is not there, and a second end keeps nothing twice."""
    monkeypatch.chdir(tmp_path)
    program = Program()
    for result in (ended(), ended(status=Status.FAILED), ended("b"), ended("")):
        program.record_end(result)
    program.end()
    program.end()
    (test,) = read_tests(tmp_path / ".llmproxy" / "llmproxy.db.state.db")
    assert {name: (row["status"], row["runs"], row["passed"], row["rate"], row["cost_usd"]) for name, row in test.rows.items()} == {
        "a": ("failed", 2, 1, 0.5, "0.002"),
        "b": ("passed", 1, 1, 1.0, "0.002"),
    }  # fmt: skip
    assert test.exit_code == 1
    assert (tmp_path / ".llmproxy" / ".gitignore").read_text("utf-8") == "*\n"


def test_without_a_proxy_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing behind the user's back."""
    monkeypatch.chdir(tmp_path)
    program = Program()
    program.record_end(ended(""))
    program.end()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the program ends as it would."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".llmproxy").write_text("", encoding="utf-8")
    program = Program()
    program.record_end(ended())
    program.end()
    assert "llmproxy: this test is not in the trend: " in capsys.readouterr().err


def test_the_trend_of_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What got worse stands first; a program that Ctrl-C ended is not kept."""
    (tmp_path / "weather.py").write_text(PROGRAM, encoding="utf-8")
    with near("auto", tmp_path / "x.db") as px:
        env = clean_env({"PYTHONPATH": str(ROOT), "LLMPROXY_URL": px.url})
        for words, code in ((["Rome is sunny"], 0), (["It rains"], 1), (["Rome", "stop"], 130)):
            line = [sys.executable, "weather.py", *words]
            ran = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False)
            assert ran.returncode in (code, -2), ran.stderr
    monkeypatch.chdir(tmp_path)
    assert main(["test", "--trend"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.startswith("the last 2 tests")
    assert head.endswith("1 worse")
    assert [line.split()[:3] for line in lines[:2]] == [[".F", "weather", "passed"], [".", "weather.2", "passed"]]
