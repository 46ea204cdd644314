"""Several journals -> one: the runs of all of them in the order of their beginnings, each once.

A journal names recordings by their numbers in its own store. Where that store was merged too, they are given their new numbers; where not,
nothing is said of which recording it was: a wrong number would let `prune --unused` offer the wrong ones.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from llmproxy.core.sessions.outcomes.journal import VERSION, open_state
from llmproxy.errors import CassetteCorrupt
from llmproxy.sqlite_file import FileState, connect, immediate, peek

_SECONDS = 5.0
_TABLES = ("decisions", "misses", "asked")
_BY_NUMBER = {"decisions": ("interaction", "nearest"), "asked": ("interaction",), "misses": ()}
"""Columns that name recordings."""


def merge_journals(paths: Sequence[Path], target: Path, ids: Mapping[Path, Mapping[int, int]]) -> int:
    """Write a new journal; returns how many runs it has. `ids`: by journal, the numbers of its store's recordings -> those of today.

    Raises:
        CassetteCorrupt: one is no journal of this version.
        OSError, sqlite3.Error: the new one cannot be written.

    """
    runs: dict[tuple[Any, ...], _JournalRun] = {}
    for path in sorted(
        set(paths), key=lambda each: (each not in ids, each)
    ):  # of two copies the one whose store is here
        for run in _runs(path, ids.get(path, {})):
            runs.setdefault((run.began, run.ended, *map(len, run.rows.values())), run)
    ordered = [runs[same] for same in sorted(runs, key=repr)]
    ordered.sort(key=lambda run: run.began)
    with closing(open_state(target)) as conn, immediate(conn):
        for run in ordered:
            times = run.began, run.ended
            number = conn.execute("INSERT INTO runs (started_at, ended_at) VALUES (?, ?)", times).lastrowid
            for table, rows in run.rows.items():
                for row in rows:
                    names, marks = ", ".join(row), ", ".join("?" * len(row))
                    sql = f"INSERT INTO {table} (run, {names}) VALUES (?, {marks})"  # noqa: S608 - names of our own columns
                    conn.execute(sql, (number, *row.values()))
    return len(ordered)


class _JournalRun(NamedTuple):
    began: float
    ended: float | None
    rows: Mapping[str, Sequence[Mapping[str, Any]]]
    """By table, without their numbers and that of the run."""


def _runs(path: Path, ids: Mapping[int, int]) -> list[_JournalRun]:
    hint = "Leave it out: a journal holds no recording."
    try:
        if peek(path) not in (FileState.ROLLBACK, FileState.WAL):
            raise CassetteCorrupt(f"{path} is no journal.", hint=hint)
        with closing(connect(path, "mode=ro", timeout=_SECONDS)) as conn:
            version = conn.execute("PRAGMA user_version").fetchone()[0]
            if version != VERSION:
                raise CassetteCorrupt(
                    f"{path} is a journal of version {version}, and this is version {VERSION}.", hint=hint
                )
            conn.row_factory = sqlite3.Row
            return [
                _JournalRun(
                    run["started_at"], run["ended_at"], {each: _rows(conn, each, run["id"], ids) for each in _TABLES}
                )
                for run in conn.execute("SELECT * FROM runs ORDER BY id").fetchall()
            ]
    except sqlite3.Error as error:
        raise CassetteCorrupt(f"{path} is no journal that can be read: {error}.", hint=hint) from error


def _rows(conn: sqlite3.Connection, table: str, run: int, ids: Mapping[int, int]) -> list[Mapping[str, Any]]:
    if not conn.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone():
        return []
    found = conn.execute(f"SELECT * FROM {table} WHERE run = ? ORDER BY id", (run,))  # noqa: S608 - of our own tables
    return _renumber_rows(table, [dict(row) for row in found], ids)


def _renumber_rows(table: str, rows: Sequence[dict[str, Any]], ids: Mapping[int, int]) -> list[Mapping[str, Any]]:
    """Give recordings their numbers of today; a question without its recording says nothing."""
    made: list[Mapping[str, Any]] = []
    for row in rows:
        new = {name: value for name, value in row.items() if name not in ("id", "run")}
        for name in _BY_NUMBER[table]:
            new[name] = None if new[name] is None else ids.get(new[name])
        if table != "asked" or new["interaction"] is not None:
            made.append(new)
    return made
