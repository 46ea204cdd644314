"""What a plugin gets for nothing."""

from __future__ import annotations

import pytest

from llmproxy.suite.stores import EntityInfo, MemoryStore, Snapshot, StoreBase, StoreError


def test_a_row_without_a_key_is_an_error() -> None:
    """Rows that cannot be told apart cannot be compared with those before; the message names the setting."""
    with pytest.raises(StoreError, match=r"no usable key 'id'") as caught:
        StoreBase.key(EntityInfo("tasks"), {"title": "x"})
    assert "store.entities.tasks.id" in str(caught.value)


def test_a_user_narrows_only_where_rows_have_one() -> None:
    """An entity without a user column is looked at as a whole."""
    assert StoreBase.scope(EntityInfo("tasks", user="owner"), "anna") == {"owner": "anna"}
    assert StoreBase.scope(EntityInfo("tasks"), "anna") == {}
    assert StoreBase.scope(EntityInfo("tasks", user="owner"), None) == {}


def test_changes_need_no_more_than_a_list() -> None:
    """Snapshot and changes follow from describe and list."""
    store = MemoryStore()
    store.insert("tasks", {"title": "a"})
    before = store.snapshot(["tasks", "tasks"])
    assert before == Snapshot({"tasks": frozenset({1})})
    store.insert("tasks", {"title": "b"})
    assert [row["id"] for row in store.changes(before)["tasks"]] == [2]


def test_the_rest_has_to_be_written() -> None:
    """A base that answered for an adapter would answer wrongly."""
    with pytest.raises(NotImplementedError):
        StoreBase().describe("tasks")
    with pytest.raises(NotImplementedError):
        StoreBase().list("tasks")
    StoreBase().reset()
    StoreBase().close()
