"""A store in a file: one SQLite database, shared by any number of processes. docs/store.md describes the schema.

Writes use a connection of their own, opened at the first write: a store opened for replay, and its folder, do not
change.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import override

from llmproxy.core.store import row_conversion
from llmproxy.core.store.bodies import BodyToStore, DeltaBodyWriter
from llmproxy.core.store.file import connect, leases_and_deletes
from llmproxy.core.store.file.connect import StoreReadConnection
from llmproxy.core.store.reader import SLOTS, CassetteFileSyncState, Place, RecordingHead, RecordingKeyUpdate
from llmproxy.core.store.row_conversion import Sql, to_sql
from llmproxy.core.store.store import (
    UNFINISHED,
    DeletionCounts,
    InteractionToStore,
    Store,
    find_superseded_and_occurrence,
    get_delta_compression_group,
)
from llmproxy.core.traffic.interaction import Ending
from llmproxy.errors import CassetteBusy, RecordingError
from llmproxy.postgres_store_paths import find_postgres_of_local_copy
from llmproxy.sqlite_file import OverwriteAwareConnection, SqliteFileStatus, write_transaction

log = logging.getLogger(__name__)

_SUPERSEDE_ONE = "UPDATE interactions SET superseded_at = ?, superseded_by = -1 WHERE id = ? AND superseded_at IS NULL"
_SUPERSEDE_ALL = "UPDATE interactions SET superseded_at = ? WHERE cassette = ? AND superseded_at IS NULL"
_RENAME = "UPDATE OR IGNORE interactions SET key = ?, occurrence = ?, rules = ? WHERE id = ? AND key = ?"
# The successor's id is known only after it was inserted, and it can be inserted only once its slot is free.
_NAME_SUCCESSOR = "UPDATE interactions SET superseded_by = ? WHERE superseded_at = ? AND superseded_by = -1"
_INSERT = (
    f"INSERT INTO interactions (position, occurrence, request_body, response_body, {', '.join(row_conversion.COLUMNS)})"
    f" VALUES ({', '.join('?' * (len(row_conversion.COLUMNS) + 4))})"
)
_COUNT = """
UPDATE cassettes SET recorded = recorded + 1, closed_cleanly = 0 WHERE name = ? AND sample = ?
RETURNING recorded, holder, pid, host
"""
_NAMED = (("interactions", "cassette"), ("cassettes", "name"), ("made_ids", "cassette"), ("forks", "cassette"),
          ("forks", "parent"), ("volatile_fields", "cassette"))  # fmt: skip
"""Columns that name a cassette. `files` is not among them: a file keeps the name that it has."""
_LEASES = "SELECT name = ?, sample, holder, pid, host, ? - heartbeat FROM cassettes WHERE name IN (?, ?)"
_RETIRE_ONE = "UPDATE interactions SET superseded_at = ? WHERE id = ? AND superseded_at IS NULL"
_ADD_COUNT = """
UPDATE cassettes SET recorded = recorded + coalesce(
    (SELECT recorded FROM cassettes WHERE name = ? AND sample = ?), 0) WHERE name = ? AND sample = ?
"""
_SPARE = 10  # a deletion rewrites the file if at least this share of it is free; less is left for the next recordings


class SqliteCassetteStore(Store):
    def __init__(self, path: Path, reader: StoreReadConnection, *, writable: bool, now: Callable[[], float]) -> None:
        super().__init__(path, reader, now=now, watch=not writable)
        self.writable = writable
        self._lock = threading.Lock()
        self._writer: OverwriteAwareConnection | None = None
        self._moved = False  # whether the file was removed or replaced since the reading connection was opened
        self._bodies = DeltaBodyWriter()
        self._last = 0  # the greatest id that this store object stored
        self._stored = 0
        self._held: dict[tuple[Sql, int], tuple[object, ...]] = {}  # holder, process, machine by cassette and sample
        self._gone = False  # whether another program replaced the file by one that lacks our recordings

    @override
    def _follow_own_writer(self) -> None:
        if self._moved:
            self._moved = False
            self._switch_reader(connect.open_reader_beside_own_writer(self.path))
            self._rederive_all_keys()

    @classmethod
    def open(cls, path: Path | str, *, writable: bool, now: Callable[[], float]) -> SqliteCassetteStore:
        """Open the store at `path`; created if `writable` and missing. `now` returns Unix time.

        Raises CassetteNotFound: it does not exist, and `writable` is false; CassetteCorrupt: it is not SQLite, damaged,
        or another program's; CassetteNewer: a newer llmproxy wrote it; CassetteBusy: another program holds it locked;
        StoreReadOnly: `writable` is true, and the file or folder is not.
        """
        path = Path(path)
        if not writable:
            return cls(path, connect.open_sqlite_store_reader(path), writable=False, now=now)
        state = connect.determine_database_file_state(path)
        connect.check_writable(path)
        if state is SqliteFileStatus.ROLLBACK:
            # The writer is opened at the first write: a run with hits only does not change the file.
            reader = connect.open_sqlite_store_reader(path)
            if reader.copy is None:
                return cls(path, reader, writable=True, now=now)
            reader.close()
        writer = connect.open_store_writer(path)  # new, of an older schema, or left behind in write-ahead mode
        try:
            store = cls(path, connect.open_reader_beside_own_writer(path), writable=True, now=now)
        except BaseException:
            connect.checkpoint_and_close(writer)
            raise
        store._writer = writer
        return store

    def close(self) -> None:
        """Close both connections, leaving one file unless others have it open. Raises RecordingError if it was cut."""
        with self._lock:
            self._reader.close()
            if self._writer is None:
                return
            cut = self._writer.is_overwritten()
            connect.checkpoint_and_close(self._writer)
            self._writer = None
        if self._gone or (self._last and (cut or not self._holds_last_stored())):
            raise self._build_loss_error()

    def _holds_last_stored(self) -> bool:
        """Return whether the file still has our last recording: ids only grow, even if others delete."""
        try:
            with closing(connect.connect_to_sqlite_cassette_store(self.path, "mode=ro")) as conn:
                found = conn.execute("SELECT seq FROM sqlite_sequence WHERE name = 'interactions'").fetchone()
        except sqlite3.Error:
            return False
        return found is not None and int(found[0]) >= self._last

    def _build_loss_error(self) -> RecordingError:
        return RecordingError(
            f"The store {self.path} was cut, emptied or replaced while we recorded: of {self._stored} recordings that "
            "were stored some are gone, or all.",
            hint="Restore it from version control or a backup, or delete it, and record again.",
        )

    def add_interactions(self, many: Sequence[InteractionToStore], *, instead_of: str | None = None) -> list[int]:
        """Store several interactions in one transaction; blocks up to 5 s for other writers."""
        made = [(each, row_conversion.convert_interaction_to_row(each.interaction, each.described)) for each in many]
        self.write_current_keys([(each.interaction.cassette, each.interaction.sample) for each in many])
        stored = self._add_all(made, instead_of)
        if self._writer is not None and not self._writer.is_current():
            stored = self._add_all(made, instead_of)  # the file was removed or replaced, with our rows in it
        return stored

    def _add_all(self, made: Sequence[tuple[InteractionToStore, tuple[Sql, ...]]], instead_of: str | None) -> list[int]:
        with self._lock_writing_connection() as conn:
            prepare, ones = self._bodies.prepare_body, [given.interaction for given, _ in made]
            bodies = [  # the slow part, without the write lock
                (
                    prepare(conn, one.request.body, get_delta_compression_group(one)),
                    prepare(conn, one.response.body, None),
                )
                for one in ones
            ]
            with write_transaction(conn):
                now = self._now()
                if instead_of is not None:
                    conn.execute(_SUPERSEDE_ALL, (now, to_sql(instead_of)))
                stored: list[tuple[int, tuple[int, int]]] = []
                for (given, row), prepared in zip(made, bodies, strict=True):
                    first = stored[0][0] if stored else None
                    stored.append(self._insert_interaction(conn, given, row, prepared, now, before=first))
            for one, (_, request) in zip(ones, stored, strict=True):
                self._bodies.remember_base(get_delta_compression_group(one), request, one.request.body)
        ids = [new for new, _ in stored]
        self._last, self._stored = max([self._last, *ids]), self._stored + len(ids)
        return ids

    def _insert_interaction(
        self, conn: sqlite3.Connection, given: InteractionToStore, row: tuple[Sql, ...],
        bodies: tuple[BodyToStore, BodyToStore], now: float, before: int | None,
    ) -> tuple[int, tuple[int, int]]:  # fmt: skip
        one = given.interaction
        name, sample = to_sql(one.cassette), one.sample
        slot = (name, sample, to_sql(one.party), one.key)
        if not (counted := conn.execute(_COUNT, (name, sample)).fetchall()):
            leases_and_deletes.ensure_cassette_row_exists(conn, name, sample, now)
            counted = conn.execute(_COUNT, (name, sample)).fetchall()
        elif self._held.get((name, sample), lease := counted[0][1:]) != lease:
            raise leases_and_deletes.build_lease_lost_error(lease[0], one.cassette)
        request, (response, _) = (self._bodies.store_body(conn, each) for each in bodies)
        found = conn.execute(SLOTS, slot).fetchall()
        live = [RecordingHead(id_, nth, status, Ending(how)) for id_, nth, status, how, _ in found]
        gone, nth = find_superseded_and_occurrence(given, live, before)
        if gone:
            conn.executemany(_SUPERSEDE_ONE, [(now, id_) for id_ in gone])
        new = int(conn.execute(_INSERT, (counted[0][0], nth, request[0], response, *row)).lastrowid or 0)
        if gone:
            conn.execute(_NAME_SUCCESSOR, (new, now))
        row_conversion.insert_id_and_variable_rows(conn, new, name, sample, one.made_ids, to_sql(one.run_variables))
        return new, request

    def begin_writing(self, cassette: str, sample: int, *, exclusive: bool, holder: str, anew: bool = True) -> None:
        self._require_writable()
        if exclusive:
            with self._lock_writing_connection() as conn, write_transaction(conn):
                leases_and_deletes.take_lease(conn, to_sql(cassette), sample, holder, self._now(), anew=anew)
            self._held[to_sql(cassette), sample] = holder, *leases_and_deletes.get_own_pid_and_machine()

    def renew_lease(self, cassette: str, sample: int, holder: str) -> bool:
        sql = "UPDATE cassettes SET heartbeat = ? WHERE name = ? AND sample = ? AND holder = ? AND pid = ? AND host = ?"
        with self._lock_writing_connection() as conn, write_transaction(conn):
            ours = (to_sql(cassette), sample, holder, *leases_and_deletes.get_own_pid_and_machine())
            return conn.execute(sql, (self._now(), *ours)).rowcount > 0

    def end_writing(self, cassette: str, sample: int, holder: str, *, clean: bool | None) -> None:
        self._require_writable()
        if self._writer is None:
            return  # nothing was written through this object, so the file stays unchanged
        with self._lock_writing_connection() as conn, write_transaction(conn):
            if clean is None:
                clean = not conn.execute(UNFINISHED, (to_sql(cassette), sample)).fetchall()
            leases_and_deletes.release_lease(conn, to_sql(cassette), sample, holder, clean=clean and not self._gone)
            self._held.pop((to_sql(cassette), sample), None)

    def promote_staged(self, staged: Place, place: Place, gone: Collection[int], *, holder: str, clean: bool) -> None:
        old, new, now = (to_sql(staged[0]), staged[1]), (to_sql(place[0]), place[1]), self._now()
        with self.sqlite_transaction() as conn:
            leases_and_deletes.take_lease(conn, *new, holder, now, anew=False)
            conn.executemany(_RETIRE_ONE, [(now, id_) for id_ in gone])
            for table in ("interactions", "made_ids"):
                conn.execute(f"UPDATE {table} SET cassette = ? WHERE cassette = ? AND sample = ?", (new[0], *old))
            conn.execute(_ADD_COUNT, (*old, *new))
            conn.execute("DELETE FROM cassettes WHERE name = ? AND sample = ?", old)
            leases_and_deletes.release_lease(conn, *new, holder, clean=clean)

    def write_volatile_fields(self, cassette: str, texts: Sequence[str]) -> None:
        with self.sqlite_transaction() as conn:
            leases_and_deletes.replace_volatile_field_rows(conn, to_sql(cassette), texts)

    def record_synced_file(self, cassette: str, seen: CassetteFileSyncState) -> None:
        with self._lock_writing_connection() as conn, write_transaction(conn):
            conn.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?)", (to_sql(cassette), *seen))

    def delete_interactions(self, ids: Collection[int]) -> DeletionCounts:
        """Delete and overwrite interactions and bodies that only they used; rewrite the file if that frees enough."""
        before = self.path.stat().st_size
        with self.sqlite_transaction() as conn:
            conn.execute("PRAGMA secure_delete=ON")
            deleted, bodies = leases_and_deletes.delete_interactions(conn, ids)
            conn.execute("PRAGMA secure_delete=OFF")
            free, pages = (conn.execute(f"PRAGMA {what}").fetchone()[0] for what in ("freelist_count", "page_count"))
        with suppress(CassetteBusy, RecordingError), self._lock_writing_connection() as conn:  # else others use it
            if free * _SPARE >= pages:
                conn.execute("VACUUM")
            conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return DeletionCounts(deleted, bodies, max(before - self.path.stat().st_size, 0))

    def rename_cassette(self, old: str, new: str) -> None:
        names = (to_sql(old), to_sql(new))
        with self.sqlite_transaction() as conn:
            leases = conn.execute(_LEASES, (names[1], self._now(), *names))
            leases_and_deletes.check_new_cassette_name(self.path, old, new, leases)
            conn.execute("DELETE FROM volatile_fields WHERE cassette = ?", names[1:])
            for table, column in _NAMED:
                conn.execute(f"UPDATE {table} SET {column} = ? WHERE {column} = ?", names[::-1])

    def rekey_recordings(self, made: Sequence[RecordingKeyUpdate]) -> None:
        """Rekey live recordings; one whose new slot is taken keeps its key until the next opening."""
        with self._lock_writing_connection() as conn, write_transaction(conn):
            # Two live rows may never stand in one slot, not even for a moment.
            before = [(each.id, each.old) for each in made]
            conn.executemany("UPDATE interactions SET occurrence = -id WHERE id = ? AND key = ?", before)
            conn.executemany(_RENAME, [(each.key, each.occurrence, each.rules, each.id, each.old) for each in made])

    @contextmanager
    def sqlite_transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock_writing_connection() as conn, write_transaction(conn):
            yield conn
        self._bodies.forget_bases()
        self._answers.clear()

    @contextmanager
    def _lock_writing_connection(self) -> Iterator[sqlite3.Connection]:
        self._require_writable()
        with self._lock:
            if self._writer is not None and not self._writer.is_current():
                log.warning(
                    "the store %s was removed or replaced while we recorded; from now on we record there", self.path
                )
                self._writer.close()
                self._writer = None
                self._bodies.forget_bases()
                self._moved = True
                self._held.clear()  # a new file knows nothing of leases
            if self._writer is None:
                self._writer = connect.open_store_writer(self.path)
                self._gone = self._gone or (self._last > 0 and not self._holds_last_stored())
            if self._writer.is_overwritten():
                raise self._build_loss_error()
            try:
                yield self._writer
            except sqlite3.Error as error:
                self._bodies.forget_bases()
                raise connect.translate_sqlite_store_error(error, self.path, writing=True) from error


def open_store(path: Path | str, *, writable: bool, now: Callable[[], float], whole: bool = True) -> Store:
    """Open the store at `path`, with the errors of `SqliteCassetteStore.open` and `PostgresCassetteStore.connect`.

    `whole`: read all of a server's store at once; otherwise a cassette is read by `Store.refresh_cassette`.
    """
    if (server := find_postgres_of_local_copy(path)) is None:
        return SqliteCassetteStore.open(path, writable=writable, now=now)
    from llmproxy.core.store.postgres.store import PostgresCassetteStore

    return PostgresCassetteStore.connect(server, writable=writable, now=now, whole=whole)
