"""What suites can say of cases, cells, order and time, each failing once: `llmproxy test` and pytest say the same of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.suite.run.test_mocks import AGENT, provider
from tests.support import near, pytest_run
from tests.support.process import ROOT, clean_env

SUITE = """
name: fails
agent: {command: COMMAND}
scenarios:
  - id: case
    parametrize: words.csv
    steps: [{chat: "weather?", response: {contains: $word}}]
  - id: cell
    matrix: {word: [real, unreal], more: [thing, nothing]}
    steps: [{chat: "weather?", response: {allOf: [{contains: $word}, {contains: $more}]}}]
  - {id: order, steps: [{chat: "weather?", toolOrder: [get_weather, book]}]}
  - {id: after, steps: [{chat: "weather?", tools: {get_weather: {after: book}}}]}
  - {id: slow, steps: [{chat: "weather?", usage: {latencyMs: {gt: 600000}}}]}
  - {id: first, steps: [{chat: "weather?", usage: {firstTokenMs: {gt: 600000}}}]}
  - {id: dear, usage: {costUsd: {gt: 100}}, steps: [{chat: "weather?"}]}
  - {id: mocked, mock: {get_weather: storm}, steps: [{chat: "weather?", response: {eq: "I read the real thing"}}]}
"""
GOOD = {"case[rome]", "cell[real,thing]"}
BAD = {"case[oslo]", "cell[real,nothing]", "cell[unreal,thing]", "cell[unreal,nothing]"}
BAD |= {"order", "after", "slow", "first", "dear", "mocked"}


@pytest.mark.slow
def test_each_fails_once_by_the_command_and_under_pytest(tmp_path: Path) -> None:
    """The same scenarios, and in the JSON reports of both the same words."""
    (tmp_path / "agent.py").write_text(AGENT, encoding="utf-8")
    (tmp_path / "words.csv").write_text("id,word\nrome,real\noslo,unreal\n", encoding="utf-8")
    command = json.dumps([sys.executable, str(tmp_path / "agent.py")])
    (tmp_path / "t.suite.yaml").write_text(SUITE.replace("COMMAND", command), encoding="utf-8")
    with provider() as upstream, near("auto", tmp_path / "x.db", upstreams={"openai": upstream.url}) as px:
        known = clean_env({"PYTHONPATH": str(ROOT), "LLMPROXY_URL": px.url})
        words = [sys.executable, "-m", "llmproxy", "test", "--report", "json=command.json"]
        ran = subprocess.run(words, cwd=tmp_path, env=known, capture_output=True, text=True, timeout=240, check=False)
        tested = pytest_run.run(tmp_path, "t.suite.yaml", "--scenario-report", "json=pytest.json", LLMPROXY_URL=px.url)
    assert (ran.returncode, tested.ret) == (1, pytest.ExitCode.TESTS_FAILED), ran.stdout + ran.stderr
    found = [rows(tmp_path / f"{name}.json") for name in ("command", "pytest")]
    assert found[0] == found[1]
    assert {name for name, status in found[0].items() if status == "passed"} == GOOD
    assert {name for name, status in found[0].items() if status == "failed"} == BAD
    for said in (
        "case: 2 cases, 1 not passed",
        "cell: 4 cases, 3 not passed",
        "1 of 2 cells passed (95 % interval 9% to 91%)",
    ):
        assert said in ran.stdout
        assert said in str(tested.stdout)


def rows(report: Path) -> dict[str, str]:
    """Return how each scenario of a report ended."""
    return {row["scenario"]: row["status"] for row in json.loads(report.read_text(encoding="utf-8"))["summary"]}
