"""The schema: made once, made by many at once, upgraded in order."""

from __future__ import annotations

import platform
import re
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import pytest

from llmproxy.core.store.file.connect import check_store_schema_version, connect_to_sqlite_cassette_store
from llmproxy.core.store.file.leases_and_deletes import identify_this_machine, is_lease_live
from llmproxy.core.store.file.migrations import APPLICATION_ID, NAMES, list_applied_migrations, upgrade_schema
from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.core.store.store import Store
from llmproxy.errors import CassetteBusy
from tests.support.recordings import NOW, interaction, run


def schema(path: Path) -> str:
    with closing(sqlite3.connect(path)) as conn:
        return "\n".join(str(row[0]) for row in conn.execute("SELECT sql FROM sqlite_master ORDER BY name"))


def test_records_each_migration(tmp_path: Path) -> None:
    """A new store has all of them, in order, and the application's id in its header."""
    with closing(connect_to_sqlite_cassette_store(tmp_path / "a.db", "mode=rwc")) as conn:
        assert list_applied_migrations(conn) == ()
        upgrade_schema(conn)
        assert list_applied_migrations(conn) == NAMES
        assert conn.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        assert conn.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_tables_of_other_names_get_todays(tmp_path: Path) -> None:
    """A store whose bindings were made under earlier names is the same as a new one, and keeps what it holds."""
    old, new = tmp_path / "old.db", tmp_path / "new.db"
    for path in (old, new):
        with closing(connect_to_sqlite_cassette_store(path, "mode=rwc")) as conn:
            upgrade_schema(conn)
    with closing(connect_to_sqlite_cassette_store(old, "mode=rw")) as conn:
        for statement in (
            "ALTER TABLE volatile_fields RENAME COLUMN field TO slot", "ALTER TABLE volatile_fields RENAME TO slots",
            "ALTER TABLE declared RENAME COLUMN run_variables TO circumstances",
            "ALTER TABLE run_variables RENAME TO circumstances", "INSERT INTO slots VALUES ('c', 0, '{}')",
            "ALTER TABLE forks DROP COLUMN live",
            "INSERT INTO forks VALUES ('c@live-1', 1, 'c', 1, 1, 0, 'live: llm, mcp', NULL, '{}', 0)",
            "DELETE FROM _sqlite_migrations WHERE name IN ('m005_words', 'm006_live')",
        ):  # fmt: skip
            conn.execute(statement)
        upgrade_schema(conn)
        assert conn.execute("SELECT field FROM volatile_fields").fetchall() == [("{}",)]
        assert conn.execute("SELECT live FROM forks").fetchall() == [("llm, mcp",)]
    assert schema(old).replace('"', "") == schema(new).replace('"', "")


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Threads that take turns often: what may happen between two statements does happen."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("hasty_threads")
def test_several_openers_make_one_schema(tmp_path: Path) -> None:
    """Eight threads that open a missing store for writing all get it, and it is made once; none sees half a commit of another."""

    def open_it(path: Path, barrier: threading.Barrier) -> None:
        barrier.wait()
        SqliteCassetteStore.open(path, writable=True, now=lambda: 0.0).close()

    for turn in range(40):  # one in six failed when files were looked at without a lock alone
        path, barrier = tmp_path / f"{turn}.db", threading.Barrier(8)
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(open_it, [path] * 8, [barrier] * 8))  # raises what one of them raised
        with closing(sqlite3.connect(path)) as conn:
            assert list_applied_migrations(conn) == NAMES


def test_a_store_made_between_two_looks_is_not_taken_for_a_strangers(tmp_path: Path) -> None:
    """Whatever happens between the statements that look at a new file, they see one state of it."""
    path = tmp_path / "llmproxy.db"
    looked = []

    def somebody_makes_it(statement: str) -> None:
        looked.append(statement)
        if "type = 'table'" in statement:
            with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other, suppress(sqlite3.Error):
                upgrade_schema(other)

    with closing(connect_to_sqlite_cassette_store(path, "mode=rwc")) as conn:
        conn.set_trace_callback(somebody_makes_it)
        assert check_store_schema_version(conn, path) is False
    assert any("type = 'table'" in statement for statement in looked)


def test_a_failed_migration_leaves_nothing(tmp_path: Path) -> None:
    """A name in the way makes the whole step fail: no table of it is left, none is recorded."""
    with closing(connect_to_sqlite_cassette_store(tmp_path / "a.db", "mode=rwc")) as conn:
        conn.execute("CREATE TABLE made_ids (x)")
        with pytest.raises(sqlite3.OperationalError, match="made_ids"):
            upgrade_schema(conn)
        assert list_applied_migrations(conn) == ()
        assert "interactions" not in schema(tmp_path / "a.db")


def test_the_documentation_names_every_table_and_column(tmp_path: Path) -> None:
    """docs/store.md shows each table, view and column of the schema."""
    text = (Path(__file__).resolve().parents[4] / "docs" / "store.md").read_text()
    with closing(connect_to_sqlite_cassette_store(tmp_path / "a.db", "mode=rwc")) as conn:
        upgrade_schema(conn)
        names = [row[0] for row in conn.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")]
        for name in names:
            if name.startswith("sqlite_"):
                continue
            assert f"`{name}`" in text
            if name.startswith("_"):
                continue
            section = re.split(rf"^## .*`{name}`.*$", text, flags=re.MULTILINE)[1].split("\n## ")[0]
            columns = [row[1] for row in conn.execute(f"PRAGMA table_info({name})")]
            assert [column for column in columns if f"`{column}`" not in section] == [], name


def test_a_stale_lease_is_taken_over(path: Path) -> None:
    """A holder silent for 15 s has lost it, and hears so at its next heartbeat."""
    clock = [NOW]
    with SqliteCassetteStore.open(path, writable=True, now=lambda: clock[0]) as store:
        store.begin_writing("c", 1, exclusive=True, holder="a")
        clock[0] += 14
        with pytest.raises(CassetteBusy):
            store.begin_writing("c", 1, exclusive=True, holder="b")
        assert store.renew_lease("c", 1, "a")
        clock[0] += 14
        with pytest.raises(CassetteBusy):
            store.begin_writing("c", 1, exclusive=True, holder="b")
        clock[0] += 2
        store.begin_writing("c", 1, exclusive=True, holder="b")
        assert not store.renew_lease("c", 1, "a")


def test_who_lost_the_lease_records_no_more(path: Path) -> None:
    """A recorder that slept, as on a laptop, would mix its run into that of the one who came after it."""
    clock = [NOW]
    with (
        SqliteCassetteStore.open(path, writable=True, now=lambda: clock[0]) as slept,
        SqliteCassetteStore.open(path, writable=True, now=lambda: clock[0]) as other,
    ):
        slept.begin_writing("default", 1, exclusive=True, holder="a")
        slept.add_interaction(interaction(1), supersede=False)
        clock[0] += 20
        other.begin_writing("default", 1, exclusive=True, holder="b")
        with pytest.raises(CassetteBusy, match="taken over by b"):
            slept.add_interaction(interaction(2), supersede=False)
        other.end_writing("default", 1, "b", clean=True)
        with pytest.raises(CassetteBusy, match="taken over by another session"):
            slept.add_interaction(interaction(2), supersede=False)
        slept.end_writing("default", 1, "a", clean=False)
        assert other.last_session_ended_cleanly("default", 1)
        assert len(slept.list_summaries()) == 1


def test_a_process_is_looked_for_on_its_own_machine() -> None:
    """Two containers may have one name, and the process ids of each are its own: there nobody is known to be dead."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert identify_this_machine().partition("/")[0] == platform.node()
    assert not is_lease_live(ended.pid, identify_this_machine(), 1.0)
    assert is_lease_live(ended.pid, f"{platform.node()}/of-another", 1.0)
    if Path("/proc/self/ns/pid").is_symlink():
        assert is_lease_live(ended.pid, platform.node(), 1.0)


def test_a_dead_process_holds_nothing(store: Store, path: Path) -> None:
    """A recorder that was killed does not block the next one, fresh though its heartbeat is."""
    script = f"""
        from llmproxy.core.store.file.store import SqliteCassetteStore
        import os
        SqliteCassetteStore.open({str(path)!r}, writable=True, now=lambda: {NOW + 1}).begin_writing("c", 1, exclusive=True, holder="dead")
        os._exit(9)
    """
    assert run(script).returncode == 9
    store.begin_writing("c", 1, exclusive=True, holder="b")
