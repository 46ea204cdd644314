"""ReplayDiff: flags, sides, what counts. A diff in a terminal, as JSON and as Markdown."""

from __future__ import annotations

import json

import pytest

from llmproxy.trace import ReplayDiff, SpanKind, render
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


PARIS = ("b", {"city": "Paris", "id": "call_abcdef12"}, {"temp": 1})
OLD = tools("a", PARIS, output_text="same\nold line", total_duration_ms=5.0)
OSLO = ("b", {"city": "Oslo", "id": "call_abcdef13"}, {"temp": 2})
NEW = tools(OSLO, "c", output_text="same\nnew line", total_duration_ms=9.0)
DIFF = ReplayDiff.compute(OLD, NEW)


def test_text_side_by_side() -> None:
    """Old on the left, new on the right, what is the same beside each other."""
    assert render(DIFF, width=60).splitlines() == [
        "Tool sequence", "  a                           |", "  b                             b",
        "                              | c", "b (call 1)", "  arguments.city  [contract]",
        '  "Paris"                     | "Oslo"', "  arguments.id  [incidental: id]",
        '  "call_abcdef12"             | "call_abcdef13"', "  result.temp  [result]",
        "  1                           | 2", "Output", "  same                          same",
        "  old line                    | new line", "Totals", "  latency  5 ms → 9 ms",
    ]  # fmt: skip


def test_colour_is_asked_for() -> None:
    """Red and green only where somebody said that the terminal can."""
    assert "\x1b[" not in render(DIFF)
    assert "\x1b[31m" in render(DIFF, color=True)


def test_json_has_everything() -> None:
    """What the original's dict leaves out is there too."""
    data = json.loads(render(DIFF, "json"))
    assert data["contract_changed"] is True
    assert (data["old_span_count"], data["new_latency_ms"]) == (2, 9.0)
    assert [change["looks"] for change in data["tool_changes"]] == [None, "id", None]


def test_markdown_for_a_pull_request() -> None:
    """A table and a fenced diff of the output."""
    text = render(DIFF, "markdown")
    assert text.startswith("**The tool contract changed.**")
    assert '| `b (call 1) arguments.city` | `"Paris"` | `"Oslo"` | contract |' in text
    assert "- old line\n+ new line" in text
    assert "| latency | 5 ms | 9 ms | not counted |" in text


def test_a_table_without_rows_is_none() -> None:
    """Where only the words of an answer changed."""
    text = render(ReplayDiff.compute(tools(output_text="x"), tools(output_text="y")), "markdown")
    assert text.startswith("**Changed; the tool contract is the same.**\n\n<details>")


def test_nothing_changed_in_every_form() -> None:
    same = ReplayDiff.compute(OLD, OLD)
    assert render(same) == "No changes detected."
    assert render(same, "markdown") == "**No changes detected.**"
    assert json.loads(render(same, "json"))["has_changes"] is False


def test_what_was_recorded_cannot_break_out() -> None:
    """Bars, backticks, line breaks and escape sequences stay text."""
    evil = "a|b`c\n\x1b[2J```"
    diff = ReplayDiff.compute(tools(("t", {"x": "1"}), output_text="x"), tools(("t", {"x": evil}), output_text=evil))
    assert "\x1b" not in render(diff)
    rows = [line for line in render(diff, "markdown").splitlines() if line.startswith("| `t")]
    assert len(rows) == 1
    assert rows[0].count("|") - rows[0].count("\\|") == 5
    assert "````diff" in render(diff, "markdown")


def test_forms_are_three() -> None:
    """Anything else is the caller's mistake."""
    with pytest.raises(ValueError, match="text, json or markdown"):
        render(DIFF, "html")  # type: ignore[arg-type]


def test_texts_before_the_output_are_shown() -> None:
    """Side by side, folded away in Markdown, as lists in JSON."""
    diff = ReplayDiff(old_texts=["Let me look.", "same"], new_texts=["Let me think.", "same"])
    assert render(diff, width=60).splitlines() == [
        "Texts before the output",
        "  Let me look.                | Let me think.",
        "  same                          same",
    ]
    assert "<details><summary>texts before the output</summary>" in render(diff, "markdown")
    assert json.loads(render(diff, "json"))["new_texts"] == ["Let me think.", "same"]


def test_a_small_cost_does_not_read_zero() -> None:
    """Money and durations stand in the totals as in every other table."""
    diff = ReplayDiff(old_cost=0.00002, new_cost=0.5, cost_changed=True, old_latency_ms=65_000.0, new_latency_ms=3.2)
    shown = render(diff)
    assert "$0.00002" in shown
    assert "$0.5000" in shown
    assert "1 min 5 s" in shown
    assert "3 ms" in shown
