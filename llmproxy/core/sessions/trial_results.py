"""Results of sessions on trial, in the state database next to the store: pending changes, until somebody accepts them.

One row for each cassette and sample: its last trial. Its loss is harmless: the next trial finds the same.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from llmproxy.core.changes.change import UnrecordedTrialCall
from llmproxy.core.sessions.journal import SUFFIX, open_state, query_journal
from llmproxy.core.sessions.session import Session
from llmproxy.core.store.rows import decode_sql_text, to_sql
from llmproxy.sqlite_file import write_transaction

log = logging.getLogger(__name__)

_TABLE = """
CREATE TABLE IF NOT EXISTS trial_runs (
    cassette TEXT NOT NULL, sample INTEGER NOT NULL, at REAL NOT NULL, passed INTEGER, calls INTEGER NOT NULL,
    seen TEXT NOT NULL, served TEXT, PRIMARY KEY (cassette, sample)
)
"""
_SINCE = (
    "SELECT cassette, sample, at, passed, calls, seen, served FROM trial_runs WHERE at >= ? ORDER BY cassette, sample"
)
_ONE = "SELECT calls, seen, passed, served FROM trial_runs WHERE cassette = ? AND sample = ? AND at >= ?"


class TrialSessionResult(NamedTuple):
    cassette: str
    sample: int
    at: float
    """Unix time of its end."""
    passed: bool | None
    """Whether the run in it passed; None if unknown."""
    calls: int
    seen: tuple[UnrecordedTrialCall, ...]
    """Calls that were no hits of their own, in their order."""
    served: frozenset[int] | None = None
    """Recordings that were played; None if the run did not end by itself."""

    @property
    def cassette_and_sample(self) -> tuple[str, int]:
        return self.cassette, self.sample


class TrialStore:
    def __init__(self, store: Path, now: Callable[[], float]) -> None:
        self._path, self._now = get_state_path(store), now
        self._since = now()
        self._conn: sqlite3.Connection | None = None

    def store_trial(self, session: Session) -> None:
        """Store the results of an ended session on trial, added to this proxy's earlier ones for its cassette."""
        told = {name: value for each in session.interceptors for name, value in each.build_report().items()}
        seen = [] if told.get("replaced") else told.get("trial")
        if seen is None or not session.calls.arrived:
            return
        place = to_sql(session.cassette), session.sample
        try:
            if self._conn is None:
                self._conn = open_state(self._path)
                self._conn.execute(_TABLE)
            conn = self._conn
            with write_transaction(conn):
                before = conn.execute(_ONE, (*place, self._since)).fetchone() or (0, "[]", 1, "[]")
                passed = (
                    None if session.sealed is None or not session.is_over else int(session.sealed and before[2] != 0)
                )
                rows = json.dumps([*json.loads(before[1]), *seen])
                whole = before[3] is not None and (session.is_over or not session.settings.opened)
                served = json.dumps(sorted({*json.loads(before[3]), *session.served})) if whole else None
                row = (*place, self._now(), passed, before[0] + session.calls.arrived, rows, served)
                conn.execute("INSERT OR REPLACE INTO trial_runs VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        except (OSError, sqlite3.Error) as error:
            log.warning("what the trial of %s saw could not be kept in %s: %s", session.name, self._path, error)

    def close(self) -> None:
        if self._conn is not None:
            self._conn.close()
            self._conn = None


def forget_interrupted_trials_served_recordings(store: Path, since: float) -> None:
    """Delete the played recordings of trials that ended since then, because their runs were interrupted."""
    with suppress(OSError, sqlite3.Error), closing(open_state(get_state_path(store))) as conn, write_transaction(conn):
        conn.execute(_TABLE)
        conn.execute("UPDATE trial_runs SET served = NULL WHERE at >= ?", (since,))


def get_state_path(store: Path) -> Path:
    return Path(f"{store}{SUFFIX}")


def read_trials(store: Path, since: float = 0.0) -> list[TrialSessionResult]:
    """Return trials that ended at `since` (Unix time) or later, by cassette; empty if none are stored."""
    return [
        TrialSessionResult(
            decode_sql_text(name),
            sample,
            at,
            None if passed is None else bool(passed),
            calls,
            tuple(map(UnrecordedTrialCall.from_json, json.loads(seen))),
            None if served is None else frozenset(json.loads(served)),
        )
        for name, sample, at, passed, calls, seen, served in query_journal(get_state_path(store), _SINCE, (since,))
    ]
