"""The interface of stores, in which the agent under test keeps its entities, and conversion of their values.

An *entity* is a kind of object (``tasks``), a *row* one of them, as plain JSON values for any database: dates are
ISO-8601 texts in UTC, UUIDs texts, decimals numbers. An adapter refuses an unknown name or type: a dropped condition
would widen a result, and let a test pass. It reads and writes at once: an inserted row is visible to the agent before
`insert` returns. Adapters are used from several threads, one call at a time each.

The kind of a column decides on conversion: SQLite has no booleans and no dates. A value that cannot be converted
without loss stays a text with the exact stored value.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Any, Protocol, runtime_checkable
from uuid import UUID

from llmproxy.did_you_mean import did_you_mean, normalize_name_spelling
from llmproxy.errors import MachineError, SuiteError

Row = dict[str, Any]
"""One row: the suite's column names, and plain JSON values."""

Rows = list[Row]

Id = str | int | float
"""A primary key."""

Ids = list[Id]
BASE64 = "base64:"
"""Prefix of the text for bytes."""


class StoreError(MachineError):
    """The store cannot be used: no statement about the agent."""

    code = "llmproxy_suite_store"


class StoreLost(StoreError):
    """The connection was lost. Reads were retried once; writes never are."""

    code = "llmproxy_suite_store_lost"


class StoreOperationRejectedError(StoreError):
    """The store rejects the operation: a constraint, a missing right, a value of the wrong type."""

    code = "llmproxy_suite_store_refused"


class UnknownEntity(SuiteError):
    code = "llmproxy_suite_unknown_entity"


class UnknownColumn(SuiteError):
    code = "llmproxy_suite_unknown_column"


class ColumnType(StrEnum):
    TEXT = "text"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    DATETIME = "datetime"
    DATE = "date"
    TIME = "time"
    UUID = "uuid"
    BYTES = "bytes"
    JSON = "json"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    """Name in the suite."""
    kind: ColumnType = ColumnType.UNKNOWN
    source: str = ""
    """Name in the store."""


@dataclass(frozen=True, slots=True)
class EntityInfo:
    name: str
    key: str = "id"
    user: str | None = None
    """The owner column; None: rows have no owner, and are not restricted to a user."""
    columns: Mapping[str, Column] = field(default_factory=dict)
    closed: bool = True
    """Whether `columns` is complete. A store without a schema (HTTP, memory) only knows columns it has seen."""
    reuses: bool = False
    """Whether a deleted row's number may be reused."""
    counted: bool = False
    """Whether the store numbers new rows itself, so that a row's key depends on earlier ones."""

    def check(self, names: Iterable[str], where: str) -> None:
        """Refuse unknown columns; `where` names their place (``filters``). Raises UnknownColumn."""
        for name in names:
            if self.closed and name not in self.columns:
                raise build_unknown_column_error(self, name, where)


@dataclass(frozen=True, slots=True)
class RowKeySnapshot:
    ids: Mapping[str, frozenset[Id]]
    """Keys of the existing rows by entity."""
    user: str | None = None
    """Owner of the rows; None: all owners."""


class StoreAdapter(Protocol):
    """A store. `llmproxy.suite.stores.protocol.StoreBase` implements the derivable methods."""

    def describe(self, entity: str) -> EntityInfo:
        """Describe an entity; UnknownEntity if the name is unknown."""

    def insert(self, entity: str, data: Mapping[str, Any]) -> Row:
        """Add a row and return it as stored, with key and defaults."""

    def get(self, entity: str, id: Id) -> Row | None:  # noqa: A002 - the word that suites use
        """Return the row with this key, None if there is none."""

    def list(self, entity: str, filters: Mapping[str, Any] | None = None, limit: int | None = None) -> Rows:
        """Return the rows whose columns equal these values, in key order; at most `limit`."""

    def delete(self, entity: str, id: Id) -> bool:  # noqa: A002 - the word that suites use
        """Remove a row; False if it did not exist."""

    def snapshot(self, entities: Sequence[str], user: str | None = None) -> RowKeySnapshot:
        """Return a snapshot of the existing rows, of this user if an entity has a user column."""

    def changes(self, snapshot: RowKeySnapshot) -> dict[str, Rows]:
        """Return the new rows of each entity since the snapshot, in key order."""

    def reset(self) -> None:
        """Reset the store by its configuration (truncate, copy), if any."""

    def close(self) -> None:
        """Close connections. No call follows."""


@runtime_checkable
class RestorableEntityStore(Protocol):
    """A store that can be restored: for `reset` and a run's counters."""

    def mark(self) -> None:
        """Save the whole store for `reset`; nothing if its `reset` needs no copy."""

    def counters(self, entities: Sequence[str]) -> Mapping[str, tuple[int, bool]]:
        """Return the key counters of these entities."""

    def rewind(self, counters: Mapping[str, tuple[int, bool]]) -> None:
        """Restore counters, never below a key in use."""


def build_unknown_entity_error(name: str, known: Iterable[str], hint: str = "") -> UnknownEntity:
    names = sorted(known)
    there = f"It has {', '.join(names[:20])}{' ...' if len(names) > 20 else ''}." if names else "It has none."
    return UnknownEntity(f"the store has no entity {name!r}{_suggest(name, names)}\n{there}", hint=hint)


def build_unknown_column_error(info: EntityInfo, name: str, where: str) -> UnknownColumn:
    names = list(info.columns)
    hint = ""
    if alike := [
        each for each in names if normalize_name_spelling(each) == normalize_name_spelling(name) and each != name
    ]:
        hint = f"Write {alike[0]!r}, or map the name: store.entities.{info.name}.columns: {{{name}: {alike[0]}}}"
    return UnknownColumn(
        f"{where}: {info.name} has no column {name!r}{_suggest(name, names)}\nIt has {', '.join(names)}.", hint=hint
    )


def _suggest(name: str, names: Sequence[str]) -> str:
    alike = {normalize_name_spelling(each): each for each in names}.get(normalize_name_spelling(name))
    return did_you_mean(name, names) if alike is None else f"; did you mean {alike!r}?"


def sort_rows_by_key(rows: Iterable[Row], key: str) -> Rows:
    """Sort rows by key: numbers by value, then texts."""
    return sorted(rows, key=lambda row: build_row_key_sort_key(row.get(key)))


def build_row_key_sort_key(value: object) -> tuple[int, float, str]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return (0, float(value), "")
    return (1, 0.0, str(value))


def index_rows_by_key(info: EntityInfo, rows: Iterable[Row]) -> dict[Id, Row]:
    """Return rows by their keys. Raises StoreError: a row has no usable key, or two have one and would be one row."""
    found: dict[Id, Row] = {}
    for row in rows:
        if (key := StoreBase.key(info, row)) in found:
            raise StoreError(
                f"two rows of {info.name} have {info.key} = {key!r}: nothing tells them apart.",
                hint=f"Name the column that tells rows apart: store.entities.{info.name}.id",
            )
        found[key] = row
    return found


class StoreBase:
    """Base of stores; subclasses add `describe`, `insert`, `get`, `list` and `delete`."""

    def describe(self, entity: str) -> EntityInfo:
        raise NotImplementedError

    def list(self, entity: str, filters: Mapping[str, Any] | None = None, limit: int | None = None) -> Rows:
        raise NotImplementedError

    def snapshot(self, entities: Sequence[str], user: str | None = None) -> RowKeySnapshot:
        return RowKeySnapshot({name: frozenset(self.ids(name, user)) for name in dict.fromkeys(entities)}, user)

    def changes(self, snapshot: RowKeySnapshot) -> dict[str, Rows]:
        new: dict[str, Rows] = {}
        for name, before in snapshot.ids.items():
            info = self.describe(name)
            rows = index_rows_by_key(info, self.list(name, self.scope(info, snapshot.user)))
            new[name] = sort_rows_by_key((row for key, row in rows.items() if key not in before), info.key)
        return new

    def ids(self, entity: str, user: str | None) -> Ids:
        info = self.describe(entity)
        return [*index_rows_by_key(info, self.list(entity, self.scope(info, user)))]

    @staticmethod
    def scope(info: EntityInfo, user: str | None) -> dict[str, Any]:
        return {} if user is None or info.user is None else {info.user: user}

    @staticmethod
    def key(info: EntityInfo, row: Mapping[str, Any]) -> Id:
        value = row.get(info.key)
        if not isinstance(value, str | int | float):
            raise StoreError(
                f"a row of {info.name} has no usable key {info.key!r}: {dict(row)!r:.300}",
                hint=f"Name the column that tells rows apart: store.entities.{info.name}.id",
            )
        return value

    def reset(self) -> None:
        """Do nothing: this store cannot be restored as a whole."""

    def close(self) -> None:
        """Do nothing."""


def to_plain(value: Any, kind: ColumnType = ColumnType.UNKNOWN, *, parse_json: bool = False) -> Any:
    """Return a value as JSON; `parse_json` if the driver returns JSON columns as text."""
    if value is None:
        return None
    if kind is ColumnType.BOOLEAN and isinstance(value, int | float) and value in {0, 1}:
        return bool(value)
    if kind in {ColumnType.DATETIME, ColumnType.DATE} and isinstance(value, str):
        try:
            is_day = kind is ColumnType.DATE
            return date.fromisoformat(value).isoformat() if is_day else _format_utc(datetime.fromisoformat(value))
        except ValueError:
            return value
    if kind is ColumnType.JSON and parse_json and isinstance(value, str | bytes):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value if isinstance(value, str) else to_plain(value)
    return _to_plain_by_python_type(value, kind)


def _to_plain_by_python_type(value: Any, kind: ColumnType) -> Any:
    match value:
        case bool() | int() | str():
            return value.value if isinstance(value, Enum) else value
        case float():
            return value if math.isfinite(value) else str(value)
        case Decimal():
            if not value.is_finite():
                return str(value)
            if value == value.to_integral_value():
                return int(value)
            near = float(value)
            return near if Decimal(repr(near)) == value else format(value, "f")  # the digits, if a float changes them
        case datetime():
            return _format_utc(value)
        case date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case UUID():
            return str(value)
        case bytes() | bytearray() | memoryview():
            if kind is ColumnType.TEXT:
                with suppress(UnicodeDecodeError):
                    return bytes(value).decode()
            return BASE64 + base64.b64encode(value).decode()
        case Enum():
            return to_plain(value.value)
        case Mapping():
            return {str(name): to_plain(member) for name, member in value.items()}
        case list() | tuple() | set() | frozenset():
            return [to_plain(member) for member in value]
        case _:
            return str(value)


def to_driver_value(value: Any, kind: ColumnType, *, zone: bool = True) -> Any:
    """Return a driver's value for JSON; `zone`: dates with time keep theirs, else UTC. Raises ValueError."""
    if value is None:
        return None
    if kind is ColumnType.BYTES and isinstance(value, str):
        try:
            return base64.b64decode(value[len(BASE64) :], validate=True) if value.startswith(BASE64) else value.encode()
        except binascii.Error as error:
            raise ValueError(f"{value!r} is not base64: {error}") from None
    if kind in {ColumnType.DATETIME, ColumnType.DATE} and isinstance(value, str):
        return _parse_date_or_datetime(value, kind, zone=zone)
    if kind is ColumnType.BOOLEAN and not isinstance(value, bool) and value not in (0, 1):
        raise ValueError(f"{value!r} is neither true nor false")
    if kind is ColumnType.INTEGER and (isinstance(value, str) or (isinstance(value, float) and not value.is_integer())):
        raise ValueError(f"{value!r} is not a whole number")
    if kind is ColumnType.UUID:
        try:
            return str(UUID(str(value)))
        except ValueError:
            raise ValueError(f"{value!r} is not a UUID") from None
    if kind is ColumnType.JSON or isinstance(value, Mapping | list | tuple):
        return json.dumps(value, ensure_ascii=False)
    return value


def convert_key_to_column_type(value: Any, kind: ColumnType) -> Any:
    """Convert a key to its column's type: keys are often texts after passing through a prompt or a URL."""
    if kind is ColumnType.TEXT and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if kind is ColumnType.INTEGER and isinstance(value, str):
        text = value.strip()
        return int(text) if text.removeprefix("-").isdecimal() else value
    return value


def is_same_plain_value(one: object, other: object) -> bool:
    """Compare plain values: 1 equals 1.0, but not true, and not a text."""
    return isinstance(one, bool) is isinstance(other, bool) and one == other


def filter_sort_and_limit_rows(rows: Iterable[Row], filters: Mapping[str, Any], key: str, limit: int | None) -> Rows:
    found = (row for row in rows if all(is_same_plain_value(row.get(name), value) for name, value in filters.items()))
    return sort_rows_by_key(found, key)[:limit]


def _format_utc(value: datetime) -> str:
    """Return ISO-8601 in UTC with a Z; a time without a zone is taken as UTC."""
    moment = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    return moment.isoformat().replace("+00:00", "Z")


def _parse_date_or_datetime(value: str, kind: ColumnType, *, zone: bool) -> datetime | date:
    try:
        if kind is ColumnType.DATE:
            return date.fromisoformat(value)
        moment = datetime.fromisoformat(value)
    except ValueError:
        wanted = "2027-01-31" if kind is ColumnType.DATE else "2027-01-31T12:00:00Z"
        raise ValueError(f"{value!r} is not a date like {wanted}") from None
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return moment if zone else moment.replace(tzinfo=None)


@dataclass(frozen=True, slots=True)
class DeclaredEntityColumns:
    key: str = "id"
    user: str | None = None
    columns: tuple[str, ...] = ()
    """All of its columns; empty: any."""
    reuses: bool = False
    """Whether a deleted row's number may be reused."""

    def describe(self, entity: str, seen: Iterable[str]) -> EntityInfo:
        names = dict.fromkeys((self.key, *([self.user] if self.user else []), *(self.columns or seen)))
        columns = {name: Column(name) for name in names}
        return EntityInfo(entity, self.key, self.user, columns, closed=bool(self.columns), reuses=self.reuses)


def parse_declared_entity(
    given: Mapping[str, Any], at: str, members: Sequence[str], *, reuses: bool = False
) -> DeclaredEntityColumns:
    """Parse an entity of `store.entities` without a schema, with these keys. Raises SuiteError."""
    for member in given:
        if member not in members:
            raise SuiteError(f"{at}: unknown key {member!r}{did_you_mean(str(member), members)}")
    key, user, columns = given.get("id", "id"), given.get("user"), given.get("columns") or []
    if not isinstance(key, str) or not (user is None or isinstance(user, str)):
        raise SuiteError(f"{at}: id and user are names of members, got {key!r} and {user!r}")
    if not isinstance(columns, list) or not all(isinstance(each, str) for each in columns):
        raise SuiteError(f"{at}.columns: expected a list of names, got {columns!r}")
    if not isinstance(given.get("reuses", reuses), bool):
        raise SuiteError(f"{at}.reuses: expected true or false, got {given['reuses']!r}")
    return DeclaredEntityColumns(key, user, tuple(columns), given.get("reuses", reuses))
