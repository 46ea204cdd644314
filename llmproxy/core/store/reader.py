"""Reading of a store: prepared SQL on indexed columns, one connection, one thread at a time.

Values read by id may be cached: a row's content never changes once it exists (only its superseded mark does), and ids
are never reused. Errors of SQLite are translated to llmproxy's.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from llmproxy.advice import format_llmproxy_command
from llmproxy.core.store import row_conversion
from llmproxy.core.store.bodies import ByteLimitedCache, LazyStoredBodyData, decode_body_stored_whole, load_stored_body
from llmproxy.core.store.file import connect
from llmproxy.core.store.file.connect import Signature, StoreReadConnection, is_stat_signature_reliable
from llmproxy.core.store.file.leases_and_deletes import is_lease_live
from llmproxy.core.store.row_conversion import Row, StoredCallSummary, decode_sql_text, to_sql
from llmproxy.core.traffic.interaction import Ending, Interaction, Key, Request, Response
from llmproxy.errors import CassetteBusy, CassetteCorrupt, CassetteNotFound, LLMProxyError
from llmproxy.postgres_store_paths import format_store_location
from llmproxy.protocol import AUTHENTICATION, TRANSIENT, Channel

if TYPE_CHECKING:
    from llmproxy.core.keys.normalize import IdOrigin

log = logging.getLogger(__name__)

REMEMBERED_SLOTS = 20_000  # maximum keys whose recordings are cached, about 400 bytes each
REMEMBERED_BYTES = 8 << 20  # maximum bytes of the cache of answers
REMEMBERED_CONTENT = 4 << 20  # maximum bytes of the cache of contents, for the turns of one conversation

_KEYED_COLUMNS = "id, occurrence, status, ending, (SELECT sha256 FROM bodies WHERE bodies.id = request_body)"
SLOTS = f"""
SELECT {_KEYED_COLUMNS} FROM interactions
WHERE cassette = ? AND sample = ? AND party = ? AND key = ? AND superseded_at IS NULL ORDER BY occurrence
"""
_MADE_BY = """
SELECT i.key, i.occurrence, m.ordinal, i.id FROM made_ids AS m JOIN interactions AS i ON i.id = m.interaction_id
WHERE m.cassette = ? AND m.sample = ? AND m.made_id = ? AND i.superseded_at IS NULL
ORDER BY m.interaction_id, m.ordinal LIMIT 1
"""
SAME = """
SELECT rules, operation, key, model, stream, provider, method, target, replace(request_headers, ?, '""')
FROM interactions WHERE request_body = (SELECT id FROM bodies WHERE sha256 = ?)
    AND +cassette = ? AND +sample = ? AND +party = ? AND superseded_at IS NULL LIMIT 1
"""
"""Uses the index of bodies: SQLite would prefer that of slots, which matches a whole cassette."""
_FIRST = """
SELECT party, key, id FROM interactions WHERE cassette = ? AND sample = ? AND superseded_at IS NULL AND id >= ?
ORDER BY started_at, id LIMIT 1
"""
_PRICE = f"SELECT {', '.join(row_conversion.PRICED)} FROM interactions WHERE id = ?"
_SLOT = f"SELECT {_KEYED_COLUMNS} FROM interactions WHERE id = ? AND superseded_at IS NULL"
_OTHER_RULES = """
SELECT 1 FROM interactions WHERE cassette = ? AND sample = ? AND rules NOT IN (?, '') AND superseded_at IS NULL LIMIT 1
"""
_KEYED = """
SELECT id, party, key, occurrence, rules FROM interactions
WHERE cassette = ? AND sample = ? AND superseded_at IS NULL ORDER BY started_at, id
"""
_REQUEST = """
SELECT cassette, sample, provider, upstream, method, target, request_headers, request_body
FROM interactions WHERE id = ?
"""
_HAS = "SELECT 1 FROM interactions WHERE cassette = ? AND sample = ? AND superseded_at IS NULL LIMIT 1"
_CASSETTES = """
SELECT cassette, interactions.sample, count(*), sum(superseded_at IS NULL), max(started_at),
    sum(input_tokens) FILTER (WHERE superseded_at IS NULL), sum(output_tokens) FILTER (WHERE superseded_at IS NULL),
    c.closed_cleanly, c.holder, c.pid, c.host, ? - c.heartbeat
FROM interactions LEFT JOIN cassettes AS c ON c.name = cassette AND c.sample = interactions.sample
{where} GROUP BY cassette, interactions.sample ORDER BY cassette, interactions.sample
"""
_LATEST = """
SELECT name, sample FROM cassettes AS c ORDER BY (
    SELECT max(started_at) FROM interactions AS i WHERE i.cassette = c.name AND i.sample = c.sample
        AND i.superseded_at IS NULL
) DESC, (
    SELECT id FROM interactions AS i WHERE i.cassette = c.name AND i.sample = c.sample AND i.superseded_at IS NULL
    ORDER BY started_at DESC, id DESC LIMIT 1
) DESC LIMIT ?
"""
"""Reads the last row of each cassette by index: 10,000 of a million rows for 10,000 cassettes."""
_NAMES = """
SELECT DISTINCT name FROM cassettes AS c WHERE EXISTS (
    SELECT 1 FROM interactions AS i WHERE i.cassette = c.name AND i.sample = c.sample AND i.superseded_at IS NULL
) ORDER BY name LIMIT ?
"""
_OF_PLACE = """
SELECT id FROM interactions WHERE cassette = ? AND sample = ? AND superseded_at IS NULL
    ORDER BY started_at DESC, id DESC LIMIT ?
"""
_LAST_ROW = "SELECT id, started_at, response_body FROM interactions ORDER BY id DESC LIMIT 1"
_ILLEGIBLE = (TypeError, ValueError, AttributeError, OverflowError, RecursionError)
"""Exceptions raised by a value that is invalid for its column."""


def is_replayable_status(status: int) -> bool:
    """Return whether an answer of this status may be replayed in `auto`, or be repeated as the last."""
    return status < 500 and status not in TRANSIENT and status not in AUTHENTICATION


@dataclass(frozen=True, slots=True)
class RecordingHead:
    id: int
    occurrence: int
    """Number among recordings of its key, from 1, at its recording; above its turn if an earlier one is replaced."""
    status: int
    ending: Ending
    asked: bytes = b""
    """SHA-256 of its request's body; empty if not needed."""

    @property
    def is_good_answer(self) -> bool:
        return is_complete_replayable_response(self)

    @property
    def was_left(self) -> bool:
        """Whether its client left an answer that would otherwise be good."""
        return self.ending is Ending.LEFT and is_replayable_status(self.status)


def was_abandoned_twice(recording: RecordingHead, turn: int) -> bool:
    """Return whether a client left this answer, the `turn`-th live one of its key, after one in its place before.

    Leaving once may be an interrupt or a timeout; twice is the agent's behaviour, and the part that it reads counts.
    """
    return recording.was_left and recording.occurrence > turn


def list_first_time_abandoned_answers(slots: Sequence[RecordingHead]) -> Sequence[RecordingHead]:
    """Return the answers of a key, after its last good one, that their clients left for the first time."""
    good = len(slots) - len(list_failed_recordings_after_good(slots))
    behind = ((turn, each) for turn, each in enumerate(slots, 1) if turn > good and each.was_left)
    return [each for turn, each in behind if not was_abandoned_twice(each, turn)]


def is_complete_replayable_response(made: Response | RecordingHead) -> bool:
    """Return whether an answer is complete, may be replayed in `auto` and `once`, and may be repeated as the last."""
    return made.ending is Ending.COMPLETE and is_replayable_status(made.status)


def list_failed_recordings_after_good(slots: Sequence[RecordingHead]) -> Sequence[RecordingHead]:
    """Return failures after a key's last good answer: a retry overcame those before it."""
    return slots[max((at for at, each in enumerate(slots) if each.is_good_answer), default=-1) + 1 :]


Place = tuple[str, int]  # cassette and sample


class StoredRequestWithUpstream(NamedTuple):
    cassette: str
    sample: int
    provider: str
    upstream: str
    request: Request


class StoredRequestKey(NamedTuple):
    id: int
    party: str
    key: Key
    occurrence: int
    rules: str  # digest of the rules under which the key was derived; empty if unknown


class RecordingKeyUpdate(NamedTuple):
    id: int
    old: Key  # expected key; a recording with another one is not changed
    key: Key
    occurrence: int
    rules: str


class RecomputedRequestKeys:
    """Keys under today's rules for a cassette recorded under others, in memory, as a replayed store never changes.

    `queries.derive_keys_under_current_rules` fills it when a session opens the cassette; the first write persists it
    (`Store.write_current_keys`).
    """

    def __init__(self) -> None:
        self.changes: list[RecordingKeyUpdate] = []  # changes in the order of the requests
        self.names: dict[int, tuple[Key, int]] = {}  # key and occurrence of every live recording by id
        self.keyed: dict[tuple[str, Key], dict[int, int]] = {}  # ids by party and key, then by occurrence

    def add(self, each: StoredRequestKey, key: Key, rules: str) -> None:
        """Add a recording with `key`; it keeps its occurrence unless an earlier one has that. `rules`: digest."""
        ids = self.keyed.setdefault((each.party, key), {})
        nth = each.occurrence if each.occurrence not in ids else max(ids) + 1
        ids[nth] = each.id
        self.names[each.id] = key, nth
        if (key, nth, rules) != (each.key, each.occurrence, each.rules):
            self.changes.append(RecordingKeyUpdate(each.id, each.key, key, nth, rules))


@dataclass(frozen=True, slots=True)
class CassetteInfo:
    name: str
    sample: int
    stored: int  # number of rows, superseded ones included
    live: int
    last_at: float
    tokens_in: int | None
    tokens_out: int | None
    closed_cleanly: bool
    holder: str | None  # who records it now


class CassetteFileSyncState(NamedTuple):
    sha256: bytes
    last_id: int  # interactions of the cassette with larger ids are in no file yet


class StoreReader:
    def __init__(
        self, path: Path, reader: StoreReadConnection, *, now: Callable[[], float], watch: bool = False
    ) -> None:
        """Read from `reader`, which is closed with this object; `now` returns Unix time.

        With `watch` (not next to a writer of our own), the file is reopened if other processes write or replace it.
        """
        self.path, self._file = path, os.fspath(path)
        self.conn: sqlite3.Connection = reader.conn  # the reading connection, for queries in other modules
        self.reopened: Callable[[], None] = lambda: None
        """Called when the file was reopened: values cached by id may belong to other rows now."""
        self.on_replaced: Callable[[Sequence[Place]], None] = lambda _places: None
        """Called with the cassettes that were opened, when another store replaced the file."""
        self._reader = reader
        self._now = now
        self._watch = watch
        self._answers = ByteLimitedCache[Response](REMEMBERED_BYTES)
        self._contents = ByteLimitedCache[bytes](REMEMBERED_CONTENT)
        self._price: tuple[int, Row] = (0, ())
        """Id and price (see `read_recording_price`) of the last answer read: it is needed next."""
        self._keyed: dict[tuple[str, int, str, Key], tuple[RecordingHead, ...]] = {}
        self._keyed_generation: tuple[int, int] = (-1, -1)
        self._opened = 0  # number of times that the file was reopened
        self._seen: Signature | None = connect.read_stat_signature(self._file) if watch else None
        self._settled = False  # whether every later write must change the file's signature
        self._refused: Signature | None = None  # signature of an unreadable file that replaced ours, to warn once
        self._last_row = self._read_last_interaction() if watch else ()
        self.derived: dict[Place, RecomputedRequestKeys | None] = {}
        """Current keys of recordings of other rules, by opened cassette and sample."""

    @property
    def generation(self) -> tuple[int, int]:
        """Value that changes whenever another connection has committed. Raises CassetteCorrupt.

        A file at rest needs one `stat`, a quarter of the time of `PRAGMA data_version`. That is used in addition while
        the file is so young that another write may leave its times unchanged, and in write-ahead mode.
        """
        if self._watch:
            seen = connect.read_stat_signature(self._file)
            if seen != self._seen and seen is not None:  # if removed, the open file stays readable
                self._reopen(seen)
            if self._settled:
                return self._opened, -1
            if self._reader.in_place and self._seen is not None and is_stat_signature_reliable(self._seen, self._now()):
                self._settled = True
        else:
            self._follow_own_writer()
        found: int = self.query("PRAGMA data_version")[0][0]
        return self._opened, found

    def _follow_own_writer(self) -> None:
        """Reopen the connection if our own writer moved to another file. Raises CassetteError."""

    def _reopen(self, seen: Signature) -> None:
        """Reopen the file as it is now. An overwritten database leaves SQLite with pages of both."""
        try:
            reader = connect.open_sqlite_store_reader(self.path)
        except LLMProxyError as error:
            if seen != self._refused:
                log.warning("the store %s was changed by another program and cannot be read now: %s", self.path, error)
            self._refused = seen
            raise
        self._seen, self._refused, self._settled = seen, None, False
        before = self._last_row
        self._switch_reader(reader)
        self._last_row = self._read_last_interaction()
        if not self._still_has_row(before):
            log.warning("the store %s was replaced by another one; from now on that one is replayed", self.path)
            self._rederive_all_keys()

    def _rederive_all_keys(self) -> None:
        places = list(self.derived)
        self.derived.clear()
        self.on_replaced(places)

    def _switch_reader(self, reader: StoreReadConnection) -> None:
        self._reader.close()
        self._reader, self.conn = reader, reader.conn
        self._opened += 1
        self._keyed.clear()
        self._answers.clear()
        self._price = (0, ())
        self._contents.clear()
        self.reopened()

    def _read_last_interaction(self) -> Row:
        """Return the newest row, which identifies the store; empty for a damaged one, which reading reports."""
        try:
            return self._first(_LAST_ROW) or ()
        except LLMProxyError:
            return ()

    def _still_has_row(self, row: Row) -> bool:
        sql = "SELECT id, started_at, response_body FROM interactions WHERE id = ?"  # the key may be derived anew
        return not row or self.query(sql, row[:1]) == [row]

    def find_keyed(self, cassette: str, sample: int, party: str, key: Key) -> tuple[RecordingHead, ...]:
        """Return the live recordings of `key` in order of occurrence; cached until the next commit."""
        generation = self.generation
        if generation != self._keyed_generation:
            self._keyed.clear()
            self._keyed_generation = generation
        place = (cassette, sample, party, key)
        if (known := self._keyed.get(place)) is not None:
            return known
        found = self.query(SLOTS, (to_sql(cassette), sample, to_sql(party), key))
        if (derived := self.derived.get((cassette, sample))) is not None:
            found = self._find_rows_by_recomputed_key(derived, found, party, key)
        with self._report_bad_value("A recording"):
            slots = tuple(
                RecordingHead(id_, index(nth), index(status), Ending(ending), asked)
                for id_, nth, status, ending, asked in found
            )
        if len(self._keyed) >= REMEMBERED_SLOTS:
            self._keyed.clear()
        self._keyed[place] = slots
        return slots

    def find_same_request_bytes(self, cassette: str, sample: int, party: str, asked: bytes, length: str) -> Row | None:
        """Return rules, operation, key, model, stream and head (without `length`) of a live recording of a request body
        with the SHA-256 `asked`.
        """
        return self._first(SAME, (length, asked, to_sql(cassette), sample, to_sql(party)))

    def _find_rows_by_recomputed_key(
        self, derived: RecomputedRequestKeys, found: Sequence[Row], party: str, key: Key
    ) -> list[Row]:
        names = derived.names
        kept = {row[0]: row for row in found if names.get(row[0], (key, 0))[0] == key}
        for id_ in derived.keyed.get((party, key), {}).values():
            kept |= {} if id_ in kept else {row[0]: row for row in self.query(_SLOT, (id_,))}
        named = [(id_, names[id_][1] if id_ in names else nth, *rest) for id_, nth, *rest in kept.values()]
        return sorted(named, key=lambda row: row[1])

    def find_current_key(self, cassette: str, sample: int, id_: int, key: str, occurrence: int) -> tuple[Key, int]:
        """Return key and occurrence of a recording under today's rules; `key` and `occurrence` are the stored ones."""
        derived = self.derived.get((cassette, sample))
        return (derived.names.get(id_) if derived else None) or (Key(key), occurrence)

    def response(self, interaction_id: int) -> Response:
        """Return the recorded answer. Raises CassetteNotFound: no such row; CassetteCorrupt: damaged; CassetteBusy."""
        if (remembered := self._answers.get(interaction_id)) is not None:
            return remembered
        if (row := self._first(row_conversion.SELECT_RESPONSE, (interaction_id,))) is None:
            raise self._build_missing_error(interaction_id)
        if self._watch:
            before, opened = self._last_row, self._opened
            if self.generation[0] != opened and not self._still_has_row(before):  # ids have other meanings now
                raise CassetteBusy(f"The store {self.path} was replaced while it was read.", hint="Ask again.")
        self._price = interaction_id, row[8:14]
        base_id, sha256, *stored = row[14:]
        with self._name_store_in_errors():
            if base_id is None:
                body = decode_body_stored_whole(self.conn, sha256, LazyStoredBodyData(*stored))
            else:
                body = self.read_body(stored[0])
        with self._report_bad_value(f"Interaction {interaction_id}"):
            response = row_conversion.build_response_from_row(row, body)
        self._answers.put(interaction_id, response, len(body) + 1000)
        return response

    def read_recording_price(self, interaction_id: int) -> Row | None:
        """Return tokens, cost, model and texts (`row_conversion.PRICED`) of a recording; None if it is gone."""
        last = self._price
        return last[1] if last[0] == interaction_id else self._first(_PRICE, (interaction_id,))

    def load(self, interaction_id: int) -> Interaction:
        """Return the whole interaction as it was added. Raises CassetteNotFound, CassetteCorrupt."""
        row = self._first(row_conversion.SELECT_INTERACTION, (interaction_id,)) if interaction_id < 1 << 63 else None
        if row is None:
            raise self._build_missing_error(interaction_id)
        made = self.query("SELECT made_id FROM made_ids WHERE interaction_id = ? ORDER BY ordinal", (interaction_id,))
        named = dict(zip(row_conversion.LOADED, row, strict=True))
        response = self.response(interaction_id)
        with self._report_bad_value(f"Interaction {interaction_id}"):
            loaded = row_conversion.build_interaction_from_row(
                named, self.read_body(named["request_body"]), response, tuple(decode_sql_text(each) for (each,) in made)
            )
        said = self.read_run_variables(interaction_id)
        return replace(loaded, run_variables=said) if said else loaded

    @contextmanager
    def _report_bad_value(self, what: str) -> Iterator[None]:
        """Raise CassetteCorrupt with the name `what` for a value that is invalid for its column."""
        try:
            yield
        except CassetteCorrupt:
            raise
        except _ILLEGIBLE as error:
            raise CassetteCorrupt(
                f"{what} of {self.path} is damaged: {error!r:.200}.", hint=format_llmproxy_command("verify", self.path)
            ) from error

    def read_run_variables(self, interaction_id: int) -> str:
        """Return the run variables of the run that made a recording, as JSON; or ""."""
        sql = "SELECT said FROM declared JOIN run_variables ON id = run_variables WHERE interaction_id = ?"
        row = self._first(sql, (interaction_id,))
        return "" if row is None else decode_sql_text(row[0])

    def find_id_origin(self, cassette: str, sample: int, made_id: str) -> IdOrigin | None:
        from llmproxy.core.keys.normalize import IdOrigin

        if (row := self._first(_MADE_BY, (to_sql(cassette), sample, to_sql(made_id)))) is None:
            return None
        with self._report_bad_value(f"What made the id {made_id!r:.60}"):
            return IdOrigin(*self.find_current_key(cassette, sample, row[3], row[0], int(row[1])), int(row[2]))

    def has_other_rules(self, cassette: str, sample: int, rules: str) -> bool:
        return self._first(_OTHER_RULES, (to_sql(cassette), sample, rules)) is not None

    def list_keys(self, cassette: str, sample: int) -> list[StoredRequestKey]:
        found = []
        for id_, party, key, nth, digest in self.query(_KEYED, (to_sql(cassette), sample)):
            with self._report_bad_value(f"Interaction {id_}"):
                found.append(
                    StoredRequestKey(id_, decode_sql_text(party), Key(key), index(nth), decode_sql_text(digest))
                )
        return found

    def read_request(self, interaction_id: int) -> StoredRequestWithUpstream:
        """Return the recorded request. Raises CassetteNotFound, CassetteCorrupt."""
        if (row := self._first(_REQUEST, (interaction_id,))) is None:
            raise self._build_missing_error(interaction_id)
        with self._report_bad_value(f"Interaction {interaction_id}"):
            cassette, sample, provider, upstream, method, target, headers, body = row
            fields = row_conversion.decode_stored_headers_json(headers)
            cassette, provider, upstream, method, target = map(
                decode_sql_text, (cassette, provider, upstream, method, target)
            )
            request = Request(method, target, fields, self.read_body(body))
            return StoredRequestWithUpstream(cassette, sample, provider, upstream, request)

    def has_recordings(self, cassette: str, sample: int) -> bool:
        return self._first(_HAS, (to_sql(cassette), sample)) is not None

    def last_session_ended_cleanly(self, cassette: str, sample: int) -> bool:
        sql = "SELECT closed_cleanly FROM cassettes WHERE name = ? AND sample = ?"
        row = self._first(sql, (to_sql(cassette), sample))
        return row is not None and bool(row[0])

    def find_first_key(self, cassette: str, sample: int) -> tuple[str, Key] | None:
        """Return (party, key) of the first request in the latest recording."""
        name = to_sql(cassette)
        since = self._first("SELECT latest_from FROM cassettes WHERE name = ? AND sample = ?", (name, sample))
        row = self._first(_FIRST, (name, sample, since[0])) if since is not None else None
        row = row or self._first(_FIRST, (name, sample, 0))
        if row is None:
            return None
        return decode_sql_text(row[0]), self.find_current_key(cassette, sample, row[2], row[1], 0)[0]

    def list_candidate_ids(self, cassette: str, party: str, provider: str, operation: str, limit: int) -> list[int]:
        """Return ids of the last `limit` live interactions of a party and operation, oldest first; for a miss."""
        found = self.query(
            "SELECT id FROM interactions WHERE cassette = ? AND party = ? AND provider = ? AND operation = ? AND "
            "superseded_at IS NULL ORDER BY id DESC LIMIT ?",
            (to_sql(cassette), to_sql(party), to_sql(provider), to_sql(operation), limit),
        )
        return [id_ for (id_,) in reversed(found)]

    def list_summaries(
        self, cassette: str | None = None, sample: int | None = None, *, superseded: bool = False,
        limit: int | None = None, channel: Channel | None = None,
    ) -> list[StoredCallSummary]:  # fmt: skip
        """Return rows in the order of the requests; the last `limit` of them."""
        if limit is not None and cassette is None and sample is None and not superseded and channel is None:
            ids = [row[0] for place in self.query(_LATEST, (limit,)) for row in self.query(_OF_PLACE, (*place, limit))]
            where, values = f"id IN ({', '.join(map(str, ids))})", tuple[object, ...]()
        else:
            where, values = self._build_where(cassette, sample, superseded=superseded, channel=channel)
        found = self.query(
            f"{row_conversion.SELECT_SUMMARY} WHERE {where} ORDER BY started_at DESC, id DESC LIMIT ?",
            (*values, -1 if limit is None else limit),
        )
        return [row_conversion.build_call_summary_from_row(row) for row in reversed(found)]

    def iter_interactions(self, cassette: str, sample: int | None = None) -> Iterator[Interaction]:
        where, values = self._build_where(cassette, sample, superseded=False)
        for (id_,) in self.query(f"SELECT id FROM interactions WHERE {where} ORDER BY sample, started_at, id", values):
            yield self.load(id_)

    def find_last_id(self, cassette: str) -> int:
        sql = "SELECT coalesce(max(id), 0) FROM interactions WHERE cassette = ?"
        return int(self.query(sql, (to_sql(cassette),))[0][0])

    def read_synced_file(self, cassette: str) -> CassetteFileSyncState | None:
        row = self._first("SELECT sha256, last_id FROM files WHERE cassette = ?", (to_sql(cassette),))
        return None if row is None else CassetteFileSyncState(*row)

    def cassettes(self, name: str | None = None, *, latest: int | None = None) -> list[CassetteInfo]:
        """Return every cassette and sample with recordings; those of one name, or the `latest` recorded."""
        asked: list[tuple[str, Sequence[object]]] = (
            [("", ())] if name is None else [("WHERE cassette = ?", (to_sql(name),))]
        )
        if latest is not None:  # one by one: SQLite would search a list for every row
            places = sorted(self.query(_LATEST, (latest,)), key=lambda place: (decode_sql_text(place[0]), place[1]))
            asked = [("WHERE cassette = ? AND interactions.sample = ?", place) for place in places]
        found = [
            row for where, values in asked for row in self.query(_CASSETTES.format(where=where), (self._now(), *values))
        ]
        return [
            CassetteInfo(
                decode_sql_text(name), sample, stored, live, last, tokens_in, tokens_out, bool(clean),
                holder if is_lease_live(*lease) else None,
            )
            for name, sample, stored, live, last, tokens_in, tokens_out, clean, holder, *lease in found
        ]  # fmt: skip

    def count_interactions(
        self, cassette: str | None, sample: int | None = None, *, superseded: bool = False,
        channel: Channel | None = None, kind: tuple[str, str] | None = None,
    ) -> int:  # fmt: skip
        """Count live interactions, with `superseded` also replaced ones; `kind`: provider and operation."""
        where, values = self._build_where(cassette, sample, superseded=superseded, channel=channel, kind=kind)
        return int(self.query(f"SELECT count(*) FROM interactions WHERE {where}", values)[0][0])

    def list_cassette_names(self, limit: int = -1) -> list[str]:
        return [decode_sql_text(name) for (name,) in self.query(_NAMES, (limit,))]

    def query(self, sql: str, values: Sequence[object] = ()) -> list[Row]:
        """Return the rows of a query. Translates SQLite's errors (CassetteCorrupt and others)."""
        try:
            return self.conn.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise connect.translate_sqlite_store_error(error, self.path, writing=False) from error

    def _first(self, sql: str, values: Sequence[object] = ()) -> Row | None:
        found = self.query(sql, values)
        return found[0] if found else None

    def read_body(self, body_id: int) -> bytes:
        """Return the content of a row of `bodies`. Raises CassetteCorrupt."""
        with self._name_store_in_errors():
            return load_stored_body(self.conn, body_id, self._contents)

    @contextmanager
    def _name_store_in_errors(self) -> Iterator[None]:
        """Add the store's name to errors of damaged bodies, whose reader does not know the file."""
        try:
            yield
        except sqlite3.Error as error:
            raise connect.translate_sqlite_store_error(error, self.path, writing=False) from error
        except CassetteCorrupt as error:
            raise CassetteCorrupt(error.message, hint=format_llmproxy_command("verify", self.path)) from error

    def _build_missing_error(self, interaction_id: int) -> CassetteNotFound:
        where, hint = format_store_location(self.path), format_llmproxy_command("ls", self.path)
        return CassetteNotFound(f"There is no interaction {interaction_id} in {where}.", hint=hint)

    @staticmethod
    def _build_where(
        cassette: str | None, sample: int | None, *, superseded: bool, channel: Channel | None = None,
        kind: tuple[str, str] | None = None,
    ) -> tuple[str, tuple[object, ...]]:  # fmt: skip
        parts: list[tuple[str, tuple[object, ...]]] = [("1", ())]
        if not superseded:
            parts.append(("superseded_at IS NULL", ()))
        if cassette is not None:
            parts.append(("cassette = ?", (to_sql(cassette),)))
        if sample is not None:
            parts.append(("sample = ?", (sample,)))
        if channel is not None:
            parts.append((row_conversion.OF_CHANNEL[channel], ()))
        if kind is not None:
            parts.append(("provider = ? AND operation = ?", tuple(map(to_sql, kind))))
        return " AND ".join(sql for sql, _ in parts), tuple(value for _, values in parts for value in values)
