"""Which async tests are ours, and what goes on a test's report. The rest is tested in real pytest processes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmproxy import scenario
from llmproxy.pytest.scenario_run_listener import ScenarioRunListenerPlugin
from llmproxy.report.events import HOST
from tests.scenario.people import Agent
from tests.support.pytest_run import run, write

ASYNC = """
import asyncio, pytest

class Other:
    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem):
        if pyfuncitem.get_closest_marker("theirs"):
            return True

def pytest_configure(config):
    config.pluginmanager.register(Other(), NAME)
"""
TESTS = """
import pytest

@pytest.mark.agent_test
async def test_ours():
    raise AssertionError("ours ran")

async def test_nobodys():
    raise AssertionError("nobodys ran")

@pytest.mark.trio
@pytest.mark.agent_test
async def test_other():
    raise AssertionError("other ran")

@pytest.mark.asyncio
@pytest.mark.agent_test
async def test_both():
    raise AssertionError("both ran")

@pytest.mark.theirs
@pytest.mark.agent_test
async def test_theirs():
    raise AssertionError("theirs ran")
"""


@pytest.mark.parametrize(("other", "ran"), [("nothing", {"ours", "nobodys", "both"}), ("asyncio", {"ours"})])
def test_async_tests_run_where_nobody_else_runs_them(tmp_path: Path, other: str, ran: set[str]) -> None:
    """Those with the marker; all of them where there is no plugin for async tests; never those that another one claims. A mark whose plugin is missing claims nothing."""
    write(tmp_path, conftest=ASYNC.replace("NAME", repr(other)), test_async=TESTS)
    found = run(tmp_path, "-W", "ignore").stdout.str()
    names = ("ours", "nobodys", "other", "both", "theirs")
    assert {name for name in names if f"AssertionError: {name} ran" in found} == ran


def test_a_parcel_is_plain_values_and_taken_once() -> None:
    """It travels from xdist's workers; what ended is on one report only."""
    of_run: Any = SimpleNamespace(shared=None)
    before, HOST.listener = (
        HOST.listener,
        (listener := ScenarioRunListenerPlugin(of_run, keep_events=True, debug=False)),
    )
    try:
        steps = [scenario.user("hi"), scenario.agent(), scenario.succeed()]
        scenario.run_sync("good", "d", [Agent("hello")], script=steps, verbose=False, proxy=False)
    finally:
        HOST.listener = before
    item: Any = SimpleNamespace(user_properties=[], nodeid="t.py::test_it")
    parcel = listener.take_parcel(item)
    assert json.loads(json.dumps(parcel)) == parcel
    assert [each["name"] for each in parcel["runs"]] == ["good"]
    assert [each["event"] for each in parcel["events"]][0 :: len(parcel["events"]) - 1] == ["started", "finished"]
    assert ("scenario.status", "passed") in item.user_properties
    assert listener.take_parcel(item)["runs"] == []
