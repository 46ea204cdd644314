"""The file of the cache: opened when it is needed, shared by threads and processes, and never taken for empty when it is broken.

    no file -> None for a reader, a new one for a writer;   ours -> a connection;   anything else -> an error that says what it is

An empty file is a new one: that is what SQLite leaves until its first write. A file that is removed under a living process (``rm -rf`` of
the folder is the documented way to begin anew) is made again with the next write: what a connection to a removed file takes is lost.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmproxy import sqlite_file
from llmproxy.core.traffic.advice import quote_word
from llmproxy.errors import CassetteCorrupt, CassetteNewer, StoreReadOnly
from llmproxy.install import upgrade
from llmproxy.sqlite_file import Connection, immediate, snapshot, translate_errors

DIRECTORY = "SCENARIO_CACHE_DIR"
FILE = "cache.db"
APPLICATION_ID = 0x6C6C6D63
"""``llmc``: tells our file from another program's."""
VERSION = 1
BUSY_SECONDS = 30.0
"""How long a statement waits for another process's write; each takes less than a millisecond."""

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


class CacheCorrupt(CassetteCorrupt):
    """The cache file is damaged; it is never treated as empty and never overwritten."""

    code = "llmproxy_cache_corrupt"


WORDS = sqlite_file.Words(
    name="cache",
    takes="value",
    elsewhere=f"set another {DIRECTORY} ({DIRECTORY}= switches it off)",
    damaged="Nothing was changed. To begin with an empty cache: rm '{path}'*   "
    f"(or another {DIRECTORY}). What is readable: sqlite3 '{{path}}' .recover",
    unreadable=f"Nothing was changed. Another one: {DIRECTORY}=<folder>",
    corrupt=CacheCorrupt,
)


def cache_path(env: Mapping[str, str]) -> Path | None:
    """Return the file that the environment names, None if it switches the cache off."""
    said = env.get(DIRECTORY)
    if said is not None and not said.strip():
        return None
    folder = Path(said).expanduser() if said else Path.home() / ".scenario" / "cache"
    return (folder / FILE).absolute()


@dataclass(frozen=True, slots=True)
class CacheEntry:
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
        self._conn: Connection | None = None
        self._owner = 0
        self._ending: weakref.finalize[[Connection, int], CacheFile] | None = None

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection | None]:
        """Have the connection to oneself; None where there is no file."""
        with self._lock, translate_errors(self.path, WORDS, writing=True):
            yield self._open() if self.path.exists() else None

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Have the connection to oneself, in a transaction; the file is made if there is none, or it was removed."""
        with self._lock, translate_errors(self.path, WORDS, writing=True):
            conn = self._open()
            with immediate(conn):
                yield conn

    def close(self) -> None:
        """Close the connection; the next session opens it again."""
        with self._lock:
            if self._ending is not None:
                self._ending()
            self._conn = self._ending = None

    def is_current(self) -> bool:
        """Tell whether what was written last is in the file that lies there now, so that it can be found again."""
        with self._lock:
            return self._conn is not None and self._conn.is_current()

    def damage_error(self, what: object) -> CacheCorrupt:
        """Return the error for a file that is not as it should be."""
        return CacheCorrupt(
            f"The cache {self.path} is damaged: {what}.",
            hint=WORDS.damaged.format(path=self.path, typed=quote_word(str(self.path))),
        )

    # -- opening

    def _open(self) -> Connection:
        forked = self._owner != os.getpid()  # of the process that forked us: not to be used here
        if self._conn is None or forked or not self._conn.is_current():
            if not forked:
                self.close()
            self._conn, self._owner = self._open_connection(), os.getpid()
            self._ending = weakref.finalize(self, _close, self._conn, self._owner)
            self._ending.atexit = False
        return self._conn

    def _open_connection(self) -> Connection:
        self._make_folder()
        if self.path.is_dir():
            raise self.damage_error("it is a folder")
        conn = sqlite_file.connect(self.path, "mode=rwc", timeout=BUSY_SECONDS)
        try:
            with snapshot(conn):  # one look in one state: between two, another process may have made the tables
                current = self._has_tables(conn)
            if current:
                conn.note_log()
            else:
                conn.write_ahead()
                self._make(conn)
            conn.execute("PRAGMA synchronous=NORMAL")  # with write-ahead, a killed process loses nothing
        except BaseException:
            conn.close()
            raise
        return conn

    def _make_folder(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreReadOnly(
                f"The folder of the cache, {self.path.parent}, cannot be made: {error.strerror}.",
                hint=f"{DIRECTORY}=<folder> puts it elsewhere, {DIRECTORY}= switches the cache off.",
            ) from error

    def _has_tables(self, conn: sqlite3.Connection) -> bool:
        """Tell whether the tables are there; False for a new file. Raises for a file of somebody else."""
        application = conn.execute("PRAGMA application_id").fetchone()[0]
        version = conn.execute("PRAGMA user_version").fetchone()[0]
        tables = {str(row[0]) for row in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if application == APPLICATION_ID and version > VERSION:
            raise CassetteNewer(
                f"The cache {self.path} was written by a newer llmproxy (format {version}, this one knows {VERSION}).",
                hint=f"{upgrade()}\nOr give another {DIRECTORY}.",
            )
        if application == APPLICATION_ID and version == VERSION:
            if not {"entries", "counts"} <= tables:
                raise self.damage_error("its tables are gone")
            return True
        if tables or application or version:
            raise CacheCorrupt(
                f"{self.path} is a SQLite database of another program (tables: {', '.join(sorted(tables)[:5]) or 'none'}).",
                hint=f"Nothing was changed. {DIRECTORY}=<folder> puts the cache elsewhere.",
            )
        return False

    def _make(self, conn: Connection) -> None:
        with immediate(conn):
            if not self._has_tables(conn):  # another process may have been quicker
                for statement in _TABLES:
                    conn.execute(statement)


def _close(conn: Connection, owner: int) -> None:
    """Close a connection in the process that opened it; a forked one must not (https://www.sqlite.org/howtocorrupt.html)."""
    if owner == os.getpid():
        conn.close()
