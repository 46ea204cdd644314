"""Where answers are kept between runs: texts in one table of a SQLite file, for any number of threads and processes.

    <SCENARIO_CACHE_DIR or ~/.scenario/cache>/cache.db      read from the environment at every call; empty is off

The file is opened for each look into it: so it may be removed at any time, and a forked process shares nothing. A value
that is there is never overwritten by a parallel process: whoever stores second gets what is stored. A damaged file is
an error, never an empty cache, and is left as it is. SCENARIO_CACHE_MODE says what a hit and a miss do (`CacheMode`).
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from llmproxy import sqlite_file
from llmproxy.errors import CassetteCorrupt, MissError, SettingsError, StoreReadOnly

DIRECTORY = "SCENARIO_CACHE_DIR"
MODE = "SCENARIO_CACHE_MODE"
_MARK = 0x6C6C6D63, 2
"""SQLite's application_id, ``llmc``, and the version of the table."""
_BUSY_SECONDS = 30.0
"""How long a statement waits for another process's write; each takes a few milliseconds."""
_TABLE = """
CREATE TABLE entries (key TEXT PRIMARY KEY, value TEXT NOT NULL, name TEXT NOT NULL, cache_key TEXT NOT NULL,
  sample INTEGER NOT NULL, created_at REAL NOT NULL, hits INTEGER NOT NULL)
"""


class CacheCorrupt(CassetteCorrupt):
    """The cache file is damaged; it is never treated as empty and never overwritten."""

    code = "llmproxy_cache_corrupt"


_WORDS = sqlite_file.ErrorTexts(
    name="cache",
    takes="value",
    elsewhere=f"set another {DIRECTORY} ({DIRECTORY}= switches it off)",
    damaged=f"Nothing was changed. To begin with an empty cache: rm {{typed}}   (or another {DIRECTORY})",
    unreadable=f"Nothing was changed. Another one: {DIRECTORY}=<folder>",
    corrupt=CacheCorrupt,
)


class CacheMode(StrEnum):
    """What a hit and a miss do."""

    AUTO = "auto"
    """A hit is returned, a miss is made and kept."""
    REPLAY = "replay"
    """A hit is returned, a miss is an error."""
    RECORD = "record"
    """Everything is made and kept anew."""
    OFF = "off"


@dataclass(frozen=True, slots=True)
class CacheEntry:
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
    value: str


@dataclass(frozen=True, slots=True)
class CacheStore:
    """A cache file; made when something is first kept."""

    path: Path
    mode: CacheMode = CacheMode.AUTO

    @classmethod
    def from_environment(cls, env: Mapping[str, str] = os.environ) -> CacheStore | None:
        """Return the cache that the environment names now; None if it is off. Raises SettingsError."""
        said = env.get(MODE, "").strip().lower() or CacheMode.AUTO
        if said not in set(CacheMode):
            raise SettingsError(f"{MODE}={said!r} is no mode of the cache.", hint=f"There are: {', '.join(CacheMode)}.")
        folder = env.get(DIRECTORY)
        if said == CacheMode.OFF or (folder is not None and not folder.strip()):
            return None
        place = Path(folder).expanduser() if folder else Path.home() / ".scenario" / "cache"
        return cls((place / "cache.db").absolute(), CacheMode(said))

    def get(self, key: str) -> str | None:
        """Return the text that is kept under a key, and count it as a hit; None if there is none."""
        with self._open_file() as conn:
            found = conn and conn.execute("SELECT value FROM entries WHERE key = ?", (key,)).fetchone()
            if conn and found:
                with suppress(sqlite3.OperationalError):  # a folder that may only be read
                    conn.execute("UPDATE entries SET hits = hits + 1 WHERE key = ?", (key,))
        return str(found[0]) if found else None

    def put(self, key: str, value: str, *, name: str, cache_key: str, sample: int = 1, now: float | None = None) -> str:
        """Keep a text and return what is kept: the text that another process kept first, unless the mode is record."""
        row = key, value, name, cache_key, sample, time.time() if now is None else now
        how = "REPLACE" if self.mode is CacheMode.RECORD else "IGNORE"
        with self._open_file(make=True) as conn:
            assert conn is not None  # noqa: S101 (made)
            verb = f"INSERT OR {how}"
            conn.execute(f"{verb} INTO entries VALUES (?, ?, ?, ?, ?, ?, 0)", row)
            return str(conn.execute("SELECT value FROM entries WHERE key = ?", (key,)).fetchone()[0])

    def list(self, name: str | None = None, limit: int | None = None) -> list[CacheEntry]:
        """Return what is kept, newest first: all, or what has `name` in its name."""
        asked = (
            "SELECT key, name, cache_key, sample, created_at, hits, length(CAST(value AS BLOB)), value FROM entries"
            " WHERE instr(name, ?) OR ? = '' ORDER BY created_at DESC, key LIMIT ?"
        )
        with self._open_file() as conn:
            given = name or "", name or "", -1 if limit is None else limit
            rows = conn.execute(asked, given).fetchall() if conn else ()
        return [CacheEntry(*row) for row in rows]

    def clear(self, name: str | None = None, *, cache_key: str | None = None, before: float | None = None) -> int:
        """Forget values and return how many: all, or those of a name, of a cache key, made before a time."""
        with self._open_file() as conn:
            done = conn and conn.execute(
                "DELETE FROM entries WHERE (? IS NULL OR instr(name, ?)) AND (? IS NULL OR cache_key = ?)"
                " AND (? IS NULL OR created_at < ?)",
                (name, name, cache_key, cache_key, before, before),
            )
            return done.rowcount if done else 0

    def build_corrupt_error(self, what: object) -> CacheCorrupt:
        """Return the error for a file that does not hold what it should."""
        hint = _WORDS.damaged.format(typed=self.path)
        return CacheCorrupt(f"The cache {self.path} is damaged: {what}.", hint=hint)

    @contextmanager
    def _open_file(self, *, make: bool = False) -> Iterator[sqlite3.Connection | None]:
        """Open the file for a moment; None where there is none and none is to be made."""
        if not make and not self.path.exists():
            yield None
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreReadOnly(
                f"The folder of the cache, {self.path.parent}, cannot be made: {error.strerror}.",
                hint=f"{DIRECTORY}=<folder> puts it elsewhere, {DIRECTORY}= switches the cache off.",
            ) from error
        with (
            sqlite_file.translate_errors(self.path, _WORDS, writing=True),
            closing(sqlite_file.open_connection(self.path, "mode=rwc", timeout=_BUSY_SECONDS)) as conn,
        ):
            with sqlite_file.in_snapshot(conn):
                mark = _read_app_id_and_version(conn)
            if mark == (0, 0, 0):
                with sqlite_file.write_transaction(conn):
                    if _read_app_id_and_version(conn) == (0, 0, 0):  # another process may have been quicker
                        conn.execute(_TABLE)
                        conn.execute(f"PRAGMA application_id = {_MARK[0]}")
                        conn.execute(f"PRAGMA user_version = {_MARK[1]}")
                    mark = _read_app_id_and_version(conn)
            if mark != (*_MARK, 1):
                raise self.build_corrupt_error("it is not a cache of this version of llmproxy, or of another program")
            yield conn


def _read_app_id_and_version(conn: sqlite3.Connection) -> tuple[int, int, int]:
    """Return what tells our file from others: application, version, and the number of tables."""
    asked = ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master WHERE type = 'table'")
    application, version, tables = (int(conn.execute(each).fetchone()[0]) for each in asked)
    return application, version, tables


# -- one value of it, and who makes it

_Flight = tuple[int, Path, str]
"""A process, since a forked one does not make what its parent makes; a file; a key."""
_flying: dict[_Flight, Future[None]] = {}
"""What is being made now: who wants the same meanwhile waits for it once."""
_guard = threading.Lock()
_mine: ContextVar[frozenset[_Flight]] = ContextVar("cache_mine", default=frozenset())
"""What is being made around here: a recursion whose arguments are ignored would wait for itself."""


@dataclass(frozen=True, slots=True)
class CacheSlot:
    """Where one value is kept."""

    store: CacheStore
    key: str
    name: str
    cache_key: str
    sample: int

    def find_text(self) -> str | None:
        """Return the text that is kept. Raises MissError: the mode is ``replay`` and there is none."""
        found = None if self.store.mode is CacheMode.RECORD else self.store.get(self.key)
        if found is None and self.store.mode is CacheMode.REPLAY:
            kept = [each.cache_key for each in self.store.list(self.name)]
            if self.cache_key in kept:
                nearest = f"It is kept for {kept.count(self.cache_key)} other inputs: llmproxy cache list {self.name}"
            elif kept:
                others = ", ".join(map(repr, sorted(set(kept))))
                nearest = f"It is kept for cache_key {others}, and not for {self.cache_key!r}."
            else:
                nearest = "Nothing of it was ever kept there."
            raise MissError(
                f"{self.name} is not in the cache {self.store.path} (key {self.key[:17]}...), and {MODE}=replay. "
                f"{nearest}",
                hint=f"{MODE}=auto lets it be called, and keeps the answer.",
            )
        return found

    def store_text(self, text: str | None) -> str | None:
        if text is None:
            return None
        return self.store.put(self.key, text, name=self.name, cache_key=self.cache_key, sample=self.sample)

    @contextmanager
    def wait_for_maker(self) -> Iterator[Future[None] | None]:
        """Yield what to wait for before a look into the file; None: nothing, and others wait until the block ends."""
        flight = os.getpid(), self.store.path, self.key
        if flight in _mine.get():
            yield None
            return
        with _guard:
            theirs = _flying.get(flight)
            if theirs is None:
                ours = _flying[flight] = Future()
                ours.set_running_or_notify_cancel()  # who waits and is cancelled cancels it for nobody else
        if theirs is not None:
            yield theirs
            return
        token = _mine.set(_mine.get() | {flight})
        try:
            yield None
        finally:
            _mine.reset(token)
            with _guard:
                _flying.pop(flight).set_result(None)


async def get_or_make(place: CacheSlot, make: Callable[[], Awaitable[str | None]]) -> str | None:
    """Return what is kept at a place; if there is nothing, let `make` make it, and keep it.

    None from `make` means that it cannot be kept. Who asks at the same time waits for it once, and makes it himself if
    it then is not there.

    Raises MissError: the mode is ``replay`` and nothing is kept.
    """
    with place.wait_for_maker() as theirs:
        if theirs is not None:
            await asyncio.wrap_future(theirs)
        found = await asyncio.to_thread(place.find_text)
        return await asyncio.to_thread(place.store_text, await make()) if found is None else found


def get_or_make_sync(place: CacheSlot, make: Callable[[], str | None]) -> str | None:
    """Do what `get_or_make` does, without an event loop."""
    with place.wait_for_maker() as theirs:
        if theirs is not None:
            theirs.result()
        found = place.find_text()
        return place.store_text(make()) if found is None else found
