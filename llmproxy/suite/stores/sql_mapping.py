"""Mapping of entities to tables and columns: by name, or as configured in the suite.

      tasks: {table: app_tasks, id: task_id, user: owner, title: heading, columns: {dueDate: due_at}}

Any key that is not RESERVED is a column, `suite's name: database's name`. Unmapped columns keep their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, TableClause, column, literal, table, text, types
from sqlalchemy.engine.reflection import Inspector

from llmproxy.did_you_mean import did_you_mean
from llmproxy.errors import SuiteError
from llmproxy.suite.stores.protocol import Column, EntityInfo, Kind, unknown_column, unknown_entity

RESERVED = ("table", "schema", "id", "user", "columns", "reuses")
USER_COLUMNS = ("userId", "user_id")


@dataclass(frozen=True, slots=True)
class TableMap:
    table: str = ""
    schema: str | None = None
    key: str | None = None
    user: str | None = None
    """Owner column; empty: rows have no owner; None: by convention."""
    columns: Mapping[str, str] | None = None
    reuses: bool | None = None
    """Whether a deleted row's number may be reused; None: by the database's behaviour."""


@dataclass(frozen=True, slots=True)
class MappedEntity:
    info: EntityInfo
    table: TableClause
    zones: frozenset[str]
    """Columns whose dates keep their time zone."""
    serial: str | None
    """Database name of the key column if the database numbers it."""

    @property
    def key(self) -> ColumnElement[Any]:
        return self.table.c[self.info.columns[self.info.key].source]


def read_table_maps(entities: Mapping[str, Any], user: str | None) -> dict[str, TableMap]:
    """Parse `store.entities`; `user` is the owner column of the whole store, None if not given."""
    maps: dict[str, TableMap] = {}
    for name, value in entities.items():
        at = f"store.entities.{name}"
        given = {"table": value} if isinstance(value, str) else value or {}
        if not isinstance(given, Mapping):
            raise SuiteError(f"{at}: expected a table's name or a mapping, got {value!r}")
        columns = given.get("columns") or {}
        if not isinstance(columns, Mapping):
            raise SuiteError(f"{at}.columns: expected `name in the suite: name in the database`, got {columns!r}")
        renamed = {**{k: v for k, v in given.items() if k not in RESERVED}, **columns}
        texts = {**renamed, **{k: given[k] for k in ("table", "schema", "id") if given.get(k) is not None}}
        for key, said in texts.items():
            if not isinstance(said, str) or not said:
                raise SuiteError(f"{at}.{key}: expected a name, got {said!r}{did_you_mean(key, RESERVED)}")
        reuses = given.get("reuses")
        if reuses is not None and not isinstance(reuses, bool):
            raise SuiteError(f"{at}.reuses: expected true or false, got {reuses!r}")
        maps[name] = TableMap(
            given.get("table", name),
            given.get("schema"),
            given.get("id"),
            read_owner_column(given, at, user),
            renamed,
            reuses,
        )
    return maps


def read_owner_column(given: Mapping[str, Any], at: str, default: str | None) -> str | None:
    """Return the owner column: empty if rows have no owner, `default` if not given."""
    if "user" not in given:
        return default
    if given["user"] is not None and not isinstance(given["user"], str):
        raise SuiteError(f"{at}.user: expected a column's name or null, got {given['user']!r}")
    return given["user"] or ""


def map_entity(
    inspector: Inspector, name: str, declared: TableMap | None, user: str | None, names: list[str]
) -> MappedEntity:
    """Map an entity to the database; `names` are declared ones. Raises UnknownEntity, UnknownColumn."""
    mapping = declared or TableMap(name, user=user)
    tables = [*inspector.get_table_names(mapping.schema), *inspector.get_view_names(mapping.schema)]
    if mapping.table not in tables:
        what = f"is mapped to the table {mapping.table!r}" if declared and mapping.table != name else "has no table"
        raise unknown_entity(
            name, {*names, *tables} - {name}, f"{name!r} {what}, map it: store.entities.{name}: {{table: NAME}}"
        )
    reflected = {str(each["name"]): each for each in inspector.get_columns(mapping.table, mapping.schema)}
    back = _map_columns_to_suite_names(name, mapping, reflected)
    columns = {back[each]: Column(back[each], get_column_kind(spec["type"]), each) for each, spec in reflected.items()}
    key = _find_key(inspector, name, mapping, back, columns)
    if mapping.user is None:
        owner = next((back[each] for each in USER_COLUMNS if each in back), None)
    else:
        owner = (
            _get_suite_column_name(mapping.user, back, EntityInfo(name, columns=columns), "user")
            if mapping.user
            else None
        )
    spec = reflected[columns[key].source]
    counted = spec.get("autoincrement") is True or spec.get("identity") or "nextval" in str(spec.get("default") or "")
    serial = columns[key].source if counted or columns[key].kind is Kind.INTEGER else None
    info = EntityInfo(
        name, key, owner, columns, closed=True, counted=serial is not None,
        reuses=_has_reused_keys(inspector, mapping, columns[key]) if mapping.reuses is None else mapping.reuses,
    )  # fmt: skip
    zones = frozenset(each for each, spec in reflected.items() if getattr(spec["type"], "timezone", False))
    # Without types values come as the driver returns them; `to_plain` interprets them.
    untyped = table(mapping.table, *map(column, reflected), schema=mapping.schema)
    return MappedEntity(info, untyped, zones, serial)


def _map_columns_to_suite_names(name: str, mapping: TableMap, reflected: Mapping[str, Any]) -> dict[str, str]:
    back = {each: each for each in reflected}
    known = EntityInfo(name, columns={each: Column(each) for each in reflected})
    for suite, source in (mapping.columns or {}).items():
        if source not in reflected:
            near = did_you_mean(suite, RESERVED)
            raise unknown_column(known, source, f"store.entities.{name}.{suite}" + (f" ({near[2:]})" if near else ""))
        back[source] = suite
    doubled = [suite for suite in back.values() if list(back.values()).count(suite) > 1]
    if doubled:
        raise SuiteError(f"store.entities.{name}: two columns would be called {doubled[0]!r}")
    return back


def get_column_kind(type_: Any) -> Kind:
    if type(type_).__name__ == "TINYINT" and getattr(type_, "display_width", None) == 1:
        return Kind.BOOLEAN  # as MySQL spells it
    kinds = (
        (types.Boolean, Kind.BOOLEAN), (types.Integer, Kind.INTEGER), (types.Numeric, Kind.NUMBER),
        (types.DateTime, Kind.DATETIME), (types.Date, Kind.DATE), (types.Time, Kind.TIME), (types.Uuid, Kind.UUID),
        (types.LargeBinary, Kind.BYTES), (types.JSON, Kind.JSON), (types.String, Kind.TEXT),
    )  # fmt: skip
    return next((kind for class_, kind in kinds if isinstance(type_, class_)), Kind.UNKNOWN)


def _find_key(
    inspector: Inspector, name: str, mapping: TableMap, back: Mapping[str, str], columns: Mapping[str, Column]
) -> str:
    if mapping.key is not None:
        return _get_suite_column_name(mapping.key, back, EntityInfo(name, columns=columns), "id")
    primary = inspector.get_pk_constraint(mapping.table, mapping.schema)["constrained_columns"]
    if len(primary) == 1:
        return back[primary[0]]
    if not primary and "id" in columns:
        return "id"  # a view
    what = f"a primary key of several columns ({', '.join(primary)})" if primary else "no primary key"
    raise SuiteError(
        f"{name}: the table {mapping.table} has {what}",
        hint=f"Name a column that tells rows apart: store.entities.{name}.id",
    )


def _get_suite_column_name(said: str, back: Mapping[str, str], info: EntityInfo, key: str) -> str:
    """Return the suite's name of a column that is named by either side. Raises UnknownColumn."""
    if said in info.columns:
        return said
    if said not in back:
        raise unknown_column(info, said, f"store.entities.{info.name}.{key}")
    return back[said]


def _has_reused_keys(inspector: Inspector, mapping: TableMap, key: Column) -> bool:
    """Return whether numbers may be reused: SQLite does, unless the table has AUTOINCREMENT."""
    if inspector.dialect.name != "sqlite" or key.kind is not Kind.INTEGER:
        return False
    query = text("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = :name")
    bind: Any = inspector.bind
    found = bind.execute(query, {"name": mapping.table}).scalar()
    return found is not None and "AUTOINCREMENT" not in str(found).upper()


def build_untyped_parameter(value: Any) -> ColumnElement[Any]:
    """Build a parameter without a type: PostgreSQL then parses a text by its column."""
    return literal(value, types.NullType())
