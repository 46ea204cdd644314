"""Runs again when a file changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmproxy.errors import SuiteError
from llmproxy.suite.choose.watch import find_changes, look, watch


def test_files_beside_the_suite_are_watched(tmp_path: Path) -> None:
    """Recordings, snapshots and hidden folders are not: a run writes them itself."""
    for name in ("a.suite.yaml", "agent.py", "a.suite.snapshots.json", "cassettes/x.yaml", ".git/x.yaml", "x.db"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    assert {path.name for path in look([str(tmp_path / "a.suite.yaml")])} == {"a.suite.yaml", "agent.py"}


def test_changes_are_told(tmp_path: Path) -> None:
    """What came, went, and was written."""
    one, two, three = tmp_path / "1", tmp_path / "2", tmp_path / "3"
    assert find_changes({one: 1, two: 1}, {two: 2, three: 1}) == [one, two, three]
    assert find_changes({one: 1}, {one: 1}) == []


def test_it_runs_again_after_a_change_and_survives_a_broken_suite(tmp_path: Path) -> None:
    """An error is told; only Ctrl-C ends it."""
    path = tmp_path / "a.suite.yaml"
    path.write_text("1")
    ran: list[str] = []
    said: list[str] = []

    def run() -> int:
        ran.append(path.read_text())
        if len(ran) == 2:
            raise SuiteError("broken")
        if len(ran) == 3:
            raise KeyboardInterrupt
        return 0

    def sleep(_: float) -> None:
        path.write_text("x" * (len(ran) + 5))

    with pytest.raises(KeyboardInterrupt):
        watch(run, [str(path)], said.append, sleep)
    assert len(ran) == 3
    assert any("broken" in text for text in said)
    assert any("changed" in text for text in said)
