"""Opening of the store's file: checks before any change, and errors in the user's terms.

Opening for replay changes neither the file nor its folder: `mode=ro` if that suffices; if SQLite would have to create a
file there, `immutable=1` in a folder that nobody can write to, else a private copy: a later writer would change pages
that an immutable reader uses, and a crash may have left recordings in files that only a writer can merge.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from llmproxy import sqlite_file
from llmproxy.advice import describe_how_to_upgrade_llmproxy as upgrade_advice, format_store_option
from llmproxy.core.store.file import migrations
from llmproxy.errors import (
    CassetteBusy,
    CassetteCorrupt,
    CassetteNewer,
    CassetteNotFound,
    LLMProxyError,
    MachineError,
    StoreReadOnly,
)
from llmproxy.protocol import DEFAULT_STORE, TESTS_STORE
from llmproxy.sqlite_file import (
    BUSY,
    DAMAGED,
    OverwriteAwareConnection,
    SqliteFileStatus,
    get_sqlite_primary_code,
    sidecar_path,
)

BUSY_SECONDS = 5.0  # seconds that one statement waits for another process's write
PAGE_SIZE = 4096
_RACY_NS = 2_000_000_000
"""Nanoseconds; commits within one tick of the file system's clock have equal times: only older ones prove no write."""
_COPIED = ("", "-wal", "-journal")
_TRIES = 6
_PAUSE = 0.02  # attempts to open a store that changes while it is copied, and seconds between them
WORDS = sqlite_file.DatabaseErrorWording(
    name="store",
    takes="recording",
    elsewhere="use another --store",
    damaged="Restore it from version control or a backup; what is readable: sqlite3 {typed} .recover",
    unreadable="llmproxy verify --store {typed}",
)


def translate_sqlite_store_error(error: sqlite3.Error, path: Path, *, writing: bool) -> LLMProxyError:
    return sqlite_file.translate_sqlite_error(error, path, WORDS, writing=writing)


def determine_database_file_state(path: Path) -> SqliteFileStatus:
    """Return the state of `path`: absent, or a possible store. Raises CassetteCorrupt: not SQLite's; MachineError."""
    try:
        state = sqlite_file.detect_sqlite_file_state(path)
    except sqlite3.Error as error:
        if get_sqlite_primary_code(error) in DAMAGED:
            raise translate_sqlite_store_error(error, path, writing=False) from error
        why = "permission denied" if not os.access(path, os.R_OK) else error
        raise MachineError(f"The store {path} cannot be read: {why}.") from error
    if state is SqliteFileStatus.FOLDER:
        raise CassetteCorrupt(f"{path} is a folder, not a store.", hint="Give a file name with --store.")
    if state is SqliteFileStatus.FOREIGN:
        begins = sqlite_file.read_head_of_non_database(path)
        is_sqlite = begins.startswith(b"SQLite format 3")
        why = "what SQLite wrote is damaged or cut" if is_sqlite else f"it is not SQLite, it starts with {begins!r}"
        raise CassetteCorrupt(
            f"{path} is not an llmproxy store: {why}.",
            hint="Nothing was changed. Give another --store, or `llmproxy import` it if it is a cassette in YAML.",
        )
    return state


def connect_to_sqlite_cassette_store(path: Path, query: str) -> OverwriteAwareConnection:
    """Open `path` with SQLite URI parameters `query`; statements autocommit unless a transaction is open."""
    return sqlite_file.open_sqlite_connection(path, query, timeout=BUSY_SECONDS)


def check_store_schema_version(conn: sqlite3.Connection, path: Path) -> bool:
    """Return whether the schema is up to date. Raises CassetteNewer, or CassetteCorrupt for another program's file."""
    # One transaction: else another process may create the tables between the two statements.
    with sqlite_file.hold_read_transaction(conn):
        has = migrations.list_applied_migrations(conn)
        tables = [str(row[0]) for row in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table' LIMIT 5")]
    unknown = [name for name in has if name not in migrations.NAMES]
    if unknown:
        raise CassetteNewer(
            f"The store {path} was written by a newer llmproxy: it has {', '.join(unknown)}, this version knows up to "
            f"{migrations.NAMES[-1]}.",
            hint=upgrade_advice(),
        )
    tables = [name for name in tables if name != "_sqlite_migrations"]
    if tables and not has:
        raise CassetteCorrupt(
            f"{path} is a SQLite database of another program (tables: {', '.join(tables)}).",
            hint="Nothing was changed. Give another --store.",
        )
    return has == migrations.NAMES


@dataclass(slots=True)
class StoreReadConnection:
    conn: OverwriteAwareConnection
    copy: tempfile.TemporaryDirectory[str] | None = None
    in_place: bool = False  # whether it reads the file itself, in rollback mode

    def close(self) -> None:
        self.conn.close()
        if self.copy is not None:
            self.copy.cleanup()


Signature = tuple[int, int, int, int, int]


def read_stat_signature(path: str) -> Signature | None:
    """Return values that change when a file is written, replaced or touched; None if it is gone. Opens no file."""
    try:
        found = os.stat(path)  # noqa: PTH116 - once for each hit
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def is_stat_signature_reliable(seen: Signature, now: float) -> bool:
    """Return whether any later write must change `seen`, which was taken at Unix time `now`."""
    return int(now * 1e9) - max(seen[3], seen[4]) > _RACY_NS


def _file_size_or_minus_one(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _open_in_place(path: Path, state: SqliteFileStatus) -> StoreReadConnection | None:
    """Open without any change in the folder; None if only a copy can be read."""
    wal, shm = _file_size_or_minus_one(sidecar_path(path, "-wal")), _file_size_or_minus_one(sidecar_path(path, "-shm"))
    if state is not SqliteFileStatus.WAL or (wal >= 0 and shm >= 0):
        query = "mode=ro"  # if both files exist, a recorder runs, or was killed: none is created
    elif wal > 0 or os.access(path.parent, os.W_OK):
        return None  # SQLite would have to create -shm, and without reading -wal we would lose recordings
    else:
        query = "mode=ro&immutable=1"
    conn = connect_to_sqlite_cassette_store(path, query)
    try:
        conn.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error as error:
        conn.close()
        if not isinstance(error, sqlite3.OperationalError) or get_sqlite_primary_code(error) in BUSY | DAMAGED:
            raise
        return None  # a hot journal, or a folder that refuses what SQLite needs
    return StoreReadConnection(conn, in_place=state is not SqliteFileStatus.WAL)


def _open_copy(path: Path) -> StoreReadConnection | None:
    """Copy the store and upgrade the copy; None if another process changed it meanwhile: it may be of two states."""
    before = _read_store_file_signatures(path)
    try:
        reader = _copy_and_open(path)
    except (sqlite3.Error, OSError, LLMProxyError):
        if before == _read_store_file_signatures(path):
            raise
        return None
    if before == _read_store_file_signatures(path):
        return reader
    reader.close()
    return None


def _read_store_file_signatures(path: Path) -> list[Signature | None]:
    return [read_stat_signature(str(sidecar_path(path, suffix))) for suffix in _COPIED]


def _copy_and_open(path: Path) -> StoreReadConnection:
    folder = tempfile.TemporaryDirectory(prefix="llmproxy-", ignore_cleanup_errors=True)
    copied = Path(folder.name) / path.name
    with ExitStack() as undo:
        undo.callback(folder.cleanup)
        for suffix in _COPIED:
            if _file_size_or_minus_one(sidecar_path(path, suffix)) > 0:
                sqlite_file.copy_raw_database_file(sidecar_path(path, suffix), sidecar_path(copied, suffix))
        conn = undo.enter_context(closing(connect_to_sqlite_cassette_store(copied, "mode=rwc")))
        check_store_schema_version(conn, path)
        migrations.upgrade_schema(conn)
        undo.pop_all()
    return StoreReadConnection(conn, folder)


def open_reader_beside_own_writer(path: Path) -> StoreReadConnection:
    """Open the store for reading next to our own writer, which created it and keeps its files consistent."""
    with sqlite_file.translate_errors(path, WORDS, writing=False):
        return StoreReadConnection(connect_to_sqlite_cassette_store(path, "mode=ro"))


def build_missing_store_file_hint(path: Path) -> str:
    """Return advice on a missing store: suites have a store of their own, below the same folder."""
    tests = Path(TESTS_STORE) if path.parent == Path.cwd() else path.parent / TESTS_STORE
    if path.name == DEFAULT_STORE and tests.is_file():
        return f"What suites recorded is in {tests}; to look there:{format_store_option(tests)}"
    return f"Record one first: llmproxy start --mode record{format_store_option(path)}"


def open_sqlite_store_reader(path: Path) -> StoreReadConnection:
    """Open the store read-only, schema checked, changing nothing. Raises any CassetteError."""
    for _ in range(_TRIES):
        if (reader := _try_reader(path)) is not None:
            return reader
        time.sleep(_PAUSE)  # then it may be readable in place
    raise CassetteBusy(f"The store {path} was changed again and again while it was read.", hint="Ask again.")


def _try_reader(path: Path) -> StoreReadConnection | None:
    """Open the store as it is now; None if it changed while it was copied."""
    state = determine_database_file_state(path)
    if state is SqliteFileStatus.ABSENT:
        raise CassetteNotFound(f"There is no store at {path}.", hint=build_missing_store_file_hint(path))
    with sqlite_file.translate_errors(path, WORDS, writing=False):
        if (reader := _open_in_place(path, state)) is not None:
            with ExitStack() as undo:
                undo.callback(reader.close)
                if check_store_schema_version(reader.conn, path):
                    undo.pop_all()
                    return reader
        # An empty file, or one of an older schema, is upgraded in a copy: replay never writes.
        return _open_copy(path)


def open_store_writer(path: Path) -> OverwriteAwareConnection:
    """Open the store for writing, created or upgraded, in write-ahead mode. Raises any CassetteError."""
    state = determine_database_file_state(path)
    check_writable(path)
    with sqlite_file.translate_errors(path, WORDS, writing=True), ExitStack() as undo:
        conn = undo.enter_context(closing(connect_to_sqlite_cassette_store(path, "mode=rwc")))
        if state in (SqliteFileStatus.ABSENT, SqliteFileStatus.EMPTY):
            conn.execute(f"PRAGMA page_size={PAGE_SIZE}")
        if not check_store_schema_version(conn, path):
            migrations.upgrade_schema(conn)
        conn.execute("PRAGMA foreign_keys=ON")
        conn.switch_to_wal()
        conn.watch_for_overwrite()
        conn.execute("PRAGMA synchronous=NORMAL")  # in WAL: a killed process loses nothing, and no fsync per answer
        undo.pop_all()
    return conn


def checkpoint_and_close(conn: OverwriteAwareConnection) -> None:
    """Merge the write-ahead file, so that one file remains; other processes with an open store do that instead."""
    try:
        conn.execute("PRAGMA busy_timeout=200")
        with closing(conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")) as rows:
            rows.fetchall()
        conn.execute("PRAGMA journal_mode=DELETE").fetchone()
    except sqlite3.Error:
        pass  # another process has it open and will do it, or the disk is full: all commits are in the files
    finally:
        conn.close()


def check_writable(path: Path) -> None:
    """Raise StoreReadOnly if the file or its folder is not writable; create a missing folder."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreReadOnly(f"The folder {path.parent} cannot be made: {error.strerror}.") from error
    for what in (path, path.parent):
        if what.exists() and not os.access(what, os.W_OK):
            raise StoreReadOnly(
                f"The store {path} cannot be written to: {what} is read-only.",
                hint="Replay works. To record, name another store: --store PATH, or LLMPROXY_STORE=PATH.",
            )
