"""Brings a database back to where it was: counters, all rows of the named tables, or the whole SQLite file.

Ids that the database counts up go into prompts, and a prompt that differs is a miss in replay. So after a run that was
alone, counters go back to where they stood, never below a key that is in use.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from llmproxy.errors import SuiteError
from llmproxy.sqlite_file import connect
from llmproxy.suite.stores.protocol import StoreError
from llmproxy.suite.stores.sql_engine import BUSY_SECONDS, sqlite_file
from llmproxy.suite.stores.sql_map import Mapped

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection


class Tables(Protocol):
    """What is used of a store of tables."""

    url: URL

    @property
    def shown(self) -> str:
        """Its URL without a password."""

    @property
    def declared(self) -> Sequence[str]:
        """The entities that the suite names."""

    def find_table(self, entity: str, /) -> Mapped: ...

    def read[T](self, act: Callable[[Connection], T], doing: str, /) -> T:
        """Do something in a transaction that changes nothing."""

    def write[T](self, act: Callable[[Connection], T], doing: str, /) -> T:
        """Do something in a transaction."""


def counters(store: Tables, entities: Sequence[str]) -> dict[str, tuple[int, bool]]:
    """Return where the counter of each entity's key stands, and whether that number was given out already."""
    at: dict[str, tuple[int, bool]] = {}
    for name in entities:
        mapped = store.find_table(name)
        if mapped.serial is not None and (value := _counter(store, mapped)) is not None:
            at[name] = value
    return at


def _counter(store: Tables, mapped: Mapped) -> tuple[int, bool] | None:
    from sqlalchemy import text

    def ask(connection: Connection) -> tuple[int, bool] | None:
        if connection.dialect.name == "sqlite":
            if not _has_sequences(connection):
                return None  # without AUTOINCREMENT the next key follows from the rows
            row = connection.execute(
                text("SELECT seq FROM sqlite_sequence WHERE name = :name"), {"name": mapped.table.name}
            ).first()
            return (int(row[0]) if row else 0, True)
        if connection.dialect.name == "postgresql":
            name = _sequence(connection, mapped)
            row = connection.execute(text(f"SELECT last_value, is_called FROM {name}")).first() if name else None  # noqa: S608 - a name that the database gave, quoted by it
            return (int(row[0]), bool(row[1])) if row else None
        return None

    return store.read(ask, f"looking at the counter of {mapped.info.name}")


def rewind(store: Tables, at: Mapping[str, tuple[int, bool]]) -> None:
    """Set counters back, but not below the largest key that is still there."""
    from sqlalchemy import func, select, text

    for name, (value, called) in at.items():
        mapped = store.find_table(name)

        def turn(connection: Connection, mapped: Mapped = mapped, value: int = value, called: bool = called) -> None:  # noqa: FBT001 - bound in a loop
            key = mapped.table.c[mapped.source(mapped.info.key)]
            largest = int(connection.execute(select(func.max(key))).scalar() or 0)
            last, given = (
                (value, called) if value > largest or (value == largest and called) else (largest, largest > 0)
            )
            if connection.dialect.name == "sqlite":
                connection.execute(
                    text("UPDATE sqlite_sequence SET seq = :seq WHERE name = :name"),
                    {"seq": last if given else 0, "name": mapped.table.name},
                )
            else:
                connection.execute(
                    text("SELECT setval(CAST(:name AS regclass), :last, :called)"),
                    {"name": _sequence(connection, mapped), "last": max(last, 1), "called": given},
                )

        store.write(turn, f"setting the counter of {name} back")


def truncate(store: Tables) -> None:
    """Remove every row of the entities that the suite declares, and start their counters anew."""
    from sqlalchemy import text

    if not store.declared:
        raise SuiteError(
            "store.reset: truncate empties tables, and none is named", hint="Name them: store.entities: {tasks: {}}"
        )
    mapped = [store.find_table(name) for name in store.declared]

    def empty(connection: Connection) -> None:
        quote = connection.dialect.identifier_preparer.format_table
        names = [quote(each.table) for each in mapped]
        if connection.dialect.name == "postgresql":
            connection.execute(text(f"TRUNCATE {', '.join(names)} RESTART IDENTITY"))
            return
        if connection.dialect.name == "sqlite":
            connection.execute(text("PRAGMA defer_foreign_keys = ON"))
        for each, name in zip(mapped, names, strict=True):
            connection.execute(text(f"DELETE FROM {name}"))  # noqa: S608 - quoted by SQLAlchemy
            if connection.dialect.name == "sqlite" and _has_sequences(connection):
                connection.execute(text("DELETE FROM sqlite_sequence WHERE name = :name"), {"name": each.table.name})

    store.write(empty, f"emptying {', '.join(store.declared)}")


def _has_sequences(connection: Connection) -> bool:
    from sqlalchemy import text

    return connection.execute(text("SELECT 1 FROM sqlite_master WHERE name = 'sqlite_sequence'")).first() is not None


def _sequence(connection: Connection, mapped: Mapped) -> str | None:
    """Return the quoted name of the sequence behind a key."""
    from sqlalchemy import text

    table = connection.dialect.identifier_preparer.format_table(mapped.table)
    found = connection.execute(
        text("SELECT pg_get_serial_sequence(:table, :column)"), {"table": table, "column": mapped.serial}
    ).scalar()
    return str(found) if found else None


class Backup:
    """A copy of a SQLite file, and the way back. The agent may keep the file open: its pages are replaced, not the file."""

    def __init__(self, store: Tables) -> None:
        """Copy nothing yet."""
        file = sqlite_file(store.url)
        if file is None:
            raise SuiteError(
                f"store.reset: copy is for SQLite files, and the store is {store.shown}",
                hint="Write `reset: truncate` or `reset: delete`.",
            )
        self.file = file
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def take(self) -> None:
        """Copy the file as it is now; the first copy stays."""
        if self._folder is not None:
            return
        self._folder = tempfile.TemporaryDirectory(prefix="llmproxy-store-")
        self._copy(self.file, Path(self._folder.name) / "copy.db")

    def put_back(self) -> None:
        """Bring every page back; StoreError if somebody holds the file too long."""
        if self._folder is None:
            raise StoreError(f"no copy of {self.file} was taken")
        self._copy(Path(self._folder.name) / "copy.db", self.file)

    def close(self) -> None:
        """Remove the copy."""
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    @staticmethod
    def _copy(source: Path, target: Path) -> None:
        try:
            with (
                closing(connect(source, "mode=ro", timeout=BUSY_SECONDS)) as old,
                closing(connect(target, "mode=rwc", timeout=BUSY_SECONDS)) as new,
            ):
                old.backup(new)
        except sqlite3.Error as error:
            raise StoreError(
                f"cannot copy the database {source} to {target}: {error}",
                hint="Does the agent hold a transaction open?",
            ) from error
