"""Rows that are not plainly new rows of the run's user: seen, or said."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmproxy.suite.checks.row_checks import RowSnapshotBeforeStep, take_row_snapshot_before_step
from llmproxy.suite.checks.row_selection import CaseStoreCleaner, RowCheckContext
from llmproxy.suite.matchers.variable_references import CaseVariables
from llmproxy.suite.stores import build_suite_store
from tests.suite.runs import Run, created, run

OTHER = {"title": "a", "userId": "bob"}


def test_rows_of_another_user_make_a_number_unknown(made: Run, before: RowSnapshotBeforeStep) -> None:
    """`count: 0` passed while the agent wrote for somebody else; where the fields say whose, they are counted."""
    made.store.insert("tasks", OTHER)
    none = created(made.look, before, fields={"title": "a"}, count=0)
    who = "tasks id=1 was added for another user (userId='bob')\nSay in `fields` whose rows are meant"
    assert none == [f"environment_error created[0].count: it is not known how many rows were added: {who}"]
    for fields, count in (({"title": "a", "userId": "bob"}, 1), ({"userId": "anna"}, 0)):
        assert created(made.look, before, fields=fields, count=count) == ["passed created[0].count"]


def test_rows_of_others_beside_the_right_one_are_said() -> None:
    """The assertion holds all the same; while other runs go on they are not the agent's, and nothing is said."""
    for alone in (True, False):
        made = run()
        look = replace(made.look, alone=alone, cleaner=None)
        before = take_row_snapshot_before_step(look, ["tasks"])
        made.add("a")
        made.store.insert("tasks", OTHER)
        assert all(each.startswith("passed") for each in created(look, before))
        assert bool(look.remarks) is alone


def reusing(
    folder: Path, key: str = "INTEGER PRIMARY KEY", entities: Mapping[str, Any] | None = None
) -> tuple[RowCheckContext, Any]:
    """Begin a run on a SQLite table with two rows; also a function that executes SQL there as an agent would."""
    file = folder / "t.db"

    def execute(*statements: str) -> None:
        with closing(sqlite3.connect(file)) as db, db:
            for each in statements:
                db.execute(each)

    table = f"CREATE TABLE tasks (id {key}, title TEXT, status TEXT)"
    execute(table, "INSERT INTO tasks (title) VALUES ('one'), ('two')")
    store = build_suite_store({"sqlalchemy": "sqlite:///t.db", "entities": entities or {}}, folder)
    look = RowCheckContext(adapter=store, scope=CaseVariables({}), user=None, clock=lambda: 0.0, sleep=lambda _: None)
    return look, execute


REMADE = ("DELETE FROM tasks WHERE id = 2", "INSERT INTO tasks (title) VALUES ('new')")


@pytest.mark.parametrize("key", ["INTEGER PRIMARY KEY", "INTEGER PRIMARY KEY AUTOINCREMENT"])
def test_a_row_under_a_reused_number_is_seen_or_said(tmp_path: Path, key: str) -> None:
    """SQLite gives the number of the last row again: the new row looks like the old one, changed."""
    look, execute = reusing(tmp_path, key)
    before = take_row_snapshot_before_step(look, ["tasks"])
    execute(*REMADE)
    one, none = (created(look, before, fields={"title": "new"}, **more) for more in ({}, {"count": 0}))
    if key.endswith("AUTOINCREMENT"):
        assert one[0] == "passed created[0]"
        assert none[0].startswith("failed")
    else:
        assert one[0].startswith("environment_error created[0]: it is not known whether a row was added")
        assert "changed, or deleted and made anew under the same number" in one[0]
        assert "`store.entities.tasks.reuses: false`" in one[0]
        assert none[0].startswith("environment_error created[0].count: it is not known how many rows were added")
    look.store.close()


@pytest.mark.parametrize(
    ("column", "status"), [("created_at", "passed"), ("createdAt", "passed"), ("changed_at", "environment_error")]
)
def test_a_row_that_says_when_it_was_made_is_found_under_a_reused_number(
    tmp_path: Path, column: str, status: str
) -> None:
    """Made later than the one before it under its number, it is another row; one that was changed keeps that time."""
    look, execute = reusing(tmp_path)
    execute(f"ALTER TABLE tasks ADD COLUMN {column} TEXT DEFAULT '2027-01-04T09:00:00Z'")
    before = take_row_snapshot_before_step(look, ["tasks"])
    execute(REMADE[0], f"INSERT INTO tasks (title, {column}) VALUES ('new', '2027-01-04T09:00:07Z')")
    one, *_ = created(look, before, fields={"title": "new"}, count=1)
    assert one.startswith(f"{status} created[0]")
    execute(f"UPDATE tasks SET title = 'two', {column} = '2027-01-04T09:00:00Z' WHERE id = 2")
    (unknown,) = created(look, before, fields={"title": "two"}, count=1)
    assert not unknown.startswith("passed")
    look.store.close()


def test_a_row_that_was_only_changed_disturbs_nothing(tmp_path: Path) -> None:
    """One below a row that stayed cannot be a new one; the newest may be, which is said where the number holds anyway."""
    look, execute = reusing(tmp_path)
    before = take_row_snapshot_before_step(look, ["tasks"])
    execute("UPDATE tasks SET status = 'done' WHERE id = 1")
    assert created(look, before, count=0) == ["passed created[0].count"]
    assert look.remarks == []
    execute("UPDATE tasks SET status = 'done' WHERE id = 2")
    assert created(look, before, fields={"status": "todo"}, count=0) == ["passed created[0].count"]
    assert "tasks id=2 was there before with other contents" in look.remarks[0]
    (unknown,) = created(look, before, count=0)
    said = "environment_error created[0].count: it is not known how many rows were added: tasks id=2"
    assert unknown.startswith(said)
    look.store.close()


def test_a_suite_may_say_that_no_number_is_given_out_twice(tmp_path: Path) -> None:
    look, execute = reusing(tmp_path, entities={"tasks": {"reuses": False}})
    before = take_row_snapshot_before_step(look, ["tasks"])
    execute("UPDATE tasks SET status = 'done' WHERE id = 2")
    assert created(look, before, count=0) == ["passed created[0].count"]
    look.store.close()


def test_a_row_that_was_given_to_the_user_is_no_new_one(made: Run) -> None:
    """It was there, for somebody else; neither counted nor deleted afterwards."""
    row = made.store.insert("tasks", OTHER)
    cleaner = CaseStoreCleaner(made.store, user="anna")
    cleaner.begin_run(["tasks"])
    before = take_row_snapshot_before_step(made.look, ["tasks"])
    made.store.update("tasks", row["id"], {"userId": "anna"})
    assert created(made.look, before, count=0) == ["passed created[0].count"]
    (missing,) = created(made.look, before, fields={"title": "a"})
    assert missing.startswith("failed created[0]: no row was added")
    assert "tasks id=1 was there before, for another user" in missing
    assert (cleaner.clean_up(), len(made.store.list("tasks"))) == ([], 1)


def test_rows_that_stay_after_the_run_are_said(made: Run) -> None:
    """Of another user, or in a table that knows none: the next run meets them, and whoever reads the report knows why."""
    cleaner = CaseStoreCleaner(made.store, user="anna")
    cleaner.begin_run(["tasks", "notes"])
    made.add("mine")
    made.store.insert("tasks", OTHER)
    made.store.insert("notes", {"text": "x"})
    assert cleaner.clean_up() == []
    assert [row["userId"] for row in made.store.list("tasks")] == ["bob"]
    assert cleaner.remarks == [
        "1 row of tasks appeared and stays (id 2); see `store.reset`",
        "1 row of notes appeared and stays (id 1); see `store.reset`",
    ]
