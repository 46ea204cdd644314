"""A hint to ignore the journal, where git would take it along and only there."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from llmproxy.core.store.file.connect import gitignore_hint


def test_outside_a_repository_nothing_is_said(tmp_path: Path) -> None:
    """There is nothing to ignore."""
    assert gitignore_hint(tmp_path / "llmproxy.db") == ""


def test_typed_as_printed_git_ignores_the_journal(tmp_path: Path) -> None:
    """And then nothing is said any more."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    store = tmp_path / "tests" / "llmproxy.db"
    store.parent.mkdir()
    hint = gitignore_hint(store)
    assert "llmproxy.db.state.db" in hint
    subprocess.run(["sh", "-c", hint.partition("git: ")[2]], check=True)
    assert gitignore_hint(store) == ""
    ignored = subprocess.run(["git", "check-ignore", "-q", f"{store}.state.db"], cwd=tmp_path, check=False)
    assert ignored.returncode == 0


@pytest.mark.parametrize(
    "pattern", ["*.db", "llmproxy.db.state.db", "tests/", "/tests/*.state.db", "**/*.state.db", "llmproxy.*"]
)
def test_other_patterns_do_as_well(tmp_path: Path, pattern: str) -> None:
    """By the file's name, its folder, its path."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / ".gitignore").write_text(f"# x\n{pattern}\n")
    assert gitignore_hint(tmp_path / "tests" / "llmproxy.db") == ""
    (tmp_path / ".gitignore").write_text(f"#{pattern}\n*.pyc\n!{pattern}\n")
    assert gitignore_hint(tmp_path / "tests" / "llmproxy.db") != ""
