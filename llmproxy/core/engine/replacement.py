"""Recordings that take the place of older ones all at once, when the session that made them is closed.

    recorded in the session      kept in `NAME@new` meanwhile, as every answer is before its client sees its end
    closed, nothing failed       one transaction: what they replace is superseded, they are recordings of `NAME`
    closed, something failed     `NAME` stays as it was; `NAME@new` can be looked at until the next such session
    killed, interrupted          the same

So a wrong key, a bad day or a kill at any moment costs nothing that was recorded. What several sessions of one proxy
record in one cassette (tests that share it) adds up, as it does without this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmproxy.core.engine.feature import EngineParts, Feature
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.sessions.interceptor import Interceptor
from llmproxy.core.sessions.session import Session
from llmproxy.core.store.reading import Place
from llmproxy.core.store.rows import to_sql
from llmproxy.core.store.store import UNFINISHED, Store
from llmproxy.protocol import Mode, Update

STAGED = "@new"
"""How the name of the cassette ends that holds what is to replace recordings of another one."""


class ReplacementInterceptor(Interceptor[Exchange]):
    """Keeps what a session records apart, and puts it in the place of its cassette's recordings when it is closed."""

    def __init__(self, parts: EngineParts, session: Session, ours: dict[Place, set[int]]) -> None:
        """Begin with nothing kept apart; `ours` are recordings that this proxy has put in place before.

        Raises CassetteBusy: another session does the same.
        """
        self._state, self._session, self._ours = parts.state, session, ours
        self.staged: Place = f"{session.cassette}{STAGED}", session.sample
        store = self._state.sessions.store(Mode.RECORD)
        if store is None:
            raise AssertionError("a recording session without a store")
        store.begin(*self.staged, exclusive=True, holder=self._state.sessions.holder)
        if left := [row.id for row in store.list_keys(*self.staged)]:  # of a session that failed, or was killed
            store.delete(left)
            store.begin(*self.staged, exclusive=True, holder=self._state.sessions.holder)

    @property
    def place(self) -> Place:
        return self._session.cassette, self._session.sample

    @property
    def kept_in(self) -> Place:
        return self.staged

    @property
    def leased(self) -> Place:
        return self.staged

    def on_close(self) -> None:
        """Replace what is to be replaced, if the session was closed by who opened it and nothing in it failed."""
        store = self._state.stores.opened
        if store is None or not self._session.is_over or self._find_objection(store):
            return
        made = store.list_keys(*self.staged)
        asked = {(row.party, row.key) for row in made}
        ours = self._ours.setdefault(self.place, set())
        gone = [
            row.id
            for row in store.list_keys(*self.place)
            if self.replaces(row.id) and (row.id not in ours or (row.party, row.key) in asked)
        ]
        holder, clean = self._state.sessions.holder, self._session.sealed is not False
        store.promote(self.staged, self.place, gone, holder=holder, clean=clean)
        if clean:  # an attempt that failed makes room for the next one
            ours.update(row.id for row in made)

    def replaces(self, recording: int) -> bool:  # noqa: ARG002 - of all of its kind
        """Return whether a recording of the cassette goes when the new ones come."""
        return True

    def _find_objection(self, store: Store) -> str:
        """Return why the old recordings stay; empty if they do not."""
        totals = self._session.calls.totals
        if not store.list_keys(*self.staged):
            return "nothing was recorded"
        if totals.failed or totals.refused:
            return "an answer could not be recorded, or its provider not be reached"
        failed = store.rows(UNFINISHED, (to_sql(self.staged[0]), self.staged[1]))
        return "an answer had failed, or was cut" if failed else ""

    def report(self) -> Mapping[str, Any]:
        store = self._state.stores.opened
        why = self._find_objection(store) if store is not None else "nothing was recorded"
        replaced: dict[str, Any] = {} if why else {"unused": [], "unused_total": 0}  # nothing of them is left
        return {"replacement": {"cassette": self.staged[0], "why_not": why}} | replaced


class ReplacementFeature(Feature):
    """Recordings are replaced when a session ends well, at once."""

    kind = ReplacementInterceptor

    def __init__(self, parts: EngineParts) -> None:
        super().__init__(parts)
        self._ours: dict[Place, set[int]] = {}

    def plug(self, session: Session, asked: Mapping[str, Any]) -> ReplacementInterceptor | None:  # noqa: ARG002 - as all
        if self.parts.state.config.update is not Update.ALL or not session.policy.anew:
            return None
        return ReplacementInterceptor(self.parts, session, self._ours)
