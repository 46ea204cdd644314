"""A database as store, by URL: SQLite and PostgreSQL are tested, others that SQLAlchemy supports may work.

Each call is a transaction of its own, so that we and the agent see each other's commits. A read is retried once on a
new connection; a statement that may have written never. The URL is the agent's own: an asyncio-only driver is replaced
by another one. SQLite files are never created here: an empty database from a misspelt path would answer every query.

      tasks: {table: app_tasks, id: task_id, user: owner, title: heading, columns: {dueDate: due_at}}

In the mapping of an entity any key that is not RESERVED is a column, `suite's name: database's name`.
"""

from __future__ import annotations

import importlib.util
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import batched
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from llmproxy.did_you_mean import did_you_mean
from llmproxy.errors import MachineError, SuiteError
from llmproxy.sqlite_file import open_sqlite_connection
from llmproxy.suite.stores.protocol import (
    Column,
    ColumnType,
    EntityInfo,
    Id,
    Ids,
    Row,
    RowKeySnapshot,
    Rows,
    StoreBase,
    StoreError,
    StoreLost,
    StoreOperationRejectedError,
    build_row_key_sort_key,
    build_unknown_column_error,
    build_unknown_entity_error,
    convert_key_to_column_type,
    index_rows_by_key,
    sort_rows_by_key,
    to_driver_value,
    to_plain,
)

RESERVED = ("table", "schema", "id", "user", "columns", "reuses")
USER_COLUMNS = ("userId", "user_id")
_DRIVERS = {
    "postgresql": ("psycopg", "psycopg2", "pg8000"),
    "mysql": ("pymysql", "mysqlclient:MySQLdb", "mysqlconnector:mysql.connector"),
    "mariadb": ("pymysql", "mysqlclient:MySQLdb", "mariadbconnector:mariadb"),
}
"""Drivers that need no event loop, in order of preference; after a colon the module, if its name differs."""
_ASYNC = {"asyncpg", "psycopg_async", "aiopg", "aiosqlite", "aiomysql", "asyncmy"}
_BUSY_SECONDS = 15
"""Seconds that SQLite waits while the agent writes."""
_CONNECT_SECONDS = 10
_COPY = "copy.db"
_BATCH = 500
"""Keys in one statement: old SQLite versions accept 999 variables."""


@dataclass(frozen=True, slots=True)
class EntityTableMapping:
    table: str = ""
    schema: str | None = None
    key: str | None = None
    user: str | None = None
    """Owner column; empty: rows have no owner; None: by convention."""
    columns: Mapping[str, str] | None = None
    reuses: bool | None = None
    """Whether a deleted row's number may be reused; None: by the database's behaviour."""


@dataclass(frozen=True, slots=True)
class EntityMappedToSqlTable:
    info: EntityInfo
    table: sa.TableClause
    zones: frozenset[str]
    """Columns whose dates keep their time zone."""
    serial: str | None
    """Database name of the key column if the database numbers it."""

    @property
    def key(self) -> sa.ColumnElement[Any]:
        return self.table.c[self.info.columns[self.info.key].source]


def parse_suite_entity_table_mappings(entities: Mapping[str, Any], user: str | None) -> dict[str, EntityTableMapping]:
    """Parse `store.entities`; `user` is the owner column of the whole store, None if not given."""
    maps: dict[str, EntityTableMapping] = {}
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
        if (reuses := given.get("reuses")) is not None and not isinstance(reuses, bool):
            raise SuiteError(f"{at}.reuses: expected true or false, got {reuses!r}")
        owner = read_owner_column_setting(given, at, user)
        maps[name] = EntityTableMapping(
            given.get("table", name), given.get("schema"), given.get("id"), owner, renamed, reuses
        )
    return maps


def read_owner_column_setting(given: Mapping[str, Any], at: str, default: str | None) -> str | None:
    """Return the owner column: empty if rows have no owner, `default` if not given."""
    if "user" not in given:
        return default
    if given["user"] is not None and not isinstance(given["user"], str):
        raise SuiteError(f"{at}.user: expected a column's name or null, got {given['user']!r}")
    return given["user"] or ""


def map_entity_to_table(
    inspector: sa.Inspector, name: str, declared: EntityTableMapping | None, user: str | None, names: list[str]
) -> EntityMappedToSqlTable:
    """Map an entity to the database; `names` are declared ones. Raises UnknownEntity, UnknownColumn."""
    mapping = declared or EntityTableMapping(name, user=user)
    tables = [*inspector.get_table_names(mapping.schema), *inspector.get_view_names(mapping.schema)]
    if mapping.table not in tables:
        what = f"is mapped to the table {mapping.table!r}" if declared and mapping.table != name else "has no table"
        raise build_unknown_entity_error(
            name, {*names, *tables} - {name}, f"{name!r} {what}, map it: store.entities.{name}: {{table: NAME}}"
        )
    reflected = {str(each["name"]): each for each in inspector.get_columns(mapping.table, mapping.schema)}
    back = _map_columns_to_suite_names(name, mapping, reflected)
    columns = {back[each]: Column(back[each], get_column_kind(spec["type"]), each) for each, spec in reflected.items()}
    key = _find_key(inspector, name, mapping, back, columns)
    owner = None
    if mapping.user is None:
        owner = next((back[each] for each in USER_COLUMNS if each in back), None)
    elif mapping.user:
        owner = _get_suite_column_name(mapping.user, back, EntityInfo(name, columns=columns), "user")
    spec = reflected[columns[key].source]
    counted = spec.get("autoincrement") is True or spec.get("identity") or "nextval" in str(spec.get("default") or "")
    serial = columns[key].source if counted or columns[key].kind is ColumnType.INTEGER else None
    info = EntityInfo(
        name, key, owner, columns, closed=True, counted=serial is not None,
        reuses=_has_reused_keys(inspector, mapping, columns[key]) if mapping.reuses is None else mapping.reuses,
    )  # fmt: skip
    zones = frozenset(each for each, spec in reflected.items() if getattr(spec["type"], "timezone", False))
    # Without types values come as the driver returns them; `to_plain` interprets them.
    untyped = sa.table(mapping.table, *map(sa.column, reflected), schema=mapping.schema)
    return EntityMappedToSqlTable(info, untyped, zones, serial)


def _map_columns_to_suite_names(name: str, mapping: EntityTableMapping, reflected: Mapping[str, Any]) -> dict[str, str]:
    back = {each: each for each in reflected}
    known = EntityInfo(name, columns={each: Column(each) for each in reflected})
    for suite, source in (mapping.columns or {}).items():
        if source not in reflected:
            near = did_you_mean(suite, RESERVED)
            raise build_unknown_column_error(
                known, source, f"store.entities.{name}.{suite}" + (f" ({near[2:]})" if near else "")
            )
        back[source] = suite
    doubled = [suite for suite in back.values() if list(back.values()).count(suite) > 1]
    if doubled:
        raise SuiteError(f"store.entities.{name}: two columns would be called {doubled[0]!r}")
    return back


def get_column_kind(type_: Any) -> ColumnType:
    if type(type_).__name__ == "TINYINT" and getattr(type_, "display_width", None) == 1:
        return ColumnType.BOOLEAN  # as MySQL spells it
    kinds = (
        (sa.Boolean, ColumnType.BOOLEAN), (sa.Integer, ColumnType.INTEGER), (sa.Numeric, ColumnType.NUMBER),
        (sa.DateTime, ColumnType.DATETIME), (sa.Date, ColumnType.DATE), (sa.Time, ColumnType.TIME),
        (sa.Uuid, ColumnType.UUID), (sa.LargeBinary, ColumnType.BYTES), (sa.JSON, ColumnType.JSON),
        (sa.String, ColumnType.TEXT),
    )  # fmt: skip
    return next((kind for class_, kind in kinds if isinstance(type_, class_)), ColumnType.UNKNOWN)


def _find_key(
    inspector: sa.Inspector,
    name: str,
    mapping: EntityTableMapping,
    back: Mapping[str, str],
    columns: Mapping[str, Column],
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
        raise build_unknown_column_error(info, said, f"store.entities.{info.name}.{key}")
    return back[said]


def _has_reused_keys(inspector: sa.Inspector, mapping: EntityTableMapping, key: Column) -> bool:
    """Return whether numbers may be reused: SQLite does, unless the table has AUTOINCREMENT."""
    if inspector.dialect.name != "sqlite" or key.kind is not ColumnType.INTEGER:
        return False
    query = sa.text("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = :name")
    bind: Any = inspector.bind
    found = bind.execute(query, {"name": mapping.table}).scalar()
    return found is not None and "AUTOINCREMENT" not in str(found).upper()


def build_untyped_sql_parameter(value: Any) -> sa.ColumnElement[Any]:
    """Build a parameter without a type: PostgreSQL then parses a text by its column."""
    return sa.literal(value, sa.types.NullType())


def parse_database_url(text: str, folder: Path) -> sa.URL:
    """Parse a database URL and choose its driver. Raises SuiteError: invalid, or private; MachineError: no driver."""
    try:
        url = sa.make_url(text)
    except ArgumentError:
        raise SuiteError(
            f"store.sqlalchemy: {text!r} is no database URL",
            hint="Write sqlite:///tasks.db or postgresql://user:password@host/name",
        ) from None
    name, _, driver = url.drivername.partition("+")
    if name == "postgres":
        name = "postgresql"
    if name == "sqlite":
        url = url.set(drivername="sqlite")
        if not url.database or url.database == ":memory:":
            raise SuiteError(
                "store.sqlalchemy: a SQLite database in memory is seen by nobody else",
                hint="Name the file that the agent uses (sqlite:///tasks.db), or write `memory: {}`",
            )
        return url if url.database.startswith("file:") else url.set(database=str((folder / url.database).absolute()))
    if driver and driver not in _ASYNC:
        return url.set(drivername=f"{name}+{driver}")
    for each in _DRIVERS.get(name, ()):
        known, _, module = each.partition(":")
        if importlib.util.find_spec((module or known).partition(".")[0]):
            return url.set(drivername=f"{name}+{known}")
    if name in _DRIVERS:
        first = _DRIVERS[name][0]
        extra = "[binary]" if first == "psycopg" else ""
        raise MachineError(
            f"the store is {name}, and no driver for it is installed", hint=f"pip install '{first}{extra}'"
        )
    return url


def get_sqlite_url_path(url: sa.URL) -> Path | None:
    if url.get_backend_name() != "sqlite" or not url.database:
        return None
    return Path(url.database.removeprefix("file:").partition("?")[0])


def create_sqlalchemy_engine(url: sa.URL) -> sa.Engine:
    arguments: dict[str, Any] = {}
    if url.get_backend_name() == "sqlite":
        arguments = {"timeout": _BUSY_SECONDS}
    elif url.drivername in {"postgresql+psycopg", "postgresql+psycopg2", "mysql+pymysql", "mariadb+pymysql"}:
        arguments = {"connect_timeout": _CONNECT_SECONDS}
    try:
        # Tested before use: a connection that died while it was idle is replaced before anything is written to it.
        return sa.create_engine(url, pool_pre_ping=True, connect_args=arguments, hide_parameters=True)
    except (NoSuchModuleError, ImportError) as error:
        raise MachineError(f"the store {mask_url(url)} needs a driver that is not installed: {error}") from None


def mask_url(url: sa.URL) -> str:
    return url.render_as_string(hide_password=True)


@contextmanager
def translate_errors(url: sa.URL, doing: str) -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        said = " ".join(str(error.orig).split())[:500]
        if error.connection_invalidated or error.statement is None:  # a failed connect has no statement
            raise StoreLost(
                f"the store {mask_url(url)} cannot be reached ({doing}): {said}",
                hint="Is it running? Nothing was written twice.",
            ) from error
        raise StoreOperationRejectedError(f"the store {mask_url(url)} refused ({doing}): {said}") from error
    except SQLAlchemyError as error:
        raise StoreError(f"the store {mask_url(url)} failed ({doing}): {error}") from error


def _read_counter(connection: sa.Connection, mapped: EntityMappedToSqlTable) -> tuple[int, bool] | None:
    if connection.dialect.name == "sqlite":
        if not _has_sqlite_counters(connection):
            return None  # without AUTOINCREMENT the next key follows from the rows
        sql = sa.text("SELECT seq FROM sqlite_sequence WHERE name = :name")
        row = connection.execute(sql, {"name": mapped.table.name}).first()
        return (int(row[0]) if row else 0, True)
    name = _sequence_name(connection, mapped) if connection.dialect.name == "postgresql" else None
    query = sa.text(f"SELECT last_value, is_called FROM {name}")  # noqa: S608 - the database gave the name, quoted
    row = connection.execute(query).first() if name else None
    return (int(row[0]), bool(row[1])) if row else None


def _rewind_counter(mapped: EntityMappedToSqlTable, value: int, connection: sa.Connection, *, called: bool) -> None:
    largest = int(connection.execute(sa.select(sa.func.max(mapped.key))).scalar() or 0)
    last, given = (value, called) if value > largest or (value == largest and called) else (largest, largest > 0)
    if connection.dialect.name == "sqlite":
        sql = sa.text("UPDATE sqlite_sequence SET seq = :seq WHERE name = :name")
        connection.execute(sql, {"seq": last if given else 0, "name": mapped.table.name})
    else:
        sql = sa.text("SELECT setval(CAST(:name AS regclass), :last, :called)")
        connection.execute(sql, {"name": _sequence_name(connection, mapped), "last": max(last, 1), "called": given})


def _has_sqlite_counters(connection: sa.Connection) -> bool:
    return connection.execute(sa.text("SELECT 1 FROM sqlite_master WHERE name = 'sqlite_sequence'")).first() is not None


def _sequence_name(connection: sa.Connection, mapped: EntityMappedToSqlTable) -> str | None:
    table = connection.dialect.identifier_preparer.format_table(mapped.table)
    found = connection.execute(
        sa.text("SELECT pg_get_serial_sequence(:table, :column)"), {"table": table, "column": mapped.serial}
    ).scalar()
    return str(found) if found else None


def _copy_sqlite_pages(source: Path, target: Path) -> None:
    """Copy a SQLite file by its pages: the agent may keep it open. Raises StoreError: somebody holds it too long."""
    try:
        with (
            closing(open_sqlite_connection(source, "mode=ro", timeout=_BUSY_SECONDS)) as old,
            closing(open_sqlite_connection(target, "mode=rwc", timeout=_BUSY_SECONDS)) as new,
        ):
            old.backup(new)
    except sqlite3.Error as error:
        raise StoreError(
            f"cannot copy the database {source} to {target}: {error}", hint="Does the agent hold a transaction open?"
        ) from error


type Conditions = list[sa.ColumnElement[bool]]
"""A name, since `list` is a method of stores."""


class SqlEntityStore(StoreBase):
    def __init__(
        self, url: str, folder: Path, entities: Mapping[str, EntityTableMapping] | None = None, *,
        user: str | None = None, reset: str = "",
    ) -> None:  # fmt: skip
        """Prepare, unconnected. `user`: of unmapped entities; `reset`: `truncate`, `copy` from `mark`, or nothing."""
        self.url = parse_database_url(url, folder)
        self._maps = dict(entities or {})
        self._user = user
        self._engine: sa.Engine = create_sqlalchemy_engine(self.url)
        self._known: dict[str, EntityMappedToSqlTable] = {}
        self._lock = threading.Lock()
        self._reset = reset
        self._file = get_sqlite_url_path(self.url)
        self._backup: tempfile.TemporaryDirectory[str] | None = None

    def find_table(self, entity: str) -> EntityMappedToSqlTable:
        with self._lock:
            if entity not in self._known:
                declared, names = self._maps.get(entity), list(self._maps)
                self._known[entity] = self.run_read_with_retry(
                    lambda c: map_entity_to_table(sa.inspect(c), entity, declared, self._user, names),
                    f"looking at {entity}",
                )
            return self._known[entity]

    def describe(self, entity: str) -> EntityInfo:
        return self.find_table(entity).info

    def get(self, entity: str, id: Id) -> Row | None:  # noqa: A002 - the word that suites use
        rows = self.list(entity, {self.describe(entity).key: id}, 1)
        return rows[0] if rows else None

    def list(self, entity: str, filters: Mapping[str, Any] | None = None, limit: int | None = None) -> Rows:
        mapped = self.find_table(entity)
        mapped.info.check(filters or {}, "filters")
        if (where := self._build_conditions(mapped, filters or {})) is None:
            return []
        return self._read_rows(mapped, sa.select(*mapped.table.c).where(*where).order_by(mapped.key).limit(limit))

    def ids(self, entity: str, user: str | None) -> Ids:
        mapped = self.find_table(entity)
        where = self._build_conditions(mapped, self.scope(mapped.info, user))
        query, kind = sa.select(mapped.key).where(*(where or ())), mapped.info.columns[mapped.info.key].kind
        found = self.run_read_with_retry(lambda c: c.execute(query).scalars().all(), f"listing the keys of {entity}")
        return [*index_rows_by_key(mapped.info, [{mapped.info.key: to_plain(value, kind)} for value in found])]

    def changes(self, snapshot: RowKeySnapshot) -> dict[str, Rows]:
        """Return the new rows; only these are fetched, however large the table."""
        new: dict[str, Rows] = {}
        for name, before in snapshot.ids.items():
            mapped = self.find_table(name)
            key = mapped.info.columns[mapped.info.key]
            found = [each for each in self.ids(name, snapshot.user) if each not in before]
            keys = sorted(found, key=build_row_key_sort_key)
            new[name] = []
            for part in batched(keys, _BATCH):
                values = [build_untyped_sql_parameter(self._to_native(mapped, key, value)) for value in part]
                query = sa.select(*mapped.table.c).where(mapped.key.in_(values))
                new[name] += sort_rows_by_key(self._read_rows(mapped, query), key.name)
        return new

    def _read_rows(self, mapped: EntityMappedToSqlTable, query: sa.Select[Any]) -> Rows:
        found = self.run_read_with_retry(lambda c: c.execute(query).all(), f"reading {mapped.info.name}")
        columns = mapped.info.columns.values()
        parse = self.url.get_backend_name() != "postgresql"
        return [
            {c.name: to_plain(v, c.kind, parse_json=parse) for c, v in zip(columns, values, strict=True)}
            for values in found
        ]

    def _build_conditions(self, mapped: EntityMappedToSqlTable, filters: Mapping[str, Any]) -> Conditions | None:
        """Return the conditions; None if a value cannot be in its column (a text in a numeric column)."""
        where: Conditions = []
        for name, value in filters.items():
            column = mapped.info.columns[name]
            clause = mapped.table.c[column.source]
            if value is None:
                where.append(clause.is_(None))
                continue
            if name == mapped.info.key:
                value = convert_key_to_column_type(value, column.kind)  # noqa: PLW2901 - in the key's type
            try:
                where.append(clause == build_untyped_sql_parameter(self._to_native(mapped, column, value)))
            except ValueError:
                return None
        return where

    def _to_native(self, mapped: EntityMappedToSqlTable, column: Column, value: Any) -> Any:
        """Return the driver's value; SQLite keeps dates as texts, in whatever form the agent writes them."""
        kind = column.kind
        if self.url.get_backend_name() == "sqlite" and kind in {ColumnType.DATETIME, ColumnType.DATE, ColumnType.UUID}:
            kind = ColumnType.UNKNOWN
        return to_driver_value(value, kind, zone=column.source in mapped.zones)

    def insert(self, entity: str, data: Mapping[str, Any]) -> Row:
        mapped = self.find_table(entity)
        info = mapped.info
        info.check(data, "insert")
        values = {}
        for name, value in data.items():
            column = info.columns[name]
            try:
                values[column.source] = self._to_native(mapped, column, value)
            except ValueError as error:
                raise StoreOperationRejectedError(f"insert into {entity}: {name}: {error}") from None
        key = info.columns[info.key]
        statement = sa.insert(mapped.table).values(values)

        def add(connection: sa.Connection) -> Any:
            if connection.dialect.insert_returning:
                return connection.execute(statement.returning(mapped.key)).scalar_one()
            return values.get(key.source, connection.execute(statement).lastrowid)

        made = to_plain(self.run_write(add, f"inserting into {entity}"), key.kind)
        row = None if made is None else self.get(entity, made)
        if row is None:
            raise StoreError(f"a row inserted into {entity} is not there ({info.key}={made!r})")
        return row

    def delete(self, entity: str, id: Id) -> bool:  # noqa: A002 - the word that suites use
        mapped = self.find_table(entity)
        if (where := self._build_conditions(mapped, {mapped.info.key: id})) is None:
            return False
        statement = sa.delete(mapped.table).where(*where)
        return self.run_write(lambda c: c.execute(statement).rowcount, f"deleting from {entity}") > 0

    def run_read_with_retry[T](self, act: Callable[[sa.Connection], T], doing: str) -> T:
        self._require_file()
        try:
            with translate_errors(self.url, doing), self._engine.connect() as connection:
                return act(connection)
        except StoreLost:
            self._engine.dispose()
        with translate_errors(self.url, doing), self._engine.connect() as connection:
            return act(connection)

    def run_write[T](self, act: Callable[[sa.Connection], T], doing: str) -> T:
        self._require_file()
        with translate_errors(self.url, doing), self._engine.begin() as connection:
            return act(connection)

    def _require_file(self) -> None:
        if self._file is not None and not self._file.is_file():
            raise StoreError(
                f"the store {self._file} is not there",
                hint="Let the agent make it before the tests (`hooks: {beforeAll: [{command: ...}]}`), start it once,"
                " or fix the path.",
            )

    def mark(self) -> None:
        if self._reset != "copy" or self._backup is not None:
            return
        if self._file is None:
            raise SuiteError(
                f"store.reset: copy is for SQLite files, and the store is {mask_url(self.url)}",
                hint="Write `reset: truncate` or `reset: delete`.",
            )
        self._require_file()
        folder = tempfile.TemporaryDirectory(prefix="llmproxy-store-")
        _copy_sqlite_pages(self._file, Path(folder.name) / _COPY)
        self._backup = folder

    def reset(self) -> None:
        if self._reset == "truncate":
            self._truncate_entities()
        elif self._backup is not None and self._file is not None:
            _copy_sqlite_pages(Path(self._backup.name) / _COPY, self._file)

    def _truncate_entities(self) -> None:
        if not self._maps:
            raise SuiteError(
                "store.reset: truncate empties tables, and none is named", hint="Name them: store.entities: {tasks: {}}"
            )
        mapped = [self.find_table(name) for name in self._maps]

        def empty(connection: sa.Connection) -> None:
            quote = connection.dialect.identifier_preparer.format_table
            names = [quote(each.table) for each in mapped]
            if connection.dialect.name == "postgresql":
                connection.execute(sa.text(f"TRUNCATE {', '.join(names)} RESTART IDENTITY"))
                return
            if connection.dialect.name == "sqlite":
                connection.execute(sa.text("PRAGMA defer_foreign_keys = ON"))
            for each, name in zip(mapped, names, strict=True):
                connection.execute(sa.text(f"DELETE FROM {name}"))  # noqa: S608 - quoted by SQLAlchemy
                if connection.dialect.name == "sqlite" and _has_sqlite_counters(connection):
                    sql = sa.text("DELETE FROM sqlite_sequence WHERE name = :name")
                    connection.execute(sql, {"name": each.table.name})

        self.run_write(empty, f"emptying {', '.join(self._maps)}")

    def counters(self, entities: Sequence[str]) -> dict[str, tuple[int, bool]]:
        """Return each entity's key counter, and whether that number was used."""
        mapped = {name: self.find_table(name) for name in entities}
        found = {
            name: self.run_read_with_retry(partial(_read_counter, mapped=each), f"looking at the counter of {name}")
            for name, each in mapped.items()
            if each.serial is not None
        }
        return {name: at for name, at in found.items() if at is not None}

    def rewind(self, counters: Mapping[str, tuple[int, bool]]) -> None:
        """Restore counters, but not below the largest existing key."""
        for name, (value, called) in counters.items():
            mapped = self.find_table(name)
            self.run_write(partial(_rewind_counter, mapped, value, called=called), f"resetting the counter of {name}")

    def close(self) -> None:
        self._engine.dispose()
        if self._backup is not None:
            self._backup.cleanup()
