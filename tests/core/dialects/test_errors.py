"""Errors of ours in the shapes of WIRE.md 3.4, exactly."""

from __future__ import annotations

import json
from typing import get_args

import pytest

from llmproxy.core.dialects.table import ERROR_HEADER, envelope, status_of_miss
from llmproxy.core.providers.table import Family
from llmproxy.core.traffic.interaction import header
from llmproxy.errors import MissError

CODE = MissError.code
TEXT = "llmproxy: no recorded response."

SHAPES = [
    ("openai", 404, {"error": {"message": TEXT, "type": CODE, "param": None, "code": CODE}}),
    ("generic", 404, {"error": {"message": TEXT, "type": CODE, "param": None, "code": CODE}}),
    ("anthropic", 404, {"type": "error", "error": {"type": "not_found_error", "message": TEXT}, "request_id": CODE}),
    ("anthropic", 400,
     {"type": "error", "error": {"type": "invalid_request_error", "message": TEXT}, "request_id": CODE}),
    ("anthropic", 413, {"type": "error", "error": {"type": "request_too_large", "message": TEXT}, "request_id": CODE}),
    ("anthropic", 502, {"type": "error", "error": {"type": "api_error", "message": TEXT}, "request_id": CODE}),
    ("gemini", 404, {"error": {"code": 404, "message": TEXT, "status": "NOT_FOUND"}}),
    ("gemini", 400, {"error": {"code": 400, "message": TEXT, "status": "INVALID_ARGUMENT"}}),
    ("gemini", 500, {"error": {"code": 500, "message": TEXT, "status": "INTERNAL"}}),
    ("gemini", 502, {"error": {"code": 502, "message": TEXT, "status": "UNAVAILABLE"}}),
    ("bedrock", 404, {"message": TEXT}),
    ("ollama", 404, {"error": TEXT}),
    ("cohere", 404, {"message": TEXT}),
]  # fmt: skip


@pytest.mark.parametrize(("family", "status", "expected"), SHAPES)
def test_shape(family: Family, status: int, expected: object) -> None:
    """Every family gets the body that its SDKs take the message from, type by type."""
    _, body = envelope(family, status, CODE, TEXT)
    assert json.loads(body) == expected


@pytest.mark.parametrize("family", get_args(Family))
def test_headers(family: Family) -> None:
    """Every envelope is JSON, forbids retries and names the code."""
    headers, _ = envelope(family, 404, CODE, TEXT)
    assert header(headers, "content-type") == "application/json"
    assert header(headers, "x-should-retry") == "false"
    assert header(headers, ERROR_HEADER) == CODE


@pytest.mark.parametrize(
    ("status", "name"),
    [(404, "ResourceNotFoundException"), (400, "ValidationException"), (502, "InternalServerException")],
)
def test_bedrock_names_the_error_in_a_header(status: int, name: str) -> None:
    """Boto reads the error's name from a header, and none of ours is one that it retries."""
    headers, _ = envelope("bedrock", status, CODE, TEXT)
    assert header(headers, "x-amzn-errortype") == name


@pytest.mark.parametrize(("family", "operation", "status"), [
    ("anthropic", "messages", 400), ("anthropic", "messages.count_tokens", 400), ("openai", "responses", 400),
    ("openai", "chat.completions", 404), ("gemini", "generateContent", 404), ("bedrock", "converse", 404),
    ("generic", "", 404),
])  # fmt: skip
def test_each_dialect_has_the_status_that_its_clients_take_best(family: Family, operation: str, status: int) -> None:
    """Where a coding agent tells them apart its row decides; every SDK takes 400 as it takes 404."""
    assert status_of_miss(family, operation) == status


@pytest.mark.parametrize(("family", "field", "status"), [
    ("anthropic", ("user-agent", "claude-cli/2.1.332 (external)"), 501),
    ("openai", ("user-agent", "claude-cli/2.1.332 (external)"), 404),
    ("openai", ("x-interaction-type", "conversation-user"), 422),
    ("openai", ("user-agent", "OpenAI/JS 5.20.1"), 422),
    ("openai", ("user-agent", "OpenAI/JS 6.0.0"), 404),
    ("anthropic", ("x-interaction-type", "conversation-user"), 422),
    ("anthropic", ("user-agent", "Anthropic/JS 0.94.0"), 400),
])  # fmt: skip
def test_a_client_that_takes_another_status_better_gets_it(family: Family, field: tuple[str, str], status: int) -> None:
    """Claude Code asks once at 501, Copilot CLI hides a 404."""
    assert status_of_miss(family, "", (field,)) == status


def test_text_says_who_speaks() -> None:
    """A text that does not start with our name gets it; one that does is left alone."""
    assert json.loads(envelope("ollama", 500, CODE, "disk full")[1]) == {"error": "llmproxy: disk full"}


def test_lone_surrogates_do_not_break_the_answer() -> None:
    """A message that quotes a damaged text is still valid UTF-8 JSON."""
    _, body = envelope("openai", 404, CODE, "llmproxy: \ud83d")
    assert json.loads(body)["error"]["message"] == "llmproxy: \\ud83d"
