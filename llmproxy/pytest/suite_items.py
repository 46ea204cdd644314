"""Suites in pytest: a file is a collector, a scenario an item, its runs sub-reports; executed by the runner of
`llmproxy test`, on the same recordings.

Suites have a proxy of their own (with xdist: each worker), started with the first scenario that runs; scenarios that
read the rows of a store run one at a time over all workers.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from llmproxy.client.child_env import in_ci
from llmproxy.errors import LLMProxyError, SuiteError
from llmproxy.pytest.options import MODE, REJUDGE, build_rerun_command
from llmproxy.pytest.run_proxies import PytestProcessResources
from llmproxy.pytest.scenario_report import prefix_junit_properties
from llmproxy.pytest.scenario_run_listener import LISTENER
from llmproxy.report.events import Event, Finished, PartyUse, RedactingEventHandler, Started, Status
from llmproxy.report.run_console import SuiteConsole
from llmproxy.suite.reading.load import SuiteCase, load_suites
from llmproxy.suite.reading.project_settings import SuiteCommandOptions, read_suite_pyproject_table
from llmproxy.suite.reading.shared_parts import show_path
from llmproxy.suite.run.case_resources import run_hook
from llmproxy.suite.run.case_runner import CaseResult, run_case_once
from llmproxy.suite.run.run_context import SuiteRunContext, load_runs_to_rejudge
from llmproxy.suite.run.runner import (
    describe_hits_missing_from_folder,
    get_matrix_axis_values_of_case,
    summarize_scenario_runs,
)
from llmproxy.suite.schema.suite import SuiteHook

_OUTCOMES: dict[Status, Literal["passed", "skipped"]] = {Status.PASSED: "passed", Status.SKIPPED: "skipped"}


class ScenarioFailedError(Exception):
    """A failed scenario; its text is shown on the terminal."""


class SuiteFileCollector(pytest.File):
    bench: PytestProcessResources

    def __init__(self, *, bench: PytestProcessResources, **node: Any) -> None:
        super().__init__(**node)
        self.bench = bench
        self._run_context: SuiteRunContext | None = None
        self._begun: dict[int, SuiteCase] = {}
        self._broken: dict[int, str] = {}

    def collect(self) -> Iterator[SuiteItem]:
        """Yield the scenarios of the file. Raises CollectError with every problem and its place."""
        try:
            loaded = load_suites([self.path])
        except SuiteError as error:
            raise self.CollectError(str(error)) from None
        for doubt in loaded.warnings:
            with suppress(Warning):  # not even where warnings are errors is a doubt more than a doubt
                self.warn(pytest.PytestCollectionWarning(str(doubt)))
        for case in loaded.scenarios:
            yield SuiteItem.from_parent(self, name=case.id, case=case)

    def get_run_context(self) -> SuiteRunContext:
        """Return the context shared by the file's scenarios, created for the first. Raises LLMProxyError."""
        if self._run_context is None:
            defaults, folder = read_suite_pyproject_table(self.bench.root)
            options = SuiteCommandOptions(mode=self.bench.mode, command=f"llmproxy test {show_path(self.path)}")
            proxy = self.bench.ensure_proxy(os.environ)
            run_context = SuiteRunContext(
                options=options, proxy=proxy, folder=self.bench.root, defaults=defaults, defaults_folder=folder
            )
            run_context.files = self.bench.find_store_and_cassette_dir(os.environ)
            if self.bench.rejudge:
                run_context.recorded = load_runs_to_rejudge(
                    Path(self.bench.rejudge), None, self.bench.find_store(os.environ)
                )
            self._run_context = run_context  # whole: what could not be judged again must not run for the next scenario
        return self._run_context

    def run_setup_hooks(self, case: SuiteCase) -> None:
        """Run a suite's setup, once before its scenarios. Raises SuiteError, for each of them, if that failed."""
        key = id(case.suite)
        if self.bench.rejudge:
            return
        if key not in self._begun:
            self._begun[key] = case
            try:
                _run_hooks(case, case.suite.hooks.before_all if case.suite.hooks else (), "beforeAll")
            except LLMProxyError as error:
                self._broken[key] = f"{case.suite.name}: {error}: its scenarios were not run"
        if key in self._broken:
            raise SuiteError(self._broken[key])

    def teardown(self) -> None:
        run_context, self._run_context = self._run_context, None
        begun, self._begun = self._begun, {}
        try:
            with self.bench.restored_env():
                for case in begun.values():
                    _run_hooks(case, case.suite.hooks.after_all if case.suite.hooks else (), "afterAll")
        except LLMProxyError as error:
            raise pytest.fail.Exception(f"{show_path(self.path)}: {error}", pytrace=False) from None
        finally:
            if run_context is not None:
                run_context.close()


def _run_hooks(case: SuiteCase, hooks: Sequence[SuiteHook], name: str) -> None:
    async def every() -> None:
        for hook in hooks:
            await run_hook(hook, case.folder, {"LLMPROXY_SUITE": case.suite.name}, name)

    if hooks:
        asyncio.run(every())


class SuiteItem(pytest.Item):
    parent: SuiteFileCollector

    def __init__(self, *, case: SuiteCase, **node: Any) -> None:
        super().__init__(**node)
        self.case = case
        for tag in case.scenario.tags:
            _add_tag_marker(self, tag)
        if case.scenario.skip:
            self.add_marker(pytest.mark.skip(reason=_reason_or_default(case.scenario.skip, "skip: true")))

    def setup(self) -> None:
        try:
            with self.parent.bench.restored_env():
                self.parent.get_run_context()
                self.parent.run_setup_hooks(self.case)
        except LLMProxyError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None

    def runtest(self) -> None:
        bench, run_context = self.parent.bench, self.parent.get_run_context()
        rejudge = f" {REJUDGE} {shlex.quote(bench.rejudge)}" if bench.rejudge else ""
        again = build_rerun_command(self.config, self.nodeid) + rejudge
        scenarios = self.config.stash[LISTENER]
        scenarios.mark_as_suite_case(again)
        run_context.handlers = [scenarios]
        mode = scenarios.choose_mode_for_attempt(self.nodeid, bench.mode)
        run_context.options = replace(run_context.options, mode=mode, command=again, only="", mode_flag=MODE)
        reads_rows = bool(run_context.list_case_entities(self.case))
        with bench.restored_env(), bench.lock() if reads_rows else nullcontext():
            ran = asyncio.run(self._run_case(run_context))
        made = summarize_scenario_runs(
            self.case.id, ran, self.case.scenario.min_pass_rate
        ) | get_matrix_axis_values_of_case(self.case)
        unfiled = describe_hits_missing_from_folder(run_context.files, ran)
        if (first := next((each.wire for each in ran if each.wire), None)) is not None:
            first.unfiled = "" if in_ci(os.environ) else unfiled
        events = scenarios.collect_suite_case_result(made, [each.wire for each in ran])
        self.user_properties += _list_item_properties(made, events)
        self._raise_verdict(made, ran, events)
        if unfiled and in_ci(os.environ):
            raise ScenarioFailedError(f"{self.case.id}: {unfiled}")

    async def _run_case(self, run_context: SuiteRunContext) -> list[CaseResult]:
        runs = run_context.count_samples(self.case)
        return [await run_case_once(run_context, self.case, sample, runs) for sample in range(1, runs + 1)]

    def _raise_verdict(
        self, made: Mapping[str, Any], ran: Sequence[CaseResult], events: Sequence[Sequence[Event]]
    ) -> None:
        told = [_format_as_suite_console(run) or str(each.error or "") for run, each in zip(events, ran, strict=True)]
        passed, expected = made["status"] == Status.PASSED, self.case.scenario.xfail
        several = len(ran) > 1 and not expected
        shown_apart = False
        for number, (each, text) in enumerate(zip(ran, told, strict=True), 1):
            if several and (each.status is Status.PASSED or not passed):
                shown_apart |= report_subtest(self, f"run {number}/{len(ran)}", each.status, text)
        if passed and expected:
            pytest.xfail(_reason_or_default(expected, "xfail: true"))
        if made["status"] == Status.SKIPPED:
            pytest.skip(ran[0].reasoning)
        if passed:
            if several:
                self.add_report_section("call", "runs", "\n".join([*told, made["told"]]))
            return
        lines = [f"{self.case.id}: {made['told']}"] if several else []
        lines += [] if shown_apart else told
        raise ScenarioFailedError("\n".join(lines))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, (ScenarioFailedError, LLMProxyError)):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        place = self.case.scenario.place
        return self.case.path, place.line - 1 if place else 0, self.name


def _list_item_properties(made: Mapping[str, Any], runs: Sequence[Sequence[Event]]) -> list[tuple[str, object]]:
    started = [event for run in runs for event in run if isinstance(event, Started)]
    used = [use for run in runs for event in run if isinstance(event, Finished) for use in event.usage.values()]
    return prefix_junit_properties(
        "scenario",
        name=started[0].name if started else "",
        status=made["status"],
        runs=f"{made['passed']}/{made['runs']}" if made["runs"] > 1 else "",
        cassette=started[0].cassette if started else "",
        cost_usd=sum(used, PartyUse()).cost_usd,
        run_id=" ".join(each.run_id for each in started),
    )


def _reason_or_default(said: bool | str, default: str) -> str:  # noqa: FBT001 - as a suite says it
    return said if isinstance(said, str) else default


def _add_tag_marker(item: SuiteItem, tag: str) -> None:
    item.extra_keyword_matches.add(tag)
    known = item.config.stash.setdefault(_TAGS, set())
    if tag.startswith("_"):  # pytest has no such marks
        return
    if tag not in known:
        known.add(tag)
        item.config.addinivalue_line("markers", f"{tag}: tag of a suite")
    item.add_marker(tag)


_TAGS = pytest.StashKey[set[str]]()


def _format_as_suite_console(events: Sequence[Event]) -> str:
    lines: list[str] = []
    console = RedactingEventHandler(SuiteConsole(lines.append))
    for event in events:
        console.handle(event)
    return "".join(lines).rstrip("\n")


def report_subtest(item: pytest.Item, name: str, status: Status, text: str) -> bool:
    """Report a run of an item as a subtest; returns False before pytest 9.0, where the item reports it."""
    try:
        from _pytest.subtests import SubtestContext, SubtestReport
    except ImportError:
        return False
    outcome: Literal["passed", "failed", "skipped"] = _OUTCOMES.get(status, "failed")
    now = time.time()
    report = pytest.TestReport(
        nodeid=item.nodeid, location=item.location, keywords={}, outcome=outcome,
        longrepr=text if outcome == "failed" else (str(item.path), 0, text) if outcome == "skipped" else None,
        when="call", start=now, stop=now,
    )  # fmt: skip
    made = SubtestReport._new(report, SubtestContext(msg=name, kwargs={}), None, None)  # noqa: SLF001 - only one
    capture = item.config.pluginmanager.getplugin("capturemanager")
    with nullcontext() if capture is None else capture.global_and_fixture_disabled():
        item.ihook.pytest_runtest_logreport(report=made)
    return True
