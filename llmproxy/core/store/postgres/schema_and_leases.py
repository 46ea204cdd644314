"""SQL of a store on a server: its tables, leases of cassettes, deletion of interactions and of bodies.

The first recorder creates the tables, by steps in order, each in a transaction; the version is the number of executed
ones. A released step never changes: add a new one instead. docs/store.md lists the needed grants.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from llmproxy.advice import describe_how_to_upgrade_llmproxy as upgrade_advice
from llmproxy.core.store import row_conversion
from llmproxy.core.store.bodies import DeltaBaseBody, compress_body_for_storage
from llmproxy.core.store.file.leases_and_deletes import get_own_pid_and_machine, refuse_if_leased_by_other
from llmproxy.errors import CassetteCorrupt, CassetteNewer, CassetteNotFound, StoreReadOnly
from llmproxy.postgres_store_paths import ServerStoreAddress

if TYPE_CHECKING:
    from llmproxy.core.store.postgres.connection import Conn

_MIGRATIONS_LOCK = 0x6C6C6D70  # id of the migrations' advisory lock; ``llmp``

_REAL = frozenset({"started_at", "first_byte_ms", "duration_ms", "cost_usd"})
_WHOLE = frozenset({
    "sample", "status", "stream", "head_us", "chunked", "input_tokens", "output_tokens", "cached_tokens",
    "cache_written_tokens", "reasoning_tokens", "redacted",
})  # fmt: skip
_OPEN = frozenset({
    "model", "first_byte_ms", "duration_ms", "input_tokens", "output_tokens", "cached_tokens", "cache_written_tokens",
    "reasoning_tokens", "cost_usd", "last_user_text", "answer_text",
})  # fmt: skip
"""Columns of `row_conversion.COLUMNS` that may be NULL."""


def _define_column(name: str) -> str:
    kind = "double precision" if name in _REAL else "bigint" if name in _WHOLE else "text"
    return f'"{name}" {kind}' + ("" if name in _OPEN else " NOT NULL")


_FIRST = f"""
CREATE TABLE llmproxy.store (id text NOT NULL, made_at timestamptz NOT NULL DEFAULT now());
INSERT INTO llmproxy.store (id) VALUES (md5(random()::text || clock_timestamp()::text || pg_backend_pid()::text));
CREATE TABLE llmproxy.cassettes (
    name text NOT NULL,
    sample bigint NOT NULL,
    created_at double precision NOT NULL,
    recorded bigint NOT NULL DEFAULT 0,
    latest_from bigint NOT NULL DEFAULT 0,
    closed_cleanly bigint NOT NULL DEFAULT 0,
    holder text, pid bigint, host text, heartbeat timestamptz,
    version bigint NOT NULL DEFAULT 0,         -- counts the transactions that changed it
    epoch bigint NOT NULL DEFAULT 0,           -- counts those that took something away: it is read from the start then
    PRIMARY KEY (name, sample)
);
CREATE TABLE llmproxy.bodies (
    sha256 bytea PRIMARY KEY,
    size bigint NOT NULL,
    encoding text NOT NULL,
    base bytea REFERENCES llmproxy.bodies,
    prefix bigint NOT NULL DEFAULT 0,
    suffix bigint NOT NULL DEFAULT 0,
    depth bigint NOT NULL DEFAULT 0,
    data bytea NOT NULL
);
ALTER TABLE llmproxy.bodies ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE INDEX bodies_by_base ON llmproxy.bodies (base) WHERE base IS NOT NULL;
CREATE TABLE llmproxy.interactions (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    token uuid NOT NULL UNIQUE,                -- the writer's: what was sent twice is stored once
    changed bigint NOT NULL,                   -- the cassette's version that wrote or superseded this row
    position bigint NOT NULL,
    occurrence bigint NOT NULL,
    superseded_at double precision,
    superseded_by bigint,
    request_body bytea NOT NULL REFERENCES llmproxy.bodies,
    response_body bytea NOT NULL REFERENCES llmproxy.bodies,
    made_ids text NOT NULL,                    -- JSON
    run_variables text NOT NULL,
    {", ".join(map(_define_column, row_conversion.COLUMNS))}
);
CREATE UNIQUE INDEX live_slots ON llmproxy.interactions (cassette, sample, party, key, occurrence)
    WHERE superseded_at IS NULL;
CREATE INDEX by_change ON llmproxy.interactions (cassette, sample, changed, id);
CREATE INDEX by_request_body ON llmproxy.interactions (request_body);
CREATE INDEX by_response_body ON llmproxy.interactions (response_body);
CREATE TABLE llmproxy.volatile_fields (cassette text NOT NULL, position bigint NOT NULL, slot text NOT NULL,
    PRIMARY KEY (cassette, position));
"""

_THERE = "SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = 'llmproxy' AND tablename = 'migrations'"

_WORDS = """
DO $$ BEGIN
    IF to_regclass('llmproxy.slots') IS NOT NULL THEN  -- the first step named the tables otherwise
        ALTER TABLE llmproxy.slots RENAME TO volatile_fields;
        ALTER TABLE llmproxy.interactions RENAME circumstances TO run_variables;
    END IF;
END $$;
ALTER TABLE llmproxy.volatile_fields RENAME slot TO field;
"""
_STEPS: tuple[str, ...] = (_FIRST, _WORDS)
_VERSION = len(_STEPS)


def _read_version(conn: Conn) -> int:
    # Read from the catalogue: a name that was not found stays cached until the transaction ends.
    if not conn.execute(_THERE).fetchall():
        return 0
    return int(conn.execute("SELECT coalesce(max(version), 0) FROM llmproxy.migrations").fetchall()[0][0])


def check_server_schema_version(conn: Conn, server: ServerStoreAddress) -> None:
    """Raise CassetteNewer, CassetteNotFound or StoreReadOnly unless the server's tables have the current version."""
    found = _read_version(conn)
    if found == 0:
        raise CassetteNotFound(
            f"There is no store yet at {server.shown}: the database has no tables of llmproxy.",
            hint=f"Record first, as a role that may make them: llmproxy start --mode record --store '{server.shown}'",
        )
    if found > _VERSION:
        raise CassetteNewer(
            f"The store {server.shown} is of a newer llmproxy: its schema is {found}, this version knows {_VERSION}.",
            hint=upgrade_advice(),
        )
    if found < _VERSION:
        raise StoreReadOnly(
            f"The store {server.shown} is of an older llmproxy: its schema is {found}, this version needs {_VERSION}.",
            hint="Whoever opens it for recording, as the owner of its tables, brings it up to date.",
        )


def upgrade_schema(conn: Conn) -> None:
    while (found := _read_version(conn)) < _VERSION:
        with conn.transaction():
            conn.execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATIONS_LOCK,))
            if _read_version(conn) != found:
                continue  # another process was first
            if found == 0:
                conn.execute("CREATE SCHEMA IF NOT EXISTS llmproxy")
                conn.execute(
                    "CREATE TABLE llmproxy.migrations (version bigint PRIMARY KEY, at timestamptz NOT NULL DEFAULT "
                    "now())"
                )
            conn.execute(_STEPS[found].encode())
            conn.execute("INSERT INTO llmproxy.migrations (version) VALUES (%s)", (found + 1,))


Place = tuple[str, int]  # cassette, in the form of its column, and sample

RANDOM_EPOCH = "floor(random() * 4611686018427387904)::bigint"
"""SQL of the first `epoch` of a cassette; others may have had its name, and have copies."""
_ENSURE = f"""
INSERT INTO llmproxy.cassettes (name, sample, created_at, epoch)
VALUES (%s, %s, %s, {RANDOM_EPOCH}) ON CONFLICT DO NOTHING
"""
_LOCK = """
SELECT holder, pid, host, extract(epoch FROM clock_timestamp() - heartbeat)::float8 FROM llmproxy.cassettes
WHERE name = %s AND sample = %s FOR UPDATE
"""
_TAKE = """
UPDATE llmproxy.cassettes SET holder = %s, pid = %s, host = %s,
    heartbeat = clock_timestamp(), closed_cleanly = 0, version = version + 1
"""
_ANEW = """, latest_from = (SELECT coalesce(max(id), 0) + 1 FROM llmproxy.interactions AS i
    WHERE i.cassette = cassettes.name AND i.sample = cassettes.sample)"""
_OURS = " WHERE name = %s AND sample = %s AND holder = %s AND pid = %s AND host = %s"


def ensure_pg_cassette_row_exists(conn: Conn, place: Place, now: float) -> None:
    conn.execute(_ENSURE.encode(), (*place, now))


def take_lease(conn: Conn, place: Place, holder: str, now: float, *, anew: bool) -> None:
    """Take the lease; `anew`: the cassette is recorded anew. Raises CassetteBusy naming the holder."""
    with conn.transaction():
        ensure_pg_cassette_row_exists(conn, place, now)
        *row, age = conn.execute(_LOCK, place).fetchall()[0]
        refuse_if_leased_by_other(holder, row, age, *place)
        sql = _TAKE + (_ANEW if anew else "") + " WHERE name = %s AND sample = %s"
        conn.execute(sql.encode(), (holder, *get_own_pid_and_machine(), *place))


def renew_lease(conn: Conn, place: Place, holder: str) -> bool:
    sql = f"UPDATE llmproxy.cassettes SET heartbeat = clock_timestamp(){_OURS}"
    return conn.execute(sql.encode(), (*place, holder, *get_own_pid_and_machine())).rowcount > 0


def release_lease(conn: Conn, place: Place, holder: str, *, clean: bool) -> None:
    sql = (
        f"UPDATE llmproxy.cassettes SET holder = NULL, pid = NULL, host = NULL, heartbeat = NULL, version = version "
        f"+ 1{_OURS}"
    )
    conn.execute(sql.encode(), (*place, holder, *get_own_pid_and_machine()))
    if clean:
        conn.execute(
            "UPDATE llmproxy.cassettes SET closed_cleanly = 1, version = version + 1"
            " WHERE name = %s AND sample = %s AND holder IS NULL",
            place,
        )


_PLACES = "SELECT DISTINCT cassette, sample FROM llmproxy.interactions WHERE id = ANY(%s)"
BEGIN_ANEW = """
UPDATE llmproxy.cassettes SET version = version + 1, epoch = epoch + 1 WHERE name = %s AND sample = %s RETURNING version
"""
_EMPTY = """
DELETE FROM llmproxy.cassettes AS c WHERE name = %s AND sample = %s AND holder IS NULL AND NOT EXISTS (
    SELECT 1 FROM llmproxy.interactions AS i WHERE i.cassette = c.name AND i.sample = c.sample)
"""
_DEAD = """
SELECT sha256, base FROM llmproxy.bodies AS b WHERE NOT EXISTS (SELECT 1 FROM llmproxy.interactions
    WHERE request_body = b.sha256)
    AND NOT EXISTS (SELECT 1 FROM llmproxy.interactions WHERE response_body = b.sha256)
"""


def delete_interactions(conn: Conn, ids: Sequence[int]) -> int:
    with conn.transaction():
        places = mark_cassette_copies_outdated(conn, ids)
        conn.execute(
            "UPDATE llmproxy.interactions SET superseded_by = NULL WHERE cassette = ANY(%s) AND superseded_by = "
            "ANY(%s)",
            ([name for name, _ in places], ids),
        )
        deleted = conn.execute("DELETE FROM llmproxy.interactions WHERE id = ANY(%s)", (ids,)).rowcount
        for place in places:
            conn.execute(_EMPTY, place)
    return deleted


def delete_unused_bodies(conn: Conn) -> int:
    """Delete unused bodies, and return their number; a delta on one is encoded anew on that one's base.

    If others write meanwhile, it tries again; the next deletion finds what was left.
    """
    from psycopg.errors import DeadlockDetected, ForeignKeyViolation, SerializationFailure

    for _ in range(5):
        try:
            with conn.transaction():
                conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                dead: dict[bytes, bytes | None] = dict(conn.execute(_DEAD).fetchall())
                if dead:
                    _rebase_bodies(conn, dead)
                    conn.execute("DELETE FROM llmproxy.bodies WHERE sha256 = ANY(%s)", (list(dead),))
        except (DeadlockDetected, ForeignKeyViolation, SerializationFailure):
            continue
        return len(dead)
    return 0


def mark_cassette_copies_outdated(conn: Conn, ids: Sequence[int]) -> list[tuple[str, int]]:
    """Lock the cassettes of these interactions, in recorders' order, and make their copies restart."""
    places: list[tuple[str, int]] = []
    # Again: one may have been renamed while we waited for its lock.
    while found := sorted(set(conn.execute(_PLACES, (ids,)).fetchall()).difference(places)):
        for place in found:
            conn.execute(BEGIN_ANEW, place)
        places += found
    return places


def _rebase_bodies(conn: Conn, dead: Mapping[bytes, bytes | None]) -> None:
    children = conn.execute(
        "SELECT sha256, base FROM llmproxy.bodies WHERE base = ANY(%s) AND NOT sha256 = ANY(%s)",
        (list(dead), list(dead)),
    ).fetchall()
    for sha, base in children:
        while base is not None and base in dead:
            base = dead[base]  # noqa: PLW2901 - down the chain
        below: tuple[DeltaBaseBody, ...] = ()
        if base is not None:
            depth = conn.execute("SELECT depth FROM llmproxy.bodies WHERE sha256 = %s", (base,)).fetchall()[0][0]
            below = (DeltaBaseBody(0, int(depth), load_stored_body(conn, base)),)
        new = compress_body_for_storage(load_stored_body(conn, sha), below)
        values = (new.encoding, None if new.base_id is None else base, new.prefix, new.suffix, new.depth, new.data, sha)
        conn.execute(
            "UPDATE llmproxy.bodies SET encoding = %s, base = %s, prefix = %s, suffix = %s, depth = %s, data = %s "
            "WHERE sha256 = %s",
            values,
        )


def load_stored_body(conn: Conn, sha: bytes) -> bytes:
    """Return the content of a body with bases. Raises CassetteCorrupt if its sha256 differs."""
    chain: list[tuple[str, int, int, bytes]] = []
    at: bytes | None = sha
    while at is not None:
        sql = "SELECT encoding, base, prefix, suffix, data FROM llmproxy.bodies WHERE sha256 = %s"
        encoding, at, prefix, suffix, data = conn.execute(sql, (at,)).fetchall()[0]
        chain.append((encoding, prefix, suffix, data))
    found = b""
    for encoding, prefix, suffix, data in reversed(chain):
        said = zlib.decompress(data) if encoding.endswith("zlib") else data
        found = found[:prefix] + said + found[len(found) - suffix :]
    if hashlib.sha256(found).digest() != sha:
        raise CassetteCorrupt(
            f"The server's body {sha.hex()} is damaged: its content does not have the sha256 it was stored with."
        )
    return found
