"""Back to where it was: counters, tables, files."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from llmproxy.errors import SuiteError
from llmproxy.suite.stores import StoreOperationRejectedError, build_suite_store
from llmproxy.suite.stores.sql import SqlEntityStore
from tests.suite.stores.places import POSTGRES, SQLITE
from tests.support.narrowing import narrow

TASKS_AND_NOTES: dict[str, dict[str, dict[str, str]]] = {"entities": {"tasks": {}, "notes": {}}}


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path, postgres_url: Callable[[], str]) -> str:
    if request.param == "sqlite":
        with closing(sqlite3.connect(tmp_path / "x.db")) as connection:
            connection.executescript(SQLITE)
        return f"sqlite:///{tmp_path / 'x.db'}"
    made = postgres_url()
    with psycopg.connect(made, autocommit=True) as connection:
        connection.execute(POSTGRES.encode())
    return made


@pytest.fixture
def open_store(url: str) -> Iterator[Callable[..., SqlEntityStore]]:
    made: list[SqlEntityStore] = []

    def make(**more: object) -> SqlEntityStore:
        store = narrow(SqlEntityStore, build_suite_store({"sqlalchemy": url, **more}, Path()))
        made.append(store)
        return store

    yield make
    for store in made:
        store.close()


@pytest.mark.parametrize("stays", [1, 0], ids=["behind a row that stays", "of an empty table"])
def test_counters_go_back(open_store: Callable[..., SqlEntityStore], stays: int) -> None:
    """The next run's ids are this run's: they go into prompts. Before the first row there is no last one."""
    store = open_store()
    for _ in range(stays):
        store.insert("tasks", {"title": "stays"})
    at = store.counters(["tasks", "notes"])
    for _ in range(2):
        row = store.insert("tasks", {"title": "goes"})
        assert row["id"] == stays + 1
        store.delete("tasks", row["id"])
        store.rewind(at)


def test_a_counter_never_goes_below_a_key_in_use(open_store: Callable[..., SqlEntityStore]) -> None:
    """A row that was left would collide with the next one."""
    store = open_store()
    at = store.counters(["tasks"])
    store.insert("tasks", {"title": "left"})
    store.insert("tasks", {"title": "left"})
    store.rewind(at)
    assert store.insert("tasks", {"title": "next"})["id"] == 3


def test_truncate_empties_what_is_declared(open_store: Callable[..., SqlEntityStore]) -> None:
    """All rows, whoever they refer to, and the counters."""
    store = open_store(**TASKS_AND_NOTES, reset="truncate")
    task = store.insert("tasks", {"title": "t"})
    store.insert("notes", {"id": "n", "taskId": task["id"]})
    store.reset()
    assert store.list("tasks") == store.list("notes") == []
    assert store.insert("tasks", {"title": "t"})["id"] == 1


def test_truncate_names_what_it_empties(open_store: Callable[..., SqlEntityStore]) -> None:
    """A store that empties every table it finds would be too easy to regret."""
    with pytest.raises(SuiteError, match="none is named"):
        open_store(reset="truncate").reset()


def test_truncate_does_not_reach_further(postgres_url: Callable[[], str]) -> None:
    """A table that is not declared but refers to one that is: PostgreSQL refuses, and nothing is lost."""
    url = postgres_url()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(POSTGRES.encode())
    store = build_suite_store({"sqlalchemy": url, "entities": {"tasks": {}}, "reset": "truncate"}, Path())
    store.insert("tasks", {"title": "stays"})
    with pytest.raises(StoreOperationRejectedError, match="notes"):
        store.reset()
    assert len(store.list("tasks")) == 1
    store.close()


def test_a_copy_brings_everything_back(tmp_path: Path) -> None:
    """Rows, counters, whole tables; while the agent keeps the file open."""
    with closing(sqlite3.connect(tmp_path / "x.db")) as agent:
        agent.executescript(SQLITE)
        agent.execute("INSERT INTO tasks (title) VALUES ('old')")
        agent.commit()
        store = narrow(SqlEntityStore, build_suite_store({"sqlalchemy": "sqlite:///x.db", "reset": "copy"}, tmp_path))
        store.mark()
        agent.executescript("DELETE FROM tasks; DROP TABLE notes; CREATE TABLE more (id INTEGER PRIMARY KEY)")
        store.reset()
        assert agent.execute("SELECT title FROM tasks").fetchall() == [("old",)]
        assert agent.execute("SELECT count(*) FROM notes").fetchall() == [(0,)]
        assert [row["title"] for row in store.list("tasks")] == ["old"]
        assert store.insert("tasks", {"title": "new"})["id"] == 2
        store.mark()  # the first copy stays
        store.reset()
        assert len(store.list("tasks")) == 1
        store.close()


def test_only_files_can_be_copied(postgres_url: Callable[[], str]) -> None:
    store = narrow(SqlEntityStore, build_suite_store({"sqlalchemy": postgres_url(), "reset": "copy"}, Path()))
    with pytest.raises(SuiteError, match="copy is for SQLite files"):
        store.mark()
    store.close()
