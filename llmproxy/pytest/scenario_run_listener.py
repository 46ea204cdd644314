"""Listener to scenario runs: every run, whatever its outcome, is added to the report of its test.

A plugin object, registered by `llmproxy.pytest.plugin`. It imports no scenarios until one has run, and also runs async
tests that no other plugin claims.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Generator, Iterable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pytest

from llmproxy.client.session_reports import SessionReport
from llmproxy.protocol import Mode, ReplayablePolicy
from llmproxy.pytest.options import MODE, TAKEN, build_rerun_command
from llmproxy.pytest.per_test_sessions import make_cassette_name
from llmproxy.report.events import HOST, Event, EventHandlerWithNothingToClose, Started
from llmproxy.report.run_tree import EventsGroupedByRun, to_plain

if TYPE_CHECKING:
    from llmproxy.pytest.per_test_sessions import PytestPluginState, SessionOptions
    from llmproxy.pytest.scenario_report import ScenarioReporter

MARKER = "agent_test"
LISTENER = pytest.StashKey["ScenarioRunListenerPlugin"]()
SCENARIOS = "llmproxy_scenarios"
"""Attribute of a test report with what ended since the previous report, as plain values."""
_ASYNC_MARKS = {"asyncio": ("asyncio", "pytest_asyncio"), "anyio": ("anyio", "anyio.pytest_plugin")}
"""Marks of plugins that run tests on asyncio, like ours, with their registered names."""
_OTHER_LOOPS = ("trio", "twisted", "asyncio_cooperative")
_LOOPS = ("asyncio.base_events", "asyncio.runners", "concurrent.futures._base")
_ASYNC_PLUGINS = ("asyncio", "pytest_asyncio", "trio", "tornasync", "twisted", "pytest_twisted", "asyncio-cooperative")


class ScenarioRunListenerPlugin(EventHandlerWithNothingToClose):
    def __init__(self, run: PytestPluginState, *, keep_events: bool, debug: bool) -> None:
        """`keep_events`: all events are needed at the end; `debug`: a person types at the terminal."""
        self._run, self.keep_events, self.debug = run, keep_events, debug
        self.test = ""
        self._line = ""
        self.again = ""
        self._place = ""
        self._named: dict[str, int] = {}
        self.reporter: ScenarioReporter | None = None
        self._retried: set[str] = set()
        """Tests with a failed attempt that recorded something."""
        self._of_suite = False
        self._parcel = _make_parcel()
        self._ended: dict[str, Any] = {}
        self._reports: list[SessionReport] = []
        self._run_tree = EventsGroupedByRun()

    def handle(self, event: Event) -> None:
        if isinstance(event, Started) and self.test and (self._of_suite or not event.rerun):
            event = replace(event, rerun=self.again, place=event.place or self._line)
        if self.keep_events or (self._run.shared is not None and not self._of_suite):  # recorded: for the last report
            self._parcel["events"].append(to_plain(event))
        self._run_tree.add_event(event)

    def on_run_end(self, scenario: Any, result: Any) -> None:
        from llmproxy.pytest.scenario_report import list_junit_run_properties, serialize_scenario_run

        self._ended[result.run_id] = result
        self.get_reporter().add_result(scenario, result)
        self._parcel["runs"].append(serialize_scenario_run(scenario, result))
        self._parcel["properties"] += list_junit_run_properties(scenario, result, len(self._ended))
        self._collect_session_reports([getattr(scenario, "wire_report", None)])

    def mark_as_suite_case(self, again: str) -> None:
        self._of_suite, self.again = True, again

    def collect_suite_case_result(
        self, row: Mapping[str, Any], reports: Iterable[SessionReport | None]
    ) -> list[list[Event]]:
        self._parcel["rows"].append(to_plain(row))
        self._collect_session_reports(reports)
        runs = self._run_tree.runs.values()
        return [[run.started, *run.parts, *([run.finished] if run.finished else [])] for run in runs]

    def _collect_session_reports(self, reports: Iterable[SessionReport | None]) -> None:
        told = [each for each in reports if each is not None]
        self._reports += told
        self._parcel["wires"] += [each.to_json() for each in told]

    def get_reporter(self) -> ScenarioReporter:
        from llmproxy.pytest.scenario_report import ScenarioReporter

        self.reporter = self.reporter or ScenarioReporter()
        return self.reporter

    def choose_cassette(self, cassette: str) -> str:
        """Return the name of a run's recording: its test's (or wider fixture's), with a number if used before."""
        if not self._place:
            return cassette
        name = f"{self._place}/{cassette}"
        self._named[name] = self._named.get(name, 0) + 1
        return name if self._named[name] == 1 else f"{name}.{self._named[name]}"

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        """Reset the counts: a repeated test uses, or replaces, the same recordings."""
        self._named, self._run_tree, self._ended, self._reports = {}, EventsGroupedByRun(), {}, []
        HOST.mode = self.choose_mode_for_attempt(item.nodeid, HOST.mode)
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        """Name runs of a shared fixture by the fixture, since the first test to use it may change."""
        before = self._place
        if fixturedef.scope != "function":
            each = f"[{getattr(request, 'param_index', '')}]" if hasattr(request, "param") else ""
            self._place = make_cassette_name(f"{request.node.nodeid or 'session'}::{fixturedef.argname}{each}")
        try:
            return (yield)
        finally:
            self._place = before

    def choose_mode_for_attempt(self, test: str, mode: str) -> str:
        """Return the mode of a test's sessions: after a failed attempt that recorded, `--reruns` records again.

        All attempts belong to one test, and the passing one's recording counts; else the failed one would be replayed.
        """
        again = any(each == mode and each.policy.plays is ReplayablePolicy.GOOD for each in Mode)
        return Mode.RECORD.value if again and test in self._retried else mode

    def read_options(self, item: pytest.Item) -> SessionOptions:
        """Return the options of a test, which may be run again. Raises ValueError."""
        asked = self._run.read_options(item)
        return replace(asked, mode=self.choose_mode_for_attempt(item.nodeid, asked.mode))

    def track_failed_recording_attempt(self, test: str, reports: Iterable[SessionReport], *, passed: bool) -> None:
        if passed:
            self._retried.discard(test)
        elif any(each.recorded for each in reports):
            self._retried.add(test)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.test, self._run_tree, self._ended, self._of_suite = item.nodeid, EventsGroupedByRun(), {}, False
        self.again = build_rerun_command(item.config, item.nodeid, _build_mode_option(item.config))
        file, line, _ = item.location
        self._line = f"{file}:{(line or 0) + 1}"
        HOST.listener, HOST.place = self, self.choose_cassette
        try:
            asked = self.read_options(item)
            HOST.mode = asked.mode if self._run.shared is not None else ""
            self._place, HOST.faults = asked.cassette, asked.faults
        except ValueError:  # the fixture says what is wrong with the marker
            HOST.mode, self._place = "", make_cassette_name(item.nodeid)
        try:
            return (yield)
        finally:
            self.test, HOST.mode, self._place, HOST.faults = "", "", "", None

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        capture: Any = item.config.pluginmanager.getplugin("capturemanager") if self.debug else None
        if capture is None:
            return (yield)
        capture.suspend(in_=True)
        try:
            return (yield)
        finally:
            capture.resume()

    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        if not inspect.iscoroutinefunction(pyfuncitem.obj) or not _is_unclaimed_async_test(pyfuncitem):
            return None
        import asyncio  # 25 ms of each pytest run of whoever has us installed, ssl with it

        names = getattr(getattr(pyfuncitem, "_fixtureinfo", None), "argnames", ())
        asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        parcel = self.take_parcel(item)
        if self._ended:
            for name, module in list(sys.modules.items()):  # `--full-trace` shows the engine's frames
                if name.startswith("llmproxy.scenario."):
                    setattr(module, "__tracebackhide__", True)  # noqa: B010 - pytest's name, which no module declares
            if call.excinfo is not None and not item.config.getoption("fulltrace", default=False):
                _drop_event_loop_frames(call.excinfo.tb)
        report = yield
        if any(parcel.values()):
            setattr(report, SCENARIOS, parcel)
        if report.when == "call":
            self.track_failed_recording_attempt(item.nodeid, self._reports, passed=report.passed)
            self._reports = []
        if report.failed and self._run_tree.runs and not self._of_suite:
            from llmproxy.pytest.scenario_report import build_failed_scenario_sections

            runs = list(self._run_tree.runs.values())
            report.sections += build_failed_scenario_sections(runs, self._ended, report.longreprtext)
        return report

    def take_parcel(self, item: pytest.Item) -> dict[str, list[Any]]:
        parcel, self._parcel = self._parcel, _make_parcel()
        item.user_properties += parcel.pop("properties")
        return parcel


def _make_parcel() -> dict[str, list[Any]]:
    return {name: [] for name in ("runs", "events", "rows", "wires", "properties")}


def _build_mode_option(config: pytest.Config) -> str:
    """Return the option that replays a test's recordings: without one, its runs would call their models."""
    typed = None if MODE in TAKEN else config.getoption(MODE)
    if typed is None:
        return ""
    recorded_nothing = typed in {mode for mode in Mode if not mode.policy.uses_store}
    return f" {MODE} {typed if recorded_nothing else Mode.REPLAY}"


def _is_unclaimed_async_test(item: pytest.Function) -> bool:
    there = item.config.pluginmanager.hasplugin
    if any(item.get_closest_marker(name) for name in _OTHER_LOOPS):
        return False
    claimed = [name for name in _ASYNC_MARKS if item.get_closest_marker(name)]
    if any(there(plugin) for name in claimed for plugin in _ASYNC_MARKS[name]):
        return False
    if claimed or item.get_closest_marker(MARKER):
        return True
    return not any(map(there, _ASYNC_PLUGINS))


def _drop_event_loop_frames(tb: TracebackType) -> None:
    """Drop the event loop's frames, forty lines, between the test and its error."""
    while tb.tb_next is not None:
        if tb.tb_next.tb_next is not None and tb.tb_next.tb_frame.f_globals.get("__name__", "") in _LOOPS:
            tb.tb_next = tb.tb_next.tb_next
        else:
            tb = tb.tb_next
