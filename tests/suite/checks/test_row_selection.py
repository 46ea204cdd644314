"""Which rows are meant, and which columns there are."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from llmproxy.report.events import Assertion, Status
from llmproxy.suite.checks.row_selection import (
    MOST_ROWS,
    append_to_failed_assertion,
    build_now_and_seed_env,
    capture_row_as_variable,
    compute_column_matches_of_rows,
    derive_setup_row_key,
    describe_row_user_filter,
    find_nearest_row,
    format_entity_row_key,
    format_row_values,
    require_known_columns,
    select_entity_rows_by_filters,
)
from llmproxy.suite.matchers.apply import all_assertions_hold, make_error_assertion
from llmproxy.suite.matchers.variable_references import StepError
from llmproxy.suite.stores import ColumnType, Row, StoreError, UnknownColumn
from tests.suite.runs import Run, lines, run


def selected(made: Run, filters: dict[str, Any], user: str | None = "anna") -> list[Row]:
    return select_entity_rows_by_filters(made.store, made.store.describe("tasks"), filters, made.scope, user)


def test_filters_are_matchers_and_narrow_to_the_user(made: Run) -> None:
    """Somebody else's row is not selected, unless the filters say whose."""
    made.add("Buy milk")
    made.add("Buy bread")
    made.store.insert("tasks", {"title": "Buy milk", "userId": "bert"})
    milk = {"title": {"contains": "milk"}}
    assert [row["userId"] for row in selected(made, milk)] == ["anna"]
    assert [row["userId"] for row in selected(made, {**milk, "userId": "bert"})] == ["bert"]
    assert len(selected(made, milk, None)) == 2


def test_a_filter_keeps_its_type() -> None:
    """A text "1" does not find 1, nor that there is none; a reference finds what it names."""
    made = run(names=["x"])
    row = made.add("a", priority=1)
    made.scope.capture_row("x", row)
    unclear = 'priority of tasks cannot be judged: expected "1", found 1: text is not a number'
    with pytest.raises(StepError, match=unclear):
        selected(made, {"priority": "1"})
    for none in ({"priority": "2"}, {"priority": "1", "title": "b"}):
        assert selected(made, none) == []
    for one in ({"priority": 1}, {"priority": {"ref": "$x.priority"}}, {"title": "$x.title"}):
        assert selected(made, one) == [row]


def test_a_filter_that_cannot_be_judged_selects_nothing_silently() -> None:
    """A name without a value is an error, not an empty selection."""
    made = run(names=["later"])
    made.add("a")
    with pytest.raises(StepError, match="has no value yet"):
        selected(made, {"title": "$later.title"})
    with pytest.raises(StepError, match=r"filters.title of tasks cannot be judged"):
        selected(made, {"title": {"contains": "$later.title"}})


def test_too_many_rows_are_an_error(made: Run) -> None:
    for _ in range(MOST_ROWS + 1):
        made.add("x")
    with pytest.raises(StoreError, match="more than 10000 rows"):
        selected(made, {"title": "x"})


def test_a_column_that_no_row_ever_had_is_unknown() -> None:
    """Where there is no schema, `{exists: false}` would hold for every misspelling."""
    made = run(columns=())
    row = made.add("a", deletedAt=None)
    info = made.store.describe("tasks")
    require_known_columns(made.store, info, ["deletedAt"], "fields", [row])
    with pytest.raises(UnknownColumn, match="did you mean 'deletedAt'") as caught:
        require_known_columns(made.store, info, ["deletdAt"], "fields", [row])
    assert "store.entities.tasks.columns" in str(caught.value)
    require_known_columns(made.store, info, ["deletdAt"], "fields", [])


def test_the_nearest_row_has_most_columns_right(made: Run) -> None:
    """That is the one whose mistakes are shown."""
    rows = [{"title": "b", "status": "x"}, {"title": "a", "status": "x"}]
    judged = compute_column_matches_of_rows(rows, {"title": "a", "status": "todo"}, made.scope)
    assert find_nearest_row(judged).row["title"] == "a"
    assert [each.all_match for each in judged] == [False, False]


def test_rows_are_shown_shortly() -> None:
    assert format_row_values({"id": 1, "title": "x", "due": None}) == "id=1, title='x'"
    assert len(format_row_values({"title": "x" * 1000})) <= 300
    assert format_entity_row_key(run().store.describe("tasks"), {"id": 7}) == "tasks id=7"
    assert make_error_assertion("verify", StoreError("gone", hint="start it")).message == "gone\nstart it"


def test_an_id_depends_on_scenario_run_and_name_alone() -> None:
    """Golden values: changing them changes every prompt that an id was in, and recordings are lost."""
    assert derive_setup_row_key("task-001", 1, "setupTask") == "e984f7dd-b1ef-571a-a0e4-b9673da43319"
    assert derive_setup_row_key("task-001", 1, "setupTask", ColumnType.INTEGER) == 1506406169
    others = {
        derive_setup_row_key("task-001", 1, "a"), derive_setup_row_key("task-001", 2, "a"), derive_setup_row_key("task-002", 1, "a"), derive_setup_row_key("task-001", 1, "b"),
    }  # fmt: skip
    assert len(others) == 4


def test_an_id_fits_its_column() -> None:
    """A UUID's text, or a number that 32 bits hold and no counter has reached."""
    assert UUID(str(derive_setup_row_key("s", 1, "a"))).version == 5
    number = derive_setup_row_key("s", 1, "a", ColumnType.INTEGER)
    assert isinstance(number, int)
    assert 1_000_000_000 <= number < 2**31


def test_a_spawned_agent_is_told_time_and_seed() -> None:
    """The same in every run of the same number."""
    assert build_now_and_seed_env("task-001", 2) == {
        "LLMPROXY_NOW": "2027-01-04T09:00:00Z",
        "LLMPROXY_SEED": "task-001~2",
    }


def test_one_row_is_bound(made: Run) -> None:
    """The whole row, its key as the name's own value."""
    info = made.store.describe("tasks")
    assert capture_row_as_variable(made.look, "verify", info, [{"id": 7, "title": "a"}], "$new", overwrite=False) == []
    assert (made.scope.lookup_value("$new"), made.scope.lookup_value("$new.title")) == (7, "a")


def test_which_row_is_meant_is_never_guessed(made: Run) -> None:
    """Several candidates are listed by key, none at all is said, and a name is not taken twice."""

    def capture(*rows: Row, overwrite: bool = False) -> list[str]:
        info = made.store.describe("tasks")
        return lines(capture_row_as_variable(made.look, "verify", info, rows, "$new", overwrite=overwrite))

    assert capture(*({"id": n} for n in range(12)))[0].startswith(
        "environment_error verify.as: $new: 12 rows of tasks could be meant (id 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 ...)"
    )
    assert "there is no row" in capture()[0]
    assert capture({"id": 1}) == []
    assert "has a value already" in capture({"id": 2})[0]
    assert capture({"id": 2}, overwrite=True) == []
    assert made.scope.lookup_value("$new") == 2


def test_more_is_only_said_of_what_went_wrong() -> None:
    good, bad = Assertion(name="a", status=Status.PASSED), Assertion(name="b", status=Status.FAILED, message="no")
    assert append_to_failed_assertion(good, "x") is good
    assert append_to_failed_assertion(bad, "x").message == "no (x)"
    assert not all_assertions_hold([good, bad])
    made = run()
    assert describe_row_user_filter(made.store.describe("tasks"), "anna") == " for the user 'anna' (userId)"
    assert describe_row_user_filter(made.store.describe("notes"), "anna") == ""
