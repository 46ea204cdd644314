"""Calls of the agent after the end of its scenario: nothing that was asserted knows of them, so nothing passes beside them.

A call that comes after an answer belongs to the step of that answer, as long as the scenario goes on (`run.one` looks again). What comes
after its end (while the agent is closed, while rows are taken back) belongs to no step. It is named by the run engine; where anything was
asserted about the agent's traffic, the run is an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llmproxy.suite.run.acting.stage import Stage


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


LATE_HINT = (
    "What the scenario asserts about the agent's traffic was evaluated before them. `settle: 2000` in the scenario waits "
    "until the traffic has been quiet for 2 s after each answer."
)
