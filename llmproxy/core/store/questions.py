"""Questions about a store that are asked rarely: for a miss, for a price, for the summary at the end.

What every request needs is in `store`; these are plain counts over the table `interactions`, one statement each.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection

from llmproxy.core.store.contents.rows import OF_CHANNEL, SELECT_SUMMARY, Row, RowSummary, from_sql, to_sql, to_summary
from llmproxy.core.store.file.connect import translate
from llmproxy.core.store.store import Store
from llmproxy.core.traffic.interaction import Key
from llmproxy.errors import CassetteNotFound
from llmproxy.protocol import Channel


def count(store: Store, cassette: str, sample: int, provider: str | None = None, operation: str | None = None) -> int:
    """Count the live recordings of a cassette and sample, of one operation where that is named."""
    where, values = "cassette = ? AND sample = ? AND superseded_at IS NULL", [to_sql(cassette), sample]
    if provider is not None and operation is not None:
        where, values = f"{where} AND provider = ? AND operation = ?", [*values, to_sql(provider), to_sql(operation)]
    return int(_one(store, f"SELECT count(*) FROM interactions WHERE {where}", values)[0])  # noqa: S608 - constants


def count_of(store: Store, cassette: str, sample: int, channel: Channel) -> int:
    """Count the live recordings of a cassette and sample that are of one channel."""
    where = f"cassette = ? AND sample = ? AND superseded_at IS NULL AND {OF_CHANNEL[channel]}"
    return int(_one(store, f"SELECT count(*) FROM interactions WHERE {where}", [to_sql(cassette), sample])[0])  # noqa: S608 - constants


def elsewhere(store: Store, key: Key, limit: int) -> list[tuple[str, int, str]]:
    """Return where else a key is recorded: (cassette, sample, party)."""
    sql = "SELECT DISTINCT cassette, sample, party FROM interactions WHERE key = ? AND superseded_at IS NULL LIMIT ?"
    return [(from_sql(name), sample, from_sql(party)) for name, sample, party in _all(store, sql, [key, limit])]


def summary(store: Store, interaction: int) -> RowSummary:
    """Return one row as `ls` shows it. Raises CassetteNotFound."""
    found = _all(store, f"{SELECT_SUMMARY} WHERE id = ?", [interaction])
    if not found:
        raise CassetteNotFound(f"There is no interaction {interaction} in {store.path}.")
    return to_summary(found[0])


def count_unused(
    store: Store, cassette: str, sample: int, served: Collection[int], without: Collection[Channel] = ()
) -> int:
    """Count the live recordings of a cassette and sample whose ids are not among `served`; those of channels `without` are left out."""
    sql = "SELECT id FROM interactions WHERE cassette = ? AND sample = ? AND superseded_at IS NULL"
    sql += "".join(f" AND NOT ({OF_CHANNEL[each]})" for each in sorted(without))
    return sum(id_ not in served for (id_,) in _all(store, sql, [to_sql(cassette), sample]))


def _all(store: Store, sql: str, values: list[str | int | bytes]) -> list[Row]:
    try:
        return store.conn.execute(sql, values).fetchall()
    except sqlite3.Error as error:
        raise translate(error, store.path, writing=False) from error


def _one(store: Store, sql: str, values: list[str | int | bytes]) -> Row:
    return _all(store, sql, values)[0]
