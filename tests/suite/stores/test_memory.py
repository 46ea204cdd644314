"""The store in memory, beyond what every store does."""

from __future__ import annotations

import pytest

from llmproxy.suite.stores import MemoryStore, StoreRefused, UnknownEntity
from llmproxy.suite.stores.protocol import EntityShape


def test_rows_are_copies() -> None:
    """Nobody changes a row that was handed out, or in."""
    store = MemoryStore()
    data = {"title": "a", "tags": ["x"]}
    row = store.insert("tasks", data)
    row["title"] = "changed"
    data["tags"] = ["y"]
    store.list("tasks")[0]["tags"].append("z")
    assert store.get("tasks", 1) == {"id": 1, "title": "a", "tags": ["x"]}


def test_a_key_is_given_once() -> None:
    """The same key twice is refused, and counting goes on after the largest."""
    store = MemoryStore()
    store.insert("tasks", {"id": 7})
    with pytest.raises(StoreRefused, match="has a row id=7 already"):
        store.insert("tasks", {"id": 7})
    assert store.insert("tasks", {})["id"] == 8


def test_an_agent_in_this_process_updates_rows() -> None:
    """`update` is for the agent's side; None where there is no such row."""
    store = MemoryStore({"tasks": EntityShape()})
    store.insert("tasks", {"title": "a"})
    assert store.update("tasks", 1, {"title": "b"}) == {"id": 1, "title": "b"}
    assert store.update("tasks", 2, {"title": "b"}) is None


def test_declared_entities_are_all_there_are() -> None:
    """Once one is declared, another name is a misspelling."""
    store = MemoryStore({"tasks": EntityShape(key="key", user="owner")})
    assert store.insert("tasks", {"owner": "anna"}) == {"key": 1, "owner": "anna"}
    with pytest.raises(UnknownEntity):
        store.list("task")


def test_reset_forgets_everything() -> None:
    store = MemoryStore()
    store.insert("tasks", {})
    store.reset()
    assert store.get("tasks", 1) is None
    assert store.list("tasks") == []
    assert store.delete("tasks", 1) is False
    assert store.insert("tasks", {})["id"] == 1
