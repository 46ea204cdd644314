"""A diff in a terminal, as JSON and as Markdown."""

from __future__ import annotations

import json

import pytest

from llmproxy.trace import ReplayDiff, render
from tests.trace.runs import tools

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
