"""Who plays in one run: adapters made or cloned for it where they must be, opened before the first call, closed after the last.

An entry of `agents` is an adapter, or a class or function without parameters that makes one for every run. An object that takes part in
the life of a run (it overrides `open` or `clone`) belongs to one run at a time: a run that starts meanwhile gets its clone. Other objects
are shared, as their users see them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llmproxy.scenario.agent_adapter import AgentAdapter
from llmproxy.scenario.running.connected import ConnectedAgentAdapter, is_connected

if TYPE_CHECKING:
    from llmproxy.scenario.proxy.session import RunSession

_ENTRY = threading.Lock()
_PLAYING: dict[int, AgentAdapter] = {}
"""Objects that belong to a run now, by identity; guarded by the lock, emptied by the runs' ends."""
_log = logging.getLogger(__name__)


def players(agents: Sequence[Any], parameters: Mapping[str, Any] | None = None) -> list[AgentAdapter]:
    """Return the adapters that a list of agents means; connected agents get `parameters`. Raises ValueError for what is none."""
    found = []
    for place, given in enumerate(agents):
        entry = ConnectedAgentAdapter(given, parameters) if is_connected(given) else given
        made = (
            entry() if isinstance(entry, type) or (callable(entry) and not isinstance(entry, AgentAdapter)) else entry
        )
        if not isinstance(made, AgentAdapter):
            raise ValueError(  # noqa: TRY004 (as for every other argument that cannot be meant)
                f"agents[{place}] is {made!r}, which is no agent; wrap it in a class that inherits from scenario.AgentAdapter:\n\n"
                "    class MyAgent(scenario.AgentAdapter):\n"
                "        async def call(self, input: scenario.AgentInput) -> scenario.AgentReturnTypes:\n"
                "            return my_agent(input.last_new_user_message_str())\n"
            )
        found.append(made)
    return found


class Cast:
    """The adapters of one run."""

    def __init__(self, agents: list[AgentAdapter]) -> None:
        """Play with these; `enter` may put clones in their place, in the same list."""
        self.agents = agents
        self._mine: list[AgentAdapter] = []
        self._opened: list[AgentAdapter] = []

    def enter(self) -> None:
        """Take the adapters for this run, or clones of those that another run has."""
        clones: dict[int, AgentAdapter] = {}
        with _ENTRY:
            for place, agent in enumerate(self.agents):
                if _is_shared(agent) or any(agent is each for each in self._mine):
                    continue
                if id(agent) in clones:
                    self.agents[place] = clones[id(agent)]
                    continue
                if id(agent) in _PLAYING:
                    self.agents[place] = clones[id(agent)] = agent.clone()
                taken = self.agents[place]
                _PLAYING[id(taken)] = taken
                self._mine.append(taken)

    async def open(self, session: RunSession | None) -> None:
        """Open every adapter once, in list order. Raises what the first one that fails raises, with the adapter in `failed`."""
        for agent in self.agents:
            if not any(agent is each for each in self._opened):
                self._opened.append(agent)
                await agent.open(session)

    async def leave(self) -> list[str]:
        """Close what was opened, in reverse, and let others have it; returns what went wrong meanwhile."""
        problems = []
        try:
            while self._opened:
                agent = self._opened.pop()
                try:
                    await agent.close()
                except Exception as error:  # noqa: BLE001 (told in the result)
                    _log.exception("%s could not close", type(agent).__name__)
                    problems.append(f"{type(agent).__name__} could not close: {str(error) or type(error).__name__}")
        finally:
            with _ENTRY:
                while self._mine:
                    _PLAYING.pop(id(self._mine.pop()), None)
        return problems

    @property
    def opening(self) -> AgentAdapter | None:
        """Whoever was opened last."""
        return self._opened[-1] if self._opened else None


def _is_shared(agent: AgentAdapter) -> bool:
    kind = type(agent)
    return kind.open is AgentAdapter.open and kind.clone is AgentAdapter.clone
