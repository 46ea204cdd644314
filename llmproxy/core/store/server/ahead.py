"""One interaction in one way to the server and back: whoever sends it says what the copy knows, and the server takes it only if that is all.

A copy at a cassette's version and epoch has all of that cassette that the server has, so its free slot is the server's. The statement
counts the cassette only at that version, under the lock of its row, and everything else in it depends on that: where somebody else was
quicker nothing is stored, and the interaction goes the way on which the server is asked first.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from llmproxy.core.store.reading import SLOTS, RecordingSlot
from llmproxy.core.store.server.copying import Body
from llmproxy.core.store.server.texts import from_pg
from llmproxy.core.traffic.interaction import Ending, Key

if TYPE_CHECKING:
    from llmproxy.core.store.server.link import Conn

_COUNTED = """
counted AS (
    UPDATE llmproxy.cassettes SET recorded = recorded + 1, version = version + 1, closed_cleanly = 0
    WHERE name = $1 AND sample = $2 AND version = $3 AND epoch = $4 AND (holder IS NULL OR holder = coalesce($5, holder))
    RETURNING recorded, version, epoch
)"""
_ABOUT = 5
_VERSION = "SELECT version, epoch FROM server_copies WHERE cassette = ? AND sample = ?"


class KnownPlace(NamedTuple):
    """What the copy says of the place of an interaction."""

    version: int
    epoch: int
    live: tuple[RecordingSlot, ...]
    """Recordings of its key."""


class Taken(NamedTuple):
    """What the server says of an interaction that it took."""

    id: int
    recorded: int
    """How many were ever recorded in the cassette: its position."""
    version: int
    epoch: int


def known_of(local: sqlite3.Connection, place: tuple[str, int], party: str, key: Key) -> KnownPlace | None:
    """Return what the copy knows; None of a cassette that was never copied. `place` and `party` as columns on the server have them."""
    name, sample = from_pg(place[0]), place[1]
    at = local.execute(_VERSION, (name, sample)).fetchone()
    if at is None:
        return None
    found = local.execute(SLOTS, (name, sample, from_pg(party), key)).fetchall()
    return KnownPlace(
        at[0], at[1], tuple(RecordingSlot(id_, nth, status, Ending(how)) for id_, nth, status, how in found)
    )


def send(
    conn: Conn,
    place: tuple[str, int],
    known: KnownPlace,
    holder: str | None,
    bodies: Collection[Body],
    columns: Sequence[str],
    values: Sequence[Any],
) -> Taken | None:
    """Store one interaction, committed; None, and nothing stored, if the server is not where `known` says, or another than `holder` records there.

    `values` of `columns` beside `changed` and `position`, which the server gives.
    """
    from psycopg import RawCursor

    # It takes the server's own marks: to find and replace so many of the driver's took longer than all else here.
    about = (*place, known.version, known.epoch, holder)
    sent = (each for body in bodies for each in body)
    with RawCursor(conn) as cursor:
        cursor.execute(_statement(len(bodies), tuple(columns)), (*about, *sent, *values), prepare=True)
        found = cursor.fetchall()
    return Taken(*map(int, found[0])) if found else None


@cache
def _statement(bodies: int, columns: tuple[str, ...]) -> bytes:
    """Return the statement for so many bodies: each of its parts reads `counted`, which is empty where nothing may be stored."""
    fields, marks = ", ".join(Body._fields), (f"${n}" for n in itertools.count(_ABOUT + 1))
    parts = [_COUNTED]
    parts += [
        f"body{n} AS (INSERT INTO llmproxy.bodies ({fields}) SELECT {_some(marks, len(Body._fields))} FROM counted"  # noqa: S608 - constants
        " ON CONFLICT DO NOTHING)"
        for n in range(bodies)
    ]
    parts.append(
        f"taken AS (INSERT INTO llmproxy.interactions (changed, position, {', '.join(columns)})"  # noqa: S608 - constants
        f" SELECT version, recorded, {_some(marks, len(columns))} FROM counted RETURNING id)"
    )
    return f"WITH {', '.join(parts)} SELECT id, recorded, version, epoch FROM taken, counted".encode()  # noqa: S608 - constants


def _some(marks: Iterator[str], many: int) -> str:
    return ", ".join(itertools.islice(marks, many))
