"""Whoever runs the scenarios of a process is told, whatever its user configured."""

from __future__ import annotations

from typing import Any

from llmproxy import scenario
from llmproxy.report.events import HOST, Finished, RunSettingsFromPytest
from tests.scenario.people import Agent, Ear


class Listener(Ear):
    def __init__(self) -> None:
        super().__init__()
        self.runs: list[tuple[str, bool]] = []

    def on_run_end(self, scenario: Any, result: Any) -> None:
        self.runs.append((scenario.name, result.success))


def test_a_listener_hears_each_run_once_also_one_that_raises() -> None:
    """And the one before it is listened to again afterwards."""
    listener, before = Listener(), HOST.listener
    HOST.listener = listener
    try:
        steps = [scenario.user("hi"), scenario.agent(), scenario.succeed()]
        scenario.run_sync("good", "d", [Agent("hello")], script=steps, verbose=False, proxy=False)
        try:
            scenario.run_sync("bad", "d", [Agent(RuntimeError("boom"))], script=steps, verbose=False, proxy=False)
        except RuntimeError:
            pass
        else:
            raise AssertionError("it was to raise")
    finally:
        HOST.listener = before
    assert listener.runs == [("good", True), ("bad", False)]
    assert sum(isinstance(event, Finished) for event in listener.events) == 2


def test_without_anybody_nothing_is_said() -> None:
    host = RunSettingsFromPytest()
    assert host.handlers == ()
    host.emit_scenario_run_end(None, None)
