"""OTLP: one span for a call, a tool and a conversation, with the conventions' names."""

from __future__ import annotations

import json
import re

import pytest

from llmproxy.core.traffic.interaction import Key
from llmproxy.trace import Cassette, Span, SpanKind, otlp
from llmproxy.trace.reading.span_builder import build_spans
from tests.support.messages import said, user
from tests.trace.runs import NOW, Json, chat, loop, weather


def converted(cassette: Cassette, **options: bool) -> list[Json]:
    """Return the OTLP spans of a trace, attributes as a dict."""
    (resource,) = otlp(cassette, **options)["resourceSpans"]
    assert resource["resource"]["attributes"][0]["key"] == "service.name"
    (scope,) = resource["scopeSpans"]
    spans = json.loads(json.dumps(scope["spans"]))
    for span in spans:
        span["attributes"] = {each["key"]: next(iter(each["value"].values())) for each in span["attributes"]}
    return list(spans)


def wire() -> Cassette:
    return Cassette(id="c", name="weather", spans=list(build_spans(loop())))


def test_the_tree() -> None:
    """Request and answer are one CLIENT span, a tool call hangs under it, in one trace; a conversation lasts until its last span."""
    spans = converted(wire())
    names = {span["spanId"]: span["name"] for span in spans}
    assert [(span["name"], span["kind"], names.get(span.get("parentSpanId"))) for span in spans] == [
        ("chat gpt-4o", 3, "invoke_agent"),
        ("execute_tool get_weather", 1, "chat gpt-4o"),
        ("chat gpt-4o", 3, "invoke_agent"),
        ("invoke_agent", 1, None),
    ]
    assert len({span["traceId"] for span in spans}) == 1
    for span in spans:
        assert re.fullmatch("[0-9a-f]{32}", span["traceId"])
        assert re.fullmatch("[0-9a-f]{16}", span["spanId"])

    base = int(NOW) * 10**9
    times = [(int(each["startTimeUnixNano"]) - base, int(each["endTimeUnixNano"]) - base) for each in spans]
    assert times == [(10**9, 1500 * 10**6), (1500 * 10**6, 2 * 10**9), (2 * 10**9, 2500 * 10**6), (10**9, 2500 * 10**6)]


def test_attributes() -> None:
    """By the conventions' names, types and schema of messages; the system prompt apart."""
    first, tool, second, _ = converted(wire())
    assert {name: first["attributes"][name] for name in first["attributes"] if name.startswith("gen_ai.usage")} == {
        "gen_ai.usage.input_tokens": "100", "gen_ai.usage.output_tokens": "20",
        "gen_ai.usage.cache_read.input_tokens": "30", "gen_ai.usage.reasoning.output_tokens": "5",
    }  # fmt: skip
    assert first["attributes"]["gen_ai.operation.name"] == "chat"
    assert first["attributes"]["gen_ai.provider.name"] == "openai"
    assert first["attributes"]["gen_ai.response.finish_reasons"] == {"values": [{"stringValue": "tool_calls"}]}
    assert tool["attributes"]["gen_ai.tool.call.id"] == "call_1"
    assert json.loads(tool["attributes"]["gen_ai.tool.call.result"]) == {"temp": 18}

    assert json.loads(second["attributes"]["gen_ai.system_instructions"]) == [{"type": "text", "content": "Be brief."}]
    messages = json.loads(second["attributes"]["gen_ai.input.messages"])
    assert [part["type"] for message in messages for part in message["parts"]] == [
        "text", "tool_call", "tool_call_response",
    ]  # fmt: skip
    (answer,) = json.loads(second["attributes"]["gen_ai.output.messages"])
    assert answer == {
        "role": "assistant",
        "parts": [{"type": "text", "content": "18 degrees."}],
        "finish_reason": "stop",
    }


def test_content_can_be_left_out() -> None:
    """Nothing that was said, nothing that a tool answered."""
    text = json.dumps(otlp(wire(), content=False))
    for word in ("Paris", "degrees", 'temp\\\\\\"', "Be brief"):
        assert word not in text


def test_unknown_times_say_so() -> None:
    """Start and end are the same, and an attribute tells why; a request without an answer comes at the end."""
    cassette = Cassette(spans=[Span(kind=SpanKind.LLM_RESPONSE, timestamp=1.0, duration_ms=None)])
    (span,) = converted(cassette)
    assert span["startTimeUnixNano"] == span["endTimeUnixNano"]
    assert span["attributes"]["llmproxy.unknown"] == {"values": [{"stringValue": "duration"}]}
    (span,) = converted(Cassette(spans=[Span(id="1", kind=SpanKind.LLM_REQUEST, timestamp=1.0, model="m")]))
    assert span["name"] == "chat m"


def test_failures_and_attempts() -> None:
    """Status ERROR with the message; an attempt is a span of its own beside the call."""
    key = Key("v1:k")
    spans = [*build_spans([chat(1, [user("x")], None, status=429, key=key), chat(2, [user("x")], said("y"), key=key)])]
    attempt, good, agent = converted(Cassette(spans=spans))
    assert attempt["status"] == {"code": 2, "message": "HTTP 429: slow down"}
    assert attempt["parentSpanId"] == good["parentSpanId"] == agent["spanId"]
    assert "status" not in good


def test_a_trace_of_evalcraft_converts_too() -> None:
    """Spans without attributes of ours: names, tokens with the cached ones, cost."""
    spans = converted(weather())
    assert [span["name"] for span in spans] == ["llm", "execute_tool get_weather", "llm"]
    assert spans[2]["attributes"]["gen_ai.usage.input_tokens"] == "80"
    assert spans[2]["attributes"]["llmproxy.cost_usd"] == 0.0003


@pytest.mark.parametrize("value", [float("nan"), -1.0, 1e300, "soon"])
def test_odd_times_do_not_break_it(value: Json) -> None:
    (span,) = converted(
        Cassette(spans=[Span(kind=SpanKind.TOOL_CALL, timestamp=value, tool_args={"big": 1 << 70, "x": {1}})])
    )
    assert int(span["startTimeUnixNano"]) >= 0
