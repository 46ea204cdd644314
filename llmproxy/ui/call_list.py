"""The list of a recording's calls: light rows from indexed columns, in windows, and totals.

A recording may hold a hundred thousand calls: nothing here reads a body.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llmproxy.core.store.reader import CassetteInfo, Readable
from llmproxy.core.store.rows import SELECT_SUMMARY, RowSummary, decode_sql_text, to_sql, to_summary

MOST = 1000
DRAWN = 3000
"""Maximum calls in the timeline; above, the list's own bars must do."""
USER, ANSWER = 240, 400
"""Characters of the prompt and of the answer in a row."""

_SUMS = """
SELECT count(*), sum(input_tokens), sum(output_tokens), sum(cost_usd), count(cost_usd), min(started_at),
    max(started_at + coalesce(duration_ms, 0) / 1000.0),
    sum(status >= 400 OR ending <> 'complete'), count(coalesce(input_tokens, output_tokens)), count(DISTINCT party)
FROM interactions WHERE {where}
"""
_MODELS = "SELECT DISTINCT model FROM interactions WHERE {where} AND model IS NOT NULL ORDER BY model"


@dataclass(frozen=True, slots=True)
class CallFilter:
    cassette: str
    sample: int = 1
    find: str = ""
    """A text in prompt, answer, model, operation, target or party; case-insensitive."""
    failed: bool = False
    """Whether to select calls without a complete successful answer."""
    model: str = ""
    ids: tuple[int, ...] = ()

    def to_sql(self) -> tuple[str, tuple[object, ...]]:
        parts: list[tuple[str, tuple[object, ...]]] = [
            ("cassette = ? AND sample = ? AND superseded_at IS NULL", (to_sql(self.cassette), self.sample))
        ]
        if self.failed:
            parts.append(("(status >= 400 OR ending <> 'complete')", ()))
        if self.model:
            parts.append(("model = ?", (to_sql(self.model),)))
        if self.ids:
            parts.append((f"id IN ({', '.join('?' * len(self.ids))})", self.ids))
        if self.find:
            columns = ("last_user_text", "answer_text", "model", "operation", "target", "party")
            pattern = f"%{self.find.replace('!', '!!').replace('%', '!%').replace('_', '!_')}%"
            like = " OR ".join(f"{name} LIKE ? ESCAPE '!'" for name in columns)
            parts.append((f"({like})", (pattern,) * len(columns)))
        return " AND ".join(sql for sql, _ in parts), tuple(value for _, values in parts for value in values)


def read_row_window(store: Readable, wanted: CallFilter, offset: int, limit: int) -> list[dict[str, Any]]:
    where, values = wanted.to_sql()
    sql = f"{SELECT_SUMMARY} WHERE {where} ORDER BY started_at, id LIMIT ? OFFSET ?"
    return [row_to_json(to_summary(row)) for row in store.query(sql, (*values, min(limit, MOST), offset))]


def read_first_prompt_of_cassette(store: Readable, info: CassetteInfo) -> str:
    where, values = CallFilter(info.name, info.sample).to_sql()
    first = f"SELECT last_user_text FROM interactions WHERE {where} ORDER BY started_at, id LIMIT 1"
    found = store.query(first, values)
    return decode_sql_text(found[0][0] or "")[:USER] if found else ""


def sum_calls(store: Readable, wanted: CallFilter) -> dict[str, Any]:
    """Return the totals of calls; None means unknown, never 0."""
    where, values = wanted.to_sql()
    ((calls, tokens_in, tokens_out, cost, priced, first, last, failed, counted, parties),) = store.query(
        _SUMS.format(where=where), values
    )
    models = [decode_sql_text(model) for (model,) in store.query(_MODELS.format(where=where), values)]
    return {
        "calls": calls, "in": tokens_in, "out": tokens_out, "cost": cost, "unpriced": counted - priced, "from": first,
        "to": last, "failed": failed or 0, "parties": parties, "models": models,
    }  # fmt: skip


def summarize_cassettes(store: Readable) -> dict[tuple[str, int], dict[str, Any]]:
    found: dict[tuple[str, int], dict[str, Any]] = {}
    sql = (
        "SELECT cassette, sample, model, sum(cost_usd), sum(status >= 400 OR ending <> 'complete')"
        " FROM interactions WHERE superseded_at IS NULL GROUP BY cassette, sample, model ORDER BY model"
    )
    for name, sample, model, cost, failed in store.query(sql):
        own = found.setdefault((decode_sql_text(name), sample), {"models": [], "cost": None, "failed": 0})
        own["models"] += [] if model is None else [decode_sql_text(model)]
        own["cost"] = own["cost"] if cost is None else cost + (own["cost"] or 0)
        own["failed"] += failed
    return found


def count_calls(store: Readable, wanted: CallFilter) -> int:
    where, values = wanted.to_sql()
    return int(store.query(f"SELECT count(*) FROM interactions WHERE {where}", values)[0][0])


def list_timeline_marks(store: Readable, wanted: CallFilter) -> list[list[Any]]:
    """Return each call's mark: id, Unix time, ms, ms to first byte, failed?, party, model; empty if too many."""
    where, values = wanted.to_sql()
    sql = (
        "SELECT id, started_at, duration_ms, first_byte_ms, status >= 400 OR ending <> 'complete', party, "
        f"coalesce(model, operation) FROM interactions WHERE {where} ORDER BY started_at, id LIMIT ?"
    )
    found = [[*row[:5], *map(decode_sql_text, row[5:])] for row in store.query(sql, (*values, DRAWN + 1))]
    return found if len(found) <= DRAWN else []


def count_rows_before(store: Readable, wanted: CallFilter, started_at: float, id_: int) -> int:
    where, values = wanted.to_sql()
    sql = f"SELECT count(*) FROM interactions WHERE {where} AND (started_at, id) < (?, ?)"
    return int(store.query(sql, (*values, started_at, id_))[0][0])


def row_to_json(row: RowSummary) -> dict[str, Any]:
    return {
        "id": row.id, "party": row.party, "provider": row.provider, "operation": row.operation,
        "channel": row.channel.value, "model": row.model, "stream": row.stream, "status": row.status,
        "ending": row.ending.value, "at": row.started_at, "first": row.first_byte_ms, "ms": row.duration_ms,
        "in": row.tokens_in, "out": row.tokens_out, "cost": row.cost_usd, "occurrence": row.occurrence,
        "asked": (row.last_user_text or "")[:USER], "answered": (row.answer_text or "")[:ANSWER],
    }  # fmt: skip
