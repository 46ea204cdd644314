"""Calls of the agent after the end of its scenario: whoever looked at its traffic did not know of them, so nothing passes beside them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from llmproxy.errors import LLMProxyError, MachineError
from llmproxy.trace.observing.wire import Wire

if TYPE_CHECKING:
    from llmproxy.client.reports import Call

_SHOWN = 3


class LateCallsError(MachineError):
    """The agent went on after the end of its scenario: what was said about its traffic was said too early."""

    code = "llmproxy_suite_late_calls"


def name_late_calls(calls: Sequence[Call], wire: Wire, strays: int, named: Sequence[Call] = ()) -> list[str]:
    """Name calls of the agent that came too late: tools where an answer asks for some, else the request.

    Args:
        calls: Of the agent, in order; `wire` has read them.
        wire: Everything that the agent said to models.
        strays: Calls of this process that were made while no agent had its turn: they are its as well, as far as anybody knows.
        named: Of the strays, those that the proxy tells.

    """
    said = []
    if calls:
        said.append(f"after the end of the scenario the agent made further calls: {_name_calls(calls, wire)}")
    if strays:
        apart = Wire(None)
        apart.read(named)
        many = "1 call arrived that belongs" if strays == 1 else f"{strays} calls arrived that belong"
        what = f": {_name_calls(named, apart)}" if named else ""
        said.append(f"{many} to no run, since nobody had its turn then{what}")
    return said


def _name_calls(calls: Sequence[Call], wire: Wire) -> str:
    try:
        tools = wire.step(calls[0].seq - 1).tools
    except LLMProxyError:  # a damaged recording: the calls are named all the same
        tools = ()
    asked = {tool.seq for tool in tools}
    named = [f"{tool.name} ({tool.where})" for tool in tools]
    named += [
        f"a request to {call.model or call.operation} (call {call.seq})" for call in calls if call.seq not in asked
    ]
    return _few(named)


def _few(named: Iterable[str]) -> str:
    every = list(named)
    more = f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else ""
    return f"{', '.join(every[:_SHOWN])}{more}"
