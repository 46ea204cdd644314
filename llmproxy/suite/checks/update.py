"""Expectations that are snapshots: what an answer was, which tools were called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llmproxy.report.events import Assertion, Status
from llmproxy.suite.matchers.values import show

if TYPE_CHECKING:
    from llmproxy.suite.checks.stage import CheckedStage
    from llmproxy.suite.schema.steps import StepBase, Talk
    from llmproxy.trace.observing.wire import Observed


def check_response_snapshot(stage: CheckedStage, step: Talk, answer: str) -> Assertion:
    """Compare an answer with the stored one, white space at the ends of lines aside."""
    seen = "\n".join(line.rstrip() for line in answer.strip().splitlines())
    return _compare(stage, step, "response", "response.snapshot", seen)


def check_tools_snapshot(stage: CheckedStage, step: Talk, measured: Observed) -> Assertion:
    """Compare the tool calls of a step with the stored ones, in order: their names, or their arguments too."""
    if measured.unread:
        first = measured.unread[0]
        message = f"the answer of {first.where} {first.unread}, so the calls are not known"
        return Assertion(name="toolsSnapshot", status=Status.ENVIRONMENT_ERROR, message=message)
    uses = [use for use in measured.tools if step.include_hosted or not use.hosted]
    names_only = step.tools_snapshot == "names"
    seen: list[Any] = [use.name if names_only else {"name": use.name, "arguments": use.arguments} for use in uses]
    return _compare(stage, step, "tools", "toolsSnapshot", seen)


def _compare(stage: CheckedStage, step: StepBase, what: str, name: str, seen: object) -> Assertion:
    snapshots, scenario = stage.snapshots, stage.case.id
    key = step.label or str(stage.index + 1)
    known = snapshots.get(scenario, key, what)
    if snapshots.update:
        snapshots.put(scenario, key, what, seen)
        return Assertion(name=name, status=Status.PASSED, expected=seen, actual=seen, where=snapshots.path.name)
    if known is None:
        message = (
            f"no snapshot is stored; `{stage.options.command} --update` stores what is seen now: {show(seen, 200)}"
        )
        return Assertion(
            name=name, status=Status.ENVIRONMENT_ERROR, actual=seen, message=message, where=snapshots.path.name
        )
    if known == seen:
        return Assertion(name=name, status=Status.PASSED, expected=known, actual=seen, where=snapshots.path.name)
    message = f"it differs from the snapshot: expected {show(known, 300)}, saw {show(seen, 300)}; --update accepts it"
    return Assertion(
        name=name, status=Status.FAILED, expected=known, actual=seen, message=message, where=snapshots.path.name
    )
