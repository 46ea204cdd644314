"""Scenarios of a Python program on a Ray cluster: each run is a task with a proxy of its own on its node.

A scenario's plan is sent pickled: the user's classes and functions in it are sent as the files of their modules, and
those of the program's own file by value.
"""

from __future__ import annotations

import asyncio
import os
import pickletools
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

import llmproxy
from llmproxy.errors import LLMProxyError, SettingsError
from llmproxy.postgres_store_paths import find_postgres_of_local_copy
from llmproxy.report.events import HOST, Handler, Status, notify_handlers
from llmproxy.scenario.cluster import transfer_files as transfer
from llmproxy.scenario.cluster.remote_runner import RayClusterRunner, import_ray, open_ray_connection
from llmproxy.scenario.cluster.worker_node import (
    NodeRunExecutor,
    NodeRunResult,
    NodeSetup,
    RunEventCollector,
    Take,
    make_error_picklable,
)
from llmproxy.scenario.config import ScenarioConfig
from llmproxy.scenario.repeats.repeats import RunOutcome
from llmproxy.scenario.running import run as running
from llmproxy.scenario.running.run import ScenarioRunFunctionArguments
from llmproxy.settings import Loaded, load


@contextmanager
def on(
    where: str = "ray",
    *,
    send: Sequence[str] = (),
    send_env: Sequence[str] = (),
    resources: Mapping[str, float] | None = None,
) -> Iterator[None]:
    """Run the scenarios of the block on a Ray cluster: the same results, events and reports as without.

    Args:
        where: ``ray`` (the cluster of RAY_ADDRESS, else one is started on this machine) or ``ray://HOST:PORT``
        send: patterns of further files that agents need, relative to the working directory: ``lib/**/*.py``
        send_env: names of variables that agents need; no others are sent
        resources: resources of each run: ``{"cpu": 2, "memory": 4000}`` (megabytes), ``gpu``, and any name that nodes
            have; default one processor

    The runs of a series are concurrent as far as the cluster has room. Recordings are files in tests/cassettes (or
    `cassette-dir`), and returned to them at the end of the block, or the team's store named by LLMPROXY_STORE. A run
    whose worker or node dies is repeated once.

    Raises MachineError: Ray is not installed, or the cluster cannot be used; SettingsError: inside of another such
    block; a file or variable is missing; MergeConflict: two runs recorded different answers to one request.
    """
    if running.REMOTE:
        raise SettingsError("scenario.on(...) inside of another one: end the first.")
    settings = load({}, os.environ, Path.cwd())
    batch = uuid.uuid4().hex[:12]
    with open_ray_connection(where, batch, settings.settings.rate) as runner:
        nodes = _ClusterRunner(runner, where, batch, settings, tuple(send), tuple(send_env), resources)
        running.REMOTE.append(nodes.run_sample)
        try:
            yield
        finally:
            running.REMOTE.remove(nodes.run_sample)
            for note in runner.list_notes():
                sys.stderr.write(f"llmproxy: {note}\n")
            if home := transfer.merge_cluster_node_cassettes(runner.recorded, nodes.folder):
                sys.stderr.write(f"llmproxy: {home}\n")


@dataclass(eq=False)
class _ClusterRunner:
    runner: RayClusterRunner
    where: str
    batch: str
    settings: Loaded
    send: Sequence[str]
    send_env: Sequence[str]
    resources: Mapping[str, float] | None

    def __post_init__(self) -> None:
        self._sent: dict[int, tuple[ScenarioRunFunctionArguments, _PlanParcel, list[Any]]] = {}
        self._guard = threading.Lock()
        self.folder = transfer.get_ray_driver_cassette_dir(self.settings)
        self._known = partial(transfer.map_recording_names_to_ids, self.settings.settings.store)

    async def run_sample(self, plan: ScenarioRunFunctionArguments, sample: int, runs: int) -> RunOutcome:
        """Run a sample on a node, and emit its events here. Raises on cancellation, or if it cannot be sent."""
        executor = plan.build_executor(sample, runs)
        parcel, sent = await asyncio.to_thread(self._get_sent_parcel, plan)
        try:
            back: NodeRunResult[RunOutcome] = await self.runner.run(
                plan.name, self.resources, parcel, sent, sample, runs
            )
        except LLMProxyError as error:
            result = executor.never_ran(error)
            return RunOutcome(result.status or Status.ENVIRONMENT_ERROR, result, error)
        handlers: Sequence[Handler] = executor.handlers
        for event in await asyncio.to_thread(transfer.use_local_store_ids_in_events, back.events, self._known):
            notify_handlers(handlers, event)
        HOST.emit_scenario_run_end(executor, back.ended.result)
        return back.ended

    def _get_sent_parcel(self, plan: ScenarioRunFunctionArguments) -> tuple[_PlanParcel, list[Any]]:
        """Return the parcel of a plan with its reference, sent once. Raises SettingsError, SuiteError."""
        with self._guard:
            if id(plan) not in self._sent:
                parcel = self._pack_plan(plan, f"{self.batch}-{len(self._sent)}")
                sys.stderr.write(
                    f"llmproxy: {transfer.describe_files_sent_to_cluster(parcel, self.where, 'send=[FILE]')}\n"
                )
                # With the plan: else another gets its id.
                self._sent[id(plan)] = plan, parcel, self.runner.put_parcel(parcel)
            return self._sent[id(plan)][1:]

    def _pack_plan(self, plan: ScenarioRunFunctionArguments, batch: str) -> _PlanParcel:
        root, settings = Path.cwd(), self.settings.settings
        options = replace(plan.options, handlers=(), mode=plan.options.mode or HOST.mode or None, max_concurrency=None)
        pickled = _pickle_plan(replace(plan, options=options, verbose=False, debug=False))
        files = transfer.read_project_files_for_cluster(
            [*_list_plan_module_files(pickled, root), *transfer.glob_files(self.send, root)], root
        )
        server = find_postgres_of_local_copy(settings.store)
        name = plan.options.cassette or plan.name
        typed = [(n.replace("_", "-"), v) for n, v in self.settings.list_typed(environment=True) if n not in _STAYS]
        words = [f"--mode={settings.mode}", "--allow-live"]
        words += [(f"--{n}" if v else f"--no-{n}") if isinstance(v, bool) else f"--{n}={v}" for n, v in typed]
        live, said = settings.mode.policy.reaches_network, ScenarioConfig.default_config
        return _PlanParcel(
            batch=batch, version=llmproxy.__version__, files=files, server=server.url if server else "", proxy=words,
            cassettes={} if server else transfer.read_cassette_files_as_bytes(self.folder, [name]), pickled=pickled,
            env=transfer.collect_cluster_env_variables(self.send_env, os.environ, live=live, flag="send_env"),
            folders=_list_import_folders(root), rates=settings.rate,
            config=said and said.model_copy(update={"verbose": False, "debug": False}),
        )  # fmt: skip


_STAYS = frozenset(
    {"host", "port", "cassette_dir", "rate", "client_cert", "forward", "allow_live", "answer_to", "allow_origin"}
)
"""Proxy options that concern this machine, or are sent to the nodes in another form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlanParcel(NodeSetup):
    pickled: bytes
    folders: Sequence[str]
    config: ScenarioConfig | None
    import_hint: ClassVar[str] = "Files that agents need and their modules do not name: send=['lib/**/*.py']"

    def unpack(self, folder: Path, take: Take | None) -> NodeRunExecutor:
        return PythonScenarioRunWorker(self, folder, take)


def _pickle_plan(plan: ScenarioRunFunctionArguments) -> bytes:
    """Return a pickled plan. Raises SettingsError."""
    cloudpickle = import_ray().cloudpickle
    try:
        return cast("bytes", cloudpickle.dumps(plan))
    except Exception as error:
        raise SettingsError(
            f"scenario {plan.name!r} cannot travel to a node: {error}.",
            hint="What its agents hold must be picklable: hand in the class, or a function that makes the agent, and"
            " open clients in `open` or `call`.",
        ) from error


def _list_plan_module_files(pickled: bytes, root: Path) -> list[Path]:
    """Return the files below `root` of a pickle's modules, of their imports, and of enclosing packages."""
    texts = {argument for _, argument, _ in pickletools.genops(pickled) if isinstance(argument, str)}
    found: dict[str, Path] = {}
    waiting = [text for text in texts if text in sys.modules]
    while waiting:
        name = waiting.pop()
        module = sys.modules.get(name)
        path = Path(getattr(module, "__file__", None) or os.devnull).resolve()
        if name in found or not path.is_relative_to(root) or "site-packages" in path.parts or name == "__main__":
            continue
        if path.is_relative_to(Path(llmproxy.__file__).resolve().parent):
            continue
        found[name] = path
        waiting += [".".join(name.split(".")[:n]) for n in range(1, name.count(".") + 1)]
        for value in vars(module).values():
            used = getattr(value, "__name__" if isinstance(value, type(sys)) else "__module__", None)
            if isinstance(used, str) and used in sys.modules:
                waiting.append(used)
    return sorted(set(found.values()))


def _list_import_folders(root: Path) -> list[str]:
    found = [Path(each or ".").resolve() for each in sys.path]
    return [
        each.relative_to(root).as_posix()
        for each in found
        if each.is_relative_to(root) and "site-packages" not in each.parts
    ]


class PythonScenarioRunWorker(NodeRunExecutor):
    def __init__(self, parcel: _PlanParcel, folder: Path, take: Take | None) -> None:
        super().__init__(parcel, folder, take, sessions_record=True)
        sys.path[:0] = [str(folder / each) for each in parcel.folders] or [str(folder)]
        plan: ScenarioRunFunctionArguments = import_ray().cloudpickle.loads(parcel.pickled)
        proxy = self.proxy.url if plan.options.proxy is not False else False
        self.plan = replace(plan, options=replace(plan.options, proxy=proxy))
        self.config = parcel.config

    def run(self, *arguments: Any) -> NodeRunResult[RunOutcome]:
        heard = RunEventCollector()
        HOST.listener, ScenarioConfig.default_config = heard, self.config
        ended = asyncio.run(self.plan.once(*arguments))
        ended = replace(ended, error=make_error_picklable(ended.error))
        return NodeRunResult(ended, heard.events, self.read_changed_cassette_files())
