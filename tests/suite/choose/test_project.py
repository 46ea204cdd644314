"""Agents and stores of a project, and those of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmproxy.errors import SuiteError
from llmproxy.settings import load
from llmproxy.suite.choose.project import project, read_description


def test_the_nearest_table_counts(tmp_path: Path) -> None:
    """Above the folder, too; options of the proxy stand beside it."""
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert project(below) == ({}, below)
    text = '[tool.llmproxy]\nmode = "auto"\n[tool.llmproxy.suite]\nagent = {http = "http://127.0.0.1:8000/v1"}\n'
    (tmp_path / "pyproject.toml").write_text(text)
    assert project(below) == ({"agent": {"http": "http://127.0.0.1:8000/v1"}}, tmp_path)
    assert str(load({}, {}, below).settings.mode) == "auto"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.llmproxy.suite]\nagnet = {}\n", "did you mean 'agent'"),
        ("[tool.llmproxy.suite]\nagent = 7\n", "not a table"),
        ("[tool.llmproxy]\nsuite = 7\n", "not a table"),
        ("[", "cannot read"),
        ("a = " + "[" * 100_000, "cannot read"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """With the file."""
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(SuiteError, match=message):
        project(tmp_path)


def test_agents_and_stores_of_the_command_line() -> None:
    """An address, or YAML."""
    assert read_description("http://x/v1", "--agent") == {"http": "http://x/v1"}
    assert read_description("{command: [node, agent.mjs]}", "--agent") == {"command": ["node", "agent.mjs"]}
    assert read_description("sqlite:///t.db", "--entity-store") == {"sqlalchemy": "sqlite:///t.db"}
    assert read_description("http://x/api", "--entity-store") == {"http": "http://x/api"}
    for text in ("nothing", "[1]", "{"):
        with pytest.raises(SuiteError):
            read_description(text, "--agent")
