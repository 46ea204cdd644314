"""The journal: decisions and misses of each run, in ``<store>.state.db`` next to the store; and the results of trials.

A thread of its own writes it after the answer, at most half a second later, so that serving never waits for a disk. It
may be lost in a crash, and never blocks a run: without a usable file the last misses are kept in memory (`note` reports
it), and a damaged file is renamed. All text is redacted before it arrives here. Of each cassette and sample the last
trial is kept, whose changes are pending until somebody accepts them; its loss is harmless, as the next finds the same.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import sqlite3
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import chain
from operator import index
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from llmproxy.calls_and_totals import Call
from llmproxy.core.changes.segment_change import CarriedAnswerAttempt
from llmproxy.core.store.row_conversion import decode_sql_text, to_sql
from llmproxy.core.traffic.interaction import Request
from llmproxy.postgres_store_paths import create_folder_of_local_store_copy
from llmproxy.protocol import Decision
from llmproxy.sqlite_file import SqliteFileStatus, detect_sqlite_file_state, open_sqlite_connection, write_transaction

if TYPE_CHECKING:
    from llmproxy.core.sessions.session import Session

log = logging.getLogger(__name__)

SUFFIX = ".state.db"
"""Suffix of the file after the store's name."""
VERSION = 2
BEHIND_SECONDS = 0.25
"""Seconds for which entries are collected before they are written; well under half a second with the write."""
BUSY_SECONDS = 2.0
KEPT_DECISIONS = 100_000
KEPT_MISSES = 1_000
KEPT_ASKED = 20_000
ASKED_OF_A_RUN = 2_000
IN_MEMORY = 100

_SCHEMA = f"""
CREATE TABLE runs (id INTEGER PRIMARY KEY AUTOINCREMENT, started_at REAL NOT NULL, ended_at REAL);
CREATE TABLE decisions (
    id INTEGER PRIMARY KEY, run INTEGER NOT NULL, at REAL NOT NULL, decision TEXT NOT NULL, session TEXT, party TEXT,
    provider TEXT, operation TEXT, model TEXT, method TEXT, target TEXT, status INTEGER, ms REAL, first_ms REAL,
    input_tokens INTEGER, output_tokens INTEGER, key TEXT, interaction INTEGER, occurrence INTEGER, nearest INTEGER,
    miss INTEGER, lost INTEGER, note TEXT, fault TEXT
);
CREATE INDEX served ON decisions(run, interaction);
CREATE TABLE misses (id INTEGER PRIMARY KEY, run INTEGER NOT NULL, at REAL NOT NULL, text TEXT, data TEXT NOT NULL);
PRAGMA user_version = {VERSION};
"""


@dataclass(frozen=True, slots=True)
class JournaledMiss:
    at: float
    """Unix time."""
    text: str
    data: Mapping[str, Any]
    """`ExplainedMiss.to_dict()`."""
    places: Sequence[Mapping[str, Any]] = ()
    """Differences from the nearest recording, with values (`misses.nearest_recording`); in memory only."""
    steps: Sequence[Mapping[str, Any]] = ()
    """Advice (`ExplainedMiss.steps`); in memory only."""


class ReplayedRequest(NamedTuple):
    """A request that a recording answered, redacted; for `llmproxy audit`."""

    at: float
    """Unix time."""
    interaction: int
    request: Request
    same_body: bool
    """Whether its body equals the recorded one, byte for byte, and is not stored again."""


_Entry = Call | ReplayedRequest | JournaledMiss
_DECISION = f"(NULL{', ?' * 23})"
_AT_ONCE = 64
"""Rows per insert: a quarter of the time, with the interpreter's lock, of single ones."""
_MISS = "INSERT INTO misses VALUES (NULL, ?, ?, ?, ?)"
_ASKED_TABLE = """
CREATE TABLE IF NOT EXISTS asked (
    id INTEGER PRIMARY KEY, run INTEGER NOT NULL, at REAL NOT NULL, interaction INTEGER NOT NULL, method TEXT,
    target TEXT, headers TEXT NOT NULL, body BLOB
)
"""
_ASKED = "INSERT INTO asked VALUES (NULL, ?, ?, ?, ?, ?, ?, ?)"


def _build_decision_row(run: int, call: Call) -> tuple[object, ...]:
    c = call
    said = (c.session, c.party, c.provider, c.operation, c.model or "", c.method, c.target)
    texts: Sequence[object] = said if "".join(said).isascii() else [to_sql(text) for text in said]
    model = None if c.model is None else texts[4]
    return (
        run, c.at, c.decision.value, *texts[:4], model, *texts[5:], c.status, c.ms, c.first_ms, c.input, c.output,
        c.key, c.interaction, c.occurrence, c.nearest, c.miss, c.lost, to_sql(c.note), c.fault,
    )  # fmt: skip


def _build_replayed_row(run: int, asked: ReplayedRequest) -> tuple[object, ...]:
    request = asked.request
    body = None if asked.same_body else zlib.compress(request.body, 1)
    head = (to_sql(request.method), to_sql(request.target), json.dumps(request.headers))
    return (run, asked.at, asked.interaction, *head, body)


class CallDecisionJournalWriter:
    """Writer of the journal, one per proxy run. `record_call` and `add_miss` put into a queue, from any thread."""

    def __init__(self, conn: sqlite3.Connection | None, now: Callable[[], float], note: str) -> None:
        self.note = note
        """One-line note for the user about problems of the journal; empty if there are none."""
        self._conn, self._now = conn, now
        self._last: deque[JournaledMiss] = deque(maxlen=IN_MEMORY)
        self._queue: SimpleQueue[_Entry | None] = SimpleQueue()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._run = 0
        self.asks = 0 if conn is None else ASKED_OF_A_RUN
        if conn is not None:
            self._run = int(conn.execute("INSERT INTO runs (started_at) VALUES (?)", (now(),)).lastrowid or 0)
            self._thread = threading.Thread(target=self._write_until_stopped, name="llmproxy-journal", daemon=True)
            self._thread.start()

    @classmethod
    def open(cls, path: Path, now: Callable[[], float]) -> CallDecisionJournalWriter:
        """Open or create the journal; never raises for the file's content or place. `now` returns Unix time."""
        try:
            try:
                return cls(open_journal_database(path), now, "")
            except sqlite3.OperationalError:
                raise
            except sqlite3.DatabaseError as error:
                moved = path.with_name(f"{path.name}.broken")
                path.replace(moved)
                note = f"The journal {path} was damaged ({error}); it was moved to {moved}, a new one is begun."
                return cls(open_journal_database(path), now, note)
        except (sqlite3.Error, OSError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            return cls(None, now, f"The journal {path} cannot be used ({why}): kept in memory only.")

    @property
    def is_kept(self) -> bool:
        """Whether it has a file that it can write."""
        return self._conn is not None

    def record_call(self, call: Call) -> None:
        if self._conn is not None:
            self._queue.put(call)

    def record_replayed_request(self, asked: ReplayedRequest) -> None:
        if self._conn is not None:
            self.asks -= 1
            self._queue.put(asked)

    def add_miss(self, miss: JournaledMiss) -> None:
        self._last.append(miss)
        if self._conn is not None:
            self._queue.put(miss)

    def list_misses(self) -> list[JournaledMiss]:
        """Return the last misses of this run, oldest first, including those not yet written."""
        return list(self._last)

    def close(self) -> None:
        """Write pending entries, and end. May be called twice."""
        thread, self._thread = self._thread, None
        if thread is None or self._conn is None:
            return
        self._stop.set()
        self._queue.put(None)
        thread.join()
        try:
            self._conn.execute("UPDATE runs SET ended_at = ? WHERE id = ?", (self._now(), self._run))
        except sqlite3.Error:
            log.debug("journal.close.failed", exc_info=True)
        self._conn.close()
        self._conn = None

    def _write_until_stopped(self) -> None:
        while self._write_next_batch():
            pass

    def _write_next_batch(self) -> bool:
        """Write a batch of entries; False when stopped. A function of its own, so that waiting keeps no references."""
        first = self._queue.get()
        self._stop.wait(BEHIND_SECONDS)
        batch = [] if first is None else [first]
        with suppress(Empty):
            while True:
                if (entry := self._queue.get_nowait()) is not None:
                    batch.append(entry)
        self._write_batch(batch)
        return first is not None and not (self._stop.is_set() and self._queue.empty())

    def _write_batch(self, batch: list[_Entry]) -> None:
        if not batch or self._conn is None:
            return
        try:
            with write_transaction(self._conn):
                rows = [_build_decision_row(self._run, each) for each in batch if isinstance(each, Call)]
                for at in range(0, len(rows), _AT_ONCE):
                    some = rows[at : at + _AT_ONCE]
                    sql = f"INSERT INTO decisions VALUES {', '.join([_DECISION] * len(some))}"  # noqa: S608 - constants
                    self._conn.execute(sql, list(chain.from_iterable(some)))
                missed = [each for each in batch if isinstance(each, JournaledMiss)]
                values = [(self._run, m.at, to_sql(m.text), json.dumps(m.data, default=str)) for m in missed]
                self._conn.executemany(_MISS, values)
                asked = [each for each in batch if isinstance(each, ReplayedRequest)]
                self._conn.executemany(_ASKED, [_build_replayed_row(self._run, each) for each in asked])
        except (sqlite3.Error, OverflowError) as error:
            self.note = f"{len(batch)} entries of the journal were lost: {error}."
            log.warning(self.note)


def open_journal_database(path: Path) -> sqlite3.Connection:
    """Create or check the tables of the state database, drop old rows. Raises sqlite3.Error, OSError."""
    create_folder_of_local_store_copy(path.with_name(path.name.removesuffix(SUFFIX)))
    _check_writable(path)
    conn = open_sqlite_connection(path, "mode=rwc", timeout=BUSY_SECONDS)
    try:
        conn.execute("PRAGMA synchronous=OFF")  # a journal may be lost
        with write_transaction(conn):
            version = conn.execute("PRAGMA user_version").fetchone()[0]
            if version != VERSION:
                _check_database_empty(conn, version)
                for statement in _SCHEMA.split(";\n"):
                    if statement.strip():
                        conn.execute(statement)
            conn.execute(_ASKED_TABLE)  # newer than the other tables; an older llmproxy ignores it
            for table, kept in (("decisions", KEPT_DECISIONS), ("misses", KEPT_MISSES), ("asked", KEPT_ASKED)):
                old = f"(SELECT max(id) FROM {table}) - {kept}"  # noqa: S608 - only names of ours
                conn.execute(f"DELETE FROM {table} WHERE id <= {old}")  # noqa: S608 - as above
    except BaseException:
        conn.close()
        raise
    return conn


def _check_writable(path: Path) -> None:
    """Raise OSError with the reason if a file is not writable; SQLite only says "unable to open"."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _check_database_empty(conn: sqlite3.Connection, version: int) -> None:
    if version or conn.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        raise sqlite3.DatabaseError(f"it is of another version, {version}")


def fetch_journal_rows(path: Path, sql: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
    """Return the rows of a query, without creating or changing the journal; empty if it is absent or unreadable."""
    try:
        if detect_sqlite_file_state(path) is not SqliteFileStatus.ROLLBACK:
            return []
        with closing(open_sqlite_connection(path, "mode=ro", timeout=BUSY_SECONDS)) as conn:
            return conn.execute(sql, values).fetchall()
    except (OSError, sqlite3.Error):
        log.debug("journal.read.failed", exc_info=True)
        return []


def _parse_rows[T](rows: Iterable[Sequence[Any]], make: Callable[..., T]) -> Iterator[T]:
    """Yield the results of `make`; rows with values invalid for their column are skipped."""
    for row in rows:
        try:
            yield make(*row)
        except (TypeError, ValueError, AttributeError, OverflowError, RecursionError, zlib.error):
            log.debug("journal.row.failed", exc_info=True)


def _parse_miss(at: Any, text: Any, data: Any) -> JournaledMiss:
    if not isinstance(tree := json.loads(data), dict):
        raise TypeError(f"a miss is {type(tree).__name__}")
    return JournaledMiss(_check_time(at), decode_sql_text(text), tree)


def _check_time(at: Any) -> float:
    """Return a valid Unix time. Raises TypeError, ValueError."""
    if not 0 <= float(at) < _LATEST:
        raise ValueError(f"{at!r:.60} is no time")
    return float(at)


_LATEST = 253_402_300_800
"""Unix seconds from which on Python has no dates (year 10000)."""


def read_last_misses_from_journal(path: Path, limit: int) -> list[JournaledMiss]:
    found = fetch_journal_rows(path, "SELECT at, text, data FROM misses ORDER BY id DESC LIMIT ?", (limit,))
    return list(_parse_rows(reversed(found), _parse_miss))


def read_faulted_calls(path: Path, limit: int) -> list[Call]:
    """Return the last run's last calls with injected faults, oldest first; `note` has the number of the rule."""
    sql = (
        "SELECT at, decision, status, fault, session, provider, operation, model, note FROM decisions"
        " WHERE run = (SELECT max(id) FROM runs) AND fault IS NOT NULL ORDER BY id DESC LIMIT ?"
    )
    return list(_parse_rows(reversed(fetch_journal_rows(path, sql, (limit,))), _parse_faulted_call))


def _parse_faulted_call(at: Any, decision: Any, status: Any, fault: Any, *texts: Any) -> Call:
    session, provider, operation, model, note = (decode_sql_text(text or "") for text in texts)
    return Call(
        Decision(decision), status=index(status), session=session, provider=provider, operation=operation, model=model,
        note=note, fault=str(fault), at=_check_time(at),
    )  # fmt: skip


def read_ids_used_last_run(path: Path) -> frozenset[int] | None:
    """Return the interactions that the journal's last run served or recorded; None if there is no run."""
    if not (found := fetch_journal_rows(path, "SELECT max(run) FROM decisions", ())) or found[0][0] is None:
        return None
    sql = "SELECT DISTINCT interaction FROM decisions WHERE run = ? AND interaction IS NOT NULL"
    return frozenset(row[0] for row in fetch_journal_rows(path, sql, found[0]))


def read_replayed_requests(path: Path) -> list[tuple[int, Request, bool]]:
    """Return the last run's requests with hits: interaction, request, whether its body is the recorded one's."""
    sql = """SELECT interaction, method, target, headers, body FROM asked
        WHERE run = (SELECT max(id) FROM runs) ORDER BY id"""
    return list(_parse_rows(fetch_journal_rows(path, sql, ()), _parse_replayed_request))


def _parse_replayed_request(id_: Any, method: Any, target: Any, headers: Any, body: Any) -> tuple[int, Request, bool]:
    fields = tuple((name + "", value + "") for name, value in json.loads(headers))
    content = b"" if body is None else zlib.decompress(body)
    return index(id_), Request(decode_sql_text(method), decode_sql_text(target), fields, content), body is None


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


class ChangedAgentTrialRunResult(NamedTuple):
    cassette: str
    sample: int
    at: float
    """Unix time of its end."""
    passed: bool | None
    """Whether the run in it passed; None if unknown."""
    calls: int
    seen: tuple[CarriedAnswerAttempt, ...]
    """Calls that were no hits of their own, in their order."""
    served: frozenset[int] | None = None
    """Recordings that were played; None if the run did not end by itself."""

    @property
    def cassette_and_sample(self) -> tuple[str, int]:
        return self.cassette, self.sample


class ChangedAgentTrialResultWriter:
    def __init__(self, store: Path, now: Callable[[], float]) -> None:
        self._path, self._now = get_decision_journal_path(store), now
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
                self._conn = open_journal_database(self._path)
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


def discard_played_ids_of_cut_trials(store: Path, since: float) -> None:
    """Delete the played recordings of trials that ended since then, because their runs were interrupted."""
    with (
        suppress(OSError, sqlite3.Error),
        closing(open_journal_database(get_decision_journal_path(store))) as conn,
        write_transaction(conn),
    ):
        conn.execute(_TABLE)
        conn.execute("UPDATE trial_runs SET served = NULL WHERE at >= ?", (since,))


def get_decision_journal_path(store: Path) -> Path:
    return Path(f"{store}{SUFFIX}")


def read_changed_agent_trial_results(store: Path, since: float = 0.0) -> list[ChangedAgentTrialRunResult]:
    """Return trials that ended at `since` (Unix time) or later, by cassette; empty if none are stored."""
    return [
        ChangedAgentTrialRunResult(
            decode_sql_text(name),
            sample,
            at,
            None if passed is None else bool(passed),
            calls,
            tuple(map(CarriedAnswerAttempt.from_json, json.loads(seen))),
            None if served is None else frozenset(json.loads(served)),
        )
        for name, sample, at, passed, calls, seen, served in fetch_journal_rows(
            get_decision_journal_path(store), _SINCE, (since,)
        )
    ]
