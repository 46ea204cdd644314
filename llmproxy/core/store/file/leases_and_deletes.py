"""Changes of a store in a file that are one transaction: leases of cassettes, deletion and renaming."""

from __future__ import annotations

import hashlib
import os
import platform
import sqlite3
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from llmproxy.advice import format_llmproxy_command, quote_word
from llmproxy.core.store.bodies import DeltaBaseBody, compress_body_for_storage, load_stored_body
from llmproxy.core.store.row_conversion import Sql
from llmproxy.errors import CassetteBusy, LeaseLost, SettingsError
from llmproxy.protocol import append_sample_number_to_name

LEASE_SECONDS = 15.0

_ENSURE = "INSERT INTO cassettes (name, sample, created_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
_TAKE = """
UPDATE cassettes SET holder = ?, pid = ?, host = ?, heartbeat = ?, closed_cleanly = 0
"""
_ANEW = ", latest_from = (SELECT coalesce(max(seq), 0) + 1 FROM sqlite_sequence WHERE name = 'interactions')"
_WHERE = " WHERE name = ? AND sample = ?"


def is_process_alive(pid: int) -> bool:
    """Return whether a process with this id runs on this machine; if that cannot be checked, True."""
    if os.name == "nt":  # signal 0 would end the process there
        return True
    try:
        os.kill(pid, 0)
    except (OSError, OverflowError) as error:
        return not isinstance(error, ProcessLookupError)
    return True


@lru_cache(1)
def identify_this_machine() -> str:
    """Return this machine's name and, on Linux, a mark of its set of process ids: containers may share a name."""
    with suppress(OSError):
        mark = Path("/proc/sys/kernel/random/boot_id").read_text() + str(Path("/proc/self/ns/pid").readlink())
        return f"{platform.node()}/{hashlib.sha256(mark.encode()).hexdigest()[:8]}"
    return platform.node()


def get_own_pid_and_machine() -> tuple[int, str]:
    return os.getpid(), identify_this_machine()


def ensure_cassette_row_exists(conn: sqlite3.Connection, name: str | bytes, sample: int, now: float) -> None:
    conn.execute(_ENSURE, (name, sample, now))


def replace_volatile_field_rows(conn: sqlite3.Connection, name: str | bytes, texts: Iterable[Sql]) -> None:
    conn.execute("DELETE FROM volatile_fields WHERE cassette = ?", (name,))
    conn.executemany("INSERT INTO volatile_fields VALUES (?, ?, ?)", [(name, n, each) for n, each in enumerate(texts)])


def is_lease_live(pid: int, host: str, age: float | None) -> bool:
    """Return whether a lease counts: it was renewed `age` seconds ago, and its process is not known to be dead."""
    return age is not None and age < LEASE_SECONDS and (host != identify_this_machine() or is_process_alive(pid))


def refuse_if_leased_by_other(
    holder: str, row: Sequence[Any], age: float | None, name: str | bytes, sample: int
) -> None:
    """Raise CassetteBusy if another process (`row`: holder, process, host) renewed its lease `age` seconds ago."""
    other, pid, host = row
    ours = (other, pid, host) == (holder, *get_own_pid_and_machine())
    if other is not None and not ours and is_lease_live(pid, host, age):
        shown = name if isinstance(name, str) else repr(name)
        raise CassetteBusy(
            f"Cassette {append_sample_number_to_name(shown, sample)!r} is being recorded by {other} (process {pid} on "
            f"{host}, last seen {max(age or 0, 0):.0f} s ago).",
            hint="End that session first, or record under another --cassette.",
        )


def build_lease_lost_error(holder: str | None, cassette: str) -> LeaseLost:
    by = holder or "another session"
    return LeaseLost(f"Cassette {cassette} was taken over by {by}: our lease ran out while nothing was written.")


def take_lease(
    conn: sqlite3.Connection, name: str | bytes, sample: int, holder: str, now: float, *, anew: bool = True
) -> None:
    """Take the lease, mark the cassette as open; `anew`: it is recorded anew. Raises CassetteBusy naming the holder."""
    ensure_cassette_row_exists(conn, name, sample, now)
    row = conn.execute(
        "SELECT holder, pid, host, heartbeat FROM cassettes WHERE name = ? AND sample = ?", (name, sample)
    ).fetchone()
    refuse_if_leased_by_other(holder, row[:3], None if row[3] is None else now - row[3], name, sample)
    conn.execute(_TAKE + (_ANEW if anew else "") + _WHERE, (holder, *get_own_pid_and_machine(), now, name, sample))


def release_lease(conn: sqlite3.Connection, name: str | bytes, sample: int, holder: str, *, clean: bool) -> None:
    conn.execute(
        "UPDATE cassettes SET holder = NULL, pid = NULL, host = NULL, heartbeat = NULL"
        " WHERE name = ? AND sample = ? AND holder = ? AND pid = ? AND host = ?",
        (name, sample, holder, *get_own_pid_and_machine()),
    )
    if clean:
        # While another session records it anew, only the end of that one makes it complete.
        conn.execute(
            "UPDATE cassettes SET closed_cleanly = 1 WHERE name = ? AND sample = ? AND holder IS NULL", (name, sample)
        )


_DEAD = """
SELECT b.id FROM bodies AS b WHERE NOT EXISTS (SELECT 1 FROM interactions WHERE request_body = b.id)
    AND NOT EXISTS (SELECT 1 FROM interactions WHERE response_body = b.id) ORDER BY b.id DESC
"""
_UPDATE = "UPDATE bodies SET encoding = ?, base_id = ?, prefix = ?, suffix = ?, depth = ?, data = ? WHERE id = ?"


def delete_interactions(conn: sqlite3.Connection, ids: Collection[int]) -> tuple[int, int]:
    # All at once: `superseded_by` has no index, and a million single scans take a day.
    conn.execute("CREATE TEMP TABLE IF NOT EXISTS going (id INTEGER PRIMARY KEY)")
    conn.execute("DELETE FROM going")
    conn.executemany("INSERT OR IGNORE INTO going VALUES (?)", ((id_,) for id_ in ids))
    conn.execute(
        "UPDATE interactions SET superseded_by = NULL WHERE superseded_at IS NOT NULL AND superseded_by IN going"
    )
    deleted = conn.execute("DELETE FROM interactions WHERE id IN going").rowcount
    bodies = delete_unused_bodies(conn)
    conn.execute("DELETE FROM cassettes WHERE holder IS NULL AND NOT EXISTS (SELECT 1 FROM interactions"
                 " WHERE cassette = cassettes.name AND interactions.sample = cassettes.sample)")  # fmt: skip
    conn.execute("DELETE FROM forks WHERE NOT EXISTS (SELECT 1 FROM cassettes"
                 " WHERE name = forks.cassette AND cassettes.sample = forks.sample)")  # fmt: skip
    return deleted, bodies


def check_new_cassette_name(path: Path, old: str, new: str, found: Iterable[Sequence[Any]]) -> None:
    """Raise SettingsError if a new name is taken, CassetteBusy if the cassette of the old one is being recorded.

    `found`: of each sample of both, whether it is the new name's, its number, and its lease's holder, pid, host, age.
    """
    if old == new:
        raise SettingsError(f"{old} has this name already.")
    for is_taken, sample, *row, age in found:
        if is_taken:
            raise SettingsError(
                f"there is a cassette {new} already.",
                hint=f"Another name, or: {format_llmproxy_command(f'rm {quote_word(new)}', path)}",
            )
        refuse_if_leased_by_other("", row, age, old, sample)


def delete_unused_bodies(conn: sqlite3.Connection) -> int:
    """Delete unused bodies, newest first; a delta on one is encoded anew on that one's base."""
    dead = [row[0] for row in conn.execute(_DEAD)]
    for id_ in dead:
        base_id, depth = conn.execute("SELECT base_id, depth FROM bodies WHERE id = ?", (id_,)).fetchone()
        children = [row[0] for row in conn.execute("SELECT id FROM bodies WHERE base_id = ?", (id_,))]
        if children:
            bases = () if base_id is None else (DeltaBaseBody(base_id, depth - 1, load_stored_body(conn, base_id)),)
            for child in children:
                new = compress_body_for_storage(load_stored_body(conn, child), bases)
                conn.execute(_UPDATE, (new.encoding, new.base_id, new.prefix, new.suffix, new.depth, new.data, child))
        conn.execute("DELETE FROM bodies WHERE id = ?", (id_,))
    return len(dead)
