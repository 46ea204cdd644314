"""A test that is run again is another attempt: what the passing attempt recorded counts (`--reruns` of pytest-rerunfailures)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.provider import Provider, step
from tests.support.process import ROOT
from tests.support.pytest_run import APP, at, run, write

RERUNS = """
import pytest
from _pytest.runner import runtestprotocol

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    '''As pytest-rerunfailures has it: set-up, call and teardown again, up to three times.'''
    for left in (2, 1, 0):
        item._initrequest() if hasattr(item, "_initrequest") else None
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        bad = any(each.failed for each in reports)
        for each in reports:
            if bad and left and each.failed:
                each.outcome = "rerun"
            item.ihook.pytest_runtest_logreport(report=each)
        if not bad:
            break
    return True

def pytest_report_teststatus(report):
    return ("rerun", "R", "RERUN") if report.outcome == "rerun" else None
"""
FIXTURE = """
from app import ask

def test_it(llmproxy):
    assert ask("the capital of Norway?") == "Oslo"
"""
SCENARIO = """
import pytest
from app import ask
from llmproxy import scenario

class Geographer(scenario.AgentAdapter):
    async def call(self, input):
        return ask(input.last_new_user_message_str())

@pytest.mark.agent_test
def test_it():
    steps = [scenario.user("the capital of Norway?"), scenario.agent(), scenario.succeed()]
    done = scenario.run_sync("capital", "asks", [Geographer()], script=steps, verbose=False)
    assert done.messages[-1]["content"] == "Oslo"
"""
SUITE = """
name: t
agent: {python: "app.py:ask"}
defaults: {observe: none}
scenarios:
  - {id: capital, steps: [{chat: "the capital of Norway?", response: {contains: Oslo}}]}
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["fixture", "scenario", "suite"])
@pytest.mark.parametrize("mode", ["once", "auto"])
def test_what_the_passing_attempt_recorded_counts(how: str, mode: str, tmp_path: Path) -> None:
    """The rerun asks again, and later runs replay what it was told; not the answer with which the first attempt failed."""
    write(tmp_path, app=APP, reruns=RERUNS)
    if how == "suite":
        (tmp_path / "t.suite.yaml").write_text(SUITE)
    else:
        write(tmp_path, test_it=FIXTURE if how == "fixture" else SCENARIO)
    with Provider([step(say="Bergen"), step(say="Oslo")]) as provider:
        words = ("--llmproxy-mode", mode, "-p", "reruns")
        first = run(tmp_path, *words, PYTHONPATH=f"{ROOT}:{tmp_path}", **at(provider)).parseoutcomes()
        assert len(provider.requests) == 2
    assert (first.get("rerun"), first.get("passed"), first.get("failed")) == (1, 1, None), first
    run(tmp_path, "--llmproxy-mode", mode).assert_outcomes(passed=1)
