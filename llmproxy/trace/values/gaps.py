"""What a trace does not say: the spans whose cost, tokens or duration should be there and is not.

A total adds up what is known. Whether it is all there is to know is asked here, so that a budget is never met by
ignorance. Pure; imports only the model.
"""

from __future__ import annotations

from collections.abc import Iterable

from llmproxy.trace.values.model import Span, SpanKind

CLIENT_ERROR = 400
"""From this status on nothing was generated, so nothing is owed."""


def count_unknown(spans: Iterable[Span]) -> dict[str, int]:
    """Return how many answers of models lack a ``cost``, ``tokens`` or a ``duration``; what lacks nowhere is left out."""
    found = {"cost": 0, "tokens": 0, "duration": 0}
    requests: dict[str, Span] = {}
    for span in spans:
        if span.kind is SpanKind.LLM_REQUEST:
            requests[span.id] = requests[""] = span  # "": the last one, for traces whose spans name no parents
        elif span.kind is SpanKind.TOOL_CALL:
            found["duration"] += span.duration_ms is None
        elif _is_answer(span):
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


def _is_answer(span: Span) -> bool:
    """Tell whether a span should say what a call cost."""
    metadata = span.metadata or {}
    status = metadata.get("http.response.status_code")
    if isinstance(status, int) and status >= CLIENT_ERROR:
        return False
    return span.kind is SpanKind.LLM_RESPONSE or bool(metadata.get("llmproxy.model_call"))
