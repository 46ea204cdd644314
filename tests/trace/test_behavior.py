"""The behaviour's fingerprint: the same for a re-recording, another for another behaviour."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from llmproxy.core.traffic.interaction import Chunk, Key, Usage
from llmproxy.trace import Cassette, Span, SpanKind, TokenUsage, behavior_fingerprint
from llmproxy.trace.reading.span_builder import build_spans
from llmproxy.trace.trace_file import replace_volatile_parts
from tests.support.messages import asks, call, result, said, user
from tests.trace.runs import SYSTEM, Json, chat, loop, span, store, tools, weather


def test_a_re_recording_has_the_same(tmp_path: Path) -> None:
    """Other ids, times, tokens, costs, keys: the same behaviour."""
    again = []
    for n, each in enumerate(loop(), 10):
        body = (
            each.response.body.replace(b"chatcmpl", b"other")
            .replace(b"2024-08-06", b"2026-01-01")
            .replace(b"call_1", b"call_zz")
        )
        request = dataclasses.replace(each.request, body=each.request.body.replace(b"call_1", b"call_zz"))
        response = dataclasses.replace(each.response, chunks=(Chunk(999, body),))
        again.append(dataclasses.replace(each, request=request, response=response, key=Key(f"v1:x{n}"), usage=Usage(1, 1),
                                         started_at=n * 100.0))  # fmt: skip
    old = Cassette.from_store(store(tmp_path / "old.db", *loop()), cassette="default")
    new = Cassette.from_store(store(tmp_path / "new.db", *again), cassette="default")
    assert old.fingerprint != new.fingerprint
    assert old.behavior_fingerprint == new.behavior_fingerprint == behavior_fingerprint(new)


def test_retries_do_not_change_it() -> None:
    """A 429 on the way is no behaviour."""
    retried = [
        chat(1, [user("x")], None, status=429, key=Key("v1:k")),
        chat(2, [user("x")], said("y"), key=Key("v1:k")),
    ]
    plain = [chat(5, [user("x")], said("y"), key=Key("v1:k"))]
    first, second = (Cassette(spans=list(build_spans(each))) for each in (retried, plain))
    assert first.behavior_fingerprint == second.behavior_fingerprint


@pytest.mark.parametrize("changed", [
    [chat(1, [SYSTEM, user("Weather in Oslo?")], asks(call()))],
    [chat(1, [SYSTEM, user("Weather in Paris?")], asks(call(arguments='{"city": "Oslo"}')))],
    [chat(1, [SYSTEM, user("Weather in Paris?")], asks(call("get_time")))],
    [chat(1, [SYSTEM, user("Weather in Paris?")], said("Sunny."))],
    [
        *loop()[:1],
        chat(2, [*[SYSTEM, user("Weather in Paris?")], asks(call()), result('{"temp": 5}')], said("18 degrees.")),
    ],
])  # fmt: skip
def test_another_behaviour_has_another(changed: list[Any]) -> None:
    """Prompt, arguments, tool, answer and result all count."""
    same = Cassette(spans=list(build_spans(loop()[: len(changed)])))
    assert Cassette(spans=list(build_spans(changed))).behavior_fingerprint != same.behavior_fingerprint


@pytest.mark.parametrize(("one", "other", "same"), [
    ({"x": 1}, {"x": 1.0}, True),
    ('{"b": 1, "a": 2}', '{"a":2,"b":1}', True),
    ("at 2024-01-01T10:00:00Z", "at 2025-02-02T11:11:11Z", True),
    ("3f2b8a7e-1111-4222-8333-444455556666", "3f2b8a7e-1111-4222-8333-444455556667", True),
    ("see /tmp/abc/x", "see /tmp/def/y", True),
    ("a  b\n", "a b", True),
    ("2024-01-01", "2024-01-02", False),
    ("room 12", "room 13", False),
    ({"id": 1}, {"id": 2}, False),
    (True, 1, False),
])  # fmt: skip
def test_what_counts_in_values(one: Json, other: Json, same: bool) -> None:
    """Moments, ids and temporary paths do not; a date, a number, an id among the arguments does."""
    first, second = tools(("t", {"v": one})), tools(("t", {"v": other}))
    assert (first.behavior_fingerprint == second.behavior_fingerprint) is same


def test_a_very_deep_value_ends() -> None:
    deep: Any = 1
    for _ in range(500):
        deep = {"x": deep}
    assert "<deep>" in str(replace_volatile_parts(deep))


def test_steps_do_not_count() -> None:
    bare = weather()
    bare.spans = [each for each in bare.spans if each.kind is not SpanKind.AGENT_STEP]
    assert bare.behavior_fingerprint == weather().behavior_fingerprint


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
    assert Cassette(spans=spans).unknown == expected
