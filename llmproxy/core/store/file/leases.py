"""Who records a cassette now: a lease in its row of `cassettes`, so that two recorders cannot mix.

A lease is live while its heartbeat is younger than `LEASE_SECONDS` and, on this machine, its process exists; any other
is stale and taken over. These functions run inside the caller's transaction and know no clock but `now`.
"""

from __future__ import annotations

import os
import platform
import sqlite3

from llmproxy.errors import CassetteBusy

LEASE_SECONDS = 15.0

_ENSURE = "INSERT INTO cassettes (name, sample, created_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
_TAKE = """
UPDATE cassettes SET holder = ?, pid = ?, host = ?, heartbeat = ?, closed_cleanly = 0
"""
_ANEW = ", latest_from = (SELECT coalesce(max(seq), 0) + 1 FROM sqlite_sequence WHERE name = 'interactions')"
_WHERE = " WHERE name = ? AND sample = ?"


def alive(pid: int) -> bool:
    """Tell whether a process of this number runs on this machine; where that cannot be asked, yes."""
    if os.name == "nt":  # signal 0 would end the process there
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def ensure(conn: sqlite3.Connection, name: str | bytes, sample: int, now: float) -> None:
    """Make the cassette's row if there is none."""
    conn.execute(_ENSURE, (name, sample, now))


def take(
    conn: sqlite3.Connection, name: str | bytes, sample: int, holder: str, now: float, *, anew: bool = True
) -> None:
    """Take the lease and mark the cassette as open; `anew`: what comes is another recording of it. Raises CassetteBusy naming who holds it."""
    ensure(conn, name, sample, now)
    row = conn.execute(
        "SELECT holder, pid, host, heartbeat FROM cassettes WHERE name = ? AND sample = ?", (name, sample)
    ).fetchone()
    other, pid, host, heartbeat = row
    ours = other == holder and pid == os.getpid() and host == platform.node()
    fresh = heartbeat is not None and now - heartbeat < LEASE_SECONDS
    if other is not None and not ours and fresh and (host != platform.node() or alive(pid)):
        shown = name if isinstance(name, str) else repr(name)
        session = shown if sample == 1 else f"{shown}~{sample}"
        raise CassetteBusy(
            f"Cassette {session!r} is being recorded by {other} (process {pid} on {host}, last seen "
            f"{max(now - heartbeat, 0):.0f} s ago).",
            hint="End that session first, or record under another --cassette.",
        )
    conn.execute(_TAKE + (_ANEW if anew else "") + _WHERE, (holder, os.getpid(), platform.node(), now, name, sample))


def renew(conn: sqlite3.Connection, name: str | bytes, sample: int, holder: str, now: float) -> bool:
    """Refresh the heartbeat; False if the lease is another's by now."""
    cursor = conn.execute(
        "UPDATE cassettes SET heartbeat = ? WHERE name = ? AND sample = ? AND holder = ? AND pid = ? AND host = ?",
        (now, name, sample, holder, os.getpid(), platform.node()),
    )
    return cursor.rowcount > 0


def give_up(conn: sqlite3.Connection, name: str | bytes, sample: int, holder: str, *, clean: bool) -> None:
    """Return the lease if it is ours, and note whether the session came to its proper end."""
    conn.execute(
        "UPDATE cassettes SET holder = NULL, pid = NULL, host = NULL, heartbeat = NULL"
        " WHERE name = ? AND sample = ? AND holder = ? AND pid = ? AND host = ?",
        (name, sample, holder, os.getpid(), platform.node()),
    )
    if clean:
        # While somebody else records it anew, only their end says that it is complete.
        conn.execute(
            "UPDATE cassettes SET closed_cleanly = 1 WHERE name = ? AND sample = ? AND holder IS NULL", (name, sample)
        )
