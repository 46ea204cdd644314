"""An object with a `name` and an `invoke`, such as LangWatch's `connect_agent` returns, as the agent under test.

invoke(ConnectedAgentCall) -> a text, a message, messages, or something with `output`, and `session`, which comes back in the next turn
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from llmproxy.scenario.agent_adapter import AgentAdapter
from llmproxy.scenario.types import AgentInput, AgentReturnTypes, Message


@dataclass
class ConnectedAgentCall:
    """One turn, as a connected agent is told it."""

    messages: list[Message]
    new_messages: list[Message] = field(default_factory=list)
    thread_id: str = ""
    session: Any = None
    """What the agent returned as its session in the turn before."""
    trace_id: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    """Of `scenario.run(parameters=...)`."""

    def turn_fields(self) -> dict[str, Any]:
        """Return what belongs to the turn, without the parameters of the run."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "parameters"}


class ConnectedAgentAdapter(AgentAdapter):
    def __init__(self, agent: Any, parameters: Mapping[str, Any] | None = None) -> None:  # noqa: ANN401 (known by its shape)
        """Take an object with `name` and `invoke`. Raises TypeError for another."""
        if not is_connected(agent):
            raise TypeError(f"ConnectedAgentAdapter takes an object with a name and a method invoke, not {agent!r}")
        self.agent = agent
        self.name: str = agent.name
        self.parameters = dict(parameters or {})
        self._sessions: dict[str, Any] = {}

    def session_for(self, thread_id: str) -> Any:  # noqa: ANN401 (the agent's own)
        """Return the session of a conversation; None before the first answer."""
        return self._sessions.get(thread_id)

    def clone(self) -> Self:
        """Return an adapter of the same agent, with sessions of its own."""
        return type(self)(self.agent, self.parameters)

    async def call(self, input: AgentInput) -> AgentReturnTypes:  # noqa: A002 (the documented name)
        """Let the agent answer."""
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
        output, session = _read(await reply if inspect.isawaitable(reply) else reply)
        if session is not None:
            self._sessions[input.thread_id] = session
        return output


def is_connected(value: object) -> bool:
    """Return whether it is an agent of this kind: an object, no class and no adapter, with a name and `invoke`."""
    return (
        not isinstance(value, AgentAdapter | type)
        and isinstance(getattr(value, "name", None), str)
        and callable(getattr(value, "invoke", None))
    )


def _read(reply: Any) -> tuple[Any, Any]:  # noqa: ANN401 - what the framework replies
    """Return what an answer says, and the session that it carries."""
    if isinstance(reply, Mapping):
        return (reply["output"], reply.get("session")) if "output" in reply else (reply, None)
    if not isinstance(reply, str | list | tuple) and hasattr(reply, "output"):
        return reply.output, getattr(reply, "session", None)
    return list(reply) if isinstance(reply, tuple) else reply, None
