"""Entities and tables: names as they are, as the suite maps them, and as they were misspelt."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from llmproxy.errors import SuiteError
from llmproxy.suite.stores import ColumnType, UnknownColumn, UnknownEntity, build_suite_store
from llmproxy.suite.stores.protocol import convert_key_to_column_type
from llmproxy.suite.stores.sql import SqlEntityStore, parse_suite_entity_table_mappings

TABLES = """
CREATE TABLE app_tasks (task_id INTEGER PRIMARY KEY, heading TEXT, due_at DATE, owner TEXT, open BOOLEAN, x, n NUMERIC, b BLOB, j JSON,
  t TIME, ts TIMESTAMP);
CREATE TABLE pairs (a INTEGER, b INTEGER, name TEXT, PRIMARY KEY (a, b));
CREATE TABLE keyless (name TEXT);
CREATE TABLE people (id TEXT PRIMARY KEY, user_id TEXT);
CREATE VIEW busy AS SELECT task_id AS id, heading FROM app_tasks;
"""


Opened = Callable[..., SqlEntityStore]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """Make stores of one database, which are closed at the end."""
    with closing(sqlite3.connect(tmp_path / "x.db")) as connection:
        connection.executescript(TABLES)
    with ExitStack() as stack:

        def make(**more: object) -> SqlEntityStore:
            store = build_suite_store({"sqlalchemy": "sqlite:///x.db", **more}, tmp_path)
            assert isinstance(store, SqlEntityStore)
            stack.callback(store.close)
            return store

        yield make


MAPPED = {"table": "app_tasks", "user": "owner", "title": "heading", "columns": {"dueDate": "due_at"}}


def test_an_entity_is_mapped(opened: Opened) -> None:
    """Table, user and columns by the suite's names; what is not mapped keeps its own."""
    store = opened(entities={"tasks": MAPPED})
    row = store.insert("tasks", {"title": "Buy milk", "dueDate": "2027-01-31", "owner": "anna", "open": True})
    assert row["task_id"] == 1
    assert {k: row[k] for k in ("title", "dueDate", "owner", "open")} == {
        "title": "Buy milk", "dueDate": "2027-01-31", "owner": "anna", "open": True
    }  # fmt: skip
    assert store.list("tasks", {"title": "Buy milk"}) == [row]
    info = store.describe("tasks")
    assert (info.key, info.user) == ("task_id", "owner")
    with pytest.raises(UnknownColumn):
        store.list("tasks", {"heading": "Buy milk"})


def test_kinds_follow_from_types(opened: Opened) -> None:
    """What a test must know of a column: truth, dates, numbers, bytes, JSON."""
    store = opened()
    assert {name: column.kind for name, column in store.describe("app_tasks").columns.items()} == {
        "task_id": ColumnType.INTEGER, "heading": ColumnType.TEXT, "due_at": ColumnType.DATE, "owner": ColumnType.TEXT, "open": ColumnType.BOOLEAN,
        "x": ColumnType.UNKNOWN, "n": ColumnType.NUMBER, "b": ColumnType.BYTES, "j": ColumnType.JSON, "t": ColumnType.TIME, "ts": ColumnType.DATETIME,
    }  # fmt: skip


def test_a_user_column_is_found_by_its_usual_names(opened: Opened) -> None:
    """Or named for the whole store, or switched off."""
    assert opened().describe("people").user == "user_id"
    assert opened(user=None).describe("people").user is None
    assert opened(user="owner").describe("app_tasks").user == "owner"


@pytest.mark.parametrize(("entities", "entity", "kind", "said"), [
    ({"tasks": {"table": "app_task"}}, "tasks", UnknownEntity, "'tasks' is mapped to the table 'app_task'"),
    ({"tasks": {"tabel": "app_tasks"}}, "tasks", UnknownEntity, "no entity 'tasks'"),
    ({"people": {"tabel": "people"}}, "people", UnknownColumn, "did you mean 'table'?"),
    ({"tasks": {**MAPPED, "title": "headin"}}, "tasks", UnknownColumn, "did you mean 'heading'?"),
    ({"tasks": {**MAPPED, "id": "ide"}}, "tasks", UnknownColumn, "store.entities.tasks.id"),
    ({"tasks": {**MAPPED, "user": "ownr"}}, "tasks", UnknownColumn, "did you mean 'owner'?"),
    ({"tasks": {**MAPPED, "owner": "heading", "title": "owner"}}, "tasks", None, ""),
    ({"tasks": {**MAPPED, "x": "heading"}}, "tasks", SuiteError, "two columns would be called 'x'"),
    ({}, "pairs", SuiteError, "a primary key of several columns (a, b)"),
    ({}, "keyless", SuiteError, "no primary key"),
    ({}, "people2", UnknownEntity, "did you mean 'people'?"),
])  # fmt: skip
def test_what_is_not_there_is_refused(
    opened: Opened, entities: dict[str, Any], entity: str, kind: type[Exception] | None, said: str
) -> None:
    """When the entity is first looked at, with the nearest name."""
    store = opened(entities=entities)
    if kind is None:
        store.describe(entity)
    else:
        with pytest.raises(kind) as caught:
            store.describe(entity)
        assert said in str(caught.value)


def test_a_key_can_be_named(opened: Opened) -> None:
    """Where the table has none, or one of several columns, or is a view."""
    store = opened(entities={"pairs": {"id": "name"}})
    store.insert("pairs", {"a": 1, "b": 2, "name": "x"})
    assert store.get("pairs", "x") == {"a": 1, "b": 2, "name": "x"}
    assert store.describe("busy").key == "id"


@pytest.mark.parametrize("given", [5, {"columns": []}, {"columns": ["a"]}, {"title": 5}, {"user": 5}, {"table": ""}])
def test_a_map_is_read_strictly(given: Any) -> None:
    if given == {"columns": []}:
        assert parse_suite_entity_table_mappings({"tasks": given}, None)["tasks"].columns == {}
        return
    with pytest.raises(SuiteError, match=r"store\.entities\.tasks"):
        parse_suite_entity_table_mappings({"tasks": given}, None)


def test_keys_are_brought_into_their_columns_type() -> None:
    """A text that spells a number finds it; one that does not is left for the column to refuse."""
    assert convert_key_to_column_type("7", ColumnType.INTEGER) == 7
    assert convert_key_to_column_type("seven", ColumnType.INTEGER) == "seven"
    assert convert_key_to_column_type(7, ColumnType.TEXT) == "7"
    assert convert_key_to_column_type("7", ColumnType.UNKNOWN) == "7"
