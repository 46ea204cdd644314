"""Claude Code and Codex: recorded in one place, tried in a second, replayed in a third, with nobody to ask."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import needed

from .agents import AGENTS, ASK, Agent
from .environments import problem_of
from .lab import Lab, Where

pytestmark = pytest.mark.sdk
TURNS = 10
BY_NAME = ("tmp_name", "group_pgid")
"""What the dialogue's tools vary that `--accept` does not take."""
by_agent = pytest.mark.parametrize("agent", [pytest.param(agent, id=agent.name) for agent in AGENTS])


@pytest.fixture
def lab(agent: Agent, tmp_path: Path) -> Lab:
    if problem := problem_of(agent):
        needed(problem)
    return Lab(agent, tmp_path, TURNS)


@by_agent
def test_an_agent_replays_in_another_place_after_one_trial(lab: Lab, tmp_path: Path, agent: Agent) -> None:
    """Ten tool calls with ids and folders of the new place are hits; another question is one miss."""
    first = Where(tmp_path / "a" / "project", tmp_path / "a" / "home", tmp_path / "a" / "tmp")
    trial = Where(
        *(tmp_path / "trial" / "somewhere", tmp_path / "trial-home", tmp_path / "trial-tmp"),
        user="lee", timezone="Asia/Tokyo", branch="topic", more_commits=1,
    )  # fmt: skip
    there = Where(
        *(tmp_path / "checkouts" / "of-today", tmp_path / "somewhere-else" / "kim", tmp_path / "temporary"),
        user="kim", timezone="Pacific/Kiritimati", branch="trunk", more_commits=2,
    )  # fmt: skip
    recorded = lab.record(first)
    assert (recorded.code, recorded.count("miss")) == (0, 0), recorded.stderr
    assert recorded.count("recorded") == recorded.upstream > TURNS
    tried = lab.learn(trial, "--accept", *(word for name in BY_NAME for word in ("--take", name)))
    assert tried.code == 0, tried.stderr[-3000:]
    assert "not taken" not in tried.stderr, tried.stderr[-3000:]
    replayed = lab.replay(there)
    assert lab.problems(replayed, there) == [], replayed.stderr[-3000:]

    lab.agent = replace(agent, command=tuple(word.replace(ASK, "Sing!") for word in agent.command))
    sung = lab.replay(there)
    assert sung.code != 0
    assert sung.count("miss") == 1, sung.stderr
    assert "What to do:" in sung.stdout + sung.stderr
