"""Store of cached results: texts in one table of a SQLite file, for any number of threads and processes.

The file is opened for each access: so it may be removed at any time, and a forked process shares nothing. An existing
value is never overwritten by a parallel process. A damaged file is an error, never an empty cache, and is not changed.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from llmproxy import sqlite_file
from llmproxy.errors import CassetteCorrupt, MissError, SettingsError, StoreReadOnly

DIRECTORY = "SCENARIO_CACHE_DIR"
MODE = "SCENARIO_CACHE_MODE"
_APPLICATION_ID, _VERSION = 0x6C6C6D63, 2
"""``llmc``, and the version of the table: SQLite's marks of a file."""
_READ_MARKS = """
SELECT application_id, user_version, (SELECT count(*) FROM sqlite_master WHERE type = 'table')
  FROM pragma_application_id, pragma_user_version
"""
_BUSY_SECONDS = 30.0
"""Seconds that a statement waits for another process's write; each takes a few milliseconds."""
_TABLE = """
CREATE TABLE entries (key TEXT PRIMARY KEY, value TEXT NOT NULL, name TEXT NOT NULL, cache_key TEXT NOT NULL,
  sample INTEGER NOT NULL, created_at REAL NOT NULL, hits INTEGER NOT NULL)
"""


class CacheCorrupt(CassetteCorrupt):
    """The cache file is damaged; it is never treated as empty and never overwritten."""

    code = "llmproxy_cache_corrupt"


_WORDS = sqlite_file.DatabaseErrorWording(
    name="cache",
    takes="value",
    elsewhere=f"set another {DIRECTORY} ({DIRECTORY}= switches it off)",
    damaged=f"Nothing was changed. To begin with an empty cache: rm {{typed}}   (or another {DIRECTORY})",
    unreadable=f"Nothing was changed. Another one: {DIRECTORY}=<folder>",
    corrupt=CacheCorrupt,
)


class FunctionCacheMode(StrEnum):
    AUTO = "auto"  # a hit is returned, a miss is called and stored
    REPLAY = "replay"  # a hit is returned, a miss is an error
    RECORD = "record"  # everything is called and stored again
    OFF = "off"


@dataclass(frozen=True, slots=True)
class CacheEntry:
    key: str
    name: str
    cache_key: str
    sample: int
    created_at: float  # Unix time, seconds
    hits: int
    size: int  # bytes of the value
    value: str


@dataclass(frozen=True, slots=True)
class CacheStore:
    """A cache file, created when the first value is stored."""

    path: Path
    mode: FunctionCacheMode = FunctionCacheMode.AUTO

    @classmethod
    def from_environment(cls, env: Mapping[str, str] = os.environ) -> CacheStore | None:
        """Return the cache set in the environment; None if it is off. Raises SettingsError."""
        said = env.get(MODE, "").strip().lower() or FunctionCacheMode.AUTO
        if said not in set(FunctionCacheMode):
            raise SettingsError(
                f"{MODE}={said!r} is no mode of the cache.", hint=f"There are: {', '.join(FunctionCacheMode)}."
            )
        folder = env.get(DIRECTORY)
        if said == FunctionCacheMode.OFF or (folder is not None and not folder.strip()):
            return None
        place = Path(folder).expanduser() if folder else Path.home() / ".scenario" / "cache"
        return cls((place / "cache.db").absolute(), FunctionCacheMode(said))

    def get(self, key: str) -> str | None:
        with self._open_file() as conn:
            found = conn and conn.execute("SELECT value FROM entries WHERE key = ?", (key,)).fetchone()
            if conn and found:
                with suppress(sqlite3.OperationalError):  # a folder that may only be read
                    conn.execute("UPDATE entries SET hits = hits + 1 WHERE key = ?", (key,))
        return str(found[0]) if found else None

    def put(self, key: str, value: str, *, name: str, cache_key: str, sample: int = 1, now: float | None = None) -> str:
        """Store a text and return the stored one: another process's earlier text, unless the mode is record."""
        row = key, value, name, cache_key, sample, time.time() if now is None else now
        verb = "REPLACE" if self.mode is FunctionCacheMode.RECORD else "INSERT OR IGNORE"
        with self._open_file(make=True) as conn:
            assert conn is not None  # noqa: S101 (made)
            conn.execute(f"{verb} INTO entries VALUES (?, ?, ?, ?, ?, ?, 0)", row)
            return str(conn.execute("SELECT value FROM entries WHERE key = ?", (key,)).fetchone()[0])

    def list(self, name: str | None = None, limit: int | None = None) -> list[CacheEntry]:
        asked = (
            "SELECT key, name, cache_key, sample, created_at, hits, length(CAST(value AS BLOB)), value FROM entries"
            " WHERE instr(name, ?) OR ? = '' ORDER BY created_at DESC, key LIMIT ?"
        )
        with self._open_file() as conn:
            given = name or "", name or "", -1 if limit is None else limit
            rows = conn.execute(asked, given).fetchall() if conn else ()
        return [CacheEntry(*row) for row in rows]

    def clear(self, name: str | None = None, *, cache_key: str | None = None, before: float | None = None) -> int:
        with self._open_file() as conn:
            done = conn and conn.execute(
                "DELETE FROM entries WHERE (? IS NULL OR instr(name, ?)) AND (? IS NULL OR cache_key = ?)"
                " AND (? IS NULL OR created_at < ?)",
                (name, name, cache_key, cache_key, before, before),
            )
            return done.rowcount if done else 0

    def build_corrupt_error(self, what: object) -> CacheCorrupt:
        return CacheCorrupt(f"The cache {self.path} is damaged: {what}.", hint=_WORDS.damaged.format(typed=self.path))

    @contextmanager
    def _open_file(self, *, make: bool = False) -> Iterator[sqlite3.Connection | None]:
        """Open the file temporarily; None if nothing was stored there yet and `make` is false."""
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
            closing(sqlite_file.open_sqlite_connection(self.path, "mode=rwc", timeout=_BUSY_SECONDS)) as conn,
            sqlite_file.write_transaction(conn) if make else nullcontext(),
        ):
            marks = conn.execute(_READ_MARKS).fetchone()
            is_empty = marks == (0, 0, 0)
            if not is_empty and marks != (_APPLICATION_ID, _VERSION, 1):
                raise self.build_corrupt_error("it is not a cache of this version of llmproxy, or of another program")
            if is_empty and make:
                conn.execute(_TABLE)
                conn.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                conn.execute(f"PRAGMA user_version = {_VERSION}")
            yield None if is_empty and not make else conn


_flying: dict[tuple[int, str, str], Future[None]] = {}
"""Calls in progress by process (a forked one does not continue its parent's), file and key."""
_mine: ContextVar[frozenset[Future[None]]] = ContextVar("cache_mine", default=frozenset())
"""Calls in progress around this one: a recursion with ignored arguments would wait for itself."""


@dataclass(frozen=True)
class CacheSlot:
    """Place of one value: a text, or in a subclass what a text restores."""

    store: CacheStore
    key: str
    name: str
    cache_key: str
    sample: int

    def find(self) -> str | None:
        """Return the stored text. Raises MissError: the mode is ``replay`` and there is none."""
        found = None if self.store.mode is FunctionCacheMode.RECORD else self.store.get(self.key)
        if found is None and self.store.mode is FunctionCacheMode.REPLAY:
            raise self.build_miss_error(self._describe_nearest())
        return found

    def keep(self, text: str) -> str:
        return self.store.put(self.key, text, name=self.name, cache_key=self.cache_key, sample=self.sample)

    def encode(self, made: Any) -> Any:
        """Return a result's text; None if it cannot be stored."""
        return made

    def restore(self, text: str | None) -> tuple[Any] | None:
        """Return the value of a stored text; None without one, or if it is unusable."""
        return None if text is None else (text,)

    def record_hit(self) -> None:
        """Record that a stored value is returned."""

    def build_miss_error(self, why: str) -> MissError:
        where = f"in the cache {self.store.path} (key {self.key[:17]}...)"
        text = f"{self.name} has no usable value {where}, and {MODE}=replay. {why}"
        return MissError(text, hint=f"{MODE}=auto lets it be called, and keeps the answer.")

    def _describe_nearest(self) -> str:
        kept = [each.cache_key for each in self.store.list(self.name)]
        if self.cache_key in kept:
            return f"It is kept for {kept.count(self.cache_key)} other inputs: llmproxy cache list {self.name}"
        if kept:
            others = ", ".join(map(repr, sorted(set(kept))))
            return f"It is kept for cache_key {others}, and not for {self.cache_key!r}."
        return "Nothing of it was ever kept there."

    @contextmanager
    def claim_or_find_maker(self) -> Iterator[Future[None] | None]:
        """Yield the call to wait for before reading the file; None: none, and others wait until the block ends."""
        flight = os.getpid(), str(self.store.path), self.key
        ours: Future[None] = Future()
        ours.set_running_or_notify_cancel()  # who waits and is cancelled cancels it for nobody else
        first = _flying.setdefault(flight, ours)  # atomic: of several threads one is the maker
        if first is not ours:
            yield None if first in _mine.get() else first
            return
        token = _mine.set(_mine.get() | {ours})
        try:
            yield None
        finally:
            _mine.reset(token)
            del _flying[flight]
            ours.set_result(None)


async def get_cached_or_compute(slot: CacheSlot, make: Callable[[], Awaitable[Any]]) -> Any:
    """Return the stored value of a slot; else call `make` and store its result (None: it cannot be stored).

    A concurrent caller waits once, and calls `make` itself if there still is none. Raises MissError: ``replay``.
    """
    with slot.claim_or_find_maker() as maker:
        if maker is not None:
            await asyncio.wrap_future(maker)
        if found := slot.restore(await asyncio.to_thread(slot.find)):
            slot.record_hit()
            return found[0]
        made = await make()
        encoded = slot.encode(made)  # at once, since others may change it meanwhile
        kept = slot.restore(None if encoded is None else await asyncio.to_thread(slot.keep, encoded))
        return kept[0] if kept else made


def get_cached_or_compute_sync(slot: CacheSlot, make: Callable[[], Any]) -> Any:
    with slot.claim_or_find_maker() as maker:
        if maker is not None:
            maker.result()
        if found := slot.restore(slot.find()):
            slot.record_hit()
            return found[0]
        made = make()
        encoded = slot.encode(made)
        kept = slot.restore(None if encoded is None else slot.keep(encoded))
        return kept[0] if kept else made
