"""What a journal says, for who looks at it later: misses, faults, what was served and asked.

A file that is not there, or is none, says nothing.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from operator import index
from pathlib import Path
from typing import Any, NamedTuple

from llmproxy.core.sessions.journal import BUSY_SECONDS, Missed
from llmproxy.core.store.rows import from_sql
from llmproxy.core.traffic.interaction import Request
from llmproxy.sqlite_file import FileState, connect, peek

log = logging.getLogger(__name__)


def _rows(path: Path, sql: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
    """Query a journal without making or changing it; an absent or unreadable one holds nothing."""
    try:
        if peek(path) is not FileState.ROLLBACK:
            return []
        with closing(connect(path, "mode=ro", timeout=BUSY_SECONDS)) as conn:
            return conn.execute(sql, values).fetchall()
    except (OSError, sqlite3.Error):
        log.debug("journal.read.failed", exc_info=True)
        return []


def _make_rows[T](rows: Iterable[Sequence[Any]], make: Callable[..., T]) -> Iterator[T]:
    """Yield what rows make; one with a value that is none of its column's is left out, as an unreadable file is."""
    for row in rows:
        try:
            yield make(*row)
        except (TypeError, ValueError, AttributeError, OverflowError, RecursionError, zlib.error):
            log.debug("journal.row.failed", exc_info=True)


def _read_miss(at: Any, text: Any, data: Any) -> Missed:  # noqa: ANN401 - what a file holds
    tree = json.loads(data)
    if not isinstance(tree, dict):
        raise TypeError(f"a miss is {type(tree).__name__}")
    return Missed(_moment(at), from_sql(text), tree)


def _moment(at: Any) -> float:  # noqa: ANN401 - as above
    """Return a Unix time of this era. Raises TypeError, ValueError."""
    if not 0 <= float(at) < _LATEST:
        raise ValueError(f"{at!r:.60} is no time")
    return float(at)


_LATEST = 253_402_300_800
"""Unix seconds at which there are no years any more."""


def read_misses(path: Path, limit: int) -> list[Missed]:
    """Return the last misses of the journal at `path`, oldest first."""
    found = _rows(path, "SELECT at, text, data FROM misses ORDER BY id DESC LIMIT ?", (limit,))
    return list(_make_rows(reversed(found), _read_miss))


class FaultedCall(NamedTuple):
    """A call of the last run that met an injected fault."""

    at: float
    """Unix time."""
    session: str
    provider: str
    operation: str
    model: str
    note: str
    """Which fault, and of which rule."""
    status: int


def read_injected(path: Path, limit: int) -> list[FaultedCall]:
    """Return the last calls of the journal's last run that met injected faults, oldest first."""
    sql = (
        "SELECT at, status, session, provider, operation, model, note FROM decisions"
        " WHERE run = (SELECT max(id) FROM runs) AND fault IS NOT NULL ORDER BY id DESC LIMIT ?"
    )
    return list(_make_rows(reversed(_rows(path, sql, (limit,))), _meets_fault))


def _meets_fault(at: Any, status: Any, *texts: Any) -> FaultedCall:  # noqa: ANN401 - what a file holds
    session, provider, operation, model, note = (from_sql(text or "") for text in texts)
    return FaultedCall(_moment(at), session, provider, operation, model, note, index(status))


def read_served(path: Path) -> frozenset[int] | None:
    """Return the interactions that the last run of the journal served or recorded; None if it knows of no run."""
    last = "SELECT max(run) FROM decisions"
    if not (found := _rows(path, last, ())) or found[0][0] is None:
        return None
    sql = "SELECT DISTINCT interaction FROM decisions WHERE run = ? AND interaction IS NOT NULL"
    return frozenset(row[0] for row in _rows(path, sql, found[0]))


def read_asked(path: Path) -> list[tuple[int, Request, bool]]:
    """Return the questions of the last run that recordings answered.

    Interaction, request, and whether its body is the recorded one's.
    """
    last = "(SELECT max(id) FROM runs)"
    what = "SELECT interaction, method, target, headers, body FROM asked"
    sql = f"{what} WHERE run = {last} ORDER BY id"
    return list(_make_rows(_rows(path, sql, ()), _question))


def _question(*row: Any) -> tuple[int, Request, bool]:  # noqa: ANN401 - what a file holds
    id_, method, target, headers, body = row
    fields = tuple((name + "", value + "") for name, value in json.loads(headers))
    content = b"" if body is None else zlib.decompress(body)
    return index(id_), Request(from_sql(method), from_sql(target), fields, content), body is None
