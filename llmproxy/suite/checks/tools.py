"""What a step says about the agent's tools, checked against the traffic: assertions, every one of them evaluated.

Two rules stand above the rest. What the wire did not show is an ENVIRONMENT_ERROR, whatever was expected of it, ``deleteTask: 0``
included. And a message says what was expected, what was seen, and where, so that it can be understood without the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from llmproxy.report.events import Assertion, Status
from llmproxy.suite.matchers.table import ABSENT, check, check_input, plain, show

if TYPE_CHECKING:
    from llmproxy.suite.matchers.variables import Scope
    from llmproxy.suite.schema.response import ToolExpect
    from llmproxy.trace.observing.tools import ToolUse
    from llmproxy.trace.observing.wire import Observed

__all__ = ["check_tools", "check_total", "passed", "unseen"]

_SHOWN = 6
"""Calls that a message lists."""


def passed(assertions: Iterable[Assertion]) -> bool:
    """Tell whether all of them hold."""
    return all(each.status is Status.PASSED for each in assertions)


def unseen(names: Iterable[str], reason: str) -> list[Assertion]:
    """Return the error of every assertion about traffic that was not seen."""
    return [Assertion(name=name, status=Status.ENVIRONMENT_ERROR, message=reason) for name in names]


# -- tools -----------------------------------------------------------------------------------------------------------------


def check_tools(
    tools: Mapping[str, ToolExpect], step: Observed, scope: Scope, *, only: bool = False, hosted: bool = False
) -> list[Assertion]:
    """Check the calls of each tool; `only`: others must not be called; `hosted`: ``*`` means the provider's tools as well."""
    made: list[Assertion] = []
    for name, wanted in tools.items():
        if step.unread:
            made.append(_unread(f"tools.{name}", step))
        else:
            made += _Calls(name, wanted, _chosen(name, tools, step, hosted=hosted), step, scope).check()
    if only:
        others = [
            use for use in step.tools if use.name not in tools and "*" not in tools and (hosted or not use.hosted)
        ]
        message = (
            f"only {', '.join(tools) or 'no tools'} should be called; called as well: {_listed(others)}"
            if others
            else ""
        )
        status = Status.FAILED if others else Status.PASSED
        told = Assertion(name="onlyTools", status=status, expected=sorted(tools), message=message, where=_where(others))
        made.append(_unread("onlyTools", step) if step.unread else told)
    return made


def _chosen(name: str, tools: Mapping[str, ToolExpect], step: Observed, *, hosted: bool) -> list[ToolUse]:
    if name != "*":
        return [use for use in step.tools if use.name == name]
    return [use for use in step.tools if use.name not in tools and (hosted or not use.hosted)]


def _unread(name: str, step: Observed) -> Assertion:
    first, more = step.unread[0], len(step.unread) - 1
    others = f" (and {more} more)" if more else ""
    told = f"the answer of {first.where} {first.unread}{others}, so what was called is not known"
    return Assertion(name=name, status=Status.ENVIRONMENT_ERROR, message=told, where=first.where)


class _Calls:
    """The calls of one tool, and what is expected of them."""

    def __init__(self, name: str, wanted: ToolExpect, calls: Sequence[ToolUse], step: Observed, scope: Scope) -> None:
        self.name, self.wanted, self.step, self.scope = name, wanted, step, scope
        self.all = list(calls)
        self.calls = [use for use in calls if _counts(use, wanted.status)]

    def check(self) -> list[Assertion]:
        """Check everything."""
        wanted, made = self.wanted, list[Assertion]()
        none = wanted.input is not None and _is_zero(wanted.count, self.scope)
        if wanted.count is not None and not none:
            alone = wanted.given <= {"count"}
            made += self._count("" if alone else ".count")
        elif wanted.count is None and not self.calls:
            made.append(self._never())
        if wanted.input is not None:
            made.append(self._input(wanted.input, none=none))
        if wanted.every is not None and self.calls:
            made += [each for use in self.calls for each in self._of(use, "every", wanted.every)]
        elif wanted.every is not None and wanted.count is not None:
            made.append(replace(self._never(), name=f"tools.{self.name}.every"))
        if wanted.output is not None and (self.calls or wanted.count is not None):
            made.append(self._some("output", [(use, use.output) for use in self.calls], wanted.output))
        if wanted.error is not None and (self.calls or wanted.count is not None):
            made.append(self._error(wanted.error))
        return made

    def _count(self, suffix: str) -> list[Assertion]:
        found = check(
            f"tools.{self.name}{suffix}", len(self.calls), self.wanted.count, self.scope, where=_where(self.calls)
        )
        return [
            each if each.status is Status.PASSED else replace(each, message=self._told(each.message)) for each in found
        ]

    def _told(self, message: str) -> str:
        """Say how often, and what was called instead."""
        times = {0: "never", 1: "once"}.get(len(self.calls), f"{len(self.calls)} times")
        verb = {"requested": "called", "executed": "executed", "errored": "answered with an error"}[self.wanted.status]
        told = f"{self.name} was {verb} {times}: {message}"
        if self.calls:
            return f"{told}; the calls: {_listed(self.calls)}"
        if len(self.all) > len(self.calls):
            return f"{told}; it was asked for {len(self.all)} times, but not {self.wanted.status}"
        return f"{told}; {self._others()}"

    def _others(self) -> str:
        return (
            f"tools called in this step: {_listed(self.step.tools)}"
            if self.step.tools
            else "no tool was called in this step"
        )

    def _never(self) -> Assertion:
        message = f"{self.name} was never called; {self._others()}"
        return Assertion(
            name=f"tools.{self.name}", status=Status.FAILED, expected="at least one call", actual=0, message=message
        )

    def _input(self, wanted: Mapping[str, object], *, none: bool) -> Assertion:
        """Look for a call with this input; `none`: there must be none."""
        name = f"tools.{self.name}.input"
        expected = plain(dict(wanted))
        judged = [(use, self._of(use, "input", wanted)) for use in self.calls]
        fitting = [use for use, found in judged if passed(found)]
        unclear = [each for _, found in judged for each in found if each.status is Status.ENVIRONMENT_ERROR]
        if fitting and none:
            message = f"no call of {self.name} should have this input, and {len(fitting)} has it: {_listed(fitting)}"
            return Assertion(name=name, status=Status.FAILED, expected=expected, message=message, where=_where(fitting))
        if fitting or (none and not unclear):
            return Assertion(name=name, status=Status.PASSED, expected=expected, where=_where(fitting))
        if unclear:
            return replace(unclear[0], name=name)
        if not judged:
            return Assertion(name=name, status=Status.FAILED, expected=expected, message=self._never().message)
        use, found = max(judged, key=lambda each: sum(one.status is Status.PASSED for one in each[1]))
        wrong = "; ".join(f"{each.name.removeprefix(f'{name}.')}: {each.message}" for each in found if each.message)
        count = (
            f"the call of {self.name} does not have"
            if len(judged) == 1
            else f"none of {len(judged)} calls of {self.name} has"
        )
        message = f"{count} this input: {wrong}. {'It' if len(judged) == 1 else 'The nearest'} was {_shown(use)}"
        return Assertion(
            name=name,
            status=Status.FAILED,
            expected=expected,
            actual=plain(use.arguments),
            message=message,
            where=use.where,
        )

    def _of(self, use: ToolUse, key: str, wanted: Mapping[str, object]) -> list[Assertion]:
        name = f"tools.{self.name}.{key}"
        if not use.parsed:
            message = f"the arguments of the call are not JSON: {show(use.raw, 300)}"
            return [
                Assertion(
                    name=name,
                    status=Status.FAILED,
                    expected=plain(dict(wanted)),
                    actual=use.raw,
                    message=message,
                    where=use.where,
                )
            ]
        return check_input(name, use.arguments, wanted, self.scope, where=use.where)

    def _some(self, key: str, values: Sequence[tuple[ToolUse, str | None]], wanted: object) -> Assertion:
        """Look for a call of which a value is as wanted."""
        name = f"tools.{self.name}.{key}"
        judged = [
            (use, check(name, ABSENT if value is None else value, wanted, self.scope, where=use.where))
            for use, value in values
        ]
        for use, found in judged:
            if passed(found):
                return Assertion(name=name, status=Status.PASSED, expected=plain(wanted), where=use.where)
        if not judged:
            return replace(self._never(), name=name)
        use, found = judged[-1]
        wrong = next((each for each in found if each.status is Status.ENVIRONMENT_ERROR), None) or next(
            each for each in found if each.status is not Status.PASSED
        )
        missing = "; no result of it was seen in a later request" if use.output is None else ""
        return replace(wrong, name=name, message=f"{self.name}: {wrong.message}{missing}")

    def _error(self, wanted: object) -> Assertion:
        name = f"tools.{self.name}.error"
        failed = [use for use in self.calls if use.errored]
        if not isinstance(wanted, bool):
            if failed:
                return self._some("error", [(use, use.output) for use in failed], wanted)
            message = f"no call of {self.name} answered with an error; the results: {_results(self.calls)}"
            return Assertion(
                name=name, status=Status.FAILED, expected=plain(wanted), message=message, where=_where(self.calls)
            )
        right = bool(failed) is wanted
        what = f"no call of {self.name} answered with an error" if wanted else f"{self.name} answered with an error"
        shown = _results(self.calls if wanted else failed)
        return Assertion(
            name=name,
            status=Status.PASSED if right else Status.FAILED,
            expected=wanted,
            actual=bool(failed),
            message="" if right else f"{what}: {shown}",
            where=_where(failed),
        )


def _counts(use: ToolUse, status: str) -> bool:
    return use.executed if status == "executed" else use.errored if status == "errored" else True


def _is_zero(count: object, scope: Scope) -> bool:
    value = count.get("eq") if isinstance(count, Mapping) and count.keys() == {"eq"} else count
    return not isinstance(value, bool) and scope.resolve(value) == 0 if value is not None else False


def _shown(use: ToolUse) -> str:
    given = use.arguments
    if use.parsed and isinstance(given, dict):
        return f"{use.name}({', '.join(f'{name}={show(value, 60)}' for name, value in given.items())})"
    return f"{use.name}({show(use.raw, 120)})"


def _listed(uses: Sequence[ToolUse]) -> str:
    more = f" and {len(uses) - _SHOWN} more" if len(uses) > _SHOWN else ""
    return ", ".join(map(_shown, uses[:_SHOWN])) + more


def _results(uses: Sequence[ToolUse]) -> str:
    return ", ".join("no result" if use.output is None else show(use.output, 120) for use in uses[:_SHOWN]) or "none"


def _where(uses: Sequence[ToolUse]) -> str:
    return uses[0].where if uses else ""


def check_total(wanted: object, step: Observed, scope: Scope, *, hosted: bool = False) -> list[Assertion]:
    """Check how many tools were called in all."""
    if step.unread:
        return [_unread("totalToolCalls", step)]
    uses = [use for use in step.tools if hosted or not use.hosted]
    found = check("totalToolCalls", len(uses), wanted, scope, where=_where(uses))
    seen = f"the calls: {_listed(uses)}" if uses else "no tool was called in this step"
    return [
        each if each.status is Status.PASSED else replace(each, message=f"{each.message}; {seen}") for each in found
    ]
