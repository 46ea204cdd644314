"""Runs again when a file changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmproxy.errors import SuiteError
from llmproxy.settings import load
from llmproxy.suite.reading.project_settings import (
    SuiteCommandOptions,
    diff_file_snapshots,
    parse_agent_or_store_flag_value,
    read_file_modification_times,
    read_suite_pyproject_table,
    rerun_on_change,
)


def test_the_nearest_table_counts(tmp_path: Path) -> None:
    """Above the folder, too; options of the proxy stand beside it."""
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert read_suite_pyproject_table(below) == ({}, below)
    text = '[tool.llmproxy]\nmode = "auto"\n[tool.llmproxy.suite]\nagent = {http = "http://127.0.0.1:8000/v1"}\n'
    (tmp_path / "pyproject.toml").write_text(text)
    assert read_suite_pyproject_table(below) == ({"agent": {"http": "http://127.0.0.1:8000/v1"}}, tmp_path)
    assert str(load({}, {}, below).settings.mode) == "auto"


@pytest.mark.parametrize(("text", "message"), [
    ("[tool.llmproxy.suite]\nagnet = {}\n", "did you mean 'agent'"),
    ("[tool.llmproxy.suite]\nagent = 7\n", "not a table, but 7\n.*, as in agent ="),
    ("[tool.llmproxy]\nsuite = 7\n", "not a table, but 7\n.*, as in agent ="),
    ("[", "cannot read"),
    ("a = " + "[" * 100_000, "cannot read"),
])  # fmt: skip
def test_what_cannot_be_meant_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(SuiteError, match=message):
        read_suite_pyproject_table(tmp_path)


def test_agents_and_stores_of_the_command_line() -> None:
    """An address, or YAML."""
    assert parse_agent_or_store_flag_value("http://x/v1", "--agent") == {"http": "http://x/v1"}
    assert parse_agent_or_store_flag_value("{command: [node, agent.mjs]}", "--agent") == {
        "command": ["node", "agent.mjs"]
    }
    assert parse_agent_or_store_flag_value("sqlite:///t.db", "--entity-store") == {"sqlalchemy": "sqlite:///t.db"}
    assert parse_agent_or_store_flag_value("http://x/api", "--entity-store") == {"http": "http://x/api"}
    assert parse_agent_or_store_flag_value("python: agent.py:answer", "--agent") == {"python": "agent.py:answer"}
    for text in ("", "[1]", "{"):
        with pytest.raises(SuiteError):
            parse_agent_or_store_flag_value(text, "--agent")


def test_nothing_is_spent_or_written_unasked() -> None:
    """One run at a time, the proxy's own mode, no snapshots written, stopping at a failure."""
    default = SuiteCommandOptions()
    assert (default.mode, default.parallel, default.update, default.keep_going, default.max_cost) == (
        None, 1, False, False, None,
    )  # fmt: skip


def test_files_beside_the_suite_are_watched(tmp_path: Path) -> None:
    """Recordings, snapshots and hidden folders are not: a run writes them itself."""
    for name in ("a.suite.yaml", "agent.py", "a.suite.snapshots.json", "cassettes/x.yaml", ".git/x.yaml", "x.db"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    assert {path.name for path in read_file_modification_times([str(tmp_path / "a.suite.yaml")])} == {
        "a.suite.yaml",
        "agent.py",
    }


def test_changes_are_told(tmp_path: Path) -> None:
    one, two, three = tmp_path / "1", tmp_path / "2", tmp_path / "3"
    assert diff_file_snapshots({one: 1, two: 1}, {two: 2, three: 1}) == [one, two, three]
    assert diff_file_snapshots({one: 1}, {one: 1}) == []


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
        rerun_on_change(run, [str(path)], said.append, sleep)
    assert len(ran) == 3
    assert any("broken" in text for text in said)
    assert any("changed" in text for text in said)
