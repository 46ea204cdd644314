"""One run in a worker of a cluster. The first one in a process unpacks what was sent and starts a proxy, all later ones use both.

The worker goes into the folder of the files, so that every path in reports is the one that the driver's own would be. Its proxy ends with
it, also if it is killed; what it recorded goes back with the run that recorded it.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import pickle
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from llmproxy.errors import Exit, LLMProxyError, MachineError, MissError
from llmproxy.protocol import OFFLINE, PACER_VARIABLE

if TYPE_CHECKING:
    from llmproxy.report.events import Event
    from llmproxy.suite.reading.load import SuiteCase
    from llmproxy.suite.run.cluster.baggage import Baggage
    from llmproxy.suite.run.cluster.pacing import Take
    from llmproxy.suite.run.one import Ran
    from llmproxy.suite.run.world import World

__all__ = ["Returned", "Unpacked", "place"]

CASSETTES = Path("tests") / "cassettes"
STORE = Path(".llmproxy") / "llmproxy.db"


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


class Unpacked:
    """The test in this process: its folder, its suites, its proxy."""

    def __init__(self, baggage: Baggage, folder: Path, take: Take | None = None) -> None:
        """Unpack into `folder`, which becomes the working directory, and start the proxy. Raises LLMProxyError.

        `take` counts the calls of the whole cluster where `baggage.rates` says how many there may be.
        """
        from llmproxy.client.process.attach import attached
        from llmproxy.suite.reading.load import load
        from llmproxy.suite.run.cluster.pacing import asking
        from llmproxy.suite.run.world import World

        self._open = ExitStack()
        for name, data in baggage.files.items():
            _write(folder / name, data)
        for name, data in baggage.cassettes.items():
            _write(folder / CASSETTES / name, data)
        (folder / CASSETTES).mkdir(parents=True, exist_ok=True)
        (folder / STORE).parent.mkdir(exist_ok=True)
        os.chdir(folder)
        os.environ.update(baggage.env)
        for name in ("LLMPROXY_URL", "LLMPROXY_STORE", "LLMPROXY_CASSETTE_DIR"):
            os.environ.pop(name, None)
        own = [] if baggage.server else [f"--store={folder / STORE}", f"--cassette-dir={folder / CASSETTES}"]
        env = {
            **os.environ,
            **({"LLMPROXY_STORE": baggage.server} if baggage.server else {}),
        }  # no other process may see it
        if baggage.rates and take is not None:
            env[PACER_VARIABLE] = self._open.enter_context(asking(take))
            own += [f"--rate={name}={rate}" for name, rate in baggage.rates.items()]
        proxy = self._open.enter_context(attached([*baggage.proxy, *own], env, log=folder / ".llmproxy" / "proxy.log"))
        self._cases: dict[str, SuiteCase] = {case.id: case for case in load(list(baggage.paths)).scenarios}
        self._records = proxy.control.health().mode not in OFFLINE and not baggage.server
        self._known = _signatures() if self._records else {}
        self._world: World = World(
            options=baggage.options, proxy=proxy.url, agent=baggage.agent, store=baggage.store, folder=folder,
            defaults=baggage.defaults, defaults_folder=folder / baggage.defaults_folder,
        )  # fmt: skip
        self._open.callback(self._world.close)

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
        return Returned(_portable(ran), heard.events, self._changed(), world.clock() - since)

    def _changed(self) -> dict[str, bytes]:
        """Return the files of cassettes that were written since the last run; a replay writes none."""
        if not self._records:
            return {}
        found = _signatures()
        changed = [name for name, signature in found.items() if self._known.get(name) != signature]
        self._known = found
        return {name: (CASSETTES / name).read_bytes() for name in changed}

    def close(self) -> None:
        """End the proxy."""
        self._open.close()


def _signatures() -> dict[str, tuple[int, int, int]]:
    """Return what tells that a file of cassettes was written; to read them all after each run would take longer than most runs."""
    files = (path for path in CASSETTES.rglob("*.yaml") if not path.name.startswith("."))
    stats = ((path.relative_to(CASSETTES).as_posix(), path.stat()) for path in files)
    return {name: (stat.st_mtime_ns, stat.st_size, stat.st_ino) for name, stat in stats}


_here: tuple[str, Unpacked] | None = None


def place(batch: str, version: str, fetch: Callable[[], Baggage], take: Take | None = None) -> Unpacked:
    """Return this process's place of a test, unpacked by the first run. Raises LLMProxyError."""
    import llmproxy

    global _here  # noqa: PLW0603 - what a process has once
    if llmproxy.__version__ != version:
        raise MachineError(
            f"a node has llmproxy {llmproxy.__version__}, and the test was started with {version}.",
            hint="Install the same version on all nodes.",
        )
    if _here is None or _here[0] != batch:
        folder = tempfile.TemporaryDirectory(prefix="llmproxy-node-", ignore_cleanup_errors=True)
        made = Unpacked(fetch(), Path(folder.name).resolve(), take)
        made._open.callback(folder.cleanup)  # noqa: SLF001 - our own
        atexit.register(made.close)
        _here = batch, made
    return _here[1]


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _portable(ran: Ran) -> Ran:
    """Return how a run ended so that another process can read it: of an error that cannot travel its text and exit code do."""
    try:
        pickle.loads(pickle.dumps(ran.error))  # noqa: S301 - what we made a moment ago
    except Exception:  # noqa: BLE001 - whatever an error does when it is taken apart
        code = ran.error.exit_code if isinstance(ran.error, LLMProxyError) else Exit.FAILED
        kind = MissError if code == Exit.MISS else MachineError
        return replace(ran, error=kind(str(ran.error)))
    return ran
