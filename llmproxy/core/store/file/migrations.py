"""The schema of the store: functions in order, run and recorded (by sqlite-utils) in one transaction.

A store with an unknown migration was written by a newer llmproxy and is refused. A released migration never changes:
add a new function instead.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

from llmproxy.sqlite_file import write_transaction

if TYPE_CHECKING:
    from sqlite_utils import Database

APPLICATION_ID = 0x6C6C6D70  # ``llmp`` in the file's header, so that ``file`` and llmproxy can recognize a store

MIGRATION_SET = "llmproxy"

NAMES = ("m001_store", "m002_forks", "m003_bindings", "m004_files", "m005_words", "m006_live")

_M001 = """
CREATE TABLE cassettes (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    sample INTEGER NOT NULL,
    created_at REAL NOT NULL,
    recorded INTEGER NOT NULL DEFAULT 0,       -- interactions ever stored; numbers `interactions.position`
    latest_from INTEGER NOT NULL DEFAULT 0,    -- interactions from this id on belong to the latest re-recording
    closed_cleanly INTEGER NOT NULL DEFAULT 0, -- 1: the session that wrote last came to its proper end
    holder TEXT,                               -- the lease of the session that records it now
    pid INTEGER,
    host TEXT,
    heartbeat REAL,
    UNIQUE (name, sample)
);
CREATE TABLE bodies (
    id INTEGER PRIMARY KEY AUTOINCREMENT,      -- never given twice: writers remember ids across transactions
    sha256 BLOB NOT NULL UNIQUE,               -- of the content
    size INTEGER NOT NULL,                     -- of the content
    encoding TEXT NOT NULL,                    -- identity | zlib | delta | delta+zlib
    base_id INTEGER REFERENCES bodies(id),     -- delta: content = base[:prefix] + data + base[-suffix:]
    prefix INTEGER NOT NULL DEFAULT 0,
    suffix INTEGER NOT NULL DEFAULT 0,
    depth INTEGER NOT NULL DEFAULT 0,          -- how many bases are read at most
    data BLOB NOT NULL
);
CREATE INDEX bodies_by_base ON bodies(base_id) WHERE base_id IS NOT NULL;
CREATE TABLE interactions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    cassette TEXT NOT NULL,
    sample INTEGER NOT NULL,
    party TEXT NOT NULL,
    position INTEGER NOT NULL,                 -- n-th interaction stored in (cassette, sample)
    key TEXT NOT NULL,
    occurrence INTEGER NOT NULL,               -- n-th recording of the key in (cassette, sample, party)
    status INTEGER NOT NULL,
    ending TEXT NOT NULL,                      -- complete | unterminated | cut
    provider TEXT NOT NULL,
    operation TEXT NOT NULL,
    model TEXT,
    stream INTEGER NOT NULL,
    method TEXT NOT NULL,
    target TEXT NOT NULL,
    upstream TEXT NOT NULL,
    reason TEXT NOT NULL,
    started_at REAL NOT NULL,                  -- Unix time, seconds
    head_us INTEGER NOT NULL,                  -- microseconds until the response's head
    first_byte_ms REAL,
    duration_ms REAL,
    chunked INTEGER NOT NULL,
    input_tokens INTEGER,
    output_tokens INTEGER,
    cached_tokens INTEGER,
    cache_written_tokens INTEGER,
    reasoning_tokens INTEGER,
    cost_usd REAL,
    redacted INTEGER NOT NULL,                 -- 1: bytes of the response were replaced
    rules TEXT NOT NULL,                       -- digest of the normalisation rules behind `key`
    superseded_at REAL,                        -- NULL: live
    superseded_by INTEGER,
    request_body INTEGER NOT NULL REFERENCES bodies(id),
    response_body INTEGER NOT NULL REFERENCES bodies(id),
    last_user_text TEXT,
    answer_text TEXT,
    request_headers TEXT NOT NULL,             -- JSON [[name, value], ...]
    response_headers TEXT NOT NULL,
    chunks TEXT NOT NULL                       -- JSON [[microseconds, bytes], ...]
);
CREATE UNIQUE INDEX live_slots ON interactions(cassette, sample, party, key, occurrence) WHERE superseded_at IS NULL;
CREATE INDEX live_by_start ON interactions(cassette, sample, started_at) WHERE superseded_at IS NULL;
CREATE INDEX by_operation ON interactions(cassette, provider, operation);
CREATE INDEX superseded ON interactions(superseded_at) WHERE superseded_at IS NOT NULL;
CREATE INDEX by_request_body ON interactions(request_body);
CREATE INDEX by_response_body ON interactions(response_body);
CREATE TABLE made_ids (
    interaction_id INTEGER NOT NULL REFERENCES interactions(id) ON DELETE CASCADE,
    ordinal INTEGER NOT NULL,                  -- n-th id in that response, from 0
    cassette TEXT NOT NULL,
    sample INTEGER NOT NULL,
    made_id TEXT NOT NULL,
    PRIMARY KEY (interaction_id, ordinal)
) WITHOUT ROWID;
CREATE INDEX made_ids_by_id ON made_ids(cassette, sample, made_id);
CREATE VIEW calls AS
SELECT id,
    strftime('%Y-%m-%d %H:%M:%S', started_at, 'unixepoch') AS started,
    CASE WHEN sample = 1 THEN cassette ELSE cassette || '~' || sample END AS session,
    party, provider, model, operation, last_user_text, answer_text,
    input_tokens AS tokens_in, output_tokens AS tokens_out, cached_tokens AS tokens_cached, cost_usd,
    status, ending, round(duration_ms, 1) AS ms, round(first_byte_ms, 1) AS first_byte_ms, stream, occurrence, key
FROM interactions WHERE superseded_at IS NULL
ORDER BY id;
"""
_M002 = """
CREATE TABLE forks (
    cassette TEXT NOT NULL,
    sample INTEGER NOT NULL,
    parent TEXT NOT NULL,
    parent_sample INTEGER NOT NULL,
    step INTEGER NOT NULL,                     -- the agent's request, from 1, with which it went its own way
    shared INTEGER NOT NULL,                   -- interactions that it has from its parent
    why TEXT NOT NULL,
    path TEXT,                                 -- the first place of that request that differs
    overrides TEXT NOT NULL,                   -- JSON; those of tools are swapped whenever it is replayed
    created_at REAL NOT NULL,
    PRIMARY KEY (cassette, sample)
)
"""

_M003 = """
CREATE TABLE run_variables (
    id INTEGER PRIMARY KEY,
    said TEXT NOT NULL UNIQUE                  -- JSON [{name, value, ...}, ...]: what one run declared
);
CREATE TABLE declared (
    interaction_id INTEGER PRIMARY KEY REFERENCES interactions(id) ON DELETE CASCADE,
    run_variables INTEGER NOT NULL REFERENCES run_variables(id)
);
CREATE TABLE volatile_fields (
    cassette TEXT NOT NULL,
    position INTEGER NOT NULL,
    field TEXT NOT NULL,                       -- JSON: a place whose value is known to vary
    PRIMARY KEY (cassette, position)
) WITHOUT ROWID;
"""
_M004 = """
CREATE TABLE files (
    cassette TEXT PRIMARY KEY,
    sha256 BLOB NOT NULL,                      -- of the file's content
    last_id INTEGER NOT NULL                   -- the interactions up to this id are in it, or were replaced by it
)
"""


def m001_store(db: Database) -> None:
    for statement in _M001.split(";\n"):
        if statement.strip():
            db.conn.execute(statement)
    db.conn.execute(f"PRAGMA application_id={APPLICATION_ID}")


def m002_forks(db: Database) -> None:
    db.conn.execute(_M002)


def m003_bindings(db: Database) -> None:
    for statement in _M003.split(";\n"):
        if statement.strip():
            db.conn.execute(statement)


def m004_files(db: Database) -> None:
    db.conn.execute(_M004)


def m005_words(db: Database) -> None:
    """Rename the tables and columns of bindings in a store in which m003 gave them other names."""
    if "slots" in db.table_names():
        db.conn.execute("ALTER TABLE circumstances RENAME TO run_variables")
        db.conn.execute("ALTER TABLE declared RENAME COLUMN circumstances TO run_variables")
        db.conn.execute("ALTER TABLE slots RENAME TO volatile_fields")
    if "slot" in db["volatile_fields"].columns_dict:  # not always: SQLite parses the whole schema anew
        db.conn.execute("ALTER TABLE volatile_fields RENAME COLUMN slot TO field")


def m006_live(db: Database) -> None:
    """Add the live channels to `forks`: before, only the reason named them."""
    db.conn.execute("ALTER TABLE forks ADD COLUMN live TEXT NOT NULL DEFAULT ''")
    db.conn.execute("UPDATE forks SET live = substr(why, 7) WHERE why GLOB 'live: *'")


def list_applied_migrations(conn: sqlite3.Connection) -> tuple[str, ...]:
    """Return the names of our migrations that this database has recorded, in order; writes nothing."""
    if conn.execute("SELECT 1 FROM sqlite_master WHERE name = '_sqlite_migrations'").fetchone() is None:
        return ()
    rows = conn.execute("SELECT name FROM _sqlite_migrations WHERE migration_set = ? ORDER BY id", (MIGRATION_SET,))
    return tuple(str(row[0]) for row in rows)


def upgrade_schema(conn: sqlite3.Connection) -> None:
    """Apply missing migrations in one transaction; safe for concurrent processes."""
    from sqlite_utils import Database, Migrations  # late: reading never needs it

    db = Database(conn, execute_plugins=False)
    steps = Migrations(MIGRATION_SET)
    for name in NAMES:
        steps(name=name)(globals()[name])
    if steps.pending(db):
        with write_transaction(conn):
            steps.apply(db)  # what another process did not apply before us
