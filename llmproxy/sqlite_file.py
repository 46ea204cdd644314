"""The one place that opens SQLite files: the store, the journal and the cache of scenarios.

A POSIX lock belongs to a process and a file. Closing *any* descriptor of a file releases every lock that the process
holds on it, SQLite's too. Another process then sees no writer, checkpoints and removes the write-ahead log, and the
live writer commits to an unlinked file: acknowledged, and lost (https://www.sqlite.org/howtocorrupt.html, 2.2). So
databases are read through SQLite alone, which tracks its own descriptors, and the one function that must read raw bytes
(`copy_raw_database_file`) keeps its descriptor until the last connection of this process to that file is closed.
"""

from __future__ import annotations

import os
import shlex
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from enum import Enum, auto
from pathlib import Path
from typing import Any, NamedTuple

from llmproxy.errors import CassetteBusy, CassetteCorrupt, LLMProxyError, MachineError, RecordingError, StoreReadOnly

Identity = tuple[int, int]
"""Device and inode, which identify a file under any name."""

# https://www.sqlite.org/rescode.html, primary codes
BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT})
_MAGIC = b"SQLite format 3\0"
_HEADER = 100
"""Bytes, https://www.sqlite.org/fileformat.html#the_database_header: 18, 19 the mode, 24 to 27 the change counter."""
_WAL_MODE = b"\2\2"
_COMMIT_SECONDS = 5.0
"""Seconds to wait for another process's commit before a file counts as damaged."""
READ_ONLY = frozenset({sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN})


class SqliteFileStatus(Enum):
    ABSENT = auto()
    FOLDER = auto()
    EMPTY = auto()
    """No bytes, or no commit yet: SQLite's state before the first write."""
    ROLLBACK = auto()
    """A closed database, or one in rollback mode."""
    WAL = auto()
    """A database in write-ahead mode: being written, left by a crash, or copied without its companions."""
    FOREIGN = auto()
    """A file that is no database."""


_guard = threading.Lock()
_connected: Counter[Identity] = Counter()
_parked: dict[Identity, list[int]] = {}
"""Raw descriptors of files with open SQLite connections in this process: closing one would release their locks."""


class OverwriteAwareConnection(sqlite3.Connection):
    path: Path | None = None
    """Absolute path without symbolic links, as SQLite's companion files use it."""
    identity: Identity | None = None
    _log: Path | None = None
    _log_identity: Identity | None = None
    _raw: int | None = None
    _size = 0
    _counter = 0
    _cut = False

    def watch_for_overwrite(self) -> None:
        if self.path is not None and hasattr(os, "pread"):
            self._raw = os.open(self.path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
            self.is_overwritten()

    def is_overwritten(self) -> bool:
        """Return whether the open file was truncated or overwritten; once true it stays true.

        While we have it open, nobody may leave write-ahead mode or decrease the change counter. A smaller file may be
        the result of another process's VACUUM, which is valid. Costs a `pread` and a `stat`.
        """
        if self._raw is None or self._cut or self.path is None:
            return self._cut
        header, size = os.pread(self._raw, _HEADER, 0), os.fstat(self._raw).st_size
        counter = int.from_bytes(header[24:28])
        written_over = header[:16] != _MAGIC or (self._log is not None and header[18:20] != _WAL_MODE)
        if written_over or counter < self._counter or (size < self._size and not passes_quick_check(self.path)):
            self._cut = True
        self._size, self._counter = size, counter
        return self._cut

    def switch_to_wal(self) -> None:
        """Switch to write-ahead mode and create its files, so that other processes see an active writer.

        The mode is kept if another process is reading: rollback mode works as well, with more waiting.
        """
        try:
            self.execute("PRAGMA journal_mode=WAL").fetchone()
        except sqlite3.OperationalError as error:
            if get_sqlite_primary_code(error) not in BUSY:
                raise
        # The identity of the log, if any, so that `is_current` notices its removal.
        self.execute("SELECT count(*) FROM sqlite_master").fetchone()  # opens it, or makes it
        if self.path is not None and self.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
            self._log = sidecar_path(self.path, "-wal")
            self._log_identity = get_file_identity(self._log)

    def is_current(self) -> bool:
        """Return whether the path still names the open file and its write-ahead log.

        A removed or replaced file accepts every commit and loses it with the last descriptor. Costs two calls of
        `stat`.
        """
        if self.path is None or get_file_identity(self.path) != self.identity:
            return False
        return self._log is None or get_file_identity(self._log) == self._log_identity

    def close(self) -> None:
        """Close the connection, and descriptors that waited for that."""
        super().close()
        raw, self._raw = self._raw, None
        with _guard:
            identity, self.identity = self.identity, None
            if identity is not None:
                _connected[identity] -= 1
                if not _connected[identity]:
                    del _connected[identity]
                    for descriptor in _parked.pop(identity, ()):
                        os.close(descriptor)
        if raw is not None:
            _close_descriptor_when_unused(raw)


def open_sqlite_connection(path: Path, query: str, *, timeout: float) -> OverwriteAwareConnection:
    """Open `path` with SQLite's URI parameters `query` (``mode=ro``), in autocommit.

    `timeout`: seconds that a statement waits for another process's write. Raises sqlite3.Error.
    """
    made: OverwriteAwareConnection = sqlite3.connect(
        f"{path.resolve().as_uri()}?{query}", uri=True, timeout=timeout, isolation_level=None, check_same_thread=False,
        cached_statements=256, factory=OverwriteAwareConnection,
    )  # fmt: skip
    made.path = path.resolve()
    with _guard:
        made.identity = get_file_identity(path)
        if made.identity is not None:
            _connected[made.identity] += 1
    return made


def detect_sqlite_file_state(path: Path) -> SqliteFileStatus:
    """Return the state of `path` without changing or creating anything. Raises sqlite3.Error: unreadable or damaged.

    It takes no lock, unless the file looks invalid: it may be in the middle of its first commit.
    """
    if path.is_dir():
        return SqliteFileStatus.FOLDER
    if not path.exists():
        return SqliteFileStatus.ABSENT
    if not path.is_file():  # a pipe would be waited for, for ever
        return SqliteFileStatus.FOREIGN
    size = path.stat().st_size  # before the look: what somebody makes of an empty file meanwhile is no stranger's
    try:
        # Without locks SQLite refuses write-ahead mode, before it would touch or make a file beside: that is how it
        # shows.
        try:
            pages = _query_page_count(path, "mode=ro&nolock=1", timeout=0)
        except sqlite3.DatabaseError as error:
            if get_sqlite_primary_code(error) not in DAMAGED:
                raise
            pages = _query_page_count(path, "mode=ro", timeout=_COMMIT_SECONDS)
    except sqlite3.DatabaseError as error:
        code = get_sqlite_primary_code(error)
        if code == sqlite3.SQLITE_CANTOPEN:
            return SqliteFileStatus.WAL
        if code == sqlite3.SQLITE_NOTADB:
            return SqliteFileStatus.FOREIGN
        if code == sqlite3.SQLITE_READONLY:  # somebody was killed while he wrote
            return SqliteFileStatus.ROLLBACK
        raise
    if not pages:
        return SqliteFileStatus.FOREIGN if size else SqliteFileStatus.EMPTY  # too few bytes for a page count as none
    return SqliteFileStatus.ROLLBACK


def _query_page_count(path: Path, query: str, *, timeout: float) -> int:
    """Return the page count that SQLite reports for `path` with `query`. Raises sqlite3.DatabaseError."""
    try:
        with closing(open_sqlite_connection(path, query, timeout=timeout)) as conn:
            return int(conn.execute("PRAGMA page_count").fetchone()[0])
    except UnicodeDecodeError as error:  # SQLite's message quotes damaged text, which Python cannot decode
        damaged = sqlite3.DatabaseError("its schema is no text")
        damaged.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise damaged from error


def is_sqlite_database_file(path: Path) -> bool:
    """Return whether a file is an SQLite database, damaged or not: it must not be opened with `open`. Never raises."""
    try:
        return detect_sqlite_file_state(path) in (SqliteFileStatus.ROLLBACK, SqliteFileStatus.WAL)
    except sqlite3.Error as error:
        return get_sqlite_primary_code(error) in DAMAGED


def passes_quick_check(path: Path) -> bool:
    try:
        with closing(open_sqlite_connection(path, "mode=ro", timeout=_COMMIT_SECONDS)) as conn:
            return bool(conn.execute("PRAGMA quick_check(1)").fetchone() == ("ok",))
    except (sqlite3.Error, UnicodeDecodeError):  # as in `_query_page_count`
        return False


def read_head_of_non_database(path: Path, count: int = 16) -> bytes:
    """Return the first bytes of a file that is no database, for a message; b"" if unreadable."""
    if not path.is_file():
        return b""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except OSError:
        return b""
    try:
        return os.read(descriptor, count)
    finally:
        _close_descriptor_when_unused(descriptor)


def copy_raw_database_file(source: Path, target: Path) -> None:
    """Copy a database's bytes to a new file, for one that SQLite cannot read in place. Raises OSError."""
    descriptor = os.open(source, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
    try:
        with target.open("xb") as out:
            while piece := os.read(descriptor, 1 << 20):
                out.write(piece)
    finally:
        _close_descriptor_when_unused(descriptor)


def _close_descriptor_when_unused(descriptor: int) -> None:
    """Close a raw descriptor once no connection of this process has the file open."""
    found = os.fstat(descriptor)
    identity = found.st_dev, found.st_ino
    with _guard:
        if _connected[identity]:
            _parked.setdefault(identity, []).append(descriptor)
        else:
            del _connected[identity]
            os.close(descriptor)


def get_file_identity(path: Path) -> Identity | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - once for each commit: a third of the time
    except OSError:
        return None
    return found.st_dev, found.st_ino


def sidecar_path(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


@contextmanager
def hold_read_transaction(conn: sqlite3.Connection) -> Iterator[None]:
    conn.execute("BEGIN")
    try:
        yield
    finally:
        if conn.in_transaction:
            conn.execute("ROLLBACK")


@contextmanager
def write_transaction(conn: sqlite3.Connection) -> Iterator[None]:
    conn.execute("BEGIN IMMEDIATE")
    try:
        yield
        conn.execute("COMMIT")
    except BaseException:
        if conn.in_transaction:  # a full disk has already rolled back
            conn.execute("ROLLBACK")
        raise


class DatabaseErrorWording(NamedTuple):
    """Words for errors of one kind of database; hints may use {path}, and {typed} for the path quoted for a shell."""

    name: str
    """``store``, ``cache``."""
    takes: str
    elsewhere: str
    """Instruction to use another one: ``use another --store``."""
    damaged: str
    unreadable: str
    corrupt: type[CassetteCorrupt] = CassetteCorrupt


def get_sqlite_primary_code(error: sqlite3.Error) -> int:
    """Return SQLite's primary result code; SQLITE_ERROR if the driver gives none."""
    code: Any = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return int(code) & 0xFF


def translate_sqlite_error(
    error: sqlite3.Error, path: Path, words: DatabaseErrorWording, *, writing: bool
) -> LLMProxyError:
    code, what = get_sqlite_primary_code(error), f"The {words.name} {path}"
    places = {"path": path, "typed": shlex.quote(str(path))}
    if code in BUSY:
        hint = f"Close the program that holds it (sqlite3, a database browser), or {words.elsewhere}."
        return CassetteBusy(f"{what} is locked by another program ({error}).", hint=hint)
    if code in DAMAGED:
        return words.corrupt(f"{what} is damaged: {error}.", hint=words.damaged.format_map(places))
    if code in READ_ONLY and writing:
        hint = f"Check the permissions of the file and its folder, or {words.elsewhere}."
        return StoreReadOnly(f"{what} cannot be written to: {error}.", hint=hint)
    if writing:
        return RecordingError(f"{what} did not take the {words.takes}: {error}.", hint="Check the free space.")
    if code in READ_ONLY:
        return MachineError(f"{what} cannot be opened: {error}.")
    return words.corrupt(f"{what} cannot be read: {error}.", hint=words.unreadable.format_map(places))


@contextmanager
def translate_errors(path: Path, words: DatabaseErrorWording, *, writing: bool) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise translate_sqlite_error(error, path, words, writing=writing) from error
