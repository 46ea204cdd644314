"""Fingerprint of a run's behaviour, independent of what a new recording changes.

    spans -> roles, normalised prompts, outputs, tool names and arguments, results -> 16 hex digits

Left out: ids, times, durations, tokens, cost, model versions, metadata, empty system noise; within texts and arguments,
a date, an id or a temporary path (as `core.traffic.json_diff` recognises them) is replaced by its kind. Retries count
as one call.

Also the missing measures of a trace: spans whose cost, tokens or duration should be known and is not. A total adds up
known values. These functions say whether it is complete, so that a budget is never met by missing data. Pure; imports
only the model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from hashlib import sha256
from itertools import chain
from typing import Any, Protocol

from llmproxy.core.traffic.canonical_json import parse_json
from llmproxy.lazy_regex import late
from llmproxy.trace.spans import Span, SpanKind

CLIENT_ERROR = 400
"""Least HTTP status at which nothing was generated, so nothing is billed."""


def count_missing_measures(spans: Iterable[Span]) -> dict[str, int]:
    """Return the number of model answers that lack ``cost``, ``tokens`` or ``duration``, by measure."""
    found = {"cost": 0, "tokens": 0, "duration": 0}
    requests: dict[str, Span] = {}
    for span in spans:
        if span.kind is SpanKind.LLM_REQUEST:
            requests[span.id] = requests[""] = span  # "": the last one, for traces whose spans name no parents
        elif span.kind is SpanKind.TOOL_CALL:
            found["duration"] += span.duration_ms is None
        elif _is_billed_answer(span):
            request = requests.pop(span.parent_id or "", None)
            found["cost"] += span.cost_usd is None and (request is None or request.cost_usd is None)
            found["tokens"] += not _has_tokens(span) and (request is None or not _has_tokens(request))
            found["duration"] += span.duration_ms is None
    requests.pop("", None)
    for request in requests.values():  # never answered, as far as can be told; one that was counted should have a price
        found["cost"] += request.token_usage is not None and request.cost_usd is None
    return {name: count for name, count in found.items() if count}


def _has_tokens(span: Span) -> bool:
    return span.token_usage is not None and span.token_usage.total_tokens is not None


def _is_billed_answer(span: Span) -> bool:
    """Return whether a span should have a cost."""
    metadata = span.metadata or {}
    status = metadata.get("http.response.status_code")
    if isinstance(status, int) and status >= CLIENT_ERROR:
        return False
    return span.kind is SpanKind.LLM_RESPONSE or bool(metadata.get("llmproxy.model_call"))


_SPACE = late(r"\s+")
_IDS = frozenset({"id", "call_id", "tool_call_id"})
"""Members that hold a message's own id."""
_DEPTH = 64
# Stricter than the table of volatile differences: there both sides are at hand, here a wrong match would hide a change.
_VOLATILE: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, late(pattern))
    for name, pattern in (
        ("uuid", r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"),
        ("time", r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?"),
        ("temp", r"(?:/private)?/(?:tmp|var/folders|var/tmp)/[^\s\"'`<>,;)]+"),
        ("id", r"\b(?:call|toolu|tooluse|chatcmpl|resp|msg|run|thread|req)[_-](?=\w*\d)[\w-]{8,}"),
        ("stamp", r"\b1[0-9]{9}(?:\.\d+|\d{3}|\d{6})?\b"),
    )
)


class FingerprintInput(Protocol):
    @property
    def input_text(self) -> str: ...

    @property
    def output_text(self) -> str: ...

    @property
    def spans(self) -> Sequence[Span]:
        """Spans in between."""


def behavior_fingerprint(cassette: FingerprintInput) -> str:
    """Return 16 hex digits that are equal for recordings with the same behaviour of agent and model."""
    digest = sha256()
    texts = map(normalize_value, (cassette.input_text, cassette.output_text))
    # An agent's step only groups others.
    spans = (_extract_span_behavior(span) for span in cassette.spans if span.kind is not SpanKind.AGENT_STEP)
    for value in chain(texts, spans):
        digest.update(json.dumps(value, sort_keys=True, default=str).encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()[:16]


def _extract_span_behavior(span: Span) -> list[Any]:
    if span.kind in (SpanKind.TOOL_CALL, SpanKind.TOOL_RESULT):
        result = span.tool_result if span.tool_result is not None else span.output
        said = span.tool_args if span.tool_args is not None else span.input
        return [span.kind.value, span.tool_name, normalize_value(said), normalize_value(result), bool(span.error)]
    return [span.kind.value, normalize_value(span.input), normalize_value(span.output), bool(span.error)]


def normalize_value(value: Any, depth: int = 0) -> Any:
    """Return a value without parts that change from run to run; JSON texts count as their values."""
    if depth > _DEPTH:
        return "<deep>"
    if isinstance(value, str):
        if value[:1] in ("{", "[") and isinstance(tree := parse_json(value), dict | list):
            return normalize_value(tree, depth + 1)
        for name, pattern in _VOLATILE:
            value = pattern.sub(f"<{name}>", value)
        return _SPACE.sub(" ", value).strip()
    if isinstance(value, dict):
        # A message, or a tool call within one: its own id is irrelevant.
        identified = isinstance(value.get("role"), str) or ("name" in value and "arguments" in value)
        kept = {name: each for name, each in value.items() if not (identified and name in _IDS)}
        return {str(name): normalize_value(each, depth + 1) for name, each in kept.items()}
    if isinstance(value, list | tuple):
        return [normalize_value(each, depth + 1) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
