"""The store of the cache: kept once, for all threads and processes, counted, listed, cleared."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from llmproxy.errors import MissError
from llmproxy.scenario.caching.file import CacheCorrupt
from llmproxy.scenario.caching.mode import CacheMode
from llmproxy.scenario.caching.store import CacheStore
from tests.support.process import ROOT, clean_env

WRITER = """
import sys
from llmproxy.scenario.caching.store import CacheStore
store, who = CacheStore.open(sys.argv[1]), sys.argv[2]
for n in range(100):
    store.put(f"own {who} {n}", who)
    store.put(f"shared {n}", who)
    assert store.get(f"own {who} {n}") == who
store.close()
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CacheStore]:
    """Return an empty store."""
    made = CacheStore.open(tmp_path / "cache.db", now=lambda: 1000.0)
    yield made
    made.close()


def test_what_is_kept_stays(store: CacheStore) -> None:
    """Whoever stores second gets what the first one stored, unless it is to be replaced."""
    assert store.get("k") is None
    assert (store.put("k", "one"), store.put("k", "two"), store.get("k")) == ("one", "one", "one")
    assert (store.put("k", "two", replace=True), store.get("k")) == ("two", "two")


@given(st.text(), st.text())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_every_text_comes_back(store: CacheStore, key: str, value: str) -> None:
    """Whatever its characters, under whatever key."""
    assert store.put(key, value, replace=True) == value
    assert store.get(key) == value


def test_here_is_one_store_for_the_process(tmp_path: Path) -> None:
    """The environment is read at each call: another folder, off by an empty one, off by the mode."""
    env = {"SCENARIO_CACHE_DIR": str(tmp_path)}
    store = CacheStore.here(env)
    assert store is not None
    assert store is CacheStore.here(dict(env))
    assert store is not CacheStore.here({"SCENARIO_CACHE_DIR": str(tmp_path / "other")})
    assert CacheStore.here({"SCENARIO_CACHE_DIR": ""}) is None
    assert CacheStore.here({**env, "SCENARIO_CACHE_MODE": "off"}) is None
    replay = CacheStore.here({**env, "SCENARIO_CACHE_MODE": "replay"})
    assert replay is not None
    assert replay.mode is CacheMode.REPLAY
    assert not (tmp_path / "cache.db").exists()


def test_processes_write_side_by_side(tmp_path: Path) -> None:
    """Four of them, from the making of the file on: nothing is lost, and of the shared keys one value stays."""
    path = tmp_path / "cache.db"
    command = [sys.executable, "-c", WRITER, str(path)]
    writers = [
        subprocess.Popen([*command, str(n)], cwd=ROOT, env=clean_env(), stderr=subprocess.PIPE) for n in range(4)
    ]
    for writer in writers:
        _, said = writer.communicate(timeout=100)
        assert writer.returncode == 0, said.decode()
    store = CacheStore.open(path)
    assert store.stats().entries == 4 * 100 + 100
    assert {store.get(f"own {who} 99") for who in range(4)} == {"0", "1", "2", "3"}
    assert store.stats().hits == 4 * 100 + 4


def test_threads_write_side_by_side(store: CacheStore) -> None:
    """One connection, one at a time."""
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda n: store.put(f"k{n % 50}", str(n % 50)), range(400))) == {str(n) for n in range(50)}
    assert store.stats().entries == 50


def test_remember_makes_once_and_keeps(store: CacheStore) -> None:
    """Sync and async share it; None is not kept."""
    made: list[int] = []

    async def make() -> str | None:
        made.append(1)
        await asyncio.sleep(0.05)
        return "text"

    async def go() -> list[str | None]:
        return list(await asyncio.gather(*(store.remember("k", make, {"name": "f"}) for _ in range(5))))

    assert asyncio.run(go()) == ["text"] * 5
    assert store.remember_sync("k", lambda: "other") == "text"
    assert len(made) == 1
    assert store.remember_sync("none", lambda: None) is None
    assert store.get("none") is None


def test_a_slow_lock_does_not_stop_the_loop(store: CacheStore) -> None:
    """While another process holds the file, other tasks go on."""
    store.put("k", "v")
    ticks: list[float] = []

    async def make() -> str:
        return "text"

    async def tick() -> None:
        for _ in range(10):
            await asyncio.sleep(0.02)
            ticks.append(time.monotonic())

    async def go() -> None:
        with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            pending = asyncio.ensure_future(store.remember("new", make))
            await tick()
            assert not pending.done()
            other.execute("ROLLBACK")
        assert await pending == "text"

    asyncio.run(go())
    assert len(ticks) == 10


def test_replay_never_makes(tmp_path: Path) -> None:
    """A miss is an error that says what is kept; a hit is a hit."""
    CacheStore.open(tmp_path / "cache.db").put("k", "v", {"name": "agent.ask", "cache_key": "v1"})
    replay = CacheStore(tmp_path / "cache.db", mode=CacheMode.REPLAY)
    assert replay.remember_sync("k", lambda: pytest.fail("called")) == "v"
    with pytest.raises(MissError, match=r"agent.ask is not in the cache .* kept for cache_key 'v1', and not for 'v2'"):
        replay.remember_sync("other", lambda: pytest.fail("called"), {"name": "agent.ask", "cache_key": "v2"})


def test_record_makes_everything_anew(tmp_path: Path) -> None:
    """And replaces what was kept."""
    CacheStore.open(tmp_path / "cache.db").put("k", "old")
    record = CacheStore(tmp_path / "cache.db", mode=CacheMode.RECORD)
    assert record.remember_sync("k", lambda: "new") == "new"
    assert CacheStore.open(tmp_path / "cache.db").get("k") == "new"


def test_statistics_and_listing(store: CacheStore) -> None:
    """Entries, bytes, hits and misses of all processes; newest first, by name."""
    store.put("a", "12345", {"name": "m.f", "cache_key": "v1", "sample": 2, "model": "gpt"})
    store.put("b", "ü", {"name": "m.g", "cache_key": "v1"})
    store.get("a")
    store.get("nothing")
    again = CacheStore.open(store.path)
    again.get("a")
    store.close()
    found = again.stats()
    assert (found.entries, found.size, found.hits, found.misses) == (2, 7, 2, 1)
    assert found.by_name == {"m.f": 1, "m.g": 1}
    (entry,) = again.list("m.f")
    assert (entry.key, entry.cache_key, entry.sample, entry.hits, entry.size) == ("a", "v1", 2, 2, 5)
    assert (entry.created_at, entry.about) == (1000.0, {"model": "gpt"})
    assert len(again.list()) == 2
    assert len(again.list(limit=1)) == 1


def test_clearing_forgets_what_is_named(store: CacheStore) -> None:
    """By name, by cache key, by age, all; what is not there is no error."""
    for n, name in enumerate(("f", "f", "g", "h")):
        store.put(f"k{n}", "v", {"name": name, "cache_key": "old" if n else "new"})
    assert store.clear("f", cache_key="new") == 1
    assert store.clear(before=999) == 0
    assert store.clear("g") == 1
    assert store.clear() == 2
    assert store.stats().entries == 0
    assert CacheStore(store.path.with_name("nowhere.db")).clear() == 0


def test_a_value_that_was_changed_is_an_error(store: CacheStore) -> None:
    """A flipped bit is no answer; `peek` shows it all the same."""
    store.put("k", "value")
    with closing(sqlite3.connect(store.path)) as conn:
        conn.execute("UPDATE entries SET value = 'walue'")
        conn.commit()
    with pytest.raises(CacheCorrupt, match="not the one that was stored"):
        store.get("k")
    assert store.peek("k") == "walue"


def test_a_broken_file_is_an_error_at_once(tmp_path: Path) -> None:
    """When it is opened, not when it is too late."""
    (tmp_path / "cache.db").write_bytes(b"x" * 5000)
    with pytest.raises(CacheCorrupt):
        CacheStore.open(tmp_path / "cache.db")


@pytest.mark.parametrize("what", ["folder", "files", "log"])
def test_a_cache_that_is_removed_under_a_living_process_is_made_again(what: str, tmp_path: Path) -> None:
    """`rm -rf` of the folder is the documented way to begin anew: what is kept afterwards is found by everybody."""
    path = tmp_path / "kept" / "cache.db"
    store = CacheStore(path)
    store.put("old", "1")
    if what == "folder":
        shutil.rmtree(path.parent)
    for file in list(path.parent.glob("cache.db*" if what == "files" else "cache.db-*")):
        file.unlink()
    assert store.get("new") is None
    assert store.put("new", "2") == "2"
    assert store.get("new") == "2"
    assert CacheStore.open(path).get("new") == "2"
    assert (store.get("old") is None) == (what != "log")
    store.close()
