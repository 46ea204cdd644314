"""The file of the cache: made when needed, kept once for all threads and processes, refused when it is not ours."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from llmproxy.errors import CassetteBusy, MissError, SettingsError, StoreReadOnly
from llmproxy.scenario.cache_store import (
    CacheCorrupt,
    CacheSlot,
    CacheStore,
    FunctionCacheMode,
    get_cached_or_compute,
    get_cached_or_compute_sync,
)
from tests.support.process import ROOT, clean_env

WRITER = """
import sys
from pathlib import Path
from llmproxy.scenario.cache_store import CacheStore
store, who = CacheStore(Path(sys.argv[1])), sys.argv[2]
for n in range(25):
    store.put(f"own {who} {n}", who, name="f", cache_key="k")
    store.put(f"shared {n}", who, name="f", cache_key="k")
    assert store.get(f"own {who} {n}") == who
"""


@pytest.fixture
def store(tmp_path: Path) -> CacheStore:
    return CacheStore(tmp_path / "deep" / "cache.db")


def put(store: CacheStore, key: str, value: str = "v", name: str = "m.f", cache_key: str = "v1") -> str:
    return store.put(key, value, name=name, cache_key=cache_key, now=1000.0)


def place(store: CacheStore, key: str = "k", cache_key: str = "v1") -> CacheSlot:
    return CacheSlot(store, key, "m.f", cache_key, 1)


def test_the_environment_says_where(tmp_path: Path) -> None:
    """A folder, the home where nothing is said; empty is off, and so is the mode; ~ is the home."""

    def path(**env: str) -> Path | None:
        found = CacheStore.from_environment({f"SCENARIO_CACHE_{name}": value for name, value in env.items()})
        return None if found is None else found.path

    assert path(DIR=str(tmp_path)) == tmp_path / "cache.db"
    assert path() == Path.home() / ".scenario" / "cache" / "cache.db"
    assert path(DIR="~/x") == Path.home() / "x" / "cache.db"
    assert path(DIR="") is path(DIR=" ") is path(MODE="off") is None
    assert not (tmp_path / "cache.db").exists()


@pytest.mark.parametrize(
    ("said", "mode"), [("", "auto"), ("auto", "auto"), (" Replay ", "replay"), ("RECORD", "record")]
)
def test_the_mode_is_read_from_the_environment(said: str, mode: str) -> None:
    """Auto unless something else is said; what is no mode is refused, with those that there are."""
    found = CacheStore.from_environment({"SCENARIO_CACHE_MODE": said})
    assert found is not None
    assert found.mode is FunctionCacheMode(mode)
    with pytest.raises(SettingsError, match="no mode") as caught:
        CacheStore.from_environment({"SCENARIO_CACHE_MODE": "x" + said})
    assert "auto, replay, record, off" in str(caught.value.hint)


def test_reading_makes_no_file(store: CacheStore) -> None:
    """Nor a folder; writing makes both, of an empty file too."""
    assert (store.get("a"), store.list(), store.clear()) == (None, [], 0)
    assert not store.path.parent.exists()
    store.path.parent.mkdir()
    store.path.touch()
    assert store.get("a") is None
    assert (put(store, "a"), store.get("a")) == ("v", "v")


def test_what_is_kept_stays(store: CacheStore) -> None:
    """Whoever stores second gets what the first one stored, but in mode record, which makes everything anew."""
    assert (put(store, "k", "one"), put(store, "k", "two"), store.get("k")) == ("one", "one", "one")
    record = CacheStore(store.path, FunctionCacheMode.RECORD)
    assert (put(record, "k", "two"), store.get("k")) == ("two", "two")
    put(store, "k", "old")
    assert get_cached_or_compute_sync(place(record), lambda: "new") == "new" == store.get("k")


@given(st.text(), st.text())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30)
def test_every_text_comes_back(store: CacheStore, key: str, value: str) -> None:
    record = CacheStore(store.path, FunctionCacheMode.RECORD)
    assert put(record, key, value) == value == store.get(key)


def test_processes_write_side_by_side(store: CacheStore) -> None:
    """Four of them, from the making of the file on: nothing is lost, and of the shared keys one value stays."""
    command = [sys.executable, "-c", WRITER, str(store.path)]
    writers = [
        subprocess.Popen([*command, str(n)], cwd=ROOT, env=clean_env(), stderr=subprocess.PIPE) for n in range(4)
    ]
    for writer in writers:
        _, said = writer.communicate(timeout=100)
        assert writer.returncode == 0, said.decode()
    assert len(store.list()) == 4 * 25 + 25
    assert sum(each.hits for each in store.list()) == 4 * 25


def test_threads_make_and_write_side_by_side(store: CacheStore) -> None:
    """Eight, into a cache that is not there yet."""
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda n: put(store, f"k{n % 20}", str(n % 20)), range(80))
        assert set(found) == {str(n) for n in range(20)}
    assert len(store.list()) == 20


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_goes_on(store: CacheStore) -> None:
    put(store, "before")
    child = os.fork()
    if not child:
        try:
            put(store, "child")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    put(store, "parent")
    assert len(store.list()) == 3


@pytest.mark.parametrize("what", ["folder", "file"])
def test_a_cache_that_is_removed_under_a_living_process_is_made_again(what: str, store: CacheStore) -> None:
    """`rm -rf` of the folder is the documented way to begin anew."""
    put(store, "old")
    if what == "folder":
        shutil.rmtree(store.path.parent)
    else:
        store.path.unlink()
    assert store.get("old") is None
    assert (put(store, "new"), store.get("new")) == ("v", "v")


@pytest.mark.parametrize(
    "damage", ["text", "truncated", "overwritten", "no tables", "another program", "another version"]
)
def test_a_damaged_file_is_an_error_and_stays_as_it_is(store: CacheStore, damage: str) -> None:
    """Reading and writing alike; never an empty cache, and never somebody else's."""
    for n in range(200):
        put(store, f"{n}" * 50)
    whole = store.path.read_bytes()
    sql = {
        "no tables": "DROP TABLE entries",
        "another program": "PRAGMA application_id = 7",
        "another version": "PRAGMA user_version = 99",
    }
    if damage in sql:
        with closing(sqlite3.connect(store.path)) as conn:
            conn.execute(sql[damage])
    else:
        broken = {
            "text": b"hello, I am no database" * 100,
            "truncated": whole[: len(whole) // 2],
            "overwritten": whole[:4096] + b"\xff" * (len(whole) - 4096),
        }
        store.path.write_bytes(broken[damage])
    before = store.path.read_bytes()
    with pytest.raises(CacheCorrupt, match=r"is damaged(.|\n)*Nothing was changed"):
        store.get("new")
    with pytest.raises(CacheCorrupt, match="is damaged"):
        put(store, "new")
    assert store.path.read_bytes() == before


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("x")
    with pytest.raises(StoreReadOnly, match="cannot be made"):
        put(CacheStore(tmp_path / "taken" / "cache.db"), "a")


def test_listing_counts_hits(store: CacheStore) -> None:
    """Bytes and hits of all processes; newest first, by name."""
    store.put("a", "12345", name="m.f", cache_key="v1", sample=2, now=1000.0)
    store.put("b", "ü", name="m.g", cache_key="v1", now=2000.0)
    for _ in range(2):
        store.get("a")
    store.get("nothing")
    (entry,) = store.list("m.f")
    assert (entry.key, entry.cache_key, entry.sample, entry.hits, entry.size) == ("a", "v1", 2, 2, 5)
    assert (entry.created_at, entry.value) == (1000.0, "12345")
    assert [each.size for each in store.list()] == [2, 5]
    assert len(store.list(limit=1)) == 1


def test_clearing_forgets_what_is_named(store: CacheStore) -> None:
    """By name, by cache key, by age, all."""
    for n, name in enumerate(("f", "f", "g", "h")):
        put(store, f"k{n}", name=name, cache_key="old" if n else "new")
    assert store.clear("f", cache_key="new") == 1
    assert store.clear(before=999) == 0
    assert store.clear("g") == 1
    assert store.clear() == 2
    assert store.list() == []


class Maker:
    """Makes a value once as many have asked as are expected."""

    def __init__(self, value: str | None = "made") -> None:
        self.value = value
        self.calls = 0

    def make(self) -> str | None:
        self.calls += 1
        time.sleep(0.2)
        return self.value

    async def amake(self) -> str | None:
        self.calls += 1
        await asyncio.sleep(0.2)
        return self.value


def test_tasks_and_loops_share_one_making(store: CacheStore) -> None:
    """In a loop, and in several, as scenarios have them; other keys are made besides."""
    maker = Maker()

    async def go(key: str) -> None:
        calls = (get_cached_or_compute(place(store, key), maker.amake) for _ in range(4))
        assert set(await asyncio.gather(*calls)) == {"made"}

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda key: asyncio.run(go(key)), ["k", "k", "other"]))
    assert maker.calls == 2
    assert get_cached_or_compute_sync(place(store), maker.make) == "made"
    assert maker.calls == 2


async def test_what_cannot_be_kept_is_made_by_each(store: CacheStore) -> None:
    """None is not kept, and nobody waits for it twice."""
    maker = Maker(None)
    began = time.monotonic()
    calls = (get_cached_or_compute(place(store), maker.amake) for _ in range(5))
    assert list(await asyncio.gather(*calls)) == [None] * 5
    assert maker.calls == 5
    assert time.monotonic() - began < 5 * 0.2
    assert store.get("k") is None


async def test_who_is_cancelled_disturbs_nobody(store: CacheStore) -> None:
    """Of three the one who makes it and one who waits are cancelled: the third gets it."""
    maker = Maker()
    making, waiting, impatient = (
        asyncio.ensure_future(get_cached_or_compute(place(store), maker.amake)) for _ in range(3)
    )
    while not maker.calls:
        await asyncio.sleep(0.001)
    impatient.cancel()
    await asyncio.sleep(0)
    making.cancel()
    assert (await waiting) == "made"
    assert maker.calls == 2


@pytest.mark.parametrize("how", ["sync", "async"])
def test_asking_again_from_inside_does_not_hang(how: str, store: CacheStore) -> None:
    """A recursion whose arguments are ignored has the key of its caller, and is called."""

    async def inner() -> str | None:
        return "inner"

    async def aouter() -> str | None:
        return f"outer of {await asyncio.create_task(get_cached_or_compute(place(store), inner))}"

    def outer() -> str | None:
        return f"outer of {get_cached_or_compute_sync(place(store), lambda: 'inner')}"

    calls: dict[str, Callable[[], str | None]] = {
        "sync": lambda: get_cached_or_compute_sync(place(store), outer),
        "async": lambda: asyncio.run(get_cached_or_compute(place(store), aouter)),
    }
    found: list[str | None] = []
    thread = threading.Thread(target=lambda: found.append(calls[how]()), daemon=True)
    thread.start()
    thread.join(10)
    assert found == ["inner"]


async def test_a_slow_lock_does_not_stop_the_loop(store: CacheStore) -> None:
    """While another process holds the file, other tasks go on."""
    put(store, "other")
    with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        pending = asyncio.ensure_future(get_cached_or_compute(place(store), Maker().amake))
        for ticks in range(10):
            await asyncio.sleep(0.02)
            assert not pending.done(), ticks
        other.execute("ROLLBACK")
    assert await pending == "made"
    assert ticks == 9


def test_a_miss_in_replay_says_what_is_nearest(store: CacheStore) -> None:
    """Nothing, another cache key, or other inputs; a hit is a hit, and nothing is made."""
    replay = CacheStore(store.path, FunctionCacheMode.REPLAY)

    def missed(key: str, cache_key: str) -> str:
        with pytest.raises(MissError) as caught:
            get_cached_or_compute_sync(place(replay, key, cache_key), lambda: pytest.fail("called"))
        return str(caught.value)

    assert "Nothing of it was ever kept there." in missed("k", "v1")
    put(store, "k", "v")
    assert get_cached_or_compute_sync(place(replay), lambda: pytest.fail("called")) == "v"
    assert "kept for cache_key 'v1', and not for 'v2'" in missed("other", "v2")
    assert "kept for 1 other inputs: llmproxy cache list m.f" in missed("other", "v1")


def test_a_file_that_is_held_too_long_is_said(store: CacheStore) -> None:
    put(store, "k")
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorcode = sqlite3.SQLITE_BUSY
    with pytest.raises(CassetteBusy, match="locked by another program"), store._open_file():
        raise error
