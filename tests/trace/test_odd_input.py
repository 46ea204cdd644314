"""Whatever was recorded gives spans: nothing raises, no parent is missing, every form of it can be written."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from llmproxy.core.dialects.dialect_table import CHAT
from llmproxy.core.traffic.interaction import Chunk, Ending, Interaction, Key, Response
from llmproxy.trace import Cassette, otlp
from llmproxy.trace.reading.span_builder import build_spans
from tests.support.messages import said
from tests.trace.runs import JSON, SSE, Json, chat

MEMBERS = st.sampled_from([
    "id", "type", "role", "content", "messages", "input", "tools", "name", "function", "tool_calls", "arguments", "choices",
    "delta", "message", "index", "output", "text", "parts", "candidates", "functionCall", "functionResponse", "response",
    "toolUse", "toolResult", "contentBlockDelta", "contentBlockStart", "start", "usage", "model", "system", "finish_reason",
    "stop_reason", "error", "status", "object", "conversation", "previous_response_id", "call_id", "tool_call_id", "item",
    "tool_use_id", "contents", "args", "output_index", "event_type", "done",
])  # fmt: skip
WORDS = st.sampled_from([
    "assistant", "user", "tool", "function_call", "tool_use", "tool_result", "function_call_output", "message", "text",
    "response", "reasoning", "content_block_delta", "content_block_start", '{"a": 1}', "call_1",
])  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6) | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(MEMBERS, inner, max_size=6),
    max_leaves=25,
)
EXCHANGES: st.SearchStrategy[Json] = st.builds(
    dict,
    operation=st.sampled_from([*sorted(CHAT), "embeddings", "files"]),
    asked=VALUES,
    answered=st.lists(VALUES, max_size=4),
    kind=st.sampled_from([JSON, SSE, "application/x-ndjson", ""]),
    status=st.sampled_from([200, 200, 429, 500]),
    ending=st.sampled_from(list(Ending)),
    key=st.sampled_from("abc"),
    made_ids=st.sampled_from([(), ("resp_1",), ("call_1",)]),
)


def interaction(n: int, each: Json) -> Interaction:
    values = [json.dumps(value).encode() for value in each["answered"]]
    body = b"".join(b"data: " + value + b"\n\n" for value in values) if each["kind"] == SSE else b"\n".join(values)
    made = chat(
        n, [], said(""), operation=each["operation"], key=Key(each["key"]), made_ids=each["made_ids"], stream=n % 2 == 1
    )
    return dataclasses.replace(
        made,
        request=dataclasses.replace(made.request, body=json.dumps(each["asked"]).encode()),
        response=Response(each["status"], "", (("content-type", each["kind"]),), (Chunk(n, body),), each["ending"]),
    )


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(EXCHANGES, max_size=4))
def test_any_json(exchanges: list[Json]) -> None:
    spans = list(build_spans(interaction(n, each) for n, each in enumerate(exchanges)))
    ids = {span.id for span in spans}
    assert len(ids) == len(spans)
    assert all(span.parent_id is None or span.parent_id in ids for span in spans)
    cassette = Cassette(spans=spans)
    cassette.compute_metrics()
    again = Cassette.from_dict(json.loads(json.dumps(cassette.to_dict())))
    assert again.compute_fingerprint() == cassette.compute_fingerprint()
    assert again.behavior_fingerprint == cassette.behavior_fingerprint
    assert again.unknown == cassette.unknown
    json.dumps(otlp(cassette))


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200), st.binary(max_size=200), st.sampled_from(sorted(CHAT)))
def test_any_bytes(asked: bytes, answered: bytes, operation: str) -> None:
    """What is no JSON, no text, no stream."""
    made = chat(1, [], said(""), operation=operation, stream=True)
    for kind in (JSON, SSE, "application/vnd.amazon.eventstream"):
        response = Response(200, "", (("content-type", kind),), (Chunk(1, answered[:9]), Chunk(2, answered[9:])))
        odd = dataclasses.replace(made, request=dataclasses.replace(made.request, body=asked), response=response)
        assert next(span.name for span in build_spans([odd])) == "conversation"
