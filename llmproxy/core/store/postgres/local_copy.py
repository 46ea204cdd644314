"""What the server has, into the copy on this machine: only what changed since it was read last, a cassette whole or not
at all.

Every change of a cassette on the server counts its `version` under the lock of its row, and every row says which
version wrote or superseded it: rows above the version that we have are what is new. Where something was taken away, the
`epoch` differs, and the cassette is read from its start. Several processes may bring one copy up to date at once: who
finds at the end that another one was quicker starts again.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import batched
from typing import TYPE_CHECKING, Any, NamedTuple

from llmproxy.core.store import rows
from llmproxy.core.store.file.statements import collect_bodies
from llmproxy.core.store.postgres.connection import from_pg, to_pg, to_pg_text
from llmproxy.core.store.rows import to_sql
from llmproxy.errors import CassetteCorrupt
from llmproxy.sqlite_file import write_transaction

if TYPE_CHECKING:
    from llmproxy.core.store.postgres.connection import Answer, Conn

AT_ONCE = 500
"""Rows that are asked for together."""

_TABLE = """
CREATE TABLE IF NOT EXISTS server_copies (
    cassette TEXT NOT NULL, sample INTEGER NOT NULL, version INTEGER NOT NULL, epoch INTEGER NOT NULL,
    PRIMARY KEY (cassette, sample)
) WITHOUT ROWID
"""
_STORE = "CREATE TABLE IF NOT EXISTS server_store (id TEXT NOT NULL)"
_TABLES = ("declared", "made_ids", "interactions", "bodies", "cassettes", "volatile_fields", "forks", "files",
           "server_copies", "server_store")  # fmt: skip
_HEADS = """
SELECT name, sample, version, epoch, created_at, recorded, latest_from, closed_cleanly, holder, pid, host,
    extract(epoch FROM heartbeat)::float8 FROM llmproxy.cassettes
"""
_COLUMNS = ", ".join(rows.COLUMNS)
_ROWS = f"""
SELECT id, position, occurrence, superseded_at, superseded_by,
    made_ids, run_variables, request_body, response_body, changed, {_COLUMNS}
FROM llmproxy.interactions WHERE cassette = %s AND sample = %s AND (changed, id) > (%s, %s)
    ORDER BY changed, id LIMIT {AT_ONCE}
"""
"""In this order whoever held a slot comes before who took it over."""
_CHANGE = 9
_FIXED = 10
"""Columns before those of `rows.COLUMNS`."""
_BODIES = """
SELECT sha256, size, encoding, base, prefix, suffix, depth, data FROM llmproxy.bodies WHERE sha256 = ANY(%s)
"""
_CASSETTE = """
INSERT INTO cassettes (name, sample, created_at, recorded, latest_from, closed_cleanly, holder, pid, host, heartbeat)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (name, sample) DO UPDATE SET created_at = excluded.created_at,
    recorded = excluded.recorded, latest_from = excluded.latest_from, closed_cleanly = excluded.closed_cleanly,
    holder = excluded.holder, pid = excluded.pid, host = excluded.host, heartbeat = excluded.heartbeat
"""
_INTERACTION = (
    "INSERT INTO interactions (id, position, occurrence, superseded_at, superseded_by, request_body, "
    "response_body,"
    f" {_COLUMNS}) VALUES ({', '.join('?' * (7 + len(rows.COLUMNS)))})"
)
_CHANGED = (
    "UPDATE interactions SET superseded_at = ?, superseded_by = ?, key = ?, occurrence = ?, rules = ? WHERE id = ?"
)
_SAID = rows.COLUMNS.index("key"), rows.COLUMNS.index("rules")

Place = tuple[Any, Any]
"""Cassette, as it stands in a column of a file, and sample."""


class Body(NamedTuple):
    """A row of the server's table."""

    sha256: bytes
    size: int
    encoding: str
    base: bytes | None
    prefix: int
    suffix: int
    depth: int
    data: bytes


class SampleHead(NamedTuple):
    """A cassette and sample as the server has it."""

    place: Place
    version: int
    epoch: int
    rest: tuple[Any, ...]


def prepare_copy(local: sqlite3.Connection, store: str) -> None:
    """Make a copy of the server's store `store` out of a new file; what was copied of another one is thrown away."""
    local.execute(_TABLE)
    local.execute(_STORE)
    if local.execute("SELECT id FROM server_store").fetchall() == [(store,)]:
        return
    with write_transaction(local):
        for table in _TABLES:
            local.execute(f"DELETE FROM {table}")
        local.execute("INSERT INTO server_store VALUES (?)", (store,))


def update_copies(
    local: sqlite3.Connection, conn: Conn, name: str | None, known: Mapping[bytes, Body] | None = None
) -> bool:
    """Update a cassette's copy, or all; returns whether something went. `known` bodies came from here."""
    while True:
        done = _update_copy(local, conn, name, known or {})
        if done is not None:
            return done


def _update_copy(local: sqlite3.Connection, conn: Conn, name: str | None, known: Mapping[bytes, Body]) -> bool | None:
    """Bring it up to date; None if another process was quicker."""
    only, values = (" WHERE name = %s", [to_pg_text(name)]) if name is not None else ("", [])
    heads = [
        SampleHead((from_pg(row[0]), row[1]), row[2], row[3], row[4:])
        for row in conn.execute(f"{_HEADS}{only}".encode(), values)
    ]
    found = local.execute("SELECT cassette, sample, version, epoch FROM server_copies").fetchall()
    copied = {(cassette, sample): (version, epoch) for cassette, sample, version, epoch in found}
    gone = [
        place
        for place in copied
        if (name is None or place[0] == to_sql(name)) and place not in {h.place for h in heads}
    ]
    new = [head for head in heads if copied.get(head.place) != (head.version, head.epoch)]
    away = bool(gone) or any(copied.get(head.place, (0, head.epoch))[1] != head.epoch for head in new)
    if not new and not gone:
        return False
    for head in new:
        with conn.transaction():
            conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            if not _update_sample(local, conn, head, copied.get(head.place), known):
                return None
    with write_transaction(local):
        for place in gone:
            _clear_sample(local, place)
            local.execute("DELETE FROM server_copies WHERE cassette = ? AND sample = ?", place)
        if away:
            collect_bodies(local)
    return away


def _update_sample(
    local: sqlite3.Connection, conn: Conn, head: SampleHead, before: tuple[int, int] | None, known: Mapping[bytes, Body]
) -> bool:
    """Update one cassette and sample inside a snapshot of the server; returns whether nobody else did meanwhile."""
    name, sample = head.place
    at = conn.execute(f"{_HEADS} WHERE name = %s AND sample = %s".encode(), (to_pg(name), sample)).fetchall()
    if not at:
        return False
    head = SampleHead(head.place, at[0][2], at[0][3], at[0][4:])
    anew = before is None or before[1] != head.epoch
    since = -1 if before is None or anew else before[0]
    fields = conn.execute(
        "SELECT position, field FROM llmproxy.volatile_fields WHERE cassette = %s", (to_pg(name),)
    ).fetchall()
    with write_transaction(local):
        now = local.execute(
            "SELECT version, epoch FROM server_copies WHERE cassette = ? AND sample = ?", head.place
        ).fetchone()
        if now != before:
            return False
        if anew:
            _clear_sample(local, head.place)
        after = (since, 1 << 62)
        some: list[tuple[Any, ...]] = []
        while not some or len(some) == AT_ONCE:
            some = conn.execute(_ROWS.encode(), (to_pg(name), sample, *after)).fetchall()
            if not some:
                break
            _write_rows(local, conn, some, known)
            after = (some[-1][_CHANGE], some[-1][0])
        local.execute(_CASSETTE, (name, sample, *map(from_pg, head.rest)))
        local.execute("DELETE FROM volatile_fields WHERE cassette = ?", (name,))
        local.executemany(
            "INSERT INTO volatile_fields VALUES (?, ?, ?)", [(name, at, from_pg(field)) for at, field in fields]
        )
        local.execute(
            "INSERT OR REPLACE INTO server_copies VALUES (?, ?, ?, ?)", (name, sample, head.version, head.epoch)
        )
    return True


@dataclass
class StoredRow:
    """One interaction that we wrote to the server, as its row there is."""

    answer: Answer
    """Has its id: the server's next one."""
    row: tuple[Any, ...]
    """The columns that are read for a copy, but for the id."""
    gone: frozenset[int]
    """What it superseded."""
    gone_at: float

    @cached_property
    def id(self) -> int:
        return int(self.answer.fetchall()[0][0])


def copy_stored_rows(
    local: sqlite3.Connection,
    conn: Conn,
    counts: Mapping[tuple[str, int], tuple[int, int, int]],
    stored: Sequence[StoredRow],
    known: Mapping[bytes, Body],
) -> bool:
    """Write into the copy what was just committed; False, and nothing written, if others wrote beside us: then it must
    be read.

    `counts` has, by place, how many were ever recorded, the version that we made, and the epoch.
    """
    with write_transaction(local):
        sql = "SELECT version, epoch FROM server_copies WHERE cassette = ? AND sample = ?"
        for (name, sample), (_, version, epoch) in counts.items():
            if local.execute(sql, (from_pg(name), sample)).fetchone() != (version - 1, epoch):
                return False
        for each in stored:
            local.executemany(
                "UPDATE interactions SET superseded_at = ?, superseded_by = ? WHERE id = ?",
                [(each.gone_at, each.id, id_) for id_ in each.gone],
            )
            _write_rows(local, conn, [(each.id, *each.row)], known)
        for (name, sample), (recorded, version, epoch) in counts.items():
            place = (from_pg(name), sample)
            local.execute(
                "UPDATE cassettes SET recorded = ?, closed_cleanly = 0 WHERE name = ? AND sample = ?",
                (recorded, *place),
            )
            local.execute("INSERT OR REPLACE INTO server_copies VALUES (?, ?, ?, ?)", (*place, version, epoch))
    return True


def _clear_sample(local: sqlite3.Connection, place: Place) -> None:
    """Take out what was copied, but for the bodies, which what comes instead may share."""
    local.execute("DELETE FROM interactions WHERE cassette = ? AND sample = ?", place)
    local.execute("DELETE FROM cassettes WHERE name = ? AND sample = ?", place)


def _write_rows(
    local: sqlite3.Connection, conn: Conn, found: Sequence[tuple[Any, ...]], known: Mapping[bytes, Body]
) -> None:
    """Write rows that are new or changed."""
    bodies = _copy_bodies(local, conn, {row[at] for row in found for at in (7, 8)}, known)
    there = []
    for row in found:
        place = local.execute("SELECT cassette, sample FROM interactions WHERE id = ?", row[:1]).fetchone()
        if place == (from_pg(row[_FIXED]), row[_FIXED + 1]):
            there.append(row)
        elif place is not None:  # the cassette has another name by now
            local.execute("DELETE FROM interactions WHERE id = ?", row[:1])
    for row in there:  # first: a slot is free only when its holder was superseded
        key, rules = (from_pg(row[_FIXED + at]) for at in _SAID)
        local.execute(_CHANGED, (row[3], row[4], key, row[2], rules, row[0]))
    old = {row[0] for row in there}
    for row in sorted((row for row in found if row[0] not in old), key=lambda row: row[3] is None):
        values = (*row[:5], bodies[row[7]], bodies[row[8]], *map(from_pg, row[_FIXED:]))
        local.execute(_INTERACTION, values)
        name, sample = from_pg(row[_FIXED]), row[_FIXED + 1]
        made = [(row[0], n, name, sample, to_sql(each)) for n, each in enumerate(json.loads(row[5]))]
        local.executemany("INSERT INTO made_ids VALUES (?, ?, ?, ?, ?)", made)
        if said := from_pg(row[6]):
            local.execute("INSERT OR IGNORE INTO run_variables (said) VALUES (?)", (said,))
            local.execute("INSERT INTO declared SELECT ?, id FROM run_variables WHERE said = ?", (row[0], said))


def _copy_bodies(
    local: sqlite3.Connection, conn: Conn, wanted: Iterable[bytes], known: Mapping[bytes, Body]
) -> dict[bytes, int]:
    """Return the copy's rows of these bodies, those that are missing read from the server."""
    found = {sha: row for sha in wanted if (row := _find_body_row(local, sha)) is not None}
    missing = [sha for sha in wanted if sha not in found]
    came = {sha: known[sha] for sha in missing if sha in known}
    ask = [sha for sha in missing if sha not in came]
    while ask:  # what they build on comes in the next round; most of it was asked for anyhow
        fresh: dict[bytes, Body] = {}
        for some in batched(ask, AT_ONCE):
            fresh |= {row[0]: Body(*row) for row in conn.execute(_BODIES.encode(), (list(some),)).fetchall()}
        came |= fresh
        below = {each.base for each in fresh.values() if each.base is not None} - came.keys()
        ask = [sha for sha in below if _find_body_row(local, sha) is None]
    for sha in missing:
        found[sha] = _write_body(local, sha, came)
    return found


def _find_body_row(local: sqlite3.Connection, sha: bytes) -> int | None:
    row = local.execute("SELECT id FROM bodies WHERE sha256 = ?", (sha,)).fetchone()
    return None if row is None else int(row[0])


def _write_body(local: sqlite3.Connection, sha: bytes, came: Mapping[bytes, Body]) -> int:
    """Write a body and what it builds on, unless it is there; returns its row."""
    waiting, at = [], sha
    base: int | None = None
    while (base := _find_body_row(local, at)) is None:
        if at not in came:
            raise CassetteCorrupt(f"The server's table `bodies` has no row {at.hex()}, which another one needs.")
        waiting.append(came[at])
        if (below := came[at].base) is None:
            break
        at = below
    for each in reversed(waiting):
        values = (each.sha256, each.size, each.encoding, base, each.prefix, each.suffix, each.depth, each.data)
        made = local.execute(
            "INSERT INTO bodies (sha256, size, encoding, base_id, prefix, suffix, depth, data) VALUES (?, ?, ?, ?, ?, "
            "?, ?, ?)",
            values,
        )
        base = int(made.lastrowid or 0)
    return base or 0
