"""What a talking step says about the agent's traffic, evaluated on the calls between its beginning and now.

A step in which no request was seen makes every such assertion an error, ``deleteTask: 0`` too: an agent that goes past the proxy would
pass it. Only ``usage: {callCount: 0}`` says that none is expected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmproxy.report.events import Assertion
from llmproxy.suite.checks.agent_says import said_by, with_agent
from llmproxy.suite.checks.processing import check_processing
from llmproxy.suite.checks.tools import check_tools, check_total, unseen
from llmproxy.suite.checks.update import check_tools_snapshot
from llmproxy.suite.checks.usage import check_usage
from llmproxy.suite.matchers.core import Outcome
from llmproxy.suite.matchers.table import evaluate
from llmproxy.trace.observing.processing import processing

if TYPE_CHECKING:
    from llmproxy.suite.run.stage import Stage
    from llmproxy.suite.schema.steps import Talk

__all__ = ["NO_PROXY", "NO_TRAFFIC", "Window", "look"]

NO_TRAFFIC = (
    "the agent's traffic did not pass the proxy: no request to a model was seen in this step, so nothing can be said about it. "
    "Its base URL must name the proxy (`llmproxy doctor` tells which program goes past it)"
)
NO_PROXY = "there is no proxy, so the agent's traffic is not seen"


@dataclass(frozen=True, slots=True)
class Window:
    """The calls of a step."""

    after: int
    """Number of the last call before it."""
    continues: bool
    """Whether its conversation had begun before."""
    index: int = 0
    """Of the step."""


def look(stage: Stage, step: Talk, window: Window, strays: int = 0) -> tuple[list[Assertion], Sequence[int]]:
    """Evaluate what the step says about traffic; also which interactions belong to it.

    `strays` are calls of this process that arrived while nobody had its turn.
    """
    measured = stage.wire.step(window.after)
    if not step.about_wire:
        return [], measured.interactions
    if stage.session is None or not (measured.exchanges or _expects_none(step, stage)):
        reason = NO_PROXY if stage.session is None else NO_TRAFFIC
        if strays:
            reason += (
                f"; {strays} calls arrived that belong to no run (they were made while the agent did not have its turn)"
            )
        return unseen(_names(step), reason), ()
    made: list[Assertion] = []
    if step.tools or step.only_tools:
        made += check_tools(step.tools or {}, measured, stage.scope, only=step.only_tools, hosted=step.include_hosted)
    if step.total_tool_calls is not None:
        made += check_total(step.total_tool_calls, measured, stage.scope, hosted=step.include_hosted)
    if step.tools_snapshot:
        made.append(check_tools_snapshot(stage, step, measured))
    if step.usage is not None:
        made += check_usage(step.usage, measured, stage.scope)
    if step.message_processing is not None:
        before = [each for each in stage.wire.seen if each.call.seq <= window.after]
        found = processing(measured, before, continues=window.continues)
        said = said_by(answer for index, answer in stage.declared if index == window.index)
        made += check_processing(step.message_processing, with_agent(found, said), stage.scope)
    return made, measured.interactions


def _names(step: Talk) -> list[str]:
    """Name every assertion about traffic."""
    names = [f"tools.{name}" for name in step.tools or ()]
    return names + [key for key in step.about_wire if key != "tools"]


def _expects_none(step: Talk, stage: Stage) -> bool:
    """Tell whether the step says that the agent asks no model: ``callCount`` holds for 0 and for nothing else."""
    if step.usage is None or step.usage.call_count is None:
        return False
    none, one = (evaluate(number, step.usage.call_count, stage.scope).outcome for number in (0, 1))
    return none is Outcome.HOLDS and one is not Outcome.HOLDS
