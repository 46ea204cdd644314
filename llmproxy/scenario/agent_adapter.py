"""What takes part in a scenario: a class with `call`. Agent under test, simulated user and judge are all adapters."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self

from llmproxy.scenario.config import ModelConfig
from llmproxy.scenario.run_session import RunSession
from llmproxy.scenario.types import AgentInput, AgentReturnTypes, AgentRole
from llmproxy.scenario.values.run_ids_and_options import context_scenario
from llmproxy.trace.observing.tool_calls import ToolUse


class AgentAdapter(ABC):
    """Connects somebody to a scenario.

    Only `call` has to be written. An object is used by one run at a time where it overrides `open` or `clone`: a second
    run that starts meanwhile works with a clone.
    """

    role: ClassVar[AgentRole] = AgentRole.AGENT
    name: str | None = None
    """A name of one's own; nothing here asks for it."""
    uses_session: ClassVar[bool] = False
    """Whether it calls by `input.llm`, or needs no LLM: such adapters answer in parallel, the others take turns."""
    in_process: ClassVar[bool] = True
    """Whether its LLM calls leave from this process."""
    raises_misses: ClassVar[bool] = False
    """Whether a request never recorded reaches the run as MissError; for others the proxy is asked after each call."""

    @abstractmethod
    async def call(self, input: AgentInput) -> AgentReturnTypes:  # noqa: A002 (the documented name)
        """Answer: a text, a message, a list of messages, or a ScenarioResult, which ends the run."""

    async def open(self, session: RunSession | None) -> None:  # noqa: B027 (nothing to do is the rule)
        """Get ready for a run, before its first call; `session` is its session at the proxy, None without one."""

    async def close(self) -> None:  # noqa: B027 - most have nothing to close
        """Clean up after a run, whatever happened in it."""

    def clone(self) -> Self:
        """Return an adapter for another run that goes on at the same time; a shallow copy unless it says otherwise."""
        return copy.copy(self)


@dataclass(frozen=True, slots=True)
class AdapterAttributes:
    """What an adapter may have beside `AgentAdapter`: attributes or properties, read when they are needed."""

    who: str = ""
    """How errors name it; its class unless it says otherwise."""
    models: Sequence[ModelConfig] = ()
    """The models that it asks: the session must know where those with an `api_base` are."""
    criteria: Sequence[object] | None = None
    """What it judges; None if it does not say, empty if it has nothing to decide."""
    declared_processing: Any = None
    """What its last answer said about its history, as JSON; None for nothing."""
    notes: Sequence[str] = ()
    """What is told with the run."""
    silence_hint: str = ""
    """What may be the cause where it gives no answer at all; empty for nothing that is known."""
    session_to_bind: str | None = None
    """The session that must be bound to the run's while it answers; None if it can answer in parallel."""
    process_env_and_folder: tuple[Mapping[str, str], Path] | None = None
    """Environment and folder of the process that it starts; None if it starts none."""

    @classmethod
    def of_adapter(cls, adapter: object) -> AdapterAttributes:
        found: dict[str, Any] = {each.name: getattr(adapter, each.name, each.default) for each in fields(cls)}
        return cls(**found)


# -- what an adapter of ours has to know of the run around it; called by hand, without a run, it finds nothing


def find_session(given: AgentInput) -> RunSession | None:
    return getattr(_find_running_executor(given), "session", None)


def is_conversation_unscripted(given: AgentInput) -> bool:
    """Return whether the conversation goes on by itself now; in a script, who speaks next has been decided."""
    return bool(getattr(_find_running_executor(given), "unscripted", False))


def get_wire_tool_calls(given: AgentInput) -> Mapping[int, Sequence[ToolUse]]:
    """Return the agent's tool calls on the wire, by the place of the message that came after them."""
    return getattr(_find_running_executor(given), "wire_by_message", None) or {}


def list_unknown_call_reasons(given: AgentInput) -> Sequence[str]:
    """Return why answers of the agent's models may have called what the wire does not show."""
    return getattr(_find_running_executor(given), "wire_unknown", None) or ()


def get_scenario_description(given: AgentInput) -> str:
    return str(getattr(given.scenario_state, "description", "") or "")


def _find_running_executor(given: AgentInput) -> Any:
    return getattr(given.scenario_state, "_executor", None) or context_scenario.get()
