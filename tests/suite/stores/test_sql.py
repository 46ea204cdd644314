"""Databases, beyond what every store does: drivers of URLs, errors, lost connections, missing files, PostgreSQL's types."""

from __future__ import annotations

import sqlite3
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from llmproxy.errors import MachineError
from llmproxy.suite.stores import StoreError, StoreLost, StoreOperationRejectedError, build_suite_store
from llmproxy.suite.stores.sql import (
    SqlEntityStore,
    create_sqlalchemy_engine,
    get_sqlite_url_path,
    mask_url,
    parse_database_url,
    translate_errors,
)
from tests.suite.stores.places import POSTGRES, SQLITE
from tests.support.narrowing import narrow
from tests.support.postgres import Postgres, postgres


@pytest.fixture
def breakable() -> Iterator[Postgres]:
    """A PostgreSQL of this test's own, to be stopped and started."""
    with postgres() as server:
        yield server


def connected(url: str, script: str = POSTGRES) -> SqlEntityStore:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(script.encode())
    return narrow(SqlEntityStore, build_suite_store({"sqlalchemy": url}, Path()))


def test_a_connection_that_died_is_made_again(breakable: Postgres) -> None:
    """The server was restarted in the middle: reading and writing go on, and nothing is written twice."""
    store = connected(breakable.url())
    store.insert("tasks", {"title": "before"})
    breakable.stop()
    breakable.start()
    assert [row["title"] for row in store.list("tasks")] == ["before"]
    breakable.stop()
    breakable.start()
    store.insert("tasks", {"title": "after"})
    assert [row["title"] for row in store.list("tasks")] == ["before", "after"]
    breakable.stop()
    for act in (lambda: store.list("tasks"), lambda: store.insert("tasks", {"title": "x"})):
        with pytest.raises(StoreLost, match=r"cannot be reached \((reading|inserting into) tasks\)"):
            act()
    breakable.start()
    assert len(store.list("tasks")) == 2
    store.close()


def test_a_write_whose_connection_dies_is_not_sent_again(postgres_url: Callable[[], str]) -> None:
    """Whether it was written is not known, so it is an error and not a second row."""
    store = connected(postgres_url())
    sent: list[int] = []

    def write(connection: object) -> None:
        sent.append(1)
        from sqlalchemy import Connection, text

        assert isinstance(connection, Connection)
        connection.execute(text("INSERT INTO tasks (title) VALUES ('x')"))
        connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    with pytest.raises(StoreLost):
        store.run_write(write, "writing")
    assert sent == [1]
    assert store.list("tasks") == []
    store.close()


def test_a_read_whose_connection_dies_is_asked_once_more(postgres_url: Callable[[], str]) -> None:
    """Reading twice does no harm; a third time is the environment's error."""
    store = connected(postgres_url())
    asked: list[int] = []

    def read(connection: object) -> str:
        from sqlalchemy import Connection, text

        assert isinstance(connection, Connection)
        asked.append(1)
        if len(asked) == 1:
            connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
        return "read"

    assert store.run_read_with_retry(read, "reading") == "read"
    assert len(asked) == 2
    store.close()


def test_postgres_types(postgres_url: Callable[[], str]) -> None:
    """Arrays, UUIDs, enumerations, intervals, mixed case and schemas come as JSON and are found again."""
    script = """CREATE TYPE mood AS ENUM ('good', 'bad'); CREATE SCHEMA app;
      CREATE TABLE app."Tasks" (id UUID PRIMARY KEY DEFAULT gen_random_uuid(), tags TEXT[], mood mood, "Due" TIMESTAMP, d DATE,
        wait INTERVAL, n NUMERIC, u UUID, flag BOOLEAN, j JSON)"""
    url = postgres_url()
    connected(url, script).close()
    store = build_suite_store({"sqlalchemy": url, "entities": {"tasks": {"table": "Tasks", "schema": "app"}}}, Path())
    data = {
        "mood": "good", "Due": "2027-01-31T12:00:00+02:00", "d": "2027-01-31", "n": 1.5,
        "u": "12345678-1234-5678-1234-567812345678", "flag": False, "j": [1, {"a": None}],
    }  # fmt: skip
    row = store.insert("tasks", data)
    assert {k: row[k] for k in data} == {**data, "Due": "2027-01-31T10:00:00Z"}
    assert store.get("tasks", row["id"]) == row
    assert store.get("tasks", "no uuid") is None
    for name in ("u", "flag", "d", "mood"):
        assert store.list("tasks", {name: data[name]}) == [row], name
    assert store.changes(store.snapshot(["tasks"])) == {"tasks": []}
    assert store.delete("tasks", row["id"])
    store.close()


def test_a_refused_row_says_why(postgres_url: Callable[[], str], tmp_path: Path) -> None:
    """A constraint's own words, and whose fault it is not: the agent's."""
    store = connected(postgres_url())
    with pytest.raises(StoreOperationRejectedError, match='null value in column "title"'):
        store.insert("tasks", {"status": "todo"})
    with pytest.raises(StoreOperationRejectedError, match="dueDate: 'tomorrow' is not a date"):
        store.insert("tasks", {"title": "t", "dueDate": "tomorrow"})
    store.close()


def sqlite(folder: Path) -> SqlEntityStore:
    """Make a SQLite database and its store."""
    with closing(sqlite3.connect(folder / "tasks.db")) as connection:
        connection.executescript(SQLITE)
    return narrow(SqlEntityStore, build_suite_store({"sqlalchemy": "sqlite:///tasks.db"}, folder))


def test_a_file_that_is_not_there_is_never_made(tmp_path: Path) -> None:
    """A misspelt path would be an empty database, which answers with the wrong error for ever."""
    store = build_suite_store({"sqlalchemy": "sqlite:///tasks.db"}, tmp_path)
    with pytest.raises(StoreError, match=r"tasks\.db is not there"):
        store.list("tasks")
    assert list(tmp_path.iterdir()) == []
    sqlite(tmp_path).close()
    assert store.list("tasks") == []
    store.close()


def test_a_table_that_the_agent_makes_later_is_found(tmp_path: Path) -> None:
    """What was not there is looked for again."""
    (tmp_path / "tasks.db").touch()
    store = build_suite_store({"sqlalchemy": "sqlite:///tasks.db"}, tmp_path)
    with pytest.raises(Exception, match="no entity 'tasks'"):
        store.list("tasks")
    sqlite(tmp_path).close()
    assert store.list("tasks") == []
    store.close()


def test_an_agent_that_writes_is_waited_for(tmp_path: Path) -> None:
    """A lock held for a moment is no error."""
    store = sqlite(tmp_path)
    busy = sqlite3.connect(tmp_path / "tasks.db", isolation_level=None, check_same_thread=False)
    busy.execute("BEGIN EXCLUSIVE")

    def release() -> None:
        time.sleep(0.3)
        busy.execute("COMMIT")

    thread = threading.Thread(target=release)
    thread.start()
    assert store.insert("tasks", {"title": "t"})["id"] == 1
    thread.join()
    busy.close()
    store.close()


def test_only_new_rows_are_read(tmp_path: Path) -> None:
    """Ten thousand rows before the step cost their keys, not their contents."""
    store = sqlite(tmp_path)
    with closing(sqlite3.connect(tmp_path / "tasks.db")) as connection, connection:
        connection.executemany("INSERT INTO tasks (title) VALUES (?)", [("x" * 500,)] * 10_000)
    before = store.snapshot(["tasks"])
    with closing(sqlite3.connect(tmp_path / "tasks.db")) as connection, connection:
        connection.executemany("INSERT INTO tasks (title) VALUES (?)", [("new",)] * 1_200)
    tracemalloc.start()
    changes = store.changes(before)["tasks"]
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [row["id"] for row in changes] == list(range(10_001, 11_201))
    assert most < 5_000_000, "the contents of the old rows alone are as many bytes"
    store.close()


HERE = Path("/suites")


@pytest.mark.parametrize(("text", "driver"), [
    ("postgresql://h/d", "postgresql+psycopg"),
    ("postgres://h/d", "postgresql+psycopg"),
    ("postgresql+asyncpg://h/d", "postgresql+psycopg"),
    ("postgresql+psycopg://h/d", "postgresql+psycopg"),
    ("postgresql+pg8000://h/d", "postgresql+pg8000"),
    ("sqlite:///x.db", "sqlite"),
    ("sqlite+aiosqlite:///x.db", "sqlite"),
])  # fmt: skip
def test_the_agents_own_url_is_taken(text: str, driver: str) -> None:
    """A driver that needs an event loop is replaced by one that does not; one that was chosen stays."""
    assert parse_database_url(text, HERE).drivername == driver


def test_a_missing_driver_is_named() -> None:
    with pytest.raises(MachineError, match="no driver for it is installed") as caught:
        parse_database_url("mysql://h/d", HERE)
    assert "pip install 'pymysql'" in str(caught.value)
    with pytest.raises(MachineError, match="needs a driver that is not installed"):
        create_sqlalchemy_engine(parse_database_url("nosuchdatabase://h/d", HERE))


def test_files_are_relative_to_the_suite() -> None:
    """Wherever the command is started from; absolute ones stay."""
    assert get_sqlite_url_path(parse_database_url("sqlite:///data/x.db", HERE)) == Path("/suites/data/x.db")
    assert get_sqlite_url_path(parse_database_url("sqlite:////tmp/x.db", HERE)) == Path("/tmp/x.db")
    assert get_sqlite_url_path(parse_database_url("postgresql://h/d", HERE)) is None


def test_a_password_is_not_shown() -> None:
    assert "secret" not in mask_url(parse_database_url("postgresql://me:secret@h/d", HERE))


def test_errors_say_what_was_being_done(tmp_path: Path) -> None:
    """A refused statement and a database that cannot be reached are told apart."""
    from sqlalchemy import text

    (tmp_path / "x.db").touch()
    url = parse_database_url("sqlite:///x.db", tmp_path)
    engine = create_sqlalchemy_engine(url)
    with (
        pytest.raises(StoreOperationRejectedError, match=r"refused \(looking\): no such table: missing"),
        translate_errors(url, "looking"),
        engine.connect() as connection,
    ):
        connection.execute(text("SELECT * FROM missing"))
    engine.dispose()
    gone = parse_database_url("postgresql://127.0.0.1:1/d", tmp_path)
    engine = create_sqlalchemy_engine(gone)
    with pytest.raises(StoreLost, match="cannot be reached"), translate_errors(gone, "looking"), engine.connect():
        pass
    engine.dispose()
