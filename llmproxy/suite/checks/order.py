"""In which order tools were called: `toolOrder` of a step, `before` and `after` of a tool.

Calls of one answer are made at once: none of them is before another, because none could use what the other returned. So are those of
answers for which an agent asks at the same time, in several conversations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from llmproxy.report.events import Assertion, Status

if TYPE_CHECKING:
    from llmproxy.trace.observing.tools import ToolUse

_SHOWN = 12
"""Calls that a message lists."""


def in_order(names: Sequence[str], calls: Sequence[ToolUse]) -> Assertion:
    """Check that tools were called one after the other; others may be called in between."""
    made = Assertion(name="toolOrder", status=Status.PASSED, expected=list(names), actual=[call.name for call in calls])
    before: list[ToolUse] = []
    for place, name in enumerate(names):
        found = [
            call
            for call in calls
            if call.name == name and (not place or any(call.comes_after(each) for each in before))
        ]
        if not found:
            last = before[0] if before else None
            what = f"{name} was not called" + (f" after {names[place - 1]} ({last.where})" if last is not None else "")
            return replace(
                made, status=Status.FAILED, message=f"{what}; {_format_calls(calls)}", where=last.where if last else ""
            )
        before = found
    return made


def after(name: str, other: str, uses: Sequence[ToolUse], calls: Sequence[ToolUse]) -> Assertion:
    """Check that every call of a tool has a call of another one before it."""
    others = [call for call in calls if call.name == other]
    wrong = [use for use in uses if not any(use.comes_after(call) for call in others)]
    return _check_relation(f"tools.{name}.after", f"{name} was called before {other}", other, wrong, others, calls)


def before(name: str, other: str, uses: Sequence[ToolUse], calls: Sequence[ToolUse]) -> Assertion:
    """Check that no call of a tool comes with or after a call of another one, which is called as well."""
    others = [call for call in calls if call.name == other]
    wrong = [use for use in uses if any(not call.comes_after(use) for call in others)]
    return _check_relation(f"tools.{name}.before", f"{name} was not called before {other}", other, wrong, others, calls)


def _check_relation(
    name: str, what: str, other: str, wrong: Sequence[ToolUse], others: Sequence[ToolUse], calls: Sequence[ToolUse]
) -> Assertion:
    made = Assertion(name=name, status=Status.PASSED, expected=other, where=others[0].where if others else "")
    if not others:
        return replace(made, status=Status.FAILED, message=f"{other} was never called; {_format_calls(calls)}")
    if wrong:
        return replace(made, status=Status.FAILED, message=f"{what}; {_format_calls(calls)}", where=wrong[0].where)
    return made


def _format_calls(calls: Sequence[ToolUse]) -> str:
    """Return the calls in order; those that were at once stand together."""
    if not calls:
        return "no tool was called in this step"
    together: list[list[ToolUse]] = []
    for call in calls[:_SHOWN]:
        if together and not any(call.comes_after(each) for each in together[-1]):
            together[-1].append(call)
        else:
            together.append([call])
    more = f" and {len(calls) - _SHOWN} more" if len(calls) > _SHOWN else ""
    return "the calls: " + ", ".join(" with ".join(each.name for each in group) for group in together) + more
