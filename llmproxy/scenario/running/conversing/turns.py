"""Whose turn it is: pure bookkeeping, no calls.

A turn has three roles, in the order user, agent, judge, whatever the order of the list of agents. Several agents of one role speak one
after the other in list order; the same object listed twice speaks once. A role is over when none of its agents is pending.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from llmproxy.scenario.agent_adapter import AgentAdapter
from llmproxy.scenario.types import AgentRole


class Speaker(NamedTuple):
    """Somebody who may speak now."""

    place: int
    """In the list of agents."""
    agent: AgentAdapter


class Turns:
    def __init__(self, agents: Sequence[AgentAdapter], count: Callable[[], None]) -> None:
        """Begin the first turn; `count` is called at every further one."""
        self.agents = agents
        self._count = count
        self.roles: list[AgentRole] = []
        self.pending: list[AgentAdapter] = []
        self.begun = False
        """Whether anybody has spoken in this turn."""
        self._all_may_speak()

    def new(self) -> None:
        """Begin the next turn: everybody may speak again."""
        self._all_may_speak()
        self._count()

    def _all_may_speak(self) -> None:
        distinct: list[AgentAdapter] = []
        for agent in self.agents:
            if not any(agent is known for known in distinct):
                distinct.append(agent)
        self.pending = distinct
        self.roles = list(AgentRole)
        self.begun = False

    def join(self, agent: AgentAdapter) -> None:
        """Let one more agent take part; in this turn too, unless his role is over."""
        self.pending.append(agent)

    def leave(self, agent: AgentAdapter) -> None:
        """Let an agent take no part any more."""
        self.pending = [each for each in self.pending if each is not agent]

    def has(self, role: AgentRole) -> bool:
        """Return whether anybody at all plays this role."""
        return any(agent.role is role for agent in self.agents)

    def next(self) -> Speaker | None:
        """Return who speaks next in this turn, dropping roles that are over; None when the turn is over."""
        while self.roles:
            found = self.of(self.roles[0])
            if found:
                return found
            self.roles.pop(0)
        return None

    def of(self, role: AgentRole) -> Speaker | None:
        """Return who of a role has not spoken in this turn."""
        if role not in self.roles:
            return None
        for index, agent in enumerate(self.agents):
            if agent.role is role and any(agent is each for each in self.pending):
                return Speaker(index, agent)
        return None

    def skip_to(self, role: AgentRole) -> None:
        """Drop the roles that come before this one; all of them, if it is over already."""
        while self.roles and self.roles[0] is not role:
            self.roles.pop(0)

    def claim(self, role: AgentRole) -> Speaker | None:
        """Let somebody of this role speak, in a new turn if the role is over in this one; None if nobody plays it."""
        self.skip_to(role)
        found = self.of(role)
        if not found:
            self.new()
            self.skip_to(role)
            found = self.of(role)
        if found:
            self.spoke(found.agent)
        return found

    def pretend(self, role: AgentRole) -> None:
        """Let a role speak that nobody plays: once in a turn, as if one agent did."""
        self.skip_to(role)
        if not self.roles:
            self.new()
            self.skip_to(role)
        self.roles.pop(0)
        self.begun = True

    def spoke(self, agent: AgentAdapter) -> None:
        """Note that somebody had his say in this turn."""
        self.pending = [each for each in self.pending if each is not agent]
        self.begun = True
