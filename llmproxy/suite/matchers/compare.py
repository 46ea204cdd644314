"""Matchers that compare (equality, order, membership, JSON), and those that combine other matchers."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from uuid import UUID

from llmproxy.core.traffic.canonical_json import reject_nan_and_infinity
from llmproxy.core.traffic.json_diff import list_differences
from llmproxy.suite.matchers.registry import (
    ABSENT,
    REGISTRY,
    Match,
    MatcherOutcomeKind,
    ValueToCheck,
    apply_matcher_to_value,
    are_json_equal,
    combine_alternative_matches,
    combine_required_matches,
    get_type_name,
    is_equal_except_type,
    is_number,
    parse_iso_date_or_time,
    quote,
    register_matcher,
    to_json,
    to_nfc,
)
from llmproxy.suite.matchers.variable_references import parse_variable_ref

_JSON = {"$ref": "#/$defs/Json"}
_MATCHER = {"$ref": "#/$defs/Matcher"}
_SEVERAL = {"type": "array", "minItems": 1, "items": _MATCHER}
_LIMIT = {"anyOf": [{"type": "number"}, {"type": "string"}, {"$ref": "#/$defs/Ref"}]}
_ORDER: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "gt": ("more than", operator.gt),
    "gte": ("at least", operator.ge),
    "lt": ("less than", operator.lt),
    "lte": ("at most", operator.le),
}


def is_reference(value: object) -> bool:
    if isinstance(value, Mapping):
        return value.keys() == {"ref"}
    found = parse_variable_ref(value)
    return found is not None and not found.is_malformed


@register_matcher(
    "eq", schema=_JSON, help="equal to this value, whatever it is: a list, an object, what would be read as a matcher"
)
def match_literal_value(operand: object, seen: ValueToCheck) -> Match:
    actual = seen.actual
    if is_number(operand) and not _is_comparable_number(operand):
        return Match(MatcherOutcomeKind.UNCLEAR, f"no value equals {quote(operand)}, so nothing is asserted")
    if are_json_equal(actual, operand):
        return Match(MatcherOutcomeKind.HOLDS)
    if seen.ignores_case and isinstance(actual, str) and isinstance(operand, str):
        folded = [to_nfc(each).casefold() for each in (actual, operand)]
        if folded[0] == folded[1]:
            return Match(MatcherOutcomeKind.HOLDS)
    outcome = MatcherOutcomeKind.MISTYPED if is_equal_except_type(actual, operand) else MatcherOutcomeKind.FAILS
    near = _describe_near_miss(operand, actual)
    return Match(outcome, f"expected {quote(operand)}, found {quote(actual)}{near}")


def _describe_near_miss(operand: object, actual: object) -> str:
    left, right = to_json(operand), to_json(actual)
    if isinstance(left, str) and isinstance(right, str):
        if left.casefold() == right.casefold():
            return ": they differ in case only"
        if left.split() == right.split():
            return ": they differ in spaces or line breaks only"
    elif isinstance(left, (dict, list)) and type(left) is type(right):
        told = [
            f"at {each.path} {each.old or 'nothing'} was expected, {each.new or 'nothing'} found"
            for each in list_differences(left, right, 3)
        ]
        return f": {', '.join(told)}"
    elif is_equal_except_type(left, right):
        quoted = isinstance(left, str) or isinstance(right, str)
        return f": {get_type_name(left)} is not {get_type_name(right)}" + (", mind the quotes" if quoted else "")
    return ""


@register_matcher(
    "ref",
    schema={"type": "string", "pattern": r"^\$"},
    help="equal to a captured value, `$name.field`; numbers and ids also as text",
    objection=lambda operand: (
        ""
        if isinstance(operand, str) and is_reference(operand)
        else f" takes a reference such as $name.field, not {quote(operand)}"
    ),
)
def match_equal_to_captured_value(operand: object, seen: ValueToCheck) -> Match:
    if are_json_equal(seen.actual, operand):
        return Match(MatcherOutcomeKind.HOLDS)
    texts = [isinstance(each, (str, UUID)) for each in (operand, seen.actual)]
    keys = [isinstance(each, (int, UUID)) and not isinstance(each, bool) for each in (operand, seen.actual)]
    loose = (texts[0] and keys[1]) or (keys[0] and texts[1])
    if loose and str(operand).lower() == str(seen.actual).lower():
        kinds = f"{get_type_name(seen.actual)} {quote(seen.actual)} and {get_type_name(operand)} {quote(operand)}"
        return Match(MatcherOutcomeKind.HOLDS, note=f"equal as text only: {kinds}")
    near = _describe_near_miss(operand, seen.actual)
    return Match(MatcherOutcomeKind.FAILS, f"expected {quote(operand)}, found {quote(seen.actual)}{near}")


@register_matcher(
    "exists",
    schema={"type": "boolean"},
    help="true: there is a value and it is not null; false: there is none, or null",
    objection=lambda operand: (
        "" if isinstance(operand, bool) or is_reference(operand) else f" takes true or false, not {quote(operand)}"
    ),
)
def match_exists(operand: object, seen: ValueToCheck) -> Match:
    if not isinstance(operand, bool):
        return Match(MatcherOutcomeKind.UNCLEAR, f"`exists` takes true or false, not {quote(operand)}")
    there = seen.actual is not None and seen.actual is not ABSENT
    if operand:
        return Match.of(there, "expected a value, and there is " + ("null" if seen.actual is None else "none"))
    return Match.of(not there, f"expected no value, found {quote(seen.actual)}")


def _is_comparable_number(value: Any) -> bool:
    return is_number(value) and value == value  # noqa: PLR0124 (not NaN)


def _explain_bad_limit(operand: object) -> str:
    if _is_comparable_number(operand) or is_reference(operand) or parse_iso_date_or_time(operand) is not None:
        return ""
    return (
        f" takes a number or a date (2026-01-31, 2026-01-31T10:00:00Z), not {get_type_name(operand)} {quote(operand)}"
    )


def _compare_order(name: str, operand: object, seen: ValueToCheck) -> Match:
    (words, holds), actual = _ORDER[name], seen.actual
    if objection := _explain_bad_limit(operand):
        return Match(MatcherOutcomeKind.UNCLEAR, f"`{name}`{objection}")
    moments = parse_iso_date_or_time(actual), parse_iso_date_or_time(operand)
    comparable = (actual, operand) if _is_comparable_number(actual) and is_number(operand) else moments
    if None not in comparable:
        return Match.of(holds(*comparable), f"expected {words} {quote(operand)}, found {quote(actual)}")
    wanted = "a number" if is_number(operand) else "a date"
    found = f"{get_type_name(actual)} {quote(actual)}"
    return Match(MatcherOutcomeKind.UNFIT, f"expected {wanted}, {words} {quote(operand)}; found {found}")


for _name, (_words, _) in _ORDER.items():
    register_matcher(
        _name, schema=_LIMIT, help=f"a number or a date that is {_words} this", objection=_explain_bad_limit
    )(partial(_compare_order, _name))


def _make_nonempty_list_check(what: str) -> Callable[[object], str]:
    said = f" takes a list with at least one {what}"
    return lambda operand: "" if isinstance(operand, list) and operand else said


_need_a_value, _need_a_matcher = map(_make_nonempty_list_check, ("value", "matcher"))


@register_matcher(
    "in", schema={"type": "array", "minItems": 1, "items": _JSON}, help="one of these values", objection=_need_a_value
)
def match_one_of_values(operand: list[object], seen: ValueToCheck) -> Match:
    if any(are_json_equal(seen.actual, each) for each in operand):
        return Match(MatcherOutcomeKind.HOLDS)
    nearly = next(
        (_describe_near_miss(each, seen.actual) for each in operand if is_equal_except_type(seen.actual, each)), ""
    )
    outcome = MatcherOutcomeKind.MISTYPED if nearly else MatcherOutcomeKind.FAILS
    return Match(outcome, f"expected one of {quote(operand)}, found {quote(seen.actual)}{nearly}")


def strip_fence(text: str) -> str:
    lines = text.strip().splitlines()
    if len(lines) > 1 and lines[0].startswith("```") and lines[-1].strip() == "```":
        return "\n".join(lines[1:-1])
    return text


def parse_actual_value_as_json(actual: object) -> object:
    """Return a value, with a text parsed as JSON; ValueError if invalid."""
    if not isinstance(actual, str):
        return to_json(actual)
    try:
        return json.loads(strip_fence(actual), parse_constant=reject_nan_and_infinity)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _refuse_matcher(operand: object) -> str:
    """Refuse a nested matcher, which would be compared literally, and so differ from everything."""
    inside = [*operand.values()] if isinstance(operand, Mapping) else operand if isinstance(operand, list) else []
    for each in inside:
        if isinstance(each, Mapping) and each.keys() != {"ref"} and each and each.keys() <= REGISTRY.keys():
            return (
                f" takes a value as it stands, so {quote(each)} in it is no matcher: write a JSON Schema (`jsonSchema`;"
                f" that very value is {{const: ...}})"
            )
        if deeper := _refuse_matcher(each):
            return deeper
    return ""


@register_matcher(
    "json", schema=_JSON, help="JSON that is equal to this value; a text is parsed first", objection=_refuse_matcher
)
def match_equal_json(operand: object, seen: ValueToCheck) -> Match:
    try:
        return match_literal_value(operand, ValueToCheck(parse_actual_value_as_json(seen.actual), seen.scope))
    except (ValueError, RecursionError) as error:
        return Match(MatcherOutcomeKind.UNFIT, f"expected JSON, and this is none ({error}): {quote(seen.actual, 300)}")


@register_matcher("not", schema=_MATCHER, help="the matcher does not hold", raw=True)
def match_not(operand: object, seen: ValueToCheck) -> Match:
    found = apply_matcher_to_value(operand, seen)
    if found.outcome is MatcherOutcomeKind.HOLDS:
        message = f"should not hold, and does: {quote(operand)}; it is {quote(seen.actual, 300)}"
        return Match(MatcherOutcomeKind.FAILS, message)
    if found.outcome is MatcherOutcomeKind.FAILS:
        return Match(MatcherOutcomeKind.HOLDS, note=found.note)
    return Match(MatcherOutcomeKind.UNCLEAR, f"cannot be denied: {found.message}")


@register_matcher(
    "anyOf", schema=_SEVERAL, help="at least one of these matchers holds", objection=_need_a_matcher, raw=True
)
def match_any_of(operand: list[object], seen: ValueToCheck) -> Match:
    return combine_alternative_matches(apply_matcher_to_value(each, seen) for each in operand)


@register_matcher("allOf", schema=_SEVERAL, help="all of these matchers hold", objection=_need_a_matcher, raw=True)
def match_all_of(operand: list[object], seen: ValueToCheck) -> Match:
    return combine_required_matches(apply_matcher_to_value(each, seen) for each in operand)
