"""The page's queries, one function each over an open store: contents of a recording as plain JSON values.

A recording may hold a hundred thousand calls: lists are windows of light rows, from indexed columns without bodies. An
invalid query is refused with the valid values. `data/openapi.json` describes each under ``/_llmproxy/ui/data/``, and a
test checks it against QUESTIONS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from llmproxy.core.forks.fork_rows import list_all_forks_in_store
from llmproxy.core.sessions.session import remove_redundant_sample_suffix
from llmproxy.core.store.reader import CassetteInfo, StoreReader
from llmproxy.core.store.row_conversion import (
    SELECT_SUMMARY,
    StoredCallSummary,
    build_call_summary_from_row,
    decode_sql_text,
    to_sql,
)
from llmproxy.core.traffic.interaction import Interaction
from llmproxy.errors import CassetteNotFound, RefusedError
from llmproxy.postgres_store_paths import find_postgres_of_local_copy, format_store_location
from llmproxy.protocol import AGENT
from llmproxy.ui.calls import (
    ExchangeLinker,
    attach_tool_results_to_calls,
    build_step_list_of_run,
    call_to_json,
    encode_body_for_json,
)

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


def read_window_of_call_rows(store: StoreReader, wanted: CallFilter, offset: int, limit: int) -> list[dict[str, Any]]:
    where, values = wanted.to_sql()
    sql = f"{SELECT_SUMMARY} WHERE {where} ORDER BY started_at, id LIMIT ? OFFSET ?"
    return [
        convert_call_summary_to_json(build_call_summary_from_row(row))
        for row in store.query(sql, (*values, min(limit, MOST), offset))
    ]


def read_first_prompt_of_cassette(store: StoreReader, info: CassetteInfo) -> str:
    where, values = CallFilter(info.name, info.sample).to_sql()
    first = f"SELECT last_user_text FROM interactions WHERE {where} ORDER BY started_at, id LIMIT 1"
    found = store.query(first, values)
    return decode_sql_text(found[0][0] or "")[:USER] if found else ""


def compute_totals_of_filtered_calls(store: StoreReader, wanted: CallFilter) -> dict[str, Any]:
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


def summarize_cassettes(store: StoreReader) -> dict[tuple[str, int], dict[str, Any]]:
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


def list_calls_for_timeline(store: StoreReader, wanted: CallFilter) -> list[list[Any]]:
    """Return each call's mark: id, Unix time, ms, ms to first byte, failed?, party, model; empty if too many."""
    where, values = wanted.to_sql()
    sql = (
        "SELECT id, started_at, duration_ms, first_byte_ms, status >= 400 OR ending <> 'complete', party, "
        f"coalesce(model, operation) FROM interactions WHERE {where} ORDER BY started_at, id LIMIT ?"
    )
    found = [[*row[:5], *map(decode_sql_text, row[5:])] for row in store.query(sql, (*values, DRAWN + 1))]
    return found if len(found) <= DRAWN else []


def count_calls_before_in_list(store: StoreReader, wanted: CallFilter, started_at: float, id_: int) -> int:
    where, values = wanted.to_sql()
    sql = f"SELECT count(*) FROM interactions WHERE {where} AND (started_at, id) < (?, ?)"
    return int(store.query(sql, (*values, started_at, id_))[0][0])


def convert_call_summary_to_json(row: StoredCallSummary) -> dict[str, Any]:
    return {
        "id": row.id, "party": row.party, "provider": row.provider, "operation": row.operation,
        "channel": row.channel.value, "model": row.model, "stream": row.stream, "status": row.status,
        "ending": row.ending.value, "at": row.started_at, "first": row.first_byte_ms, "ms": row.duration_ms,
        "in": row.tokens_in, "out": row.tokens_out, "cost": row.cost_usd, "occurrence": row.occurrence,
        "asked": (row.last_user_text or "")[:USER], "answered": (row.answer_text or "")[:ANSWER],
    }  # fmt: skip


Json = Any
Query = Mapping[str, str]

MAX_RUN_CALLS = 200
MAX_RUN_BYTES = 24 << 20
BEFORE, AFTER = 24, 12
"""Calls before and after one that are read for repeated content, and for the results of its tools."""
AROUND_BYTES = 6 << 20


class InvalidViewerQuery(RefusedError):
    code = "llmproxy_question"
    status = 400


class UnknownViewerQueryError(RefusedError):
    code = "llmproxy_not_found"
    status = 404


def answer_viewer_query(store: StoreReader, question: str, query: Query) -> Json:
    """Answer a query of the page. Raises InvalidViewerQuery, UnknownViewerQueryError, CassetteError."""
    if question not in QUESTIONS:
        raise UnknownViewerQueryError(
            f"llmproxy: the page has no question {question[:60]!r}.", hint=", ".join(QUESTIONS)
        )
    return QUESTIONS[question](store, query)


def read_query_integer(query: Query, name: str, default: int | None, most: int) -> int:
    """Return an integer parameter. Raises InvalidViewerQuery."""
    text = query.get(name, "")
    if not text and default is not None:
        return default
    if not (text.isascii() and text.isdecimal()) or len(text) > len(str(most)) or int(text) > most:
        raise InvalidViewerQuery(f"llmproxy: {name} is {text[:20]!r}; it can be 0 to {most}.")
    return int(text)


def parse_call_list_query(query: Query) -> CallFilter:
    if "cassette" not in query:
        raise InvalidViewerQuery("llmproxy: say which cassette: ?cassette=NAME.")
    sample = read_query_integer(query, "sample", 1, 999_999)
    find, model = (query.get(name, "")[:200] for name in ("find", "model"))
    words = query.get("ids", "").split(",")[:MAX_RUN_CALLS]
    ids = tuple(read_query_integer({"ids": each}, "ids", None, 1 << 62) for each in words if each)
    return CallFilter(query["cassette"], sample, find, query.get("failed") == "1", model, ids)


# --- the questions ---------------------------------------------------------------------------------------------------


def answer_cassette_list_query(store: StoreReader, _query: Query) -> Json:
    children, sums = list_fork_origins(store), summarize_cassettes(store)
    is_file = find_postgres_of_local_copy(store.path) is None
    return {
        "store": store.path.name if is_file else format_store_location(store.path),
        "cassettes": [
            {
                **asdict(info),
                **children.get((info.name, info.sample), NO_CHILD),
                **sums[info.name, info.sample],
                "asked": read_first_prompt_of_cassette(store, info) if n < TOLD else "",
            }
            for n, info in enumerate(each for each in store.cassettes() if each.live)
        ],
    }


TOLD = 500
"""Maximum recordings with their first prompt: each needs a lookup in the store."""
NO_CHILD = {"fork": None, "parent": None}


def list_fork_origins(store: StoreReader) -> dict[tuple[str, int], dict[str, str]]:
    found = {}
    for each in list_all_forks_in_store(store):
        parent = remove_redundant_sample_suffix(f"{each.parent}~{each.parent_sample}")
        found[each.cassette, each.sample] = {"fork": each.describe_origin(), "parent": parent}
    return found


def answer_call_list_query(store: StoreReader, query: Query) -> Json:
    """Return a window of a recording's calls; ``sums=1`` adds totals and the timeline."""
    which = parse_call_list_query(query)
    offset, limit = read_query_integer(query, "offset", 0, 10**9), read_query_integer(query, "limit", 200, MOST)
    found: dict[str, Json] = {"offset": offset, "rows": read_window_of_call_rows(store, which, offset, limit)}
    if query.get("sums") == "1":
        found |= {
            "sums": compute_totals_of_filtered_calls(store, which),
            "strip": list_calls_for_timeline(store, which),
        }
    return found


def answer_call_position_query(store: StoreReader, query: Query) -> Json:
    """Return a call's position in its recording's list, and its name in every store with the same cassettes."""
    row = _load_row_summary(store, read_query_integer(query, "id", None, 1 << 62))
    which = replace(parse_call_list_query({**query, "cassette": row.cassette}), sample=row.sample)
    place = count_calls_before_in_list(store, which, row.started_at, row.id)
    about = {"cassette": row.cassette, "sample": row.sample}
    return {**about, "place": place, "recording": f"{row.key}#{row.occurrence}"}


def answer_recorded_steps_query(store: StoreReader, query: Query) -> Json:
    which = parse_call_list_query(query)
    listed = read_window_of_call_rows(store, which, 0, MOST)
    rows = [row for row in listed if row["party"] == AGENT] or listed  # without simulators and judges
    read = list(
        take_interactions_until_byte_limit((store.load(row["id"]) for row in rows[:MAX_RUN_CALLS]), MAX_RUN_BYTES)
    )
    where, values = which.to_sql()
    ((count,),) = store.query(f"SELECT count(*) FROM interactions WHERE {where}", values)
    return {"steps": build_step_list_of_run(read), "calls": len(read), "of": int(count)}


def answer_call_detail_query(store: StoreReader, query: Query) -> Json:
    """Return one call with its new content among its neighbours, and its tools' results."""
    id_ = read_query_integer(query, "id", None, 1 << 62)
    row = _load_row_summary(store, id_)
    reader = ExchangeLinker()
    for earlier in reversed(list(_load_neighbours(store, row, BEFORE, later=False))):
        reader.read(earlier)
    found = {id_: call_to_json(reader.read(store.load(id_)))}
    for later in _load_neighbours(store, row, AFTER, later=True):
        attach_tool_results_to_calls(found, reader.read(later).results)
    return found[id_]


def answer_call_bodies_query(store: StoreReader, query: Query) -> Json:
    """Return both bodies of a call, byte for byte: text, or base64."""
    found = store.load(read_query_integer(query, "id", None, 1 << 62))
    return {"request": encode_body_for_json(found.request.body), "response": encode_body_for_json(found.response.body)}


QUESTIONS: Mapping[str, Callable[[StoreReader, Query], Json]] = {
    "cassettes": answer_cassette_list_query,
    "calls": answer_call_list_query,
    "place": answer_call_position_query,
    "steps": answer_recorded_steps_query,
    "call": answer_call_detail_query,
    "bodies": answer_call_bodies_query,
}


# --- what they share -------------------------------------------------------------------------------------------------


def take_interactions_until_byte_limit(found: Iterable[Interaction], most: int) -> Iterator[Interaction]:
    """Yield interactions until their bodies exceed the limit; always the first."""
    left = most
    for each in found:
        yield each
        left -= count_interaction_bytes(each)
        if left <= 0:
            return


def count_interaction_bytes(interaction: Interaction) -> int:
    return len(interaction.request.body) + sum(len(chunk.data) for chunk in interaction.response.chunks)


def _load_row_summary(store: StoreReader, id_: int) -> StoredCallSummary:
    if not (found := store.query(f"{SELECT_SUMMARY} WHERE id = ?", (id_,))):
        text = f"There is no interaction {id_} in {store.path.name}."
        raise CassetteNotFound(text, hint="It may have been replaced.")
    return build_call_summary_from_row(found[0])


def _load_neighbours(store: StoreReader, row: StoredCallSummary, count: int, *, later: bool) -> Iterator[Interaction]:
    """Yield the calls of the same party before or after one, nearest first, within the byte limit."""
    sign, order = (">", "ASC") if later else ("<", "DESC")
    sql = (
        "SELECT id FROM interactions WHERE cassette = ? AND sample = ? AND superseded_at IS NULL AND party = ? AND "
        f"(started_at, id) {sign} (?, ?) ORDER BY started_at {order}, id {order} LIMIT ?"
    )
    place = (to_sql(row.cassette), row.sample, to_sql(row.party), row.started_at, row.id)
    found = store.query(sql, (*place, count))
    yield from take_interactions_until_byte_limit((store.load(id_) for (id_,) in found), AROUND_BYTES)
