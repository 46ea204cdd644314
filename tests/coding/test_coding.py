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
by_agent = pytest.mark.parametrize("agent", [pytest.param(agent, id=agent.name) for agent in AGENTS])


@pytest.fixture
def lab(agent: Agent, tmp_path: Path) -> Lab:
    """A lab with one agent, whose environment is there."""
    if problem := problem_of(agent.name):
        needed(problem)
    return Lab(agent, tmp_path, TURNS)


@by_agent
def test_an_agent_replays_in_another_place_after_one_trial(lab: Lab, tmp_path: Path, agent: Agent) -> None:
    """Ten tool calls that list, write, commit and name what they made: every call a hit, with the ids and folders of the new place."""
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
    assert lab.learn_all(trial) == []
    replayed = lab.replay(there)
    assert lab.problems(replayed, there) == [], replayed.stderr[-3000:]


@by_agent
def test_a_miss_is_asked_once_and_shown_whole(lab: Lab, tmp_path: Path, agent: Agent) -> None:
    """Another question than the recorded one: one request, the whole text before the user, and one miss in the summary."""
    lab.turns = 0
    where = Where(tmp_path / "w", tmp_path / "h", tmp_path / "t")
    assert lab.record(where).code == 0
    lab.agent = replace(agent, command=tuple(word.replace(ASK, "Sing!") for word in agent.command))
    ran = lab.replay(where)
    assert ran.code != 0
    assert ran.count("miss") == 1, ran.stderr
    assert "What to do:" in ran.stdout + ran.stderr
