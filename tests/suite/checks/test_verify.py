"""`verify` and `wait`: what is there, and what comes."""

from __future__ import annotations

from typing import Any

import pytest

from llmproxy.suite.checks.row_checks import run_verify_step_row_checks, wait_until_rows_match
from llmproxy.suite.schema.assertions import Verify, WaitForRows
from llmproxy.suite.stores import MemoryEntityStore
from tests.suite.runs import Flaky, Run, lines, run


def verify(made: Run, **wanted: Any) -> list[str]:
    return lines(run_verify_step_row_checks(made.look, "verify", Verify(entity="tasks", **wanted)))


def wait(made: Run, **wanted: Any) -> list[str]:
    wanted = {"until": {"status": "done"}, **wanted}
    return lines(wait_until_rows_match(made.look, "wait", WaitForRows(entity="tasks", **wanted)))


def test_a_row_is_verified_by_its_id(made: Run) -> None:
    """It must be there, with the fields; an id that is a text finds a number."""
    row = made.add("a", status="todo")
    assert verify(made, id=row["id"], fields={"status": "todo"}) == ["passed verify.fields.status"]
    assert verify(made, id=str(row["id"])) == ["passed verify.exists"]
    assert verify(made, id=row["id"], fields={"status": "done"})[0].startswith("failed verify.fields.status")
    assert verify(made, id=99, fields={"status": "done"}) == ["failed verify.exists: there is no row id=99 of tasks"]


def test_a_row_that_must_not_be_there(made: Run) -> None:
    """`exists: false`, or a count of none."""
    row = made.add("a")
    assert verify(made, id=99, exists=False) == ["passed verify.exists"]
    assert verify(made, id=99, count=0) == ["passed verify.count"]
    there = verify(made, id=row["id"], exists=False)[0]
    assert there.startswith("failed verify.exists: there is a row id=1 of tasks: id=1")
    assert verify(made, filters={"title": "b"}, exists=False) == ["passed verify.exists"]
    said = "environment_error verify: filters.title of tasks cannot be judged: expected a number"
    for none in ({"count": 0}, {"count": {"lt": 2}}, {"exists": False}):
        assert verify(made, filters={"title": {"gt": 5}}, **none)[0].startswith(said)
    assert verify(made, filters={"title": {"gt": 5}}, count=1)[0].startswith("failed verify.count")


def test_rows_of_other_users_that_decide_are_said(made: Run) -> None:
    """What is gone for this user may be somebody else's now: it holds, and whose row was not looked at stands beside it."""
    made.store.insert("tasks", {"title": "a", "userId": "bob"})
    assert verify(made, filters={"title": "a"}, exists=False) == ["passed verify.exists"]
    (said,) = made.look.remarks
    assert said == "verify held without 1 row of other users, which it does not look at: tasks id=1 (userId='bob')"
    made.look.remarks.clear()
    made.add("a")
    assert verify(made, filters={"title": "a"}, count={"gte": 1})[0].startswith("passed")
    assert verify(made, filters={"title": "a"}, count=2)[0].startswith("failed")
    assert verify(made, filters={"title": "a", "userId": "bob"}, count=1)[0].startswith("passed")
    assert made.look.remarks == []


def test_fields_hold_for_every_selected_row(made: Run) -> None:
    """One that differs is enough to fail; the others are not shown."""
    made.add("a", status="done")
    made.add("a", status="todo")
    said = verify(made, filters={"title": "a"}, fields={"status": "done"})
    assert len(said) == 1
    assert said[0].startswith("failed verify.fields.status")
    assert verify(made, filters={"title": "a"}, fields={"title": "a"}) == ["passed verify.fields.title"]


def test_no_row_is_no_pass(made: Run) -> None:
    """Fields of nothing hold trivially: a failure, and an error beside a count."""
    nobody = "there is no row of tasks with title: 'a' for the user 'anna' (userId)"
    assert verify(made, filters={"title": "a"}, fields={"status": "done"}) == [f"failed verify.exists: {nobody}"]
    assert verify(made, filters={"title": "a"}, fields={"status": "done"}, count={"gte": 1})[1:] == [
        f"environment_error verify.fields: {nobody}, so nothing can be said about `fields`"
    ]


def test_whether_there_is_any_row(made: Run) -> None:
    """Of the run's user, where nothing selects fewer."""
    assert verify(made, exists=False) == ["passed verify.exists"]
    made.add("a")
    assert verify(made, exists=True) == ["passed verify.exists"]
    assert verify(made, exists=False)[0].startswith("failed verify.exists: there is a row of tasks")


def test_count_shows_what_is_there(made: Run) -> None:
    made.add("a")
    said = verify(made, count=3)
    assert said[0].startswith("failed verify.count")
    assert "there is id=1, title='a'" in said[0]


def test_many_wrong_rows_are_bounded(made: Run) -> None:
    """A report of a thousand lines says less than one of six."""
    for _ in range(40):
        made.add("a", status="todo")
    said = verify(made, filters={"title": "a"}, fields={"status": "done"})
    assert len(said) == 6
    assert said[-1] == "failed verify.fields: 40 of 40 rows are wrong; 5 are shown"


@pytest.mark.parametrize(("wanted", "said"), [
    ({"id": 1, "fields": {"tittle": {"exists": False}}}, "tasks has no column 'tittle'"),
    ({"filters": {"tittle": "x"}}, "tasks has no column 'tittle'"),
    ({"id": 1, "filters": {"tittle": "x"}}, "tasks has no column 'tittle'"),
    ({"id": "$none.id"}, "nothing is called $none"),
    ({"id": {"ref": "$row.parentId"}}, "is no row's id"),
])  # fmt: skip
def test_what_cannot_be_evaluated_is_an_error(wanted: dict[str, Any], said: str) -> None:
    """Never a pass, never a failure of the agent."""
    made = run(names=["row"])
    made.scope.capture_row("row", made.add("a", parentId=None))
    found = verify(made, **wanted)
    assert len(found) == 1
    assert found[0].startswith("environment_error verify: ")
    assert said in found[0]


def test_verify_binds_a_row() -> None:
    """`as` works as with created."""
    made = run(names=["it"])
    made.add("a")
    assert verify(made, filters={"title": "a"}, **{"as": "$it"}) == ["passed verify.exists"]
    assert made.scope.lookup_value("$it.title") == "a"


def test_filters_narrow_an_id(made: Run) -> None:
    """A row of another kind is not the one that is meant."""
    assert "failed verify.exists" in verify(made, id=made.add("a")["id"], filters={"title": "b"})[0]


def test_wait_ends_as_soon_as_it_holds(made: Run) -> None:
    """The row need not be there yet, and is asked for at the interval."""
    made.after(2.5, lambda: made.add("late", status="todo"))
    made.after(4.5, lambda: made.store.update("tasks", 1, {"status": "done"}))
    assert wait(made, filters={"title": "late"}, timeout=9000, pollInterval=1000) == ["passed wait.fields.status"]
    assert made.slept == [1.0] * 5


def test_wait_ends_when_the_time_is_over(made: Run) -> None:
    """Failed, with the row that was last seen."""
    made.add("a", status="todo")
    said = wait(made, filters={"title": "a"}, timeout=2500, pollInterval=1000)
    assert made.slept == [1.0, 1.0, 0.5]
    assert said[0].startswith("failed wait.fields.status")
    assert "waited 2500 ms; last seen: id=1, title='a', userId='anna', status='todo'" in said[0]
    assert "there is no row id=9" in wait(made, id=9, timeout=1)[0]


def test_a_store_that_is_away_for_a_while_is_asked_again(made: Run) -> None:
    """If it stays away, that is the error, not a failure of the agent."""
    made.add("a", status="done")
    store = made.store
    assert isinstance(store, Flaky)
    store.away = True
    made.after(3, lambda: setattr(store, "away", False))
    assert wait(made, filters={"title": "a"}, timeout=9000) == ["passed wait.fields.status"]
    store.away = True
    assert wait(made, filters={"title": "a"}, timeout=3000)[0] == (
        "environment_error wait: the store cannot be reached (waited 3000 ms)"
    )


def test_what_never_changes_is_not_waited_for(made: Run) -> None:
    """A misspelt column, an unknown entity, no selection: at once."""
    assert "no column 'stats'" in wait(made, id=1, until={"stats": 1})[0]
    assert "neither id nor filters" in wait(made)[0]
    assert (
        "no entity"
        in lines(wait_until_rows_match(made.look, "wait", WaitForRows(entity="taks", id=1, until={"a": 1})))[0]
    )
    assert made.slept == []


def test_a_member_that_comes_later_is_waited_for_where_there_is_no_schema() -> None:
    """A service may leave out what has no value yet."""
    made = run(columns=())
    row = made.add("a")
    made.after(2, lambda: made.store.update("tasks", row["id"], {"deliveredAt": "now"}))
    until = {"deliveredAt": {"exists": True}}
    assert wait(made, id=row["id"], until=until) == ["passed wait.fields.deliveredAt.exists"]
    assert "has no column 'never'" in wait(made, id=row["id"], until={"never": {"exists": True}}, timeout=100)[0]


def test_a_sleep_may_end_a_wait() -> None:
    """Whoever stops the run stops the wait: what sleep raises goes through."""

    class Stopped(Exception):
        """The run was cancelled."""

    made = run()

    def stop() -> None:
        raise Stopped

    made.after(1, stop)
    with pytest.raises(Stopped):
        wait(made, id=1)
    assert isinstance(made.store, MemoryEntityStore)
