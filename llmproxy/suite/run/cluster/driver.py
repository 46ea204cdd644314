"""Runs as tasks of a Ray cluster. The only module that imports ray.

A run whose worker or node died is started again, once, which is said; nothing of the first try was told. Ctrl-C cancels what is under way,
which cleans up there.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from llmproxy.errors import LLMProxyError, MachineError, SettingsError
from llmproxy.install import requirement
from llmproxy.report.events import Event, Finished, Started, Status
from llmproxy.scenario.values.fault import told
from llmproxy.scenario.values.naming import run_id
from llmproxy.suite.choose.cassettes import cassette_name
from llmproxy.suite.run.cluster.node import Returned, place
from llmproxy.suite.run.cluster.pacing import counting
from llmproxy.suite.run.one import Ran

if TYPE_CHECKING:
    from llmproxy.suite.reading.load import SuiteCase
    from llmproxy.suite.run.cluster.baggage import Baggage
    from llmproxy.suite.run.world import World

__all__ = ["Cluster", "address_of", "on_ray", "options_of"]

_QUIET = {
    "RAY_raylet_start_wait_time_s": "120",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""Under `uv run` it would copy the working folder to every node, and it would report usage."""
_CANCELLING = 15.0
"""Seconds that cancelled runs have to clean up."""
_MEGABYTE = 1 << 20
_TRIES = 4
_PASSING = "Initialization failure from server"
"""What a busy cluster says to a client now and then, for which it starts a process of its own: the next try finds it started."""
_CLIENT_PORT = 10001
_REACHING = 10.0
"""Seconds."""


def address_of(where: str, env: Mapping[str, str]) -> str:
    """Return what `--on` names as Ray's address; ``local`` for one that is started. Raises SettingsError."""
    if where == "ray":
        return env.get("RAY_ADDRESS", "") or "local"
    scheme, _, host = where.partition("://")
    if scheme == "ray" and host:
        return where
    raise SettingsError(
        f"--on {where!r}: it can be `ray` (one is started here, or RAY_ADDRESS is asked) or ray://HOST:10001."
    )


def options_of(resources: Mapping[str, float] | None) -> dict[str, Any]:
    """Return what a scenario needs in Ray's words: ``{cpu: 2, gpu: 1, memory: 500 (megabytes), anything: 1}``."""
    wanted = {"cpu": 1.0, **(resources or {})}
    found: dict[str, Any] = {"num_cpus": wanted.pop("cpu")}
    if gpu := wanted.pop("gpu", 0):
        found["num_gpus"] = gpu
    if memory := wanted.pop("memory", 0):
        found["memory"] = int(memory * _MEGABYTE)
    return found | ({"resources": wanted} if wanted else {})


@contextmanager
def on_ray(where: str, baggage: Baggage) -> Iterator[Cluster]:
    """Open a cluster for a test; what was started for it ends with the block.

    Raises:
        MachineError: Ray is not installed, does not answer, or is of another version or Python.

    """
    os.environ.update(_QUIET)
    address = address_of(where, os.environ)
    try:
        ray = import_module("ray")
    except ImportError as error:
        raise MachineError(
            f"--on {where} needs Ray, which is not installed.", hint=f"pip install '{requirement('ray')}'"
        ) from error
    cluster = Cluster(ray, baggage, connect(ray, where, address, f"llmproxy-{baggage.batch}"))
    try:
        yield cluster
    finally:
        cluster.close()
        ray.shutdown()


def connect(ray: Any, where: str, address: str, namespace: str, sleep: Callable[[float], None] = time.sleep) -> int:  # noqa: ANN401 - the module
    """Connect to a cluster, and return how many tries it took. Raises MachineError."""
    reach(where, address)
    more: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    for number in range(1, _TRIES + 1):
        try:
            with warnings.catch_warnings(action="ignore"):  # what Ray warns of it raises too, and we say it
                ray.init(address, namespace=namespace, log_to_driver=False, logging_level=logging.CRITICAL, **more)
        except Exception as error:
            if _PASSING not in str(error) or number == _TRIES:
                raise refused(where, error) from error
            ray.shutdown()
            sleep(number)
        else:
            return number
    raise AssertionError("a try returns or raises")


def reach(where: str, address: str) -> None:
    """See that somebody listens at an address: Ray itself would try for many minutes. Raises MachineError."""
    parts = urlsplit(address if "://" in address else f"ray://{address}")
    try:
        host, port = parts.hostname or "", parts.port or (_CLIENT_PORT if "://" in address else 0)
        if port:
            socket.create_connection((host, port), timeout=_REACHING).close()
    except (OSError, ValueError) as error:
        named = where if where == address else f"{address} (RAY_ADDRESS)"
        raise MachineError(
            f"no cluster answers at {named}: {getattr(error, 'strerror', None) or error}.",
            hint="`ray status` on its head says whether it runs; --on ray://HOST:10001 wants the port of its clients. Without"
            " RAY_ADDRESS, --on ray starts one here.",
        ) from error


def refused(where: str, error: Exception) -> MachineError:
    """Return why a cluster cannot be used, in words."""
    text = str(error).strip()
    if "ersion mismatch" in text or "Python version" in text or "version of Ray" in text.lower():
        return MachineError(
            f"the cluster at {where} is of another Ray or Python than this one:\n{text}",
            hint="Both sides need the same Ray and the same Python: run the test with the cluster's, or start the cluster with this one's.",
        )
    return MachineError(
        f"the cluster at {where} cannot be used: {text.splitlines()[0] if text else type(error).__name__}"
    )


class Cluster:
    """A cluster that is open."""

    def __init__(self, ray: Any, baggage: Baggage, tries: int = 1) -> None:  # noqa: ANN401 - the module, which has no types
        """Send the baggage, once, to Ray's store of objects; `tries` is what connecting took."""
        self._tries = tries
        self._ray, self._batch, self._version = ray, baggage.batch, baggage.version
        self._box = ray.put(baggage)
        self._counting = counting(ray, baggage.rates)
        self._task = ray.remote(max_retries=0)(_run)
        self._running: set[Any] = set()
        self.again: list[str] = []
        """Scenarios that were run again because their worker or node died."""
        self.recorded: list[Mapping[str, bytes]] = []
        """Files of cassettes that runs changed, as they came home."""
        self._most = self._largest()
        self.told: Callable[[Sequence[Event]], Sequence[Event]] = list
        """Makes of what a run told what is told here."""

    async def execute(self, world: World, case: SuiteCase, sample: int, runs: int, *, alone: bool) -> Ran:
        """Run a case somewhere, and tell `world` what happened. Raises only what cancels it."""
        died = ""
        try:
            self._check(case)
            for _ in range(2):
                try:
                    back = await self._once(case, sample, runs, alone=alone)
                except self._ray.exceptions.TaskCancelledError:
                    raise asyncio.CancelledError from None
                except _died(self._ray) as error:
                    died = str(error).strip().partition("\n")[0] or type(error).__name__
                    self.again.append(case.id)
                    self._most = self._largest()
                    self._check(case)
                    continue
                break
            else:
                return _failed(world, case, sample, runs, MachineError(f"its worker or node died twice: {died}"))
        except Exception as error:  # noqa: BLE001 - ours, of Ray, or of what a node could not load
            return _failed(world, case, sample, runs, _cause(error))
        for event in self.told(back.events):
            world.emit(event)
        if back.cassettes:
            self.recorded.append(back.cassettes)
        return back.ran

    async def _once(self, case: SuiteCase, sample: int, runs: int, *, alone: bool) -> Returned:
        wanted = self._task.options(name=case.id, **options_of(case.scenario.resources))
        ref = wanted.remote([self._box, self._counting], self._batch, self._version, case.id, sample, runs, alone)
        self._running.add(ref)
        try:
            back: Returned = await asyncio.wrap_future(ref.future())
        except asyncio.CancelledError:
            with suppress(Exception):
                self._ray.cancel(ref, force=False)
            raise
        except BaseException:
            self._running.discard(ref)
            raise
        self._running.discard(ref)
        return back

    def notes(self) -> list[str]:
        """Say what the end of the test should say of the cluster."""
        names = list(dict.fromkeys(self.again))
        said = [f"connecting to the cluster took {self._tries} tries"] if self._tries > 1 else []
        return said + ([f"run again, because a worker or a node died: {', '.join(names)}"] if names else [])

    def _largest(self) -> dict[str, float]:
        """Return the most of each resource that one node has."""
        found: dict[str, float] = {}
        for node in self._ray.nodes():
            for name, much in node.get("Resources", {}).items() if node.get("Alive") else ():
                found[name] = max(found.get(name, 0.0), much)
        return found

    def _check(self, case: SuiteCase) -> None:
        """Refuse what no node can ever run: Ray would wait for such a node. Raises MachineError."""
        wanted = options_of(case.scenario.resources)
        asked = {
            "CPU": wanted["num_cpus"],
            "GPU": wanted.get("num_gpus", 0),
            "memory": wanted.get("memory", 0),
            **wanted.get("resources", {}),
        }
        for name, much in asked.items():
            if much > self._most.get(name, 0):
                raise MachineError(
                    f"{case.id} wants {name.lower()}: {much:g}, and no node has more than {self._most.get(name, 0):g}."
                )

    def close(self) -> None:
        """Let what was cancelled clean up."""
        left = list(self._running)
        if left:
            with suppress(Exception):
                self._ray.wait(left, num_returns=len(left), timeout=_CANCELLING)
        if self._counting is not None:
            with suppress(Exception):
                self._ray.kill(self._counting)


def _cause(error: Exception) -> LLMProxyError:
    """Return what went wrong, without the traceback that Ray makes of it."""
    found = getattr(error, "cause", None) or error
    return found if isinstance(found, LLMProxyError) else MachineError(f"a node could not run it: {found}")


def _died(ray: Any) -> tuple[type[Exception], ...]:  # noqa: ANN401 - the module
    """Return what is raised where a worker or a node is gone."""
    names = (
        "WorkerCrashedError",
        "NodeDiedError",
        "LocalRayletDiedError",
        "OutOfMemoryError",
        "OwnerDiedError",
        "ObjectLostError",
    )
    return tuple(getattr(ray.exceptions, name) for name in names if hasattr(ray.exceptions, name))


def _run(box: list[Any], batch: str, version: str, case: str, sample: int, runs: int, alone: bool) -> Returned:  # noqa: FBT001 - a task's arguments have no names
    """Run a case in the worker in which this is called."""
    ray = import_module("ray")

    def take(provider: str, model: bool) -> float:  # noqa: FBT001 - as an actor is asked
        return float(ray.get(box[1].take.remote(provider, model)))

    return place(batch, version, lambda: ray.get(box[0]), take).run(case, sample, runs, alone=alone)


def _failed(world: World, case: SuiteCase, sample: int, runs: int, error: LLMProxyError) -> Ran:
    """Tell a run that could not be run anywhere."""
    name, at = run_id(), world.now()
    cassette = cassette_name(case.suite.name, case.id)
    again = f"{world.options.command} {world.options.only} {case.id}".strip()
    world.emit(
        Started(
            run_id=name, scenario=case.id, name=case.title or case.id, description=case.description, suite=case.suite.name, set_id=case.suite.name,
            sample=sample, runs=runs, tags=tuple(case.tags), cassette=cassette, mode=world.options.mode or "", rerun=again, at=at,
        )
    )  # fmt: skip
    status = Status.ENVIRONMENT_ERROR
    world.emit(Finished(run_id=name, scenario=case.id, status=status, error=told(error), at=at))
    return Ran(status, error, spent=Decimal(0))
