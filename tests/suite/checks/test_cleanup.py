"""How a run leaves the store."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from llmproxy.errors import SuiteError
from llmproxy.suite.checks.row_selection import CaseStoreCleaner, load_store_reset_hook
from llmproxy.suite.stores import (
    MemoryEntityStore,
    StoreAdapter,
    StoreOperationRejectedError,
    StoreResetSettings,
    build_suite_store,
    parse_store_reset_method,
)

TABLES = """
CREATE TABLE tasks (id INTEGER PRIMARY KEY AUTOINCREMENT, title TEXT, userId TEXT);
CREATE TABLE notes (id INTEGER PRIMARY KEY AUTOINCREMENT, taskId INTEGER NOT NULL REFERENCES tasks(id));
INSERT INTO tasks (title, userId) VALUES ('old', 'anna');
"""
DECLARED: dict[str, Any] = {"entities": {"tasks": {}, "notes": {}}}


def opened(folder: Path, **more: Any) -> tuple[StoreAdapter, StoreResetSettings]:
    """Make a database with one old task, its store and its policy."""
    if not (folder / "x.db").exists():
        with closing(sqlite3.connect(folder / "x.db")) as connection:
            connection.executescript(TABLES)
    mapping = {"sqlalchemy": "sqlite:///x.db", **DECLARED, **more}
    return build_suite_store(mapping, folder), parse_store_reset_method(mapping)


def play(store: StoreAdapter, cleaner: CaseStoreCleaner) -> list[str]:
    """Play a run that makes three rows; returns what could not be cleaned up."""
    cleaner.begin_run(["tasks", "notes"])
    task = store.insert("tasks", {"title": "setup", "userId": "anna"})
    cleaner.add_row("tasks", task["id"])
    cleaner.add_row("notes", store.insert("notes", {"taskId": task["id"]})["id"])
    store.insert("tasks", {"title": "agent", "userId": "anna"})
    return cleaner.clean_up()


@pytest.mark.parametrize(
    ("reset", "left"), [("delete", ["old"]), ("none", ["old", "setup", "agent"]), ("truncate", []), ("copy", ["old"])]
)
def test_each_way_of_leaving_the_store(tmp_path: Path, reset: str, left: list[str]) -> None:
    """And again: the second run meets what the first one met."""
    store, policy = opened(tmp_path, reset=reset)
    assert play(store, CaseStoreCleaner(store, policy, user="anna")) == []
    assert [row["title"] for row in store.list("tasks")] == left
    if reset in {"delete", "copy"}:
        assert play(store, CaseStoreCleaner(store, policy, user="anna")) == []
        assert store.insert("tasks", {"title": "next"})["id"] == 2
    store.close()


def test_counters_stay_while_others_run(tmp_path: Path) -> None:
    """Setting them back under a run that goes on would give out a key twice; `counters: keep` never does."""
    for more, alone in (({}, False), ({"counters": "keep"}, True)):
        store, policy = opened(tmp_path, **more)
        highest = max(row["id"] for row in store.list("tasks"))
        play(store, CaseStoreCleaner(store, policy, user="anna", alone=alone))
        row = store.insert("tasks", {"title": "next"})
        assert row["id"] > highest + 1
        store.delete("tasks", row["id"])
        store.close()


def test_rows_that_others_refer_to_are_deleted_last() -> None:
    class Strict(MemoryEntityStore):
        def delete(self, entity: str, id: Any) -> bool:  # noqa: A002 - as in the base
            if entity == "tasks" and self.list("notes"):
                raise StoreOperationRejectedError("notes still refer to it")
            return super().delete(entity, id)

    store = Strict()
    cleaner = CaseStoreCleaner(store)
    cleaner.begin_run(["tasks", "notes"])
    cleaner.add_row("notes", store.insert("notes", {})["id"])
    cleaner.add_row("tasks", store.insert("tasks", {})["id"])
    assert cleaner.clean_up() == []
    assert store.list("tasks") == []


def test_what_could_not_be_cleaned_is_said() -> None:
    """The result of the run stands; the next one is warned."""

    class Stubborn(MemoryEntityStore):
        def delete(self, entity: str, id: Any) -> bool:  # noqa: A002 - as in the base
            raise StoreOperationRejectedError("no right to delete")

    store = Stubborn()
    cleaner = CaseStoreCleaner(store)
    cleaner.begin_run(["tasks"])
    cleaner.add_row("tasks", store.insert("tasks", {})["id"])
    assert cleaner.clean_up() == ["tasks 1 could not be deleted: no right to delete"]


def test_a_hook_runs_before_and_after(tmp_path: Path) -> None:
    """With the store; one that fails before the run stops it, after it is a note."""
    (tmp_path / "hooks.py").write_text(
        "calls = []\ndef clean(store):\n    calls.append(len(store.list('tasks')))\n    store.reset()\n"
        "def broken(store):\n    raise RuntimeError('boom')\nnumber = 5\n",
        "utf-8",
    )
    store = MemoryEntityStore()
    store.insert("tasks", {})
    policy = StoreResetSettings("hook", "./hooks.py:clean")
    play_hook = CaseStoreCleaner(store, policy, hook=load_store_reset_hook(policy, tmp_path))
    play_hook.begin_run([])
    assert store.list("tasks") == []
    store.insert("tasks", {})
    assert play_hook.clean_up() == []
    assert store.list("tasks") == []
    broken = StoreResetSettings("hook", "./hooks.py:broken")
    cleaner = CaseStoreCleaner(store, broken, hook=load_store_reset_hook(broken, tmp_path))
    with pytest.raises(SuiteError, match="RuntimeError: boom"):
        cleaner.begin_run([])
    assert cleaner.clean_up()[0].startswith("the store was not cleaned up: ")
    with pytest.raises(SuiteError, match="is no function"):
        load_store_reset_hook(StoreResetSettings("hook", "./hooks.py:number"), tmp_path)
    assert load_store_reset_hook(StoreResetSettings(), tmp_path) is None
    with pytest.raises(SuiteError, match="no hook was loaded"):
        CaseStoreCleaner(store, policy).begin_run([])


def test_an_unknown_entity_stops_the_run() -> None:
    from llmproxy.suite.stores.protocol import DeclaredEntityColumns

    with pytest.raises(SuiteError, match="no entity 'taks'"):
        CaseStoreCleaner(MemoryEntityStore({"tasks": DeclaredEntityColumns()})).begin_run(["taks"])
