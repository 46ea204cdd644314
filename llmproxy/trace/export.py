"""Streaming export of a recording's spans: memory does not grow with the recording.

In OTLP a model call is one CLIENT span ``chat <model>``, a tool call with its result one ``execute_tool <name>``, a
message to an MCP server one CLIENT span with ``mcp.*``, a conversation one ``invoke_agent``. Trace and span ids are
digests of ours. Unknown times are the start's, with the attribute ``llmproxy.unknown``. Source: the OTLP specification
1.x (JSON: ids as hex, 64-bit numbers as text).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import batched
from pathlib import Path
from typing import IO, Any

import llmproxy
from llmproxy.calls_and_totals import Call
from llmproxy.protocol import AGENT
from llmproxy.trace.reading.recording_spans import parse_recording_json_of_call, spans_of
from llmproxy.trace.span_models import Span, SpanKind, SpanListDigest
from llmproxy.trace.trace_file import (
    Cassette,
    add_spans_to_totals,
    build_empty_trace,
    build_trace_file_header,
    build_trace_from_interactions,
)

_INTERNAL, _CLIENT = 1, 3
_ERROR = 2
_MILLION = 1_000_000
_INT64 = 1 << 63
Plain = dict[str, Any]
BATCH = 200
"""Spans of one OTLP line: a few hundred kilobytes."""
_HALF = re.compile("[\ud800-\udfff]")
"""Lone surrogates: recorded answers may contain them, OTLP's readers reject them."""


def otlp(cassette: Cassette, *, content: bool = True) -> Plain:
    """Return a trace as one OTLP export request. `content` False leaves out all texts."""
    spans = SpanToOtlpConverter(cassette.id, content=content).convert(cassette.spans)
    return build_otlp_request_body(list(spans), cassette.name)


def build_otlp_request_body(spans: Sequence[Plain], name: str) -> Plain:
    resource = {"attributes": [_build_attribute("service.name", name or "llmproxy")]}
    scope = {"name": "llmproxy.trace", "version": llmproxy.__version__}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": scope, "spans": spans}]}]}


class SpanToOtlpConverter:
    def __init__(self, trace: str, *, content: bool = True) -> None:
        self._trace = _digest_id(trace, 32)
        self._content = content
        self._requests: dict[str, Span] = {}
        self._steps: list[Plain] = []
        self._ends: dict[str, int] = {}

    def convert(self, spans: Iterable[Span]) -> Iterator[Plain]:
        """Convert spans in order; at the end unanswered requests, and conversations, which end with their last span."""
        for span in spans:
            yield from self._convert_or_hold(span)
        for request in self._requests.values():
            yield self._model_call_to_otlp(None, request)
        for plain in self._steps:
            end = max(int(plain["startTimeUnixNano"]), self._ends.get(plain.pop("conversation"), 0))
            yield plain | {"endTimeUnixNano": str(end)}

    def _convert_or_hold(self, span: Span) -> Iterator[Plain]:
        metadata = span.metadata or {}
        conversation = metadata.get("gen_ai.conversation.id")
        if isinstance(conversation, str):
            self._ends[conversation] = max(self._ends.get(conversation, 0), _seconds_to_nanoseconds(span.timestamp))
        if span.kind is SpanKind.LLM_REQUEST:
            self._requests[span.id] = span
        elif span.kind is SpanKind.LLM_RESPONSE:
            yield self._model_call_to_otlp(self._requests.pop(span.parent_id or "", None), span)
        elif span.kind is SpanKind.TOOL_CALL:
            yield self._convert_tool_call(span)
        elif span.kind is SpanKind.AGENT_STEP:
            plain = self._convert_step(span)
            if metadata.get("gen_ai.operation.name") == "invoke_agent":
                self._steps.append(plain)
            else:
                yield plain

    def _model_call_to_otlp(self, request: Span | None, span: Span) -> Plain:
        asked_with = (request.metadata if request else None) or {}
        attributes = {"gen_ai.operation.name": "chat", **asked_with, **(span.metadata or {})}
        attributes |= _build_cost_and_token_attributes(span)
        if span.model and "gen_ai.response.model" not in attributes:
            attributes["gen_ai.response.model"] = span.model
        if self._content:
            asked = request.input if request is not None else span.input
            attributes |= _build_message_attributes(
                asked, span.output, attributes.get("gen_ai.response.finish_reasons")
            )
        answered = span.kind is SpanKind.LLM_RESPONSE and span.metadata.get("gen_ai.conversation.id") is None
        start = request.timestamp if request else span.timestamp - (span.duration_ms or 0.0) / 1000 * answered
        plain = self._build_base_span(span, _CLIENT, attributes, start)
        plain["name"] = (request or span).name or f"chat {span.model or ''}".strip()
        if request is not None:
            plain.pop("parentSpanId", None)
            if request.parent_id:
                plain["parentSpanId"] = _digest_id(request.parent_id, 16)
        return plain | _build_status(span)

    def _convert_tool_call(self, span: Span) -> Plain:
        named = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": span.tool_name}
        attributes = named | (span.metadata or {})
        if self._content:
            attributes |= _build_tool_content_attributes(span)
        plain = self._build_base_span(span, _INTERNAL, attributes, span.timestamp)
        plain["name"] = f"execute_tool {span.tool_name or ''}".strip()
        return plain | _build_status(span)

    def _convert_step(self, span: Span) -> Plain:
        metadata = span.metadata or {}
        asks = span.name == "llm_attempt" or metadata.get("llmproxy.model_call") or "mcp.method.name" in metadata
        attributes = metadata | _build_cost_and_token_attributes(span)
        if self._content and span.tool_name:
            attributes |= _build_tool_content_attributes(span)
        plain = self._build_base_span(span, _CLIENT if asks else _INTERNAL, attributes, span.timestamp)
        if metadata.get("gen_ai.operation.name") == "invoke_agent":
            plain["conversation"] = metadata.get("gen_ai.conversation.id")
            plain["name"] = "invoke_agent"
        return plain | _build_status(span)

    def _build_base_span(self, span: Span, kind: int, attributes: Plain, start: float) -> Plain:
        begun = _seconds_to_nanoseconds(start)
        if not self._content:
            attributes.pop("llmproxy.reasoning", None)
        if span.duration_ms is None:
            attributes = attributes | {"llmproxy.unknown": ["duration"]}
        plain: Plain = {
            "traceId": self._trace,
            "spanId": _digest_id(span.id, 16),
            "name": span.name or span.kind.value,
            "kind": kind,
            "startTimeUnixNano": str(begun),
            "endTimeUnixNano": str(begun + max(round((span.duration_ms or 0.0) * _MILLION), 0)),
            "attributes": [_build_attribute(name, value) for name, value in attributes.items() if value is not None],
        }
        # A request has no span of its own, so its children get its parent.
        request = self._requests.get(span.parent_id or "")
        if parent := span.parent_id if request is None else request.parent_id:
            plain["parentSpanId"] = _digest_id(parent, 16)
        return plain


def _digest_id(text: str, digits: int) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:digits]


def _seconds_to_nanoseconds(seconds: float) -> int:
    """Return nanoseconds, exact to the microsecond; 0 for an invalid time."""
    try:
        return max(round(seconds * _MILLION) * 1000, 0)
    except (TypeError, ValueError, OverflowError):
        return 0


def _build_status(span: Span) -> Plain:
    return {"status": {"code": _ERROR, "message": span.error}} if span.error else {}


def _build_cost_and_token_attributes(span: Span) -> Plain:
    found: Plain = {} if span.cost_usd is None else {"llmproxy.cost_usd": span.cost_usd}
    usage = span.token_usage
    if usage is not None and "gen_ai.usage.input_tokens" not in (span.metadata or {}):
        parts = (usage.prompt_tokens, usage.cache_read_tokens, usage.cache_write_tokens)
        known = usage.prompt_tokens is not None
        found["gen_ai.usage.input_tokens"] = sum(part or 0 for part in parts) if known else None
        found["gen_ai.usage.output_tokens"] = usage.completion_tokens
        found["gen_ai.usage.cache_read.input_tokens"] = usage.cache_read_tokens
        found["gen_ai.usage.cache_creation.input_tokens"] = usage.cache_write_tokens
    return found


def _to_json_text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def _build_tool_content_attributes(span: Span) -> Plain:
    said = span.tool_args if span.tool_args is not None else span.input
    return {
        "gen_ai.tool.call.arguments": _to_json_text(said),
        "gen_ai.tool.call.result": _to_json_text(span.tool_result),
    }


def _build_message_attributes(asked: object, output: object, reasons: object) -> Plain:
    found: Plain = {}
    messages = asked if isinstance(asked, list) else [{"role": "user", "content": asked}] if asked else []
    plain = [_convert_message(message) for message in messages if isinstance(message, dict)]
    system = [part for message in plain if message["role"] == "system" for part in message["parts"]]
    others = [message for message in plain if message["role"] != "system"]
    if system:
        found["gen_ai.system_instructions"] = _to_json_text(system)
    if others:
        found["gen_ai.input.messages"] = _to_json_text(others)
    if output is not None:
        reason = reasons[-1] if isinstance(reasons, list) and reasons else None
        parts = [{"type": "text", "content": _to_json_text(output)}]
        said = {"role": "assistant", "parts": parts, "finish_reason": reason}
        found["gen_ai.output.messages"] = _to_json_text([said])
    return found


def _convert_message(message: Plain) -> Plain:
    parts: list[Plain] = []
    if message.get("role") == "tool":
        parts = [{"type": "tool_call_response", "id": message.get("tool_call_id"), "response": message.get("content")}]
    elif message.get("content"):
        parts = [{"type": "text", "content": message["content"]}]
    if message.get("reasoning"):
        parts.insert(0, {"type": "reasoning", "content": message["reasoning"]})
    parts += [{"type": "tool_call"} | call for call in message.get("tool_calls") or ()]
    return {"role": message.get("role", "user"), "parts": parts}


def _build_attribute(name: str, value: object) -> Plain:
    return {"key": name, "value": _build_value(value)}


def _build_value(value: object) -> Plain:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int) and -_INT64 <= value < _INT64:
        return {"intValue": str(value)}
    if isinstance(value, int | float):
        return {"doubleValue": float(value)}
    if isinstance(value, list | tuple):
        return {"arrayValue": {"values": [_build_value(each) for each in value]}}
    return {"stringValue": value if isinstance(value, str) else _to_json_text(value) or ""}


def write_trace(
    out: IO[str], store: Path | str, *, cassette: str, sample: int = 1, party: str | None = AGENT
) -> Cassette:
    """Write a recording as a trace file; returns its head (totals, fingerprint). Raises as `Cassette.from_store`."""
    trace, fingerprint, first = build_empty_trace(cassette, sample), SpanListDigest(), True
    versions = {name: value for name, value in build_trace_file_header(trace).items() if name != "cassette"}
    for span in add_spans_to_totals(trace, spans_of(store, cassette=cassette, sample=sample, party=party)):
        plain = span.to_dict()
        fingerprint.add(plain)
        out.write(json.dumps(versions)[:-1] + ', "spans": [\n' if first else ",\n")
        out.write(json.dumps(plain, default=str))
        first = False
    if first:
        out.write(json.dumps(versions)[:-1] + ', "spans": [')
    trace.fingerprint = fingerprint.hexdigest()
    out.write(f'\n], "cassette": {json.dumps(build_trace_file_header(trace)["cassette"], indent=1)}}}\n')
    return trace


def write_otlp(
    out: IO[str], store: Path | str, *, cassette: str, sample: int = 1, party: str | None = AGENT, content: bool = True
) -> int:
    """Write OTLP in JSON lines; returns the number of spans. `content`: with texts. Raises as `Cassette.from_store`."""
    spans = spans_of(store, cassette=cassette, sample=sample, party=party)
    written = 0
    for batch in batched(SpanToOtlpConverter(f"{cassette}~{sample}", content=content).convert(spans), BATCH):
        line = json.dumps(build_otlp_request_body(batch, cassette), ensure_ascii=False, separators=(",", ":"))
        out.write(_HALF.sub("\N{REPLACEMENT CHARACTER}", line) + "\n")
        written += len(batch)
    return written


def build_trace_from_calls(calls: Iterable[Call], name: str) -> Cassette:
    made = [(parse_recording_json_of_call(call), call.at) for call in calls]
    placed = (replace(each, started_at=at) if at else each for each, at in made if each is not None)
    return build_trace_from_interactions(placed, name)
