"""Calls for display: one with its new content, the answer, timing and cost; a recording's steps in a few lines each.

    Interaction, Interaction, ... of a recording -> `ExchangeLinker` -> ExchangeWithPrevious -> plain values

`trace.reading.conversations` finds the part of a request that repeats earlier ones; here it is combined with the tool
results that a request brings for earlier answers, and the decoded exchange. Steps are read from the spans of the trace,
so they agree with suites and judges.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from llmproxy.core.dialects.conversation import compare_requests
from llmproxy.core.dialects.dialect_table import CHAT
from llmproxy.core.dialects.messages import (
    Message,
    ToolCall,
    as_dict,
    as_str,
    convert_conversation_entry,
    remove_system_reminders,
)
from llmproxy.core.dialects.stream_events import list_stream_events
from llmproxy.core.dialects.usage_and_cost import compute_cost, read_model_and_fingerprint
from llmproxy.core.providers.provider_table import parse_user_agent_client
from llmproxy.core.store.row_conversion import get_answer_date_or_start
from llmproxy.core.traffic.interaction import Interaction
from llmproxy.core.traffic.json_diff import ABSENT, count_common_prefix, count_common_suffix
from llmproxy.core.traffic.websocket_frames import format_websocket_transcript, is_websocket_body
from llmproxy.trace.reading.conversations import RecordedConversations, RequestPlaceInConversation
from llmproxy.trace.reading.decoded_exchange import (
    DecodedExchange,
    RequestMessageCache,
    decode_interaction_to_messages,
    derive_span_id,
    is_nonempty_message,
    read_model_parameters,
    walk_declared_tools,
)
from llmproxy.trace.reading.span_builder import build_spans
from llmproxy.trace.span_models import Span, SpanKind

CHUNKS = 2000
"""Maximum chunks listed one by one; above, neighbours are combined."""
CHANGES = 60
_CONVERSATIONS = ("messages", "contents", "input")


class ReportedToolResult(NamedTuple):
    caller: int
    """Interaction whose answer called the tool."""
    call: str
    """Id of the call, or the tool's name in dialects without ids."""
    text: str
    told_in: int
    """Interaction whose request contains it."""


@dataclass(frozen=True, slots=True)
class ExchangeWithPrevious:
    exchange: DecodedExchange
    known: int = 0
    """Number of the request's messages that were sent before."""
    previous: DecodedExchange | None = None
    retry: bool = False
    results: Sequence[ReportedToolResult] = ()


@dataclass(slots=True)
class ExchangeLinker:
    """Reads the calls of one recording in the order of their requests."""

    _history: RequestMessageCache = field(default_factory=RequestMessageCache)
    _conversations: RecordedConversations = field(default_factory=RecordedConversations)

    def read(self, interaction: Interaction) -> ExchangeWithPrevious:
        exchange = decode_interaction_to_messages(interaction, self._history)
        if interaction.operation not in CHAT:
            return ExchangeWithPrevious(exchange)
        place = self._conversations.place_exchange(exchange)
        previous, place.conversation.latest = place.conversation.latest, exchange
        results = list(self._match_tool_results(exchange, place))
        self._conversations.add_turn(exchange, place)
        if exchange.answer is not None and not exchange.failed:
            for call in exchange.answer.tool_calls:
                self._conversations.add_pending_tool_call(place.conversation, call, interaction.id)
        return ExchangeWithPrevious(exchange, 0 if previous is None else place.known, previous, place.retry, results)

    def _match_tool_results(
        self, exchange: DecodedExchange, place: RequestPlaceInConversation
    ) -> Iterator[ReportedToolResult]:
        for message in (each for each in exchange.messages[place.known :] if each.role == "tool"):
            pending = self._conversations.take_pending_call_of_result(place.conversation, message.tool_call_id)
            if pending is not None:
                name = pending.call_id or pending.name
                yield ReportedToolResult(pending.kept, name, message.text, exchange.interaction.id or 0)


def call_to_json(told: ExchangeWithPrevious) -> dict[str, Any]:
    exchange = told.exchange
    shown = _group_media_by_message(exchange.tree, exchange.messages)
    response = exchange.interaction.response
    tools, parameters = walk_declared_tools(exchange.tree), read_model_parameters(exchange.tree)
    return {
        **build_viewer_call_facts(exchange.interaction), "known": told.known,
        "messages": [_message_to_json(message, shown.get(n, ())) for n, message in enumerate(exchange.messages)],
        "previous": told.previous.interaction.id if told.previous else None, "retry": told.retry,
        "changes": _list_changes_since_previous(told.previous, exchange, told.known) if told.previous else [],
        "tools": [{"name": name, "about": as_str(tool.get("description"))} for name, tool in tools],
        "parameters": {name.removeprefix("gen_ai.request."): value for name, value in parameters.items()},
        "answer": _answer_to_json(exchange), "error": exchange.error, "finish": list(exchange.finish_reasons),
        "timing": _timing_to_json(exchange),
        # The messages of a WebSocket, a line each.
        "frames": list(format_websocket_transcript(response.body)) if is_websocket_body(response.headers) else None,
        "results": {},
    }  # fmt: skip


def attach_tool_results_to_calls(calls: Mapping[int, dict[str, Any]], results: Sequence[ReportedToolResult]) -> None:
    for each in results:
        if (caller := calls.get(each.caller)) is not None:
            caller["results"][each.call] = {"text": each.text, "in": each.told_in}


def build_viewer_call_facts(interaction: Interaction) -> dict[str, Any]:
    i, usage = interaction, interaction.usage
    cost = compute_cost(i.provider, i.model, usage)
    return {
        "id": i.id, "cassette": i.cassette, "sample": i.sample, "party": i.party, "occurrence": i.occurrence,
        "key": i.key, "provider": i.provider, "operation": i.operation, "model": i.model, "stream": i.stream,
        "upstream": i.upstream, "method": i.request.method, "target": i.request.target, "at": i.started_at,
        "status": i.response.status, "reason": i.response.reason, "ending": i.response.ending.value,
        "redacted": i.redacted, "recorded_at": get_answer_date_or_start(i.started_at, i.response.headers),
        "client": str(parse_user_agent_client(i.request.headers) or ""),
        "answered_by": read_model_and_fingerprint(i.response),
        "usage": {name: getattr(usage, name) for name in ("input", "cached", "cache_written", "output", "reasoning")},
        "cost": None if cost is None else float(cost),
        "request": {"headers": list(map(list, i.request.headers)), "bytes": len(i.request.body)},
        "response": {
            "headers": list(map(list, i.response.headers)),
            "bytes": sum(len(chunk.data) for chunk in i.response.chunks),
        },
    }  # fmt: skip


def _message_to_json(message: Message, shown: Sequence[Medium] = ()) -> dict[str, Any]:
    made: dict[str, Any] = {"role": message.role, "text": message.text}
    if message.role == "user" and (typed := remove_system_reminders(message.text)) != message.text:
        made |= {"text": typed, "sent": message.text}
    if message.reasoning:
        made["reasoning"] = message.reasoning
    if calls := [*message.tool_calls, *message.beside]:
        made["calls"] = [_tool_call_to_json(each) for each in calls]
    if message.tool_call_id:
        made["of"] = message.tool_call_id
    if shown:
        made["media"] = list(shown)
    return made


def _tool_call_to_json(call: ToolCall) -> dict[str, Any]:
    made: dict[str, Any] = {"id": call.id, "name": call.name, "arguments": call.arguments}
    if call.hosted:
        made |= {"hosted": True, "output": call.output, "failed": call.failed, "pending": call.pending}
    return made


def _group_media_by_message(tree: dict[str, Any], messages: Sequence[Message]) -> dict[int, list[Medium]]:
    body = as_dict(tree.get("request")) or tree
    entries: list[Any] = next((body[name] for name in _CONVERSATIONS if isinstance(body.get(name), list)), [])
    found: dict[int, list[Medium]] = {}
    made = [sum(map(is_nonempty_message, convert_conversation_entry(entry))) for entry in entries]
    if (at := len(messages) - sum(made)) < 0:  # a shape whose parts cannot be told apart
        return {}
    for entry, count in zip(entries, made, strict=True):
        at += count
        if count and (here := find_media_in_json(entry)):
            found[at - 1] = here
    return found


def _answer_to_json(exchange: DecodedExchange) -> dict[str, Any] | None:
    if exchange.answer is None:
        return None
    response = exchange.interaction.response
    events = [] if exchange.interaction.stream else list_stream_events(response.mime_type, response.body)
    return _message_to_json(exchange.answer, find_media_in_json(events))


def _list_changes_since_previous(
    previous: DecodedExchange, exchange: DecodedExchange, known: int
) -> list[dict[str, Any]]:
    old, new = (as_dict(each.tree.get("request")) or each.tree for each in (previous, exchange))
    name = next((each for each in _CONVERSATIONS if isinstance(new.get(each), list)), None)
    if name is not None and known and isinstance(old.get(name), list):
        new = {**new, name: new[name][: len(old[name])]}
    found = [each._asdict() for each in compare_requests(exchange.interaction.operation, old, new, CHANGES)]
    return [{name: value for name, value in each.items() if name != "kind" and value is not ABSENT} for each in found]


def _timing_to_json(exchange: DecodedExchange) -> dict[str, Any] | None:
    """Return milliseconds since the request's release, and chunks as [ms, bytes]; None without recorded times."""
    if exchange.duration_ms is None:
        return None
    response = exchange.interaction.response
    pieces = [[chunk.offset / 1000, len(chunk.data)] for chunk in response.chunks]
    step = -(-len(pieces) // CHUNKS) or 1
    together = [[pieces[n][0], sum(size for _, size in pieces[n : n + step])] for n in range(0, len(pieces), step)]
    first = pieces[0][0] if pieces else None
    times = {"head": response.head_offset / 1000, "first": first, "token": exchange.first_token_ms}
    return {**times, "last": exchange.duration_ms, "count": len(pieces), "chunks": together}


SHOWN = frozenset(
    {"image/png", "image/jpeg", "image/gif", "image/webp",
     "audio/wav", "audio/mpeg", "audio/ogg", "audio/flac", "audio/mp4"}
)  # fmt: skip
_DATA = re.compile(r"data:([a-z]+/[a-z0-9.+-]+);base64,([A-Za-z0-9+/=\s]+)", re.IGNORECASE)
_FORMATS = {
    "wav": "audio/wav", "mp3": "audio/mpeg", "flac": "audio/flac", "ogg": "audio/ogg", "opus": "audio/ogg",
    "png": "image/png", "jpeg": "image/jpeg", "jpg": "image/jpeg", "gif": "image/gif", "webp": "image/webp",
}  # fmt: skip
_DEPTH = 12
_MOST = 40

Medium = dict[str, str]
"""``{"type": "image/png", "data": base64}``."""


def find_media_in_json(value: Any) -> list[Medium]:
    """Return the images and sounds in a part of a body, in order. Never raises."""
    return list(islice(_walk_media(value, 0), _MOST))


def _walk_media(value: Any, depth: int) -> Iterator[Medium]:
    if depth > _DEPTH:
        return
    if isinstance(value, dict) and (own := _read_media_block(value)) is not None:
        yield own
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _walk_media(part, depth + 1)
    elif isinstance(value, str) and (match := _DATA.fullmatch(value)) and (made := _build_medium(match[1], match[2])):
        yield made


def _read_media_block(block: dict[str, Any]) -> Medium | None:
    inner = as_dict(block.get("source")) or block
    kind = inner.get("media_type") or inner.get("mimeType") or inner.get("mime_type")
    data = as_str(inner.get("data")) or as_str(inner.get("bytes"))
    if not kind and isinstance(block.get("format"), str):
        kind = _FORMATS.get(block["format"])
    return _build_medium(as_str(kind), data) if kind and data else None


def _build_medium(kind: str, data: str) -> Medium | None:
    kind = kind.lower()
    kind = {"image/jpg": "image/jpeg", "audio/mp3": "audio/mpeg", "audio/x-wav": "audio/wav"}.get(kind, kind)
    data = "".join(data.split())
    return {"type": kind, "data": data} if kind in SHOWN and re.fullmatch(r"[A-Za-z0-9+/]+=*", data) else None


_WORTH = 512
"""Least characters saved by a delta, else the body is stored whole."""


def encode_body_for_json(data: bytes) -> dict[str, Any]:
    text = decode_utf8_or_none(data)
    return {"base64": b64encode(data).decode()} if text is None else {"text": text}


def decode_utf8_or_none(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def encode_viewer_text_from_base(base: tuple[int, str], text: str) -> dict[str, Any]:
    of, old = base
    front = count_common_prefix(old, text)
    back = count_common_suffix(old, text, min(len(old), len(text)) - front)
    if front + back < _WORTH:
        return {"text": text}
    end = len(text) - back
    return {"of": of, "prefix": _utf16_len(text[:front]), "suffix": _utf16_len(text[end:]), "text": text[front:end]}


def _utf16_len(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


TEXT = 6000
"""Maximum characters of a step's text; the call has the rest."""

Step = dict[str, Any]
"""``{"kind": "user" | "says" | "tool" | "answer" | "failed" | "call", "call": id, "depth": of sub-agents, ...}``"""


def build_step_list_of_run(interactions: Iterable[Interaction]) -> list[Step]:
    reader = _SpanToStepConverter()
    steps = [step for span in build_spans(reader.remember_interactions(interactions)) for step in reader.read(span)]
    return steps + [{**step, "call": None} for step in reader.waiting]  # user inputs without a following request


@dataclass(slots=True)
class _SpanToStepConverter:
    depth: dict[str, int] = field(default_factory=dict)
    of: dict[str, tuple[int | None, int]] = field(default_factory=dict)
    """Interaction and depth by span id."""
    waiting: list[Step] = field(default_factory=list)
    """User texts until the request that contains them names its interaction."""
    words: dict[str, str] = field(default_factory=dict)
    """Text of an answer by span, until it is known whether tool calls follow."""
    answers: dict[str, int | None] = field(default_factory=dict)
    """Interactions by answer span: a retry's differs from that of the shared request."""

    def remember_interactions(self, interactions: Iterable[Interaction]) -> Iterator[Interaction]:
        for each in interactions:
            self.answers[derive_span_id(each, "response")] = each.id
            yield each

    def read(self, span: Span) -> Iterator[Step]:
        if span.kind is SpanKind.AGENT_STEP:
            yield from self._make_attempt_and_call_steps(span)
        elif span.kind is SpanKind.USER_INPUT:
            said = span.input
            if not isinstance(said, str) or (said := remove_system_reminders(said)):  # else the client wrote all of it
                step = {"kind": "user", "text": _shorten_text(said), "depth": self.depth.get(span.parent_id or "", 0)}
                self.waiting.append(step)
        elif span.kind is SpanKind.LLM_REQUEST:
            here = span.metadata.get("llmproxy.interaction"), self.depth.get(span.parent_id or "", 0)
            self.of[span.id] = here
            for step in self.waiting:
                yield {**step, "call": here[0]}
            self.waiting.clear()
        elif span.kind is SpanKind.LLM_RESPONSE:
            yield from self._make_failure_or_keep_text(span)
        elif span.kind is SpanKind.TOOL_CALL:
            self.of[span.id] = here = self.of.get(span.parent_id or "", (None, 0))
            if words := self.words.pop(span.parent_id or "", ""):
                yield {"kind": "says", "call": here[0], "depth": here[1], "text": words}
            yield _make_tool_step(span, *here)
        elif span.kind is SpanKind.AGENT_OUTPUT:
            call, depth = self.of.get(span.parent_id or "", (None, 0))
            yield {"kind": "answer", "call": call, "depth": depth, "text": _shorten_text(span.output)}

    def _make_attempt_and_call_steps(self, span: Span) -> Iterator[Step]:
        inside = self.of.get(span.parent_id or "")
        depth = inside[1] + 1 if inside else 0
        self.depth[span.id] = depth
        number = span.metadata.get("llmproxy.interaction")
        if span.name == "llm_attempt":
            depth = self.of.get(span.parent_id or "", (None, 0))[1]
            call = self.answers.get(span.id, number)
            yield {"kind": "failed", "call": call, "depth": depth, "text": _shorten_text(span.error), "again": True}
        elif span.metadata.get("llmproxy.model_call"):
            yield {"kind": "call", "call": number, "depth": depth, "text": span.name, "error": span.error}

    def _make_failure_or_keep_text(self, span: Span) -> Iterator[Step]:
        asked, depth = self.of.get(span.parent_id or "", (None, 0))
        call = self.answers.get(span.id, asked)
        self.of[span.id] = call, depth
        if span.error:
            yield {"kind": "failed", "call": call, "depth": depth, "text": _shorten_text(span.error), "again": False}
        elif span.output:
            self.words[span.id] = _shorten_text(span.output)


def _make_tool_step(span: Span, call: int | None, depth: int) -> Step:
    given = span.tool_args if span.tool_args is not None else span.input
    result = None if span.tool_result is None else _shorten_text(span.tool_result)
    about = {"kind": "tool", "call": call, "depth": depth, "name": span.tool_name}
    return {**about, "given": _shorten_text(given), "result": result, "ms": span.duration_ms}


def _shorten_text(value: object) -> str:
    value = "" if value is None else value
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= TEXT else f"{text[:TEXT]}… ({len(text):,} characters)"
