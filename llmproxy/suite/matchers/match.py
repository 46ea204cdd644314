"""Definition of matchers, and combination of their findings.

    HOLDS      the value matches
    FAILS      it does not
    UNFIT      the matcher cannot judge the value's kind (`gt` of a text): a failure, and so is its negation
    MISTYPED   it does not match, but would with another type (5 and "5"): a failure, and so is its negation
    UNCLEAR    unknown: the value is unknown, a name has no value, a pattern timed out

`not` swaps HOLDS and FAILS; the others become UNCLEAR. So no matcher holds together with its negation, and an assertion
that cannot be evaluated passes in no combination.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from llmproxy.core.secrets.redact import STANDS_IN
from llmproxy.suite.matchers.json_equality import Unknown
from llmproxy.suite.matchers.variables import StepError, VariableScope, parse_ref


class MatchKind(Enum):
    HOLDS = "holds"
    FAILS = "fails"
    UNFIT = "unfit"
    MISTYPED = "mistyped"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True)
class Match:
    outcome: MatchKind
    message: str = ""
    note: str = ""
    """Remark even if it holds: compared as text."""

    @classmethod
    def of(cls, holds: bool, message: str) -> Match:  # noqa: FBT001 (the answer itself)
        return cls(MatchKind.HOLDS) if holds else cls(MatchKind.FAILS, message)


@dataclass(frozen=True, slots=True)
class ValueToMatch:
    actual: Any
    scope: VariableScope
    modifiers: Mapping[str, Any] = field(default_factory=dict)
    """Keys next to the matcher that modify it."""

    @property
    def ignores_case(self) -> bool:
        return self.modifiers.get("ignoreCase") is True


Rule = Callable[[Any, ValueToMatch], Match]
"""Operand (references resolved) and value -> finding."""
Objection = Callable[[Any], str]
"""Operand as written -> problem, as text after the matcher's name (`` takes a list``); or ""."""


@dataclass(frozen=True, slots=True)
class Matcher:
    rule: Rule
    schema: Mapping[str, Any]
    help: str
    objection: Objection
    raw: bool
    """Whether its operand is taken as written: references are not resolved (or by nested matchers)."""


REGISTRY: dict[str, Matcher] = {}
"""YAML name -> matcher; filled by the decorator when `matchers.apply` is imported, and unchanged afterwards."""

MODIFIERS: dict[str, tuple[Mapping[str, Any], str, tuple[str, ...]]] = {
    "ignoreCase": (
        {"type": "boolean"},
        "upper and lower case are the same",
        ("contains", "notContains", "containsAny", "regex", "eq"),
    ),
    "flags": ({"type": "string", "pattern": "^[imsx]+$"}, "of the regex: i, m, s, x as in Python", ("regex",)),
}
"""Modifier keys: schema, help, and the matchers that they modify."""


def matcher(
    name: str,
    *,
    schema: Mapping[str, Any],
    help: str,  # noqa: A002 (the word for it)
    objection: Objection = lambda _: "",
    raw: bool = False,
) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        REGISTRY[name] = Matcher(rule, schema, help, objection, raw)
        return rule

    return register


def match(expected: object, seen: ValueToMatch) -> Match:
    """Return the finding of a matcher as written: a plain value means equality, all keys of a mapping must hold."""
    if not isinstance(expected, Mapping):
        return apply_named_matcher(choose_eq_or_ref(expected, seen.scope), expected, seen)
    names = [name for name in expected if name not in MODIFIERS]
    if not names:
        return Match(MatchKind.UNCLEAR, "nothing is asserted: the matcher has no key")
    beside = {name: value for name, value in expected.items() if name in MODIFIERS}
    return combine_required_matches(
        apply_named_matcher(name, expected[name], ValueToMatch(seen.actual, seen.scope, beside)) for name in names
    )


def choose_eq_or_ref(expected: object, scope: VariableScope) -> str:
    """Return the matcher of a plain value: a text that is a reference compares like `ref`."""
    reference = parse_ref(expected)
    return "ref" if reference is not None and not reference.env and scope.is_reference(reference) else "eq"


_UNAFFECTED = frozenset({"anyOf", "allOf", "not", "exists"})
"""Matchers whose finding a placeholder changes only by the matchers inside, or not."""


def apply_named_matcher(name: str, operand: object, seen: ValueToMatch) -> Match:
    known = REGISTRY.get(name)
    if known is None:
        return Match(MatchKind.UNCLEAR, f"there is no matcher `{name}`")
    if isinstance(seen.actual, Unknown) and name not in {"anyOf", "allOf", "not"}:
        return Match(MatchKind.UNCLEAR, f"the value is not known: {seen.actual.reason}")
    try:
        found = known.rule(operand if known.raw else seen.scope.resolve_value(operand), seen)
    except StepError as error:
        return Match(MatchKind.UNCLEAR, str(error).replace("\n", " (") + (")" if error.hint else ""))
    except Exception as error:  # noqa: BLE001 - whatever breaks, it was not evaluated
        return Match(MatchKind.UNCLEAR, f"`{name}` could not be evaluated: {type(error).__name__}: {error}")
    doubtful = MatchKind.HOLDS if name == "notContains" else MatchKind.FAILS
    if found.outcome is doubtful and name not in _UNAFFECTED and (hidden := explain_replaced_secret(seen.actual)):
        outcome = MatchKind.UNCLEAR if name == "notContains" else MatchKind.UNFIT
        return Match(outcome, "; ".join(filter(None, [found.message, hidden])))
    return found


def explain_replaced_secret(value: object) -> str:
    """Return why it is not known whether a value lacks something: a placeholder is in it; empty if none is."""
    return "llmproxy replaced a secret here, so a match cannot be ruled out" if STANDS_IN.search(str(value)) else ""


_UNDECIDED = (MatchKind.UNCLEAR, MatchKind.UNFIT, MatchKind.MISTYPED)
_WORST_OF_ALL = (MatchKind.FAILS, *_UNDECIDED, MatchKind.HOLDS)
_BEST_OF_ANY = (MatchKind.HOLDS, *_UNDECIDED, MatchKind.FAILS)


def combine_required_matches(found: Iterable[Match]) -> Match:
    return _combine_by_outcome_order(list(found), _WORST_OF_ALL, "; ")


def match_any(found: Iterable[Match]) -> Match:
    return _combine_by_outcome_order(list(found), _BEST_OF_ANY, "; and ")


def _combine_by_outcome_order(each: list[Match], order: Sequence[MatchKind], glue: str) -> Match:
    outcome = min((one.outcome for one in each), key=order.index)
    decisive = [one for one in each if one.outcome is outcome]
    messages = dict.fromkeys(one.message for one in decisive if one.message)
    notes = dict.fromkeys(one.note for one in each if one.note)
    return Match(outcome, glue.join(messages), "; ".join(notes))
