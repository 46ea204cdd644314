"""Runs of suites as tasks of a Ray cluster.

A run whose worker or node died is started again, once, which is said; nothing of the first try was told. Ctrl-C cancels what is under way,
which cleans up there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from llmproxy.errors import LLMProxyError, MachineError
from llmproxy.report.events import Event, Status
from llmproxy.scenario.cluster.pacing import counting, take_of
from llmproxy.scenario.cluster.reaching import reach_cluster, the_ray
from llmproxy.scenario.cluster.tasks import Tasks, options_of
from llmproxy.scenario.values.fault import describe_error
from llmproxy.suite.run.cluster.node import Returned, unpack_baggage
from llmproxy.suite.run.one import Ran, narrator_of

if TYPE_CHECKING:
    from llmproxy.suite.reading.load import SuiteCase
    from llmproxy.suite.run.cluster.baggage import Baggage
    from llmproxy.suite.run.world import World


@contextmanager
def on_ray(where: str, baggage: Baggage) -> Iterator[Cluster]:
    """Open a cluster for a test; what was started for it ends with the block. Raises MachineError."""
    with reach_cluster(where, baggage.batch) as (ray, tries):
        cluster = Cluster(ray, baggage, tries)
        try:
            yield cluster
        finally:
            cluster.close()


class Cluster:
    def __init__(self, ray: Any, baggage: Baggage, tries: int = 1) -> None:  # noqa: ANN401 - the module, which has no types
        """Send the baggage, once, to Ray's store of objects; `tries` is what connecting took."""
        self._tries = tries
        self._ray, self._batch, self._version = ray, baggage.batch, baggage.version
        self._box = ray.put(baggage)
        self._counting = counting(ray, baggage.rates)
        self._tasks = Tasks(ray, _run)
        self.recorded: list[Mapping[str, bytes]] = []
        """Files of cassettes that runs changed, as they came home."""
        self.told: Callable[[Sequence[Event]], Sequence[Event]] = list
        """Makes of what a run told what is told here."""

    async def execute(self, world: World, case: SuiteCase, sample: int, runs: int, *, alone: bool) -> Ran:
        """Run a case somewhere, and tell `world` what happened. Raises only what cancels it."""
        box = [self._box, self._counting]
        sent = (box, self._batch, self._version, case.id, sample, runs, alone)
        try:
            back: Returned = await self._tasks.call(case.id, options_of(case.scenario.resources), *sent)
        except Exception as error:  # noqa: BLE001 - ours, of Ray, or of what a node could not load
            return _build_failed(world, case, sample, runs, _cause(error))
        self._tasks.hear(back.events)
        for event in self.told(back.events):
            world.emit(event)
        if back.cassettes:
            self.recorded.append(back.cassettes)
        return back.ran

    def notes(self) -> list[str]:
        """Say what the end of the test should say of the cluster."""
        said = [f"connecting to the cluster took {self._tries} tries"] if self._tries > 1 else []
        return said + self._tasks.notes()

    def close(self) -> None:
        """Let what was cancelled clean up."""
        self._tasks.close()
        if self._counting is not None:
            with suppress(Exception):
                self._ray.kill(self._counting)


def _cause(error: Exception) -> LLMProxyError:
    """Return what went wrong, without the traceback that Ray makes of it."""
    found = getattr(error, "cause", None) or error
    return found if isinstance(found, LLMProxyError) else MachineError(f"a node could not run it: {found}")


def _run(box: list[Any], batch: str, version: str, case: str, sample: int, runs: int, alone: bool) -> Returned:  # noqa: FBT001 - a task's arguments have no names
    """Run a case in the worker in which this is called."""
    ray = the_ray()
    return unpack_baggage(batch, version, lambda: ray.get(box[0]), take_of(ray, box[1])).run(
        case, sample, runs, alone=alone
    )


def _build_failed(world: World, case: SuiteCase, sample: int, runs: int, error: LLMProxyError) -> Ran:
    """Tell a run that could not be run anywhere."""
    again = f"{world.options.command} {world.options.only} {case.id}".strip()
    voice = narrator_of(world, case, sample, runs, rerun=again)
    voice.tell_start(mode=world.options.mode or "")
    status = Status.ENVIRONMENT_ERROR
    voice.over(status=status, error=describe_error(error))
    return Ran(status, error, spent=Decimal(0))
