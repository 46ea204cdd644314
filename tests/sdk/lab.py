"""One upstream, all drivers, four acts: record, upstream away, replay everything twice, ask what was never recorded.

The acts are run once for all drivers that pytest selected; the tests only look at what came out. All drivers share one recording
proxy and one replaying proxy, each in a session of its own (`/s/<driver>`), two at a time. A driver for Python is imported once; each
of its runs is a process forked from there (tests/support/forked.py). When the upstream has been stopped, a counter listens on its port
instead, so that a connection that should not be made is seen even if it fails.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.provider import Provider, Seen
from tests.support import Aimock, Proxy, aimock, proxy

from .drivers import KEYS, Driver, Outcome, base_urls, fixtures, run, script
from .environments import NODE

PROVIDERS = ("openai", "anthropic", "gemini", "ollama", "mistral", "cohere")
TWIST = " (changed)"
STAR = "*"
"""At the end of a case's name: with the prompt changed."""
AGAIN = "+"
"""At the end of a case's name: once more."""
AT_ONCE = 2


def probes(driver: Driver, upstream: str) -> list[str]:
    """Cases whose changed prompt must be a miss: each route's plain and streamed one."""
    return [case for case in driver.cases_on(upstream) if case.rpartition("_")[2] in ("plain", "stream")]


def replayed(driver: Driver, upstream: str) -> list[str]:
    """Cases of the replay: all, all once more, and those that must be a miss. In one process: most of its time goes into imports."""
    cases = driver.cases_on(upstream)
    return [*cases, *(case + AGAIN for case in cases), *(case + STAR for case in probes(driver, upstream))]


@dataclass
class Lab:
    upstream: str
    folder: Path
    drivers: tuple[Driver, ...]
    recorded: dict[str, Outcome] = field(default_factory=dict)
    replayed: dict[str, Outcome] = field(default_factory=dict)
    again: dict[str, Outcome] = field(default_factory=dict)
    missed: dict[str, Outcome] = field(default_factory=dict)
    misses: dict[str, int] = field(default_factory=dict)
    """Driver -> requests of its session that the replaying proxy refused."""
    seen: list[Seen] = field(default_factory=list)
    """Requests that our provider got while recording (aimock does not keep their headers for us)."""
    asked_upstream: int = 0
    """Requests that reached the upstream while recording."""
    late_connections: int = 0
    """Connections to the upstream's port after it was stopped."""
    proxies: list[Proxy] = field(default_factory=list)

    @property
    def store(self) -> Path:
        return self.folder / "llmproxy.db"

    def perform(self) -> Lab:
        with Provider([], port=self._record(), check=False) as counter:
            self._replay(dict.fromkeys(PROVIDERS, counter.url))
            self.late_connections = counter.connections
        return self

    def _all(self, label: str, act: Callable[[Driver], Outcome]) -> dict[str, Outcome]:
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix=label) as pool:
            return dict(zip((d.name for d in self.drivers), pool.map(act, self.drivers), strict=True))

    def _run(self, px: Proxy, driver: Driver, label: str, cases: list[str], env: dict[str, str]) -> Outcome:
        urls = base_urls(px.session_url(driver.name), self.upstream)
        return run(driver, cases, {**urls, **env}, self.folder, label)

    def _record(self) -> int:
        served: AbstractContextManager[Provider | Aimock]
        if self.upstream == "provider":
            served = Provider(script(), check=False)
        else:
            served = aimock(NODE, self.folder / "aimock", fixtures())
        with served as up:
            with proxy("record", self.store, upstreams=dict.fromkeys(PROVIDERS, up.url)) as px:
                self.recorded = self._all(
                    "record", lambda d: self._run(px, d, "record", d.cases_on(self.upstream), KEYS)
                )
            self.proxies.append(px)
            self.seen = up.requests if isinstance(up, Provider) else []
            self.asked_upstream = len(up.requests if isinstance(up, Provider) else up.journal())
            return up.port

    def _replay(self, upstreams: dict[str, str]) -> None:
        with ExitStack() as stack:
            px = stack.enter_context(proxy("replay", self.store, upstreams=upstreams))
            self.proxies.append(px)
            twist = {"TWIST": TWIST}
            told = self._all("replay", lambda d: self._run(px, d, "replay", replayed(d, self.upstream), twist))
        for mark, outcomes in ((AGAIN, self.again), (STAR, self.missed)):
            outcomes |= {
                name: {c[:-1]: line for c, line in each.items() if c[-1] == mark} for name, each in told.items()
            }
        self.replayed = {
            name: {c: line for c, line in each.items() if c[-1] not in (AGAIN, STAR)} for name, each in told.items()
        }
        # The printed lines, one for each request that arrived, so that a silent retry is seen; complete once the proxy ended.
        refused = [line.split() for line in px.stdout.splitlines() if line.split()[1:2] == ["MISS"]]
        self.misses = {d.name: sum(d.name in words for words in refused) for d in self.drivers}
