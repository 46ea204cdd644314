"""The remote runner: calls as tasks of a Ray cluster, for suites and for scenarios in Python.

A run whose worker or node died is repeated once, with a note; no event of the first attempt was emitted. Ctrl-C cancels
active runs, which clean up on their nodes. This is the only module that imports ray.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from llmproxy.advice import build_install_command
from llmproxy.errors import LLMProxyError, MachineError, SettingsError
from llmproxy.report.events import Finished
from llmproxy.scenario.cluster.worker_node import NodeRunResult, NodeSetup, get_or_create_run_executor, start_rate_actor

_QUIET = {
    "RAY_raylet_start_wait_time_s": "120", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0", "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}  # fmt: skip
"""Variables that stop Ray from copying the working folder to every node under `uv run`, and from usage reports."""
_TRIES = 4
_PASSING = "Initialization failure from server"
"""Temporary errors of a busy cluster to a client, for which it starts a process: the next attempt succeeds."""
_CLIENT_PORT = 10001
_REACHING = 10.0  # seconds
_CANCELLING = 15.0  # seconds that cancelled runs get to clean up
_MEGABYTE = 1 << 20
_DEATHS = (
    "WorkerCrashedError", "NodeDiedError", "LocalRayletDiedError", "OutOfMemoryError", "OwnerDiedError",
    "ObjectLostError",
)  # fmt: skip


def ray_address(where: str, env: Mapping[str, str]) -> str:
    """Return Ray's address for `--on`; ``local`` for a cluster to start. Raises SettingsError."""
    if where == "ray":
        return env.get("RAY_ADDRESS", "") or "local"
    scheme, _, host = where.partition("://")
    if scheme == "ray" and host:
        return where
    raise SettingsError(
        f"--on {where!r}: it can be `ray` (one is started here, or RAY_ADDRESS is asked) or ray://HOST:10001."
    )


@contextmanager
def open_ray_connection(where: str, batch: str, rates: Mapping[str, str]) -> Iterator[RayClusterRunner]:
    """Open a cluster for a test, and leave it after the block. Raises MachineError: no Ray, another version."""
    os.environ.update(_QUIET)
    address = ray_address(where, os.environ)
    try:
        ray = import_ray()
    except ImportError as error:
        raise MachineError(f"{where} needs Ray, which is not installed.", hint=build_install_command("ray")) from error
    tries = connect_ray_counting_tries(ray, where, address, f"llmproxy-{batch}")
    try:
        runner = RayClusterRunner(ray, rates, tries)
        try:
            yield runner
        finally:
            runner.wait_for_cancelled_runs()
    finally:
        ray.shutdown()


def import_ray() -> Any:
    return import_module("ray")


def connect_ray_counting_tries(
    ray: Any, where: str, address: str, namespace: str, sleep: Callable[[float], None] = time.sleep
) -> int:
    """Connect to a cluster, and return the number of attempts. Raises MachineError."""
    check_ray_cluster_reachable(where, address)
    more: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    for number in range(1, _TRIES + 1):
        try:
            with warnings.catch_warnings(action="ignore"):  # what Ray warns of it raises too, and we say it
                ray.init(address, namespace=namespace, log_to_driver=False, logging_level=logging.CRITICAL, **more)
        except Exception as error:
            if _PASSING not in str(error) or number == _TRIES:
                raise build_cluster_unusable_error(where, error) from error
            ray.shutdown()
            sleep(number)
        else:
            return number
    raise AssertionError("a try returns or raises")


def check_ray_cluster_reachable(where: str, address: str) -> None:
    """Check that an address has a listener: Ray itself would try for many minutes. Raises MachineError."""
    parts = urlsplit(address if "://" in address else f"ray://{address}")
    try:
        host, port = parts.hostname or "", parts.port or (_CLIENT_PORT if "://" in address else 0)
        if port:
            socket.create_connection((host, port), timeout=_REACHING).close()
    except (OSError, ValueError) as error:
        named = where if where == address else f"{address} (RAY_ADDRESS)"
        raise MachineError(
            f"no cluster answers at {named}: {getattr(error, 'strerror', None) or error}.",
            hint="`ray status` on its head says whether it runs; --on ray://HOST:10001 wants the port of its clients."
            " Without RAY_ADDRESS, --on ray starts one here.",
        ) from error


def build_cluster_unusable_error(where: str, error: Exception) -> MachineError:
    text = str(error).strip()
    if "ersion mismatch" in text or "Python version" in text or "version of Ray" in text.lower():
        return MachineError(
            f"the cluster at {where} is of another Ray or Python than this one:\n{text}",
            hint="Both sides need the same Ray and the same Python: run the test with the cluster's, or start the"
            " cluster with this one's.",
        )
    return MachineError(
        f"the cluster at {where} cannot be used: {text.splitlines()[0] if text else type(error).__name__}"
    )


def build_ray_resource_options(resources: Mapping[str, float] | None) -> dict[str, Any]:
    """Return a scenario's resources in Ray's form: ``{cpu: 2, gpu: 1, memory: 500 (megabytes), anything: 1}``."""
    wanted = {"cpu": 1.0, **(resources or {})}
    found: dict[str, Any] = {"num_cpus": wanted.pop("cpu")}
    if gpu := wanted.pop("gpu", 0):
        found["num_gpus"] = gpu
    if memory := wanted.pop("memory", 0):
        found["memory"] = int(memory * _MEGABYTE)
    return found | ({"resources": wanted} if wanted else {})


class RayClusterRunner:
    def __init__(self, ray: Any, rates: Mapping[str, str], tries: int = 1) -> None:
        self._ray, self._tries = ray, tries
        self._task = ray.remote(max_retries=0)(execute_run_in_ray_worker)
        self._counting = start_rate_actor(ray, rates)
        self._running: set[Any] = set()
        self._again: list[str] = []  # names of runs whose worker or node died
        self._missed = False
        self._most = self._find_max_of_each_resource()
        self.recorded: list[Mapping[str, bytes]] = []

    def put_parcel(self, parcel: NodeSetup) -> list[Any]:
        """Send a parcel to Ray's object store; returns its reference, in a list, so that Ray does not resolve it."""
        return [self._ray.put(parcel), self._counting]

    async def run(
        self, name: str, resources: Mapping[str, float] | None, parcel: NodeSetup, sent: list[Any], *arguments: object
    ) -> NodeRunResult[Any]:
        """Execute a run; `NodeRunExecutor.run` gets `arguments`. Raises CancelledError; LLMProxyError: none could."""
        try:
            back = await self._run_task_with_retry(
                name, build_ray_resource_options(resources), (sent, parcel.batch, parcel.version, arguments)
            )
        except Exception as error:
            found = getattr(error, "cause", None) or error  # Ray makes a traceback of what a node raised
            if isinstance(found, LLMProxyError):
                raise found from None
            hint = parcel.import_hint if isinstance(found, ImportError) else ""
            raise MachineError(f"a node could not run it: {found}", hint=hint) from error
        self._missed |= any(isinstance(event, Finished) and event.misses for event in back.events)
        if back.cassettes:
            self.recorded.append(back.cassettes)
        return back

    async def _run_task_with_retry(
        self, name: str, options: Mapping[str, Any], arguments: tuple[object, ...]
    ) -> NodeRunResult[Any]:
        died = ""
        deaths = tuple(getattr(self._ray.exceptions, each) for each in _DEATHS if hasattr(self._ray.exceptions, each))
        for _ in range(2):
            self._check_resource(name, options)
            ref = self._task.options(name=name, **options).remote(*arguments)
            self._running.add(ref)
            try:
                back: NodeRunResult[Any] = await asyncio.wrap_future(ref.future())
            except asyncio.CancelledError:
                with suppress(Exception):
                    self._ray.cancel(ref, force=False)
                raise
            except BaseException as error:
                self._running.discard(ref)
                if isinstance(error, self._ray.exceptions.TaskCancelledError):
                    raise asyncio.CancelledError from None
                if not isinstance(error, deaths):
                    raise
                died = str(error).strip().partition("\n")[0] or type(error).__name__
                self._again.append(name)
                self._most = self._find_max_of_each_resource()
            else:
                self._running.discard(ref)
                return back
        raise MachineError(f"its worker or node died twice: {died}")

    def list_notes(self) -> list[str]:
        said = [f"connecting to the cluster took {self._tries} tries"] if self._tries > 1 else []
        if self._again:
            said.append(f"run again, because a worker or a node died: {', '.join(dict.fromkeys(self._again))}")
        if self._missed:
            said.append(
                "`llmproxy why` and `llmproxy show` know what was asked here: run what missed without the cluster first"
            )
        return said

    def _find_max_of_each_resource(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for node in self._ray.nodes():
            for name, much in node.get("Resources", {}).items() if node.get("Alive") else ():
                found[name] = max(found.get(name, 0.0), much)
        return found

    def _check_resource(self, name: str, wanted: Mapping[str, Any]) -> None:
        """Refuse a request that no node can satisfy: Ray would wait for such a node. Raises MachineError."""
        asked = {
            "CPU": wanted["num_cpus"],
            "GPU": wanted.get("num_gpus", 0),
            "memory": wanted.get("memory", 0),
            **wanted.get("resources", {}),
        }
        for what, much in asked.items():
            if much > self._most.get(what, 0):
                raise MachineError(
                    f"{name} wants {what.lower()}: {much:g}, and no node has more than {self._most.get(what, 0):g}."
                )

    def wait_for_cancelled_runs(self) -> None:
        if left := list(self._running):
            with suppress(Exception):
                self._ray.wait(left, num_returns=len(left), timeout=_CANCELLING)
        if self._counting is not None:
            with suppress(Exception):
                self._ray.kill(self._counting)


def execute_run_in_ray_worker(
    sent: list[Any], batch: str, version: str, arguments: tuple[Any, ...]
) -> NodeRunResult[Any]:
    ray = import_ray()

    def take(provider: str, model: bool) -> float:  # noqa: FBT001 - called by place
        return float(ray.get(sent[1].count_call.remote(provider, model)))

    def unpack(folder: Path) -> Any:
        return ray.get(sent[0]).unpack(folder, None if sent[1] is None else take)

    return get_or_create_run_executor(batch, version, unpack).run(*arguments)
