"""Taking out of a store in a file what is not wanted, and giving a cassette another name; inside the caller's transaction.

A body that others build on is not just deleted: those are stored anew on the next body above it that stays, so that
what was pruned is really gone and what stays still reads exactly.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from pathlib import Path

from llmproxy.core.store.contents.bodies import Base, encode, read
from llmproxy.core.store.contents.rows import to_sql
from llmproxy.core.traffic.advice import look, quote_word
from llmproxy.errors import CassetteBusy, SettingsError

_DEAD = """
SELECT b.id FROM bodies AS b WHERE NOT EXISTS (SELECT 1 FROM interactions WHERE request_body = b.id)
    AND NOT EXISTS (SELECT 1 FROM interactions WHERE response_body = b.id) ORDER BY b.id DESC
"""
_UPDATE = "UPDATE bodies SET encoding = ?, base_id = ?, prefix = ?, suffix = ?, depth = ?, data = ? WHERE id = ?"
_NAMED = (("interactions", "cassette"), ("cassettes", "name"), ("made_ids", "cassette"), ("forks", "cassette"),
          ("forks", "parent"), ("slots", "cassette"))  # fmt: skip
"""Columns that name a cassette. `files` is not among them: a file keeps the name that it has."""


def delete(conn: sqlite3.Connection, ids: Collection[int]) -> tuple[int, int]:
    """Delete these interactions and every body that only they used; returns how many of both."""
    # All at once: no index leads to who was superseded by whom, and a million single looks are a day.
    conn.execute("CREATE TEMP TABLE IF NOT EXISTS going (id INTEGER PRIMARY KEY)")
    conn.execute("DELETE FROM going")
    conn.executemany("INSERT OR IGNORE INTO going VALUES (?)", ((id_,) for id_ in ids))
    conn.execute(
        "UPDATE interactions SET superseded_by = NULL WHERE superseded_at IS NOT NULL AND superseded_by IN going"
    )
    deleted = conn.execute("DELETE FROM interactions WHERE id IN going").rowcount
    bodies = collect(conn)
    conn.execute("DELETE FROM cassettes WHERE holder IS NULL AND NOT EXISTS (SELECT 1 FROM interactions"
                 " WHERE cassette = cassettes.name AND interactions.sample = cassettes.sample)")  # fmt: skip
    conn.execute("DELETE FROM forks WHERE NOT EXISTS (SELECT 1 FROM cassettes"
                 " WHERE name = forks.cassette AND cassettes.sample = forks.sample)")  # fmt: skip
    return deleted, bodies


def rename(conn: sqlite3.Connection, path: Path, old: str, new: str) -> None:
    """Give a cassette and all its samples another name. Raises SettingsError, CassetteBusy."""
    names = (to_sql(old), to_sql(new))
    there = conn.execute("SELECT 1 FROM cassettes WHERE name = ?", names[1:]).fetchone()
    busy = conn.execute("SELECT holder FROM cassettes WHERE name = ? AND holder IS NOT NULL", names[:1]).fetchone()
    refuse_name(path, old, new, there=there is not None, holder=busy and busy[0])
    conn.execute("DELETE FROM slots WHERE cassette = ?", names[1:])
    for table, column in _NAMED:
        conn.execute(f"UPDATE {table} SET {column} = ? WHERE {column} = ?", names[::-1])  # noqa: S608 - constants


def refuse_name(path: Path, old: str, new: str, *, there: bool, holder: str | None) -> None:
    """Raise SettingsError if a new name is taken, CassetteBusy if the old one's cassette is being recorded."""
    if there:
        raise SettingsError(
            f"there is a cassette {new} already.", hint=f"Another name, or: {look(f'rm {quote_word(new)}', path)}"
        )
    if holder is not None:
        raise CassetteBusy(f"cassette {old} is being recorded by {holder}.", hint="End that session first.")


def collect(conn: sqlite3.Connection) -> int:
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
