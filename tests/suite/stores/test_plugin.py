"""Stores of the user's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmproxy.errors import SuiteError
from llmproxy.suite.stores.plugin import plugin_store
from tests.suite.stores.places import PLUGIN


def test_a_store_beside_the_suite_is_found(tmp_path: Path) -> None:
    """By file and by module name, called with its options."""
    (tmp_path / "plugged_by_test.py").write_text(PLUGIN, "utf-8")
    for name in ("./plugged_by_test.py:JsonFile", "plugged_by_test:JsonFile"):
        store = plugin_store(name, tmp_path, {"path": str(tmp_path / "rows.json")})
        assert store.insert("tasks", {"title": "t"})["id"] == 1


@pytest.mark.parametrize(
    ("text", "reference", "said"),
    [
        ("", "mine.py", "not of the form module:attribute"),
        ("", "./none.py:Store", "there is no file"),
        ("", "no_such_module_at_all:Store", "could not be imported: ModuleNotFoundError"),
        ("1 / 0", "./mine.py:Store", "could not be imported: ZeroDivisionError"),
        ("class Store: ...", "./mine.py:Stor", "did you mean 'Store'?"),
        ("Store = 5", "./mine.py:Store", "is no store: it lacks describe"),
        ("class Store:\n  def __init__(self, path): ...", "./mine.py:Store", "could not be called with the options {}"),
        ("class Store:\n  def list(self): ...", "./mine.py:Store", "Store lacks describe, insert, get, delete"),
    ],
)
def test_what_is_no_store_is_refused(tmp_path: Path, text: str, reference: str, said: str) -> None:
    """With what it lacks, and never as a traceback of somebody else's module."""
    (tmp_path / "mine.py").write_text(text, "utf-8")
    with pytest.raises(SuiteError) as caught:
        plugin_store(reference, tmp_path)
    assert said in str(caught.value)


def test_a_store_object_takes_no_options(tmp_path: Path) -> None:
    """What is made already cannot be told anything."""
    (tmp_path / "made.py").write_text("from llmproxy.suite.stores import MemoryStore\nstore = MemoryStore()", "utf-8")
    assert plugin_store("./made.py:store", tmp_path).list("tasks") == []
    with pytest.raises(SuiteError, match="takes no options"):
        plugin_store("./made.py:store", tmp_path, {"a": 1})
