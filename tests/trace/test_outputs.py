"""Assertions about output, budgets and loops."""

from __future__ import annotations

import re

import pydantic
import pytest

from llmproxy.trace import (
    AssertionResult,
    Cassette,
    SpanKind,
    TokenUsage,
    cost_under,
    evaluate,
    latency_under,
    no_loops,
    output_contains,
    output_json,
    output_json_schema,
    output_matches,
    token_count_under,
)
from tests.trace.runs import Json, span, tools, weather


class Answer(pydantic.BaseModel):
    temp: int


SCHEMA = {"type": "object", "required": ["temp"], "properties": {"temp": {"type": "integer"}}}
FENCED = 'Here:\n```json\n{"temp": 18}\n```\nDone.'


def said(text: str) -> Cassette:
    return Cassette(output_text=text)


@pytest.mark.parametrize(("result", "passed"), [
    (output_contains(said("Hello"), "ell"), True),
    (output_contains(said("Hello"), "HELLO"), False),
    (output_contains(said("Hello"), "HELLO", case_sensitive=False), True),
    (output_matches(said("Hello 12"), r"\d+"), True),
    (output_matches(said("Hello"), re.compile("^x")), False),
    (output_json(said('{"a": 1}')), True),
    (output_json(said(FENCED)), False),
    (output_json(said(FENCED), embedded=True), True),
    (output_json_schema(said('{"temp": 18}'), SCHEMA), True),
    (output_json_schema(said('{"temp": "x"}'), SCHEMA), False),
    (output_json_schema(said("x"), SCHEMA), False),
    (output_json_schema(said(FENCED), Answer, embedded=True), True),
    (output_json_schema(said("{}"), Answer), False),
    (cost_under(weather(), 0.0005), True),
    (cost_under(weather(), 0.0001), False),
    (token_count_under(weather(), 135), True),
    (token_count_under(weather(), 134), False),
    (latency_under(weather(), 720.5), True),
    (latency_under(weather(), 700), False),
    (no_loops(weather()), True),
    (no_loops(tools("a", "b", "a", "b")), True),
    (no_loops(tools("a", "b", "a", "b", "a")), False),
    (no_loops(tools("a", "a", "a"), max_tool_repeats=3), True),
    (no_loops(tools(*[("a", {"page": n}) for n in range(9)])), True),
], ids=str)  # fmt: skip
def test_the_table(result: AssertionResult, passed: bool) -> None:
    assert bool(result) is passed
    assert bool(result.message) is not passed


def test_what_a_schema_says_is_told_by_path() -> None:
    result = output_json_schema(said('{"temp": "x"}'), SCHEMA)
    assert result.message == "$.temp: 'x' is not of type 'integer'"
    assert result.actual == {"temp": "x"}


@pytest.mark.parametrize("schema", [{"type": "nonsense"}, 5, int, {"$ref": "#/nope"}, {"$ref": "http://127.0.0.1:9/x"}])
def test_what_is_no_schema(schema: Json) -> None:
    """The caller's mistake, not a failed assertion; nothing is fetched."""
    with pytest.raises((ValueError, TypeError)):
        output_json_schema(said("{}"), schema)


def test_a_pattern_that_every_text_matches_is_refused() -> None:
    """A text may be empty, and a pattern may say so."""
    for pattern in ("", ".*", "(yes)?", r"[\s\S]*", r"\D*", "[^x]*", "(?=.*)"):
        with pytest.raises(ValueError, match="always holds"):
            output_matches(said("Hello"), pattern)
    assert not any(output_matches(said("Hello"), each) for each in ("^$", "^(?!.*Hello)"))


def unknown_price(**members: Json) -> Cassette:
    cassette = weather()
    cassette.add_span(span(SpanKind.LLM_RESPONSE, 9, model="nobody-knows-it", **members))
    return cassette


def test_an_unknown_price_fails_a_budget() -> None:
    """However large the budget, unless the caller takes the known part for the whole: None is not 0."""
    run = unknown_price(token_usage=TokenUsage(1, 2, 3))
    result = cost_under(run, 1000)
    assert not result
    assert "The cost of 1 span is not known" in result.message
    assert cost_under(run, 1000, on_unknown="ignore")
    assert cost_under(run, 1000, on_unknown_price="ignore")
    assert token_count_under(run, 1000)
    run = unknown_price(token_usage=TokenUsage(None, 2, None), duration_ms=None)
    assert not token_count_under(run, 10**9)
    assert not latency_under(run, 10**9)
    assert latency_under(run, 10**9, on_unknown="ignore")
    with pytest.raises(ValueError, match="'fail' or 'ignore'"):
        latency_under(run, 1, on_unknown="maybe")  # type: ignore[arg-type]


def test_the_same_answer_again_and_again_is_a_loop() -> None:
    """Three times the same words in a row."""
    cassette = Cassette(spans=[span(SpanKind.LLM_RESPONSE, n, output="Let me think.") for n in range(3)])
    assert not no_loops(cassette)
    assert no_loops(cassette, max_step_repeats=3)


def test_results_together() -> None:
    """The share that passed; none at all is refused."""
    found = evaluate(output_contains(said("x"), "x"), output_contains(said("x"), "y"))
    assert (found.passed, found.score, len(found.failed_assertions)) == (False, 0.5, 1)
    with pytest.raises(ValueError, match="nothing"):
        evaluate()
    with pytest.raises(ValueError, match="always holds"):
        output_contains(said("x"), "")


def test_nothing_recorded_passes_nothing() -> None:
    """A budget is not met by a run that was not there."""
    for result in (
        cost_under(Cassette(), 1),
        no_loops(Cassette()),
        token_count_under(Cassette(), 1),
        latency_under(Cassette(), 1),
    ):
        assert not result
        assert "Nothing was recorded" in result.message
