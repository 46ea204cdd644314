"""Tokens and costs: one arithmetic, the unknown stays unknown."""

from __future__ import annotations

import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from llmproxy.core.dialects.stream_events import detect_framing
from llmproxy.core.dialects.usage_and_cost import (
    compute_cost,
    compute_max_call_cost,
    read_model_named_in_answer,
    read_usage,
)
from llmproxy.core.providers.provider_table import Family
from llmproxy.core.traffic.interaction import Usage
from tests.support.narrowing import known
from tests.support.traffic import exchanges

JSON = "application/json"
SSE = "text/event-stream"


def sse(*values: object) -> bytes:
    return b"".join(b"data: " + json.dumps(value).encode() + b"\n\n" for value in values) + b"data: [DONE]\n\n"


OPENAI = {
    "prompt_tokens": 10,
    "completion_tokens": 7,
    "total_tokens": 17,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 5},
}


@pytest.mark.parametrize(("family", "operation", "answer", "expected"), [
    ("openai", "chat.completions", {"usage": OPENAI}, Usage(10, 7, 4, None, 5)),
    ("openai", "responses", {"usage": {"input_tokens": 9, "output_tokens": 2, "total_tokens": 11,
     "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 3}}}, Usage(9, 2, 0, 3)),
    ("openai", "chat.completions", {"usage": {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 17,
     "completion_tokens_details": {"reasoning_tokens": 5}}}, Usage(10, 7, None, None, 5)),  # xAI
    ("openai", "chat.completions", {"usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10,
     "prompt_cache_hit_tokens": 8, "prompt_cache_miss_tokens": 1}}, Usage(9, 1, 8)),  # DeepSeek
    ("openai", "embeddings", {"usage": {"prompt_tokens": 5, "total_tokens": 5}}, Usage(5, 0)),
    ("openai", "embeddings", {"usage": {"total_tokens": 5}}, Usage(5, 0)),  # Voyage
    ("openai", "audio.transcriptions", {"usage": {"type": "duration", "seconds": 3}}, Usage()),
    ("openai", "chat.completions", {"usage": None}, Usage()),
    ("openai", "chat.completions", {"usage": {"prompt_tokens": "many", "completion_tokens": True}}, Usage()),
    ("openai", "chat.completions", [], Usage()),
    ("openai", "responses/resp_1", {"usage": {"input_tokens": 9, "output_tokens": 2}}, Usage()),
    ("anthropic", "messages", {"usage": {"input_tokens": 3, "output_tokens": 8, "cache_creation_input_tokens": 20,
     "cache_read_input_tokens": 100}}, Usage(123, 8, 100, 20)),
    ("anthropic", "count_tokens", {"input_tokens": 30}, Usage()),
    ("gemini", "generateContent", {"usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 4,
     "thoughtsTokenCount": 6, "cachedContentTokenCount": 2, "toolUsePromptTokenCount": 1, "totalTokenCount": 21}},
     Usage(11, 10, 2, None, 6)),
    ("gemini", "generateContent", {"usageMetadata": {"promptTokenCount": 10, "totalTokenCount": 10}}, Usage(10, 0)),
    ("gemini", "countTokens", {"totalTokens": 5}, Usage()),
    ("bedrock", "converse", {"usage": {"inputTokens": 5, "outputTokens": 2, "totalTokens": 7,
     "cacheReadInputTokens": 30, "cacheWriteInputTokens": 1}}, Usage(36, 2, 30, 1)),
    ("bedrock", "invoke", {"inputTextTokenCount": 4, "results": [{"tokenCount": 6, "outputText": "a"}]}, Usage(4, 6)),
    ("bedrock", "invoke", {"prompt_token_count": 4, "generation_token_count": 6}, Usage(4, 6)),
    ("ollama", "api.chat", {"done": True, "prompt_eval_count": 4, "eval_count": 6}, Usage(4, 6)),
    ("ollama", "api.chat", {"done": True, "eval_count": 6}, Usage(None, 6)),
    ("cohere", "v2.chat", {"usage": {"billed_units": {"input_tokens": 1, "output_tokens": 2},
     "tokens": {"input_tokens": 69.0, "output_tokens": 3}, "cached_tokens": 9}}, Usage(69, 3, 9)),
    ("cohere", "v1.chat", {"meta": {"tokens": {"input_tokens": 69, "output_tokens": 3}}}, Usage(69, 3)),
    ("cohere", "v2.embed", {"meta": {"billed_units": {"input_tokens": 4}}}, Usage(4, 0)),
])  # fmt: skip
def test_usage_of_answers(family: Family, operation: str, answer: object, expected: Usage) -> None:
    """Every dialect's counts become prompt tokens with the cached ones, and generated ones with the reasoning."""
    assert read_usage(family, operation, JSON, json.dumps(answer).encode()) == expected


@pytest.mark.parametrize(("family", "operation", "body", "expected"), [
    ("openai", "chat.completions", sse({"choices": [{}], "usage": None}, {"choices": [], "usage": OPENAI}),
     Usage(10, 7, 4, None, 5)),
    ("openai", "chat.completions", sse({"choices": [{}]}), Usage()),
    ("openai", "chat.completions", sse({"x_groq": {"usage": {"prompt_tokens": 1, "completion_tokens": 2}}}),
     Usage(1, 2)),
    ("openai", "chat.completions", sse({"usage": {"prompt_tokens": 1, "completion_tokens": 1}},
     {"usage": {"prompt_tokens": 1, "completion_tokens": 2}}), Usage(1, 2)),  # vLLM counts on every chunk
    ("openai", "responses", sse({"type": "response.created", "response": {"usage": None}},
     {"type": "response.completed", "response": {"usage": {"input_tokens": 5, "output_tokens": 6}}}), Usage(5, 6)),
    ("anthropic", "messages", sse(
        {"type": "message_start", "message": {"usage": {"input_tokens": 3, "cache_read_input_tokens": 7,
         "cache_creation_input_tokens": 0, "output_tokens": 1}}},
        {"type": "message_delta", "usage": {"output_tokens": 40}}), Usage(10, 40, 7, 0)),
    ("gemini", "generateContent", sse({"usageMetadata": {"promptTokenCount": 5}},
     {"usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 2}}), Usage(5, 2)),
    ("cohere", "v2.chat", sse({"type": "message-end", "delta": {"usage": {"tokens": {"input_tokens": 5,
     "output_tokens": 6}}}}), Usage(5, 6)),
])  # fmt: skip
def test_usage_of_streams(family: Family, operation: str, body: bytes, expected: Usage) -> None:
    """Of a stream the last word counts, parts told early are kept, and silence stays unknown."""
    assert read_usage(family, operation, SSE, body) == expected


def test_usage_from_headers() -> None:
    """Bedrock's older models tell their counts in headers only."""
    headers = (("X-Amzn-Bedrock-Input-Token-Count", "12"), ("x-amzn-bedrock-output-token-count", "3"))
    assert read_usage("bedrock", "invoke", JSON, b'{"completions":[]}', headers) == Usage(12, 3)


def test_model_of() -> None:
    """The model stands in a request, an answer or one of a stream's events."""
    assert read_model_named_in_answer(JSON, b'{"model":"gpt-x"}') == "gpt-x"
    assert read_model_named_in_answer(SSE, sse({"type": "ping"}, {"message": {"model": "claude"}})) == "claude"
    assert read_model_named_in_answer(SSE, sse({"response": {"model": "gpt-y"}})) == "gpt-y"
    assert read_model_named_in_answer(JSON, b'{"modelVersion":"gemini-z"}') == "gemini-z"
    assert read_model_named_in_answer(JSON, b'{"model":7}') is None


def test_cost() -> None:
    """Cached and written tokens have prices of their own; long prompts cost more where the table says so."""
    assert compute_cost("openai", "gpt-4o-mini", Usage(1_000_000, 0)) == Decimal("0.15")
    assert compute_cost("openai", "gpt-4o-mini", Usage(1_000_000, 1_000_000, 500_000)) == Decimal("0.7125")
    assert compute_cost("anthropic", "claude-3-haiku-20240307", Usage(300, 0, 100, 100)) == Decimal("0.000058")
    low, high = (known(compute_cost("gemini", "gemini-2.5-pro", Usage(count, 0))) for count in (200_000, 400_000))
    assert high == 4 * low


@pytest.mark.parametrize(("provider", "model"), [
    ("openai", "ft:gpt-4o-2024-08-06:me::abc"),
    ("bedrock", "us.anthropic.claude-3-7-sonnet-20250219-v1:0"),
    ("bedrock", "arn:aws:bedrock:us-east-1:1:inference-profile/us.anthropic.claude-3-7-sonnet-20250219-v1:0"),
    ("bedrock", "claude-3-haiku-20240307"),
    ("gemini", "models/gemini-2.5-flash"),
    ("azure", "gpt-4o"),
])  # fmt: skip
def test_names_of_models(provider: str, model: str) -> None:
    """A model is found under the names that providers and answers give it."""
    assert compute_cost(provider, model, Usage(1, 1))


def test_unknown_cost_is_none() -> None:
    """Without a price, a count or a model the cost is unknown, never 0."""
    assert compute_cost("openai", "no-such-model", Usage(1, 1)) is None
    assert compute_cost("default", "gpt-4o", Usage(1, 1)) is None
    assert compute_cost("openai", None, Usage(1, 1)) is None
    assert compute_cost("openai", "gpt-4o", Usage(1, None)) is None
    assert compute_cost("mistral", "mistral-tiny", Usage(10, 1, 5)) is None  # no price for cached tokens
    assert compute_cost("mistral", "mistral-tiny", Usage(10, 1, 0)) is not None


def test_price_file() -> None:
    """The table says where it is from and when, is small, and holds numbers or null only."""
    path = Path(__file__).resolve().parents[3] / "llmproxy" / "data" / "prices.json"
    assert path.stat().st_size < 300_000
    found = json.loads(path.read_bytes())
    assert "litellm" in found["source"]
    for models in found["prices"].values():
        for row in models.values():
            assert all(price is None or price >= 0 for price in row)
    assert all(type(tokens) is int and tokens > 0 for tokens in found["limits"].values())


def test_a_maximum_cost_is_known_without_litellm() -> None:
    """The proxy alone has no litellm, and an agent that sets no max_tokens is to be asked within --max-cost as well."""
    code = (
        "import sys; sys.modules['litellm'] = None; from llmproxy.core.dialects.usage_and_cost import compute_max_call_cost;"
        "print(compute_max_call_cost('openai', 'gpt-4o-mini', 100, {}))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "0.0098454\n"


def test_import_reads_no_prices() -> None:
    """Importing the module is cheap: the price file is read when the first cost is asked for."""
    code = "from llmproxy.core.dialects import usage_and_cost; usage_and_cost._load_price_table.cache_info().currsize and exit(1)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_real_usage(traffic: Path) -> None:
    """Of every recorded plain answer of OpenAI's dialect and Anthropic's, the usage agrees with its JSON."""
    checked = 0
    for exchange in exchanges(traffic):
        route, body = exchange.route, exchange.body
        if route is None or exchange.status != 200 or detect_framing(exchange.content_type, body) != "json":
            continue
        raw = json.loads(body).get("usage")
        if not isinstance(raw, dict) or "/" in route.operation or route.operation == "images.generations":
            continue
        usage = read_usage(route.family, route.operation, exchange.content_type, body, exchange.headers)
        if route.family == "anthropic":
            cached = (raw.get("cache_read_input_tokens") or 0) + (raw.get("cache_creation_input_tokens") or 0)
            assert (usage.input, usage.output) == (raw["input_tokens"] + cached, raw["output_tokens"]), exchange.name
        elif route.family == "openai":
            assert (usage.input or 0) + (usage.output or 0) == raw.get("total_tokens"), exchange.name
        else:
            assert usage.input is not None, exchange.name
        checked += 1
    assert checked >= 250


@pytest.mark.parametrize(
    "count", [-1, -5, 1 << 54, 1 << 63, 10**40, 1e30, float("inf"), float("nan"), True, "7", None, [], {}, 1.5]
)
def test_what_cannot_be_a_count_is_unknown(count: object) -> None:
    """A sum of them would be nonsense, and beyond 2**63 SQLite takes none: it cost other entries of the journal."""
    for name in OPENAI.keys() - {"total_tokens"}:
        body = json.dumps({"usage": {**OPENAI, name: count}}).encode()
        found = read_usage("openai", "chat.completions", JSON, body, ())
        assert all(each is None or 0 <= each <= 1 << 53 for each in (found.input, found.output, found.cached)), name
    fields = (("x-amzn-bedrock-input-token-count", str(count)), ("x-amzn-bedrock-output-token-count", "9" * 5000))
    found = read_usage("bedrock", "invoke", JSON, b"{}", fields)
    assert found.output is None
    assert found.input is None or found.input == 7


@pytest.mark.parametrize(("body", "most"), [
    ({"max_tokens": 100}, "0.0035"),
    ({"max_tokens": 100, "max_completion_tokens": 200, "n": 2}, "0.0065"),
    ({"generationConfig": {"maxOutputTokens": 100, "candidateCount": 3}}, "0.0055"),
    ({"metadata": {"max_tokens": 1}, "max_tokens": 100}, "0.0035"),
    ({"max_tokens": -1}, None),
])  # fmt: skip
def test_what_a_call_costs_at_the_most(body: dict[str, Any], most: str | None) -> None:
    """The highest limit of the request counts, for each answer that it asks for; what has none costs anything."""
    assert compute_max_call_cost("openai", "gpt-4o", 1000, body) == (None if most is None else Decimal(most))


def test_without_a_limit_the_models_own_counts() -> None:
    """A model that says more than ever before does not exceed it; of one that nobody knows nothing is known."""
    assert compute_max_call_cost("openai", "gpt-4o", 1000, {}) == Decimal("0.0025") + Decimal(16_384) * 10 / 1_000_000
    assert compute_max_call_cost("openai", "nobody-knows-it", 1000, {"max_tokens": 1}) is None
