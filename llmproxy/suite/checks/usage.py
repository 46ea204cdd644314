"""What a step says about tokens, calls and cost, checked against what the providers reported.

What was not reported is an error, unless the part that is known decides: three calls of which one reported 40 cached tokens read more
than 0. In replay the numbers are those of the recording, and say so (``recorded``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from llmproxy.report.events import Assertion, Status
from llmproxy.suite.checks.tools import all_hold
from llmproxy.suite.matchers.table import check, check_number
from llmproxy.suite.matchers.values import Unknown
from llmproxy.trace.observing.estimate import estimate_usage

if TYPE_CHECKING:
    from llmproxy.suite.matchers.variables import VariableScope
    from llmproxy.suite.schema.expect import Usage
    from llmproxy.trace.observing.tokens import Tokens
    from llmproxy.trace.observing.wire import Observed


def check_usage(
    wanted: Usage, step: Observed, scope: VariableScope, name: str = "usage", where: str = ""
) -> list[Assertion]:
    """Check tokens, calls and cost; what is unknown is an error, unless the known part decides."""
    where = where or _span(step)
    made: list[Assertion] = []
    for key, matcher in wanted.numbers.items():
        made += _number(f"{name}.{key}", key, matcher, step, scope, estimate=wanted.estimate, where=where)
    for number, branch in enumerate(wanted.all_of or ()):
        made += check_usage(branch, step, scope, f"{name}.allOf[{number}]", where)
    if wanted.any_of:
        branches = [
            check_usage(branch, step, scope, f"{name}.anyOf[{n}]", where) for n, branch in enumerate(wanted.any_of)
        ]
        made.append(_any_of(f"{name}.anyOf", branches, where))
    return made


def _number(
    name: str, key: str, matcher: object, step: Observed, scope: VariableScope, *, estimate: bool, where: str
) -> list[Assertion]:
    tokens = step.usage[key]
    if tokens.complete:
        found = check_number(name, _plain(tokens.known), matcher, scope, where=where)
        return [replace(each, evidence="recorded") if step.replayed else each for each in found]
    if tokens.known is not None and isinstance(matcher, Mapping) and matcher.keys() <= {"gt", "gte"}:
        at_least = check_number(name, _plain(tokens.known), matcher, scope, where=where)
        if all_hold(at_least):
            return [replace(each, evidence="lower bound") for each in at_least]
    if estimate and (guess := estimate_usage(key, step)) is not None:
        return [replace(each, evidence="estimated") for each in check_number(name, guess, matcher, scope, where=where)]
    return check(name, Unknown(_explain_unknown(key, tokens, step)), matcher, scope, where=where)


def _explain_unknown(key: str, tokens: Tokens, step: Observed) -> str:
    if step.unrecorded:
        return f"{key} is not known: answers were passed through and not recorded"
    if key == "callCount":
        return (
            f"callCount is not known: an answer broke off, or could not be read (known so far: {_plain(tokens.known)})"
        )
    if key in {"latencyMs", "firstTokenMs"}:
        return f"{key} is not known: there is no recording of an answer with its times"
    what = "the price of the model is not known" if key == "costUsd" else f"{key} was not reported by the provider"
    part = "" if tokens.known is None else f" for every call (known so far: {_plain(tokens.known)})"
    streams = any(each.exchange is not None and each.exchange.interaction.stream for each in step.seen)
    hint = (
        "; a streamed chat completion reports usage only with stream_options: {include_usage: true}" if streams else ""
    )
    return f"{what}{part}{hint}"


def _any_of(name: str, branches: Sequence[Sequence[Assertion]], where: str) -> Assertion:
    for number, branch in enumerate(branches):
        if all_hold(branch):
            return Assertion(name=name, status=Status.PASSED, actual=f"branch {number}", where=where)
    told = "; or ".join(
        " and ".join(f"{each.name.rpartition('.')[2]}: {each.message}" for each in branch if each.message)
        for branch in branches
    )
    unclear = any(each.status is Status.ENVIRONMENT_ERROR for branch in branches for each in branch)
    status = Status.ENVIRONMENT_ERROR if unclear else Status.FAILED
    return Assertion(name=name, status=status, message=f"no branch holds: {told}", where=where)


def _plain(value: int | Decimal | None) -> Any:  # noqa: ANN401 - a number
    return float(value) if isinstance(value, Decimal) else value


def _span(step: Observed) -> str:
    ids = step.interactions
    return "" if not ids else f"interaction {ids[0]}" if len(ids) == 1 else f"interactions {ids[0]} to {ids[-1]}"
