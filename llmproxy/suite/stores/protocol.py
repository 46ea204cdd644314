"""What a store is: the place where the agent under test keeps its entities, seen through one small interface.

An *entity* is a kind of thing (``tasks``), a *row* one of them, as plain JSON values whatever the database made of it:
dates are ISO-8601 texts in UTC, UUIDs texts, decimals numbers, truth values true or false (`value_conversion`). Names
are those of the suite; an adapter maps them to tables and columns. What it does not know, a name or a type, it refuses:
a condition that is dropped makes a result wider, and a test pass.

An adapter reads and writes at once: a row that it inserted is seen by the agent before `insert` returns, and a row
that the agent wrote is seen by the next `list`. Adapters are used from several threads, one call at a time each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from llmproxy.did_you_mean import did_you_mean
from llmproxy.errors import MachineError, SuiteError

Row = dict[str, Any]
"""One row: the suite's names of its columns, and plain JSON values."""

Rows = list[Row]

Id = str | int | float
"""A primary key."""

Ids = list[Id]


class StoreError(MachineError):
    """The store cannot be used: nothing can be said about the agent."""

    code = "llmproxy_suite_store"


class StoreLost(StoreError):
    """The store went away in the middle. Reading was tried again once; writing never is."""

    code = "llmproxy_suite_store_lost"


class StoreRefused(StoreError):
    """The store does not take this: a constraint, a missing right, a value of the wrong type."""

    code = "llmproxy_suite_store_refused"


class UnknownEntity(SuiteError):
    code = "llmproxy_suite_unknown_entity"


class UnknownColumn(SuiteError):
    code = "llmproxy_suite_unknown_column"


class Kind(StrEnum):
    """What a column holds, as far as a test must know."""

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
    """As the suite says it."""
    kind: Kind = Kind.UNKNOWN
    source: str = ""
    """As the store says it."""


@dataclass(frozen=True, slots=True)
class EntityInfo:
    name: str
    key: str = "id"
    """The column that tells one row from another."""
    user: str | None = None
    """The column that says whose row it is; None: rows belong to nobody, and are never narrowed to a user."""
    columns: Mapping[str, Column] = field(default_factory=dict)
    closed: bool = True
    """Whether `columns` are all there are. A store without a schema (HTTP, memory) only knows what it saw."""
    reuses: bool = False
    """Whether the number of a row that was deleted may be given to a new one."""
    counted: bool = False
    """Whether the store numbers new rows itself, so that a row's key depends on those that came before."""

    def check(self, names: Iterable[str], where: str) -> None:
        """Refuse columns that it lacks; `where` says who named them (``filters``). Raises UnknownColumn."""
        for name in names:
            if self.closed and name not in self.columns:
                raise unknown_column(self, name, where)


@dataclass(frozen=True, slots=True)
class Snapshot:
    ids: Mapping[str, frozenset[Id]]
    """Of each entity, the keys of the rows that existed."""
    user: str | None = None
    """Whose rows were looked at; None: everybody's."""


class StoreAdapter(Protocol):
    """A store. `llmproxy.suite.stores.protocol.StoreBase` supplies what can be derived from the rest."""

    def describe(self, entity: str) -> EntityInfo:
        """Describe what is known about an entity; UnknownEntity if there is none of this name."""

    def insert(self, entity: str, data: Mapping[str, Any]) -> Row:
        """Add a row and return it as the store has it now: its key and defaults are filled in."""

    def get(self, entity: str, id: Id) -> Row | None:  # noqa: A002 - the word that suites use
        """Return the row of this key, None if there is none."""

    def list(self, entity: str, filters: Mapping[str, Any] | None = None, limit: int | None = None) -> Rows:
        """Return the rows whose columns equal these values, in the order of their keys; at most `limit`."""

    def delete(self, entity: str, id: Id) -> bool:  # noqa: A002 - the word that suites use
        """Remove a row; False if it was not there."""

    def snapshot(self, entities: Sequence[str], user: str | None = None) -> Snapshot:
        """Remember which rows there are, of this user where an entity has a user column."""

    def changes(self, snapshot: Snapshot) -> dict[str, Rows]:
        """Return the rows of each entity of the snapshot that were not there then, in the order of their keys."""

    def reset(self) -> None:
        """Bring the store back to where it was, as its configuration says (truncate, copy), if it does."""

    def close(self) -> None:
        """Let go of connections. Nothing is asked of it afterwards."""


@runtime_checkable
class Restorable(Protocol):
    """A store that can also come back to where it was: what `reset` and the counters of a run need."""

    def mark(self) -> None:
        """Remember the whole store as it is, for `reset` to come back to; nothing if its `reset` needs no memory."""

    def counters(self, entities: Sequence[str]) -> Mapping[str, tuple[int, bool]]:
        """Return where the counters of these entities' keys stand."""

    def rewind(self, counters: Mapping[str, tuple[int, bool]]) -> None:
        """Set counters back to where they stood, never below a key that is in use."""


def unknown_entity(name: str, known: Iterable[str], hint: str = "") -> UnknownEntity:
    """Make the error for an entity that the store does not have."""
    names = sorted(known)
    there = f"It has {', '.join(names[:20])}{' ...' if len(names) > 20 else ''}." if names else "It has none."
    return UnknownEntity(f"the store has no entity {name!r}{_suggest(name, names)}\n{there}", hint=hint)


def unknown_column(info: EntityInfo, name: str, where: str) -> UnknownColumn:
    names = list(info.columns)
    hint = ""
    alike = [each for each in names if fold_name(each) == fold_name(name) and each != name]
    if alike:
        hint = f"Write {alike[0]!r}, or map the name: store.entities.{info.name}.columns: {{{name}: {alike[0]}}}"
    return UnknownColumn(
        f"{where}: {info.name} has no column {name!r}{_suggest(name, names)}\nIt has {', '.join(names)}.", hint=hint
    )


def _suggest(name: str, names: Sequence[str]) -> str:
    folded = {fold_name(each): each for each in names}
    return f"; did you mean {folded[fold_name(name)]!r}?" if fold_name(name) in folded else did_you_mean(name, names)


def fold_name(name: str) -> str:
    """Make dueDate, due_date and DUE_DATE the same."""
    return name.replace("_", "").replace("-", "").casefold()


def sort_rows(rows: Iterable[Row], key: str) -> Rows:
    """Sort rows by their key: numbers by value, then texts."""
    return sorted(rows, key=lambda row: key_order(row.get(key)))


def key_order(value: object) -> tuple[int, float, str]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return (0, float(value), "")
    return (1, 0.0, str(value))


class StoreBase:
    """A store that can describe and list; to be completed by `describe`, `insert`, `get`, `list` and `delete`."""

    def describe(self, entity: str) -> EntityInfo:
        """Describe what is known about an entity."""
        raise NotImplementedError

    def list(self, entity: str, filters: Mapping[str, Any] | None = None, limit: int | None = None) -> Rows:
        """Return the rows whose columns equal these values, in the order of their keys."""
        raise NotImplementedError

    def snapshot(self, entities: Sequence[str], user: str | None = None) -> Snapshot:
        return Snapshot({name: frozenset(self.ids(name, user)) for name in dict.fromkeys(entities)}, user)

    def changes(self, snapshot: Snapshot) -> dict[str, Rows]:
        new: dict[str, Rows] = {}
        for name, before in snapshot.ids.items():
            info = self.describe(name)
            rows = self.list(name, self.scope(info, snapshot.user))
            new[name] = sort_rows((row for row in rows if self.key(info, row) not in before), info.key)
        return new

    def ids(self, entity: str, user: str | None) -> Ids:
        """Return the keys of all rows, of this user where the entity knows users."""
        info = self.describe(entity)
        return [self.key(info, row) for row in self.list(entity, self.scope(info, user))]

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
        """Do nothing: this store cannot be brought back as a whole."""

    def close(self) -> None:
        """Nothing to let go."""
