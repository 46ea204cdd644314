"""The file of the cache: opened when it is needed, shared by threads and processes, and never taken for empty when it is broken.

    no file -> None for a reader, a new one for a writer;   ours -> a connection;   anything else -> an error that says what it is

Everything SQLite can raise is translated here, once. An empty file is a new one: that is what SQLite leaves until its first write.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmproxy.errors import CassetteBusy, CassetteCorrupt, CassetteNewer, LLMProxyError, RecordingError, StoreReadOnly

__all__ = ["CacheCorrupt", "CacheFile", "Entry", "Stats", "cache_path"]

DIRECTORY = "SCENARIO_CACHE_DIR"
FILE = "cache.db"
APPLICATION_ID = 0x6C6C6D63
"""``llmc``: tells our file from another program's."""
VERSION = 1
BUSY_SECONDS = 30.0
"""How long a statement waits for another process's write; each takes less than a millisecond."""
_TRIES = 50
_PAUSE = 0.02

_ENTRIES = """
CREATE TABLE IF NOT EXISTS entries (
  key TEXT PRIMARY KEY, value TEXT NOT NULL, digest TEXT NOT NULL, name TEXT NOT NULL, cache_key TEXT NOT NULL,
  sample INTEGER NOT NULL, created_at REAL NOT NULL, hits INTEGER NOT NULL DEFAULT 0, about TEXT NOT NULL)
"""
_TABLES = (
    _ENTRIES,
    "CREATE TABLE IF NOT EXISTS counts (name TEXT PRIMARY KEY, number INTEGER NOT NULL)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {VERSION}",
)

# https://www.sqlite.org/rescode.html, primary codes
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_READ_ONLY = frozenset({sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN})
_NO_ROOM = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR})


class CacheCorrupt(CassetteCorrupt):
    """The cache file is damaged; it is never treated as empty and never overwritten."""

    code = "llmproxy_cache_corrupt"


def cache_path(env: Mapping[str, str]) -> Path | None:
    """Return the file that the environment names, None if it switches the cache off."""
    said = env.get(DIRECTORY)
    if said is not None and not said.strip():
        return None
    folder = Path(said).expanduser() if said else Path.home() / ".scenario" / "cache"
    return (folder / FILE).absolute()


@dataclass(frozen=True, slots=True)
class Entry:
    """One value, without its text."""

    key: str
    name: str
    """The function, or what else made it."""
    cache_key: str
    sample: int
    created_at: float
    """Unix time, seconds."""
    hits: int
    size: int
    """Bytes of the value."""
    about: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Stats:
    """What a cache holds and did so far."""

    path: Path
    entries: int
    size: int
    """Bytes of all values."""
    hits: int
    misses: int
    by_name: Mapping[str, int] = field(default_factory=dict)
    """Entries by what made them."""


class CacheFile:
    """A cache file and this process's connection to it."""

    def __init__(self, path: Path) -> None:
        """Take the file at `path`; nothing is touched yet."""
        self.path = path
        self._lock = threading.RLock()
        self._conn: sqlite3.Connection | None = None
        self._owner = 0
        self._ending: weakref.finalize[[sqlite3.Connection, int], CacheFile] | None = None

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection | None]:
        """Have the connection to oneself; None where there is no file."""
        with self._lock, self._translated():
            yield self._open() if self._conn is not None or self.path.exists() else None

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Have the connection to oneself, in a transaction; the file is made if there is none."""
        with self._lock, self._translated(), _transaction(self._open()) as conn:
            yield conn

    def close(self) -> None:
        """Close the connection; the next session opens it again."""
        with self._lock:
            if self._ending is not None:
                self._ending()
            self._conn = self._ending = None

    def damaged(self, what: object) -> CacheCorrupt:
        """Return the error for a file that is not as it should be."""
        return CacheCorrupt(
            f"The cache {self.path} is damaged: {what}.",
            hint=f"Nothing was changed. To begin with an empty cache: rm '{self.path}'*   "
            f"(or another {DIRECTORY}). What is readable: sqlite3 '{self.path}' .recover",
        )

    # -- opening

    def _open(self) -> sqlite3.Connection:
        if self._conn is None or self._owner != os.getpid():  # of the process that forked us: not to be used here
            self._conn, self._owner = self._connected(), os.getpid()
            self._ending = weakref.finalize(self, _close, self._conn, self._owner)
            self._ending.atexit = False
        return self._conn

    def _connected(self) -> sqlite3.Connection:
        self._make_folder()
        if self.path.is_dir():
            raise self.damaged("it is a folder")
        conn = self._connect("mode=rwc")
        try:
            # One look in one state: between two, another process may have made the tables.
            with _transaction(conn, "DEFERRED"):
                current = self._is_current(conn)
            if not current:
                self._make(conn)
            conn.execute("PRAGMA synchronous=NORMAL")  # with write-ahead, a killed process loses nothing
        except BaseException:
            conn.close()
            raise
        return conn

    def _connect(self, query: str) -> sqlite3.Connection:
        return sqlite3.connect(
            f"{self.path.as_uri()}?{query}",
            uri=True,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
        )

    def _make_folder(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreReadOnly(
                f"The folder of the cache, {self.path.parent}, cannot be made: {error.strerror}.",
                hint=f"{DIRECTORY}=<folder> puts it elsewhere, {DIRECTORY}= switches the cache off.",
            ) from error

    def _is_current(self, conn: sqlite3.Connection) -> bool:
        """Tell whether the tables are there; False for a new file. Raises for a file of somebody else."""
        application = conn.execute("PRAGMA application_id").fetchone()[0]
        version = conn.execute("PRAGMA user_version").fetchone()[0]
        tables = {str(row[0]) for row in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if application == APPLICATION_ID and version > VERSION:
            raise CassetteNewer(
                f"The cache {self.path} was written by a newer llmproxy (format {version}, this one knows {VERSION}).",
                hint=f"pip install --upgrade llmproxy-replay, or another {DIRECTORY}.",
            )
        if application == APPLICATION_ID and version == VERSION:
            if not {"entries", "counts"} <= tables:
                raise self.damaged("its tables are gone")
            return True
        if tables or application or version:
            raise CacheCorrupt(
                f"{self.path} is a SQLite database of another program (tables: {', '.join(sorted(tables)[:5]) or 'none'}).",
                hint=f"Nothing was changed. {DIRECTORY}=<folder> puts the cache elsewhere.",
            )
        return False

    def _make(self, conn: sqlite3.Connection) -> None:
        for attempt in range(_TRIES):
            try:
                conn.execute("PRAGMA journal_mode=WAL").fetchone()
                break
            except sqlite3.OperationalError as error:
                # SQLite does not wait here; without write-ahead everything works as well, with more waiting.
                if (error.sqlite_errorcode & 0xFF) not in _BUSY or attempt + 1 == _TRIES:
                    raise
                time.sleep(_PAUSE)
        with _transaction(conn):
            if not self._is_current(conn):  # another process may have been quicker
                for statement in _TABLES:
                    conn.execute(statement)

    # -- what SQLite says, in our words

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._meant(error) from error

    def _meant(self, error: sqlite3.Error) -> LLMProxyError:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code in _BUSY:
            return CassetteBusy(
                f"The cache {self.path} is locked by another program ({error}).",
                hint=f"Close the program that holds it (sqlite3, a database browser), or set another {DIRECTORY}.",
            )
        if code in _READ_ONLY:
            return StoreReadOnly(
                f"The cache {self.path} cannot be written to: {error}.",
                hint=f"Check the permissions; {DIRECTORY}=<folder> puts it elsewhere, {DIRECTORY}= switches it off.",
            )
        if code in _NO_ROOM:
            return RecordingError(
                f"The cache {self.path} did not take the value: {error}.", hint="Check the free space."
            )
        return self.damaged(error)


def _close(conn: sqlite3.Connection, owner: int) -> None:
    """Close a connection in the process that opened it; a forked one must not (https://www.sqlite.org/howtocorrupt.html)."""
    if owner == os.getpid():
        conn.close()


@contextmanager
def _transaction(conn: sqlite3.Connection, kind: str = "IMMEDIATE") -> Iterator[sqlite3.Connection]:
    conn.execute(f"BEGIN {kind}")
    try:
        yield conn
        conn.execute("COMMIT")
    except BaseException:
        if conn.in_transaction:
            conn.execute("ROLLBACK")
        raise
