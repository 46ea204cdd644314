"""Values in matchers, definition of matchers, and combination of their findings.

Values are independent of their source, but strict about their type: `to_json` converts a database's dates, decimals and
UUIDs, so that a suite can name them. Of findings (`MatcherOutcomeKind`) `not` swaps HOLDS and FAILS; the others become
UNCLEAR. So no matcher holds together with its negation, and an assertion that cannot be evaluated passes in no
combination.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from numbers import Number
from typing import Any
from uuid import UUID

from llmproxy.core.secrets.redact import STANDS_IN
from llmproxy.core.traffic.json_diff import format_clipped_json
from llmproxy.suite.matchers.variable_references import CaseVariables, StepError, parse_variable_ref
from llmproxy.suite.stores.protocol import ColumnType, to_plain as stored_as_plain

_TIME = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}([.,]\d+)?)?\s?(Z|z|[+-]\d{2}:?\d{2})?)?")
_INDEX = re.compile(r"\[(\d+)\]")
_SEARCHES = re.compile(r"""\.\.|\[[*?'"-]|(?:^|\.)\*(?:\.|$)""")
"""JSONPath syntax that our paths lack: search, every item, filters, items from the end, quoted names."""
Objection = Callable[[Any], str]
"""Operand as written -> problem, as text after the matcher's name (`` takes a list``); or ""."""
REGISTRY: dict[str, MatcherRegistryEntry] = {}
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
_UNAFFECTED = frozenset({"anyOf", "allOf", "not", "exists"})
"""Matchers whose finding a placeholder changes only by the matchers inside, or not."""


class _AbsentValue:
    def __repr__(self) -> str:
        return "ABSENT"

    def __bool__(self) -> bool:
        return False


ABSENT = _AbsentValue()


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that may exist but is not observable; every assertion about it is an error."""

    reason: str


def to_json(value: object) -> Any:
    """Return a value as JSON: dates in ISO 8601 (UTC if they have a time), UUIDs as text, decimals as numbers."""
    return value if value is ABSENT or isinstance(value, (Unknown, float)) else stored_as_plain(value, ColumnType.TEXT)


def are_json_equal(left: object, right: object) -> bool:
    """Return whether two values are equal with their types: 1 equals 1.0, true does not equal 1, "1" does not equal 1.

    Dates, UUIDs and decimals equal their texts and numbers; two times are equal in any time zone.
    """
    if isinstance(left, (datetime, date)) or isinstance(right, (datetime, date)):
        moments = parse_iso_date_or_time(left), parse_iso_date_or_time(right)
        return None not in moments and moments[0] == moments[1]
    if isinstance(left, UUID) or isinstance(right, UUID):
        texts = isinstance(left, (str, UUID)) and isinstance(right, (str, UUID))
        return texts and str(left).lower() == str(right).lower()
    if isinstance(left, Decimal) or isinstance(right, Decimal):
        return is_number(left) and is_number(right) and _to_decimal(left) == _to_decimal(right)
    left, right = to_json(left), to_json(right)
    left, right = (None if left is ABSENT else left), (None if right is ABSENT else right)
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(are_json_equal(value, right[key]) for key, value in left.items())
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(are_json_equal, left, right))
    if isinstance(left, str) and isinstance(right, str):
        return to_nfc(left) == to_nfc(right)
    return left == right and (type(left) is type(right) or (is_number(left) and is_number(right)))


def to_nfc(text: str) -> str:
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def is_equal_except_type(left: object, right: object) -> bool:
    """Return whether two values differ only in type: 5 and "5", 1 and true, "true" and true."""
    left, right = to_json(left), to_json(right)
    return get_type_name(left) != get_type_name(right) and bool(_list_spellings(left) & _list_spellings(right))


def _list_spellings(value: object) -> set[str]:
    if isinstance(value, bool):
        return {str(value).casefold(), str(int(value))}
    if isinstance(value, int | float):
        return {str(int(value)) if value == value // 1 else repr(value)}
    return {value.strip().casefold()} if isinstance(value, str) else set()


def is_number(value: object) -> bool:
    return isinstance(value, Number) and not isinstance(value, bool)


def _to_decimal(value: object) -> Decimal:
    return value if isinstance(value, Decimal) else Decimal(repr(value))


def parse_iso_date_or_time(value: object) -> datetime | None:
    """Return the time of a date or an ISO 8601 text (a day: its midnight, UTC); None for anything else."""
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=UTC)
    if not isinstance(value, str) or not _TIME.fullmatch(value):
        return None
    try:
        made = datetime.fromisoformat(value.replace(",", ".").replace(" +", "+").replace(" Z", "Z"))
    except ValueError:
        return None
    return made if made.tzinfo else made.replace(tzinfo=UTC)


def get_type_name(value: object) -> str:
    if value is None:
        return "null"
    if value is ABSENT:
        return "nothing"
    for types, name in (
        (bool, "a boolean"),
        (Number, "a number"),
        ((datetime, date), "a date"),
        ((str, UUID, Enum, time), "text"),
        ((list, tuple, set, frozenset), "a list"),
        (Mapping, "an object"),
    ):
        if isinstance(value, types):
            return name
    return type(value).__name__


def quote(value: object, width: int = 120) -> str:
    return "nothing" if value is ABSENT else format_clipped_json(to_json(value), width)


def get_value_at_dotted_path(value: object, path: str) -> Any:
    """Return the value at a dotted path (``task.tags[0]`` or ``task.tags.0``) of JSON; ABSENT if there is none.

    A key equal to the whole path, or the rest of it, takes precedence. `$` is the whole, and may precede the path. A
    path that cannot be followed is `Unknown`, not ABSENT: a name in a list of objects, or in a JSON text, means
    something else.
    """
    if path in {"", "$"}:
        return value
    if path.startswith(("$.", "$[")) and not (isinstance(value, Mapping) and "$" in value):
        path = path[1:].removeprefix(".")
    if isinstance(value, Mapping):
        if path in value:
            return value[path]
        lost: object = ABSENT
        for at in range(len(path) - 1, 0, -1):
            if path[at] in ".[" and path[:at] in value:
                found = get_value_at_dotted_path(value[path[:at]], path[at:].removeprefix("."))
                if found is not ABSENT and not isinstance(found, Unknown):
                    return found
                lost = found if lost is ABSENT else lost
        return lost
    if isinstance(value, (list, tuple)):
        index = _INDEX.match(path)
        head = index[1] if index else re.split(r"[.\[]", path, maxsplit=1)[0]
        if head.isdecimal():
            rest = path[index.end() if index else len(head) :].removeprefix(".")
            return get_value_at_dotted_path(value[int(head)], rest) if int(head) < len(value) else ABSENT
        if any(isinstance(each, (Mapping, list, tuple)) for each in value):
            return Unknown(f"{head!r} is looked for in a list of {len(value)}: say in which item, such as [0].{path}")
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        return Unknown(f"{path!r} is looked for in a text: {quote(value, 60)}")
    return ABSENT


def explain_invalid_json_path(path: str) -> str:
    """Return why a path can never be followed, or "": assertions on a missing value would hold."""
    found = _SEARCHES.search(path)
    return f"{path!r} is a path that is not understood here, from {path[found.start() :]!r} on" if found else ""


class MatcherOutcomeKind(Enum):
    HOLDS = "holds"
    FAILS = "fails"
    UNFIT = "unfit"  # the matcher cannot judge the value's kind (`gt` of a text): a failure, and so is its negation
    MISTYPED = "mistyped"  # it would match with another type (5 and "5"): a failure, and so is its negation
    UNCLEAR = "unclear"  # the value is unknown, a name has no value, a pattern timed out


@dataclass(frozen=True, slots=True)
class Match:
    outcome: MatcherOutcomeKind
    message: str = ""
    note: str = ""
    """Remark even if it holds: compared as text."""

    @classmethod
    def of(cls, holds: bool, message: str) -> Match:  # noqa: FBT001 (the answer itself)
        return cls(MatcherOutcomeKind.HOLDS) if holds else cls(MatcherOutcomeKind.FAILS, message)


@dataclass(frozen=True, slots=True)
class ValueToCheck:
    actual: Any
    scope: CaseVariables
    modifiers: Mapping[str, Any] = field(default_factory=dict)
    """Keys next to the matcher that modify it."""

    @property
    def ignores_case(self) -> bool:
        return self.modifiers.get("ignoreCase") is True


Rule = Callable[[Any, ValueToCheck], Match]
"""Operand (references resolved) and value -> finding."""


@dataclass(frozen=True, slots=True)
class MatcherRegistryEntry:
    rule: Rule
    schema: Mapping[str, Any]
    help: str
    objection: Objection
    raw: bool
    """Whether its operand is taken as written: references are not resolved (or by nested matchers)."""


def register_matcher(
    name: str, *, schema: Mapping[str, Any], help: str,  # noqa: A002 (the word for it)
    objection: Objection = lambda _: "", raw: bool = False,
) -> Callable[[Rule], Rule]:  # fmt: skip
    def register(rule: Rule) -> Rule:
        REGISTRY[name] = MatcherRegistryEntry(rule, schema, help, objection, raw)
        return rule

    return register


def apply_matcher_to_value(expected: object, seen: ValueToCheck) -> Match:
    """Return the finding of a matcher as written: a plain value means equality, all keys of a mapping must hold."""
    if not isinstance(expected, Mapping):
        return apply_named_matcher(choose_eq_or_ref_matcher(expected, seen.scope), expected, seen)
    if not (names := [name for name in expected if name not in MODIFIERS]):
        return Match(MatcherOutcomeKind.UNCLEAR, "nothing is asserted: the matcher has no key")
    beside = {name: value for name, value in expected.items() if name in MODIFIERS}
    return combine_required_matches(
        apply_named_matcher(name, expected[name], ValueToCheck(seen.actual, seen.scope, beside)) for name in names
    )


def choose_eq_or_ref_matcher(expected: object, scope: CaseVariables) -> str:
    reference = parse_variable_ref(expected)
    return "ref" if reference is not None and not reference.env and scope.is_reference(reference) else "eq"


def apply_named_matcher(name: str, operand: object, seen: ValueToCheck) -> Match:
    if (known := REGISTRY.get(name)) is None:
        return Match(MatcherOutcomeKind.UNCLEAR, f"there is no matcher `{name}`")
    if isinstance(seen.actual, Unknown) and name not in {"anyOf", "allOf", "not"}:
        return Match(MatcherOutcomeKind.UNCLEAR, f"the value is not known: {seen.actual.reason}")
    try:
        found = known.rule(operand if known.raw else seen.scope.resolve_value(operand), seen)
    except StepError as error:
        return Match(MatcherOutcomeKind.UNCLEAR, str(error).replace("\n", " (") + (")" if error.hint else ""))
    except Exception as error:  # noqa: BLE001 - whatever breaks, it was not evaluated
        return Match(MatcherOutcomeKind.UNCLEAR, f"`{name}` could not be evaluated: {type(error).__name__}: {error}")
    doubtful = MatcherOutcomeKind.HOLDS if name == "notContains" else MatcherOutcomeKind.FAILS
    may_change = found.outcome is doubtful and name not in _UNAFFECTED
    if may_change and (hidden := explain_match_on_redacted_value(seen.actual)):
        outcome = MatcherOutcomeKind.UNCLEAR if name == "notContains" else MatcherOutcomeKind.UNFIT
        return Match(outcome, "; ".join(filter(None, [found.message, hidden])))
    return found


def explain_match_on_redacted_value(value: object) -> str:
    """Return why it is not known whether a value lacks something: a placeholder is in it; empty if none is."""
    return "llmproxy replaced a secret here, so a match cannot be ruled out" if STANDS_IN.search(str(value)) else ""


_UNDECIDED = (MatcherOutcomeKind.UNCLEAR, MatcherOutcomeKind.UNFIT, MatcherOutcomeKind.MISTYPED)
_WORST_OF_ALL = (MatcherOutcomeKind.FAILS, *_UNDECIDED, MatcherOutcomeKind.HOLDS)
_BEST_OF_ANY = (MatcherOutcomeKind.HOLDS, *_UNDECIDED, MatcherOutcomeKind.FAILS)


def combine_required_matches(found: Iterable[Match]) -> Match:
    return _combine_by_outcome_order(list(found), _WORST_OF_ALL, "; ")


def combine_alternative_matches(found: Iterable[Match]) -> Match:
    return _combine_by_outcome_order(list(found), _BEST_OF_ANY, "; and ")


def _combine_by_outcome_order(each: list[Match], order: Sequence[MatcherOutcomeKind], glue: str) -> Match:
    outcome = min((one.outcome for one in each), key=order.index)
    messages = dict.fromkeys(one.message for one in each if one.outcome is outcome and one.message)
    return Match(outcome, glue.join(messages), "; ".join(dict.fromkeys(one.note for one in each if one.note)))
