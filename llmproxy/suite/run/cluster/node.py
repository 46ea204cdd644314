"""One run of a suite in a worker of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from llmproxy.errors import MachineError
from llmproxy.scenario.cluster.place import NodePlace, place, portable

if TYPE_CHECKING:
    from llmproxy.report.events import Event
    from llmproxy.scenario.cluster.pacing import Take
    from llmproxy.suite.reading.load import SuiteCase
    from llmproxy.suite.run.cluster.baggage import Baggage
    from llmproxy.suite.run.one import Ran
    from llmproxy.suite.run.world import World


@dataclass(frozen=True, slots=True)
class Returned:
    """What comes back of a run."""

    ran: Ran
    events: list[Event]
    cassettes: Mapping[str, bytes]
    """Files that this run changed."""
    seconds: float
    """That it took here."""


@dataclass(slots=True)
class _Heard:
    events: list[Event] = field(default_factory=list)

    def handle(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None:
        """Nothing is kept back."""


class Unpacked(NodePlace):
    """A test of suites in this process."""

    def __init__(self, baggage: Baggage, folder: Path, take: Take | None = None) -> None:
        """Unpack, start the proxy, and read the suites. Raises LLMProxyError."""
        from llmproxy.suite.reading.load import load
        from llmproxy.suite.run.world import World

        super().__init__(baggage, folder, take)
        self._cases: dict[str, SuiteCase] = {case.id: case for case in load(list(baggage.paths)).scenarios}
        self._world: World = World(
            options=baggage.options, proxy=self.proxy.url, agent=baggage.agent, store=baggage.store, folder=folder,
            defaults=baggage.defaults, defaults_folder=folder / baggage.defaults_folder,
        )  # fmt: skip
        self.open.callback(self._world.close)

    def run(self, case: str, sample: int, runs: int, *, alone: bool) -> Returned:
        """Run a case once. Raises only what cancels it, and LLMProxyError where it is not known here."""
        from llmproxy.suite.run.one import run_once

        if case not in self._cases:
            raise MachineError(
                f"{case} is not among the scenarios that were sent.", hint="Send what its suite reads: --send FILE"
            )
        heard = _Heard()
        world = replace(self._world, handlers=[heard])
        since = world.clock()
        ran = asyncio.run(run_once(world, self._cases[case], sample, runs, alone=alone))
        return Returned(_portable(ran), heard.events, self.read_changed(), world.clock() - since)


def unpack_baggage(batch: str, version: str, fetch: Callable[[], Baggage], take: Take | None = None) -> Unpacked:
    """Return this process's place of a test, unpacked by the first run. Raises LLMProxyError."""
    return place(batch, version, lambda folder: Unpacked(fetch(), folder, take))


def _portable(ran: Ran) -> Ran:
    """Return how a run ended so that another process can read it."""
    sent = portable(ran.error)
    return ran if sent is ran.error else replace(ran, error=cast("Exception", sent))
