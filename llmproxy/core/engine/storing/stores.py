"""The store of one proxy: when it is opened, for what, and what is forgotten when another file stands under its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llmproxy.core.living.living import Living
from llmproxy.core.sessions.exchange import Config
from llmproxy.core.sessions.session import Session
from llmproxy.core.store.file.store import open_store
from llmproxy.core.store.rederive import derive
from llmproxy.core.store.store import Addition, Store
from llmproxy.protocol import Mode, Plays
from llmproxy.store_server import is_there


class Stores:
    """The store of one engine, open or not yet."""

    def __init__(self, config: Config, now: Callable[[], float], forget: Callable[[], None]) -> None:
        """Open nothing; `now` is Unix time, `forget` is called when ids mean other recordings from now on."""
        self._config, self._now, self._forget = config, now, forget
        self.opened: Store | None = None
        """The store if it is open already."""

    def begin(self) -> None:
        """Open (or, to record, create) the store: a damaged one is said at the start, not at the first request."""
        if self._config.mode.policy.writes:
            self.opened = self._open(writable=True)
        self.current  # noqa: B018 - opens it where there is one

    @property
    def current(self) -> Store | None:
        """The store; where nothing is written it may appear later, as when a recording is made beside us."""
        policy = self._config.mode.policy
        if (
            self.opened is None
            and policy.plays is not Plays.NOTHING
            and not policy.writes
            and is_there(self._config.store)
        ):
            self.opened = self._open(writable=False)
        return self.opened

    def _open(self, *, writable: bool) -> Store:
        store = open_store(self._config.store, writable=writable, now=self._now, whole=False)
        store.reopened = self._forget

        def make_ready(places: Sequence[tuple[str, int]]) -> None:
            for place in places:
                self.make_ready(store, *place)

        store.hear_replaced = make_ready
        return store

    def open_for(self, mode: Mode) -> Store | None:
        """Return the store, open for writing where a session of this mode writes; a replay proxy opens it so only when asked to."""
        store = self.current
        if not mode.policy.writes or (store is not None and store.writable):
            return store
        opened: list[tuple[str, int]] = []
        if store is not None:
            opened = list(store.derived)
            store.close()
            self.opened = None
            self._forget()
        self.opened = self._open(writable=True)
        for place in opened:
            self.make_ready(self.opened, *place)
        return self.opened

    def make_ready(self, store: Store, cassette: str, sample: int) -> None:
        """See what others recorded in a cassette; give what an older version did its keys of today."""
        store.refresh(cassette)
        derive(store, cassette, sample, self._config.rules, self._config.upstreams)

    def keep_file(self, session: Session) -> None:
        """Write the cassette's file, where such are kept; from any thread, so over a connection of its own."""
        if self._config.cassette_dir is not None:
            from llmproxy.core.cassettes.folder import CassetteDir

            with open_store(self._config.store, writable=False, now=self._now) as store:
                kept, writer = CassetteDir(self._config.cassette_dir, now=self._now), self.opened
                if writer is not None and writer.writable:
                    kept.save(store, session.cassette, remember=writer.remember_file)
                else:
                    kept.save(store, session.cassette)

    def keep_waiting(self, living: Living) -> None:
        """Store what waits of a run with live channels. Raises as `stored`."""
        if self.opened is not None and (waiting := living.take()):
            self.opened.add_all([Addition(each) for each in waiting])

    def close(self) -> None:
        if self.opened is not None:
            self.opened.close()
