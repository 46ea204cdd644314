"""Assertions about the agent's tools, all evaluated on the observed traffic, and detection of misspelt names.

Traffic that was not observed makes every assertion an ENVIRONMENT_ERROR, ``deleteTask: 0`` included. A misspelt name of
a tool or an argument would pass as not called: names are near if they are equal without case, ``_``, ``-`` and ``.``,
without a server's prefix, or differ in one letter. Any other unknown name passes at 0, with a remark.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from llmproxy.amount_formatting import name_some
from llmproxy.report.events import Assertion, Status
from llmproxy.suite.matchers.apply import (
    all_assertions_hold,
    assertion,
    check_number_against_matcher,
    check_value,
    check_values_at_paths,
    evaluate_matcher_on_value,
    make_error_assertion,
    worst_status,
)
from llmproxy.suite.matchers.registry import MatcherOutcomeKind, get_value_at_dotted_path, quote, to_json
from llmproxy.suite.matchers.variable_references import CaseVariables, StepError
from llmproxy.suite.schema.assertions import ToolExpect
from llmproxy.trace.observing.agent_activity import AgentActivity
from llmproxy.trace.observing.tool_calls import (
    SeenModelCall,
    ToolCallsAtMcpServers,
    ToolUse,
    diff_asked_and_served_tool_calls,
)
from llmproxy.trace.reading.decoded_exchange import list_declared_argument_names

_PREFIX = re.compile(r"__|[./:]")
"""Separator of a server and its tool: ``mcp__github__search``, ``github.search``, ``github/search``."""
_IGNORED = re.compile(r"[_\-.\s]")
_LONG = 6
"""Least letters of a server's name for which one edit is a misspelling, not another server."""
_NAME = re.compile(r"[^.\[\]$]+")
"""A name, or an index, in the path of an argument."""
_DEEPEST = 8
"""Maximum depth of compared arguments."""
_LISTED = 12  # calls in the order of calls
_SHOWN = 6  # calls listed in a message
type Tools = Mapping[str, ToolExpect]
_SERVED, _AS_ASKED = "serverTools", "serversAsAsked"


def check_tool_names_and_offers(tools: Tools, step: AgentActivity, run: Sequence[SeenModelCall]) -> list[Assertion]:
    """Return errors for names that are probably misspelt, and results of `offered`; `run` is all so far."""
    before = _collect_offered_tools(run)
    now, called = _collect_offered_tools(step.seen), {use.name for use in step.tools}
    arguments: dict[str, _Names] = {}
    for each in run:
        arguments |= {} if each.exchange is None else list_declared_argument_names(each.exchange.tree)
    made: list[Assertion] = []
    for name, wanted in tools.items():
        if name == "*":
            continue
        known = before | called
        if name not in known and (meant := find_near_name(name, known, spelling_only=wanted.offered is False)):
            message = f"no tool is called {name!r}: {_describe_tools(known)}; did you mean {meant!r}?"
            made.append(make_error_assertion(f"tools.{name}", message))
            continue
        if wanted.offered is not None:
            made.append(_check_offered_assertion(name, now, called, offered=wanted.offered))
        made += _check_expected_argument_names(name, wanted, arguments.get(name, {}), step)
    return made


def find_expected_tools_never_offered(tools: Tools, step: AgentActivity, run: Sequence[SeenModelCall]) -> list[str]:
    """Return the step's tools that were never offered or called: not calling them proves little."""
    known = _collect_offered_tools(run) | {use.name for use in step.tools}
    return [name for name, wanted in tools.items() if name != "*" and name not in known and wanted.offered is None]


def find_near_name(name: str, known: Iterable[str], *, spelling_only: bool = False) -> str:
    """Return the known name nearest to one, spelling variants first; empty if there is none."""
    names = sorted(known)
    alike = next((each for each in names if _is_same_spelling(name, each)), "")
    return alike or ("" if spelling_only else next((each for each in names if is_near_name(name, each)), ""))


def is_near_name(one: str, other: str) -> bool:
    """Return whether two names differ in spelling, or in one edit; servers' names must also be long enough."""
    if _is_same_spelling(one, other):
        return True
    (server, tool), (other_server, other_tool) = _split_prefix(one), _split_prefix(other)
    if not (server and other_server) or server == other_server:
        return _is_one_edit(tool, other_tool)
    return tool == other_tool and len(server) >= _LONG and _is_one_edit(server, other_server)


def _is_same_spelling(one: str, other: str) -> bool:
    """Return whether two names differ only in spelling style and in a prefix of one of them."""
    return _fold_name(one) in _strip_possible_prefixes(other) or _fold_name(other) in _strip_possible_prefixes(one)


def _split_prefix(name: str) -> tuple[str, str]:
    ends = [found.span() for found in _PREFIX.finditer(name)]
    return (_fold_name(name[: ends[-1][0]]), _fold_name(name[ends[-1][1] :])) if ends else ("", _fold_name(name))


def _fold_name(name: str) -> str:
    return _IGNORED.sub("", unicodedata.normalize("NFKC", name)).casefold()


def _strip_possible_prefixes(name: str) -> set[str]:
    return {_fold_name(name), *(_fold_name(name[found.end() :]) for found in _PREFIX.finditer(name))} - {""}


def _is_one_edit(one: str, other: str) -> bool:
    """Return whether two texts differ in one inserted, deleted or changed letter, or one swap."""
    short, long = sorted((one, other), key=len)
    if len(long) - len(short) > 1 or not short:
        return False
    at = next((n for n, (a, b) in enumerate(zip(short, long, strict=False)) if a != b), len(short))
    if len(short) < len(long):
        return short[at:] == long[at + 1 :]
    swapped = short[:at] + short[at + 1 : at + 2] + short[at : at + 1] + short[at + 2 :]
    return short[at + 1 :] == long[at + 1 :] or swapped == long


def _collect_offered_tools(seen: Iterable[SeenModelCall]) -> set[str]:
    return {name for each in seen if each.exchange is not None for name in each.exchange.tools}


def _describe_tools(known: Iterable[str]) -> str:
    names = sorted(known)
    return f"there are {', '.join(names[:10])}{' ...' if len(names) > 10 else ''}"


def _check_offered_assertion(name: str, now: set[str], called: set[str], *, offered: bool) -> Assertion:
    right = (name in now) is offered and (offered or name not in called)
    what = "was offered" if name in now else "was not offered" + (", and called all the same" if name in called else "")
    message = f"{name} {what} to a model in this step; {_describe_tools(now) if now else 'no tool was'}"
    return assertion(f"tools.{name}.offered", message, holds=right, expected=offered, actual=name in now)


def _check_expected_argument_names(
    name: str, wanted: ToolExpect, schema: _Names, step: AgentActivity
) -> list[Assertion]:
    known: dict[tuple[str, ...], frozenset[str]] = dict(schema)
    uses = [use for use in step.tools if use.name == name]
    for use in uses:
        _add_argument_names(known, use.arguments)
    made: list[Assertion] = []
    for key, paths in (("input", wanted.input), ("every", wanted.every if isinstance(wanted.every, Mapping) else None)):
        for path in paths or ():
            if (unknown := _find_unknown_argument(path, known)) is None:
                continue
            *place, last = unknown
            said, there = ".".join(unknown), sorted(schema.get(tuple(place), ()))
            if meant := find_near_name(last, known.get(tuple(place), ())):
                told = f"{name} has no argument {said!r}; did you mean {'.'.join((*place, meant))!r}?"
                made.append(make_error_assertion(f"tools.{name}.{key}", told))
            elif there and key == "input" and uses and wanted.count in (0, {"eq": 0}):
                others = ", ".join(".".join((*place, each)) for each in there)
                told = f"{name} has no argument {said!r}; it has {others}, so no call could have this input"
                made.append(make_error_assertion(f"tools.{name}.{key}", told))
    return made


type _Names = Mapping[tuple[str, ...], frozenset[str]]
"""Names of arguments, by where they stand; () is the top."""


def _add_argument_names(
    known: dict[tuple[str, ...], frozenset[str]], value: object, place: tuple[str, ...] = ()
) -> None:
    """Add a call's argument names; an object with arbitrary names may have others in the next call."""
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, Mapping) and len(place) < _DEEPEST:
            known[place] = known.get(place, frozenset()) | frozenset(map(str, item))
            for name, inner in item.items():
                _add_argument_names(known, inner, (*place, str(name)))


def _find_unknown_argument(path: str, known: _Names) -> tuple[str, ...] | None:
    """Return the beginning of a path up to the first name that is not known; None where all are."""
    place: tuple[str, ...] = ()
    for name in _NAME.findall(path) if path not in known.get((), ()) else ():
        if name.isdecimal():
            continue
        if name not in known.get(place, ()):
            return (*place, name)
        place = (*place, name)
    return None


def check_tool_sequence(names: Sequence[str], step: AgentActivity) -> Assertion:
    calls = step.tools
    made = Assertion(name="toolOrder", status=Status.PASSED, expected=list(names), actual=[call.name for call in calls])
    before: list[ToolUse] = []
    for place, name in enumerate(names):
        found = [
            call
            for call in calls
            if call.name == name and (not place or any(call.was_requested_after(each) for each in before))
        ]
        if not found:
            last = before[0] if before else None
            what = f"{name} was not called" + (f" after {names[place - 1]} ({last.label})" if last is not None else "")
            message = f"{what}; {_format_call_order(calls)}"
            return replace(made, status=Status.FAILED, message=message, where=last.label if last else "")
        before = found
    return made


def _check_order(key: str, name: str, other: str, uses: Sequence[ToolUse], calls: Sequence[ToolUse]) -> Assertion:
    """Check that each call has an earlier one of `other` (`after`), or that all precede its first (`before`)."""
    others = [call for call in calls if call.name == other]
    if key == "after":
        wrong = [use for use in uses if not any(use.was_requested_after(call) for call in others)]
        what = f"{name} was called before {other}"
    else:
        wrong = [use for use in uses if any(not call.was_requested_after(use) for call in others)]
        what = f"{name} was not called before {other}"
    if not others:
        wrong, what = [], f"{other} was never called"
    message = f"{what}; {_format_call_order(calls)}"
    holds, where = bool(others) and not wrong, _first_call_label(wrong or others)
    return assertion(f"tools.{name}.{key}", message, holds=holds, expected=other, where=where)


def _format_call_order(calls: Sequence[ToolUse]) -> str:
    if not calls:
        return "no tool was called in this step"
    together: list[list[ToolUse]] = []
    for call in calls[:_LISTED]:
        if together and not any(call.was_requested_after(each) for each in together[-1]):
            together[-1].append(call)
        else:
            together.append([call])
    more = f" and {len(calls) - _LISTED} more" if len(calls) > _LISTED else ""
    return "the calls: " + ", ".join(" with ".join(each.name for each in group) for group in together) + more


def explain_unreadable_answers(step: AgentActivity) -> str:
    first, more = step.unreadable[0], len(step.unreadable) - 1
    others = f" (and {more} more)" if more else ""
    return f"the answer of {first.label} {first.unread_reason}{others}, so what was called is not known"


def check_expected_tool_calls(
    tools: Tools, step: AgentActivity, scope: CaseVariables, *, only: bool = False, hosted: bool = False
) -> list[Assertion]:
    """Check the calls of each tool; `only`: no others; `hosted`: ``*`` includes the provider's tools."""
    made: list[Assertion] = []
    for name, wanted in tools.items():
        made += _CallCheck(name, wanted, _select_uses(name, tools, step, hosted=hosted), step, scope).check_all()
    if only:
        others = [] if "*" in tools else _select_uses("*", tools, step, hosted=hosted)
        message = f"only {', '.join(tools) or 'no tools'} should be called; called as well: {_format_uses(others)}"
        where = _first_call_label(others)
        made.append(assertion("onlyTools", message, holds=not others, expected=sorted(tools), where=where))
    return made


def check_mcp_server_calls(
    tools: Tools, asked: AgentActivity, served: ToolCallsAtMcpServers, scope: CaseVariables, *, as_asked: bool = False
) -> list[Assertion]:
    """Check the calls that MCP servers received in a step; `as_asked`: they equal the models' calls."""
    keys = [*(f"{_SERVED}.{name}" for name in tools), *([_AS_ASKED] if as_asked else [])]
    if served.unknown_reason:
        return [make_error_assertion(key, served.unknown_reason) for key in keys]
    step, made = AgentActivity(tools=served.tools), list[Assertion]()
    for name, wanted in tools.items():
        if name != "*" and name not in served.names:
            if meant := find_near_name(name, served.names):
                there = ", ".join(sorted(served.names))
                message = f"no server has a tool {name!r}: there is {there}; did you mean {meant!r}?"
                made.append(make_error_assertion(f"{_SERVED}.{name}", message))
                continue
            if not served.listed:
                why = f"no server listed its tools, so whether one has {name} is not known"
                made.append(make_error_assertion(f"{_SERVED}.{name}", why))
                continue
        if wanted.offered is not None:
            made.append(_check_listed_by_server(name, served, offered=wanted.offered))
        calls = _select_uses(name, tools, step, hosted=True)
        found = _CallCheck(name, wanted, calls, step, scope, "its server's answer did not come whole").check_all()
        made += [replace(each, name=_SERVED + each.name.removeprefix("tools")) for each in found]
    if as_asked and asked.unreadable:
        made.append(make_error_assertion(_AS_ASKED, explain_unreadable_answers(asked), where=asked.unreadable[0].label))
    elif as_asked:
        differences = diff_asked_and_served_tool_calls(asked.tools, served)
        message = "; ".join(differences[:_SHOWN])
        made.append(assertion(_AS_ASKED, message, holds=not differences, where=_first_call_label(served.tools)))
    return made


def _check_listed_by_server(name: str, served: ToolCallsAtMcpServers, *, offered: bool) -> Assertion:
    key, there = f"{_SERVED}.{name}.offered", name in served.listed
    if not served.listed:
        return make_error_assertion(key, "no server listed its tools in this run")
    message = f"the servers listed {', '.join(sorted(served.listed))}"
    return assertion(key, message, holds=there is offered, expected=offered, actual=there)


def _select_uses(name: str, tools: Tools, step: AgentActivity, *, hosted: bool) -> list[ToolUse]:
    if name != "*":
        return [use for use in step.tools if use.name == name]
    return [use for use in step.tools if use.name not in tools and (hosted or use.is_run_by_agent)]


@dataclass
class _CallCheck:
    name: str
    wanted: ToolExpect
    all: list[ToolUse]
    step: AgentActivity
    scope: CaseVariables
    no_result: str = "no result of it was seen in a later request"

    def __post_init__(self) -> None:
        self.one_is_enough = self.wanted.every is False
        self.none = _requires_no_calls(self.wanted.count, self.scope)
        """Whether no call may match the rest."""
        self.with_status = [use for use in self.all if _has_call_reached_status(use, self.wanted.status) is True]
        self.unknown = [use for use in self.all if _has_call_reached_status(use, self.wanted.status) is None]
        self.calls = self.with_status if self.one_is_enough or self.none else self.all

    def check_all(self) -> list[Assertion]:
        """Check everything; if it is unknown which calls count, all possibilities must pass."""
        made = self._check_whole_expectation()
        if not (self.unknown and (self.one_is_enough or self.none)):
            return made
        known, self.calls = self.calls, [*self.calls, *self.unknown]
        otherwise, self.calls = self._check_whole_expectation(), known
        worst, other = (worst_status(each.status for each in found) for found in (made, otherwise))
        return made if worst is other else [self._build_unclear_no_result("", self.unknown)]

    def _check_whole_expectation(self) -> list[Assertion]:
        wanted, made = self.wanted, list[Assertion]()
        none = wanted.input is not None and self.none
        if wanted.count is not None and not none:
            made += self._check_count("" if wanted.given <= {"count"} else ".count")
        elif wanted.count is None and not self.all and wanted.given - {"status"} != {"offered"}:
            made.append(self._build_never_called())
        counted = self.one_is_enough and wanted.count is not None
        if wanted.status != "requested" and self.all and not self.none and not counted:
            made.append(self._check_status())
        if wanted.input is not None and wanted.every is True and self.calls and not none:
            made += [each for use in self.calls for each in self._check_call_arguments(use, "input", wanted.input)]
        elif wanted.input is not None:
            made.append(self._check_input(wanted.input, none=none))
        if isinstance(wanted.every, Mapping) and self.calls:
            made += [each for use in self.calls for each in self._check_call_arguments(use, "every", wanted.every)]
        elif isinstance(wanted.every, Mapping) and wanted.count is not None:
            made.append(replace(self._build_never_called(), name=f"tools.{self.name}.every"))
        if "output" in wanted.given and (self.calls or wanted.count is not None):
            made.append(self._combine_call_findings("output"))
        for key, other in (("before", wanted.before), ("after", wanted.after)):
            if other is not None and self.calls:
                made.append(_check_order(key, self.name, other, self.calls, self.step.tools))
            elif other is not None and wanted.count is not None and not self.none:
                made.append(replace(self._build_never_called(), name=f"tools.{self.name}.{key}"))
        if "error" in wanted.given and (self.calls or wanted.count is not None):
            made.append(self._combine_call_findings("error"))
        return made

    def _check_count(self, suffix: str) -> list[Assertion]:
        """Check the number of calls; if it is unknown whether some count, all possibilities must pass."""
        name = f"tools.{self.name}{suffix}"
        chosen = self.with_status if self.one_is_enough or self.none else self.all
        unknown = len(self.unknown) if self.one_is_enough or self.none else 0
        where = _first_call_label(chosen)
        found = check_number_against_matcher(name, len(chosen), self.wanted.count, self.scope, where=where)
        others = [
            all_assertions_hold(check_value(name, len(chosen) + more, self.wanted.count, self.scope))
            for more in range(1, unknown + 1)
        ]
        if any(other is not all_assertions_hold(found) for other in others):
            return [replace(self._build_unclear_no_result("", self.unknown), name=name, actual=len(chosen))]
        return [
            each if each.status is Status.PASSED else replace(each, message=self._describe_actual_count(each.message))
            for each in found
        ]

    def _check_status(self) -> Assertion:
        name, wanted = f"tools.{self.name}.status", self.wanted.status
        wrong = [use for use in self.all if _has_call_reached_status(use, wanted) is False]
        made = Assertion(name=name, status=Status.PASSED, expected=wanted, where=_first_call_label(self.with_status))
        if self.with_status and (self.one_is_enough or not (wrong or self.unknown)):
            return made
        if wrong and not (self.one_is_enough and self.unknown):
            results = ", ".join("no result" if use.output is None else quote(use.output, 120) for use in wrong[:_SHOWN])
            what = "was not executed" if wanted == "executed" else f"answered without an error: {results}"
            message = f"{self.name} {what}; the calls: {_format_uses(wrong)}"
            return replace(made, status=Status.FAILED, where=_first_call_label(wrong), message=message)
        return self._build_unclear_no_result(".status", self.unknown)

    def _build_unclear_no_result(self, suffix: str, uses: Sequence[ToolUse]) -> Assertion:
        unknown = f"whether it was executed, and what it returned: {_format_uses(uses)}"
        message = f"{self.name}: {self.no_result}, so it is not known {unknown}"
        return make_error_assertion(f"tools.{self.name}{suffix}", message, where=_first_call_label(uses))

    def _describe_actual_count(self, message: str) -> str:
        times = {0: "never", 1: "once"}.get(len(self.calls), f"{len(self.calls)} times")
        verb = {"requested": "called", "executed": "executed", "errored": "answered with an error"}[self.wanted.status]
        told = f"{self.name} was {f'{times} {verb}' if times == 'never' else f'{verb} {times}'}: {message}"
        if self.calls:
            return f"{told}; the calls: {_format_uses(self.calls)}"
        if len(self.all) > len(self.calls):
            return f"{told}; it was asked for {len(self.all)} times, but not {self.wanted.status}"
        return f"{told}; {self._describe_called_tools()}"

    def _describe_called_tools(self) -> str:
        called = _format_uses(self.step.tools)
        return f"tools called in this step: {called}" if called else "no tool was called in this step"

    def _build_never_called(self) -> Assertion:
        message = f"{self.name} was never called; {self._describe_called_tools()}"
        return assertion(f"tools.{self.name}", message, expected="at least one call", actual=0)

    def _check_input(self, wanted: Mapping[str, object], *, none: bool) -> Assertion:
        """Check that a call has this input; `none`: that no call has."""
        name = f"tools.{self.name}.input"
        expected = to_json(dict(wanted))
        judged = [(use, self._check_call_arguments(use, "input", wanted)) for use in self.calls]
        fitting = [use for use, found in judged if all_assertions_hold(found)]
        unclear = [each for _, found in judged for each in found if each.status is Status.ENVIRONMENT_ERROR]
        if none:  # of what cannot be read nobody can say that it does not have it
            unclear += [
                replace(each, status=Status.ENVIRONMENT_ERROR)
                for use, found in judged
                for each in found
                if not _has_readable_arguments(use, wanted)
                or (each.status is not Status.PASSED and self._has_other_type(use, wanted))
            ]
        if fitting or (none and not unclear):
            has = f"{len(fitting)} has it: {_format_uses(fitting)}"
            message = f"no call of {self.name} should have this input, and {has}"
            return assertion(
                name, message, holds=not (fitting and none), expected=expected, where=_first_call_label(fitting)
            )
        if unclear:
            return replace(unclear[0], name=name)
        if not judged:
            return replace(self._build_never_called(), name=name, expected=expected, actual=None)
        use, found = max(judged, key=lambda each: sum(one.status is Status.PASSED for one in each[1]))
        wrong = "; ".join(f"{each.name.removeprefix(f'{name}.')}: {each.message}" for each in found if each.message)
        few, it = f"none of {len(judged)} calls of {self.name} has", "The nearest"
        if len(judged) == 1:
            few, it = f"the call of {self.name} does not have", "It"
        message = f"{few} this input: {wrong}. {it} was {_format_use(use)}"
        return assertion(name, message, expected=expected, actual=to_json(use.arguments), where=use.label)

    def _has_other_type(self, use: ToolUse, wanted: Mapping[str, object]) -> bool:
        """Return whether a call's input differs only in a value's type: ``"5"`` instead of 5, or ``gt`` of a text."""
        values = [(get_value_at_dotted_path(use.arguments, path), each) for path, each in wanted.items()]
        found = {evaluate_matcher_on_value(value, each, self.scope, negated=True).outcome for value, each in values}
        return MatcherOutcomeKind.MISTYPED in found and found <= {MatcherOutcomeKind.MISTYPED, MatcherOutcomeKind.HOLDS}

    def _check_call_arguments(self, use: ToolUse, key: str, wanted: Mapping[str, object]) -> list[Assertion]:
        name = f"tools.{self.name}.{key}"
        if not _has_readable_arguments(use, wanted):
            message = f"the arguments of the call are not JSON: {quote(use.raw, 300)}"
            return [assertion(name, message, expected=to_json(dict(wanted)), actual=use.raw, where=use.label)]
        return check_values_at_paths(name, use.arguments, wanted, self.scope, where=use.label)

    def _check_result(self, key: str, use: ToolUse, wanted: object) -> list[Assertion]:
        name = f"tools.{self.name}.{key}"
        if key == "output" or (use.errored and not isinstance(wanted, bool)):
            return check_value(name, use.output, wanted, self.scope, where=use.label)
        message = f"{'answered' if use.errored else 'did not answer'} with an error: {quote(use.output, 120)}"
        holds = use.errored is wanted
        return [assertion(name, message, holds=holds, expected=to_json(wanted), actual=use.errored, where=use.label)]

    def _combine_call_findings(self, key: str) -> Assertion:
        """Combine the findings of all calls: all must hold, or one if so specified; an unobserved one is an error."""
        name, wanted = f"tools.{self.name}.{key}", getattr(self.wanted, key)
        if not self.calls:
            return replace(self._build_never_called(), name=name)
        expected = to_json(wanted)
        unseen = [use for use in self.calls if use.output is None]
        judged = [(use, self._check_result(key, use, wanted)) for use in self.calls if use.output is not None]
        right = [use for use, found in judged if all_assertions_hold(found)]
        wrong = [found for _, found in judged if not all_assertions_hold(found)]
        if right and (self.one_is_enough or not (wrong or unseen)):
            return Assertion(name=name, status=Status.PASSED, expected=expected, where=_first_call_label(right))
        failed = [each for found in wrong for each in found if each.status is Status.FAILED]
        if failed and not (self.one_is_enough and unseen):
            are = "is" if len(wrong) == 1 else "are"
            of = f" (of {len(self.calls)} calls, {len(wrong)} {are} wrong)" if len(self.calls) > 1 else ""
            return replace(failed[0], name=name, expected=expected, message=f"{self.name}: {failed[0].message}{of}")
        unclear = [each for found in wrong for each in found if each.status is not Status.PASSED]
        if unclear and not unseen:
            return replace(unclear[0], name=name, message=f"{self.name}: {unclear[0].message}")
        return self._build_unclear_no_result(f".{key}", unseen)


def _has_call_reached_status(use: ToolUse, status: str) -> bool | None:
    """Return whether a call reached `status`; None if not observed."""
    if status == "requested":
        return True
    if status == "executed":
        return use.executed if use.executed or use.denied else None  # it may have run without an observed result
    return False if use.denied else use.errored if use.output is not None else None


def _has_readable_arguments(use: ToolUse, paths: Iterable[str]) -> bool:
    """Return whether a call's arguments can be examined: they are JSON, or a text compared as a whole."""
    return use.has_json_arguments or all(path == "$" for path in paths)


def _requires_no_calls(count: object, scope: CaseVariables) -> bool:
    value = count.get("eq") if isinstance(count, Mapping) and count.keys() == {"eq"} else count
    if value is None or isinstance(value, (bool, Mapping)):
        return False
    try:
        found = scope.resolve_value(value)
        return not isinstance(found, bool) and bool(found == 0)
    except StepError:  # `check` says so
        return False


def _format_use(use: ToolUse) -> str:
    given = use.arguments
    if use.has_json_arguments and isinstance(given, dict):
        return f"{use.name}({', '.join(f'{name}={quote(value, 60)}' for name, value in given.items())})"
    return f"{use.name}({quote(use.raw, 120)})"


def _format_uses(uses: Sequence[ToolUse]) -> str:
    return name_some(map(_format_use, uses), shown=_SHOWN)


def _first_call_label(uses: Sequence[ToolUse]) -> str:
    return uses[0].label if uses else ""


def check_total_tool_calls(
    wanted: object, step: AgentActivity, scope: CaseVariables, *, hosted: bool = False
) -> list[Assertion]:
    uses = [use for use in step.tools if hosted or use.is_run_by_agent]
    found = check_number_against_matcher("totalToolCalls", len(uses), wanted, scope, where=_first_call_label(uses))
    seen = f"the calls: {_format_uses(uses)}" if uses else "no tool was called in this step"
    return [
        each if each.status is Status.PASSED else replace(each, message=f"{each.message}; {seen}") for each in found
    ]
