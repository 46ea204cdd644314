"""Conversion of interactions to spans of users', models' and tools' messages.

    conversation (agent_step)
    ├── user_input
    ├── llm_request             its input is the request's whole conversation, as a list of messages
    │   └── llm_response        tokens, cost, time; output is the text
    │       ├── tool_call       as the model asked for it; the result comes from the conversation's next request
    │       │   ├── tool_result
    │       │   └── conversation of a sub-agent
    │       └── agent_output    an answer that asks for no tool

A failed answer that was retried is an `agent_step` named ``llm_attempt`` under the one request, so that nothing is
counted twice. Other model calls and messages to MCP servers are steps too; an MCP session's id is a credential and not
recorded. Ids are derived from the recording: the same recording gives the same spans. Metadata uses the names of
OpenTelemetry's GenAI conventions (1.40, read 2026-11), or ``llmproxy.`` ones; unknown values are left out. Spans wait
in a bounded queue until everything before them is complete; a call without a result is emitted incomplete when it gets
too long.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from llmproxy.core.dialects.dialect_table import CHAT
from llmproxy.core.dialects.messages import Message, ToolCall, as_dict
from llmproxy.core.keys.mcp import ANSWER, END, NOTIFICATION, STREAM
from llmproxy.core.mcp_answer_replay import list_messages_in_mcp_response, parse_jsonrpc_body, read_mcp_call_with_result
from llmproxy.core.providers.provider_table import MCP_PREFIX
from llmproxy.core.traffic.interaction import Interaction, Usage, header
from llmproxy.protocol import STDIO_PREFIX
from llmproxy.trace.reading.conversations import RecordedConversation, RecordedConversations, RequestPlaceInConversation
from llmproxy.trace.reading.decoded_exchange import (
    CLIENT_ERROR,
    DecodedExchange,
    RequestMessageCache,
    convert_neutral_message_to_dict,
    convert_usage_for_trace,
    decode_interaction_to_messages,
    derive_span_id,
    find_tool_name,
    join_nested_strings,
    map_to_otel_provider_name,
    parse_result_json_or_text,
    read_model_parameters,
    set_span_arguments,
)
from llmproxy.trace.span_models import UNREAD, Span, SpanKind

_PLAIN = 512  # messages that are kept as plain values
HELD_SPANS = 10_000
HELD_BYTES = 8 << 20
"""Maximum bytes in the queue, estimated from the bodies."""
_OPERATIONS = {"generateContent": "generate_content"} | dict.fromkeys(
    ("completions", "complete", "fim.completions", "api.generate", "v1.generate", "writer.completions", "generate"),
    "text_completion",
)
_CHAT = ("chat.completions", "responses", "messages", "converse", "invoke", "api.chat", "v1.chat", "v2.chat",
         "writer.chat", "agents.completions")  # fmt: skip
_TEXT_EVIDENCE = 8
"""Least characters of a text in a tool's arguments that proves that the tool started this conversation."""
_LOOKED_AT = 64
"""Maximum latest conversations searched for the one that started another."""
_PREFIX = re.compile(r"__|[./:]")
"""Separator of a server's and its tool's name, as agents present them to models: ``mcp__github__search``."""


@dataclass(slots=True, eq=False)
class IncompleteSpanQueueEntry:
    span: Span
    ready: bool
    size: int


class IncompleteSpanQueue:
    def __init__(self) -> None:
        self._waiting: deque[IncompleteSpanQueueEntry] = deque()
        self._size = 0

    def add_span(self, span: Span, *, ready: bool = True, size: int = 0) -> IncompleteSpanQueueEntry:
        entry = IncompleteSpanQueueEntry(span, ready, size)
        self._waiting.append(entry)
        self._size += size
        return entry

    def take_ready(self, *, ended: bool = False) -> Iterator[Span]:
        waiting = self._waiting
        while waiting and (ended or waiting[0].ready or len(waiting) > HELD_SPANS or self._size > HELD_BYTES):
            entry = waiting.popleft()
            self._size -= entry.size
            yield entry.span


def get_otel_operation(operation: str) -> str:
    if operation in _CHAT:
        return "chat"
    if "embed" in operation.lower():
        return "embeddings"
    return _OPERATIONS.get(operation, operation)


def _keywords_to_attributes(**attributes: Any) -> dict[str, Any]:
    return {name.replace("__", "."): value for name, value in attributes.items() if value is not None}


def build_request_attributes(exchange: DecodedExchange) -> dict[str, Any]:
    interaction = exchange.interaction
    server = urlsplit(interaction.upstream) if interaction.upstream else None
    found = _keywords_to_attributes(
        gen_ai__operation__name=get_otel_operation(interaction.operation),
        gen_ai__provider__name=map_to_otel_provider_name(interaction.provider),
        gen_ai__request__model=interaction.model, server__address=server.hostname if server else None,
        server__port=server.port if server else None,
        llmproxy__operation=interaction.operation, llmproxy__interaction=interaction.id,
        llmproxy__key=interaction.key, llmproxy__occurrence=interaction.occurrence, llmproxy__party=interaction.party,
        llmproxy__stream=interaction.stream, llmproxy__tools=sorted(exchange.tools) or None,
    )  # fmt: skip
    return found | read_model_parameters(exchange.tree)


def build_response_attributes(exchange: DecodedExchange) -> dict[str, Any]:
    response, first = exchange.interaction.response, exchange.first_token_ms
    error = str(response.status) if response.status >= CLIENT_ERROR else "incomplete"
    return _keywords_to_attributes(
        gen_ai__response__model=exchange.answer_model,
        gen_ai__response__id=exchange.answer_id,
        gen_ai__response__finish_reasons=list(exchange.finish_reasons) or None,
        http__response__status_code=response.status,
        llmproxy__ending=response.ending.value,
        llmproxy__reasoning=(exchange.answer.reasoning or None) if exchange.answer else None,
        gen_ai__response__time_to_first_chunk=None if first is None else first / 1000,  # seconds
        error__type=None if exchange.error is None else error,
    )


def build_usage_attributes(usage: Usage) -> dict[str, Any]:
    return _keywords_to_attributes(
        gen_ai__usage__input_tokens=usage.input,
        gen_ai__usage__output_tokens=usage.output,
        gen_ai__usage__cache_read__input_tokens=usage.cached,
        gen_ai__usage__cache_creation__input_tokens=usage.cache_written,
        gen_ai__usage__reasoning__output_tokens=usage.reasoning,
    )


def build_tool_identity_attributes(call: ToolCall) -> dict[str, Any]:
    return _keywords_to_attributes(
        gen_ai__operation__name="execute_tool", gen_ai__tool__name=call.name, gen_ai__tool__call__id=call.id or None
    )


@dataclass(slots=True)
class FailedCallSpansAwaitingRetry:
    request: IncompleteSpanQueueEntry
    response: IncompleteSpanQueueEntry
    attempts: int = 1


class InteractionsToSpansConverter:
    def __init__(self) -> None:
        self._line = IncompleteSpanQueue()
        self._history, self._conversations = RequestMessageCache(), RecordedConversations()
        # Equal ones share an object: long histories are cheap.
        self._to_plain = lru_cache(_PLAIN)(convert_neutral_message_to_dict)
        self._all: list[RecordedConversation] = []
        self._carried: set[str] = set()
        """Model tool calls, by span id, that a message to a server carries out."""

    def convert(self, interactions: Iterable[Interaction]) -> Iterator[Span]:
        """Yield the spans, in order, each as soon as it is complete; takes the order of the requests."""
        for interaction in interactions:
            if interaction.operation in CHAT:
                self._add_chat_exchange(decode_interaction_to_messages(interaction, self._history))
            elif interaction.operation.startswith(MCP_PREFIX):
                self._add_mcp_message(interaction)
            elif interaction.usage != Usage():
                self._add_non_chat_call(decode_interaction_to_messages(interaction, self._history))
            yield from self._line.take_ready()
        yield from self._line.take_ready(ended=True)

    def _add_chat_exchange(self, exchange: DecodedExchange) -> None:
        place = self._conversations.place_exchange(exchange)
        conversation = place.conversation
        if not conversation.step:
            self._begin_conversation(exchange, conversation)
        if place.retry and conversation.failed is not None:
            request = self._convert_to_attempt(conversation.failed)
        else:
            if conversation.failed is not None:  # it was not retried
                conversation.failed.request.ready = conversation.failed.response.ready = True
            self._add_new_message_spans(exchange, place)
            request = self._line.add_span(
                self._build_request_span(exchange, conversation), size=len(exchange.interaction.request.body)
            )
        response = self._line.add_span(self._build_answer_span(exchange, conversation, request.span))
        if exchange.failed:
            attempts = conversation.failed.attempts + 1 if place.retry and conversation.failed else 1
            conversation.failed = FailedCallSpansAwaitingRetry(request, response, attempts)
            request.ready = response.ready = False
        else:
            conversation.failed = None
            request.ready = True
        self._conversations.add_turn(exchange, place)
        conversation.ended = _compute_answer_end_time(exchange)
        self._add_tool_calls_or_output(exchange, conversation, response.span)

    def _begin_conversation(self, exchange: DecodedExchange, conversation: RecordedConversation) -> None:
        """Start a conversation, under the tool call that started it, if any."""
        span = self._build_span(exchange, SpanKind.AGENT_STEP, "conversation", "step", duration_ms=None)
        conversation.step = span.id
        span.metadata = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.conversation.id": conversation.id,
            "llmproxy.party": exchange.interaction.party,
        }
        if (parent := self._find_starting_tool_call(exchange, conversation)) is not None:
            call, evidence = parent
            span.parent_id, span.name = call.id, "sub-agent"
            span.metadata["llmproxy.parent.from"] = evidence
        self._line.add_span(span)
        self._all.append(conversation)

    def _find_starting_tool_call(self, exchange: DecodedExchange, new: RecordedConversation) -> tuple[Span, str] | None:
        words = "".join(message.text for message in exchange.messages if message.role == "user").strip()
        running = [each for each in reversed(self._all[-_LOOKED_AT:]) if each.pending]
        for conversation in running:
            for pending in conversation.pending:
                if len(words) >= _TEXT_EVIDENCE and words in join_nested_strings(pending.kept.span.tool_args):
                    return pending.kept.span, "its words"
        for conversation in running:
            differs = conversation.tools != new.tools or conversation.system != new.system
            if differs and (conversation.ended is None or conversation.ended <= exchange.interaction.started_at):
                return conversation.pending[0].kept.span, "time"
        return None

    def _add_new_message_spans(self, exchange: DecodedExchange, place: RequestPlaceInConversation) -> None:
        new, conversation = exchange.messages[place.known :], place.conversation
        # Up to the last answer it is history that the wire has not seen.
        old = next((n for n in range(len(new), 0, -1) if new[n - 1].role == "assistant"), 0)
        for n, message in enumerate(new[old:]):
            if message.role == "tool":
                self._add_tool_result(exchange, conversation, message, n)
            elif message.role == "user" and message.text:
                span = self._build_span(exchange, SpanKind.USER_INPUT, "user_input", f"input{n}")
                span.input, span.parent_id = message.text, conversation.step
                span.metadata = {"gen_ai.conversation.id": conversation.id}
                self._line.add_span(span)

    def _add_tool_result(
        self, exchange: DecodedExchange, conversation: RecordedConversation, message: Message, n: int
    ) -> None:
        pending = self._conversations.take_pending_call_of_result(conversation, message.tool_call_id)
        span = self._build_span(exchange, SpanKind.TOOL_RESULT, "tool_result", f"result{n}")
        span.tool_result = span.output = parse_result_json_or_text(message.text)
        span.metadata = {"gen_ai.conversation.id": conversation.id, "gen_ai.tool.call.id": message.tool_call_id}
        if pending is None:
            known = conversation.calls.get(message.tool_call_id or "")
            span.parent_id, span.tool_name = known or conversation.step, find_tool_name(exchange, message.tool_call_id)
            if known is None:
                span.metadata["llmproxy.call_unseen"] = True
        else:
            call = pending.kept.span
            if pending.call_id:
                conversation.calls[pending.call_id] = call.id
            span.parent_id, span.tool_name, span.name = call.id, call.tool_name, f"tool_result {call.tool_name}"
            call.tool_result = call.output = span.tool_result
            if conversation.ended is not None:
                call.duration_ms = round(max((exchange.interaction.started_at - conversation.ended) * 1000, 0.0), 3)
            pending.kept.ready = True
        self._line.add_span(span)

    def _build_request_span(self, exchange: DecodedExchange, conversation: RecordedConversation) -> Span:
        interaction = exchange.interaction
        span = self._build_span(
            exchange, SpanKind.LLM_REQUEST, f"chat {interaction.model or interaction.operation}", "request"
        )
        span.parent_id, span.model = conversation.step, interaction.model
        span.input = [*map(self._to_plain, exchange.messages)]
        span.metadata = build_request_attributes(exchange) | {"gen_ai.conversation.id": conversation.id}
        return span

    def _build_answer_span(self, exchange: DecodedExchange, conversation: RecordedConversation, request: Span) -> Span:
        span = self._build_span(
            exchange, SpanKind.LLM_RESPONSE, request.name, "response", duration_ms=exchange.duration_ms
        )
        end = _compute_answer_end_time(exchange)
        span.timestamp = span.timestamp if end is None else end
        span.parent_id, span.error = request.id, exchange.error
        if exchange.answer is not None:
            span.output = exchange.answer.text or (None if exchange.answer.tool_calls else "")
        span.metadata = build_response_attributes(exchange) | {"gen_ai.conversation.id": conversation.id}
        unread = exchange.error if exchange.failed else exchange.unread_reason
        if unread and exchange.interaction.response.status < CLIENT_ERROR:
            span.metadata[UNREAD] = unread
        _set_usage_and_cost(span, exchange)
        return span

    def _add_tool_calls_or_output(
        self, exchange: DecodedExchange, conversation: RecordedConversation, response: Span
    ) -> None:
        if (answer := exchange.answer) is None or exchange.failed:
            return
        for n, call in enumerate(answer.tool_calls):
            span = self._build_span(
                exchange, SpanKind.TOOL_CALL, f"execute_tool {call.name}", f"call{n}", duration_ms=None
            )
            span.timestamp, span.parent_id, span.tool_name = response.timestamp, response.id, call.name
            span.metadata = build_tool_identity_attributes(call) | {"gen_ai.conversation.id": conversation.id}
            set_span_arguments(span, call)
            self._conversations.add_pending_tool_call(conversation, call, self._line.add_span(span, ready=False))
        if answer.text and not answer.tool_calls:
            span = self._build_span(exchange, SpanKind.AGENT_OUTPUT, "agent_output", "output")
            span.timestamp, span.parent_id, span.output = response.timestamp, response.id, answer.text
            span.metadata = {"gen_ai.conversation.id": conversation.id}
            self._line.add_span(span)

    def _add_mcp_message(self, interaction: Interaction) -> None:
        """Add a message to an MCP server, under the matching tool call of a model if one is pending."""
        if (span := build_mcp_message_span(interaction)) is None:
            return
        waiting = (each.kept.span for one in reversed(self._all[-_LOOKED_AT:]) for each in one.pending)
        free = (each for each in waiting if each.id not in self._carried and each.tool_args == span.tool_args)
        call = next(
            (each for each in free if span.tool_name in list_tool_names_without_prefixes(each.tool_name or "")), None
        )
        if call is not None:
            span.parent_id = call.id
            self._carried.add(call.id)
        self._line.add_span(span)

    def _convert_to_attempt(self, failed: FailedCallSpansAwaitingRetry) -> IncompleteSpanQueueEntry:
        """Turn a failed answer into an attempt: the request stays one, and its usage is not added."""
        span = failed.response.span
        span.kind, span.name = SpanKind.AGENT_STEP, "llm_attempt"
        span.metadata |= {"llmproxy.attempt": failed.attempts}
        span.token_usage = span.cost_usd = None
        failed.request.span.metadata["llmproxy.attempts"] = failed.attempts + 1
        failed.response.ready = True
        return failed.request

    def _add_non_chat_call(self, exchange: DecodedExchange) -> None:
        interaction = exchange.interaction
        name = f"{interaction.operation} {interaction.model or ''}".strip()
        span = self._build_span(exchange, SpanKind.AGENT_STEP, name, "step", duration_ms=exchange.duration_ms)
        span.error = exchange.error
        span.metadata = build_request_attributes(exchange) | build_response_attributes(exchange)
        span.metadata["llmproxy.model_call"] = True
        _set_usage_and_cost(span, exchange)
        self._line.add_span(span)

    @staticmethod
    def _build_span(
        exchange: DecodedExchange, kind: SpanKind, name: str, part: str, *, duration_ms: float | None = 0.0
    ) -> Span:
        interaction = exchange.interaction
        return Span(derive_span_id(interaction, part), kind, name, interaction.started_at, duration_ms)


def _compute_answer_end_time(exchange: DecodedExchange) -> float | None:
    if exchange.duration_ms is None:
        return None
    return exchange.interaction.started_at + exchange.duration_ms / 1000


def _set_usage_and_cost(span: Span, exchange: DecodedExchange) -> None:
    interaction, usage = exchange.interaction, exchange.interaction.usage
    span.model = exchange.answer_model or interaction.model
    span.metadata |= build_usage_attributes(usage)
    if usage.input is not None or usage.output is not None:
        span.token_usage = convert_usage_for_trace(usage)
    cost = exchange.cost
    span.cost_usd = None if cost is None else float(cost)


def build_spans(interactions: Iterable[Interaction]) -> Iterator[Span]:
    return InteractionsToSpansConverter().convert(interactions)


def build_mcp_message_span(interaction: Interaction) -> Span | None:
    operation = interaction.operation
    if operation in (ANSWER, END, STREAM) or operation.startswith(NOTIFICATION):
        return None
    response, chunks = interaction.response, interaction.response.chunks
    name, duration = operation.removeprefix(MCP_PREFIX), chunks[-1].offset / 1000 if chunks else None
    span = Span(derive_span_id(interaction, "mcp"), SpanKind.AGENT_STEP, name, interaction.started_at, duration)
    span.metadata = _build_mcp_attributes(interaction)
    call = read_mcp_call_with_result(interaction)
    answers = [part.value for part in list_messages_in_mcp_response(response) if isinstance(part.value, dict)]
    codes = (as_dict(each.get("error")).get("code") for each in answers if "method" not in each)
    if (code := next((int(each) for each in codes if isinstance(each, int)), None)) is not None:
        span.metadata |= {"rpc.response.status_code": str(code), "error.type": str(code)}
    if response.status >= CLIENT_ERROR:
        span.metadata["error.type"] = str(response.status)
        span.error = f"HTTP {response.status}"
    if call is None:
        span.error = span.error or (None if code is None else f"JSON-RPC error {code}")
        return span
    span.metadata |= {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": call.tool}
    span.tool_name, span.tool_result = call.tool, parse_result_json_or_text(call.result)
    arguments = json.loads(call.arguments)
    span.tool_args = arguments if isinstance(arguments, dict) else None
    span.input = None if isinstance(arguments, dict) else arguments
    if call.failed:
        span.metadata.setdefault("error.type", "tool_error")
        span.error = span.error or call.result or "the tool failed"
    return span


def _build_mcp_attributes(interaction: Interaction) -> dict[str, Any]:
    asked = parse_jsonrpc_body(interaction.request.body)
    over_pipe = interaction.provider.startswith(STDIO_PREFIX)
    where = urlsplit(interaction.upstream) if interaction.upstream and not over_pipe else None
    found = {
        "mcp.method.name": asked.get("method"),
        "mcp.resource.uri": as_dict(asked.get("params")).get("uri"),
        "mcp.protocol.version": header(interaction.request.headers, "mcp-protocol-version"),
        "jsonrpc.request.id": None if asked.get("id") is None else str(asked["id"]),
        "network.transport": "pipe" if over_pipe else "tcp",
        "server.address": where.hostname if where else None,
        "server.port": where.port if where else None,
        "llmproxy.server": interaction.provider,
        "llmproxy.operation": interaction.operation,
        "llmproxy.interaction": interaction.id,
        "llmproxy.key": interaction.key,
        "llmproxy.occurrence": interaction.occurrence,
        "llmproxy.party": interaction.party,
        "llmproxy.ending": interaction.response.ending.value,
    }
    return {name: value for name, value in found.items() if value is not None}


def list_tool_names_without_prefixes(name: str) -> list[str]:
    """Return possible server names of the tool that a model calls `name`, the longest first."""
    return [name, *(name[each.end() :] for each in _PREFIX.finditer(name))]
