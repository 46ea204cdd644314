"""Every store keeps the same promises: the table of tests that SQLite, PostgreSQL, HTTP, memory and a plugin all pass."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from llmproxy.suite.stores import (
    EntityInfo,
    MemoryEntityStore,
    RowKeySnapshot,
    StoreBase,
    StoreError,
    UnknownColumn,
    UnknownEntity,
    build_suite_store,
)
from llmproxy.suite.stores.protocol import (
    build_row_key_sort_key,
    build_unknown_column_error,
    build_unknown_entity_error,
    index_rows_by_key,
    sort_rows_by_key,
)
from tests.suite.stores.places import PLACES, Place, place


@pytest.fixture(params=PLACES)
def there(request: pytest.FixtureRequest, tmp_path: Path, postgres_url: Callable[[], str]) -> Iterator[Place]:
    with place(request.param, tmp_path, postgres_url) as made:
        yield made


def test_a_row_comes_back_as_it_was_inserted(there: Place) -> None:
    """Insert answers with the row as the store has it, and get and list give the same."""
    data = {"title": "Buy milk", "done": True, "price": 12.5, "userId": "anna"}
    row = there.store.insert("tasks", data)
    assert {k: row[k] for k in data} == data
    assert row["done"] is True
    assert row["id"] is not None
    assert there.store.get("tasks", row["id"]) == row
    assert there.store.list("tasks") == [row]


def test_objects_survive(there: Place) -> None:
    """A JSON column gives back what was put in."""
    data = {"tags": ["a", "b"], "n": {"x": 1, "ok": False, "none": None}}
    assert there.store.insert("tasks", {"title": "t", "data": data, "userId": "anna"})["data"] == data


def test_a_date_is_told_in_utc(there: Place) -> None:
    """A date with time comes back as ISO-8601 with a Z where the column is a date; where it has no type it stays a text."""
    row = there.store.insert("tasks", {"title": "t", "dueDate": "2027-01-31T12:00:00+02:00", "userId": "anna"})
    typed = there.kind in {"sqlite", "postgres"}
    assert row["dueDate"] == ("2027-01-31T10:00:00Z" if typed else "2027-01-31T12:00:00+02:00")


def test_a_key_is_found_in_either_spelling(there: Place) -> None:
    """An id that went through a prompt is a text; it finds the same row."""
    row = there.store.insert("tasks", {"title": "t", "userId": "anna"})
    assert there.store.get("tasks", str(row["id"])) == row
    assert there.store.get("tasks", "no such key") is None
    assert there.store.get("tasks", 424242) is None


def test_filters_select_and_limit_bounds(there: Place) -> None:
    """Rows are narrowed by equality, in the order of their keys."""
    for number in range(5):
        there.store.insert("tasks", {"title": f"t{number % 2}", "userId": "anna"})
    assert [row["title"] for row in there.store.list("tasks", {"title": "t0"})] == ["t0"] * 3
    assert len(there.store.list("tasks", {}, 2)) == 2
    assert there.store.list("tasks", {"title": "t0", "userId": "bert"}) == []


def test_null_selects_what_has_no_value(there: Place) -> None:
    there.store.insert("tasks", {"title": "a", "price": None, "userId": "anna"})
    there.store.insert("tasks", {"title": "b", "price": 1, "userId": "anna"})
    assert [row["title"] for row in there.store.list("tasks", {"price": None})] == ["a"]


def test_changes_are_the_rows_that_were_not_there(there: Place) -> None:
    """What the agent adds after the snapshot is found, what was there is not, and other users' rows are nobody's business."""
    there.write("tasks", {"title": "old", "userId": "anna"})
    before = there.store.snapshot(["tasks", "notes"], "anna")
    there.write("tasks", {"title": "new", "userId": "anna"})
    there.write("tasks", {"title": "foreign", "userId": "bert"})
    there.write("notes", {"id": "n1", "text": "hi"})
    changes = there.store.changes(before)
    assert [row["title"] for row in changes["tasks"]] == ["new"]
    assert [row["text"] for row in changes["notes"]] == ["hi"]
    assert len(there.store.changes(there.store.snapshot(["tasks"]))["tasks"]) == 0


def test_an_agents_row_is_seen_at_once(there: Place) -> None:
    """No transaction of ours hides what somebody else committed."""
    assert there.store.list("tasks") == []
    there.write("tasks", {"title": "now", "userId": "anna"})
    assert [row["title"] for row in there.store.list("tasks")] == ["now"]


def test_delete_says_whether_there_was_anything(there: Place) -> None:
    """A row that is gone already is no error."""
    row = there.store.insert("tasks", {"title": "t", "userId": "anna"})
    assert there.store.delete("tasks", row["id"]) is True
    assert there.store.delete("tasks", row["id"]) is False
    assert there.store.get("tasks", row["id"]) is None


def test_an_unknown_entity_is_an_error(there: Place) -> None:
    """A misspelt entity is never an empty one."""
    for act in (there.store.describe, there.store.list):
        with pytest.raises(UnknownEntity, match=r"no entity 'taks'; did you mean 'tasks'\?"):
            act("taks")


@pytest.mark.parametrize("act", ["list", "insert"])
def test_an_unknown_column_is_an_error(there: Place, act: str) -> None:
    """A condition is never dropped, a value never lost."""
    with pytest.raises(UnknownColumn, match=r"tasks has no column 'tittle'; did you mean 'title'\?"):
        getattr(there.store, act)("tasks", {"tittle": "x"})


def test_a_store_describes_its_entities(there: Place) -> None:
    info = there.store.describe("tasks")
    assert (info.key, info.user) == ("id", "userId")
    assert {"id", "title", "status", "done", "dueDate", "userId"} <= set(info.columns)
    assert there.store.describe("notes").user is None


def test_odd_text_is_data(there: Place) -> None:
    """Quotes, percent signs, colons and dollars of a value are nothing but the value."""
    title = "Robert'); DROP TABLE tasks;-- 100% :x $y ü \U0001f600"
    row = there.store.insert("tasks", {"title": title, "userId": "a/b?c=d&e"})
    assert there.store.list("tasks", {"title": title, "userId": "a/b?c=d&e"}) == [row]


def test_keys_are_ordered_as_numbers() -> None:
    """9 comes before 10, and numbers before texts."""
    assert [row["id"] for row in sort_rows_by_key([{"id": "b"}, {"id": 10}, {"id": 9}], "id")] == [9, 10, "b"]
    assert build_row_key_sort_key(True) > build_row_key_sort_key(3)


def test_names_that_differ_by_their_form_are_found() -> None:
    """The hint for due_date is dueDate, and how to map it."""
    from llmproxy.suite.stores import Column, EntityInfo

    info = EntityInfo("tasks", columns={"due_date": Column("due_date")})
    assert "columns: {dueDate: due_date}" in str(build_unknown_column_error(info, "dueDate", "fields"))
    assert "did you mean 'sub_tasks'" in str(build_unknown_entity_error("subTasks", ["sub_tasks", "notes"]))


def test_a_row_without_a_key_is_an_error() -> None:
    """Rows that cannot be told apart cannot be compared with those before; the message names the setting."""
    with pytest.raises(StoreError, match=r"no usable key 'id'") as caught:
        StoreBase.key(EntityInfo("tasks"), {"title": "x"})
    assert "store.entities.tasks.id" in str(caught.value)
    with pytest.raises(StoreError, match=r"no usable key 'id'"):
        index_rows_by_key(EntityInfo("tasks"), [{"id": 1}, {"id": None}])


def test_rows_with_one_key_are_an_error(tmp_path: Path) -> None:
    """They would count as one row, and a new one among them as none."""
    with pytest.raises(StoreError, match="two rows of tasks have id = 1: nothing tells them apart"):
        index_rows_by_key(EntityInfo("tasks"), [{"id": 1, "a": 1}, {"id": 1, "a": 2}])
    with closing(sqlite3.connect(tmp_path / "t.db")) as conn:
        conn.executescript("CREATE TABLE tasks (id INTEGER PRIMARY KEY, title TEXT); "
                           "INSERT INTO tasks(title) VALUES ('a'), ('a')")  # fmt: skip
    store = build_suite_store(
        {"sqlalchemy": f"sqlite:///{tmp_path}/t.db", "entities": {"tasks": {"id": "title"}}}, tmp_path
    )
    with closing(store), pytest.raises(StoreError, match="two rows of tasks have title = 'a'"):
        store.snapshot(["tasks"])


def test_a_user_narrows_only_where_rows_have_one() -> None:
    """An entity without a user column is looked at as a whole."""
    assert StoreBase.scope(EntityInfo("tasks", user="owner"), "anna") == {"owner": "anna"}
    assert StoreBase.scope(EntityInfo("tasks"), "anna") == {}
    assert StoreBase.scope(EntityInfo("tasks", user="owner"), None) == {}


def test_changes_need_no_more_than_a_list() -> None:
    """Snapshot and changes follow from describe and list."""
    store = MemoryEntityStore()
    store.insert("tasks", {"title": "a"})
    before = store.snapshot(["tasks", "tasks"])
    assert before == RowKeySnapshot({"tasks": frozenset({1})})
    store.insert("tasks", {"title": "b"})
    assert [row["id"] for row in store.changes(before)["tasks"]] == [2]


def test_the_rest_has_to_be_written() -> None:
    """A base that answered for an adapter would answer wrongly."""
    for act in (StoreBase().describe, StoreBase().list):
        with pytest.raises(NotImplementedError):
            act("tasks")
    StoreBase().reset()
    StoreBase().close()
