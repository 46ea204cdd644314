"""Words that reports share."""

from __future__ import annotations

import pytest

from llmproxy.report.events import Assertion, Message, Status
from llmproxy.report.run_tree import (
    describe_assertion,
    format_content,
    format_conversation,
    format_tool_calls,
    show_value,
)
from tests.report import samples


def test_a_long_value_is_cut_and_says_how_long_it_was() -> None:
    """A line stays readable, and nobody takes the part for the whole."""
    text = show_value("x" * 5000)
    assert len(text) < 400
    assert text.endswith("… (5000 characters)")
    assert show_value({"a": [1, None]}) == '{"a": [1, null]}'


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("hi", "hi"),
        (None, ""),
        ([{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "data:"}}], "look\n[image_url]"),
        ({"odd": 1}, '{"odd": 1}'),
    ],
)
def test_content_of_every_kind_is_text(content: object, expected: str) -> None:
    """Parts that are no text are named, not dropped."""
    assert format_content({"role": "user", "content": content}) == expected


def test_tool_calls_come_from_the_wire_or_else_from_the_message() -> None:
    """What was seen on the wire wins; without it the message's own calls are shown, odd arguments as they are."""
    calls = [{"function": {"name": name, "arguments": text}} for name, text in (("f", '{"a": 1}'), ("g", "{"))]
    own = {"role": "assistant", "tool_calls": calls}
    assert list(format_tool_calls(Message(run_id="r", message=own))) == ["  f(a=1)", "  g({)"]
    wire = Message(run_id="r", message=own, tool_calls=({"name": "h", "arguments": {}, "result": {"ok": True}},))
    assert list(format_tool_calls(wire)) == ['  h() -> {"ok": true}']


def test_an_assertion_says_where_and_by_which_evidence() -> None:
    """Name, words, evidence and place stand in one line."""
    line = describe_assertion(
        Assertion(
            name="tools.x", status=Status.FAILED, message="never called", where="interaction 3", evidence="proven"
        )
    )
    assert line == "tools.x: never called (evidence: proven, interaction 3)"


def test_a_conversation_reads_in_order() -> None:
    """Tool calls come before the answer that they led to."""
    lines = format_conversation(samples.story().runs["fine-1"]).splitlines()
    assert lines[0].startswith("user: Create 'fine'")
    assert lines[1] == '  createTask(title="fine") -> {"id": 7}'
    assert lines[2].startswith("assistant: Created fine.")
