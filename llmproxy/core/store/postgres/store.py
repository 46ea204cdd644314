"""The store of a team: written to the server, read from its copy on this machine, which is usable without the server.

A write is acknowledged after the server's commit; an unconfirmed one is sent again with the same token, so that it is
stored once.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import count
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from llmproxy.core.store import row_conversion
from llmproxy.core.store.bodies import BodyToStore, DeltaBodyWriter, DeltaEncodedBody, compress_body_for_storage
from llmproxy.core.store.file import connect
from llmproxy.core.store.file.leases_and_deletes import (
    build_lease_lost_error,
    check_new_cassette_name,
    get_own_pid_and_machine,
)
from llmproxy.core.store.postgres import connection, local_copy, schema_and_leases
from llmproxy.core.store.postgres.connection import (
    CassetteServerLost,
    ReopeningPostgresConnection,
    encode_pg_text,
    to_pg_value,
)
from llmproxy.core.store.postgres.local_copy import BodyRow
from llmproxy.core.store.reader import CassetteFileSyncState, Place, RecordingHead, RecordingKeyUpdate
from llmproxy.core.store.row_conversion import Sql, to_sql
from llmproxy.core.store.store import (
    UNFINISHED,
    DeletionCounts,
    InteractionToStore,
    Store,
    find_superseded_and_occurrence,
    get_delta_compression_group,
)
from llmproxy.core.traffic.interaction import Ending, Key
from llmproxy.errors import RecordingError, StoreReadOnly
from llmproxy.postgres_store_paths import ServerStoreAddress, create_folder_of_local_store_copy
from llmproxy.sqlite_file import OverwriteAwareConnection

if TYPE_CHECKING:
    from llmproxy.core.store.postgres.connection import Answer, Conn

log = logging.getLogger(__name__)

_COUNT = f"""
INSERT INTO llmproxy.cassettes AS c (name, sample, created_at, recorded, version, epoch)
VALUES (%s, %s, %s, %s, 1, {schema_and_leases.RANDOM_EPOCH}) ON CONFLICT (name, sample) DO UPDATE
    SET recorded = c.recorded + excluded.recorded, version = c.version + 1, closed_cleanly = 0
RETURNING recorded, version, holder, pid, host
"""
_STORED = "SELECT token, id FROM llmproxy.interactions WHERE token = ANY(%s)"
_BODY = """
INSERT INTO llmproxy.bodies (sha256, size, encoding, base, prefix, suffix, depth, data)
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s)
ON CONFLICT DO NOTHING
"""
_SLOTS = """
SELECT id, occurrence, status, ending FROM llmproxy.interactions
WHERE cassette = %s AND sample = %s AND party = %s AND key = %s AND superseded_at IS NULL ORDER BY occurrence
"""
_SUPERSEDE = "UPDATE llmproxy.interactions SET superseded_at = %s, superseded_by = -1, changed = %s WHERE id = ANY(%s)"
_LOCK_ALL = "SELECT 1 FROM llmproxy.cassettes WHERE name = %s ORDER BY sample FOR UPDATE"
_SUPERSEDE_ALL = "UPDATE llmproxy.interactions SET superseded_at = %s WHERE cassette = %s AND superseded_at IS NULL"
_RESTART_COPIES = "UPDATE llmproxy.cassettes SET version = version + 1, epoch = epoch + 1 WHERE name = %s"
_NAME_SUCCESSOR = """
UPDATE llmproxy.interactions SET superseded_by = (SELECT id FROM llmproxy.interactions WHERE token = %s)
    WHERE id = ANY(%s)
"""
_COLUMNS = (
    "token", "changed", "position", "occurrence", "request_body", "response_body", "made_ids", "run_variables",
    *row_conversion.COLUMNS,
)  # fmt: skip
_INSERT = (
    f"INSERT INTO llmproxy.interactions ({', '.join(_COLUMNS)}) VALUES ({', '.join(['%s'] * len(_COLUMNS))}) "
    f"RETURNING id"
)
_LOCK_NAMES = """
SELECT name = %s, sample, holder, pid, host, extract(epoch FROM clock_timestamp() - heartbeat)::float8
FROM llmproxy.cassettes WHERE name = ANY(%s) ORDER BY name, sample FOR UPDATE
"""
_RENAME_SAMPLES = f"""
UPDATE llmproxy.cassettes SET name = %s, version = version + 1, epoch = {schema_and_leases.RANDOM_EPOCH}
    WHERE name = %s AND sample = ANY(%s)
"""
_RETIRE = "UPDATE llmproxy.interactions SET superseded_at = %s WHERE id = ANY(%s) AND superseded_at IS NULL"
_ADD_COUNT = """
UPDATE llmproxy.cassettes SET recorded = recorded + coalesce(
    (SELECT recorded FROM llmproxy.cassettes WHERE name = %s AND sample = %s), 0) WHERE name = %s AND sample = %s
"""


class _PreparedInteraction(NamedTuple):
    given: InteractionToStore
    token: uuid.UUID
    row: tuple[Sql, ...]
    bodies: tuple[bytes, bytes]  # digests of request and response

    @property
    def cassette_and_sample(self) -> tuple[str, int]:
        return encode_pg_text(self.given.interaction.cassette), self.given.interaction.sample

    @property
    def cassette_sample_party_key(self) -> tuple[str, int, str, Key]:
        return (*self.cassette_and_sample, encode_pg_text(self.given.interaction.party), self.given.interaction.key)

    def encode_standalone(self) -> dict[bytes, BodyRow]:
        one = self.given.interaction
        contents = zip(self.bodies, (one.request.body, one.response.body), strict=True)
        return {
            sha: _build_body_to_store(sha, content, compress_body_for_storage(content)) for sha, content in contents
        }


class _AlreadyStored(Exception):
    """The previous attempt was committed, without a confirmation."""


class PostgresCassetteStore(Store):
    def __init__(
        self, server: ServerStoreAddress, link: ReopeningPostgresConnection, writer: OverwriteAwareConnection, *,
        writable: bool, now: Callable[[], float],
    ) -> None:  # fmt: skip
        super().__init__(server.copy, connect.open_reader_beside_own_writer(server.copy), now=now)
        self.server = server
        self.writable = writable
        self._lock = threading.Lock()
        self._writer: OverwriteAwareConnection | None = writer  # writing connection to the copy
        self._bodies = DeltaBodyWriter()
        self._reads, self._writes = link, ReopeningPostgresConnection(server)
        self._read: set[str] = set()  # cassettes read from the server since this store was opened
        self._held: dict[tuple[str, int], list[object]] = {}
        """Holders of our leases, by the server's name of the cassette and sample."""
        self._wrote: set[tuple[str, int]] = set()  # cassettes and samples, in the server's form, in which we recorded
        self._away = False
        """Whether the server was unavailable when a session ended: the next ones do not wait for it again."""
        self._shared: set[tuple[str, int]] = set()
        """Cassettes into which others may record at the same time, and those of which the copy is outdated."""

    @classmethod
    def connect(
        cls, server: ServerStoreAddress, *, writable: bool, now: Callable[[], float], whole: bool = True
    ) -> PostgresCassetteStore:
        """Open the store on a server; its tables are created or upgraded if `writable`.

        Raises CassetteServerLost: it cannot be reached, or refuses us; CassetteNotFound: there is no store to read yet;
        CassetteNewer: a newer llmproxy created it; StoreReadOnly: `writable`, but this role may only read.
        """
        create_folder_of_local_store_copy(server.copy)
        link = ReopeningPostgresConnection(server)
        with ExitStack() as on_error:
            on_error.callback(link.close)
            with link.borrow_connection(writing=writable) as conn:
                if writable:
                    schema_and_leases.upgrade_schema(conn)
                schema_and_leases.check_server_schema_version(conn, server)
                asked = "SELECT has_table_privilege('llmproxy.interactions', 'INSERT')"
                if writable and not conn.execute(asked).fetchall()[0][0]:
                    raise StoreReadOnly(
                        f"The store {server.shown} cannot be written to: this role may only read it.",
                        hint="Replay works (--mode replay). To record, use a role that may: docs/store.md has the "
                        "grants.",
                    )
                identity = str(conn.execute("SELECT id FROM llmproxy.store").fetchall()[0][0])
            writer = on_error.enter_context(closing(connect.open_store_writer(server.copy)))
            local_copy.create_tables_of_server_store_copy(writer, identity)
            store = cls(server, link, writer, writable=writable, now=now)
            on_error.enter_context(store)
            if whole:
                store._refresh_copy(None)
            on_error.pop_all()
        return store

    def close(self) -> None:
        self._reads.close()
        self._writes.close()
        with self._lock:
            self._reader.close()
            if self._writer is not None:
                connect.checkpoint_and_close(self._writer)
                self._writer = None

    def refresh_cassette(self, cassette: str) -> None:
        """Read changes of a cassette. Raises CassetteServerLost only if it was never read; else its copy is usable."""
        try:
            self._refresh_copy(cassette)
        except CassetteServerLost as error:
            if cassette not in self._read:
                raise
            log.warning("%s What was read of cassette %s is replayed.", error.message, cassette)
        self._read.add(cassette)

    def wait_for_server(self) -> None:
        """Wait until the server is available, as long as writing does. Raises CassetteServerLost."""
        for attempt in connection.iterate_transaction_attempts():
            with attempt, self._reads.borrow_connection(writing=False) as conn:
                conn.execute("SELECT 1")
                with self._local_copy_writer():  # a recorder's update of the copy waits for the server as well
                    return

    def find_keyed(self, cassette: str, sample: int, party: str, key: Key) -> tuple[RecordingHead, ...]:
        """Return live recordings of `key`; if others record too, refresh at a miss. Raises CassetteServerLost."""
        found = super().find_keyed(cassette, sample, party, key)
        if found or (cassette, sample) not in self._shared:
            return found
        if not self._reads.is_usable:
            raise CassetteServerLost(  # connecting takes seconds on the event loop: `wait_for_server` does it elsewhere
                f"The store {self.server.shown} cannot be reached now: the connection to it is being made anew."
            )
        self._refresh_copy(cassette, timeout=connection.SOON)
        return super().find_keyed(cassette, sample, party, key)

    def _refresh_copy(self, cassette: str | None, *, timeout: float = -1) -> None:
        with self._reads.borrow_connection(writing=False) as conn:
            self._update_copy(conn, cassette, timeout=timeout)

    def _update_copy(self, conn: Conn, cassette: str | None, *, timeout: float = -1) -> None:
        with self._local_copy_writer(timeout) as local:
            stale = local_copy.list_outdated_cassette_copies(local, conn, cassette)
            if local_copy.update_local_copy_from_server(local, conn, stale, {}):
                self._bodies.forget_bases()

    @contextmanager
    def _local_copy_writer(self, timeout: float = -1) -> Iterator[OverwriteAwareConnection]:
        """Yield the copy's writing connection to a thread. Raises CassetteServerLost after `timeout` s (-1: never)."""
        if not self._lock.acquire(timeout=timeout):
            raise CassetteServerLost(
                f"The store {self.server.shown} cannot be reached now: another request waits for it."
            )
        try:
            if self._writer is None or not self._writer.is_current():
                raise RecordingError(
                    f"The copy of {self.server.shown} at {self.path} was removed while it was in use.",
                    hint="Start again.",
                )
            yield self._writer
        except sqlite3.Error as error:
            self._bodies.forget_bases()
            raise connect.translate_sqlite_store_error(error, self.path, writing=True) from error
        finally:
            self._lock.release()

    def add_interactions(self, many: Sequence[InteractionToStore], *, instead_of: str | None = None) -> list[int]:
        """Store several interactions in one transaction; while the server is unavailable, retry for about ten seconds.

        Raises CassetteServerLost: it is unknown whether the last attempt was committed; the caller counts it as lost.
        """
        self._require_writable()
        self.write_current_keys([(each.interaction.cassette, each.interaction.sample) for each in many])
        bodies: dict[bytes, BodyRow] = {}
        sent = [self._prepare_interaction(given, bodies) for given in many]
        stored: list[int] = []
        for number, attempt in enumerate(connection.iterate_transaction_attempts()):
            if number == 1:  # what a body builds on may be gone from the server
                bodies = {sha: body for each in sent for sha, body in each.encode_standalone().items()}
            with attempt, self._writes.borrow_connection(writing=True) as conn:
                try:
                    stored = self._insert_in_transaction(conn, sent, bodies, instead_of, again=number > 0)
                except _AlreadyStored as before:
                    (stored,) = before.args
                self._wrote.update(each.cassette_and_sample for each in sent)
                self._copy_committed_rows(sent, bodies, instead_of)
                break
        return stored

    def _prepare_interaction(self, given: InteractionToStore, bodies: dict[bytes, BodyRow]) -> _PreparedInteraction:
        one = given.interaction
        with self._local_copy_writer() as local:
            made = [
                self._bodies.prepare_body(local, one.request.body, get_delta_compression_group(one)),
                self._bodies.prepare_body(local, one.response.body, None),
            ]
            for each in made:
                if each.encoded is not None and each.sha256 not in bodies:
                    bodies[each.sha256] = _to_server_body(local, each, each.encoded)
        row = tuple(map(to_pg_value, row_conversion.convert_interaction_to_row(one, given.described)))
        return _PreparedInteraction(given, uuid.uuid4(), row, (made[0].sha256, made[1].sha256))  # noqa: TID251 - token

    def _insert_in_transaction(
        self, conn: Conn, sent: Sequence[_PreparedInteraction], bodies: dict[bytes, BodyRow],
        instead_of: str | None, *, again: bool,
    ) -> list[int]:  # fmt: skip
        """Store all in one transaction, and return the ids; `again`: the attempt before may have been committed.

        One interaction costs two round trips: one that locks and asks, one that writes and commits.
        """
        many = Counter(each.cassette_and_sample for each in sent)
        with connection.run_pipelined_transaction(conn):
            if instead_of is not None:
                name = encode_pg_text(instead_of)
                conn.execute(_LOCK_ALL, (name,))
                conn.execute(_SUPERSEDE_ALL, (self._now(), name))
                conn.execute(_RESTART_COPIES, (name,))  # of a sample that was begun since too
            # In one order: two who wait for each other would be a deadlock.
            locks = {place: conn.execute(_COUNT.encode(), (*place, self._now(), many[place])) for place in sorted(many)}
            tokens = conn.execute(_STORED, ([each.token for each in sent],)) if again else None
            if bodies:
                with conn.cursor() as cursor:
                    cursor.executemany(_BODY, list(bodies.values()))
            live = conn.execute(_SLOTS, sent[0].cassette_sample_party_key)
            counted = {place: self._read_count_and_version(place, answer) for place, answer in locks.items()}
            # Under the locks of the cassettes nothing of the attempt before can still be on its way.
            found: dict[uuid.UUID, int] = {} if tokens is None else dict(tokens.fetchall())
            if found:
                raise _AlreadyStored([found[each.token] for each in sent])
            positions = {place: count(recorded - many[place] + 1) for place, (recorded, _) in counted.items()}
            ids: list[int] = []
            inserted: list[Answer] = []
            for each in sent:
                place = each.cassette_and_sample
                if inserted:
                    ids.append(_read_inserted_id(inserted[-1]))
                    live = conn.execute(_SLOTS, each.cassette_sample_party_key)
                before = ids[0] if ids else None
                position, version = next(positions[place]), counted[place][1]
                inserted.append(self._insert_on_server(conn, each, live, position, version, before))
        return [*ids, _read_inserted_id(inserted[-1])]

    def _read_count_and_version(self, place: tuple[str, int], answer: Answer) -> tuple[int, int]:
        """Return how many were ever recorded, and the version. Raises CassetteBusy: our lease is another's by now."""
        recorded, version, *lease = answer.fetchall()[0]
        if self._held.get(place, lease) != lease:
            raise build_lease_lost_error(lease[0], place[0])
        return int(recorded), int(version)

    def _insert_on_server(
        self, conn: Conn, each: _PreparedInteraction, live: Answer, position: int, version: int, before: int | None
    ) -> Answer:
        slots = [RecordingHead(id_, nth, status, Ending(how)) for id_, nth, status, how in live.fetchall()]
        gone, nth = find_superseded_and_occurrence(each.given, slots, before)
        if gone:
            conn.execute(_SUPERSEDE, (self._now(), version, list(gone)))
        said = json.dumps(each.given.interaction.made_ids), encode_pg_text(each.given.interaction.run_variables)
        answer = conn.execute(_INSERT, (each.token, version, position, nth, *each.bodies, *said, *each.row))
        if gone:
            conn.execute(_NAME_SUCCESSOR, (each.token, list(gone)))
        return answer

    def _copy_committed_rows(
        self, sent: Sequence[_PreparedInteraction], bodies: dict[bytes, BodyRow], instead_of: str | None
    ) -> None:
        """Update the copy with committed rows; if that fails, it may answer with superseded ones until a miss asks."""
        made = [each.given.interaction for each in sent]
        places = {(one.cassette, one.sample) for one in made}
        try:
            # Borrowed again, although our caller has it: this closes a connection on which a statement timed out.
            with self._writes.borrow_connection(writing=True) as conn, self._local_copy_writer() as local:
                changed = [(to_sql(name), sample) for name, sample in places]
                if instead_of is not None:
                    changed = local_copy.list_outdated_cassette_copies(local, conn, instead_of)
                if local_copy.update_local_copy_from_server(local, conn, changed, bodies):
                    self._bodies.forget_bases()
                for one, each in zip(made, sent, strict=True):
                    for row in local.execute("SELECT id, depth FROM bodies WHERE sha256 = ?", each.bodies[:1]):
                        self._bodies.remember_base(get_delta_compression_group(one), row, one.request.body)
        except Exception:
            self._shared |= places
            log.warning("the copy of %s is behind", self.server.shown, exc_info=log.isEnabledFor(logging.DEBUG))

    def begin_writing(self, cassette: str, sample: int, *, exclusive: bool, holder: str, anew: bool = True) -> None:
        self._require_writable()
        place = (encode_pg_text(cassette), sample)
        if not exclusive:
            self._shared.add((cassette, sample))
            return
        with self._writes.borrow_connection(writing=True) as conn:
            schema_and_leases.take_lease(conn, place, holder, self._now(), anew=anew)
        self._held[place] = [holder, *get_own_pid_and_machine()]

    def renew_lease(self, cassette: str, sample: int, holder: str) -> bool:
        with self._writes.borrow_connection(writing=True) as conn:
            return schema_and_leases.renew_lease(conn, (encode_pg_text(cassette), sample), holder)

    def end_writing(self, cassette: str, sample: int, holder: str, *, clean: bool | None) -> None:
        self._require_writable()
        self._shared.discard((cassette, sample))
        place = (encode_pg_text(cassette), sample)
        if place not in self._held and place not in self._wrote:
            return  # nothing was written, so there is nothing to say
        try:
            for attempt in connection.iterate_transaction_attempts(once=self._away):
                with attempt, self._writes.borrow_connection(writing=True) as conn, conn.transaction():
                    if clean is None:
                        clean = not conn.execute(_UNFINISHED.encode(), place).fetchall()
                    schema_and_leases.release_lease(conn, place, holder, clean=clean)
                    break
        except CassetteServerLost:
            self._away = True
            raise
        self._held.pop(place, None)
        self._away = False

    @contextmanager
    def _changing_connection(self, cassette: str | None = None) -> Iterator[Conn]:
        """Yield the writing connection; our copy is updated afterwards, other machines' at their next refresh."""
        self._require_writable()
        with self._writes.borrow_connection(writing=True) as conn:
            yield conn
            self._update_copy(conn, cassette)

    def write_volatile_fields(self, cassette: str, texts: Sequence[str]) -> None:
        name = encode_pg_text(cassette)
        with self._changing_connection(cassette) as conn, conn.transaction():
            schema_and_leases.ensure_pg_cassette_row_exists(conn, (name, 1), self._now())
            conn.execute("UPDATE llmproxy.cassettes SET version = version + 1 WHERE name = %s", (name,))
            conn.execute("DELETE FROM llmproxy.volatile_fields WHERE cassette = %s", (name,))
            for at, text in enumerate(texts):
                conn.execute("INSERT INTO llmproxy.volatile_fields VALUES (%s, %s, %s)", (name, at, to_pg_value(text)))

    def delete_interactions(self, ids: Collection[int]) -> DeletionCounts:
        with self._changing_connection() as conn:
            deleted = schema_and_leases.delete_interactions(conn, list(ids))
            return DeletionCounts(deleted, schema_and_leases.delete_unused_bodies(conn), None)

    def rename_cassette(self, old: str, new: str) -> None:
        was, is_ = encode_pg_text(old), encode_pg_text(new)
        with self._changing_connection() as conn, conn.transaction():
            found = conn.execute(_LOCK_NAMES, (is_, [was, is_])).fetchall()
            check_new_cassette_name(self.path, old, new, found)
            samples = [sample for _, sample, *_ in found]  # a sample that is begun meanwhile keeps the old name
            conn.execute(_RENAME_SAMPLES.encode(), (is_, was, samples))
            sql = "UPDATE llmproxy.interactions SET cassette = %s WHERE cassette = %s AND sample = ANY(%s)"
            conn.execute(sql, (is_, was, samples))
            conn.execute("DELETE FROM llmproxy.volatile_fields WHERE cassette = %s", (is_,))
            conn.execute("UPDATE llmproxy.volatile_fields SET cassette = %s WHERE cassette = %s", (is_, was))

    def promote_staged(self, staged: Place, place: Place, gone: Collection[int], *, holder: str, clean: bool) -> None:
        old, new, now = (encode_pg_text(staged[0]), staged[1]), (encode_pg_text(place[0]), place[1]), self._now()
        with self._changing_connection() as conn, conn.transaction():
            schema_and_leases.take_lease(conn, new, holder, now, anew=False)
            conn.execute(_RETIRE, (now, list(gone)))
            conn.execute(
                "UPDATE llmproxy.interactions SET cassette = %s WHERE cassette = %s AND sample = %s", (new[0], *old)
            )
            conn.execute(_ADD_COUNT, (*old, *new))
            conn.execute("DELETE FROM llmproxy.cassettes WHERE name = %s AND sample = %s", old)
            conn.execute(schema_and_leases.BEGIN_ANEW, new)
            schema_and_leases.release_lease(conn, new, holder, clean=clean)
        self._held.pop(old, None)

    def rekey_recordings(self, made: Sequence[RecordingKeyUpdate]) -> None:
        """Rekey live recordings. Slots of a whole cassette may be exchanged, so its copies are read from the start."""
        with self._changing_connection() as conn, conn.transaction(), conn.cursor() as cursor:
            schema_and_leases.mark_cassette_copies_outdated(conn, [each.id for each in made])
            cursor.executemany(
                "UPDATE llmproxy.interactions SET occurrence = -id WHERE id = %s AND key = %s",
                [(each.id, each.old) for each in made],
            )
            cursor.executemany(
                "UPDATE llmproxy.interactions SET key = %s, occurrence = %s, rules = %s WHERE id = %s AND key = %s",
                [(each.key, each.occurrence, each.rules, each.id, each.old) for each in made],
            )

    def record_synced_file(self, cassette: str, seen: CassetteFileSyncState) -> None:  # noqa: ARG002 - protocol
        """Raise StoreReadOnly: only a store in a file is synchronized with cassettes' files."""
        self.sqlite_transaction()

    def sqlite_transaction(self) -> NoReturn:
        """Raise StoreReadOnly: forks and synchronized files need a store in a file."""
        raise StoreReadOnly(
            f"The store {self.server.shown} is a server's, and this needs a store in a file.",
            hint="llmproxy pull NAME brings a cassette into llmproxy.db, llmproxy push NAME --replace brings it back.",
        )


_UNFINISHED = UNFINISHED.replace("FROM interactions", "FROM llmproxy.interactions").replace("?", "%s")


def _read_inserted_id(answer: Answer) -> int:
    return int(answer.fetchall()[0][0])


def _build_body_to_store(sha: bytes, content: bytes, made: DeltaEncodedBody, base: bytes | None = None) -> BodyRow:
    return BodyRow(sha, len(content), made.encoding, base, made.prefix, made.suffix, made.depth, made.data)


def _to_server_body(local: sqlite3.Connection, prepared: BodyToStore, made: DeltaEncodedBody) -> BodyRow:
    """Return a body as a server's row; it names what it builds on by digest, the copy by number."""
    sha, content = prepared.sha256, prepared.content
    if made.base_id is None:
        return _build_body_to_store(sha, content, made)
    found = local.execute("SELECT sha256 FROM bodies WHERE id = ?", (made.base_id,)).fetchone()
    if found is None:  # taken out of the copy by another process since we remembered it
        return _build_body_to_store(sha, content, compress_body_for_storage(content))
    return _build_body_to_store(sha, content, made, found[0])
