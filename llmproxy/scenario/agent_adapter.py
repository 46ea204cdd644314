"""Participants of a scenario: classes with `call`. Agent under test, simulated user and judge are all adapters."""

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
    """Connects a participant to a scenario.

    Only `call` is required. An object that overrides `open` or `clone` is used by one run at a time: a concurrent run
    uses a clone.
    """

    role: ClassVar[AgentRole] = AgentRole.AGENT
    name: str | None = None
    """A name for users; the runner does not use it."""
    uses_session: ClassVar[bool] = False
    """Whether it calls by `input.llm`, or needs no LLM: such adapters run in parallel, the others take turns."""
    in_process: ClassVar[bool] = True
    """Whether its LLM calls leave from this process."""
    raises_misses: ClassVar[bool] = False
    """Whether a miss reaches the run as MissError; for others the proxy is queried after each call."""

    @abstractmethod
    async def call(self, input: AgentInput) -> AgentReturnTypes:  # noqa: A002 (the documented name)
        """Answer with a text, a message, a list of messages, or a ScenarioResult, which ends the run."""

    async def open(self, session: RunSession | None) -> None:  # noqa: B027 (nothing to do is the rule)
        """Prepare for a run, before its first call; `session` is its session at the proxy, None without one."""

    async def close(self) -> None:  # noqa: B027 - most have nothing to close
        """Clean up after a run, also a failed one."""

    def clone(self) -> Self:
        """Return an adapter for a concurrent run; by default a shallow copy."""
        return copy.copy(self)


@dataclass(frozen=True, slots=True)
class OptionalAdapterAttributes:
    """Optional attributes or properties of adapters in addition to `AgentAdapter`, read when needed."""

    who: str = ""
    """Its name in errors; by default its class."""
    models: Sequence[ModelConfig] = ()
    """Its models: the session must know the addresses of those with an `api_base`."""
    criteria: Sequence[object] | None = None
    """Its criteria; None if not given, empty if it has nothing to decide."""
    declared_processing: Any = None
    notes: Sequence[str] = ()
    silence_hint: str = ""
    session_to_bind: str | None = None
    """Session that is bound to the run's while it answers; None if it can answer in parallel."""
    process_env_and_folder: tuple[Mapping[str, str], Path] | None = None

    @classmethod
    def of_adapter(cls, adapter: object) -> OptionalAdapterAttributes:
        found: dict[str, Any] = {each.name: getattr(adapter, each.name, each.default) for each in fields(cls)}
        return cls(**found)


# -- what an adapter of ours has to know of the run around it; called by hand, without a run, it finds nothing


def find_scenario_session(given: AgentInput) -> RunSession | None:
    return getattr(_find_running_executor(given), "session", None)


def is_conversation_unscripted(given: AgentInput) -> bool:
    return bool(getattr(_find_running_executor(given), "unscripted", False))


def get_tool_calls_seen_by_proxy(given: AgentInput) -> Mapping[int, Sequence[ToolUse]]:
    """Return the agent's tool calls on the wire, by the position of the following message."""
    return getattr(_find_running_executor(given), "wire_by_message", None) or {}


def list_unreadable_call_reasons(given: AgentInput) -> Sequence[str]:
    return getattr(_find_running_executor(given), "wire_unknown", None) or ()


def get_scenario_description(given: AgentInput) -> str:
    return str(getattr(given.scenario_state, "description", "") or "")


def _find_running_executor(given: AgentInput) -> Any:
    return getattr(given.scenario_state, "_executor", None) or context_scenario.get()
