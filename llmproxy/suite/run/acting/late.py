"""Calls of the agent after the end of its scenario: nothing that was asserted knows of them, so nothing passes beside them.

A call that comes after an answer belongs to the step of that answer, as long as the scenario goes on (`run.one` looks again). What comes
after its end (while the agent is closed, while rows are taken back) belongs to no step. It is named; where anything was asserted about
the agent's traffic, the run is an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmproxy.protocol import AGENT
from llmproxy.scenario.running.late import LateCallsError, name_late_calls

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llmproxy.client.control.client import Call
    from llmproxy.suite.run.acting.stage import Stage

__all__ = ["find_late_calls", "refuse_late_calls", "watches_wire"]


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


def find_late_calls(stage: Stage, further: Sequence[Call], strays: int, named: Sequence[Call] = ()) -> list[str]:
    """Name the agent's calls that nobody has looked at yet (`further`): tools where its answer asks for some, else the request.

    Calls of this process that were made while no agent had its turn (`strays` of them, `named` as far as the proxy tells them) are its as
    well, as far as anybody knows.
    """
    calls = [call for call in further if call.party == AGENT]
    stage.wire.read(calls)
    return name_late_calls(calls, stage.wire, strays, named)


def refuse_late_calls(said: list[str]) -> LateCallsError:
    """Return the error for calls that came too late."""
    return LateCallsError(
        f"{'; '.join(said)}.",
        hint="What the scenario asserts about the agent's traffic was evaluated before them. `settle: 2000` in the scenario waits "
        "until the traffic has been quiet for 2 s after each answer.",
    )
