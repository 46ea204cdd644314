"""Calls of the agent after the end of its scenario: nothing that was asserted knows of them, so nothing passes beside them.

A call that comes after an answer belongs to the step of that answer, as long as the scenario goes on (`run.one` looks again). What comes
after its end (while the agent is closed, while rows are taken back) belongs to no step. It is named; where anything was asserted about
the agent's traffic, the run is an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmproxy.errors import LLMProxyError, MachineError
from llmproxy.protocol import AGENT

if TYPE_CHECKING:
    from llmproxy.suite.run.stage import Stage

__all__ = ["LateCallsError", "find_late_calls", "refuse_late_calls", "watches_wire"]

_SHOWN = 3


class LateCallsError(MachineError):
    """The agent went on after the end of its scenario: what was asserted about its traffic was asserted too early."""

    code = "llmproxy_suite_late_calls"


def watches_wire(stage: Stage) -> bool:
    """Tell whether a scenario asserts anything about the agent's traffic, or lets a judge look at it."""
    scenario = stage.case.scenario
    if scenario.usage is not None:
        return True
    for step in scenario.steps:
        response = getattr(step, "response", None)
        judged = response is not None and response.judge is not None
        if step.kind == "judge" or judged or getattr(step, "about_wire", None):
            return True
        if step.kind == "simulate" and getattr(getattr(step, "simulate", None), "criteria", None):
            return True
    return False


async def find_late_calls(stage: Stage) -> list[str]:
    """Name the agent's calls that nobody has looked at yet: tools where its answer asks for some, else the request.

    Calls of this process that were made while no agent had its turn are its as well, as far as anybody knows.
    """
    if stage.session is None:
        return []
    after = stage.cursor
    strays = await stage.strays()
    whose = (
        [f"{strays} calls arrived that belong to no run (nobody had its turn when they were made)"] if strays else []
    )
    calls = [call for call in await stage.session.calls(after) if call.party == AGENT]
    if not calls:
        return whose
    stage.wire.read(calls)
    try:
        tools = stage.wire.step(after).tools
    except LLMProxyError:  # a damaged recording: the calls are named all the same
        tools = ()
    asked = {tool.seq for tool in tools}
    named = [f"{tool.name} ({tool.where})" for tool in tools]
    named += [
        f"a request to {call.model or call.operation} (call {call.seq})" for call in calls if call.seq not in asked
    ]
    more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
    return [f"after the end of the scenario the agent made further calls: {', '.join(named[:_SHOWN])}{more}", *whose]


def refuse_late_calls(said: list[str]) -> LateCallsError:
    """Return the error for calls that came too late."""
    return LateCallsError(
        f"{'; '.join(said)}.",
        hint="What the scenario asserts about the agent's traffic was evaluated before them. `settle: 2000` in the scenario waits "
        "until the traffic has been quiet for 2 s after each answer.",
    )
