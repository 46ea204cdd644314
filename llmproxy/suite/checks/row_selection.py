"""Rows of a run: their selection, the checks that do not wait, and their cleanup after it.

A store without a schema knows the columns that it has seen. A column that no row ever had is refused there too, or
``{exists: false}`` would hold for every misspelling.

`delete` removes what setup inserted and what `created` found, and where rows have a user, every row that appeared for
the run's user. Counters of keys go back to where they stood before the run, if nothing else ran meanwhile. What could
not be cleaned is said, not raised: the run's result stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any
from unicodedata import normalize
from uuid import UUID, uuid5

from llmproxy.amount_formatting import format_count
from llmproxy.errors import LLMProxyError, SuiteError
from llmproxy.protocol import append_sample_number_to_name
from llmproxy.report.events import Assertion, Status
from llmproxy.suite.matchers.apply import check_value, evaluate_matcher_on_value, make_error_assertion
from llmproxy.suite.matchers.registry import ABSENT, Match, MatcherOutcomeKind
from llmproxy.suite.matchers.variable_references import CaseVariables, StepError
from llmproxy.suite.stores.config import StoreResetSettings, import_module_attribute
from llmproxy.suite.stores.protocol import (
    ColumnType,
    EntityInfo,
    Id,
    RestorableEntityStore,
    Row,
    RowKeySnapshot,
    StoreAdapter,
    StoreError,
    build_unknown_column_error,
    index_rows_by_key,
)

_SHOWN_LEFT = 5  # remaining rows listed
NAMESPACE = UUID("6f1d2f1c-5a0b-5f57-8d0e-0d4b4d3f6a11")
"""UUID namespace of derived ids; changing it changes every id, and so the recordings of suites that use them."""
NOW = "2027-01-04T09:00:00Z"
"""Fixed current time of deterministic runs: a Monday morning."""
NOW_VARIABLE = "LLMPROXY_NOW"
SEED_VARIABLE = "LLMPROXY_SEED"
_LOWEST, _SPAN = 1_000_000_000, 1_000_000_000
"""Range of derived integers: above any counter, and within 32 bits."""
_UNCLEAR = frozenset({MatcherOutcomeKind.UNCLEAR, MatcherOutcomeKind.MISTYPED})
"""Findings that leave open whether a row is selected."""
MOST_ROWS = 10_000
"""Maximum rows of a selection; more indicates wrong filters, and would fill the memory."""
_ROW_WIDTH = 300  # characters
POLL = 1_000
_SHOWN_IDS = 10  # keys listed of rows that could be meant


@dataclass(slots=True)
class CaseStoreCleaner:
    store: StoreAdapter
    policy: StoreResetSettings = field(default_factory=StoreResetSettings)
    user: str | None = None
    alone: bool = True
    """Whether no other run uses the store meanwhile; only then counters are restored."""
    hook: Callable[[StoreAdapter], object] | None = None
    remarks: list[str] = field(default_factory=list)
    """New rows that remain in the store, one sentence an entity; set by `clean_up`."""
    _rows: dict[tuple[str, Id], None] = field(default_factory=dict)
    _before: RowKeySnapshot | None = None
    _counters: Mapping[str, tuple[int, bool]] = field(default_factory=dict)
    _all: RowKeySnapshot | None = None

    def begin_run(self, entities: Sequence[str]) -> None:
        """Reset the store if requested, and remember existing rows of the entities. Raises StoreError, SuiteError."""
        if self.policy.reset == "copy" and isinstance(self.store, RestorableEntityStore):
            self.store.mark()
        elif self.policy.reset in {"truncate", "http", "hook"}:
            self._reset_store()
        if self.policy.reset != "delete":
            return
        known = [self.store.describe(name) for name in dict.fromkeys(entities)]
        owned = [info.name for info in known if info.user is not None] if self.user is not None else []
        if owned:
            self._before = self.store.snapshot(owned, self.user)
        if known and (owned or self.alone):
            with suppress(LLMProxyError):  # a service that tells nobody about everybody's rows
                self._all = self.store.snapshot([info.name for info in known], None)
        if self.alone and self.policy.counters == "restore" and isinstance(self.store, RestorableEntityStore):
            self._counters = self.store.counters([info.name for info in known])

    def add_row(self, entity: str, id: Id) -> None:  # noqa: A002 - the word that suites use
        self._rows[entity, id] = None

    def clean_up(self) -> list[str]:
        try:
            if self.policy.reset != "delete":
                if self.policy.reset != "none":
                    self._reset_store()
                return []
            if self._before is not None:
                for entity, rows in self.store.changes(self._before).items():
                    key = self.store.describe(entity).key
                    there = self._all.ids.get(entity, frozenset()) if self._all else frozenset()
                    # A row that was there before for somebody else is not the run's to delete.
                    self._rows |= {(entity, row[key]): None for row in rows if row[key] not in there}
            notes = self._delete_rows()
            self._report_leftover_rows()
            if self._counters and isinstance(self.store, RestorableEntityStore):
                self.store.rewind(self._counters)
        except LLMProxyError as error:
            return [f"the store was not cleaned up: {error}"]
        return notes

    def _report_leftover_rows(self) -> None:
        """Note new rows that remain: of other users or without one, so not known to be the run's."""
        if self._all is None or not self.alone:
            return
        with suppress(LLMProxyError):
            for entity, rows in self.store.changes(self._all).items():
                if rows:
                    key = self.store.describe(entity).key
                    shown = ", ".join(repr(row[key]) for row in rows[:_SHOWN_LEFT]) + (
                        " ..." if len(rows) > _SHOWN_LEFT else ""
                    )
                    which = f"{format_count(len(rows), 'row')} of {entity}"
                    self.remarks.append(
                        f"{which} appeared and stay{'' if len(rows) > 1 else 's'} ({key} {shown}); see `store.reset`"
                    )

    def _delete_rows(self) -> list[str]:
        """Delete newest first; rows that others still reference are retried after those."""
        left = list(reversed(self._rows))
        while left:
            errors: dict[tuple[str, Id], LLMProxyError] = {}
            for entity, id_ in left:
                try:
                    self.store.delete(entity, id_)
                except LLMProxyError as error:
                    errors[entity, id_] = error
            if len(errors) == len(left):
                return [f"{entity} {id_!r} could not be deleted: {error}" for (entity, id_), error in errors.items()]
            left = list(errors)
        return []

    def _reset_store(self) -> None:
        if self.policy.reset != "hook":
            self.store.reset()
            return
        if self.hook is None:
            raise SuiteError("store.reset: hook, and no hook was loaded")
        try:
            self.hook(self.store)
        except LLMProxyError:
            raise
        except Exception as error:
            raise SuiteError(
                f"store.reset: the hook {self.policy.target} failed: {type(error).__name__}: {error}"
            ) from error


def load_store_reset_hook(policy: StoreResetSettings, folder: Path) -> Callable[[StoreAdapter], object] | None:
    """Load a policy's hook; None if it has none. Raises SuiteError if it is not callable."""
    if policy.reset != "hook":
        return None
    found: Any = import_module_attribute(policy.target, folder, "store.reset.hook")
    if not callable(found):
        raise SuiteError(f"store.reset.hook: {policy.target} is no function")
    hook: Callable[[StoreAdapter], object] = found
    return hook


def derive_setup_row_key(scenario: str, sample: int, name: str, kind: ColumnType = ColumnType.UNKNOWN) -> str | int:
    """Return the key of setup's row `name`: a UUID as text, or a number for a numeric column."""
    made = uuid5(NAMESPACE, f"{append_sample_number_to_name(scenario, sample)}/{name}")
    return made.int % _SPAN + _LOWEST if kind in {ColumnType.INTEGER, ColumnType.NUMBER} else str(made)


def build_now_and_seed_env(scenario: str, sample: int) -> dict[str, str]:
    return {NOW_VARIABLE: NOW, SEED_VARIABLE: append_sample_number_to_name(scenario, sample)}


@dataclass(frozen=True, slots=True)
class RowWithColumnMatches:
    row: Row
    found: Mapping[str, Match]

    @property
    def all_match(self) -> bool:
        return all(each.outcome is MatcherOutcomeKind.HOLDS for each in self.found.values())

    @property
    def is_unclear(self) -> bool:
        """Whether nothing can be said: a column cannot be judged, or has another kind, and no other one fails."""
        outcomes = {each.outcome for each in self.found.values()}
        return bool(outcomes & _UNCLEAR) and not outcomes & {MatcherOutcomeKind.FAILS, MatcherOutcomeKind.UNFIT}


def compute_column_matches_of_rows(
    rows: Iterable[Row], fields: Mapping[str, object], scope: CaseVariables, *, negated: bool = False
) -> list[RowWithColumnMatches]:
    def judge(row: Row, name: str) -> Match:
        return evaluate_matcher_on_value(row.get(name, ABSENT), fields[name], scope, negated=negated)

    return [RowWithColumnMatches(row, {name: judge(row, name) for name in fields}) for row in rows]


def find_nearest_row(judged: Sequence[RowWithColumnMatches]) -> RowWithColumnMatches:
    return max(
        judged, key=lambda each: [found.outcome for found in each.found.values()].count(MatcherOutcomeKind.HOLDS)
    )


def require_known_columns(
    store: StoreAdapter, info: EntityInfo, names: Iterable[str], where: str, rows: Sequence[Row]
) -> None:
    """Refuse columns that the entity, or without a schema each of its rows, lacks. Raises UnknownColumn."""
    info.check(names, where)
    if info.closed or not rows:
        return
    seen = store.describe(info.name)  # a store without a schema learns while it lists
    there = {*seen.columns, *(name for row in rows for name in row)}
    for name in names:
        if name not in there:
            error = build_unknown_column_error(seen, name, where)
            error.hint = error.hint or f"If rows may lack it, declare it: store.entities.{info.name}.columns"
            raise error


def select_entity_rows_by_filters(
    store: StoreAdapter, info: EntityInfo, filters: Mapping[str, object], scope: CaseVariables, user: str | None, *,
    negated: bool = False,
) -> list[Row]:  # fmt: skip
    """Return the rows selected by filters, of this user unless they name one. Raises StoreError, StepError."""
    info.check(filters, "filters")
    exact = {
        name: value
        for name, matcher in filters.items()
        if (value := _find_store_filter_value(info, name, matcher, scope)) is not None
    }
    if info.user is not None and user is not None and info.user not in filters:
        exact[info.user] = user
    spellings: list[Iterable[str | int]] = [  # databases distinguish two forms of accented letters
        dict.fromkeys((value, normalize("NFC", value), normalize("NFD", value))) if isinstance(value, str) else (value,)
        for value in exact.values()
    ]
    found: dict[Id, Row] = {}
    for values in product(*spellings):
        found |= index_rows_by_key(info, store.list(info.name, dict(zip(exact, values, strict=True)), MOST_ROWS + 1))
    if len(found) > MOST_ROWS:
        raise StoreError(f"more than {MOST_ROWS} rows of {info.name} are selected", hint="Narrow `filters`.")
    rows = [*found.values()]
    require_known_columns(store, info, filters, "filters", rows)
    return filter_rows_by_matchers(info, rows, filters, scope, negated=negated)


def filter_rows_by_matchers(
    info: EntityInfo, rows: Sequence[Row], filters: Mapping[str, object], scope: CaseVariables, *, negated: bool = False
) -> list[Row]:
    """Return the rows that match filters. Raises StepError if a filter cannot be judged."""
    judged = compute_column_matches_of_rows(rows, filters, scope, negated=negated)
    for each in judged:
        if each.is_unclear:
            name, found = next((n, f) for n, f in each.found.items() if f.outcome in _UNCLEAR)
            raise StepError(f"filters.{name} of {info.name} cannot be judged: {found.message}")
    return [each.row for each in judged if each.all_match]


def _find_store_filter_value(info: EntityInfo, name: str, matcher: object, scope: CaseVariables) -> str | int | None:
    """Return a value by which the store itself can filter without losing rows; None if there is none."""
    if isinstance(matcher, Mapping) and matcher.keys() != {"ref"}:
        return None
    value = scope.resolve_value(matcher)
    kind = info.columns[name].kind if name in info.columns else ColumnType.UNKNOWN
    if isinstance(value, str) and kind is ColumnType.TEXT:
        return value
    return value if isinstance(value, int) and not isinstance(value, bool) and kind is ColumnType.INTEGER else None


def check_row_against_field_matchers(
    name: str, info: EntityInfo, judged: RowWithColumnMatches, fields: Mapping[str, object], scope: CaseVariables
) -> list[Assertion]:
    """Check columns of a row; a missing one is `ABSENT` (the store checks whether it exists)."""
    row, where = judged.row, format_entity_row_key(info, judged.row)
    return [
        assertion
        for column, matcher in fields.items()
        for assertion in check_value(f"{name}.{column}", row.get(column, ABSENT), matcher, scope, where=where)
    ]


def format_entity_row_key(info: EntityInfo, row: Mapping[str, Any]) -> str:
    return f"{info.name} {info.key}={row.get(info.key)!r}"


def format_row_values(row: Mapping[str, Any]) -> str:
    text = ", ".join(f"{name}={value!r}" for name, value in row.items() if value is not None)
    return text if len(text) <= _ROW_WIDTH else text[: _ROW_WIDTH - 4] + " ..."


@dataclass(slots=True, kw_only=True)
class RowCheckContext:
    adapter: StoreAdapter | None
    """None without a store: every check of an entity is an error then."""
    scope: CaseVariables
    user: str | None
    """Owner of the checked rows, if an entity has users; None: all owners."""
    clock: Callable[[], float]
    """Monotonic seconds."""
    sleep: Callable[[float], None]
    """Waits this many seconds; may raise to end a wait early."""
    cleaner: CaseStoreCleaner | None = None
    alone: bool = True
    """Whether no other run writes meanwhile, so that every new row is the agent's."""
    beside: frozenset[str] = frozenset()
    """Users of concurrent runs; if runs may be concurrent, empty means unknown."""
    remarks: list[str] = field(default_factory=list)
    scenario: str = ""
    sample: int = 1
    deterministic: bool = False
    """Whether setup's ids are derived from scenario, run and name."""
    names: Sequence[str] = ()
    _inserted: int = field(default=0, init=False)

    def may_be_created_by_run(self, owner: object) -> bool:
        """Return whether a row's owner is no user of an active run, so that this run's agent may have created it."""
        return owner != self.user and (self.alone or bool(self.beside and owner not in self.beside))

    @property
    def store(self) -> StoreAdapter:
        if self.adapter is None:
            raise SuiteError(
                "the suite looks at entities, and no store is configured",
                hint="Say where they are: store: {sqlalchemy: 'sqlite:///tasks.db'}",
            )
        return self.adapter

    def list_auto_key_entities(self) -> list[str]:
        with suppress(LLMProxyError):
            return [name for name in self.names if self.store.describe(name).counted]
        return []

    def insert_row(self, entity: str, data: Mapping[str, object], alias: str = "", *, overwrite: bool = False) -> Row:
        """Insert a row for the run's user and capture it. Raises StoreError, SuiteError, StepError: do not run."""
        store = self.store
        self._inserted += 1
        info = store.describe(entity)
        values: dict[str, Any] = dict(self.scope.resolve_value(dict(data)))
        if info.user is not None and self.user is not None and info.user not in values:
            values = {info.user: self.user, **values}
        if self.deterministic and values.get(info.key) is None:
            name = alias.removeprefix("$") or f"{entity}[{self._inserted}]"
            made = derive_setup_row_key(self.scenario, self.sample, name, info.columns[info.key].kind)
            store.delete(entity, made)  # left by a run that was killed: nobody else makes this id
            values = {info.key: made, **values}
        row = store.insert(entity, values)
        if self.cleaner:
            self.cleaner.add_row(entity, row[info.key])
        self.scope.record_ids_for_proxy(alias or f"{entity}[{self._inserted}]", entity, row, info.key)
        if alias:
            self.scope.capture_row(alias, row, primary=info.key, overwrite=overwrite)
        return row


def append_to_failed_assertion(assertion: Assertion, more: str) -> Assertion:
    if assertion.status is Status.PASSED:
        return assertion
    return replace(assertion, message=f"{assertion.message} ({more})" if assertion.message else more)


def describe_row_user_filter(info: EntityInfo, user: str | None) -> str:
    return f" for the user {user!r} ({info.user})" if info.user is not None and user is not None else ""


def capture_row_as_variable(
    run: RowCheckContext, name: str, info: EntityInfo, rows: Sequence[Row], alias: str, *, overwrite: bool
) -> list[Assertion]:
    """Capture the one selected row; it is an error if there are several. Returns the problem, if any."""
    if len(rows) == 1:
        try:
            run.scope.capture_row(alias, rows[0], primary=info.key, overwrite=overwrite)
        except StepError as error:
            return [make_error_assertion(f"{name}.as", error)]
        run.scope.record_ids_for_proxy(alias, info.name, rows[0], info.key)
        return []
    ids = ", ".join(repr(row[info.key]) for row in rows[:_SHOWN_IDS]) + (" ..." if len(rows) > _SHOWN_IDS else "")
    what = f"{len(rows)} rows of {info.name} could be meant ({info.key} {ids})" if rows else "there is no row to name"
    hint = "Add fields that only one row has." if rows else ""
    return [make_error_assertion(f"{name}.as", StepError(f"{alias}: {what}", hint=hint))]
