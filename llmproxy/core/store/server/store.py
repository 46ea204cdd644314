"""The store of a team: read from its copy on this machine, written to the server.

Reading is `Reading`'s, over the copy; `refresh` brings a cassette of it up to date when a session begins, when a cassette is still
empty and, where others may record beside us, at each miss. While the server is away, what was read stays. Writing is acknowledged when
the server has committed; what was sent and not confirmed is sent again under the same token, so that it is there once.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, NoReturn, Self

from llmproxy.core.store.contents import rows
from llmproxy.core.store.contents.bodies import Prepared, encode
from llmproxy.core.store.contents.rows import Sql
from llmproxy.core.store.file.connect import open_beside, open_writer, translate as translate_local
from llmproxy.core.store.reading import FileSeen, RecordingSlot
from llmproxy.core.store.server import copying, leases, schema
from llmproxy.core.store.server.copying import Body
from llmproxy.core.store.server.link import Link, Lost, TransactionsMet, attempts
from llmproxy.core.store.server.texts import in_column, to_pg
from llmproxy.core.store.store import UNFINISHED, Addition, Store, choose_slot
from llmproxy.core.traffic.interaction import Ending, Key
from llmproxy.errors import CassetteBusy, RecordingError, StoreReadOnly
from llmproxy.sqlite_file import Connection
from llmproxy.store_server import Server

if TYPE_CHECKING:
    from llmproxy.core.store.server.link import Conn

log = logging.getLogger(__name__)

_COUNT = """
UPDATE llmproxy.cassettes SET recorded = recorded + %s, version = version + 1, closed_cleanly = 0
WHERE name = %s AND sample = %s RETURNING recorded, version, epoch, holder
"""
_STORED = "SELECT token, id FROM llmproxy.interactions WHERE token = ANY(%s)"
_BODY = """
INSERT INTO llmproxy.bodies (sha256, size, encoding, base, prefix, suffix, depth, data) VALUES (%s, %s, %s, %s, %s, %s, %s, %s)
ON CONFLICT DO NOTHING
"""
_SLOTS = """
SELECT id, occurrence, status, ending FROM llmproxy.interactions
WHERE cassette = %s AND sample = %s AND party = %s AND key = %s AND superseded_at IS NULL ORDER BY occurrence
"""
_SUPERSEDE = "UPDATE llmproxy.interactions SET superseded_at = %s, superseded_by = -1, changed = %s WHERE id = ANY(%s)"
_SUPERSEDE_ALL = """
UPDATE llmproxy.interactions AS i SET superseded_at = %s, changed = c.version FROM llmproxy.cassettes AS c
WHERE i.cassette = %s AND superseded_at IS NULL AND c.name = i.cassette AND c.sample = i.sample
"""
_NAME_SUCCESSOR = "UPDATE llmproxy.interactions SET superseded_by = %s WHERE id = ANY(%s)"
_COLUMNS = (
    "token",
    "changed",
    "position",
    "occurrence",
    "request_body",
    "response_body",
    "made_ids",
    "circumstances",
    *rows.COLUMNS,
)
_INSERT = f"INSERT INTO llmproxy.interactions ({', '.join(_COLUMNS)}) VALUES ({', '.join(['%s'] * len(_COLUMNS))}) RETURNING id"  # noqa: S608
_MAY_RECORD = "SELECT has_table_privilege('llmproxy.interactions', 'INSERT')"
_GONE = "23503"


class _Sent(NamedTuple):
    """An interaction of which everything is made that needs no lock."""

    given: Addition
    token: uuid.UUID
    row: tuple[Sql, ...]
    bodies: tuple[bytes, bytes]
    """Digests of request and response."""

    @property
    def place(self) -> tuple[str, int]:
        """Cassette, as a column on the server has it, and sample."""
        return in_column(self.given.interaction.cassette), self.given.interaction.sample


@dataclass(slots=True)
class _Made:
    """What a transaction wrote on the server."""

    rows: list[copying.Stored] = field(default_factory=list)
    counts: dict[tuple[str, int], tuple[int, int, int]] = field(default_factory=dict)
    """By place: how many were ever recorded, version and epoch; empty where the copy must be read anew."""


class ServerStore(Store):
    """A store on a server. Reading belongs to one thread at a time; writing may be done from any."""

    def __init__(self, server: Server, writer: Connection, *, writable: bool, now: Callable[[], float]) -> None:
        """Use :meth:`connect`."""
        super().__init__(server.copy, open_beside(server.copy), writable=True, now=now)
        self.server = server
        self.writable = writable
        self._writer = writer
        self._reads, self._writes = Link(server), Link(server)
        self._read: set[str] = set()
        """Cassettes that were read from the server since it was opened."""
        self._held: dict[tuple[str, int], str] = {}
        """Our leases, by the server's name of the cassette and sample: the holder."""
        self._wrote: set[tuple[str, int]] = set()
        """Cassettes and samples, as the server names them, into which we recorded."""
        self._away = False
        """Whether the server stayed away when a session ended: the next ones do not wait for it again."""
        self._shared: set[tuple[str, int]] = set()
        """Those into which others may record beside us."""

    @classmethod
    def connect(cls, server: Server, *, writable: bool, now: Callable[[], float], whole: bool = True) -> ServerStore:
        """Open the store on a server; its tables are made, or brought up to date, if it is to be written.

        Raises:
            Lost: it cannot be reached, or lets us not in.
            CassetteNotFound: there is no store yet, and it is not to be written.
            CassetteNewer: a newer llmproxy made it.
            StoreReadOnly: it is to be written, and this role may not.

        """
        server.copy.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        link = Link(server)
        try:
            with link.connected(writing=writable) as conn:
                if writable:
                    schema.upgrade(conn)
                schema.check(conn, server)
                _check_role(conn, server, writable=writable)
                identity = str(conn.execute("SELECT id FROM llmproxy.store").fetchall()[0][0])
            writer = open_writer(server.copy)
            try:
                copying.prepare(writer, identity)
                store = cls(server, writer, writable=writable, now=now)
            except BaseException:
                writer.close()
                raise
        except BaseException:
            link.close()
            raise
        store._reads = link
        try:
            if whole:
                store._bring(None)
        except BaseException:
            store.close()
            raise
        return store

    def close(self) -> None:
        """Let the server go, and put the copy at rest."""
        self._reads.close()
        self._writes.close()
        super().close()

    def __enter__(self) -> Self:
        """Close at the end of the block."""
        return self

    # --- reading ---------------------------------------------------------------------------------------------------------

    def refresh(self, cassette: str) -> None:
        """Read what is new of a cassette. Raises Lost only if it was never read: what was read stays while the server is away."""
        try:
            self._bring(cassette)
        except Lost as error:
            if cassette not in self._read:
                raise
            log.warning("%s What was read of cassette %s is replayed.", error.message, cassette)
        self._read.add(cassette)

    def slots(self, cassette: str, sample: int, party: str, key: Key) -> tuple[RecordingSlot, ...]:
        """Return the live recordings of `key`; where others record beside us, a miss asks the server before it is one."""
        found = super().slots(cassette, sample, party, key)
        if found or (cassette, sample) not in self._shared:
            return found
        self._bring(cassette)
        return super().slots(cassette, sample, party, key)

    def _bring(self, cassette: str | None) -> None:
        with self._reads.connected(writing=False) as conn:
            self._follow(conn, cassette, {})

    def _follow(self, conn: Conn, cassette: str | None, known: dict[bytes, Body]) -> None:
        with self._local() as local:
            copying.bring(local, conn, cassette, known)

    @contextmanager
    def _local(self) -> Iterator[Connection]:
        """Give the copy's writing connection to one thread."""
        with self._lock:
            if self._writer is None or not self._writer.is_current():
                raise RecordingError(
                    f"The copy of {self.server.shown} at {self.path} was removed while it was in use.",
                    hint="Start again.",
                )
            try:
                yield self._writer
            except sqlite3.Error as error:
                self._bodies.forget()
                raise translate_local(error, self.path, writing=True) from error

    # --- writing ---------------------------------------------------------------------------------------------------------

    def add_all(self, many: Sequence[Addition], *, instead_of: str | None = None) -> list[int]:
        """Store several interactions in one transaction; committed on the server when this returns.

        While the server is away it is tried again for some ten seconds. Raises as `Store.add`; Lost if it stays away: then nobody
        knows whether the last attempt was committed, and the caller counts it as not stored.
        """
        self._require_writable()
        for given in many:
            place = (given.interaction.cassette, given.interaction.sample)
            if (derived := self.derived.get(place)) is not None and (derived.names or derived.before):
                raise StoreReadOnly(
                    f"Cassette {place[0]} on {self.server.shown} was recorded by an older version.",
                    hint=f"Bring its keys up to date in a file: llmproxy pull {place[0]}, verify --rekey, push --replace",
                )
        bodies: dict[bytes, Body] = {}
        sent = [self._ready(given, bodies) for given in many]
        whole = False
        """Whether each body is sent with nothing to build on, since something of that is gone from the server."""
        last: Exception = RecordingError("nothing was tried")
        for number in attempts():
            try:
                with self._writes.connected(writing=True) as conn:
                    made = _Made()
                    stored = self._send(conn, sent, bodies, instead_of, made, again=number > 0)
                    self._wrote.update(each.place for each in sent)
                    self._after(conn, sent, bodies, made)
                    return stored
            except (Lost, TransactionsMet) as error:
                last = error
            except RecordingError as error:
                if whole or getattr(error.__cause__, "sqlstate", "") != _GONE:
                    raise
                whole, last = True, error
                for each in sent:
                    one = each.given.interaction
                    contents = zip(each.bodies, (one.request.body, one.response.body), strict=True)
                    bodies |= {sha: _standing_alone(sha, content) for sha, content in contents}
        raise last

    def _ready(self, given: Addition, bodies: dict[bytes, Body]) -> _Sent:
        one = given.interaction
        group = (one.cassette, one.provider, one.operation)
        with self._local() as local:
            made = [
                self._bodies.prepare(local, one.request.body, group),
                self._bodies.prepare(local, one.response.body, None),
            ]
            for each in made:
                if each.encoded is not None:
                    bodies.setdefault(each.sha256, self._encoded(local, each))
        row = tuple(map(to_pg, rows.to_row(one)))
        return _Sent(given, uuid.uuid4(), row, (made[0].sha256, made[1].sha256))  # noqa: TID251 - a token, in no key

    @staticmethod
    def _encoded(local: sqlite3.Connection, prepared: Prepared) -> Body:
        """Return a body as a row of the server's table; the copy knows what it builds on by number, the server by digest."""
        content = prepared.content
        made = prepared.encoded or encode(content)
        base = None
        if made.base_id is not None:
            base = local.execute("SELECT sha256 FROM bodies WHERE id = ?", (made.base_id,)).fetchone()[0]
        return Body(prepared.sha256, len(content), made.encoding, base, made.prefix, made.suffix, made.depth, made.data)

    def _send(
        self,
        conn: Conn,
        sent: Sequence[_Sent],
        bodies: dict[bytes, Body],
        instead_of: str | None,
        made: _Made,
        *,
        again: bool,
    ) -> list[int]:
        """Store all in one transaction, and say in `made` what was; `again`: the attempt before may have been committed."""
        stored: list[int] = []
        with conn.transaction() as transaction:
            if instead_of is not None:  # first: who held a slot must have changed no later than who takes it
                name = in_column(instead_of)
                conn.execute("UPDATE llmproxy.cassettes SET version = version + 1 WHERE name = %s", (name,))
                conn.execute(_SUPERSEDE_ALL, (self._now(), name))
            places = Counter(each.place for each in sent)
            # In one order: two who wait for each other would be a deadlock.
            counts = {place: self._count(conn, place, places[place]) for place in sorted(places, key=str)}
            found: dict[uuid.UUID, int] = {}
            if again:
                # Under the locks of the cassettes nothing of the attempt before can still be on its way.
                found = dict(conn.execute(_STORED, ([each.token for each in sent],)).fetchall())
                if found:
                    stored = [found[each.token] for each in sent]
                    raise self._writes.rollback(transaction)
            if bodies:
                with conn.cursor() as cursor:
                    cursor.executemany(_BODY, list(bodies.values()))
            for each in sent:
                recorded, version, _ = counts[each.place]
                places[each.place] -= 1
                before = stored[0] if stored else None
                made.rows.append(self._insert_there(conn, each, recorded - places[each.place], version, before))
                stored.append(made.rows[-1].row[0])
            if instead_of is None:
                made.counts = counts
        return stored

    def _count(self, conn: Conn, place: tuple[str, int], number: int) -> tuple[int, int, int]:
        """Count interactions of a cassette, whose row is locked from here on; returns the last position, the version and the epoch."""
        if not (found := conn.execute(_COUNT, (number, *place)).fetchall()):
            leases.ensure(conn, place, self._now())
            found = conn.execute(_COUNT, (number, *place)).fetchall()
        recorded, version, epoch, holder = found[0]
        if holder is not None and (ours := self._held.get(place)) is not None and holder != ours:
            raise CassetteBusy(
                f"Cassette {place[0]} is being recorded by {holder} by now: our lease ran out while the server was away."
            )
        return int(recorded), int(version), int(epoch)

    def _insert_there(self, conn: Conn, each: _Sent, position: int, version: int, before: int | None) -> copying.Stored:
        one, now = each.given.interaction, self._now()
        slot = (*each.place, in_column(one.party), one.key)
        live = [
            RecordingSlot(id_, nth, status, Ending(how))
            for id_, nth, status, how in conn.execute(_SLOTS, slot).fetchall()
        ]
        gone, nth = choose_slot(each.given, live, before)
        if gone:
            conn.execute(_SUPERSEDE, (now, version, list(gone)))
        said = json.dumps(one.made_ids), in_column(one.circumstances)
        values = (each.token, version, position, nth, *each.bodies, *said, *each.row)
        new = int(conn.execute(_INSERT, values).fetchall()[0][0])
        if gone:
            conn.execute(_NAME_SUCCESSOR, (new, list(gone)))
        row = (new, position, nth, None, None, *said, *each.bodies, version, *each.row)
        return copying.Stored(each.place, row, gone, now)

    def _after(self, conn: Conn, sent: Sequence[_Sent], bodies: dict[bytes, Body], made: _Made) -> None:
        """Bring the copy up to date with what was committed; where that fails the next refresh does it."""
        try:
            with self._local() as local:
                noted = bool(made.counts) and copying.note(local, conn, made.counts, made.rows, bodies)
            if not noted:
                for name in {each.given.interaction.cassette for each in sent}:
                    self._follow(conn, name, bodies)
            with self._local() as local:
                for each in sent:
                    one = each.given.interaction
                    row = local.execute("SELECT id, depth FROM bodies WHERE sha256 = ?", (each.bodies[0],)).fetchone()
                    if row is not None:
                        group = (one.cassette, one.provider, one.operation)
                        self._bodies.remember(group, (row[0], row[1]), one.request.body)
        except Exception:
            log.warning("the copy of %s is behind", self.server.shown, exc_info=log.isEnabledFor(logging.DEBUG))

    def begin(self, cassette: str, sample: int, *, exclusive: bool, holder: str, anew: bool = True) -> None:
        """Open a writing session, as `Store.begin`; a lease is counted by the server's clock."""
        self._require_writable()
        place = (in_column(cassette), sample)
        if not exclusive:
            self._shared.add((cassette, sample))
            return
        with self._writes.connected(writing=True) as conn:
            leases.take(conn, place, holder, self._now(), anew=anew)
        self._held[place] = holder

    def heartbeat(self, cassette: str, sample: int, holder: str) -> bool:
        """Keep the lease; False if it is gone."""
        with self._writes.connected(writing=True) as conn:
            return leases.renew(conn, (in_column(cassette), sample), holder)

    def end(self, cassette: str, sample: int, holder: str, *, clean: bool | None) -> None:
        """Close a writing session, as `Store.end`."""
        self._require_writable()
        self._shared.discard((cassette, sample))
        place = (in_column(cassette), sample)
        if place not in self._held and place not in self._wrote:
            return  # nothing was written, so there is nothing to say
        last: Exception = RecordingError("nothing was tried")
        for _ in (0,) if self._away else attempts():
            try:
                with self._writes.connected(writing=True) as conn, conn.transaction():
                    if clean is None:
                        clean = not conn.execute(_UNFINISHED.encode(), place).fetchall()
                    leases.give_up(conn, place, holder, clean=clean)
                break
            except (Lost, TransactionsMet) as error:
                last = error
        else:
            self._away = True
            raise last
        self._held.pop(place, None)
        self._away = False

    def put_slots(self, cassette: str, texts: Sequence[str]) -> None:
        """Write the slots of a cassette, in place of those that it had."""
        name = in_column(cassette)
        with self._writes.connected(writing=True) as conn:
            with conn.transaction():
                leases.ensure(conn, (name, 1), self._now())
                conn.execute("UPDATE llmproxy.cassettes SET version = version + 1 WHERE name = %s", (name,))
                conn.execute("DELETE FROM llmproxy.slots WHERE cassette = %s", (name,))
                for at, text in enumerate(texts):
                    conn.execute("INSERT INTO llmproxy.slots VALUES (%s, %s, %s)", (name, at, to_pg(text)))
            self._follow(conn, cassette, {})

    def _refuse(self) -> NoReturn:
        raise StoreReadOnly(
            f"The store {self.server.shown} is a server's: this changes stores in a file only.",
            hint="llmproxy pull NAME brings a cassette into a file, llmproxy push NAME --replace brings it back.",
        )

    def remember_file(self, cassette: str, seen: FileSeen) -> None:  # noqa: ARG002 - as the store of a file takes them
        """Raise StoreReadOnly: files of cassettes are kept in step with a store in a file."""
        self._refuse()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Raise StoreReadOnly: upkeep is for files."""
        yield self._refuse()

    def vacuum(self) -> None:
        """Leave that to the server."""


_UNFINISHED = UNFINISHED.replace("FROM interactions", "FROM llmproxy.interactions").replace("?", "%s")


def _check_role(conn: Conn, server: Server, *, writable: bool) -> None:
    """Raise StoreReadOnly if we are to record, and may only read."""
    if writable and not conn.execute(_MAY_RECORD).fetchall()[0][0]:
        raise StoreReadOnly(
            f"The store {server.shown} cannot be written to: this role may only read it.",
            hint="Replay works (--mode replay). To record, use a role that may: docs/store.md has the grants.",
        )


def _standing_alone(sha: bytes, content: bytes) -> Body:
    """Return a body that builds on no other."""
    made = encode(content)
    return Body(sha, len(content), made.encoding, None, 0, 0, 0, made.data)
