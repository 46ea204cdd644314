"""Connections to databases by URL with an installed driver, and translation of their errors.

The URL is the agent's own: an asyncio-only driver is replaced by another one, a missing one is named. SQLite files are
relative to the suite's folder, and are never created here: an empty database from a misspelt path would answer every
query with "no such table".
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Engine, create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from llmproxy.errors import MachineError, SuiteError
from llmproxy.suite.stores.protocol import StoreError, StoreLost, StoreRefused

DRIVERS = {
    "postgresql": ("psycopg", "psycopg2", "pg8000"),
    "mysql": ("pymysql", "mysqlclient:MySQLdb", "mysqlconnector:mysql.connector"),
    "mariadb": ("pymysql", "mysqlclient:MySQLdb", "mariadbconnector:mariadb"),
}
"""Drivers that need no event loop, in order of preference; after a colon the module, if its name differs."""
ASYNC = {"asyncpg", "psycopg_async", "aiopg", "aiosqlite", "aiomysql", "asyncmy"}
BUSY_SECONDS = 15
"""Seconds that SQLite waits while the agent writes."""
CONNECT_SECONDS = 10


def url_for(text: str, folder: Path) -> URL:
    """Parse a database URL and choose its driver. Raises SuiteError: invalid, or private; MachineError: no driver."""
    try:
        url = make_url(text)
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
        is_uri = url.database.startswith("file:")
        return url if is_uri else url.set(database=str((folder / url.database).absolute()))
    if driver and driver not in ASYNC:
        return url.set(drivername=f"{name}+{driver}")
    for each in DRIVERS.get(name, ()):
        known, _, module = each.partition(":")
        if importlib.util.find_spec((module or known).partition(".")[0]):
            return url.set(drivername=f"{name}+{known}")
    if name in DRIVERS:
        first = DRIVERS[name][0]
        extra = "[binary]" if first == "psycopg" else ""
        raise MachineError(
            f"the store is {name}, and no driver for it is installed", hint=f"pip install '{first}{extra}'"
        )
    return url


def sqlite_file(url: URL) -> Path | None:
    if url.get_backend_name() != "sqlite" or not url.database:
        return None
    return Path(url.database.removeprefix("file:").partition("?")[0])


def open_engine(url: URL) -> Engine:
    arguments: dict[str, Any] = {}
    if url.get_backend_name() == "sqlite":
        arguments = {"timeout": BUSY_SECONDS}
    elif url.drivername in {"postgresql+psycopg", "postgresql+psycopg2", "mysql+pymysql", "mariadb+pymysql"}:
        arguments = {"connect_timeout": CONNECT_SECONDS}
    try:
        # Tested before use: a connection that died while it was idle is replaced before anything is written to it.
        return create_engine(url, pool_pre_ping=True, connect_args=arguments, hide_parameters=True)
    except (NoSuchModuleError, ImportError) as error:
        raise MachineError(f"the store {mask_url(url)} needs a driver that is not installed: {error}") from None


def mask_url(url: URL) -> str:
    return url.render_as_string(hide_password=True)


@contextmanager
def translate_errors(url: URL, doing: str) -> Iterator[None]:
    """Translate SQLAlchemy's errors: the operation, the place, and the database's message."""
    try:
        yield
    except DBAPIError as error:
        said = " ".join(str(error.orig).split())[:500]
        if error.connection_invalidated or error.statement is None:  # a failed connect has no statement
            raise StoreLost(
                f"the store {mask_url(url)} cannot be reached ({doing}): {said}",
                hint="Is it running? Nothing was written twice.",
            ) from error
        raise StoreRefused(f"the store {mask_url(url)} refused ({doing}): {said}") from error
    except SQLAlchemyError as error:
        raise StoreError(f"the store {mask_url(url)} failed ({doing}): {error}") from error
