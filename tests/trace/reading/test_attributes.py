"""Names of attributes are OpenTelemetry's."""

from __future__ import annotations

import pytest

from llmproxy.core.dialects.messages import ToolCall
from llmproxy.core.traffic.interaction import Usage
from llmproxy.trace.reading.decoded_exchange import (
    map_to_otel_provider_name,
)
from llmproxy.trace.reading.span_builder import (
    build_request_attributes,
    build_response_attributes,
    build_tool_identity_attributes,
    build_usage_attributes,
    get_otel_operation,
)
from tests.support.messages import said, user
from tests.trace.runs import chat, decoded


@pytest.mark.parametrize(("operation", "name"), [
    ("chat.completions", "chat"), ("responses", "chat"), ("messages", "chat"),
    ("generateContent", "generate_content"), ("completions", "text_completion"), ("v2.embed", "embeddings"),
    ("embedContent", "embeddings"), ("v1.rerank", "v1.rerank"),
])  # fmt: skip
def test_operations(operation: str, name: str) -> None:
    """Four well-known ones; what has no name keeps ours."""
    assert get_otel_operation(operation) == name


def test_providers() -> None:
    """The conventions' spelling where there is one."""
    assert [map_to_otel_provider_name(name) for name in ("openai", "bedrock", "azure", "mystery")] == [
        "openai", "aws.bedrock", "azure.ai.openai", "mystery",
    ]  # fmt: skip


def test_what_is_not_known_is_left_out() -> None:
    """No attribute says 0 or null for it."""
    assert build_usage_attributes(Usage(output=0)) == {"gen_ai.usage.output_tokens": 0}
    told = build_tool_identity_attributes(ToolCall(None, "t", ""))
    assert told == {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "t"}
    found = decoded(chat(1, [user("x")], said("y"), model=None, upstream=""))
    assert "gen_ai.request.model" not in build_request_attributes(found)
    assert "server.address" not in build_request_attributes(found)


def test_of_a_request_and_an_answer() -> None:
    found = decoded(chat(1, [user("x")], said("y")))
    asked, answered = build_request_attributes(found), build_response_attributes(found)
    assert (asked["gen_ai.request.model"], asked["server.address"]) == ("gpt-4o", "api.openai.com")
    assert (asked["llmproxy.operation"], asked["llmproxy.occurrence"]) == ("chat.completions", 1)
    assert (answered["gen_ai.response.id"], answered["http.response.status_code"]) == ("chatcmpl-1", 200)
    assert "gen_ai.response.time_to_first_chunk" not in answered
