"""Who records a cassette now, on a server: as `file.leases`, but by the server's clock, since machines' clocks differ."""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING

from llmproxy.core.store.file.leases import LEASE_SECONDS, alive
from llmproxy.errors import CassetteBusy

if TYPE_CHECKING:
    from llmproxy.core.store.server.link import Conn

Place = tuple[str, int]
"""Cassette, as its column has it, and sample."""

_ENSURE = """
INSERT INTO llmproxy.cassettes (name, sample, created_at, epoch)
VALUES (%s, %s, %s, floor(random() * 4611686018427387904)::bigint) ON CONFLICT DO NOTHING
"""
_LOCK = """
SELECT holder, pid, host, extract(epoch FROM clock_timestamp() - heartbeat)::float8 FROM llmproxy.cassettes
WHERE name = %s AND sample = %s FOR UPDATE
"""
_TAKE = """
UPDATE llmproxy.cassettes SET holder = %s, pid = %s, host = %s, heartbeat = clock_timestamp(), closed_cleanly = 0, version = version + 1
"""
_ANEW = """, latest_from = (SELECT coalesce(max(id), 0) + 1 FROM llmproxy.interactions AS i
    WHERE i.cassette = cassettes.name AND i.sample = cassettes.sample)"""
_OURS = " WHERE name = %s AND sample = %s AND holder = %s AND pid = %s AND host = %s"


def ensure(conn: Conn, place: Place, now: float) -> None:
    """Make the cassette's row if there is none."""
    conn.execute(_ENSURE, (*place, now))


def take(conn: Conn, place: Place, holder: str, now: float, *, anew: bool) -> None:
    """Take the lease; `anew`: what comes is another recording of the cassette. Raises CassetteBusy naming who holds it."""
    with conn.transaction():
        ensure(conn, place, now)
        other, pid, host, age = conn.execute(_LOCK, place).fetchall()[0]
        ours = other == holder and pid == os.getpid() and host == platform.node()
        fresh = age is not None and age < LEASE_SECONDS
        if other is not None and not ours and fresh and (host != platform.node() or alive(pid)):
            session = place[0] if place[1] == 1 else f"{place[0]}~{place[1]}"
            raise CassetteBusy(
                f"Cassette {session!r} is being recorded by {other} (process {pid} on {host}, last seen {max(age, 0):.0f} s ago).",
                hint="End that session first, or record under another --cassette.",
            )
        sql = _TAKE + (_ANEW if anew else "") + " WHERE name = %s AND sample = %s"
        conn.execute(sql.encode(), (holder, os.getpid(), platform.node(), *place))


def renew(conn: Conn, place: Place, holder: str) -> bool:
    """Refresh the heartbeat; False if the lease is another's by now."""
    sql = f"UPDATE llmproxy.cassettes SET heartbeat = clock_timestamp(){_OURS}"  # noqa: S608 - constants
    return conn.execute(sql.encode(), (*place, holder, os.getpid(), platform.node())).rowcount > 0


def give_up(conn: Conn, place: Place, holder: str, *, clean: bool) -> None:
    """Return the lease if it is ours, and note whether the session came to its proper end."""
    sql = f"UPDATE llmproxy.cassettes SET holder = NULL, pid = NULL, host = NULL, heartbeat = NULL, version = version + 1{_OURS}"  # noqa: S608 - only names of ours stand in the text
    conn.execute(sql.encode(), (*place, holder, os.getpid(), platform.node()))
    if clean:
        conn.execute(
            "UPDATE llmproxy.cassettes SET closed_cleanly = 1, version = version + 1"
            " WHERE name = %s AND sample = %s AND holder IS NULL",
            place,
        )
