"""The file of the cache: made when needed, refused when it is not ours, never taken for empty when broken."""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from llmproxy.errors import CassetteBusy, CassetteNewer, LLMProxyError, StoreReadOnly
from llmproxy.scenario.caching.file import APPLICATION_ID, CacheCorrupt, CacheFile, cache_path


def rows(file: CacheFile) -> int | None:
    """Return how many entries there are, None without a file."""
    with file.reading() as conn:
        return None if conn is None else int(conn.execute("SELECT count(*) FROM entries").fetchone()[0])


def add(file: CacheFile, key: str) -> None:
    """Add an entry."""
    with file.writing() as conn:
        conn.execute("INSERT INTO entries VALUES (?, 'v', 'd', 'n', 'k', 1, 0.0, 0, '{}')", (key,))


@pytest.fixture
def file(tmp_path: Path) -> CacheFile:
    """Return a cache file with one entry."""
    made = CacheFile(tmp_path / "deep" / "cache.db")
    add(made, "a")
    return made


def test_the_environment_says_where(tmp_path: Path) -> None:
    """A folder, the home where nothing is said; empty is off; ~ is the home."""
    assert cache_path({"SCENARIO_CACHE_DIR": str(tmp_path)}) == tmp_path / "cache.db"
    assert cache_path({}) == Path.home() / ".scenario" / "cache" / "cache.db"
    assert cache_path({"SCENARIO_CACHE_DIR": "~/x"}) == Path.home() / "x" / "cache.db"
    assert cache_path({"SCENARIO_CACHE_DIR": ""}) is None
    assert cache_path({"SCENARIO_CACHE_DIR": " "}) is None


def test_reading_makes_no_file(tmp_path: Path) -> None:
    """Nor a folder; writing makes both."""
    file = CacheFile(tmp_path / "deep" / "cache.db")
    assert rows(file) is None
    assert not (tmp_path / "deep").exists()
    add(file, "a")
    assert rows(file) == 1


def test_an_error_leaves_nothing_half_done(file: CacheFile) -> None:
    """What was written in the block is taken back."""

    def fail() -> None:
        with file.writing() as conn:
            conn.execute("DELETE FROM entries")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert rows(file) == 1


def test_an_empty_file_is_a_new_one(tmp_path: Path) -> None:
    """SQLite leaves it so until its first write."""
    (tmp_path / "cache.db").touch()
    assert rows(CacheFile(tmp_path / "cache.db")) == 0


@pytest.mark.parametrize("damage", ["text", "truncated", "overwritten", "a folder", "no tables"])
def test_a_damaged_file_is_an_error_and_stays_as_it_is(file: CacheFile, damage: str) -> None:
    """Reading and writing alike; never an empty cache."""
    for n in range(200):
        add(file, f"{n}" * 50)
    file.close()
    path = file.path
    whole = path.read_bytes()
    if damage == "a folder":
        path.unlink()
        path.mkdir()
    elif damage == "no tables":
        with closing(sqlite3.connect(path)) as conn:
            conn.execute("DROP TABLE entries")
    else:
        middle = len(whole) // 2
        broken = {
            "text": b"hello, I am no database" * 100,
            "truncated": whole[:middle],
            "overwritten": whole[:4096] + b"\xff" * (len(whole) - 4096),
        }
        path.write_bytes(broken[damage])
    before = None if path.is_dir() else path.read_bytes()
    with pytest.raises(CacheCorrupt, match=r"is damaged(.|\n)*Nothing was changed"):
        rows(CacheFile(path))
    with pytest.raises(CacheCorrupt, match="is damaged"):
        add(CacheFile(path), "new")
    if before is not None:
        assert path.read_bytes() == before


def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    """With its tables, and untouched."""
    path = tmp_path / "cache.db"
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("CREATE TABLE customers (id)")
    with pytest.raises(CacheCorrupt, match=r"another program .tables: customers."):
        add(CacheFile(path), "a")


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    """It says how to upgrade."""
    path = tmp_path / "cache.db"
    with closing(sqlite3.connect(path)) as conn:
        conn.execute(f"PRAGMA application_id={APPLICATION_ID}")
        conn.execute("PRAGMA user_version=99")
    with pytest.raises(CassetteNewer, match="format 99"):
        rows(CacheFile(path))


def test_a_file_that_many_make_at_once_is_ours(tmp_path: Path) -> None:
    """Eight threads that write into a missing cache all can, round after round."""
    errors = []

    def write(path: Path, barrier: threading.Barrier, key: str) -> None:
        barrier.wait()
        try:
            made = CacheFile(path)
            add(made, key)
            made.close()
        except Exception as error:  # noqa: BLE001 - reported below
            errors.append(error)

    for number in range(10):
        path, barrier = tmp_path / str(number) / "cache.db", threading.Barrier(8)
        threads = [threading.Thread(target=write, args=(path, barrier, str(key))) for key in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert rows(CacheFile(path)) == 8


def test_sqlites_own_words_become_ours(file: CacheFile) -> None:
    """Locked, read-only, full: each has an error of ours."""
    kinds: dict[int, type[LLMProxyError]] = {
        sqlite3.SQLITE_BUSY: CassetteBusy,
        sqlite3.SQLITE_READONLY: StoreReadOnly,
        sqlite3.SQLITE_CORRUPT: CacheCorrupt,
    }
    for code, kind in kinds.items():
        error = sqlite3.OperationalError("x")
        error.sqlite_errorcode = code
        with pytest.raises(kind), file.reading():
            raise error


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    """A file stands in its place."""
    (tmp_path / "taken").write_text("x")
    with pytest.raises(StoreReadOnly, match="cannot be made"):
        add(CacheFile(tmp_path / "taken" / "cache.db"), "a")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_opens_its_own_connection(file: CacheFile) -> None:
    """And both go on writing."""
    assert rows(file) == 1
    child = os.fork()
    if not child:
        try:
            add(file, "child")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    add(file, "parent")
    assert rows(file) == 3
