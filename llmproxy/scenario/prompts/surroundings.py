"""What an adapter of ours has to know of the run around it, and that is not part of its input.

An adapter that is called by hand, without a run, finds nothing: no session, no wire, and a script.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llmproxy.scenario.types import AgentInput
from llmproxy.scenario.values.run import context_scenario

if TYPE_CHECKING:
    from llmproxy.scenario.proxy.session import RunSession
    from llmproxy.trace.observing.tools import ToolUse


def session_of(given: AgentInput) -> RunSession | None:
    """Return the session of the run; None without a proxy."""
    return getattr(_running(given), "session", None)


def is_unscripted(given: AgentInput) -> bool:
    """Return whether the conversation goes on by itself now; in a script, who speaks next has been decided."""
    return bool(getattr(_running(given), "unscripted", False))


def wire_of(given: AgentInput) -> Mapping[int, Sequence[ToolUse]]:
    """Return the agent's tool calls on the wire, by the place of the message that came after them."""
    return getattr(_running(given), "wire_before", None) or {}


def unknown_of(given: AgentInput) -> Sequence[str]:
    """Return why answers of the agent's models may have called what the wire does not show."""
    return getattr(_running(given), "wire_unknown", None) or ()


def description_of(given: AgentInput) -> str:
    """Return what the scenario is about."""
    return str(getattr(given.scenario_state, "description", "") or "")


def _running(given: AgentInput) -> Any:  # noqa: ANN401 - an executor, or None
    return getattr(given.scenario_state, "_executor", None) or context_scenario.get()
