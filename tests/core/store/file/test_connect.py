"""Opening a store: bad files are named and never touched, replay changes nothing."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from llmproxy.errors import CassetteBusy, CassetteCorrupt, CassetteNewer, CassetteNotFound, StoreReadOnly
from tests.support.recordings import filled, interaction, look, read_everything, reopened, run


def test_a_store_at_rest_is_one_file(path: Path) -> None:
    """After a clean close nothing lies beside the store, and it is not in write-ahead mode."""
    filled(path)
    assert [file.name for file in path.parent.iterdir()] == ["llmproxy.db"]
    assert path.read_bytes()[18:20] == b"\1\1"


def test_replay_changes_nothing(path: Path) -> None:
    """Bytes, times and the folder's listing are the same after reading."""
    filled(path)
    before = look(path.parent)
    assert read_everything(path) == 3
    with reopened(path) as store, pytest.raises(StoreReadOnly):
        store.renew_lease("default", 1, "a")
    assert look(path.parent) == before


def test_a_writing_run_without_a_write_changes_nothing(path: Path) -> None:
    """`auto` with nothing but hits leaves the store as git knows it."""
    filled(path)
    before = look(path.parent)
    with reopened(path, writable=True) as store:
        store.begin_writing("default", 1, exclusive=False, holder="a")
        assert store.has_recordings("default", 1)
        store.end_writing("default", 1, "a", clean=True)
    assert look(path.parent) == before


def leave_behind(path: Path) -> None:
    """Make a store whose recorder is killed, its recordings still in the write-ahead file."""
    script = f"""
        import os, sys
        sys.path.insert(0, {str(Path(__file__).parents[4])!r})
        from llmproxy.core.store.file.store import SqliteCassetteStore
        from tests.support.recordings import interaction, NOW
        store = SqliteCassetteStore.open({str(path)!r}, writable=True, now=lambda: NOW)
        for n in range(3):
            store.add_interaction(interaction(n), supersede=False)
        os._exit(9)
    """
    done = run(script)
    assert done.returncode == 9, done.stderr
    assert path.with_name("llmproxy.db-wal").stat().st_size > 0


@pytest.mark.parametrize("shm", [True, False])
def test_replay_reads_what_a_crash_left_and_changes_nothing(path: Path, shm: bool) -> None:
    """Recordings in a leftover write-ahead file are served, with and without the index file beside it."""
    leave_behind(path)
    if not shm:
        path.with_name("llmproxy.db-shm").unlink()
    before = {name: seen for name, seen in look(path.parent).items() if not name.endswith("-shm")}
    listing = sorted(file.name for file in path.parent.iterdir())
    assert read_everything(path) == 3
    assert {name: seen for name, seen in look(path.parent).items() if not name.endswith("-shm")} == before
    assert sorted(file.name for file in path.parent.iterdir()) == listing


def test_the_next_recorder_folds_in_what_a_crash_left(path: Path) -> None:
    """Opened for writing, the leftover is read, and gone after a clean close."""
    leave_behind(path)
    with reopened(path, writable=True) as store:
        assert len(store.list_summaries()) == 3
    assert [file.name for file in path.parent.iterdir()] == ["llmproxy.db"]
    assert read_everything(path) == 3


def test_a_store_in_write_ahead_mode_alone_is_read_from_a_copy(path: Path) -> None:
    """A file copied while it was recorded, without its companions, is readable and its folder stays clean."""
    filled(path)
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("PRAGMA journal_mode=WAL")
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    before = look(path.parent)
    assert read_everything(path) == 3
    assert look(path.parent) == before


def test_reads_while_another_records(path: Path) -> None:
    """A replaying proxy sees what a recording one commits, and the recorder may close first."""
    store = reopened(path, writable=True)
    store.add_interaction(interaction(1), supersede=False)
    with reopened(path) as other:
        assert len(other.list_summaries()) == 1
        store.add_interaction(interaction(2), supersede=False)
        assert len(other.list_summaries()) == 2
        store.close()
        assert len(other.list_summaries()) == 2
    assert read_everything(path) == 2


def test_a_missing_store_is_not_made_by_reading(path: Path) -> None:
    """Replay of nothing says what to type, and makes no file."""
    with pytest.raises(CassetteNotFound, match="--mode record"):
        reopened(path)
    assert list(path.parent.iterdir()) == []


def test_an_empty_file_is_an_empty_store(path: Path) -> None:
    """Zero bytes (touch, mktemp) read as nothing recorded and stay zero bytes; recording fills them."""
    path.touch()
    assert read_everything(path) == 0
    assert path.read_bytes() == b""
    filled(path)
    assert read_everything(path) == 3


@pytest.mark.parametrize("content", [b"interactions:\n- request:\n", b"\0" * 4096, b"SQLite format 2\0", b"x"])
@pytest.mark.parametrize("writable", [True, False])
def test_a_file_that_is_not_sqlite_is_never_touched(path: Path, content: bytes, writable: bool) -> None:
    """The error shows what it starts with, and the file stays as it was."""
    path.write_bytes(content)
    with pytest.raises(CassetteCorrupt) as caught:
        reopened(path, writable=writable)
    assert repr(content[:16]) in str(caught.value)
    assert look(path.parent)["llmproxy.db"][0] == content


@pytest.mark.parametrize("content", [b"SQLite format 3\0" + b"\xff" * 84, b"SQLite format 3\0" + b"\xff" * 8176])
def test_a_head_of_sqlite_with_nothing_sound_behind_it_is_told_as_that(path: Path, content: bytes) -> None:
    """Not as a file that is not SQLite's and begins as one."""
    path.write_bytes(content)
    with pytest.raises(CassetteCorrupt, match="damaged or cut"):
        reopened(path, writable=False)
    assert path.read_bytes() == content


NEWER = "INSERT INTO _sqlite_migrations VALUES (9, 'llmproxy', 'm999_quantum', '2030-01-01')"


@pytest.mark.parametrize("writable", [True, False])
def test_another_programs_database_and_a_newer_store_are_refused(path: Path, writable: bool) -> None:
    """The error names the other tables, or the migration that we do not know, and nothing is changed."""
    theirs = path.with_name("theirs.db")
    filled(path)
    for each, change in ((path, NEWER), (theirs, "CREATE TABLE bookmarks (url)")):
        with closing(sqlite3.connect(each)) as conn:
            conn.execute(change)
            conn.commit()
    before = look(path.parent)
    with pytest.raises(CassetteNewer, match="m999_quantum"):
        reopened(path, writable=writable)
    with pytest.raises(CassetteCorrupt, match="bookmarks"):
        reopened(theirs, writable=writable)
    assert look(path.parent) == before


def test_a_folder_is_no_store(path: Path) -> None:
    """A folder given as store is called one."""
    path.mkdir()
    with pytest.raises(CassetteCorrupt, match="is a folder"):
        reopened(path)


def test_a_damaged_store_is_an_error_not_a_miss(path: Path) -> None:
    """Overwritten pages are reported as damage on the way in or at the first read."""
    filled(path, 50)
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(CassetteCorrupt):
        read_everything(path)


def test_damage_inside_a_body_is_found_by_its_hash(path: Path) -> None:
    """A body that was changed is never served; the error names the row."""
    filled(path)
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("UPDATE bodies SET data = x'00' WHERE id = 2")
        conn.commit()
    with reopened(path) as store, pytest.raises(CassetteCorrupt, match="Row 2 of table `bodies`"):
        store.response(1)


def test_a_locked_store_is_busy(path: Path) -> None:
    """A program that holds the file shut is waited for, then named as the cause."""
    filled(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as conn:
        conn.execute("BEGIN EXCLUSIVE")
        began = time.monotonic()
        with pytest.raises(CassetteBusy, match="locked"):
            reopened(path)
        assert time.monotonic() - began < 8


def test_a_place_that_takes_no_file_is_read_only() -> None:
    """Recording where no file can be made fails at the start, with the folder's name."""
    with pytest.raises(StoreReadOnly):
        reopened(Path("/proc/llmproxy/store.db"), writable=True)
    with pytest.raises(StoreReadOnly):
        reopened(Path("/proc/llmproxy.db"), writable=True)


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not bind root")
def test_a_read_only_file_replays_and_does_not_record(path: Path) -> None:
    """A read-only store in a read-only folder is served, and refused for recording at once."""
    filled(path)
    path.chmod(0o444)
    path.parent.chmod(0o555)
    try:
        assert read_everything(path) == 3
        with pytest.raises(StoreReadOnly):
            reopened(path, writable=True)
    finally:
        path.parent.chmod(0o755)
