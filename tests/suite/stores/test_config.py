"""`store:` is read strictly: whatever is not understood is an error that says what would be. The store in memory, beyond what every store does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llmproxy.errors import SuiteError
from llmproxy.suite.stores import (
    MemoryEntityStore,
    StoreOperationRejectedError,
    StoreResetSettings,
    UnknownEntity,
    build_suite_store,
    parse_store_reset_method,
)
from llmproxy.suite.stores.config import create_custom_python_store
from llmproxy.suite.stores.http import HttpEntityStore
from llmproxy.suite.stores.protocol import DeclaredEntityColumns
from llmproxy.suite.stores.sql import SqlEntityStore
from tests.suite.stores.places import PLUGIN

HERE = Path()


@pytest.mark.parametrize(("mapping", "kind"), [
    ({"sqlalchemy": "sqlite:///x.db"}, SqlEntityStore),
    ({"sqlalchemy": {"url": "sqlite:///x.db", "entities": {"tasks": "t"}}}, SqlEntityStore),
    ({"http": "http://127.0.0.1:1", "entities": {"tasks": "/api/tasks"}, "timeout": 500}, HttpEntityStore),
    ({"memory": {}}, MemoryEntityStore),
    ({"memory": None, "entities": {"tasks": {"columns": ["title"]}}}, MemoryEntityStore),
    ({"memory": {"entities": {"tasks": {}}}}, MemoryEntityStore),
])  # fmt: skip
def test_each_kind_is_made(mapping: dict[str, Any], kind: type) -> None:
    """One key names the kind, the others belong to it; nothing is connected yet."""
    store = build_suite_store(mapping, HERE)
    assert isinstance(store, kind)
    store.close()


@pytest.mark.parametrize(("mapping", "said"), [
    ({}, "exactly one of sqlalchemy, http, python, memory"),
    ("sqlite:///x.db", "expected a mapping"),
    ({"sqlalchmy": "sqlite:///x.db"}, "did you mean 'sqlalchemy'?"),
    ({"memory": {}, "http": "http://x"}, "it has memory and http"),
    ({"sqlalchemy": "sqlite:///x.db", "entites": {}}, "unknown key 'entites'; did you mean 'entities'?"),
    ({"sqlalchemy": {"url": "sqlite:///x.db", "user": "a"}, "user": "b"}, "stands in sqlalchemy and beside it"),
    ({"sqlalchemy": {"entities": {}}}, "'url' is missing"),
    ({"sqlalchemy": ""}, "expected a text"),
    ({"sqlalchemy": "no url"}, "is no database URL"),
    ({"sqlalchemy": "sqlite://"}, "in memory is seen by nobody else"),
    ({"sqlalchemy": "sqlite:///:memory:"}, "in memory is seen by nobody else"),
    ({"sqlalchemy": "tasks.db"}, "is no database URL"),
    ({"sqlalchemy": "sqlite:///x.db", "headers": {}}, "unknown key 'headers'"),
    ({"sqlalchemy": "sqlite:///x.db", "user": 5}, "store.user"),
    ({"sqlalchemy": "sqlite:///x.db", "entities": []}, None),
    ({"sqlalchemy": "sqlite:///x.db", "entities": ["tasks"]}, "store.entities: expected a mapping"),
    ({"memory": {}, "reset": "copy"}, "'copy' is not one of none, delete, truncate, hook (memory)"),
    ({"memory": {}, "reset": "trucate"}, "did you mean 'truncate'?"),
    ({"memory": {}, "reset": ["delete"]}, "['delete'] is not one of none, delete"),
    ({"memory": {}, "reset": "hook"}, "needs to know what"),
    ({"memory": {}, "reset": {"hok": "a:b"}}, "expected `hook: module:attr`"),
    ({"memory": {}, "ids": "random"}, "not one of database, deterministic"),
    ({"memory": {}, "counters": "x"}, "not one of restore, keep"),
    ({"memory": 5}, "expected {}"),
    ({"memory": {}, "entities": {"tasks": {"colums": []}}}, "did you mean 'columns'?"),
    ({"memory": {}, "entities": {"tasks": {"columns": "title"}}}, "expected a list of names"),
    ({"memory": {}, "entities": {"tasks": 7}}, "expected a mapping"),
    ({"http": "http://x", "timeout": "soon"}, "is no time"),
    ({"http": "http://x", "reset": {"http": "reset"}}, "expected a method and an address"),
    ({"sqlalchemy": "sqlite:///${env:NOT_SET}"}, "no variable NOT_SET"),
])  # fmt: skip
def test_what_is_not_understood_is_refused(mapping: Any, said: str | None) -> None:
    """With the place, the value, and the nearest word."""
    if said is None:
        build_suite_store(mapping, HERE, {}).close()
        return
    with pytest.raises(SuiteError) as caught:
        build_suite_store(mapping, HERE, {}).close()
    assert said in str(caught.value)


def test_variables_of_the_environment_are_put_in(tmp_path: Path) -> None:
    """Keys and addresses need not stand in the file, wherever in it they are."""
    store = build_suite_store({"sqlalchemy": "sqlite:///${env:NAME}.db"}, tmp_path, {"NAME": "tasks"})
    assert isinstance(store, SqlEntityStore)
    assert store.url.database == str(tmp_path / "tasks.db")
    store.close()


def test_the_policy_says_how_the_store_is_left() -> None:
    """By default what the run made is deleted and counters go back."""
    assert parse_store_reset_method({"memory": {}}) == StoreResetSettings("delete", "", "database", "restore")
    assert parse_store_reset_method({"memory": {}, "reset": None}).reset == "none"
    assert parse_store_reset_method({"http": "http://x", "reset": {"http": "POST /reset"}}) == StoreResetSettings(
        "http", "POST /reset"
    )
    assert parse_store_reset_method(
        {"memory": {}, "reset": {"hook": "a:b"}, "ids": "deterministic", "counters": "keep"}
    ) == StoreResetSettings("hook", "a:b", "deterministic", "keep")


def test_a_store_beside_the_suite_is_found(tmp_path: Path) -> None:
    """By file and by module name, called with its options."""
    (tmp_path / "plugged_by_test.py").write_text(PLUGIN, "utf-8")
    for name in ("./plugged_by_test.py:JsonFile", "plugged_by_test:JsonFile"):
        store = create_custom_python_store(name, tmp_path, {"path": str(tmp_path / "rows.json")})
        assert store.insert("tasks", {"title": "t"})["id"] == 1


@pytest.mark.parametrize(("text", "reference", "said"), [
    ("", "mine.py", "not of the form module:attribute"),
    ("", "./none.py:Store", "there is no file"),
    ("", "no_such_module_at_all:Store", "could not be imported: ModuleNotFoundError"),
    ("1 / 0", "./mine.py:Store", "could not be imported: ZeroDivisionError"),
    ("import sys\nsys.path.pop(0)\n1 / 0", "mine:Store", "could not be imported: ZeroDivisionError"),
    ("class Store: ...", "./mine.py:Stor", "did you mean 'Store'?"),
    ("Store = 5", "./mine.py:Store", "is no store: it lacks describe"),
    ("class Store:\n  def __init__(self, path): ...", "./mine.py:Store", "could not be called with the options {}"),
    ("class Store:\n  def list(self): ...", "./mine.py:Store", "Store lacks describe, insert, get, delete"),
])  # fmt: skip
def test_what_is_no_store_is_refused(tmp_path: Path, text: str, reference: str, said: str) -> None:
    """With what it lacks, and never as a traceback of somebody else's module."""
    (tmp_path / "mine.py").write_text(text, "utf-8")
    with pytest.raises(SuiteError) as caught:
        create_custom_python_store(reference, tmp_path)
    assert said in str(caught.value)


def test_a_store_object_takes_no_options(tmp_path: Path) -> None:
    """What is made already cannot be told anything."""
    (tmp_path / "made.py").write_text(
        "from llmproxy.suite.stores import MemoryEntityStore\nstore = MemoryEntityStore()", "utf-8"
    )
    assert create_custom_python_store("./made.py:store", tmp_path).list("tasks") == []
    with pytest.raises(SuiteError, match="takes no options"):
        create_custom_python_store("./made.py:store", tmp_path, {"a": 1})


def test_rows_are_copies() -> None:
    """Nobody changes a row that was handed out, or in."""
    store = MemoryEntityStore()
    data = {"title": "a", "tags": ["x"]}
    row = store.insert("tasks", data)
    row["title"] = "changed"
    data["tags"] = ["y"]
    store.list("tasks")[0]["tags"].append("z")
    assert store.get("tasks", 1) == {"id": 1, "title": "a", "tags": ["x"]}


def test_a_key_is_given_once() -> None:
    """The same key twice is refused, and counting goes on after the largest."""
    store = MemoryEntityStore()
    store.insert("tasks", {"id": 7})
    with pytest.raises(StoreOperationRejectedError, match="has a row id=7 already"):
        store.insert("tasks", {"id": 7})
    assert store.insert("tasks", {})["id"] == 8


def test_an_agent_in_this_process_updates_rows() -> None:
    """`update` is for the agent's side; None where there is no such row."""
    store = MemoryEntityStore({"tasks": DeclaredEntityColumns()})
    store.insert("tasks", {"title": "a"})
    assert store.update("tasks", 1, {"title": "b"}) == {"id": 1, "title": "b"}
    assert store.update("tasks", 2, {"title": "b"}) is None


def test_declared_entities_are_all_there_are() -> None:
    """Once one is declared, another name is a misspelling."""
    store = MemoryEntityStore({"tasks": DeclaredEntityColumns(key="key", user="owner")})
    assert store.insert("tasks", {"owner": "anna"}) == {"key": 1, "owner": "anna"}
    with pytest.raises(UnknownEntity):
        store.list("task")


def test_reset_forgets_everything() -> None:
    store = MemoryEntityStore()
    store.insert("tasks", {})
    store.reset()
    assert store.get("tasks", 1) is None
    assert store.list("tasks") == []
    assert store.delete("tasks", 1) is False
    assert store.insert("tasks", {})["id"] == 1
