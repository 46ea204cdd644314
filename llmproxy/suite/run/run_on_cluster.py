"""Suites on a Ray cluster: the same engine, with single runs executed on other nodes (`scenario.cluster`).

`runner.run_cases` is unaware of it: selection, hooks, the schedule, verdicts and exit codes work as on one machine.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import llmproxy
from llmproxy.errors import LLMProxyError, MachineError
from llmproxy.postgres_store_paths import find_postgres_of_local_copy
from llmproxy.report.events import Completed, Event, Finished, Handler, Selected, Started, Status, notify_handlers
from llmproxy.scenario.cluster.remote_runner import RayClusterRunner
from llmproxy.scenario.cluster.transfer_files import (
    collect_cluster_env_variables,
    get_ray_driver_cassette_dir,
    glob_files,
    read_cassette_files_as_bytes,
    read_project_files_for_cluster,
)
from llmproxy.scenario.cluster.worker_node import (
    NodeRunExecutor,
    NodeRunResult,
    NodeSetup,
    RunEventCollector,
    Take,
    make_error_picklable,
)
from llmproxy.scenario.values.run_ids_and_options import describe_error
from llmproxy.settings import Loaded
from llmproxy.suite.checks.chat_step_assertions import get_suite_snapshot_path
from llmproxy.suite.reading.load import SuiteCase, load_suites
from llmproxy.suite.reading.project_settings import SuiteCommandOptions
from llmproxy.suite.run.case_runner import CaseResult, build_run_event_emitter, run_case_once
from llmproxy.suite.run.run_context import SuiteRunContext
from llmproxy.suite.selection import build_case_cassette_name

_VARIABLE = re.compile(rb"\$\{env:(\w+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteParcel(NodeSetup):
    paths: Sequence[str]
    options: SuiteCommandOptions
    agent: Mapping[str, Any] | None = None
    store: Mapping[str, Any] | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    defaults_folder: str = "."

    def unpack(self, folder: Path, take: Take | None) -> NodeRunExecutor:
        return _SuiteNode(self, folder, take)


def list_files_in_agent_configs(
    cases: Iterable[SuiteCase], more: Iterable[tuple[Mapping[str, Any] | None, Path]] = ()
) -> list[Path]:
    described = [(getattr(case.suite, "agent", None), case.folder) for case in cases]
    found: dict[Path, None] = {}
    for mapping, folder in (*described, *more):
        for value in (mapping or {}).values():
            for word in [value] if isinstance(value, str) else value if isinstance(value, list | tuple) else []:
                if isinstance(word, str) and (path := folder / word.partition(":")[0]).is_file():
                    found[path] = None
    return list(found)


def collect_referenced_env_values(files: Iterable[bytes], env: Mapping[str, str]) -> dict[str, str]:
    names = sorted({name.decode() for data in files for name in _VARIABLE.findall(data)})
    return {name: env[name] for name in names if name in env}


def pack_suites_for_cluster(
    run_context: SuiteRunContext, cases: Sequence[SuiteCase], paths: Sequence[str], settings: Loaded,
    proxy: Sequence[str], *, files: Sequence[str], variables: Sequence[str], env: Mapping[str, str],
) -> SuiteParcel:  # fmt: skip
    """Collect the data for these cases. Raises SuiteError: a file is outside, or gone; SettingsError: an unset name."""
    root = Path.cwd()
    suites = load_suites(paths).files
    agents = list_files_in_agent_configs(
        cases, [(run_context.agent, root), (run_context.defaults.get("agent"), run_context.defaults_folder)]
    )
    snapshots = [path for path in dict.fromkeys(get_suite_snapshot_path(case.path) for case in cases) if path.is_file()]
    packed = read_project_files_for_cluster([*suites, *agents, *snapshots, *glob_files(files, root)], root)
    live = settings.settings.mode.policy.reaches_network
    said = collect_cluster_env_variables(variables, env, live=live, flag="--send-env")
    server = find_postgres_of_local_copy(settings.settings.store)
    wanted = {build_case_cassette_name(case.suite.name, case.id) for case in cases}
    return SuiteParcel(
        batch=uuid.uuid4().hex[:12], version=llmproxy.__version__, files=packed,
        cassettes={} if server else read_cassette_files_as_bytes(get_ray_driver_cassette_dir(settings), wanted),
        server=server.url if server else "",
        paths=[_make_relative(path, root) for path in paths], options=replace(run_context.options, shard=None),
        proxy=proxy,
        env={**said, **collect_referenced_env_values(packed.values(), env), **{name: env[name] for name in variables}},
        rates=settings.settings.rate if live else {},
        agent=run_context.agent, store=run_context.store, defaults=run_context.defaults,
        defaults_folder=_make_relative(run_context.defaults_folder, root),
    )  # fmt: skip


def _make_relative(path: str | Path, root: Path) -> str:
    found = Path(path)
    return found.relative_to(root).as_posix() if found.is_absolute() and found.is_relative_to(root) else str(path)


class RemoteCaseRunner:
    def __init__(
        self, runner: RayClusterRunner, parcel: SuiteParcel, told: Callable[[Sequence[Event]], Sequence[Event]] = list
    ) -> None:
        self._runner, self._parcel, self._sent, self._told = runner, parcel, runner.put_parcel(parcel), told

    async def run_case(
        self, run_context: SuiteRunContext, case: SuiteCase, sample: int, runs: int, *, alone: bool
    ) -> CaseResult:
        """Run a case on a node, and emit its events to `run_context`. Raises only on cancellation."""
        resources = case.scenario.resources
        try:
            back: NodeRunResult[CaseResult] = await self._runner.run(
                case.id, resources, self._parcel, self._sent, case.id, sample, runs, alone
            )
        except LLMProxyError as error:  # no node could execute it
            rerun = run_context.options.build_rerun_command(case.id)
            emitter = build_run_event_emitter(run_context, case, sample, runs, rerun=rerun)
            emitter.emit_start(mode=run_context.options.mode or "")
            emitter.emit_end(status=Status.ENVIRONMENT_ERROR, error=describe_error(error))
            return CaseResult(Status.ENVIRONMENT_ERROR, error)
        for event in self._told(back.events):
            run_context.emit_event(event)
        return back.ended


class _SuiteNode(NodeRunExecutor):
    def __init__(self, parcel: SuiteParcel, folder: Path, take: Take | None = None) -> None:
        """Unpack, start the proxy, and read the suites. Raises LLMProxyError."""
        super().__init__(parcel, folder, take)
        self._cases: dict[str, SuiteCase] = {case.id: case for case in load_suites(list(parcel.paths)).scenarios}
        self._run_context: SuiteRunContext = SuiteRunContext(
            options=parcel.options, proxy=self.proxy.url, agent=parcel.agent, store=parcel.store, folder=folder,
            defaults=parcel.defaults, defaults_folder=folder / parcel.defaults_folder,
        )  # fmt: skip
        self.open.callback(self._run_context.close)

    def run(self, *arguments: Any) -> NodeRunResult[CaseResult]:
        """Run a case once. Raises on cancellation, and LLMProxyError for a case unknown here."""
        case, sample, runs, alone = arguments
        if case not in self._cases:
            raise MachineError(
                f"{case} is not among the scenarios that were sent.", hint="Send what its suite reads: --send FILE"
            )
        heard = RunEventCollector()
        ran = asyncio.run(
            run_case_once(replace(self._run_context, handlers=[heard]), self._cases[case], sample, runs, alone=alone)
        )
        return NodeRunResult(
            replace(ran, error=make_error_picklable(ran.error)), heard.events, self.read_changed_cassette_files()
        )


class RunEventReorderer:
    """Passes events on run by run in local order, each as soon as all earlier runs have ended."""

    def __init__(self, handlers: Sequence[Handler], order: Sequence[tuple[str, int]]) -> None:
        self._handlers, self._order = handlers, list(order)
        self._place: dict[str, tuple[str, int]] = {}
        self._runs: dict[tuple[str, int], list[Event]] = {}
        self._ended: set[tuple[str, int]] = set()
        self._next = 0

    def handle(self, event: Event) -> None:
        if isinstance(event, Selected):
            self._notify_handlers([event])
        elif isinstance(event, Completed):
            for left in [*self._order[self._next :], *(each for each in self._runs if each not in self._order)]:
                self._notify_handlers(self._runs.pop(left, []))
            self._notify_handlers([event])
        elif isinstance(event, Started):
            self._place[event.run_id] = (event.scenario, event.sample)
        if (place := self._place.get(getattr(event, "run_id", ""))) is None:
            return
        self._runs.setdefault(place, []).append(event)
        if isinstance(event, Finished):
            self._ended.add(place)
        while self._next < len(self._order) and self._order[self._next] in self._ended:
            self._notify_handlers(self._runs.pop(self._order[self._next], []))
            self._next += 1

    def _notify_handlers(self, events: Sequence[Event]) -> None:
        for event in events:
            notify_handlers(self._handlers, event)

    def close(self) -> None:
        """Do nothing: nothing is left at the end."""
