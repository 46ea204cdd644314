"""What did not pass the last time is remembered."""

from __future__ import annotations

from pathlib import Path

from llmproxy.suite.choose.last_failed import FILE, last_failed, remember


def test_failed_ones_stay_until_they_pass(tmp_path: Path) -> None:
    """Only what ran is changed."""
    assert last_failed(tmp_path) is None
    remember(tmp_path, ["a", "b", "c"], ["a", "b"])
    remember(tmp_path, ["a"], [])
    assert last_failed(tmp_path) == ["b"]
    remember(tmp_path, ["b", "d"], ["d"])
    assert last_failed(tmp_path) == ["d"]


def test_a_damaged_file_is_none(tmp_path: Path) -> None:
    """It is nobody's work; and a folder that cannot be written is left alone."""
    remember(tmp_path, ["a"], ["a"])
    for text in ("{", "[]", '{"failed": 7}', "[" * 100_000):
        (tmp_path / FILE).write_text(text)
        assert last_failed(tmp_path) is None
    remember(tmp_path / "nowhere" / "at all", ["a"], ["a"])
