"""What a step says about the agent's answer: its text, the JSON in it, the stored one."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from llmproxy.report.events import Assertion, Status
from llmproxy.suite.checks.update import check_response_snapshot
from llmproxy.suite.matchers.compare import strip_fence
from llmproxy.suite.matchers.table import check, check_input
from llmproxy.suite.matchers.values import show

if TYPE_CHECKING:
    from llmproxy.suite.checks.stage import CheckedStage
    from llmproxy.suite.matchers.variables import VariableScope
    from llmproxy.suite.schema.response import Response
    from llmproxy.suite.schema.steps import Talk


def check_response(stage: CheckedStage, step: Talk, answer: str) -> list[Assertion]:
    """Check everything that a step says about an answer, but for what a judge is to find."""
    wanted = step.response
    if wanted is None:
        return []
    made = check_text(wanted, answer, stage.scope)
    if wanted.snapshot:
        made.append(check_response_snapshot(stage, step, answer))
    return made


def check_text(wanted: Response, answer: str, scope: VariableScope) -> list[Assertion]:
    """Check the text of an answer; what does not hold shows it."""
    made: list[Assertion] = []
    if wanted.matcher:
        made += check("response", answer, wanted.matcher, scope)
    if wanted.json_ is not None:
        made += _json(wanted.json_, answer, scope)
    return [_add_answer(each, answer) for each in made]


def _json(wanted: dict[str, object], answer: str, scope: VariableScope) -> list[Assertion]:
    try:
        value = json.loads(strip_fence(answer))
    except (ValueError, RecursionError) as error:
        message = f"the answer is no JSON ({error})"
        return [
            Assertion(name="response.json", status=Status.FAILED, expected=dict(wanted), actual=answer, message=message)
        ]
    whole = check("response.json.$", value, wanted["$"], scope) if "$" in wanted else []
    return whole + check_input(
        "response.json", value, {path: each for path, each in wanted.items() if path != "$"}, scope
    )


def _add_answer(assertion: Assertion, answer: str) -> Assertion:
    if assertion.status is Status.PASSED or show(answer, 60)[:40] in assertion.message:
        return assertion
    return replace(assertion, message=f"{assertion.message}; the agent answered: {show(answer, 300)}")
