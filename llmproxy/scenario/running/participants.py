"""Participants of a run: adapters created or cloned for it if needed, opened before the first call, closed after the
last. An adapter with a lifecycle (it overrides `open` or `clone`) belongs to one run at a time: a concurrent run gets
its clone. Other objects are shared, as users expect.
"""

from __future__ import annotations

import inspect
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from llmproxy.client.child_env import gather_run_variables
from llmproxy.scenario.agent_adapter import AdapterAttributes, AgentAdapter
from llmproxy.scenario.run_session import RunSession
from llmproxy.scenario.types import AgentInput, AgentReturnTypes, Message


@dataclass
class ConnectedAgentCall:
    messages: list[Message]
    new_messages: list[Message] = field(default_factory=list)
    thread_id: str = ""
    session: Any = None
    """The agent's returned session of the previous turn."""
    trace_id: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)

    def turn_fields(self) -> dict[str, Any]:
        """Return the turn's fields, without the parameters of the run."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "parameters"}


class ConnectedAgentAdapter(AgentAdapter):
    def __init__(self, agent: Any, parameters: Mapping[str, Any] | None = None) -> None:
        """Wrap an object with `name` and `invoke`. Raises TypeError for another."""
        if not is_connected(agent):
            raise TypeError(f"ConnectedAgentAdapter takes an object with a name and a method invoke, not {agent!r}")
        self.agent = agent
        self.name: str = agent.name
        self.parameters = dict(parameters or {})
        self._sessions: dict[str, Any] = {}

    def session_for(self, thread_id: str) -> Any:
        return self._sessions.get(thread_id)

    def clone(self) -> Self:
        return type(self)(self.agent, self.parameters)

    async def call(self, input: AgentInput) -> AgentReturnTypes:  # noqa: A002 (the documented name)
        parts = input.propagation_headers.get("traceparent", "").split("-")
        told = ConnectedAgentCall(
            messages=input.messages,
            new_messages=input.new_messages,
            thread_id=input.thread_id,
            session=self._sessions.get(input.thread_id),
            trace_id=parts[1] if len(parts) > 1 else None,
            parameters=dict(self.parameters),
        )
        reply = self.agent.invoke(told)
        output, session = _split_output_and_session(await reply if inspect.isawaitable(reply) else reply)
        if session is not None:
            self._sessions[input.thread_id] = session
        return output


def is_connected(value: object) -> bool:
    return (
        not isinstance(value, AgentAdapter | type)
        and isinstance(getattr(value, "name", None), str)
        and callable(getattr(value, "invoke", None))
    )


def _split_output_and_session(reply: Any) -> tuple[Any, Any]:
    if isinstance(reply, Mapping):
        return (reply["output"], reply.get("session")) if "output" in reply else (reply, None)
    if not isinstance(reply, str | list | tuple) and hasattr(reply, "output"):
        return reply.output, getattr(reply, "session", None)
    return list(reply) if isinstance(reply, tuple) else reply, None


_ENTRY = threading.Lock()
_PLAYING: dict[int, AgentAdapter] = {}
"""Objects of active runs, by identity; guarded by the lock."""
_log = logging.getLogger(__name__)


def gather_agent_run_variables(agent: AgentAdapter) -> list[dict[str, str]]:
    """Return the run variables of an agent, started by us or in this process; a service's are unknown."""
    where = (os.environ, Path.cwd()) if agent.in_process else AdapterAttributes.of_adapter(agent).process_env_and_folder
    return gather_run_variables(*where) if where else []


def build_adapters(agents: Sequence[Any], parameters: Mapping[str, Any] | None = None) -> list[AgentAdapter]:
    """Return the adapters in a list of agents; connected ones get `parameters`. Raises ValueError for anything else."""
    found = []
    for place, given in enumerate(agents):
        entry = ConnectedAgentAdapter(given, parameters) if is_connected(given) else given
        made = (
            entry() if isinstance(entry, type) or (callable(entry) and not isinstance(entry, AgentAdapter)) else entry
        )
        if not isinstance(made, AgentAdapter):
            raise ValueError(  # noqa: TRY004 (as for every other argument that cannot be meant)
                f"agents[{place}] is {made!r}, which is no agent; wrap it in a class that inherits from "
                f"scenario.AgentAdapter:\n\n"
                "    class MyAgent(scenario.AgentAdapter):\n"
                "        async def call(self, input: scenario.AgentInput) -> scenario.AgentReturnTypes:\n"
                "            return my_agent(input.last_new_user_message_str())\n"
            )
        found.append(made)
    return found


class Participants:
    def __init__(self, agents: list[AgentAdapter]) -> None:
        """Use these; `claim_adapters` may replace them by clones, in the same list."""
        self.agents = agents
        self._mine: list[AgentAdapter] = []
        self.opened: list[AgentAdapter] = []

    def claim_adapters(self) -> None:
        """Claim the adapters for this run, with clones of those in use by another run."""
        clones: dict[int, AgentAdapter] = {}
        with _ENTRY:
            for place, agent in enumerate(self.agents):
                kind = type(agent)
                is_shared = kind.open is AgentAdapter.open and kind.clone is AgentAdapter.clone
                if is_shared or any(agent is each for each in self._mine):
                    continue
                if id(agent) in clones:
                    self.agents[place] = clones[id(agent)]
                    continue
                if id(agent) in _PLAYING:
                    self.agents[place] = clones[id(agent)] = agent.clone()
                taken = self.agents[place]
                _PLAYING[id(taken)] = taken
                self._mine.append(taken)

    async def open_adapters(self, session: RunSession | None) -> None:
        """Open every adapter once, in order. Raises the first error; its adapter is the last of `opened`."""
        for agent in self.agents:
            if not any(agent is each for each in self.opened):
                self.opened.append(agent)
                await agent.open(session)

    async def close_adapters(self) -> list[str]:
        """Close opened adapters in reverse, and release them; returns errors."""
        problems = []
        try:
            while self.opened:
                agent = self.opened.pop()
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
