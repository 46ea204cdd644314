"""`created`: what is new, what is missing, and what is there instead."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from llmproxy.suite.checks.row_checks import RowSnapshotBeforeStep, take_row_snapshot_before_step
from tests.suite.runs import Run, created, run


def test_a_new_row_with_the_fields_passes(made: Run, before: RowSnapshotBeforeStep) -> None:
    """Every field is an assertion of its own."""
    made.add("Buy milk", status="todo")
    fields = {"title": {"contains": "milk"}, "status": "todo", "parentId": {"exists": False}}
    assert created(made.look, before, fields=fields) == [
        "passed created[0]", "passed created[0].fields.title.contains", "passed created[0].fields.status",
        "passed created[0].fields.parentId.exists",
    ]  # fmt: skip


def test_a_row_that_was_there_before_is_not_created(made: Run) -> None:
    """The commonest vacuous pass; the message says why."""
    row = made.add("Buy milk")
    assert created(made.look, take_row_snapshot_before_step(made.look, ["tasks"]), fields={"title": "Buy milk"}) == [
        f"failed created[0]: no row was added to tasks in this step for the user 'anna' (userId); tasks id={row['id']} has these fields, but was there before"
    ]


def test_the_nearest_row_is_explained(made: Run, before: RowSnapshotBeforeStep) -> None:
    made.add("Untitled", status="todo")
    made.add("Other", status="open")
    said = created(made.look, before, fields={"title": "Buy milk", "status": "todo"})
    assert said[0] == (
        "failed created[0]: 2 new rows of tasks, and none is as wanted; the nearest is id=1, title='Untitled', userId='anna', status='todo'"
    )
    assert said[1].startswith("failed created[0].fields.title")
    assert said[2] == "passed created[0].fields.status"


@pytest.mark.parametrize(("count", "rows", "status"), [
    (2, 2, "passed"),
    (2, 3, "failed"),
    ({"gte": 1}, 0, "failed"),
    ({"gte": 1, "lt": 3}, 2, "passed"),
    (0, 0, "passed"),
    (0, 1, "failed"),
])  # fmt: skip
def test_count_is_of_the_rows_that_have_the_fields(
    count: object, rows: int, status: str, made: Run, before: RowSnapshotBeforeStep
) -> None:
    """A row too many fails; so does one too few; none may be what is wanted."""
    made.add("Something else")
    for _ in range(rows):
        made.add("Buy milk")
    said = created(made.look, before, fields={"title": "Buy milk"}, count=count)
    assert {line.split(" ")[0] for line in said} >= {status}
    assert (status == "passed") == all(line.startswith("passed") for line in said)


def test_as_binds_the_one_row_and_refuses_to_choose() -> None:
    """Two candidates are an error that lists them."""
    made = run(names=["new"])
    before = take_row_snapshot_before_step(made.look, ["tasks"])
    made.add("Buy milk")
    bound = created(made.look, before, fields={"title": "Buy milk"}, **{"as": "$new"})
    assert all(line.startswith("passed") for line in bound)
    assert made.scope.lookup_value("$new.title") == "Buy milk"
    made.add("Buy milk")
    said = created(made.look, before, fields={"title": "Buy milk"}, **{"as": "$other"})
    assert said[-1].startswith("environment_error created[0].as: other: 2 rows of tasks could be meant (id 1, 2)")


def test_an_unknown_column_or_entity_is_an_error(made: Run) -> None:
    """Whatever rows there are, and also where no field can be compared."""
    assert created(
        made.look, take_row_snapshot_before_step(made.look, ["tasks"]), fields={"tittle": {"exists": False}}
    )[0].startswith(
        "environment_error created[0]: created[0].fields: tasks has no column 'tittle'; did you mean 'title'?"
    )
    gone = take_row_snapshot_before_step(made.look, ["taks"])
    assert created(made.look, gone)[0].startswith("environment_error created[0]: the store has no entity 'taks'")


def test_a_field_that_cannot_be_judged_is_an_error() -> None:
    """A name without a value is not a row that differs."""
    made = run(names=["later"])
    before = take_row_snapshot_before_step(made.look, ["tasks"])
    made.add("Buy milk")
    said = created(made.look, before, fields={"parentId": {"ref": "$later"}})
    assert said[0].startswith("environment_error created[0].fields.parentId")
    assert created(made.look, before, fields={"title": {"gt": 5}}, count=0)[0].startswith(
        "failed created[0].fields.title"
    )
    assert created(made.look, before, fields={"parentId": {"ref": "$later"}}, count=0)[0].startswith(
        "environment_error"
    )


@pytest.mark.parametrize(
    ("wanted", "said", "waited"),
    [
        ({"fields": {"title": "Buy milk"}, "within": 5000}, "passed created[0]", 1.0),
        ({"fields": {"title": "Buy bread"}, "within": 2000}, "failed created[0]: ", 2.0),
        ({"count": 0, "within": 2000}, "failed created[0].count", 2.0),
    ],
    ids=["no longer than until it is there", "what never comes fails at the end", "that nothing comes is known at the end"],
)  # fmt: skip
def test_within_waits_for_agents_that_write_later(
    wanted: dict[str, Any], said: str, waited: float, made: Run, before: RowSnapshotBeforeStep
) -> None:
    made.after(1.0, lambda: made.add("Buy milk"))
    assert created(made.look, before, **wanted)[0].startswith(said)
    assert sum(made.slept) == pytest.approx(waited)


def test_where_nobody_is_the_user_every_row_counts() -> None:
    everybody = run(user=None)
    empty = take_row_snapshot_before_step(everybody.look, ["tasks"])
    everybody.store.insert("tasks", {"title": "Buy milk", "userId": "bert"})
    assert created(everybody.look, empty, fields={"title": "Buy milk"})[0] == "passed created[0]"


@pytest.mark.parametrize("user", ["bert", None])
def test_that_nothing_was_added_is_not_said_where_somebody_else_has_a_row(
    made: Run, before: RowSnapshotBeforeStep, user: str | None
) -> None:
    """With a count as without one: whose rows were looked at stands there, and whose row there is."""
    made.store.insert("tasks", {"title": "Buy milk", "userId": user})
    for count in (None, 1):
        (said,) = created(
            made.look, before, fields={"title": "Buy milk"}, **({} if count is None else {"count": count})
        )
        assert said.startswith("failed created[0]")
        assert "no row was added to tasks in this step for the user 'anna' (userId)" in said
        assert f"tasks id=1 was added for another user (userId={user!r})" in said


def test_beside_other_runs_a_row_of_somebody_else_is_said(made: Run) -> None:
    """It may be another run's agent that made it; rows of users whose runs go on are theirs."""
    made.look = look = replace(made.look, alone=False, beside=frozenset({"carl"}))
    before = take_row_snapshot_before_step(made.look, ["tasks"])
    made.add("a")
    made.store.insert("tasks", {"title": "b", "userId": "carl"})
    assert created(made.look, before, count=1) == ["passed created[0].count"]
    assert look.remarks == []
    made.store.insert("tasks", {"title": "c", "userId": "bob"})
    assert created(made.look, before, count=1) == ["passed created[0].count"]
    assert look.remarks == ["tasks id=3 was added for another user (userId='bob'), maybe in another run"]
    assert created(made.look, before, count=2)[0].endswith("(userId='bob'), maybe in another run)")
    made.look = replace(look, beside=frozenset(), remarks=[])  # nobody knows who else works
    assert created(made.look, before, count=2)[0].endswith("userId='anna')")
