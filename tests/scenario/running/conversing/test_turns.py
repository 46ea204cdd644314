"""Bookkeeping of a turn, without anybody being called."""

# ruff: noqa: ANN401

from __future__ import annotations

from typing import Any

import pytest

from llmproxy.scenario import AgentRole
from llmproxy.scenario.running.conversing.turns import Turns
from tests.scenario.people import Agent, Judge, User

U, A, J = AgentRole.USER, AgentRole.AGENT, AgentRole.JUDGE


def turns(*agents: Any) -> tuple[Turns, list[int]]:
    """Return turns and the list that grows with every new one."""
    begun: list[int] = []
    return Turns(agents, lambda: begun.append(len(begun) + 1)), begun


def spoken(made: Turns) -> list[int]:
    """Let everybody of this turn speak; return their places in order."""
    places = []
    while found := made.next():
        made.spoke(found.agent)
        places.append(found.place)
    return places


def test_roles_speak_in_their_order() -> None:
    """User, agent, judge; several of one role in list order."""
    made, begun = turns(Judge(), Agent(), User(), Agent())
    assert spoken(made) == [2, 1, 3, 0]
    assert (made.roles, begun) == ([], [])


def test_an_object_listed_twice_speaks_once() -> None:
    """Identity decides, not equality."""
    agent = Agent()
    assert spoken(turns(agent, agent, Agent())[0]) == [0, 2]


def test_a_new_turn_lets_all_speak_again() -> None:
    """And is counted."""
    made, begun = turns(User(), Agent())
    spoken(made)
    made.new()
    assert (spoken(made), begun) == ([0, 1], [1])


@pytest.mark.parametrize(
    ("order", "new"), [([U, A, J], 0), ([A, U], 1), ([A, A], 1), ([J, A, U], 2), ([U, U, U], 2), ([U, J, J], 1)]
)
def test_claiming_a_role_that_is_over_begins_a_turn(order: list[AgentRole], new: int) -> None:
    """Roles before it are dropped."""
    made, begun = turns(User(), Agent(), Judge())
    for role in order:
        found = made.claim(role)
        assert found
        assert found.agent.role is role
    assert len(begun) == new


def test_claiming_what_nobody_plays_is_none() -> None:
    """After a new turn, as in the original."""
    made, begun = turns(Agent())
    assert made.claim(J) is None
    assert (begun, made.has(A), made.has(J)) == ([1], True, False)


def test_pretending_is_speaking_once_in_a_turn() -> None:
    """For a role that nobody plays."""
    made, begun = turns(Agent())
    made.pretend(U)
    assert (made.begun, begun) == (True, [])
    made.pretend(U)
    assert begun == [1]


def test_whether_a_turn_has_begun() -> None:
    """Somebody spoke in it."""
    made, _ = turns(Agent())
    found = [made.begun]
    spoken(made)
    found.append(made.begun)
    made.new()
    assert [*found, made.begun] == [False, True, False]
