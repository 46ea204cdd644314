"""One run's rows: setup and its names, and that an error of the store is never a pass."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llmproxy.errors import SuiteError
from llmproxy.suite.checks.row_checks import (
    check_created_rows,
    run_verify_step_row_checks,
    take_row_snapshot_before_step,
    wait_until_rows_match,
)
from llmproxy.suite.checks.row_selection import RowCheckContext, derive_setup_row_key
from llmproxy.suite.matchers.variable_references import CaseVariables, StepError
from llmproxy.suite.schema.assertions import CreatedRowsAssertion, Verify, WaitForRows
from llmproxy.suite.stores import UnknownColumn, UnknownEntity
from tests.suite.runs import Flaky, Run, lines, run


def test_setup_inserts_in_order_and_names_whole_rows() -> None:
    """A later row refers to an earlier one, with its type; defaults of the store are known."""
    made = run(names=["parent"])
    parent = made.look.insert_row("tasks", {"title": "Parent"}, "$parent")
    child = made.look.insert_row("tasks", {"title": "Below $parent.title", "parentId": {"ref": "$parent.id"}})
    assert child["parentId"] == parent["id"]
    assert child["title"] == "Below Parent"
    assert made.scope.lookup_value("$parent") == parent["id"]


def test_setup_rows_belong_to_the_runs_user(made: Run) -> None:
    """Unless they say whose they are, or nobody is the user."""
    assert made.look.insert_row("tasks", {"title": "a"})["userId"] == "anna"
    assert made.look.insert_row("tasks", {"title": "a", "userId": "bert"})["userId"] == "bert"
    assert "userId" not in made.look.insert_row("notes", {"text": "x"})


@pytest.mark.parametrize(("entity", "data", "error"), [
    ("taks", {}, UnknownEntity),
    ("tasks", {"tittle": "x"}, UnknownColumn),
    ("tasks", {"title": "$no.title"}, StepError),
])  # fmt: skip
def test_a_setup_that_fails_raises(entity: str, data: dict[str, object], error: type[Exception]) -> None:
    """The scenario must not run on half of its rows."""
    with pytest.raises(error):
        run().look.insert_row(entity, data)


def test_deterministic_ids_are_the_same_in_every_run() -> None:
    """By name, or by place where there is none; a row left by a killed run is replaced."""
    first = run(scenario="s", sample=2, deterministic=True)
    named, second = (
        first.look.insert_row("tasks", {"title": title}, name)["id"] for title, name in (("a", "$a"), ("b", ""))
    )
    assert (named, second) == (derive_setup_row_key("s", 2, "a"), derive_setup_row_key("s", 2, "tasks[2]"))
    assert first.look.insert_row("tasks", {"id": 7, "title": "own"})["id"] == 7
    again = replace(first.look, scenario="s", sample=2, deterministic=True)
    assert again.insert_row("tasks", {"title": "again"}, "$a", overwrite=True)["title"] == "again"


def test_what_a_run_makes_is_cleaned_up(made: Run) -> None:
    """Setup's rows, what created found, and whatever else appeared for the user; not what was there."""
    old = made.add("old")
    made.cleaner.begin_run(["tasks", "notes"])
    made.look.insert_row("tasks", {"title": "setup"})
    made.look.insert_row("notes", {"text": "setup"})
    before = take_row_snapshot_before_step(made.look, ["tasks"])
    made.add("found")
    check_created_rows(made.look, before, [CreatedRowsAssertion(entity="tasks")])
    made.add("never looked for")
    made.store.insert("tasks", {"title": "foreign", "userId": "bert"})
    assert made.cleaner.clean_up() == []
    assert [row["title"] for row in made.store.list("tasks")] == ["old", "foreign"]
    assert made.store.list("notes") == []
    assert old in made.store.list("tasks")


def test_without_a_store_assertions_are_errors() -> None:
    entities = RowCheckContext(
        adapter=None, scope=CaseVariables(), user="anna", clock=lambda: 0.0, sleep=lambda _: None
    )
    items = [CreatedRowsAssertion(entity="tasks"), CreatedRowsAssertion(entity="notes", count=0)]
    said = lines(check_created_rows(entities, take_row_snapshot_before_step(entities, ["tasks"]), items))
    said += lines(run_verify_step_row_checks(entities, "verify", Verify(entity="tasks", count=0)))
    said += lines(wait_until_rows_match(entities, "wait", WaitForRows(entity="tasks", id=1, until={"a": 1})))
    assert len(said) == 4
    assert all(line.startswith("environment_error") and "no store is configured" in line for line in said)
    with pytest.raises(SuiteError):
        entities.insert_row("tasks", {})


def test_a_store_that_goes_away_is_an_error_of_every_assertion(made: Run) -> None:
    """Before the step or after it; none of them counts against the agent."""
    store = made.store
    assert isinstance(store, Flaky)
    before = take_row_snapshot_before_step(made.look, ["tasks"])
    store.away = True
    lost = take_row_snapshot_before_step(made.look, ["tasks"])
    items = [CreatedRowsAssertion(entity="tasks"), CreatedRowsAssertion(entity="tasks", count=0)]
    said = lines(check_created_rows(made.look, before, items)) + lines(check_created_rows(made.look, lost, items))
    said += lines(run_verify_step_row_checks(made.look, "verify", Verify(entity="tasks", count=0)))
    assert len(said) == 5
    assert all(line.startswith("environment_error") for line in said)
