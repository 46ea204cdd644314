"""In which order tools were called: `toolOrder` of a step, `before` and `after` of a tool.

Calls of one answer are made at once: none of them is before another, because none could use what the other returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from llmproxy.report.events import Assertion, Status

if TYPE_CHECKING:
    from llmproxy.trace.observing.tools import ToolUse

__all__ = ["after", "before", "in_order"]

_SHOWN = 12
"""Calls that a message lists."""


def in_order(names: Sequence[str], calls: Sequence[ToolUse]) -> Assertion:
    """Check that tools were called one after the other; others may be called in between."""
    made = Assertion(name="toolOrder", status=Status.PASSED, expected=list(names), actual=[call.name for call in calls])
    last: ToolUse | None = None
    for place, name in enumerate(names):
        found = next((call for call in calls if call.name == name and (last is None or call.seq > last.seq)), None)
        if found is None:
            what = f"{name} was not called" + (f" after {names[place - 1]} ({last.where})" if last is not None else "")
            return replace(
                made, status=Status.FAILED, message=f"{what}; {_listed(calls)}", where=last.where if last else ""
            )
        last = found
    return made


def after(name: str, other: str, uses: Sequence[ToolUse], calls: Sequence[ToolUse]) -> Assertion:
    """Check that every call of a tool has a call of another one before it."""
    others = [call for call in calls if call.name == other]
    wrong = [use for use in uses if not any(call.seq < use.seq for call in others)]
    return _related(f"tools.{name}.after", f"{name} was called before {other}", other, wrong, others, calls)


def before(name: str, other: str, uses: Sequence[ToolUse], calls: Sequence[ToolUse]) -> Assertion:
    """Check that no call of a tool comes with or after a call of another one, which is called as well."""
    others = [call for call in calls if call.name == other]
    wrong = [use for use in uses if any(call.seq <= use.seq for call in others)]
    return _related(f"tools.{name}.before", f"{name} was not called before {other}", other, wrong, others, calls)


def _related(
    name: str, what: str, other: str, wrong: Sequence[ToolUse], others: Sequence[ToolUse], calls: Sequence[ToolUse]
) -> Assertion:
    made = Assertion(name=name, status=Status.PASSED, expected=other, where=others[0].where if others else "")
    if not others:
        return replace(made, status=Status.FAILED, message=f"{other} was never called; {_listed(calls)}")
    if wrong:
        return replace(made, status=Status.FAILED, message=f"{what}; {_listed(calls)}", where=wrong[0].where)
    return made


def _listed(calls: Sequence[ToolUse]) -> str:
    """Return the calls in order; those of one answer stand together."""
    if not calls:
        return "no tool was called in this step"
    answers: dict[int, list[str]] = {}
    for call in calls[:_SHOWN]:
        answers.setdefault(call.seq, []).append(call.name)
    more = f" and {len(calls) - _SHOWN} more" if len(calls) > _SHOWN else ""
    return "the calls: " + ", ".join(" with ".join(names) for names in answers.values()) + more
