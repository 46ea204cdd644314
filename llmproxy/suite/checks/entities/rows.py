"""Which rows a selection means, and what is wrong with a row: the parts of `entities` that wait for nothing.

A name that the entity does not have is refused, in filters as in fields. A store without a schema knows the columns that it has
seen; a column that no row ever had is refused there too, else ``{exists: false}`` would hold for every misspelling.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any
from unicodedata import normalize

from llmproxy.report.events import Assertion, Status
from llmproxy.suite.matchers.core import Found, MatchOutcome
from llmproxy.suite.matchers.table import check_fields, evaluate
from llmproxy.suite.matchers.values import ABSENT
from llmproxy.suite.matchers.variables import StepError, VariableScope
from llmproxy.suite.stores.protocol import EntityInfo, Kind, Row, StoreAdapter, StoreError, unknown_column

_UNCLEAR = frozenset({MatchOutcome.UNCLEAR, MatchOutcome.MISTYPED})
"""A row of which this is found may be one that is meant: that it is none is not known."""
MOST_ROWS = 10_000
"""Rows that one selection may hold; more is a mistake of the filters, and would fill the memory."""
_SHOWN = 300


@dataclass(frozen=True, slots=True)
class JudgedRow:
    """A row, and whether it is as it should be."""

    row: Row
    found: Mapping[str, Found]
    """By column."""

    @property
    def holds(self) -> bool:
        """Whether every column is as it should be."""
        return all(each.outcome is MatchOutcome.HOLDS for each in self.found.values())

    @property
    def unclear(self) -> bool:
        """Whether nothing can be said, for a column that cannot be judged, or is of another kind, while no other one fails."""
        outcomes = {each.outcome for each in self.found.values()}
        return bool(outcomes & _UNCLEAR) and not outcomes & {MatchOutcome.FAILS, MatchOutcome.UNFIT}

    @property
    def right(self) -> int:
        """How many columns are as they should be."""
        return sum(each.outcome is MatchOutcome.HOLDS for each in self.found.values())


def judge_rows(rows: Iterable[Row], fields: Mapping[str, object], scope: VariableScope) -> list[JudgedRow]:
    return [
        JudgedRow(row, {name: evaluate(row.get(name, ABSENT), matcher, scope) for name, matcher in fields.items()})
        for row in rows
    ]


def nearest(judged: Sequence[JudgedRow]) -> JudgedRow:
    """Return the row with most columns as they should be; of equals the first."""
    return max(judged, key=lambda each: each.right)


def known_columns(store: StoreAdapter, info: EntityInfo, names: Iterable[str], where: str, rows: Sequence[Row]) -> None:
    """Refuse columns that the entity does not have; where it has no schema, those that none of its rows has.

    Raises:
        UnknownColumn: with the nearest name.

    """
    info.check(names, where)
    if info.closed or not rows:
        return
    seen = store.describe(info.name)  # a store without a schema learns while it lists
    there = {*seen.columns, *(name for row in rows for name in row)}
    for name in names:
        if name not in there:
            error = unknown_column(seen, name, where)
            error.hint = error.hint or f"If rows may lack it, declare it: store.entities.{info.name}.columns"
            raise error


def select(
    store: StoreAdapter, info: EntityInfo, filters: Mapping[str, object], scope: VariableScope, user: str | None
) -> list[Row]:
    """Return the rows that the filters mean, of this user unless the filters say whose.

    Raises:
        StoreError: there are too many, or a filter cannot be judged.
        StepError: a filter names what has no value.

    """
    info.check(filters, "filters")
    exact = {
        name: value for name, matcher in filters.items() if (value := _exact(info, name, matcher, scope)) is not None
    }
    if info.user is not None and user is not None and info.user not in filters:
        exact[info.user] = user
    found = {
        str(row.get(info.key)): row for form in _forms(exact) for row in store.list(info.name, form, MOST_ROWS + 1)
    }
    if len(found) > MOST_ROWS:
        raise StoreError(f"more than {MOST_ROWS} rows of {info.name} are selected", hint="Narrow `filters`.")
    rows = [*found.values()]
    known_columns(store, info, filters, "filters", rows)
    return choose_rows(info, rows, filters, scope)


def choose_rows(
    info: EntityInfo, rows: Sequence[Row], filters: Mapping[str, object], scope: VariableScope
) -> list[Row]:
    """Return those of some rows that filters mean. Raises StepError if a filter cannot be judged."""
    judged = judge_rows(rows, filters, scope)
    for each in judged:
        if each.unclear:
            name, found = next((n, f) for n, f in each.found.items() if f.outcome in _UNCLEAR)
            raise StepError(f"filters.{name} of {info.name} cannot be judged: {found.message}")
    return [each.row for each in judged if each.holds]


def _forms(exact: Mapping[str, str | int]) -> Iterable[dict[str, str | int]]:
    """Give the values that a store may have for these: letters with accents are written in two ways, and a database tells them apart."""
    ways = [_ways(value) for value in exact.values()]
    return (dict(zip(exact, each, strict=True)) for each in product(*ways))


def _ways(value: str | int) -> Sequence[str | int]:
    if not isinstance(value, str) or value.isascii():
        return [value]
    return [*dict.fromkeys((value, normalize("NFC", value), normalize("NFD", value)))]


def _exact(info: EntityInfo, name: str, matcher: object, scope: VariableScope) -> str | int | None:
    """Return a value that the store itself can look for without taking too few rows; None if there is none."""
    if isinstance(matcher, Mapping) and matcher.keys() != {"ref"}:
        return None
    value = scope.resolve(matcher)
    kind = info.columns[name].kind if name in info.columns else Kind.UNKNOWN
    if isinstance(value, str) and kind is Kind.TEXT:
        return value
    return value if isinstance(value, int) and not isinstance(value, bool) and kind is Kind.INTEGER else None


def row_assertions(
    name: str, info: EntityInfo, judged: JudgedRow, fields: Mapping[str, object], scope: VariableScope
) -> list[Assertion]:
    """Return one assertion for each column of a row."""
    return check_fields(name, judged.row, fields, scope, where=key_text(info, judged.row))


def build_broken(name: str, error: Exception) -> Assertion:
    """Return the assertion that could not be evaluated, with the reason."""
    return Assertion(name=name, status=Status.ENVIRONMENT_ERROR, message=str(error))


def key_text(info: EntityInfo, row: Mapping[str, Any]) -> str:
    """Name a row: ``tasks id=7``."""
    return f"{info.name} {info.key}={row.get(info.key)!r}"


def row_text(row: Mapping[str, Any]) -> str:
    """Show a row on one line, shortened."""
    text = ", ".join(f"{name}={value!r}" for name, value in row.items() if value is not None)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 4] + " ..."
