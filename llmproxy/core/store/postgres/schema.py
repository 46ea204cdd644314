"""Tables on the server, in a schema of their own, as statements in order: the version is the number of executed ones.

The first recorder creates them, under an advisory lock, each in a transaction of its own; nothing else changes them. A
released step never changes: add a new one instead. docs/store.md lists the needed grants.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmproxy.advice import describe_upgrade as upgrade_advice
from llmproxy.core.store import rows
from llmproxy.errors import CassetteNewer, CassetteNotFound, StoreReadOnly
from llmproxy.server_store_path import RemoteStore

if TYPE_CHECKING:
    from llmproxy.core.store.postgres.connection import Conn

LOCK = 0x6C6C6D70
"""Id of the migrations' advisory lock; ``llmp``."""

_REAL = frozenset({"started_at", "first_byte_ms", "duration_ms", "cost_usd"})
_WHOLE = frozenset({
    "sample", "status", "stream", "head_us", "chunked", "input_tokens", "output_tokens", "cached_tokens",
    "cache_written_tokens", "reasoning_tokens", "redacted",
})  # fmt: skip
_OPEN = frozenset({
    "model", "first_byte_ms", "duration_ms", "input_tokens", "output_tokens", "cached_tokens", "cache_written_tokens",
    "reasoning_tokens", "cost_usd", "last_user_text", "answer_text",
})  # fmt: skip
"""Columns of `rows.COLUMNS` that may be NULL."""


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
    {", ".join(map(_define_column, rows.COLUMNS))}
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
STEPS: tuple[str, ...] = (_FIRST, _WORDS)
VERSION = len(STEPS)


def read_version(conn: Conn) -> int:
    """Return the number of steps that the server has; 0 without our tables."""
    # Read from the catalogue: a name that was not found stays cached until the transaction ends.
    if not conn.execute(_THERE).fetchall():
        return 0
    return int(conn.execute("SELECT coalesce(max(version), 0) FROM llmproxy.migrations").fetchall()[0][0])


def check_version(conn: Conn, server: RemoteStore) -> None:
    """Raise CassetteNewer, CassetteNotFound or StoreReadOnly unless the server's tables have the current version."""
    found = read_version(conn)
    if found == 0:
        raise CassetteNotFound(
            f"There is no store yet at {server.shown}: the database has no tables of llmproxy.",
            hint=f"Record first, as a role that may make them: llmproxy start --mode record --store '{server.shown}'",
        )
    if found > VERSION:
        raise CassetteNewer(
            f"The store {server.shown} is of a newer llmproxy: its schema is {found}, this version knows {VERSION}.",
            hint=upgrade_advice(),
        )
    if found < VERSION:
        raise StoreReadOnly(
            f"The store {server.shown} is of an older llmproxy: its schema is {found}, this version needs {VERSION}.",
            hint="Whoever opens it for recording, as the owner of its tables, brings it up to date.",
        )


def upgrade_schema(conn: Conn) -> None:
    """Create missing tables; safe for concurrent calls."""
    while (found := read_version(conn)) < VERSION:
        with conn.transaction():
            conn.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
            if read_version(conn) != found:
                continue  # another process was first
            if found == 0:
                conn.execute("CREATE SCHEMA IF NOT EXISTS llmproxy")
                conn.execute(
                    "CREATE TABLE llmproxy.migrations (version bigint PRIMARY KEY, at timestamptz NOT NULL DEFAULT "
                    "now())"
                )
            conn.execute(STEPS[found].encode())
            conn.execute("INSERT INTO llmproxy.migrations (version) VALUES (%s)", (found + 1,))
