"""What a talking step says about the agent's traffic, evaluated on the calls between its beginning and now.

A step in which no answer of a model was seen makes every such assertion an error, ``deleteTask: 0`` too: an agent that goes past the
proxy would pass it. Only ``usage: {callCount: 0}`` says that none is expected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmproxy.report.events import Assertion, Status
from llmproxy.suite.checks.agent_says import said_by, with_agent
from llmproxy.suite.checks.near import check_names
from llmproxy.suite.checks.processing import check_processing
from llmproxy.suite.checks.tools import build_unseen, check_order, check_served, check_tools, check_total
from llmproxy.suite.checks.update import check_tools_snapshot
from llmproxy.suite.checks.usage import check_usage
from llmproxy.suite.matchers.core import MatchOutcome
from llmproxy.suite.matchers.table import evaluate
from llmproxy.trace.observing.histories.processing import processing

if TYPE_CHECKING:
    from llmproxy.suite.checks.stage import CheckedStage
    from llmproxy.suite.schema.expect import Usage
    from llmproxy.suite.schema.steps import Talk
    from llmproxy.trace.observing.seen import Seen
    from llmproxy.trace.observing.wire import Observed

_SHOWN = 4
"""Requests that a message lists."""
_WIDE = 200
"""Characters of what a provider said."""

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


def look(stage: CheckedStage, step: Talk, window: Window, strays: int = 0) -> tuple[list[Assertion], Observed]:
    """Evaluate what the step says about traffic; also what belongs to it.

    `strays` are calls of this process that arrived while nobody had its turn.
    """
    measured = stage.wire.step(window.after)
    if not step.about_wire:
        return [], measured
    if reason := why_unseen(stage, step.usage, measured):
        if strays:
            reason += (
                f"; {strays} calls arrived that belong to no run (they were made while the agent did not have its turn)"
            )
        return build_unseen(_names(step), reason), measured
    made: list[Assertion] = []
    if step.tools or step.only_tools:
        tools = check_tools(step.tools or {}, measured, stage.scope, only=step.only_tools, hosted=step.include_hosted)
        names = check_names(step.tools or {}, measured, stage.wire.seen) if not measured.unread else []
        # What is said of a name that was meant otherwise says nothing.
        wrong = tuple(each.name for each in names if each.status is Status.ENVIRONMENT_ERROR)
        made += [each for each in tools if not _is_below(each.name, wrong)] + names
    if step.tool_order is not None:
        made.append(check_order(step.tool_order, measured))
    if step.server_tools or step.servers_as_asked:
        served = stage.wire.read_served(window.after)
        wanted = step.server_tools or {}
        made += check_served(wanted, measured, served, stage.scope, as_asked=step.servers_as_asked is True)
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
    return made, measured


def find_uncounted(step: Talk, measured: Observed) -> list[str]:
    """Return the tools that the provider ran, where something is said about all tools, and those are left out of it."""
    about_all = step.total_tool_calls is not None or step.only_tools or "*" in (step.tools or {})
    if not about_all or step.include_hosted:
        return []
    named = {} if step.total_tool_calls is not None else step.tools or {}
    return sorted({use.name for use in measured.tools if use.hosted and use.name not in named})


def _is_below(name: str, wrong: Sequence[str]) -> bool:
    return any(name == each or name.startswith(f"{each}.") for each in wrong)


def _names(step: Talk) -> list[str]:
    names = [f"tools.{name}" for name in step.tools or ()]
    names += [f"serverTools.{name}" for name in step.server_tools or ()]
    return names + [key for key in step.about_wire if key not in ("tools", "serverTools")]


def why_unseen(stage: CheckedStage, usage: Usage | None, measured: Observed) -> str:
    """Say why nothing can be said about the agent's traffic; empty where something can.

    It takes one answer of a model that was read whole. Traffic that nobody can read (embeddings, a path that nobody knows, a gateway's
    page, an answer that failed) shows no more than that there is traffic.
    """
    if stage.session is None:
        return NO_PROXY
    if measured.readable or (_expects_none(usage, stage) and not measured.unread):
        return ""
    if not measured.exchanges:
        return NO_TRAFFIC
    seen = ", ".join(map(_describe_call, measured.seen[:_SHOWN]))
    more = f" and {measured.exchanges - _SHOWN} more" if measured.exchanges > _SHOWN else ""
    return f"no answer of a model that could be read was seen in this step, so nothing can be said about it; seen were {seen}{more}"


def _describe_call(seen: Seen) -> str:
    status = f"HTTP {seen.call.status}" if seen.call.status else "no answer"
    wrong = "" if seen.exchange is None else (seen.exchange.error or "")[:_WIDE].removeprefix(status).lstrip(": ")
    why = seen.unread or ("no question to a model" if not seen.chat else wrong)
    return f"{seen.where} ({seen.call.operation}, {status}{f', {why}' if why else ''})"


def _expects_none(usage: Usage | None, stage: CheckedStage) -> bool:
    """Tell whether a step says that the agent asks no model: ``callCount`` holds for 0 and for nothing else."""
    if usage is None or usage.call_count is None:
        return False
    none, one = (evaluate(number, usage.call_count, stage.scope).outcome for number in (0, 1))
    return none is MatchOutcome.HOLDS and one is not MatchOutcome.HOLDS
