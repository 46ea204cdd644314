"""The page's queries, one function each over an open store: contents of a recording, in windows, as plain JSON values.

An invalid query is refused with the valid values. `data/openapi.json` describes each under ``/_llmproxy/ui/data/``, and
a test checks it against QUESTIONS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from llmproxy.core.forks.fork_rows import list_forks
from llmproxy.core.sessions.session import canonical_name
from llmproxy.core.store.reader import Readable
from llmproxy.core.store.rows import SELECT_SUMMARY, RowSummary, to_sql, to_summary
from llmproxy.core.traffic.interaction import Interaction
from llmproxy.errors import CassetteNotFound, RefusedError
from llmproxy.protocol import AGENT
from llmproxy.server_store_copies import find_server_of_copy, show_store
from llmproxy.ui import call_list
from llmproxy.ui.call_list import CallFilter
from llmproxy.ui.calls import ExchangeLinker, attach_results, body_to_json, call_to_json, summarize_recorded_steps

Json = Any
Query = Mapping[str, str]

MAX_RUN_CALLS = 200
MAX_RUN_BYTES = 24 << 20
BEFORE, AFTER = 24, 12
"""Calls before and after one that are read for repeated content, and for the results of its tools."""
AROUND_BYTES = 6 << 20


class BadQuestion(RefusedError):
    code = "llmproxy_question"
    status = 400


class NoSuchQuestion(RefusedError):
    code = "llmproxy_not_found"
    status = 404


def answer_question(store: Readable, question: str, query: Query) -> Json:
    """Answer a query of the page. Raises BadQuestion, NoSuchQuestion, CassetteError."""
    if question not in QUESTIONS:
        raise NoSuchQuestion(f"llmproxy: the page has no question {question[:60]!r}.", hint=", ".join(QUESTIONS))
    return QUESTIONS[question](store, query)


def read_int(query: Query, name: str, default: int | None, most: int) -> int:
    text = query.get(name, "")
    if not text and default is not None:
        return default
    if not (text.isascii() and text.isdecimal()) or len(text) > len(str(most)) or int(text) > most:
        raise BadQuestion(f"llmproxy: {name} is {text[:20]!r}; it can be 0 to {most}.")
    return int(text)


def read_call_filter(query: Query) -> CallFilter:
    if "cassette" not in query:
        raise BadQuestion("llmproxy: say which cassette: ?cassette=NAME.")
    sample = read_int(query, "sample", 1, 999_999)
    find, model = (query.get(name, "")[:200] for name in ("find", "model"))
    words = query.get("ids", "").split(",")[:MAX_RUN_CALLS]
    ids = tuple(read_int({"ids": each}, "ids", None, 1 << 62) for each in words if each)
    return CallFilter(query["cassette"], sample, find, query.get("failed") == "1", model, ids)


# --- the questions ---------------------------------------------------------------------------------------------------


def answer_cassettes(store: Readable, _query: Query) -> Json:
    children, sums = list_fork_origins(store), call_list.summarize_cassettes(store)
    return {
        "store": store.path.name if find_server_of_copy(store.path) is None else show_store(store.path),
        "cassettes": [
            {
                **asdict(info),
                **children.get((info.name, info.sample), NO_CHILD),
                **sums[info.name, info.sample],
                "asked": call_list.read_first_prompt_of_cassette(store, info) if n < TOLD else "",
            }
            for n, info in enumerate(each for each in store.cassettes() if each.live)
        ],
    }


TOLD = 500
"""Maximum recordings with their first prompt: each needs a lookup in the store."""
NO_CHILD = {"fork": None, "parent": None}


def list_fork_origins(store: Readable) -> dict[tuple[str, int], dict[str, str]]:
    return {
        (each.cassette, each.sample): {
            "fork": each.describe_origin(),
            "parent": canonical_name(f"{each.parent}~{each.parent_sample}"),
        }
        for each in list_forks(store)
    }


def answer_calls(store: Readable, query: Query) -> Json:
    """Return a window of a recording's calls; ``sums=1`` adds totals and the timeline."""
    which = read_call_filter(query)
    offset, limit = read_int(query, "offset", 0, 10**9), read_int(query, "limit", 200, call_list.MOST)
    found: dict[str, Json] = {"offset": offset, "rows": call_list.read_row_window(store, which, offset, limit)}
    if query.get("sums") == "1":
        found |= {"sums": call_list.sum_calls(store, which), "strip": call_list.list_timeline_marks(store, which)}
    return found


def answer_call_place(store: Readable, query: Query) -> Json:
    """Return a call's position in its recording's list, and its name in every store with the same cassettes."""
    row = _load_row_summary(store, read_int(query, "id", None, 1 << 62))
    which = replace(read_call_filter({**query, "cassette": row.cassette}), sample=row.sample)
    return {
        "cassette": row.cassette,
        "sample": row.sample,
        "place": call_list.count_rows_before(store, which, row.started_at, row.id),
        "recording": f"{row.key}#{row.occurrence}",
    }


def answer_steps(store: Readable, query: Query) -> Json:
    which = read_call_filter(query)
    listed = call_list.read_row_window(store, which, 0, call_list.MOST)
    rows = [row for row in listed if row["party"] == AGENT] or listed  # without simulators and judges
    read = list(take_until_byte_limit((store.load(row["id"]) for row in rows[:MAX_RUN_CALLS]), MAX_RUN_BYTES))
    return {"steps": summarize_recorded_steps(read), "calls": len(read), "of": call_list.count_calls(store, which)}


def answer_call(store: Readable, query: Query) -> Json:
    """Return one call with its new content among its neighbours, and its tools' results."""
    id_ = read_int(query, "id", None, 1 << 62)
    row = _load_row_summary(store, id_)
    reader = ExchangeLinker()
    for earlier in reversed(list(_load_neighbours(store, row, BEFORE, later=False))):
        reader.read(earlier)
    found = {id_: call_to_json(reader.read(store.load(id_)))}
    for later in _load_neighbours(store, row, AFTER, later=True):
        attach_results(found, reader.read(later).results)
    return found[id_]


def answer_bodies(store: Readable, query: Query) -> Json:
    """Return both bodies of a call, byte for byte: text, or base64."""
    found = store.load(read_int(query, "id", None, 1 << 62))
    return {"request": body_to_json(found.request.body), "response": body_to_json(found.response.body)}


QUESTIONS: Mapping[str, Callable[[Readable, Query], Json]] = {
    "cassettes": answer_cassettes,
    "calls": answer_calls,
    "place": answer_call_place,
    "steps": answer_steps,
    "call": answer_call,
    "bodies": answer_bodies,
}


# --- what they share -------------------------------------------------------------------------------------------------


def take_until_byte_limit(found: Iterable[Interaction], most: int) -> Iterator[Interaction]:
    """Yield interactions until their bodies exceed the limit; always the first."""
    left = most
    for each in found:
        yield each
        left -= count_body_bytes(each)
        if left <= 0:
            return


def count_body_bytes(interaction: Interaction) -> int:
    return len(interaction.request.body) + sum(len(chunk.data) for chunk in interaction.response.chunks)


def _load_row_summary(store: Readable, id_: int) -> RowSummary:
    found = store.query(f"{SELECT_SUMMARY} WHERE id = ?", (id_,))
    if not found:
        raise CassetteNotFound(
            f"There is no interaction {id_} in {store.path.name}.", hint="It may have been replaced."
        )
    return to_summary(found[0])


def _load_neighbours(store: Readable, row: RowSummary, count: int, *, later: bool) -> Iterator[Interaction]:
    """Yield the calls of the same party before or after one, nearest first, within the byte limit."""
    sign, order = (">", "ASC") if later else ("<", "DESC")
    sql = (
        "SELECT id FROM interactions WHERE cassette = ? AND sample = ? AND superseded_at IS NULL AND party = ? AND "
        f"(started_at, id) {sign} (?, ?) ORDER BY started_at {order}, id {order} LIMIT ?"
    )
    place = (to_sql(row.cassette), row.sample, to_sql(row.party), row.started_at, row.id)
    found = store.query(sql, (*place, count))
    yield from take_until_byte_limit((store.load(id_) for (id_,) in found), AROUND_BYTES)
