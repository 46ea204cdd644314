"""Keeping a store in order: finding what is damaged, taking out what is not wanted.

A body that others build on is not just deleted: those are stored anew on the next body above it that stays, so that
what was pruned is really gone and what stays still reads exactly.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from llmproxy.core.store.contents.bodies import Base, encode, read
from llmproxy.core.store.contents.rows import to_sql
from llmproxy.core.store.file.connect import translate
from llmproxy.core.store.store import Store
from llmproxy.core.traffic.advice import look, quoted
from llmproxy.errors import CassetteBusy, CassetteError, SettingsError

_DEAD = """
SELECT b.id FROM bodies AS b WHERE NOT EXISTS (SELECT 1 FROM interactions WHERE request_body = b.id)
    AND NOT EXISTS (SELECT 1 FROM interactions WHERE response_body = b.id) ORDER BY b.id DESC
"""
_UPDATE = "UPDATE bodies SET encoding = ?, base_id = ?, prefix = ?, suffix = ?, depth = ?, data = ? WHERE id = ?"


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that is wrong with a store."""

    interaction: int | None
    """None: the file as a whole."""
    what: str


@dataclass(frozen=True, slots=True)
class Pruned:
    """What a prune did."""

    interactions: int
    bodies: int
    freed: int
    """Bytes by which the file shrank."""


def damages(
    store: Store,
    through: Callable[[Sequence[int], int], Iterable[int]] = lambda ids, _: ids,
    cassette: str | None = None,
) -> Iterator[Damage]:
    """Check the file's structure, and read everything in it against its sha256; `through` is told each interaction, and how many there are.

    Of one `cassette` its interactions are read, and the structure is left to a check of the whole.
    """
    try:
        if cassette is None:
            for (finding,) in store.conn.execute("PRAGMA integrity_check(20)").fetchall():
                if finding != "ok":
                    yield Damage(None, str(finding))
        only, values = ("", ()) if cassette is None else (" WHERE cassette = ?", (to_sql(cassette),))
        ids = [row[0] for row in store.conn.execute(f"SELECT id FROM interactions{only} ORDER BY id", values)]  # noqa: S608
    except sqlite3.Error as error:
        yield Damage(None, translate(error, store.path, writing=False).message)
        return
    for id_ in through(ids, len(ids)):
        try:
            store.load(id_)
        except CassetteError as error:
            yield Damage(id_, error.message)
    if cassette is not None:
        return
    try:
        broken = store.conn.execute("PRAGMA foreign_key_check").fetchall()
    except sqlite3.Error as error:
        yield Damage(None, str(error))
        return
    for table, row, parent, _ in broken:
        yield Damage(
            row if table == "interactions" else None, f"row {row} of {table} names a row of {parent} that is gone"
        )


def stored_bytes(store: Store, ids: Collection[int]) -> int:
    """Return about how many bytes these interactions alone hold in the store."""
    total, chosen, bodies = 0, frozenset(ids), set()
    for id_ in chosen:
        sql = "SELECT request_body, response_body, length(request_headers) + length(response_headers) + length(chunks) + 400"
        for request, response, own in store.conn.execute(f"{sql} FROM interactions WHERE id = ?", (id_,)):
            bodies |= {request, response}
            total += own
    users = (
        "SELECT id FROM interactions WHERE request_body = ? UNION SELECT id FROM interactions WHERE response_body = ?"
    )
    for body in bodies:
        if all(user in chosen for (user,) in store.conn.execute(users, (body, body))):
            total += store.conn.execute("SELECT length(data) FROM bodies WHERE id = ?", (body,)).fetchone()[0]
    return total


def prune(store: Store, ids: Collection[int]) -> Pruned:
    """Delete these interactions and every body that only they used; give the space back to the disk.

    Raises:
        StoreReadOnly, CassetteBusy, RecordingError: nothing was deleted.

    """
    before = store.path.stat().st_size
    with store.transaction() as conn:
        deleted = 0
        for id_ in ids:
            conn.execute("UPDATE interactions SET superseded_by = NULL WHERE superseded_by = ?", (id_,))
            deleted += conn.execute("DELETE FROM interactions WHERE id = ?", (id_,)).rowcount
        bodies = _collect(conn)
        conn.execute("DELETE FROM cassettes WHERE holder IS NULL AND NOT EXISTS (SELECT 1 FROM interactions"
                     " WHERE cassette = cassettes.name AND interactions.sample = cassettes.sample)")  # fmt: skip
        conn.execute("DELETE FROM forks WHERE NOT EXISTS (SELECT 1 FROM cassettes"
                     " WHERE name = forks.cassette AND cassettes.sample = forks.sample)")  # fmt: skip
    store.vacuum()
    return Pruned(deleted, bodies, before - store.path.stat().st_size)


_NAMED = (("interactions", "cassette"), ("cassettes", "name"), ("made_ids", "cassette"), ("forks", "cassette"),
          ("forks", "parent"), ("slots", "cassette"))  # fmt: skip
"""Columns that name a cassette. `files` is not among them: a file keeps the name that it has."""


def rename(store: Store, old: str, new: str) -> None:
    """Give a cassette and all its samples another name.

    Raises:
        SettingsError: there is one of that name.
        StoreReadOnly, CassetteBusy: nothing was changed.

    """
    names = (to_sql(old), to_sql(new))
    with store.transaction() as conn:
        if conn.execute("SELECT 1 FROM cassettes WHERE name = ?", names[1:]).fetchone():
            raise SettingsError(
                f"there is a cassette {new} already.", hint=f"Another name, or: {look(f'rm {quoted(new)}', store.path)}"
            )
        busy = conn.execute("SELECT holder FROM cassettes WHERE name = ? AND holder IS NOT NULL", names[:1]).fetchone()
        if busy is not None:
            raise CassetteBusy(f"cassette {old} is being recorded by {busy[0]}.", hint="End that session first.")
        conn.execute("DELETE FROM slots WHERE cassette = ?", names[1:])
        for table, column in _NAMED:
            conn.execute(f"UPDATE {table} SET {column} = ? WHERE {column} = ?", names[::-1])  # noqa: S608 - constants


def _collect(conn: sqlite3.Connection) -> int:
    """Delete the bodies that nobody uses, newest first; what builds on one is stored anew on the next one below."""
    dead = [row[0] for row in conn.execute(_DEAD)]
    for id_ in dead:
        base_id, depth = conn.execute("SELECT base_id, depth FROM bodies WHERE id = ?", (id_,)).fetchone()
        children = [row[0] for row in conn.execute("SELECT id FROM bodies WHERE base_id = ?", (id_,))]
        if children:
            bases = () if base_id is None else (Base(base_id, depth - 1, read(conn, base_id)),)
            for child in children:
                new = encode(read(conn, child), bases)
                conn.execute(_UPDATE, (new.encoding, new.base_id, new.prefix, new.suffix, new.depth, new.data, child))
        conn.execute("DELETE FROM bodies WHERE id = ?", (id_,))
    return len(dead)
