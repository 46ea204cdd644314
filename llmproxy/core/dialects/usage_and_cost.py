"""The tokens and the cost of a call, with the same arithmetic for all providers, which count differently.

`input` is every prompt token and `output` every generated one (`interaction.Usage`). A missing count is None, which
never means 0; a price that is not in the table (extracted from litellm's by ``scripts/make-prices``) makes the cost
unknown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from decimal import Decimal
from functools import cache
from typing import Any, cast

from llmproxy.core.dialects.dialect_table import get_dialect_codec_or_default, get_provider_dialect
from llmproxy.core.dialects.stream_events import parse_events_cached
from llmproxy.core.providers.provider_table import PROVIDERS, Family
from llmproxy.core.traffic.interaction import Headers, Response, Usage
from llmproxy.core.traffic.websocket_frames import CONTENT_TYPE, list_json_of_websocket_side
from llmproxy.file_io import DATA
from llmproxy.lazy_regex import late

_Raw = dict[str, Any]
_NO_OUTPUT = frozenset({"embeddings", "rerank", "v1.embed", "v2.embed", "api.embed", "api.embeddings", "embedContent",
                        "batchEmbedContents"})  # fmt: skip

_INPUT = ("prompt_tokens", "input_tokens", "promptTokenCount", "inputTokens", "inputTokenCount", "inputTextTokenCount",
          "prompt_eval_count", "prompt_token_count")  # fmt: skip
_OUTPUT = ("completion_tokens", "output_tokens", "candidatesTokenCount", "outputTokens", "outputTokenCount",
           "eval_count", "generation_token_count", "responseTokenCount")  # fmt: skip
_CACHED = ("cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens", "cachedContentTokenCount",
           "cacheReadInputTokens", "cacheReadInputTokenCount", "cached_prompt_tokens")  # fmt: skip
_WRITTEN = ("cache_write_tokens", "cache_creation_input_tokens", "cacheWriteInputTokens", "cacheWriteInputTokenCount")
_REASONING = ("reasoning_tokens", "thoughtsTokenCount", "thinking_tokens")
_TOTAL = ("total_tokens", "totalTokenCount", "totalTokens")
_EXCLUSIVE = frozenset({"cache_read_input_tokens", "cache_creation_input_tokens", "cacheReadInputTokens",
                        "cacheWriteInputTokens", "cacheReadInputTokenCount", "cacheWriteInputTokenCount"})  # fmt: skip
"""Counts next to which the count of input tokens excludes the cached ones."""
_DETAILS = ("prompt_tokens_details", "completion_tokens_details", "input_tokens_details", "output_tokens_details",
            "prompt_token_details", "completion_token_details", "tokens")  # fmt: skip
_TOP = frozenset((*_INPUT[5:], *_OUTPUT[5:]))
"""Counts at the top level of the answer: Ollama, Titan, Llama."""


_MOST = 1 << 53
"""Maximum valid count: above it JSON numbers are not exact, and SQLite's range ends at 2**63."""


def _read_count(value: object) -> int | None:
    number = int(value) if isinstance(value, float) and value.is_integer() else value
    return number if type(number) is int and 0 <= number <= _MOST else None


def _first_count(raw: _Raw, names: tuple[str, ...]) -> int | None:
    return next((number for name in names if (number := _read_count(raw.get(name))) is not None), None)


def _get_at_path(value: object, *path: str) -> object:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


_PLACES = (
    ("meta", "billed_units"), ("response", "meta", "billed_units"), ("usage", "billed_units"),
    ("delta", "usage", "billed_units"), ("meta", "tokens"), ("response", "meta", "tokens"),
    ("meta",), ("response", "meta"), ("amazon-bedrock-invocationMetrics",),
    ("message", "usage"), ("response", "usage"), ("metadata", "usage"), ("delta", "usage"), ("usage",),
    ("x_groq", "usage"), ("usageMetadata",), ("response", "usageMetadata"),
)  # fmt: skip
"""Paths of a value's usage; a later one overrides an earlier one (Cohere: real tokens over billed ones)."""

COUNT_MEMBERS = frozenset({"usage", "usageMetadata", "amazon-bedrock-invocationMetrics", "prompt_eval_count",
                           "eval_count", "billed_units", "tokens"})  # fmt: skip
_HOLDERS = frozenset({place[0] for place in _PLACES} | _TOP | {"results", "totalOutputTextTokenCount"})
"""Members of which every value with usage has at least one: most values of a stream have none."""


def _iter_usage_objects(value: object) -> Iterator[_Raw]:
    if not isinstance(value, dict) or _HOLDERS.isdisjoint(value):
        return
    yield {name: value[name] for name in _TOP & value.keys()}
    for place in _PLACES:
        if isinstance(raw := _get_at_path(value, *place), dict):
            for details in _DETAILS:
                if isinstance(raw.get(details), dict):
                    yield raw[details]
            yield raw
    results = value.get("results")  # Titan counts the output per result
    if isinstance(results, list):
        counts = [_read_count(_get_at_path(result, "tokenCount")) for result in results]
        if counts and None not in counts:
            yield {"output_tokens": sum(count or 0 for count in counts)}
    if (count := _read_count(value.get("totalOutputTextTokenCount"))) is not None:
        yield {"output_tokens": count}


def _collect_counts(values: Iterable[object]) -> _Raw:
    parts = (part for value in values for part in _iter_usage_objects(value))
    return {name: count for part in parts for name, count in part.items() if count is not None}


def read_usage(family: Family, operation: str, content_type: str, body: bytes, headers: Headers = ()) -> Usage:
    """Return the token counts in a response, the last ones of a stream, or those in `headers`. Never raises."""
    if content_type.startswith(CONTENT_TYPE):
        return _sum_socket_usage(family, operation, body)
    if "/" in operation and not operation.endswith(("/runs", "/submit_tool_outputs")):  # fetching costs nothing
        return Usage()
    codec = get_dialect_codec_or_default(operation)
    found = ((codec.count_headers.get(name.lower()), value) for name, value in headers)
    raw = {name: int(value) for name, value in found if name and value.isdecimal() and len(value) < len(str(_MOST))}
    raw |= _collect_counts(parse_events_cached(content_type, body))
    if not raw:
        return Usage()
    exclusive = codec.exclusive or not _EXCLUSIVE.isdisjoint(raw)
    return _build_usage(raw, exclusive=exclusive, operation=operation, family=family)


def _sum_socket_usage(family: Family, operation: str, body: bytes) -> Usage:
    """Return the sum over a WebSocket: each of its answers is reported and billed separately."""
    sums: dict[str, int] = {}
    for value in list_json_of_websocket_side(body, "server"):
        if raw := _collect_counts([value]):
            for name, count in asdict(_build_usage(raw, exclusive=False, operation=operation, family=family)).items():
                if count is not None:
                    sums[name] = sums.get(name, 0) + count
    return Usage(**sums)


def _build_usage(raw: _Raw, *, exclusive: bool, operation: str, family: Family) -> Usage:
    total = _first_count(raw, _TOTAL)
    taken, made = _first_count(raw, _INPUT), _first_count(raw, _OUTPUT)
    cached, written, reasoning = _first_count(raw, _CACHED), _first_count(raw, _WRITTEN), _first_count(raw, _REASONING)
    if operation in _NO_OUTPUT:
        taken = total if taken is None else taken
        return Usage(taken, None if taken is None else 0, cached, written)
    if taken is not None and exclusive:
        taken += (cached or 0) + (written or 0)
    if "promptTokenCount" in raw:
        taken = (taken or 0) + (_read_count(raw.get("toolUsePromptTokenCount")) or 0)
        if made is not None or reasoning is not None:
            made = (made or 0) + (reasoning or 0)
        elif total is not None:
            made = max(total - taken, 0)
    elif (
        reasoning
        and None not in (taken, made)
        and total == (taken or 0) + (made or 0) + reasoning
        and get_provider_dialect(family).reasoning_apart
    ):
        made = (made or 0) + reasoning  # xAI's way
    return Usage(taken, made, cached, written, reasoning)


_MODELS = (("model",), ("message", "model"), ("response", "model"), ("modelVersion",), ("response", "modelVersion"),
           ("session", "model"))  # fmt: skip


def read_model_named_in_answer(content_type: str, body: bytes) -> str | None:
    said = (_get_at_path(value, *place) for value in parse_events_cached(content_type, body) for place in _MODELS)
    return next((model.removeprefix("models/") for model in said if isinstance(model, str) and model), None)


def read_model_and_fingerprint(answer: Response) -> str:
    values, places = parse_events_cached(answer.mime_type, answer.body), (*_MODELS, ("system_fingerprint",))
    said = (_get_at_path(value, *place) for value in values for place in places)
    return " ".join(dict.fromkeys(each.removeprefix("models/") for each in said if isinstance(each, str)))


_Row = tuple[Decimal | None, Decimal | None, Decimal | None, Decimal | None]
_MILLION = Decimal(1_000_000)
_DATE = late(r"(?:[-@](?:\d{4}-\d\d-\d\d|\d{8}|latest|default|preview-\d\d-\d\d|\d{3}))$")


@cache
def _load_price_table() -> dict[str, dict[str, Any]]:
    """Return prices by provider and model, and limits by model: maximum output tokens."""
    return cast(
        "dict[str, dict[str, Any]]",
        json.loads((DATA / "prices.json").read_text("utf-8"), parse_float=Decimal, parse_int=Decimal),
    )


def _list_model_spellings(provider: str, model: str) -> Iterator[str]:
    yield model
    bare = model.rpartition("/")[2] if model.startswith(("arn:", "models/")) else model
    yield bare
    if bare.startswith("ft:"):
        bare = ":".join(bare.split(":")[:2])
    for pattern, instead in PROVIDERS[provider].price_names if provider in PROVIDERS else ():
        spelt = [re.sub(pattern, each, bare) for each in instead]
        yield from spelt
        bare = spelt[0] if len(spelt) == 1 else bare
    yield bare
    yield _DATE.sub("", bare)
    yield bare.lower()


def _find_prices(provider: str, model: str, prompt: int) -> _Row | None:
    rows = _load_price_table()["prices"].get(provider, {})
    row = next((rows[name] for name in _list_model_spellings(provider, model) if name in rows), None)
    if row is None:
        return None
    threshold = row[4] if len(row) > 4 else None
    row = row[5:] if threshold is not None and prompt > threshold else row
    return cast("_Row", tuple([*row[:4], None, None, None, None][:4]))


def compute_cost(provider: str, model: str | None, usage: Usage) -> Decimal | None:
    """Return the list price of a call in USD, or None if a required price or count is unknown."""
    if model is None or usage.input is None or usage.output is None:
        return None
    if (prices := _find_prices(provider, model, usage.input)) is None:
        return None
    cached, written = usage.cached or 0, usage.cache_written or 0
    counts = max(usage.input - cached - written, 0), usage.output, cached, written
    cost = Decimal(0)
    for count, price in zip(counts, prices, strict=True):
        if count and price is None:
            return None
        cost += count * (price or 0)
    return cost / _MILLION


LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "maxOutputTokens", "maxTokens", "num_predict")
"""Members of requests that limit the generated tokens, in the body or in one of `_INNER`."""
_INNER = ("generationConfig", "generation_config", "inferenceConfig", "options")
_ANSWERS = ("n", "candidateCount", "candidate_count")
MARGIN = 1.05
"""Factor for prompt tokens, which the provider counts: today's count may be a little higher than the recorded one."""


def compute_max_call_cost(provider: str, model: str | None, prompt: int, body: Mapping[str, Any]) -> Decimal | None:
    """Return the maximum cost of a call in USD, `prompt` tokens cached or not; None: a price or a limit is unknown."""
    holders = [body, *(body[name] for name in _INNER if isinstance(body.get(name), dict))]
    said, several = ([each[name] for each in holders for name in of if each.get(name)] for of in (LIMITS, _ANSWERS))
    limits = _load_price_table()["limits"]
    tokens = max((each for each in said if type(each) is int), default=None) or int(limits.get(model or "", 0))
    if tokens <= 0:
        return None
    output = tokens * max((each for each in several if type(each) is int), default=1)
    plain, cached = (compute_cost(provider, model, Usage(prompt, output, cache_written=n or None)) for n in (0, prompt))
    return plain if plain is None or cached is None else max(plain, cached)
