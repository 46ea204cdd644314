"""What is wrong with a store, and how much of it some interactions are."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from llmproxy.core.store.contents.rows import to_sql
from llmproxy.core.store.file.connect import translate
from llmproxy.core.store.store import Store
from llmproxy.errors import CassetteError


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that is wrong with a store."""

    interaction: int | None
    """None: the file as a whole."""
    what: str


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
        ids = [row[0] for row in store.conn.execute(f"SELECT id FROM interactions{only} ORDER BY id", values)]  # noqa: S608 - only names of ours stand in the text
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
