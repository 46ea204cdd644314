"""A first suite that runs, from how the agent is reached."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmproxy.errors import SuiteError
from llmproxy.suite.make.init import first_suite, place_agent, reached_by
from tests.suite import rig


@pytest.mark.parametrize(
    ("text", "agent"),
    [
        ("http://127.0.0.1:8000/v1", {"http": "http://127.0.0.1:8000/v1"}),
        ("python agent.py --lines", {"command": ["python", "agent.py", "--lines"]}),
        ("agents.tasks:answer", {"python": "agents.tasks:answer"}),
        ("{url: http://x/v1, session: s}", {"url": "http://x/v1", "session": "s"}),
    ],
)
def test_how_it_is_reached(text: str, agent: dict[str, object], tmp_path: Path) -> None:
    """An address, a command, a function, or YAML; the suite that is written loads and holds it."""
    assert reached_by(text) == agent
    (case,) = rig.cases_of(tmp_path, first_suite(agent))
    assert json.loads(json.dumps(case.suite.agent)) == agent
    assert case.id == "hello"


def test_nothing_is_refused() -> None:
    """An empty answer to the question."""
    with pytest.raises(SuiteError, match="somehow"):
        reached_by("  ")


def test_a_command_that_is_none_is_refused() -> None:
    """Before a file is written."""
    with pytest.raises(SuiteError, match="no command"):
        reached_by("it's")


@pytest.mark.parametrize(
    ("agent", "found"),
    [
        ({"command": ["python", "agent.py"]}, {"command": {"run": ["python", "agent.py"], "cwd": ".."}}),
        ({"command": {"run": "x", "cwd": "bin"}}, {"command": {"run": "x", "cwd": "../bin"}}),
        ({"python": "agent.py:answer"}, {"python": "../agent.py:answer"}),
        ({"python": "agent:answer"}, {"python": "agent:answer"}),
        ({"http": "http://127.0.0.1:1/v1"}, {"http": "http://127.0.0.1:1/v1"}),
    ],
)
def test_an_agent_is_found_from_the_suites_folder(
    agent: dict[str, object], found: dict[str, object], tmp_path: Path
) -> None:
    """What was typed here goes on meaning the same, although paths in a suite begin at the suite."""
    assert place_agent(agent, tmp_path, tmp_path / "tests") == found
    assert place_agent(agent, tmp_path, tmp_path) == agent
