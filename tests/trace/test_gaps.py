"""What a trace does not say."""

from __future__ import annotations

import pytest

from llmproxy.trace import Span, SpanKind, TokenUsage
from llmproxy.trace.behavior import count_unknown
from tests.trace.runs import span, weather

USAGE = TokenUsage(1, 2, 3)
REQUEST, RESPONSE = SpanKind.LLM_REQUEST, SpanKind.LLM_RESPONSE


@pytest.mark.parametrize(("spans", "expected"), [
    (weather().spans, {}),
    ([], {}),
    ([span(RESPONSE, 1)], {"cost": 1, "tokens": 1}),
    ([span(RESPONSE, 1, token_usage=USAGE, cost_usd=0.0)], {}),
    ([span(RESPONSE, 1, token_usage=TokenUsage(None, 1, None), cost_usd=0.1)], {"tokens": 1}),
    ([span(RESPONSE, 1, metadata={"http.response.status_code": 429})], {}),
    ([span(REQUEST, 1, token_usage=USAGE, cost_usd=0.1), span(RESPONSE, 2)], {}),
    ([span(REQUEST, 1, token_usage=USAGE), span(RESPONSE, 2, parent_id="s1")], {"cost": 1}),
    ([span(REQUEST, 1)], {}),
    ([span(SpanKind.TOOL_CALL, 1, duration_ms=None)], {"duration": 1}),
    ([span(SpanKind.AGENT_STEP, 1, duration_ms=None)], {}),
    ([span(SpanKind.AGENT_STEP, 1, metadata={"llmproxy.model_call": True})], {"cost": 1, "tokens": 1}),
])  # fmt: skip
def test_what_lacks(spans: list[Span], expected: dict[str, int]) -> None:
    """Answers without cost or tokens, anything without its time; what a request says counts for its answer."""
    assert count_unknown(spans) == expected
