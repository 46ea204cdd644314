"""Which rows are meant, and which columns there are."""

from __future__ import annotations

import pytest

from llmproxy.suite.checks.entities.rows import (
    MOST_ROWS,
    build_broken,
    judge_rows,
    key_text,
    known_columns,
    nearest,
    row_text,
    select,
)
from llmproxy.suite.matchers.variables import StepError
from llmproxy.suite.stores import StoreError, UnknownColumn
from tests.suite.runs import run


def test_filters_are_matchers_and_narrow_to_the_user() -> None:
    """Somebody else's row is not selected, unless the filters say whose."""
    made = run()
    made.add("Buy milk")
    made.add("Buy bread")
    made.store.insert("tasks", {"title": "Buy milk", "userId": "bert"})
    info = made.store.describe("tasks")
    milk = {"title": {"contains": "milk"}}
    assert [row["userId"] for row in select(made.store, info, milk, made.scope, "anna")] == ["anna"]
    assert [row["userId"] for row in select(made.store, info, {**milk, "userId": "bert"}, made.scope, "anna")] == [
        "bert"
    ]
    assert len(select(made.store, info, milk, made.scope, None)) == 2


def test_a_filter_keeps_its_type() -> None:
    """A text "1" does not find 1, nor that there is none; a reference finds what it names."""
    made = run(names=["x"])
    row = made.add("a", priority=1)
    made.scope.capture("x", row)
    info = made.store.describe("tasks")
    with pytest.raises(
        StepError, match='priority of tasks cannot be judged: expected "1", found 1: text is not a number'
    ):
        select(made.store, info, {"priority": "1"}, made.scope, "anna")
    assert select(made.store, info, {"priority": "2"}, made.scope, "anna") == []
    assert select(made.store, info, {"priority": "1", "title": "b"}, made.scope, "anna") == []
    assert select(made.store, info, {"priority": 1}, made.scope, "anna") == [row]
    assert select(made.store, info, {"priority": {"ref": "$x.priority"}}, made.scope, "anna") == [row]
    assert select(made.store, info, {"title": "$x.title"}, made.scope, "anna") == [row]


def test_a_filter_that_cannot_be_judged_selects_nothing_silently() -> None:
    """A name without a value is an error, not an empty selection."""
    made = run(names=["later"])
    made.add("a")
    info = made.store.describe("tasks")
    with pytest.raises(StepError, match="has no value yet"):
        select(made.store, info, {"title": "$later.title"}, made.scope, "anna")
    with pytest.raises(StepError, match=r"filters.title of tasks cannot be judged"):
        select(made.store, info, {"title": {"contains": "$later.title"}}, made.scope, "anna")


def test_too_many_rows_are_an_error() -> None:
    """A selection of everything is a mistake."""
    made = run()
    for _ in range(MOST_ROWS + 1):
        made.add("x")
    with pytest.raises(StoreError, match="more than 10000 rows"):
        select(made.store, made.store.describe("tasks"), {"title": "x"}, made.scope, "anna")


def test_a_column_that_no_row_ever_had_is_unknown() -> None:
    """Where there is no schema, `{exists: false}` would hold for every misspelling."""
    made = run(columns=())
    row = made.add("a", deletedAt=None)
    info = made.store.describe("tasks")
    known_columns(made.store, info, ["deletedAt"], "fields", [row])
    with pytest.raises(UnknownColumn, match="did you mean 'deletedAt'") as caught:
        known_columns(made.store, info, ["deletdAt"], "fields", [row])
    assert "store.entities.tasks.columns" in str(caught.value)
    known_columns(made.store, info, ["deletdAt"], "fields", [])


def test_the_nearest_row_has_most_columns_right() -> None:
    """That is the one whose mistakes are shown."""
    made = run()
    judged = judge_rows(
        [{"title": "b", "status": "x"}, {"title": "a", "status": "x"}], {"title": "a", "status": "todo"}, made.scope
    )
    assert nearest(judged).row["title"] == "a"
    assert [each.holds for each in judged] == [False, False]


def test_rows_are_shown_shortly() -> None:
    """Without what is null, on one line."""
    assert row_text({"id": 1, "title": "x", "due": None}) == "id=1, title='x'"
    assert len(row_text({"title": "x" * 1000})) <= 300
    made = run()
    assert key_text(made.store.describe("tasks"), {"id": 7}) == "tasks id=7"
    assert build_broken("verify", StoreError("gone", hint="start it")).message == "gone\nstart it"
