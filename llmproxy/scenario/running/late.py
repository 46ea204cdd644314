"""Calls of the agent after the end of its scenario: whoever looked at its traffic did not know of them, so nothing passes beside them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from llmproxy.errors import LLMProxyError, MachineError

if TYPE_CHECKING:
    from llmproxy.client.control.client import Call
    from llmproxy.trace.observing.wire import Wire

__all__ = ["LateCallsError", "name_late_calls"]

_SHOWN = 3


class LateCallsError(MachineError):
    """The agent went on after the end of its scenario: what was said about its traffic was said too early."""

    code = "llmproxy_suite_late_calls"


def name_late_calls(calls: Sequence[Call], wire: Wire, strays: int) -> list[str]:
    """Name calls of the agent that came too late: tools where an answer asks for some, else the request.

    Args:
        calls: Of the agent, in order; `wire` has read them.
        wire: Everything that the agent said to models.
        strays: Calls of this process that were made while no agent had its turn: they are its as well, as far as anybody knows.

    """
    whose = (
        [f"{strays} calls arrived that belong to no run (nobody had its turn when they were made)"] if strays else []
    )
    if not calls:
        return whose
    try:
        tools = wire.step(calls[0].seq - 1).tools
    except LLMProxyError:  # a damaged recording: the calls are named all the same
        tools = ()
    asked = {tool.seq for tool in tools}
    named = [f"{tool.name} ({tool.where})" for tool in tools]
    named += [
        f"a request to {call.model or call.operation} (call {call.seq})" for call in calls if call.seq not in asked
    ]
    return [f"after the end of the scenario the agent made further calls: {_few(named)}", *whose]


def _few(named: Iterable[str]) -> str:
    every = list(named)
    more = f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else ""
    return f"{', '.join(every[:_SHOWN])}{more}"
