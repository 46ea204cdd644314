"""What takes part in a scenario: a class with `call`. The agent under test, the simulated user and the judge are all adapters."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Self

from llmproxy.scenario.types import AgentInput, AgentReturnTypes, AgentRole

if TYPE_CHECKING:
    from llmproxy.scenario.proxy.session import RunSession

__all__ = ["AgentAdapter"]


class AgentAdapter(ABC):
    """Connects somebody to a scenario.

    Only `call` has to be written. An object is used by one run at a time where it overrides `open` or `clone`: a second run that starts
    meanwhile works with a clone.
    """

    role: ClassVar[AgentRole] = AgentRole.AGENT
    uses_session: ClassVar[bool] = False
    """Whether it sends its LLM calls by `input.llm` (or needs none): such adapters answer in parallel, the others take turns."""
    in_process: ClassVar[bool] = True
    """Whether its LLM calls leave from this process."""
    raises_misses: ClassVar[bool] = False
    """Whether a request that was never recorded reaches the run as MissError by itself; for others the proxy is asked after every call."""

    @abstractmethod
    async def call(self, input: AgentInput) -> AgentReturnTypes:  # noqa: A002 (the documented name)
        """Answer: a text, a message, a list of messages, or a ScenarioResult, which ends the run."""

    async def open(self, session: RunSession | None) -> None:  # noqa: B027 (nothing to do is the rule)
        """Get ready for a run, before its first call; `session` is its session at the proxy, None without one."""

    async def close(self) -> None:  # noqa: B027
        """Clean up after a run, whatever happened in it."""

    def clone(self) -> Self:
        """Return an adapter for another run that goes on at the same time; a shallow copy unless it says otherwise."""
        return copy.copy(self)
