"""Conversion of an interaction to one row of table `interactions`, and back: lossless, and readable for people.

Texts that are not valid Unicode (a lone surrogate in a header or path) are stored as bytes in the same column.
"""

from __future__ import annotations

import json
import logging
import re
import sqlite3
from calendar import timegm
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from llmproxy.calls_and_totals import UnusedRecording
from llmproxy.core.providers.provider_table import MCP_PREFIX, get_call_channel, parse_user_agent_client
from llmproxy.core.store.bodies import DATA
from llmproxy.core.traffic.interaction import Ending, Headers, Interaction, Key, Request, Response, TimedChunks, Usage
from llmproxy.core.traffic.websocket_frames import extract_websocket_requests, is_websocket_body
from llmproxy.errors import CassetteCorrupt
from llmproxy.protocol import Channel

log = logging.getLogger(__name__)

LAST_USER_CHARACTERS = 400
ANSWER_CHARACTERS = 800
"""Maximum characters of the answer's text in the row, for display; the bodies contain everything."""

Sql = str | int | float | bytes | None
Row = tuple[Any, ...]  # one row from SQLite: the schema has the types, Python's driver does not

COLUMNS = (
    "cassette", "sample", "party", "key", "provider", "operation", "status", "ending", "model", "stream", "method",
    "target", "upstream", "reason", "started_at", "head_us", "first_byte_ms", "duration_ms", "chunked", "input_tokens",
    "output_tokens", "cached_tokens", "cache_written_tokens", "reasoning_tokens", "cost_usd", "redacted", "rules",
    "last_user_text", "answer_text", "request_headers", "response_headers", "chunks",
)  # fmt: skip
"""Columns of :func:`convert_interaction_to_row`, in order; the transaction adds position, occurrence and the bodies."""

_LOADED = (
    "id, cassette, sample, party, occurrence, key, provider, operation, model, stream, method, target, upstream,"
    " started_at, redacted, rules, input_tokens, output_tokens, cached_tokens, cache_written_tokens, reasoning_tokens,"
    " request_headers, request_body"
)
_ANSWERED = "id, status, reason, ending, head_us, chunked, response_headers, chunks"
LOADED = tuple(_LOADED.split(", "))
SELECT_INTERACTION = f"SELECT {_LOADED} FROM interactions WHERE id = ?"
PRICED = ("input_tokens", "output_tokens", "cost_usd", "model", "last_user_text", "answer_text")
SELECT_RESPONSE = (
    f"SELECT {', '.join('i.' + name for name in (*_ANSWERED.split(', '), *PRICED))}, b.base_id, b.sha256, b.id, "
    f"b.encoding, {DATA.format('b.')} FROM interactions AS i JOIN bodies AS b ON b.id = i.response_body WHERE i.id = ?"
)


@dataclass(frozen=True, slots=True)
class StoredCallSummary:
    """One interaction as `ls` shows it."""

    id: int
    cassette: str
    sample: int
    party: str
    position: int
    occurrence: int
    key: Key
    provider: str
    operation: str
    model: str | None
    stream: bool
    method: str
    target: str
    """Path and query as the provider sees them."""
    status: int
    ending: Ending
    started_at: float
    first_byte_ms: float | None
    duration_ms: float | None
    tokens_in: int | None
    tokens_out: int | None
    cost_usd: float | None
    redacted: bool
    superseded: bool
    last_user_text: str | None
    answer_text: str | None
    client: str
    """Client program with its version; empty if unknown."""
    recorded_at: float
    """Unix time of the answer: `started_at`, or the answer's own date if that is a day or more later, since it was
    requested again. 0: unknown."""

    @property
    def channel(self) -> Channel:
        return get_call_channel(self.provider, self.operation)

    def to_unused_json(self) -> dict[str, Any]:
        return asdict(UnusedRecording(self.id, self.operation, self.model, self.last_user_text))


SELECT_SUMMARY = (
    "SELECT id, cassette, sample, party, position, occurrence, key, provider, operation, model, stream, method, "
    "target, status, ending, started_at, first_byte_ms, duration_ms, input_tokens, output_tokens, cost_usd, redacted, "
    "superseded_at, last_user_text, answer_text, request_headers, response_headers FROM interactions"
)
OF_CHANNEL: dict[Channel, str] = {
    Channel.MCP: "operation LIKE 'mcp:%'",
    Channel.HTTP: "provider LIKE 'http:%' AND operation NOT LIKE 'mcp:%'",
    Channel.LLM: "provider NOT LIKE 'http:%' AND operation NOT LIKE 'mcp:%'",
}
"""`provider_table.get_call_channel` as a condition of SQL."""


def to_sql(text: str) -> str | bytes:
    """Return the column value of `text`: the text, or bytes if it is not valid UTF-8."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def decode_sql_text(value: str | bytes) -> str:
    """Undo :func:`to_sql`. Raises CassetteCorrupt if it is no text."""
    try:
        return value if isinstance(value, str) else value.decode("utf-8", "surrogatepass")
    except (AttributeError, UnicodeDecodeError) as error:
        raise CassetteCorrupt(f"What was recorded is damaged: {value!r:.60} stands where a text was.") from error


def _drop_huge_int(value: int | None) -> int | None:
    """Return a count, or None for one that SQLite cannot store (invented by a provider)."""
    return value if value is None or -(1 << 63) <= value < 1 << 63 else None


@lru_cache(64)
def _dump_headers(headers: Headers) -> str:
    return json.dumps(headers, separators=(",", ":"))


def decode_stored_headers_json(text: str) -> Headers:
    return tuple((name, value) for name, value in json.loads(text))


type Described = tuple[str | None, str | None, float | None]
"""Last user text, the answer's text, the cost."""


def extract_texts_and_cost(interaction: Interaction) -> Described:
    """Return the last user text, the answer's text (of an MCP call: arguments, result) and the cost. Never raises."""
    said = replied = cost = None
    try:
        operation, answer = interaction.operation, interaction.response
        if operation.startswith(MCP_PREFIX):
            from llmproxy.core.mcp_answer_replay import read_mcp_call_with_result

            if (call := read_mcp_call_with_result(interaction)) is None:
                return None, None, None
            return clip_text(call.arguments, LAST_USER_CHARACTERS), clip_text(call.result, ANSWER_CHARACTERS), None
        from llmproxy.core.dialects.conversation import parse_answer_body_as_message, read_last_user_text
        from llmproxy.core.dialects.stream_events import cut_streamed_body_to_megabyte
        from llmproxy.core.dialects.usage_and_cost import compute_cost

        bodies = (
            extract_websocket_requests(answer.body) if is_websocket_body(answer.headers) else [interaction.request.body]
        )
        last = next(filter(None, map(read_last_user_text, reversed(bodies))), None)
        said = None if last is None else clip_text(last, LAST_USER_CHARACTERS)
        kind = answer.mime_type
        message = parse_answer_body_as_message(operation, kind, cut_streamed_body_to_megabyte(kind, answer.body))
        if message is not None:
            calls = ", ".join(f"{call.name}({call.arguments})" for call in message.tool_calls)
            replied = clip_text(message.text or calls, ANSWER_CHARACTERS)
        price = compute_cost(interaction.provider, interaction.model, interaction.usage)
        cost = None if price is None else float(price)
    except Exception:  # these columns are for display; a recording must not fail because of them
        log.debug("describe.failed", exc_info=True)
    return said, replied, cost


def clip_text(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def convert_interaction_to_row(interaction: Interaction, described: Described | None = None) -> tuple[Sql, ...]:
    """Return the values of COLUMNS; `described`: result of `extract_texts_and_cost`, if known already."""
    i, request, response, usage = interaction, interaction.request, interaction.response, interaction.usage
    said, replied, cost = described or extract_texts_and_cost(interaction)
    chunks = response.chunks
    first, last = (chunks[0].offset, chunks[-1].offset) if chunks else (response.head_offset, response.head_offset)
    return (
        to_sql(i.cassette), i.sample, to_sql(i.party), i.key, to_sql(i.provider), to_sql(i.operation),
        response.status, response.ending.value, None if i.model is None else to_sql(i.model), i.stream,
        to_sql(request.method), to_sql(request.target), to_sql(i.upstream), to_sql(response.reason), i.started_at,
        response.head_offset, first / 1000, last / 1000, response.chunked,
        *map(_drop_huge_int, (usage.input, usage.output, usage.cached, usage.cache_written, usage.reasoning)),
        cost, i.redacted, to_sql(i.rules),
        None if said is None else to_sql(said), None if replied is None else to_sql(replied),
        _dump_headers(request.headers), _dump_headers(response.headers),
        json.dumps([(chunk.offset, len(chunk.data)) for chunk in chunks], separators=(",", ":")),
    )  # fmt: skip


def insert_id_and_variable_rows(
    conn: sqlite3.Connection, id_: int, name: str | bytes, sample: int, made_ids: Sequence[str], said: Sql
) -> None:
    made = [(id_, n, name, sample, to_sql(each)) for n, each in enumerate(made_ids)]
    conn.executemany("INSERT INTO made_ids VALUES (?, ?, ?, ?, ?)", made)
    if said:
        conn.execute("INSERT OR IGNORE INTO run_variables (said) VALUES (?)", (said,))
        conn.execute("INSERT INTO declared SELECT ?, id FROM run_variables WHERE said = ?", (id_, said))


def build_response_from_row(row: Row, body: bytes) -> Response:
    """Return the response of a SELECT_RESPONSE row. Raises ValueError if the chunks do not match `body`."""
    _, status, reason, ending, head_us, chunked, headers, borders = row[:8]
    chunks = TimedChunks(body, json.loads(borders))
    return Response(
        status=status, reason=decode_sql_text(reason), headers=decode_stored_headers_json(headers), chunks=chunks,
        ending=Ending(ending), head_offset=head_us, chunked=bool(chunked),
    )  # fmt: skip


def build_interaction_from_row(
    row: dict[str, Any], body: bytes, response: Response, made_ids: tuple[str, ...]
) -> Interaction:
    return Interaction(
        provider=decode_sql_text(row["provider"]), operation=decode_sql_text(row["operation"]), key=Key(row["key"]),
        request=Request(
            decode_sql_text(row["method"]), decode_sql_text(row["target"]),
            decode_stored_headers_json(row["request_headers"]), body,
        ),
        response=response, started_at=row["started_at"], cassette=decode_sql_text(row["cassette"]),
        sample=row["sample"], party=decode_sql_text(row["party"]), occurrence=row["occurrence"], id=row["id"],
        model=None if row["model"] is None else decode_sql_text(row["model"]),
        stream=bool(row["stream"]), upstream=decode_sql_text(row["upstream"]),
        usage=Usage(
            row["input_tokens"], row["output_tokens"], row["cached_tokens"], row["cache_written_tokens"],
            row["reasoning_tokens"],
        ),
        redacted=bool(row["redacted"]), rules=decode_sql_text(row["rules"]), made_ids=made_ids,
    )  # fmt: skip


_DATE = re.compile(r'\["date", ?"\w+, (\d\d?) (\w+) (\d{4}) (\d\d):(\d\d):(\d\d) GMT"\]', re.IGNORECASE)
_MONTHS = {name: n for n, name in enumerate(re.findall("...", "JanFebMarAprMayJunJulAugSepOctNovDec"), 1)}


def get_answer_date_or_start(started_at: float, headers: Headers) -> float:
    """Return the Unix time of an answer (`StoredCallSummary.recorded_at`)."""
    return _parse_answer_date(started_at, _dump_headers(headers))


def _parse_answer_date(started_at: float, headers: str) -> float:
    if (said := _DATE.search(headers)) is None or said[2] not in _MONTHS:
        return started_at
    day, _, *others = said.groups()
    year, hour, minute, second = map(int, others)
    answered = timegm((year, _MONTHS[said[2]], int(day), hour, minute, second)) if year else 0
    return float(answered) if answered > started_at + 86_400 else started_at


@lru_cache(256)
def _read_client_from_headers(headers: str) -> str:
    return str(parse_user_agent_client(decode_stored_headers_json(headers)) or "")


def build_call_summary_from_row(row: Row) -> StoredCallSummary:
    """Return the summary of a SELECT_SUMMARY row. Raises CassetteCorrupt."""
    values = [decode_sql_text(value) if isinstance(value, bytes) else value for value in row]
    summary: dict[str, Any] = dict(zip(StoredCallSummary.__slots__, values, strict=True))
    try:
        ending = Ending(summary["ending"])
        client = _read_client_from_headers(summary["client"])
    except (ValueError, TypeError, RecursionError) as error:
        raise CassetteCorrupt(f"Interaction {summary['id']} is damaged: {error!r:.200}.") from error
    summary |= {
        "ending": ending,
        "stream": bool(summary["stream"]),
        "redacted": bool(summary["redacted"]),
        "superseded": summary["superseded"] is not None,
        "client": client,
        "recorded_at": _parse_answer_date(summary["started_at"], summary["recorded_at"]),
    }
    return StoredCallSummary(**summary)
