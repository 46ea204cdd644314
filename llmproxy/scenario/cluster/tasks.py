"""Calls as tasks of a Ray cluster: each somewhere, with what it needs; made again, once, where its worker or node died; cancelled with us."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from llmproxy.errors import MachineError
from llmproxy.report.events import Event, Finished

_LOOKS = "llmproxy why"
"""What a request that was never recorded tells to type: it looks at what was asked on the machine where it is typed."""
_CANCELLING = 15.0
"""Seconds that cancelled runs have to clean up."""
_MEGABYTE = 1 << 20


def options_of(resources: Mapping[str, float] | None) -> dict[str, Any]:
    """Return what a scenario needs in Ray's words: ``{cpu: 2, gpu: 1, memory: 500 (megabytes), anything: 1}``."""
    wanted = {"cpu": 1.0, **(resources or {})}
    found: dict[str, Any] = {"num_cpus": wanted.pop("cpu")}
    if gpu := wanted.pop("gpu", 0):
        found["num_gpus"] = gpu
    if memory := wanted.pop("memory", 0):
        found["memory"] = int(memory * _MEGABYTE)
    return found | ({"resources": wanted} if wanted else {})


class Tasks:
    """Makes calls of one function on a cluster that is open."""

    def __init__(self, ray: Any, function: Callable[..., Any]) -> None:  # noqa: ANN401 - the module, which has no types
        """Nothing runs yet."""
        self._ray = ray
        self._task = ray.remote(max_retries=0)(function)
        self._running: set[Any] = set()
        self.again: list[str] = []
        """Names of calls that were made again because their worker or node died."""
        self._missed = False
        self._most = self._largest()

    def hear(self, events: Sequence[Event]) -> None:
        """Hear what a run told, for `notes`."""
        self._missed |= any(isinstance(event, Finished) and _LOOKS in event.error for event in events)

    async def call(self, name: str, options: Mapping[str, Any], *arguments: object) -> Any:  # noqa: ANN401 - what the function returns
        """Make a call somewhere; `options` as `options_of` makes them.

        Raises:
            MachineError: no node has what it needs, or its worker or node died twice.
            CancelledError: it was cancelled, here or there.
            Exception: what the function raised, in Ray's words.

        """
        died = ""
        for _ in range(2):
            self._check(name, options)
            try:
                return await self._once(name, options, arguments)
            except self._ray.exceptions.TaskCancelledError:
                raise asyncio.CancelledError from None
            except _list_deaths(self._ray) as error:
                died = str(error).strip().partition("\n")[0] or type(error).__name__
                self.again.append(name)
                self._most = self._largest()
        raise MachineError(f"its worker or node died twice: {died}")

    async def _once(self, name: str, options: Mapping[str, Any], arguments: tuple[object, ...]) -> Any:  # noqa: ANN401 - as above
        ref = self._task.options(name=name, **options).remote(*arguments)
        self._running.add(ref)
        try:
            back = await asyncio.wrap_future(ref.future())
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
        """Say what the end of a test should say."""
        names = list(dict.fromkeys(self.again))
        died = [f"run again, because a worker or a node died: {', '.join(names)}"] if names else []
        missed = (
            "`llmproxy why` and `llmproxy show` know what was asked here: run what missed without the cluster first"
        )
        return died + ([missed] if self._missed else [])

    def _largest(self) -> dict[str, float]:
        """Return the most of each resource that one node has."""
        found: dict[str, float] = {}
        for node in self._ray.nodes():
            for name, much in node.get("Resources", {}).items() if node.get("Alive") else ():
                found[name] = max(found.get(name, 0.0), much)
        return found

    def _check(self, name: str, wanted: Mapping[str, Any]) -> None:
        """Refuse what no node can ever run: Ray would wait for such a node. Raises MachineError."""
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

    def close(self) -> None:
        """Let what was cancelled clean up."""
        left = list(self._running)
        if left:
            with suppress(Exception):
                self._ray.wait(left, num_returns=len(left), timeout=_CANCELLING)


def _list_deaths(ray: Any) -> tuple[type[Exception], ...]:  # noqa: ANN401 - the module
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
