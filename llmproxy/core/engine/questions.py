"""What may be asked of an engine beside its requests.

What is recorded, what of it was never used, what a user should know.
"""

from __future__ import annotations

from llmproxy.core.engine.fault_injection import recorded_calls
from llmproxy.core.engine.state import State
from llmproxy.core.faults.idle import explain_idle
from llmproxy.core.sessions.session import Session, split_name
from llmproxy.core.store.queries import count_unused
from llmproxy.core.store.rows import RowSummary
from llmproxy.protocol import OFFLINE


class Questions:
    """Answers about one engine; nothing is changed."""

    def __init__(self, state: State) -> None:
        """Share the engine's state."""
        self._state = state

    def notes(self) -> list[str]:
        """Return what a user should know before the first request."""
        store, cassette = self._state.stores.current, self._state.config.cassette
        if self._state.config.mode not in OFFLINE:
            return []
        shown = self._state.config.store_words
        if store is None:
            record = self._state.config.again.command("record", store=shown)
            return [f"there is no store {shown} yet, so every request will be a miss. Record first: {record}"]
        self._state.stores.make_ready(store, cassette, 1)
        if not store.has(cassette, 1) and (others := store.names(10)):
            return [f"cassette {cassette} is empty; {shown} has: {', '.join(others)}"]
        if "coding-agents" in self._state.config.rules.packs:
            learn = self._state.config.learn_command(cassette)
            return [f"the pack coding-agents stays as it is; `{learn}` does more, and needs no rule"]
        return []

    def count_unused(self) -> int | None:
        """Count the live recordings of the sessions' cassettes that no session played or made."""
        if self._state.stores.opened is None:
            return None
        served: dict[tuple[str, int], set[int]] = {}
        for session in [*self._state.sessions.walks.values(), *self._state.sessions.closed]:
            served.setdefault((session.cassette, session.sample), set()).update(session.served)
        live = self._state.config.live.channels if self._state.config.live is not None else ()
        return sum(count_unused(self._state.stores.opened, *place, ids, live) for place, ids in served.items())

    def unused_of(self, session: Session) -> list[RowSummary] | None:
        """Return the live recordings of a session's cassette that it neither played nor made.

        None where nothing is recorded.
        """
        store, living = self._state.stores.current, session.live
        unused = store.list_unused(session.cassette, session.sample, session.served) if store else None
        if unused is None or living is None:
            return unused
        return [row for row in unused if not living.is_live(row.channel)]

    def idle_faults(self, session: Session | None = None) -> dict[int, str]:
        """Say why each rule that met no call did not, by its number: of a session's faults, or of the proxy's."""
        faulting = None if session is None else session.faulting
        faults, strikes = self._state.config.faults, self._state.sessions.injected
        if session is not None:
            faults, strikes = (None, strikes) if faulting is None else (faulting.faults, faulting.injected)
        if faults is None or all(strikes.get(number) for number in range(1, len(faults.rules) + 1)):
            return {}
        walks = list(self._state.sessions.walks.values()) if session is None else [session]
        came = sum(each.calls.arrived for each in walks) + sum(strikes.values())
        places = {
            (each.cassette, each.sample) for each in (*walks, *(self._state.sessions.closed if session is None else ()))
        }
        store = self._state.stores.current
        calls = [] if store is None else [call for place in sorted(places) for call in recorded_calls(store, *place)]
        return explain_idle(faults, strikes, calls, came=came + len(self._state.sessions.closed))

    def list_rows(self, name: str | None, limit: int) -> list[RowSummary]:
        """Return the last live interactions, of one session's cassette where that is named."""
        store = self._state.stores.current
        if store is None:
            return []
        cassette, sample = split_name(name) if name is not None else (None, None)
        return store.summaries(cassette, sample, limit=limit)
