"""Opening the store's file: look before touching, and say what is wrong in the user's words.

Everything SQLite can raise is translated here, once. Opening for replay leaves the file and its folder as they
were: `mode=ro` where that holds; where SQLite would have to create a file beside it, `immutable=1` in a folder that
nobody can write to, else a private copy (a later writer would pull the pages from under an immutable reader, and a
crash may have left recordings in files that only a writer can fold in).
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from llmproxy.core.store import migrations
from llmproxy.errors import (
    CassetteBusy,
    CassetteCorrupt,
    CassetteNewer,
    CassetteNotFound,
    LLMProxyError,
    MachineError,
    RecordingError,
    StoreReadOnly,
)

MAGIC = b"SQLite format 3\0"
BUSY_SECONDS = 5.0
"""How long one statement waits for another process's write."""
PAGE_SIZE = 4096

# https://www.sqlite.org/rescode.html, primary codes
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_READ_ONLY = frozenset({sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN})
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT})


def translate(error: sqlite3.Error, path: Path, *, writing: bool) -> LLMProxyError:
    """Return the error of ours that says what `error` means for the store at `path`."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code in _BUSY:
        return CassetteBusy(
            f"The store {path} is locked by another program ({error}).",
            hint="Close the program that holds it (sqlite3, a database browser), or use another --store.",
        )
    if code in _DAMAGED:
        hint = f"Restore it from version control or a backup; what is readable: sqlite3 {path} .recover"
        return CassetteCorrupt(f"The store {path} is damaged: {error}.", hint=hint)
    if code in _READ_ONLY and writing:
        return StoreReadOnly(
            f"The store {path} cannot be written to: {error}.",
            hint="Check the permissions of the file and its folder, or give another --store.",
        )
    if writing:
        return RecordingError(f"The store {path} did not take the recording: {error}.", hint="Check the free space.")
    if code in _READ_ONLY:
        return MachineError(f"The store {path} cannot be opened: {error}.")
    return CassetteCorrupt(f"The store {path} cannot be read: {error}.", hint=f"llmproxy verify --store {path}")


@contextmanager
def translated(path: Path, *, writing: bool) -> Iterator[None]:
    """Let none of SQLite's errors out of the block."""
    try:
        yield
    except sqlite3.Error as error:
        raise translate(error, path, writing=writing) from error


def look(path: Path) -> bytes:
    """Return the first 100 bytes of the file, b"" if there is none. Raises CassetteCorrupt if it is not SQLite's."""
    try:
        with path.open("rb") as file:
            head = file.read(100)
    except (FileNotFoundError, NotADirectoryError):
        return b""
    except IsADirectoryError as error:
        raise CassetteCorrupt(f"{path} is a folder, not a store.", hint="Give a file name with --store.") from error
    except OSError as error:
        raise MachineError(f"The store {path} cannot be read: {error.strerror}.") from error
    if head and not head.startswith(MAGIC):
        raise CassetteCorrupt(
            f"{path} is not an llmproxy store: it is not SQLite, it starts with {head[:16]!r}.",
            hint="Nothing was changed. Give another --store, or `llmproxy import` it if it is a cassette in YAML.",
        )
    return head


def connect(path: Path, query: str) -> sqlite3.Connection:
    """Open `path` with SQLite URI parameters `query`; statements commit by themselves unless a transaction is open."""
    return sqlite3.connect(
        f"{path.resolve().as_uri()}?{query}",
        uri=True,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
    )


def check_schema(conn: sqlite3.Connection, path: Path) -> bool:
    """Tell whether the schema is up to date. Raises CassetteNewer, or CassetteCorrupt for another program's file."""
    with migrations.snapshot(conn):  # between two statements of their own another process may have made the tables
        has = migrations.applied(conn)
        tables = [str(row[0]) for row in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table' LIMIT 5")]
    unknown = [name for name in has if name not in migrations.NAMES]
    if unknown:
        raise CassetteNewer(
            f"The store {path} was written by a newer llmproxy: it has {', '.join(unknown)}, this version knows up to "
            f"{migrations.NAMES[-1]}.",
            hint="uv tool upgrade llmproxy-replay   (or pip install --upgrade llmproxy-replay)",
        )
    tables = [name for name in tables if name != "_sqlite_migrations"]
    if tables and not has:
        raise CassetteCorrupt(
            f"{path} is a SQLite database of another program (tables: {', '.join(tables)}).",
            hint="Nothing was changed. Give another --store.",
        )
    return has == migrations.NAMES


@dataclass(slots=True)
class Reader:
    """A connection for reading, and the private copy it reads from, if there had to be one."""

    conn: sqlite3.Connection
    copy: tempfile.TemporaryDirectory[str] | None = None
    in_place: bool = False
    """Whether it reads the file itself, in rollback mode."""
    _file: Path | None = None
    _handle: int = -1
    _head: bytes = b""
    """What was read of the file's head last, and the counter in it."""
    _counter: int | None = None

    def watch(self, path: Path) -> None:
        """Let the file's head tell of commits; only for a store that this process does not write (see `generation`)."""
        if self.in_place and hasattr(os, "pread"):
            self._file = path

    def generation(self) -> int | None:
        """Return the file's change counter, which every commit raises; None where it does not tell (write-ahead mode).

        A sixth of the time of `PRAGMA data_version`, which takes a lock, reads the same four bytes and gives the lock back. Closing any
        handle to a file gives up all of this process's locks on it, so it is closed with the connection, before anybody here writes.
        Source: https://www.sqlite.org/fileformat2.html#file_change_counter
        """
        if self._file is None:
            return None
        if self._handle < 0:
            try:
                self._handle = os.open(self._file, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
            except OSError:
                self._file = None
                return None
        head = os.pread(self._handle, 28, 0)
        if head != self._head:
            self._head = head
            self._counter = None if len(head) < 28 or head[18] != 1 else int.from_bytes(head[24:], "big")
        return self._counter

    def close(self) -> None:
        """Close the connection; remove the copy."""
        self.conn.close()
        if self._handle >= 0:
            os.close(self._handle)
            self._handle, self._file = -1, None
        if self.copy is not None:
            self.copy.cleanup()


def _sidecar(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _size(path: Path) -> int:
    """Return the file's size, -1 if there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return -1


def is_wal(head: bytes) -> bool:
    """Tell from the file's first bytes whether it is in write-ahead mode (https://www.sqlite.org/fileformat2.html)."""
    return len(head) > 19 and head[18] == 2


def _open_in_place(path: Path, head: bytes) -> Reader | None:
    """Open without changing a thing in the folder; None if only a copy can be read."""
    wal, shm = _size(_sidecar(path, "-wal")), _size(_sidecar(path, "-shm"))
    if not is_wal(head):
        query = "mode=ro"
    elif wal >= 0 and shm >= 0:
        query = "mode=ro"  # a recorder is at work, or was killed: both files are there, none is made
    elif wal > 0 or os.access(path.parent, os.W_OK):
        return None  # SQLite would have to create -shm, and without reading -wal we would lose recordings
    else:
        query = "mode=ro&immutable=1"
    conn = connect(path, query)
    try:
        conn.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError as error:
        conn.close()
        code = error.sqlite_errorcode & 0xFF
        if code in _BUSY or code in _DAMAGED:
            raise
        return None  # a hot journal, or a folder that refuses what SQLite needs
    except sqlite3.Error:
        conn.close()
        raise
    return Reader(conn, in_place=not is_wal(head))


def _open_copy(path: Path) -> Reader:
    """Copy the store with the files beside it and bring the copy up to date, the original untouched."""
    folder = tempfile.TemporaryDirectory(prefix="llmproxy-", ignore_cleanup_errors=True)
    copy = Path(folder.name) / path.name
    try:
        for suffix in ("", "-wal", "-journal"):
            if _size(_sidecar(path, suffix)) > 0:
                shutil.copyfile(_sidecar(path, suffix), _sidecar(copy, suffix))
        conn = connect(copy, "mode=rwc")
        check_schema(conn, path)
        migrations.upgrade(conn)
    except BaseException:
        folder.cleanup()
        raise
    return Reader(conn, folder)


def open_beside(path: Path) -> Reader:
    """Open the store for reading beside a writer of our own, which made it and keeps its files in order."""
    with translated(path, writing=False):
        return Reader(connect(path, "mode=ro"))


def open_reader(path: Path) -> Reader:
    """Open the store for reading only, its schema checked; neither the file nor its folder changes.

    Raises CassetteNotFound, CassetteCorrupt, CassetteNewer, CassetteBusy.
    """
    head = look(path)
    if not path.exists():
        raise CassetteNotFound(
            f"There is no store at {path}.", hint=f"Record one first: llmproxy start --mode record --store {path}"
        )
    with translated(path, writing=False):
        reader = _open_in_place(path, head)
        if reader is None:
            return _open_copy(path)
        try:
            current = check_schema(reader.conn, path)
        except BaseException:
            reader.close()
            raise
        if current:
            return reader
        reader.close()  # an empty file, or one of an older schema: upgraded in a copy, since replay never writes
        return _open_copy(path)


def open_writer(path: Path) -> sqlite3.Connection:
    """Open the store for writing, made or brought up to date, in write-ahead mode.

    Raises StoreReadOnly, CassetteCorrupt, CassetteNewer, CassetteBusy.
    """
    head = look(path)
    check_writable(path)
    with translated(path, writing=True):
        conn = connect(path, "mode=rwc")
        try:
            if not head:
                conn.execute(f"PRAGMA page_size={PAGE_SIZE}")
            if not check_schema(conn, path):
                migrations.upgrade(conn)
            conn.execute("PRAGMA foreign_keys=ON")
            try:
                conn.execute("PRAGMA journal_mode=WAL").fetchone()
            except sqlite3.OperationalError as error:
                # Somebody reads just now. Without write-ahead everything works as well, only with more waiting.
                if error.sqlite_errorcode & 0xFF not in _BUSY:
                    raise
            conn.execute("SELECT count(*) FROM sqlite_master").fetchone()  # makes -wal and -shm: others see us at work
            conn.execute("PRAGMA synchronous=NORMAL")  # in WAL: a killed process loses nothing, and no fsync per answer
        except BaseException:
            conn.close()
            raise
    return conn


def close_writer(conn: sqlite3.Connection) -> None:
    """Fold the write-ahead file in and put the file at rest as one file; leave that to others who have it open."""
    try:
        conn.execute("PRAGMA busy_timeout=200")
        with closing(conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")) as rows:
            rows.fetchall()
        conn.execute("PRAGMA journal_mode=DELETE").fetchone()
    except sqlite3.Error:
        pass  # another process has it open and will do it, or the disk is full: what was committed is in the files
    finally:
        conn.close()


def check_writable(path: Path) -> None:
    """Raise StoreReadOnly if the file or its folder does not take writes; make a missing folder."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreReadOnly(f"The folder {path.parent} cannot be made: {error.strerror}.") from error
    for what in (path, path.parent):
        if what.exists() and not os.access(what, os.W_OK):
            raise StoreReadOnly(
                f"The store {path} cannot be written to: {what} is read-only.",
                hint="Replay works (--mode replay). To record, give another --store.",
            )
