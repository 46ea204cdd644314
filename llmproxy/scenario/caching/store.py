"""Where answers are kept between runs: one SQLite file, texts only, for any number of threads and processes.

    <SCENARIO_CACHE_DIR or ~/.scenario/cache>/cache.db      read from the environment at every call; SCENARIO_CACHE_DIR="" is off

A value that is there is never overwritten by a parallel process: whoever stores second gets what is stored. A damaged file is an
error, never an empty cache, and is left as it is. Nothing here is unpickled or imported. SCENARIO_CACHE_MODE says what a miss does:
``auto`` (make and keep it), ``replay`` (an error), ``record`` (make and keep it anew in any case), ``off``.

The one state of the process is which files are open, so that all its threads fly together (`flight`).
"""

from __future__ import annotations

import asyncio
import atexit
import hashlib
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Any

from llmproxy.errors import CassetteBusy, LLMProxyError, StoreReadOnly
from llmproxy.scenario.caching.file import CacheCorrupt, CacheEntry, CacheFile, Stats, cache_path
from llmproxy.scenario.caching.flight import Flights
from llmproxy.scenario.caching.mode import CacheMode, missing

_PENDING = 256
"""Hits that are counted in memory before they are written down."""


class CacheStore:
    """One cache file. It is opened when it is first needed, and made when something is first kept."""

    def __init__(self, path: Path, *, mode: CacheMode = CacheMode.AUTO, now: Callable[[], float] = time.time) -> None:
        """Use the file at `path`; nothing is touched yet."""
        self.path = path
        self.mode = mode
        self._now = now
        self._file = CacheFile(path)
        self._flights = Flights()
        self._guard = threading.Lock()
        self._hits: Counter[str] = Counter()
        self._misses: Counter[str] = Counter()

    @classmethod
    def open(cls, path: str | Path, *, now: Callable[[], float] = time.time) -> CacheStore:
        """Open a cache file, looking at it now. Raises CacheCorrupt, CassetteNewer."""
        store = cls(Path(path).absolute(), now=now)
        with store._file.reading():
            return store

    @classmethod
    def here(cls, env: Mapping[str, str] | None = None) -> CacheStore | None:
        """Return the cache that the environment names, one object for the whole process; None if it is off."""
        env = os.environ if env is None else env
        mode, path = CacheMode.of(env), cache_path(env)
        return None if path is None or mode is CacheMode.OFF else _OPEN.get(path, mode)

    def in_mode(self, mode: CacheMode) -> CacheStore:
        """Return the same store in another mode."""
        other = copy(self)
        other.mode = mode
        return other

    # -- values

    def get(self, key: str) -> str | None:
        """Return the text that is kept under a key, or None. Raises CacheCorrupt."""
        with self._file.reading() as conn:
            found = conn and conn.execute("SELECT value, digest FROM entries WHERE key = ?", (key,)).fetchone()
        with self._guard:
            if found:
                self._hits[key] += 1
            else:
                self._misses[key] += 1
            full = self._hits.total() >= _PENDING
        if full:
            self._count()
        if not found:
            return None
        text, digest = found
        if not isinstance(text, str) or _digest(text) != digest:
            raise self.damage_error(f"the value under {key} is not the one that was stored")
        return text

    def peek(self, key: str) -> str | None:
        """Return what `get` returns, without counting it."""
        with self._file.reading() as conn:
            found = conn and conn.execute("SELECT value FROM entries WHERE key = ?", (key,)).fetchone()
        return None if not found else str(found[0])

    def put(self, key: str, value_text: str, about: Mapping[str, Any] | None = None, *, replace: bool = False) -> str:
        """Keep a text under a key and return what is kept there: what another process stored first stays, unless `replace`.

        `about` says what it is, for people: `name`, `cache_key` and `sample` have columns of their own. It must hold no secret.
        """
        said = dict(about or {})
        columns = str(said.pop("name", "")), str(said.pop("cache_key", "")), int(said.pop("sample", 1)), self._now()
        row = (key, value_text, _digest(value_text), *columns, json.dumps(said, sort_keys=True, default=str))
        kept = self._put(row, replace=replace)
        if not self._file.is_current():
            kept = self._put(
                row, replace=replace
            )  # the folder was removed meanwhile, and the file with our value in it
        self._count()
        return kept

    def _put(self, row: tuple[object, ...], *, replace: bool) -> str:
        how = "REPLACE" if replace else "IGNORE"
        with self._file.writing() as conn:
            conn.execute(
                f"INSERT OR {how} INTO entries (key, value, digest, name, cache_key, sample, created_at, about)"  # noqa: S608 - only names of ours stand in the text
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                row,
            )
            kept: str = conn.execute("SELECT value FROM entries WHERE key = ?", row[:1]).fetchone()[0]
        return kept

    async def remember(
        self,
        key: str,
        make: Callable[[], Awaitable[str | None]],
        about: Mapping[str, Any] | None = None,
    ) -> str | None:
        """Return what is kept under a key; if there is nothing, let `make` make it, once for all who ask meanwhile, and keep it.

        None from `make` means that it cannot be kept: it is returned, and nobody else gets it.

        Raises:
            MissError: the mode is ``replay`` and nothing is kept.

        """

        async def look_and_make() -> str | None:
            found = await asyncio.to_thread(self._find_answer, key, about)
            if found is not None:
                return found
            text = await make()
            return None if text is None else await asyncio.to_thread(self._keep, key, text, about)

        return await self._flights.arun(key, look_and_make)

    def remember_sync(
        self, key: str, make: Callable[[], str | None], about: Mapping[str, Any] | None = None
    ) -> str | None:
        """Do what `remember` does, without an event loop."""

        def look_and_make() -> str | None:
            found = self._find_answer(key, about)
            if found is not None:
                return found
            text = make()
            return None if text is None else self._keep(key, text, about)

        return self._flights.run(key, look_and_make)

    def _find_answer(self, key: str, about: Mapping[str, Any] | None) -> str | None:
        found = None if self.mode is CacheMode.RECORD else self.get(key)
        if found is None and self.mode is CacheMode.REPLAY:
            name, generation = (str((about or {}).get(what, "")) for what in ("name", "cache_key"))
            raise missing(
                self.path, key, name, generation, [entry.cache_key for entry in self.list(name)] if name else []
            )
        return found

    def _keep(self, key: str, text: str, about: Mapping[str, Any] | None) -> str:
        return self.put(key, text, about, replace=self.mode is CacheMode.RECORD)

    # -- looking after it

    def stats(self) -> Stats:
        """Return what the cache holds, and what it answered so far, all processes together."""
        self._count()
        with self._file.reading() as conn:
            if conn is None:
                return Stats(self.path, 0, 0, 0, self._misses.total())
            entries, size = conn.execute(
                "SELECT count(*), coalesce(sum(length(CAST(value AS BLOB))), 0) FROM entries"
            ).fetchone()
            counts = dict(conn.execute("SELECT name, number FROM counts").fetchall())
            named = dict(conn.execute("SELECT name, count(*) FROM entries GROUP BY name ORDER BY name").fetchall())
        return Stats(self.path, entries, size, counts.get("hits", 0), counts.get("misses", 0), named)

    def list(self, name: str | None = None, limit: int | None = None) -> list[CacheEntry]:
        """Return entries, newest first: all, or those whose name contains `name`."""
        with self._file.reading() as conn:
            rows = (
                []
                if conn is None
                else conn.execute(
                    "SELECT key, name, cache_key, sample, created_at, hits, length(CAST(value AS BLOB)), about FROM entries"
                    " WHERE instr(name, ?) > 0 OR ? = '' ORDER BY created_at DESC, key LIMIT ?",
                    (name or "", name or "", -1 if limit is None else limit),
                ).fetchall()
            )
        return [
            CacheEntry(key, label, generation, sample, made, hits, size, self._parse_description(about))
            for key, label, generation, sample, made, hits, size, about in rows
        ]

    def clear(self, name: str | None = None, *, cache_key: str | None = None, before: float | None = None) -> int:
        """Forget entries and return how many: all, or those of a name, of a cache key, made before a time."""
        if not self.path.exists():
            return 0
        with self._file.writing() as conn:
            done = conn.execute(
                "DELETE FROM entries WHERE (? IS NULL OR instr(name, ?) > 0) AND (? IS NULL OR cache_key = ?)"
                " AND (? IS NULL OR created_at < ?)",
                (name, name, cache_key, cache_key, before, before),
            )
            return done.rowcount

    def damage_error(self, what: str) -> CacheCorrupt:
        """Return the error for a file that does not hold what it should."""
        return self._file.damage_error(what)

    def close(self) -> None:
        """Write the counts down and close the file; the next use opens it again."""
        self._count()
        self._file.close()

    def _count(self) -> None:
        """Write down hits and misses, which may wait; without a file there is nothing to write them into."""
        with self._guard:
            hits, misses = self._hits.copy(), self._misses.copy()
            if not (hits or misses) or not self.path.exists():
                return
            self._hits.clear()
            self._misses.clear()
        try:
            with self._file.writing() as conn:
                conn.executemany(
                    "UPDATE entries SET hits = hits + ? WHERE key = ?", [(n, key) for key, n in hits.items()]
                )
                conn.executemany(
                    "INSERT INTO counts VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET number = number + excluded.number",
                    [("hits", hits.total()), ("misses", misses.total())],
                )
        except (CassetteBusy, StoreReadOnly):
            with self._guard:
                self._hits.update(hits)
                self._misses.update(misses)

    def _parse_description(self, text: object) -> Mapping[str, Any]:
        try:
            told = json.loads(str(text))
        except ValueError as error:
            raise self.damage_error(f"a description cannot be read ({error})") from error
        return told if isinstance(told, dict) else {}


class _Open:
    """The caches that this process uses, by file."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._stores: dict[tuple[int, Path], CacheStore] = {}

    def get(self, path: Path, mode: CacheMode) -> CacheStore:
        """Return the store of a file, in another mode a view of the same one; a forked process has its own."""
        with self._guard:
            known = self._stores.get((os.getpid(), path))
            if known is None:
                known = self._stores[os.getpid(), path] = CacheStore(path)
        return known if mode is known.mode else known.in_mode(mode)

    def close(self) -> None:
        """Close them all, at the end of the process."""
        for (process, _), store in list(self._stores.items()):
            if process == os.getpid():
                with suppress(LLMProxyError):
                    store.close()


_OPEN = _Open()
atexit.register(_OPEN.close)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
