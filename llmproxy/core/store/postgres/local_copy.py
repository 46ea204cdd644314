"""Updates of the copy on this machine from the server: only changes since the last read, each cassette whole.

Every change of a cassette on the server counts its `version` under the lock of its row, and every row says which
version wrote or superseded it. Where something was taken away, or got another key, the `epoch` differs, and the
cassette is read from its start.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from itertools import batched
from typing import TYPE_CHECKING, Any, NamedTuple

from llmproxy.core.store import row_conversion
from llmproxy.core.store.file.leases_and_deletes import delete_unused_bodies, replace_volatile_field_rows
from llmproxy.core.store.postgres.connection import decode_pg_value, encode_pg_text, to_pg_value
from llmproxy.core.store.row_conversion import to_sql
from llmproxy.errors import CassetteCorrupt
from llmproxy.sqlite_file import write_transaction

if TYPE_CHECKING:
    from llmproxy.core.store.postgres.connection import Conn

AT_ONCE = 500  # rows per query

_TABLE = """
CREATE TABLE IF NOT EXISTS server_copies (
    cassette TEXT NOT NULL, sample INTEGER NOT NULL, version INTEGER NOT NULL, epoch INTEGER NOT NULL,
    PRIMARY KEY (cassette, sample)
) WITHOUT ROWID
"""
_TABLES = ("declared", "made_ids", "interactions", "bodies", "cassettes", "volatile_fields", "forks", "files",
           "server_copies", "server_store")  # fmt: skip
_VERSIONS = "SELECT name, sample, version, CASE WHEN holder IS NULL OR %s THEN epoch END FROM llmproxy.cassettes"
"""A renewed lease counts as a change only if the whole copy is updated."""
_COLUMNS = ", ".join(row_conversion.COLUMNS)
_CHANGES = f"""
SELECT c.version, c.epoch, CASE WHEN coalesce(i.nth, 1) = 1 THEN
        ARRAY(SELECT field FROM llmproxy.volatile_fields WHERE cassette = c.name ORDER BY position) END, c.created_at,
    c.recorded, c.latest_from, c.closed_cleanly, c.holder, c.pid, c.host, extract(epoch FROM c.heartbeat)::float8, i.*
FROM llmproxy.cassettes AS c LEFT JOIN LATERAL (
    SELECT changed, id, superseded_at, superseded_by, position, occurrence, request_body, response_body, made_ids,
        run_variables, {_COLUMNS}, row_number() OVER (ORDER BY changed, id) AS nth
    FROM llmproxy.interactions WHERE cassette = c.name AND sample = c.sample
        AND (changed, id) > (CASE c.epoch WHEN %s THEN %s ELSE -1 END, %s)
    ORDER BY changed, id LIMIT {AT_ONCE}
) AS i ON true WHERE c.name = %s AND c.sample = %s ORDER BY i.changed, i.id
"""
"""Rows after a version and id, all if the epoch is another one, with the cassette's: one statement sees one state.

In this order whoever held a slot comes before who took it over. A cassette without such rows gives one of NULL.
Volatile fields are in the first row only.
"""
_HEAD = 11  # columns of the cassette
_BODIES = "SELECT sha256, size, encoding, base, prefix, suffix, depth, data FROM llmproxy.bodies WHERE sha256 = ANY(%s)"
_CASSETTE = """
INSERT INTO cassettes (name, sample, created_at, recorded, latest_from, closed_cleanly, holder, pid, host, heartbeat)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (name, sample) DO UPDATE SET created_at = excluded.created_at,
    recorded = excluded.recorded, latest_from = excluded.latest_from, closed_cleanly = excluded.closed_cleanly,
    holder = excluded.holder, pid = excluded.pid, host = excluded.host, heartbeat = excluded.heartbeat
"""
_INTERACTION = (
    "INSERT INTO interactions (id, superseded_at, superseded_by, position, occurrence, request_body, response_body,"
    f" {_COLUMNS}) VALUES ({', '.join('?' * (7 + len(row_conversion.COLUMNS)))})"
)
_SUPERSEDE = "UPDATE interactions SET superseded_at = ?, superseded_by = ? WHERE id = ? AND cassette = ? AND sample = ?"
_BODY = """
INSERT INTO bodies (sha256, size, encoding, base_id, prefix, suffix, depth, data) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""

CopyPlace = tuple[str | bytes, int]  # cassette, as it stands in a column of a file, and sample


class BodyRow(NamedTuple):
    sha256: bytes
    size: int
    encoding: str
    base: bytes | None
    prefix: int
    suffix: int
    depth: int
    data: bytes


def create_tables_of_server_store_copy(local: sqlite3.Connection, store: str) -> None:
    """Prepare a new file as a copy of the server's store `store`; rows copied from another store are deleted."""
    local.execute(_TABLE)
    local.execute("CREATE TABLE IF NOT EXISTS server_store (id TEXT NOT NULL)")
    if local.execute("SELECT id FROM server_store").fetchall() == [(store,)]:
        return
    with write_transaction(local):
        for table in _TABLES:
            local.execute(f"DELETE FROM {table}")
        local.execute("INSERT INTO server_store VALUES (?)", (store,))


def list_outdated_cassette_copies(local: sqlite3.Connection, conn: Conn, name: str | None) -> list[CopyPlace]:
    """Return the samples of a cassette, or of all, that changed on the server; those that are gone there come last."""
    only, values = ("", (False,)) if name is None else (" WHERE name = %s", (True, encode_pg_text(name)))
    there = {
        (decode_pg_value(cassette), sample): (version, epoch)
        for cassette, sample, version, epoch in conn.execute((_VERSIONS + only).encode(), values)
    }
    copied = local.execute("SELECT cassette, sample, version, epoch FROM server_copies")
    here = {
        (cassette, sample): (version, epoch)
        for cassette, sample, version, epoch in copied
        if name is None or cassette == to_sql(name)
    }
    return [place for place in there | here if there.get(place) != here.get(place)]


def update_local_copy_from_server(
    local: sqlite3.Connection, conn: Conn, places: Iterable[CopyPlace], known: Mapping[bytes, BodyRow]
) -> bool:
    """Update the copies of these samples; returns whether something went. `known` bodies came from here."""
    went = [place for place in places if _sync_copy_with_server(local, conn, place, known)]
    if went:
        with write_transaction(local):
            delete_unused_bodies(local)
    return bool(went)


def _sync_copy_with_server(
    local: sqlite3.Connection, conn: Conn, place: CopyPlace, known: Mapping[bytes, BodyRow]
) -> bool:
    """Update one copy; returns whether something went. Raises CassetteCorrupt: a body is missing on the server."""
    try:
        while True:
            before = _read_version(local, place)
            found = _read_changes(conn, place, *before)
            with write_transaction(local):
                if _read_version(local, place) == before:  # else another process was quicker
                    return _copy_server_changes(local, conn, place, before[1], found, known)
    except CassetteCorrupt:
        # Another machine may have deleted rows and bodies between our statements. In one snapshot, nothing is missing.
        with write_transaction(local), conn.transaction():
            conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            before = _read_version(local, place)
            return _copy_server_changes(local, conn, place, before[1], _read_changes(conn, place, *before), known)


def _copy_server_changes(
    local: sqlite3.Connection, conn: Conn, place: CopyPlace, copied: int | None, found: Sequence[tuple[Any, ...]],
    known: Mapping[bytes, BodyRow],
) -> bool:  # fmt: skip
    """Write changes `found`, read and write the others; returns whether something went. `copied`: the copy's epoch."""
    epoch = copied
    while True:
        if not found or found[0][1] != epoch:
            local.execute("DELETE FROM interactions WHERE cassette = ? AND sample = ?", place)
            local.execute("DELETE FROM cassettes WHERE name = ? AND sample = ?", place)  # new rows may share bodies
        if not found:
            local.execute("DELETE FROM server_copies WHERE cassette = ? AND sample = ?", place)
            return True
        epoch = found[0][1]
        _write_rows(local, conn, place, [row[_HEAD:] for row in found if row[_HEAD] is not None], known)
        if len(found) < AT_ONCE:
            version, _, fields, *columns = found[0][:_HEAD]
            local.execute(_CASSETTE, (*place, *map(decode_pg_value, columns)))
            replace_volatile_field_rows(local, place[0], map(decode_pg_value, fields))
            local.execute("INSERT OR REPLACE INTO server_copies VALUES (?, ?, ?, ?)", (*place, version, epoch))
            return copied not in (None, epoch)
        found = _read_changes(conn, place, found[-1][_HEAD], epoch, found[-1][_HEAD + 1])


def _read_version(local: sqlite3.Connection, place: CopyPlace) -> tuple[int, int | None]:
    """Return the version and epoch that was copied; -1 and None if nothing was."""
    sql = "SELECT version, epoch FROM server_copies WHERE cassette = ? AND sample = ?"
    found: tuple[int, int] | None = local.execute(sql, place).fetchone()
    return found or (-1, None)


def _read_changes(
    conn: Conn, place: CopyPlace, version: int, epoch: int | None, id_: int = 1 << 62
) -> list[tuple[Any, ...]]:
    """Return the next rows after a version and id, each behind its cassette's; none if the cassette is gone."""
    return conn.execute(_CHANGES.encode(), (epoch, version, id_, to_pg_value(place[0]), place[1])).fetchall()


def _write_rows(
    local: sqlite3.Connection, conn: Conn, place: CopyPlace, found: Sequence[tuple[Any, ...]],
    known: Mapping[bytes, BodyRow],
) -> None:  # fmt: skip
    bodies = _copy_bodies(local, conn, {sha for row in found for sha in row[6:8]}, known)
    for row in found:
        _, id_, gone_at, successor, position, occurrence, request, response, made_ids, said, *columns, _ = row
        if local.execute(_SUPERSEDE, (gone_at, successor, id_, *place)).rowcount:
            continue
        # Its cassette was renamed. Which name is the older one cannot be told here: the other one is read anew.
        renamed = local.execute("DELETE FROM interactions WHERE id = ? RETURNING cassette, sample", (id_,)).fetchall()
        local.executemany("UPDATE server_copies SET epoch = -1 WHERE cassette = ? AND sample = ?", renamed)
        bodies_here = bodies[request], bodies[response]
        local.execute(
            _INTERACTION, (id_, gone_at, successor, position, occurrence, *bodies_here, *map(decode_pg_value, columns))
        )
        row_conversion.insert_id_and_variable_rows(local, id_, *place, json.loads(made_ids), decode_pg_value(said))


def _copy_bodies(
    local: sqlite3.Connection, conn: Conn, wanted: Iterable[bytes], known: Mapping[bytes, BodyRow]
) -> dict[bytes, int]:
    # Another one may have stored the same content on the server in another way: ours fits what is here, or none.
    came = {each.sha256: each for each in known.values() if each.base is None or _find_body_row(local, each.base)}
    ask = set(wanted)
    while missing := [sha for sha in ask if sha not in came and _find_body_row(local, sha) is None]:
        ask = set()  # what they build on comes in the next round; most of it was asked for anyhow
        for some in batched(missing, AT_ONCE):
            for row in conn.execute(_BODIES.encode(), (list(some),)).fetchall():
                came[row[0]] = body = BodyRow(*row)
                ask |= set() if body.base is None else {body.base}
    return {sha: _write_body(local, sha, came) for sha in wanted}


def _find_body_row(local: sqlite3.Connection, sha: bytes) -> int | None:
    row = local.execute("SELECT id FROM bodies WHERE sha256 = ?", (sha,)).fetchone()
    return None if row is None else int(row[0])


def _write_body(local: sqlite3.Connection, sha: bytes, came: Mapping[bytes, BodyRow]) -> int:
    if (row := _find_body_row(local, sha)) is not None:
        return row
    if sha not in came:
        raise CassetteCorrupt(f"The server's table `bodies` has no row {sha.hex()}, which another one needs.")
    _, size, encoding, base, *delta = came[sha]
    base_id = None if base is None else _write_body(local, base, came)
    return int(local.execute(_BODY, (sha, size, encoding, base_id, *delta)).lastrowid or 0)
