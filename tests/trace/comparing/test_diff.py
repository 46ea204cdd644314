"""ReplayDiff: flags, sides, what counts."""

from __future__ import annotations

import pytest

from llmproxy.trace import ReplayDiff, SpanKind
from tests.trace.runs import span, tools, weather


@pytest.mark.parametrize(("changes", "facts"), [
    ({}, {"has_changes": False, "summary": "No changes detected."}),
    ({"total_tokens": 999, "total_cost_usd": 1.5}, {"new_tokens": 999, "new_cost": 1.5, "summary": "Tokens: 135 → 999\nCost: $0.0005 → $1.5000"}),
    ({"output_text": "x"}, {"summary": "Output text changed"}),
    ({"total_duration_ms": 1.0}, {"old_latency_ms": 720.5, "new_latency_ms": 1.0, "has_changes": False}),
], ids=["nothing", "stored totals, whatever the spans say", "texts can be long", "no two recordings take the same time"])  # fmt: skip
def test_what_changed_is_told_in_short(changes: dict[str, object], facts: dict[str, object]) -> None:
    """The output is not shown, and latency never counts."""
    diff = ReplayDiff.compute(weather(), weather(**changes))
    assert {name: diff.summary() if name == "summary" else getattr(diff, name) for name in facts} == facts
    assert diff.fails("any") is diff.has_changes


def test_to_dict_has_the_originals_members() -> None:
    """Counts of spans are properties and not in the dict, as in the original."""
    diff = ReplayDiff.compute(weather(), tools("a"))
    assert (diff.old_span_count, diff.new_span_count, diff.span_count_changed) == (8, 1, True)
    assert set(diff.to_dict()) == {
        "has_changes", "tool_sequence_changed", "output_changed", "token_count_changed", "cost_changed",
        "span_count_changed", "old_tool_sequence", "new_tool_sequence", "old_output", "new_output", "old_tokens",
        "new_tokens", "old_cost", "new_cost", "tool_args_changed", "tool_changes",
    }  # fmt: skip


@pytest.mark.parametrize(("new", "contract", "anything"), [
    (tools(("a", {"x": 1}, 1)), False, False),
    (tools(("a", {"x": 2}, 1)), True, True),
    (tools(("a", {"x": 1}, 2)), False, True),
    (tools(("a", {"x": 1}, 1), "b"), True, True),
    (tools(("a", {"x": 1}, 1), output_text="o"), False, True),
])  # fmt: skip
def test_what_is_a_failure(new: object, contract: bool, anything: bool) -> None:
    """`contract`: which tools with which arguments; `any`: whatever changed."""
    diff = ReplayDiff.compute(tools(("a", {"x": 1}, 1)), new)  # type: ignore[arg-type]
    assert (diff.fails("contract"), diff.fails("any")) == (contract, anything)


def test_a_wrong_word_is_refused() -> None:
    """fails() knows two words."""
    with pytest.raises(ValueError, match="'contract' or 'any'"):
        ReplayDiff().fails("some")  # type: ignore[arg-type]


def test_an_intermediate_text_that_changed_is_a_change() -> None:
    """The output may be the same, and what was said on the way another; the last words are the output's own."""
    old, new = weather(), weather()
    for cassette, text in ((old, "Let me look."), (new, "Let me think.")):
        cassette.spans[2].output = text
    diff = ReplayDiff.compute(old, new)
    assert (diff.output_changed, diff.intermediate_texts_changed, diff.has_changes) == (False, True, True)
    assert (diff.old_texts, diff.new_texts) == (["Let me look."], ["Let me think."])
    assert diff.summary() == "Intermediate texts changed"
    assert diff.fails("any")
    assert not diff.fails("contract")
    assert not ReplayDiff.compute(old, old).intermediate_texts_changed


def test_a_trace_without_answers_of_a_model_is_compared_by_its_outputs() -> None:
    """Evalcraft's files may have nothing else."""
    old, new = tools("a", output_text="end"), tools("a", output_text="end")
    for cassette, text in ((old, "one"), (new, "two")):
        cassette.add_span(span(SpanKind.AGENT_OUTPUT, 8, output=text))
        cassette.add_span(span(SpanKind.AGENT_OUTPUT, 9, output="end"))
    assert ReplayDiff.compute(old, new).old_texts == ["one"]
    assert ReplayDiff.compute(old, new).has_changes
