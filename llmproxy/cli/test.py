"""``llmproxy test suite.yaml``: run suites against an agent with its LLM traffic through the proxy.

Recordings of tests are in ``tests/cassettes/*.yaml``, to be committed; the store in ``.llmproxy/`` is built from them
and not committed.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from llmproxy.advice import SUITE_MODE
from llmproxy.cli.parts import suite_shards_and_signals as helpers
from llmproxy.cli.parts.options import (
    CASSETTES,
    LAST_REPORT,
    STORE,
    OwnOptionsFirstInHelp,
    find_test_recordings_store,
    get_given_flag_values,
    load_settings,
)
from llmproxy.cli.parts.run_ending import LiveRunDifferenceReporter, write_json_result_file
from llmproxy.cli.parts.session_setup import build_start_flags
from llmproxy.cli.parts.suite_shards_and_signals import SelectedShardCases, print_warning, run_or_raise_interrupt
from llmproxy.client.proxy_process import ProxyHandle, ensure_proxy, read_llmproxy_url
from llmproxy.core.sessions.journal import get_decision_journal_path
from llmproxy.errors import Exit, LLMProxyError, MachineError, SettingsError
from llmproxy.file_io import create_gitignored_folder
from llmproxy.postgres_store_paths import find_postgres_of_local_copy, is_postgres_url, strip_secrets_from_url
from llmproxy.protocol import UPDATE_VARIABLE, Mode, UpdateMode
from llmproxy.report.events import Completed, Handler
from llmproxy.report.report_kinds import CHOICES, create_report_event_handler, make_last_report_writer
from llmproxy.report.scenario_rows import BaselineChangePrinter, read_baseline
from llmproxy.report.trend import TrendRecorder, format_trend, read_recent_tests

if TYPE_CHECKING:
    from llmproxy.client.fault_sweep_judging import FaultTrialFinding
    from llmproxy.settings import Loaded as LoadedSettings
    from llmproxy.suite.reading.load import LoadedSuites, SuiteCase
    from llmproxy.suite.run.run_context import SuiteRunContext
    from llmproxy.suite.run.runner import SuiteResult


def register(app: typer.Typer) -> None:
    app.command("test", cls=OwnOptionsFirstInHelp)(run_suites_of_test_command)


def run_suites_of_test_command(
    ctx: typer.Context,
    paths: list[str] = typer.Argument(None, metavar="SUITE", help="Suites: files, folders, globs. Default: here."),
    tags: str = typer.Option("", "--tags", metavar="EXPRESSION", help='Scenarios by tags: "smoke and not slow".'),
    tag: list[str] = typer.Option(
        [], "--tag", metavar="TAG", help="Scenarios with this tag; repeat for several tags, all required."
    ),
    ids: list[str] = typer.Option([], "--id", metavar="ID", help="This scenario; repeat for several."),
    grep: str = typer.Option("", "--grep", metavar="TEXT", help="Scenarios with TEXT in id, name or description."),
    step: str = typer.Option("", "--step", metavar="LABEL", help="Scenarios with this step, run up to it."),
    runs: int = typer.Option(None, "--runs", min=1, metavar="N", help="Number of runs of each scenario."),
    parallel: int = typer.Option(
        None, "--parallel", min=1, metavar="N", help="Number of parallel runs, if independent; default: 1, on Ray all."
    ),
    on: str = typer.Option(
        "", "--on", metavar="ray|ray://HOST:PORT", help="Run on a Ray cluster; `ray` alone starts one here."
    ),
    send: list[str] = typer.Option(
        [], "--send", metavar="FILE", help="With --on: send these files to the nodes too; patterns, may be repeated."
    ),
    send_env: list[str] = typer.Option(
        [], "--send-env", metavar="NAME", help="With --on: send this variable to the nodes; may be repeated."
    ),
    last_failed: bool = typer.Option(False, "--last-failed", help="Scenarios that did not pass in the last test run."),
    watch: bool = typer.Option(False, "--watch", help="Run again whenever a file of the suites or the agent changes."),
    changes: bool = typer.Option(
        False, "--changes", help="List, offline, what changed since the recording, like `changes`."
    ),
    update: bool = typer.Option(False, "--update", help="Store new snapshots; not in CI."),
    keep_going: bool = typer.Option(False, "--continue-on-failure", help="Continue a scenario after a failed step."),
    fast_waits: bool = typer.Option(False, "--fast-waits", help="Let `wait` poll without pauses."),
    max_cost: str = typer.Option("", "--max-cost", metavar="USD", help="Stop before more than this is spent."),
    report: list[str] = typer.Option(
        [], "--report", metavar="KIND=FILE", help=f"Write a report: {CHOICES}; may be repeated."
    ),
    shard: str = typer.Option(
        "", "--shard", metavar="N/OF", help="Run only this part of the scenarios, such as 3/10; for `llmproxy merge`."
    ),
    shard_times: Path = typer.Option(
        None, "--shard-times", metavar="REPORT", help="Balance parts by the times in this JSON report."
    ),
    baseline: Path = typer.Option(
        None, "--baseline", metavar="REPORT", help="Compare with this earlier JSON report. Worse results come first."
    ),
    trend: bool = typer.Option(False, "--trend", help="Run nothing: show the last test runs, worse results first."),
    rejudge: Path = typer.Option(
        None, "--rejudge", metavar="REPORT", help="Judge a report's runs again (`last`: the last); no agent is run."
    ),
    agent: str = typer.Option(
        "", "--agent", metavar="AGENT", help="Replaces the suites' agent: URL, command, module:function, YAML."
    ),
    entity_store: str = typer.Option("", "--entity-store", metavar="URL|YAML", help="Replaces suites' entity store."),
    as_json: Path | None = typer.Option(
        None, "--json", metavar="FILE", help="Write findings of a sweep or of --live as JSON."
    ),
    init: bool = typer.Option(
        False, "--init", help="Write a first suite that runs. It asks how to reach the agent, unless --agent is given."
    ),
) -> None:
    """Test an agent by YAML suites; LLM calls are replayed, or recorded with --mode record."""
    if init:
        from llmproxy.cli.suite import write_starter_suite

        raise typer.Exit(write_starter_suite(paths or [], agent))
    limit = load_settings({"max_cost": max_cost or None}).settings.max_cost
    asked = TestCommandOptions(
        flags=get_given_flag_values(ctx), paths=tuple(paths or ["."]), tags=tags, tag=tuple(tag), ids=tuple(ids),
        grep=grep,
        step=step, runs=runs, parallel=parallel, last_failed=last_failed, update=update, keep_going=keep_going,
        fast_waits=fast_waits, max_cost=limit, reports=tuple(report), baseline=baseline,
        rejudge=LAST_REPORT if rejudge == Path("last") else rejudge, agent=agent, store=entity_store, as_json=as_json,
        shard=shard, shard_times=shard_times, on=on, send=tuple(send), send_env=tuple(send_env),
    )  # fmt: skip
    if trend:
        raise typer.Exit(asked.print_trend())
    with helpers.treat_signals_as_interrupt():
        if changes:
            raise typer.Exit(_run_tests_listing_changes(asked))
        if watch:
            from llmproxy.suite.reading.project_settings import rerun_on_change

            tell = partial(typer.echo, err=True)
            raise typer.Exit(rerun_on_change(lambda: asked.execute(os.environ), asked.paths, tell))
        raise typer.Exit(asked.execute(os.environ))


def _run_tests_listing_changes(asked: TestCommandOptions) -> int:
    from llmproxy.cli import changes  # late: a sixth of a second, which no other test needs
    from llmproxy.report.request_change_summary import build_changed_requests_report

    since, flags = time.time(), {**asked.flags, "mode": "replay"}
    code = replace(asked, flags=flags).execute({**os.environ, UPDATE_VARIABLE: UpdateMode.TRIAL.value})
    loaded = load_settings(flags)
    store, usual = find_test_recordings_store(loaded), CASSETTES if CASSETTES.is_dir() else None
    found = build_changed_requests_report(store, since)
    found = replace(found, counts={**found.counts, **changes.count_last_report_outcomes(since)})
    folder, record = loaded.settings.cassette_dir or usual, f"{asked.base_command} --mode auto"
    return changes.print_changes_and_choose_exit(store, found, code, folder=folder, record=record)


@dataclass(frozen=True, slots=True, kw_only=True)
class TestCommandOptions:
    flags: Mapping[str, object]
    paths: tuple[str, ...]
    tags: str = ""
    tag: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    grep: str = ""
    step: str = ""
    runs: int | None = None
    parallel: int | None = None
    last_failed: bool = False
    update: bool = False
    keep_going: bool = False
    fast_waits: bool = False
    max_cost: Decimal | None = None
    reports: tuple[str, ...] = ()
    baseline: Path | None = None
    rejudge: Path | None = None
    agent: str = ""
    store: str = ""
    as_json: Path | None = None
    shard: str = ""
    shard_times: Path | None = None
    on: str = ""
    send: tuple[str, ...] = ()
    send_env: tuple[str, ...] = ()

    def execute(self, env: Mapping[str, str]) -> int:
        """Load, select and run the scenarios; return the exit code. Raises LLMProxyError: nothing was run."""
        from llmproxy.suite.checks.chat_step_assertions import refuse_snapshot_update_in_ci

        if self.update:
            refuse_snapshot_update_in_ci(env)
        reports = [create_report_event_handler(text, lambda: self.find_store(env)) for text in self.reports]
        ended = helpers.AbortedTestRunEndEmitter()
        try:
            code = self._run_cases_for_exit_code([*reports, ended], env)
        except (LLMProxyError, KeyboardInterrupt) as error:
            ended.emit_test_end_with_error(reports, error)
            for lost in self._close_reports(reports):
                typer.echo(f"llmproxy: {lost}", err=True)
            raise
        if lost_ones := self._close_reports(reports):
            raise MachineError("\n".join(lost_ones))
        return code

    def find_store(self, env: Mapping[str, str]) -> Path | None:
        """Return the store of the tests; None if a running proxy has another, or settings do not decide."""
        with suppress(LLMProxyError):
            return None if read_llmproxy_url(env) else find_test_recordings_store(load_settings(self.flags))
        return None

    def _close_reports(self, reports: Sequence[Handler]) -> list[str]:
        lost = []
        for text, report in zip(self.reports, reports, strict=True):
            try:
                report.close()
            except OSError as error:
                lost.append(f"--report {text!r} could not be written: {error.strerror or error}")
        return lost

    def _run_cases_for_exit_code(self, reports: Sequence[Handler], env: Mapping[str, str]) -> int:
        from llmproxy.suite.reading.load import load_suites
        from llmproxy.suite.selection import save_failed_case_ids

        settings, loaded = load_settings(self.flags), load_suites(self.paths)
        cases = self.select_cases(loaded)
        for doubt in loaded.warnings:
            typer.echo(f"llmproxy: {doubt}", err=True)
        if not cases:
            nothing = f"nothing selected: no scenario of {len(loaded.scenarios)} matches the options"
            typer.echo(f"llmproxy: {nothing}", err=True)
            for report in reports:
                report.handle(Completed(exit_code=Exit.NOTHING, seconds=0.0, notes=(nothing,)))
            return Exit.NOTHING
        part = helpers.select_shard_cases(
            self.shard, self.shard_times, cases, self.runs, self.base_command, partly=self.has_scenario_filters
        )
        if part is not None and not part.cases:
            print_warning(helpers.emit_empty_shard(part, reports, str(settings.settings.mode), time.time()))
            return Exit.OK
        cases = cases if part is None else part.cases
        self._check_options(settings, env)
        if settings.settings.faults.partition(":")[0] == "sweep":
            return self.run_sweep(cases, settings, env)
        ids, against = [case.id for case in cases], list[Handler]()
        if self.baseline is not None:
            against.append(BaselineChangePrinter(read_baseline(self.baseline, ids), sys.stdout.write, ids))
        shown = helpers.make_suite_console_handler(verbose=settings.settings.verbose)
        journal = get_decision_journal_path(find_test_recordings_store(settings))
        kept = [] if self.rejudge is not None or self.step else [TrendRecorder(journal, print_warning)]
        last = make_last_report_writer(Path.cwd() / LAST_REPORT, print_warning) if self.rejudge is None else []
        if settings.settings.live:
            recordings = find_test_recordings_store(settings)
            against.append(LiveRunDifferenceReporter(settings, recordings, self.baseline, self._print_live_diff))
        try:
            heard = [*against, *kept, *last, *reports]
            if self.on:
                tested = self.run_on_ray(cases, settings, shown, heard, env, part)
            else:
                tested = self.run_cases_locally(cases, settings, [shown, *heard], env, part)
        finally:
            shown.close()
            for each in last:
                each.close()
        if self.rejudge is None:
            failed = [case.full_id for case in cases if not tested.has_passed(case)]
            save_failed_case_ids(Path.cwd(), [] if self.step else [case.full_id for case in cases], failed)
        return tested.exit_code

    def _print_live_diff(self, lines: Sequence[str], told: Mapping[str, object]) -> None:
        for text in lines:
            typer.echo(text)
        if self.as_json is not None:
            write_json_result_file(self.as_json, told)

    def print_trend(self) -> int:
        """Print past tests of all scenarios, of suites, or of those selected by --id. Raises LLMProxyError."""
        path = get_decision_journal_path(find_test_recordings_store(load_settings(self.flags)))
        tests = read_recent_tests(path)
        known = set(self.ids)
        if self.paths != (".",):
            from llmproxy.suite.reading.load import load_suites

            known |= {case.id for case in load_suites(self.paths).scenarios}
        lines = format_trend(tests, lambda name: not known or name in known)
        for line in lines:
            typer.echo(line)
        if not lines:
            what = f"none of the last {len(tests)} tests ran the selected scenarios" if tests else "no test is kept yet"
            print_warning(
                f"no trend: {what} ({path}); every test is kept: of `llmproxy test`, pytest, and programs"
                " whose scenarios are recorded"
            )
        return Exit.OK if lines else Exit.NOTHING

    def select_cases(self, loaded: LoadedSuites) -> list[SuiteCase]:
        from llmproxy.suite.selection import SelectionOptions, read_last_failed, select_cases

        only = None
        if self.last_failed and (only := read_last_failed(Path.cwd())) is None:
            typer.echo("llmproxy: nothing is known of a last run; all scenarios are run", err=True)
        wanted = SelectionOptions(
            tags=self.tags, tag=self.tag, ids=self.ids, grep=self.grep, label=self.step, only=only
        )
        return select_cases(loaded.scenarios, wanted)

    def run_cases_locally(
        self,
        cases: Sequence[SuiteCase],
        settings: LoadedSettings,
        handlers: Sequence[Handler],
        env: Mapping[str, str],
        part: SelectedShardCases | None = None,
    ) -> SuiteResult:
        from llmproxy.scenario.cluster.transfer_files import get_ray_driver_cassette_dir
        from llmproxy.suite.run.runner import run_cases
        from llmproxy.suite.selection import check_cost_estimate_before_run

        mode = str(settings.settings.mode) if not settings.is_default("mode") else None
        store = find_test_recordings_store(settings)
        options = [] if read_llmproxy_url(env) else build_test_proxy_flags(self.flags, settings)
        if options and self.flags.get("port") is None and any("url" in (each.suite.agent or ()) for each in cases):
            options.append(f"--port={settings.settings.port}")  # a service that runs already has its base URLs there
        typed = self.base_command + SUITE_MODE
        with (
            tempfile.TemporaryDirectory(prefix="llmproxy-test-") as folder,
            ensure_proxy(options, env, log=Path(folder) / "proxy.log", started_by=typed) as proxy,
        ):
            mode = mode or proxy.control.health().mode
            run_context = self.make_run_context(proxy, handlers, mode, part)
            said = settings.settings
            carried, stale, live = said.fail_on_carried, said.fail_on_stale, "llm" in said.live
            run_context.options = replace(run_context.options, fail_on_carried=carried, fail_on_stale=stale, live=live)
            if proxy.process is not None and find_postgres_of_local_copy(store) is None:
                run_context.files = (store, get_ray_driver_cassette_dir(settings))
            if self.rejudge is not None:
                from llmproxy.suite.run.run_context import load_runs_to_rejudge

                run_context.recorded = load_runs_to_rejudge(self.rejudge, [case.id for case in cases], store)
            notes = [] if run_context.recorded else check_cost_estimate_before_run(store, cases, run_context.options)
            try:
                return asyncio.run(run_or_raise_interrupt(run_cases(run_context, cases, notes)))
            finally:
                for path in run_context.save_snapshots():
                    typer.echo(f"llmproxy: wrote {path}", err=True)
                run_context.close()

    def _check_options(self, settings: LoadedSettings, env: Mapping[str, str]) -> None:
        """Raise SettingsError for options that exclude each other."""
        faults, live = settings.settings.faults, settings.settings.live
        if not self.on and (self.send or self.send_env):
            msg = "--send and --send-env say what travels to the nodes of a cluster: they go with --on ray."
            raise SettingsError(msg)
        here = {"--rejudge": self.rejudge, "--update": self.update, "--live": live}
        for flag, given in {**here, "--faults sweep": faults.startswith("sweep")}.items():
            if given and self.on:
                raise SettingsError(f"{flag} runs here: leave --on {self.on} out.")
        if self.rejudge is not None and faults:
            raise SettingsError("--rejudge runs no agent, so no call of one can meet --faults.")
        if self.rejudge is not None and live:
            raise SettingsError("--rejudge runs no agent, so nothing can be --live.")
        if live and faults:
            raise SettingsError("--live and --faults exclude each other.")
        if live and read_llmproxy_url(env):
            msg = "--live: LLMPROXY_URL is set, and the proxy that runs there has options of its own."
            raise SettingsError(msg, hint="Start that one with --live, or unset LLMPROXY_URL.")

    def run_on_ray(
        self, cases: Sequence[SuiteCase], settings: LoadedSettings, shown: Handler,
        handlers: Sequence[Handler], env: Mapping[str, str], part: SelectedShardCases | None = None,
    ) -> SuiteResult:  # fmt: skip
        """Run cases on a cluster: `shown` gets events as runs end, `handlers` in the order of the suites."""
        from llmproxy.scenario.cluster import transfer_files
        from llmproxy.scenario.cluster.remote_runner import open_ray_connection
        from llmproxy.suite.run.run_on_cluster import RemoteCaseRunner, RunEventReorderer, pack_suites_for_cluster
        from llmproxy.suite.run.runner import run_cases
        from llmproxy.suite.selection import check_cost_estimate_before_run

        order = [(case.id, n) for case in cases for n in range(1, (self.runs or case.scenario.runs) + 1)]
        mode = str(settings.settings.mode)
        run_context = replace(self, parallel=self.parallel or max(len(order), 1)).make_run_context(
            None, [shown, RunEventReorderer(handlers, order)], mode, part
        )
        started = build_start_flags({**self.flags, "store": None, "cassette_dir": None, "mode": mode})
        parcel = pack_suites_for_cluster(
            run_context, cases, self.paths, settings, started, files=self.send, variables=self.send_env, env=env
        )
        notes = check_cost_estimate_before_run(find_test_recordings_store(settings), cases, run_context.options)
        typer.echo(
            f"llmproxy: {transfer_files.describe_files_sent_to_cluster(parcel, self.on, '--send FILE')}", err=True
        )
        told = partial(
            transfer_files.use_local_store_ids_in_events,
            known=partial(transfer_files.map_recording_names_to_ids, find_test_recordings_store(settings)),
        )
        with closing(run_context), open_ray_connection(self.on, parcel.batch, parcel.rates) as runner:
            run_context.execute = RemoteCaseRunner(runner, parcel, told).run_case
            try:
                return asyncio.run(run_or_raise_interrupt(run_cases(run_context, cases, notes, runner.list_notes)))
            finally:
                folder = transfer_files.get_ray_driver_cassette_dir(settings)
                if home := transfer_files.merge_cluster_node_cassettes(runner.recorded, folder):
                    typer.echo(f"llmproxy: {home}", err=True)

    def run_sweep(self, cases: Sequence[SuiteCase], settings: LoadedSettings, env: Mapping[str, str]) -> int:
        from llmproxy.cli.parts.fault_sweep import make_progress_printer, print_sweep_findings
        from llmproxy.client.fault_sweep_judging import parse_fault_sweep_kinds, sweep_findings_to_json as as_plain
        from llmproxy.suite.run.runner import has_case_or_step_faults, sweep_faults_of_case

        every: dict[str, object] = {}
        kinds, print_line = parse_fault_sweep_kinds(settings.settings.faults), make_progress_printer()
        code = int(Exit.OK)
        flags = {**self.flags, "faults": None, "faults_seed": None, "mode": "replay"}
        options = [] if read_llmproxy_url(env) else build_test_proxy_flags(flags, settings)
        env = {name: value for name, value in env.items() if not name.startswith("LLMPROXY_FAULTS")}
        with (
            tempfile.TemporaryDirectory(prefix="llmproxy-test-") as folder,
            ensure_proxy(options, env, log=Path(folder) / "proxy.log") as proxy,
            closing(replace(self, runs=1, update=False).make_run_context(proxy, [], Mode.REPLAY)) as run_context,
        ):
            for case in cases:
                if has_case_or_step_faults(case):
                    print_line(f"sweep: {case.id} has faults of its own and is left out")
                    continue
                found: list[FaultTrialFinding] = []
                plain = replace(self, flags={**self.flags, "faults": None}).base_command
                typed, interrupted = f"{plain} --faults FAULT --id {shlex.quote(case.id)}", True
                try:
                    asyncio.run(
                        run_or_raise_interrupt(sweep_faults_of_case(run_context, case, kinds, print_line, found))
                    )
                    interrupted = False
                finally:
                    code = max(code, print_sweep_findings(found, typed, interrupted=interrupted))
                    every[case.id] = as_plain(found)
        if self.as_json is not None:
            write_json_result_file(self.as_json, every)
        return code

    def make_run_context(
        self, proxy: ProxyHandle | None, handlers: Sequence[Handler], mode: str, part: SelectedShardCases | None = None
    ) -> SuiteRunContext:
        """Return the context shared by all runs; the caller closes it."""
        from llmproxy.suite.reading.project_settings import (
            SuiteCommandOptions,
            parse_agent_or_store_flag_value,
            read_suite_pyproject_table,
        )
        from llmproxy.suite.run.run_context import SuiteRunContext

        defaults, folder = read_suite_pyproject_table(Path.cwd())
        options = SuiteCommandOptions(
            mode=mode, runs=self.runs, parallel=self.parallel or 1, keep_going=self.keep_going, label=self.step,
            fast_waits=self.fast_waits, update=self.update, max_cost=self.max_cost, command=self.base_command,
            partly=self.has_scenario_filters,
        )  # fmt: skip
        if part is not None:
            options = replace(options, title=part.title, shard=part.told)
        return SuiteRunContext(
            options=options,
            proxy=None if proxy is None else proxy.url,
            handlers=handlers,
            agent=parse_agent_or_store_flag_value(self.agent, "--agent") if self.agent else None,
            store=parse_agent_or_store_flag_value(self.store, "--entity-store") if self.store else None,
            folder=Path.cwd(),
            defaults=defaults,
            defaults_folder=folder,
        )

    @property
    def has_scenario_filters(self) -> bool:
        return bool(self.tags or self.tag or self.ids or self.grep or self.step or self.last_failed)

    @property
    def base_command(self) -> str:
        given = {"--agent": self.agent, "--entity-store": self.store, "--rejudge": str(self.rejudge or "")}
        words = [word for name, value in given.items() if value for word in (name, value)]
        said = {name: value for name, value in self.flags.items() if name != "mode"}
        if is_postgres_url(str(said.get("store", ""))):
            said["store"] = strip_secrets_from_url(str(said["store"]))
        proxy = build_start_flags(said)
        return shlex.join(["llmproxy", "test", *(path for path in self.paths if path != "."), *words, *proxy])


def build_test_proxy_flags(flags: Mapping[str, object], settings: LoadedSettings) -> list[str]:
    """Return proxy options for tests: by default cassettes in `tests/cassettes`, the store in `.llmproxy`."""
    words = build_start_flags(flags)
    if settings.is_default("store"):
        store = Path.cwd() / STORE
        create_gitignored_folder(store.parent)
        words.append(f"--store={store}")
    if settings.is_default("cassette_dir") and find_postgres_of_local_copy(settings.settings.store) is None:
        folder = Path.cwd() / CASSETTES
        # A proxy in replay insists on it; that nothing is recorded is each scenario's to say.
        folder.mkdir(parents=True, exist_ok=True)
        words.append(f"--cassette-dir={folder}")
    return words
