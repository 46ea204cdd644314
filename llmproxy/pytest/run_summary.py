"""The summary of a pytest run: totals of all tests' sessions. A plugin object, registered by `llmproxy.pytest.plugin`.

Our data reaches xdist's controller on the reports of tests, as plain values.
"""

from __future__ import annotations

import os
import sysconfig
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmproxy.advice import format_llmproxy_command, quote_word
from llmproxy.amount_formatting import format_count
from llmproxy.calls_and_totals import Miss, describe_replayed_failures, find_fail_on_exit_code
from llmproxy.client.control import ControlError
from llmproxy.client.session_reports import SessionReport, format_session_counts, shorten_miss, sum_session_reports
from llmproxy.errors import Exit, SettingsError
from llmproxy.protocol import LAST_REPORT, SHOWN_KEY, UpdateMode, append_sample_number_to_name
from llmproxy.pytest.options import BASELINE, MODE, ShardPlugin, build_rerun_command, read_update_option
from llmproxy.pytest.scenario_run_listener import SCENARIOS
from llmproxy.report.events import Completed, Handler, Selected
from llmproxy.report.report_kinds import make_last_report_writer
from llmproxy.report.run_tree import EventsGroupedByRun, deserialize_event
from llmproxy.report.scenario_rows import format_baseline_comparison, format_case_table, read_baseline
from llmproxy.settings import load

if TYPE_CHECKING:
    import pytest

    from llmproxy.pytest.per_test_sessions import ProxySessionOfTest, PytestPluginState
    from llmproxy.scenario.types import ScenarioResult

ATTRIBUTE = "llmproxy"
"""Attribute of a test report (that of its teardown) with the report of the test's session."""
_INTERRUPTED = 2
"""`pytest.ExitCode.INTERRUPTED`, after Ctrl-C."""
_STDLIB, _LIBRARIES = sysconfig.get_path("stdlib"), {"site-packages", "dist-packages"}
_SHOWN = 12
"""Maximum lines of a miss in the error of a test."""
_LISTED = 5
"""Maximum remarks written without -v."""


class RunSummaryPlugin:
    def __init__(self, handlers: Sequence[Handler] = (), run: PytestPluginState | None = None) -> None:
        self._run = run
        self.done: list[tuple[str, SessionReport]] = []
        self.passed: set[str] = set()
        self.runs: list[tuple[str, Any, ScenarioResult]] = []
        self.events: list[Mapping[str, Any]] = []
        self.rows: list[Mapping[str, Any]] = []
        self._handlers = handlers
        self.baseline: Path | None = None
        self._suites: set[str] = set()
        self._changed: list[str] = []
        self._forbidden = ""
        self._compared: list[str] = []
        self.sharding: ShardPlugin | None = None
        self._times: dict[str, float] = {}
        """By test: seconds, set-up and teardown included."""
        self._test_of: dict[str, str] = {}
        self._lost: list[str] = []
        self._since = time.time()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._times[report.nodeid] = self._times.get(report.nodeid, 0.0) + report.duration
        if report.when == "call" and report.passed:
            self.passed.add(report.nodeid)
        if value := getattr(report, ATTRIBUTE, None):
            self.done.append((report.nodeid, SessionReport.from_json(value)))
        if parcel := getattr(report, SCENARIOS, None):
            if parcel["runs"]:
                from llmproxy.pytest.scenario_report import deserialize_scenario_run

                self.runs += [(report.nodeid, *deserialize_scenario_run(run)) for run in parcel["runs"]]
            self.events += parcel["events"]
            self._test_of |= {each["run_id"]: report.nodeid for each in parcel["events"] if each.get("run_id")}
            self.rows += parcel["rows"]
            self._suites |= {report.nodeid} if parcel["rows"] else set()
            self.done += [(report.nodeid, SessionReport.from_json(wire)) for wire in parcel["wires"]]

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        run = self._run
        reports_trials = run is not None and read_update_option(run.config) == UpdateMode.TRIAL
        for store, folder in run.list_stores().items() if run is not None and reports_trials else ():
            from llmproxy.report.request_change_summary import build_changed_requests_report

            found = build_changed_requests_report(store, self._since)
            if not found.counts["cassettes"]:
                continue
            self._changed += [*found.format_lines(), *found.list_next_steps(store, folder)]
            if found.has_changes and session.exitstatus in (Exit.OK, Exit.FAILED):
                session.exitstatus = Exit.CHANGED
        self._fail_on_carried_or_stale(session)
        rows = [*self.rows, *self._list_test_rows({test for test, _, result in self.runs if result.cassette})]
        if rows and self._run is not None:
            resources = self._run.make_resources()
            self._add_to_trend(resources.find_store(os.environ), rows, int(exitstatus))
            if self.events:
                last = make_last_report_writer(resources.root / LAST_REPORT, self._lost.append)
                self._handlers = [*self._handlers, *last]
        if not self._handlers and self.baseline is None:
            return
        of_runs, run_tree = [deserialize_event(tree) for tree in self.events], EventsGroupedByRun()
        for event in of_runs:
            run_tree.add_event(event)
        from llmproxy.pytest.scenario_report import build_scenario_rows

        rows = build_scenario_rows(run_tree, self.rows)
        if self.baseline is not None:
            self._compare_with_baseline(self.baseline, rows)
        shard = None if self.sharding is None else self.sharding.told
        part = None if shard is None else {**shard, "runs": self._test_of}
        times = {test: round(seconds * 1000) for test, seconds in self._times.items()}
        code, took = int(session.exitstatus), time.time() - self._since
        events = [
            Selected(title="pytest", scenarios=len(rows), runs=len(run_tree.runs), at=self._since, shard=part),
            *of_runs,
            Completed(exit_code=code, seconds=took, scenarios=rows, times=times),
        ]
        for handler in self._handlers:
            try:
                for event in events:
                    handler.handle(event)
                handler.close()
            except OSError as error:  # a full disk, say: the tests ran, and who counts on the report must know
                self._lost.append(f"a report could not be written: {error.strerror or error}")
        if self._lost and session.exitstatus == 0:
            session.exitstatus = Exit.ENVIRONMENT

    def _fail_on_carried_or_stale(self, session: pytest.Session) -> None:
        total = sum_session_reports(report for _, report in self.done)
        if self._run is None or not (total.carried or total.stale):
            return
        said = load({}, os.environ, self._run.config.rootpath).settings
        forbidden = find_fail_on_exit_code(total, carried=said.fail_on_carried, stale=said.fail_on_stale)
        if forbidden and session.exitstatus == Exit.OK:
            session.exitstatus, self._forbidden = forbidden

    def _compare_with_baseline(self, path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
        try:
            self._compared = format_baseline_comparison(read_baseline(path, flag=BASELINE), rows, path, BASELINE)
        except SettingsError as error:
            self._lost.append(str(error))

    def _list_test_rows(self, tests: Collection[str]) -> list[Mapping[str, Any]]:
        found: dict[str, list[ScenarioResult]] = {}
        for test, _, result in self.runs:
            if test in tests:
                found.setdefault(test, []).append(result)
        if not found:
            return []
        from llmproxy.pytest.scenario_report import build_test_row

        return [build_test_row(test, results, passed=test in self.passed) for test, results in found.items()]

    def _add_to_trend(self, store: Path, rows: Sequence[Mapping[str, Any]], exitstatus: int) -> None:
        from llmproxy.core.sessions.journal import get_decision_journal_path
        from llmproxy.report.trend import TrendRecorder

        kept = TrendRecorder(get_decision_journal_path(store), self._lost.append)
        kept.handle(Selected(title="pytest", scenarios=len(rows), runs=len(rows), at=self._since))
        code = Exit.INTERRUPTED if exitstatus == _INTERRUPTED else exitstatus
        kept.handle(Completed(exit_code=code, seconds=time.time() - self._since, scenarios=rows))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        self._write_session_lines(terminalreporter)
        if self._changed:
            terminalreporter.section("llmproxy: changes", sep="-")
        for line in self._changed:
            terminalreporter.write_line(line)
        for lost in self._lost:
            terminalreporter.write_line(f"llmproxy: {lost}", red=True)
        cases = self._list_test_rows({test for test, *_ in self.runs if test.endswith("]")})
        short = [{**case, "scenario": case["scenario"].rpartition("::")[2]} for case in cases]
        told = [f"{row['scenario']}: {row['told']}" for row in self.rows if row.get("told")]
        for line in (*told, *self._compared, *format_case_table([*self.rows, *short])):
            terminalreporter.write_line(line)
        if self.runs:
            from llmproxy.pytest.scenario_report import ScenarioReporter

            reporter = ScenarioReporter()
            for _, scenario, result in self.runs:
                reporter.add_result(scenario, result)
            reporter.print_report(terminalreporter.write_line, colour=terminalreporter.hasmarkup)

    def _write_session_lines(self, terminalreporter: pytest.TerminalReporter) -> None:
        left = {} if self._run is None else self._run.unreported
        self.done += [(test, each.closed) for test, each in left.items() if each.closed is not None]
        if not self.done:
            return
        lines = list(self._list_remarks())
        shown = lines if terminalreporter.verbosity > 0 else lines[:_LISTED]
        if len(shown) < len(lines):
            shown.append(f"... and {len(lines) - len(shown)} more: -v")
        terminalreporter.ensure_newline()
        terminalreporter.section("llmproxy", sep="-")
        total = sum_session_reports(report for _, report in self.done)
        tests = len({test for test, _ in self.done})
        told = f"{tests} {'test' if tests == 1 else 'tests'}: {format_session_counts(total)}"
        for line in (*shown, *self._list_view_commands(), told):
            terminalreporter.write_line(line)
        if total.carried and self._run is not None:
            from llmproxy.report.request_change_summary import describe_acceptance_dates

            for store in self._run.list_stores():
                for line in describe_acceptance_dates(store, total.carried_names):
                    terminalreporter.write_line(f"carried: {line}")
        if self._forbidden:
            terminalreporter.write_line(self._forbidden)
        if total.misses and not (self._run and self._run.within_run):
            typed = build_rerun_command(terminalreporter.config)
            terminalreporter.write_line(f"Record what is missing, with your keys: {typed} {MODE} auto")

    def _list_view_commands(self) -> Iterator[str]:
        for test, report in [each for each in self.done if each[0] not in self.passed][:_LISTED]:
            if self._run is None or not (report.hits or report.recorded or report.unused):
                continue
            if (store := self._run.find_store(suites=test in self._suites)) is not None:
                name = append_sample_number_to_name(report.cassette, report.sample or 1)  # older proxies do not say it
                yield f"{test}: look at its recording: {format_llmproxy_command(f'ui {quote_word(name)}', store)}"

    def _list_remarks(self) -> Iterator[str]:
        shared = self._run.shared if self._run is not None else None
        if shared is not None and (outside := shared.read_report_outside_tests()):
            yield f"outside of tests with the fixture `llmproxy`: {format_session_counts(outside)}"
        for test, report in self.done:
            left = self._run is not None and test in self._run.unreported and test not in self.passed
            if report.failed or (report.recorded and left):
                why = f"{report.failed} answers could not be recorded" if report.failed else "interrupted"
                yield f"{test}: {why}: its cassette is incomplete"
            failures = describe_replayed_failures(report, f"{MODE} auto")
            for told in filter(None, (report.unreplaced_recordings_reason, report.unfiled, failures)):
                yield f"{test}: {told}"
            if report.dealt:
                yield f"{test}: {report.dealt} answers to equal requests at the same time were dealt as they came"
            if report.misses and test in self.passed:
                first = shorten_miss(report.miss_texts[0]) if report.miss_texts else ""
                yield f"{test}: passed with {format_count(report.misses, 'miss', 'misses')}: {first}"
            if report.unused and test in self.passed:
                texts = [(row, shorten_miss(row.text or "")[:40]) for row in report.unused[:3]]
                rows = ", ".join(f"#{row.id} {row.model or row.operation} {text!r}" for row, text in texts)
                more = ", ..." if len(report.unused) > 3 else ""
                yield f"{test}: {len(report.unused)} recorded but not asked for: {rows}{more}"


def hide_third_party_frames(error: BaseException | None) -> None:
    """Drop frames of installed packages below the user's first own frame, also in causes of the error."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        frames = [error.__traceback__] if error.__traceback__ else []
        while frames and (after := frames[-1].tb_next):
            frames.append(after)
        files = [each.tb_frame.f_code.co_filename for each in frames]
        own = [not (_LIBRARIES & set(Path(file).parts) or file.startswith(_STDLIB)) for file in files]
        first = own.index(True) if True in own else len(frames)
        kept = [each for at, each in enumerate(frames) if at < first or own[at]] if first < len(frames) else []
        for each, following in zip(kept, [*kept[1:], None], strict=True):
            each.tb_next = following
        error.__traceback__ = kept[0] if kept else None
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def is_this_miss_in_text(miss: Miss, text: str) -> bool:
    return bool(miss.key) and miss.key[:SHOWN_KEY] in text


def unfold_one_line_misses_in_report(report: pytest.TestReport, missed: Sequence[Miss]) -> None:
    """Expand a miss that an SDK has quoted inside its one-line error."""
    for traceback, crash, _ in getattr(report.longrepr, "chain", ()):
        for lines in (entry.lines for entry in traceback.reprentries if hasattr(entry, "lines")):
            for at, line in enumerate(lines):
                quoted = (each.text for each in missed if is_this_miss_in_text(each, line))
                if line.startswith("E") and (miss := next((text for text in quoted if len(line) > len(text)), "")):
                    name, first, *more = line[1:].partition(":")[0].strip(), *_shorten_miss(miss.splitlines())
                    lines[at : at + 1] = [f"E   {name}: {first}", *(f"E     {each}" for each in more)]
                    if crash is not None:
                        crash.message = f"{name}: {first}"
                    break


def _shorten_miss(lines: Sequence[str]) -> Sequence[str]:
    return lines if len(lines) <= _SHOWN else [*lines[: _SHOWN - 4], "  ...", *lines[-3:]]


def read_reported_misses(session: ProxySessionOfTest) -> Sequence[Miss]:
    """Return the misses so far; empty if the proxy does not answer."""
    with suppress(ControlError):
        report = session.report()
        found = session.list_newest_misses(report.misses) if report.misses else ()
        known = len(found) == report.misses  # else the proxy, which remembers the last ones, has forgotten some
        return [found[n] if known else Miss(0.0, session.name, text) for n, text in enumerate(report.miss_texts)]
    return ()


def build_failed_test_miss_sections(
    session: ProxySessionOfTest, missed: Sequence[Miss], shown: str = "", renew: str = ""
) -> list[tuple[str, str]]:
    """Return a failed test's sections about its misses, except `shown` ones. `renew` is the command to record it."""
    try:
        report = session.report()
    except ControlError as error:
        return [("llmproxy", str(error))]
    faulty = [call for call in (session.calls() if report.injected else ()) if call.fault]
    met = [f"call {call.seq}: {call.provider} {call.operation} {call.model or ''}: {call.note}" for call in faulty]
    injected = [("llmproxy: injected faults that it met", "\n".join(met))] if report.injected else []
    title = f'llmproxy: {len(missed)} of its requests not in cassette "{session.cassette}" (mode {session.mode})'
    untold = [each.text for each in missed if not is_this_miss_in_text(each, shown)]
    known = bool(missed and renew and (report.hits or report.unused))
    anew = [("llmproxy: this test changed? Record it anew", renew)] if known else []
    return [*injected, *([(title, "\n\n".join(untold))] if untold else []), *anew]
