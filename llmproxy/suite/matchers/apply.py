"""Evaluation of YAML matchers on values, and their validation before a run.

    title: {contains: milk}      a matcher by name; several keys must all hold; a plain value: equal, with its type

An assertion that cannot be evaluated is an ENVIRONMENT_ERROR, in any combination: never a pass.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeGuard

from llmproxy.did_you_mean import suggest_name
from llmproxy.report.events import Assertion, Status
from llmproxy.suite.matchers.compare import is_reference
from llmproxy.suite.matchers.registry import (
    ABSENT,
    MODIFIERS,
    REGISTRY,
    Match,
    MatcherOutcomeKind,
    Unknown,
    ValueToCheck,
    apply_matcher_to_value,
    apply_named_matcher,
    get_type_name,
    get_value_at_dotted_path,
    quote,
    to_json,
)
from llmproxy.suite.matchers.text import explain_bad_pattern
from llmproxy.suite.matchers.variable_references import CaseVariables, StepError
from llmproxy.yaml_reader import Problems, YamlPlace, get_yaml_place

NOTHING_ASSERTED, WRONG_KIND = "nothing-asserted", "wrong-kind"
"""Codes of problems: a matcher asserts nothing; a value has a wrong kind, which is reported at its key."""
COMPARISONS = ("gt", "gte", "lt", "lte", "eq")
"""Matchers allowed for a count."""
_STATUS = {
    MatcherOutcomeKind.HOLDS: Status.PASSED, MatcherOutcomeKind.FAILS: Status.FAILED,
    MatcherOutcomeKind.UNFIT: Status.FAILED, MatcherOutcomeKind.MISTYPED: Status.FAILED,
    MatcherOutcomeKind.UNCLEAR: Status.ENVIRONMENT_ERROR,
}  # fmt: skip
_WORST = (Status.AGENT_ERROR, Status.FAILED, Status.ENVIRONMENT_ERROR, Status.SKIPPED)


def evaluate_matcher_on_value(actual: object, matcher: object, scope: CaseVariables, *, negated: bool = False) -> Match:
    """Return a matcher's finding; `negated`: a match may be a failure, so values of unsupported types are MISTYPED."""
    found = apply_matcher_to_value(matcher, ValueToCheck(actual, scope))
    unfit = found.outcome is MatcherOutcomeKind.UNFIT and actual is not None and actual is not ABSENT
    return replace(found, outcome=MatcherOutcomeKind.MISTYPED) if negated and unfit else found


def assertion(name: str, message: str, *, holds: bool = False, **about: Any) -> Assertion:
    status = Status.PASSED if holds else Status.FAILED
    return Assertion(name=name, status=status, message="" if holds else message, **about)


def make_error_assertion(name: str, message: object, **about: Any) -> Assertion:
    return Assertion(name=name, status=Status.ENVIRONMENT_ERROR, message=str(message), **about)


def all_assertions_hold(assertions: Iterable[Assertion]) -> bool:
    return all(each.status is Status.PASSED for each in assertions)


def worst_status(statuses: Iterable[Status]) -> Status:
    """Return the worst of statuses: failed, even if other assertions cannot be evaluated."""
    found = set(statuses)
    return next((each for each in _WORST if each in found), Status.PASSED)


def check_value(
    name: str, actual: object, matcher: object, scope: CaseVariables, *, where: str = ""
) -> list[Assertion]:
    """Check a value against a matcher as written, one assertion a key; `name` is like ``created[0].fields.title``."""
    if not isinstance(matcher, Mapping) or matcher.keys() <= MODIFIERS.keys():
        found = evaluate_matcher_on_value(actual, matcher, scope)
        return [_build_assertion_result(name, matcher, actual, found, scope, where)]
    seen = ValueToCheck(actual, scope, {key: value for key, value in matcher.items() if key in MODIFIERS})
    return [
        _build_assertion_result(f"{name}.{key}", operand, actual, apply_named_matcher(key, operand, seen), scope, where)
        for key, operand in matcher.items()
        if key not in MODIFIERS
    ]


def check_number_against_matcher(
    name: str, number: object, wanted: object, scope: CaseVariables, *, where: str = ""
) -> list[Assertion]:
    """Check a count; a bound that every count meets, because of its references, is an error."""
    if isinstance(wanted, Mapping) and wanted.keys() != {"ref"}:
        with suppress(StepError):
            bounds = {key: scope.resolve_value(value) for key, value in wanted.items()}
            if bounds and all(_is_bound_always_met(key, value) for key, value in bounds.items()):
                nothing = Unknown(f"{_describe_ineffective_bounds(bounds)}, so nothing is asserted")
                return check_value(name, nothing, wanted, scope)
    return check_value(name, number, wanted, scope, where=where)


def _build_assertion_result(
    name: str, operand: object, actual: object, found: Match, scope: CaseVariables, where: str
) -> Assertion:
    try:
        expected = to_json(scope.resolve_value(operand))
    except StepError:
        expected = to_json(operand)
    try:
        seen = None if actual is ABSENT or isinstance(actual, Unknown) else to_json(actual)
    except Exception:  # noqa: BLE001 (a value that cannot even be shown; that it was not judged is what counts)
        seen = f"<{type(actual).__name__}>"
    holds = found.outcome is MatcherOutcomeKind.HOLDS
    message = "" if holds else found.message or "it does not hold"
    return Assertion(
        name=name, status=_STATUS[found.outcome], expected=expected, actual=seen, message=message, where=where,
        evidence=found.note if holds else "",
    )  # fmt: skip


def check_values_at_paths(
    name: str, value: object, wanted: Mapping[str, object], scope: CaseVariables, *, where: str = ""
) -> list[Assertion]:
    return [
        assertion
        for path, matcher in wanted.items()
        for assertion in check_value(
            f"{name}.{path}", get_value_at_dotted_path(value, path), matcher, scope, where=where
        )
    ]


def validate_matcher(matcher: object, problems: Problems, at: YamlPlace | None) -> None:
    if not isinstance(matcher, Mapping):
        return
    named = [key for key in matcher if key in REGISTRY]
    for key in matcher:
        place = get_yaml_place(matcher, key, key=True) or at
        if key in MODIFIERS:
            _validate_modifier(key, matcher, named, problems, place)
        elif key not in REGISTRY:
            near = suggest_name(str(key), [*REGISTRY, *MODIFIERS], listing=False)
            has_inside = isinstance(matcher[key], (Mapping, str, int))
            deeper = f"`path.{key}: ...` looks inside (in `fields`, `input`), " if has_inside else ""
            whole = f"`{{eq: {{{key}: ...}}}}` compares a whole object, `json` one in a text"
            hint = near or f"{deeper}{whole}; matchers: {', '.join(REGISTRY)}"
            problems.add(place, f"there is no matcher `{key}`", hint)
    if not matcher:
        hint = "write a value, or a matcher such as {contains: text}"
        problems.add(get_yaml_place(matcher) or at, "nothing is asserted here", hint, NOTHING_ASSERTED)
    for key in named:
        place = get_yaml_place(matcher, key) or at
        flags = matcher.get("flags")
        if key == "regex" and _is_regex_flags(flags):
            objection = explain_bad_pattern(matcher[key], flags)
        else:
            objection = REGISTRY[key].objection(matcher[key])
        if objection:
            problems.add(place, f"`{key}`{objection}")
        elif key == "not":
            validate_matcher(matcher[key], problems, place)
        elif key in {"anyOf", "allOf"}:
            for i, branch in enumerate(matcher[key]):
                validate_matcher(branch, problems, get_yaml_place(matcher[key], i) or place)


def _validate_modifier(
    key: str, matcher: Mapping[str, Any], named: list[str], problems: Problems, at: YamlPlace | None
) -> None:
    schema, _, serves = MODIFIERS[key]
    if not set(named) & set(serves):
        problems.add(at, f"`{key}` changes nothing here", f"it stands beside {', '.join(serves)}")
    elif schema["type"] == "boolean" and not isinstance(matcher[key], bool):
        problems.add(at, f"`{key}` takes true or false, not {quote(matcher[key])}")
    elif schema["type"] == "string" and not _is_regex_flags(matcher[key]):
        problems.add(at, f"`{key}` takes letters of i, m, s, x, not {quote(matcher[key])}")


def _is_regex_flags(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and re.fullmatch("[imsx]+", value) is not None


def validate_expected_count(wanted: object, problems: Problems, at: YamlPlace | None) -> None:
    if isinstance(wanted, Mapping) and wanted.keys() != {"ref"}:
        place = get_yaml_place(wanted) or at
        if not wanted:
            problems.add(place, "nothing is asserted here", "write a number, or {gte: 1}", NOTHING_ASSERTED)
        elif all(_is_bound_always_met(key, value) for key, value in wanted.items()):
            hint = "write {gte: 1} for at least one, 0 for none"
            problems.add(place, f"{_describe_ineffective_bounds(wanted)}, so nothing is asserted", hint)
        for key, value in wanted.items():
            if key not in COMPARISONS:
                place = get_yaml_place(wanted, key, key=True) or at
                problems.add(place, f"unknown key `{key}`", suggest_name(str(key), COMPARISONS))
            elif not _is_possible_count(value, whole_number=False):
                message = f"`{key}` takes a number that is not negative, not {get_type_name(value)} {quote(value)}"
                problems.add(get_yaml_place(wanted, key) or at, message)
    elif not _is_possible_count(wanted, whole_number=True):
        hint = "mind the quotes" if isinstance(wanted, str) and wanted.isdecimal() else "write 1, or {gte: 1, lte: 3}"
        said = f"takes a whole number or {{gt, gte, lt, lte, eq}}, not {get_type_name(wanted)} {quote(wanted)}"
        problems.add(at, said, hint, WRONG_KIND)


def _describe_ineffective_bounds(bounds: Mapping[str, object]) -> str:
    return f"every number is {', '.join(f'`{key}: {quote(value)}`' for key, value in bounds.items())}"


def _is_bound_always_met(key: str, value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return (key == "gte" and value <= 0) or (key == "gt" and value < 0) or (key in ("lt", "lte") and value == math.inf)


def is_zero_count_allowed(wanted: object) -> bool:
    """Return whether a count may be 0, as far as known without values: a reference may be anything."""
    if isinstance(wanted, Mapping) and wanted.keys() != {"ref"}:
        numbers = {key: value for key, value in wanted.items() if isinstance(value, (int, float))}
        holds = {"eq": operator.eq, "gt": operator.gt, "gte": operator.ge, "lt": operator.lt, "lte": operator.le}
        return bool(numbers) and all(holds[key](0, value) for key, value in numbers.items() if key in holds)
    return wanted == 0 and not isinstance(wanted, bool)


def may_count_be_zero(wanted: object, scope: CaseVariables) -> bool:
    with suppress(StepError):
        return is_zero_count_allowed(scope.resolve_value(wanted))
    return False


def _is_possible_count(value: object, *, whole_number: bool) -> bool:
    if is_reference(value):
        return True
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return value >= 0 and (isinstance(value, int) or (not whole_number and value == value))  # noqa: PLR0124 (not NaN)
