"""A store in this process's memory, for trying suites, and for agents that are Python functions in the same process.

Without `columns` an entity accepts any, and knows those that it has seen. Rows are copies.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llmproxy.did_you_mean import did_you_mean
from llmproxy.errors import SuiteError
from llmproxy.suite.stores.protocol import (
    Column,
    EntityInfo,
    Id,
    Row,
    Rows,
    StoreBase,
    StoreRefused,
    pick_rows,
    to_plain,
    unknown_entity,
)


@dataclass(frozen=True, slots=True)
class EntityShape:
    key: str = "id"
    user: str | None = None
    columns: tuple[str, ...] = ()
    """All of its columns; empty: any."""
    reuses: bool = False
    """Whether a deleted row's number may be reused."""

    def describe(self, entity: str, seen: Iterable[str]) -> EntityInfo:
        """Describe an entity of this shape; `seen` are the columns of its rows so far."""
        names = dict.fromkeys((self.key, *([self.user] if self.user else []), *(self.columns or seen)))
        columns = {name: Column(name) for name in names}
        return EntityInfo(entity, self.key, self.user, columns, closed=bool(self.columns), reuses=self.reuses)


def read_entity_shape(
    given: Mapping[str, Any], at: str, members: Sequence[str], *, reuses: bool = False
) -> EntityShape:
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
    return EntityShape(key, user, tuple(columns), given.get("reuses", reuses))


@dataclass(slots=True)
class _MemoryTable:
    rows: dict[Id, Row] = field(default_factory=dict)
    last: int = 0
    seen: dict[str, None] = field(default_factory=dict)


class MemoryStore(StoreBase):
    def __init__(self, entities: Mapping[str, EntityShape] | None = None) -> None:
        """Start empty. Without `entities` any name is valid, with the key `id` and no user."""
        self._shapes = dict(entities or {})
        self._open = not self._shapes
        self._tables: dict[str, _MemoryTable] = {}
        self._lock = threading.Lock()

    def describe(self, entity: str) -> EntityInfo:
        if not self._open and entity not in self._shapes:
            raise unknown_entity(entity, self._shapes, f"Declare it: store.entities.{entity}")
        table = self._tables.get(entity)
        return self._shapes.get(entity, EntityShape()).describe(entity, table.seen if table else ())

    def insert(self, entity: str, data: Mapping[str, Any]) -> Row:
        info = self.describe(entity)
        info.check(data, "insert")
        with self._lock:
            table = self._tables.setdefault(entity, _MemoryTable())
            row: Row = {name: to_plain(copy.deepcopy(value)) for name, value in data.items()}
            if row.get(info.key) is None:
                table.last += 1
                row = {info.key: table.last, **{k: v for k, v in row.items() if k != info.key}}
            key = self.key(info, row)
            if key in table.rows:
                raise StoreRefused(f"{entity} has a row {info.key}={key!r} already")
            if isinstance(key, int):
                table.last = max(table.last, key)
            table.rows[key] = row
            table.seen |= dict.fromkeys(row)
        return copy.deepcopy(row)

    def update(self, entity: str, id: Id, data: Mapping[str, Any]) -> Row | None:  # noqa: A002 - suites' word
        """Change a row, like an agent in this process; None if it does not exist."""
        self.describe(entity).check(data, "update")
        with self._lock:
            table = self._tables.setdefault(entity, _MemoryTable())
            row = table.rows.get(id)
            if row is not None:
                row.update({name: to_plain(copy.deepcopy(value)) for name, value in data.items()})
                table.seen |= dict.fromkeys(row)
        return copy.deepcopy(row)

    def get(self, entity: str, id: Id) -> Row | None:  # noqa: A002 - suites' word
        self.describe(entity)
        with self._lock:
            table = self._tables.get(entity)
            if table is None:
                return None
            # A key that came out of a text (an interpolated id) finds the number that it spells.
            same = table.rows.get(id) or next((r for key, r in table.rows.items() if str(key) == str(id)), None)
            return copy.deepcopy(same)

    def list(self, entity: str, filters: Mapping[str, Any] | None = None, limit: int | None = None) -> Rows:
        info = self.describe(entity)
        info.check(filters or {}, "filters")
        with self._lock:
            table = self._tables.get(entity)
            rows = list(table.rows.values()) if table else []
            return copy.deepcopy(pick_rows(rows, filters or {}, info.key, limit))

    def delete(self, entity: str, id: Id) -> bool:  # noqa: A002 - suites' word
        self.describe(entity)
        with self._lock:
            table = self._tables.get(entity)
            return table is not None and table.rows.pop(id, None) is not None

    def reset(self) -> None:
        with self._lock:
            self._tables.clear()
