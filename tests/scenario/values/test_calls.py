"""Tool calls of messages and of the wire, as one list."""

from __future__ import annotations

from typing import Any

from llmproxy.scenario.values.calls import ToolCalls, merge_calls, render_message
from llmproxy.trace.observing.tool_calls import ToolUse


def wire(name: str, arguments: str = "{}", output: str | None = "seen") -> ToolUse:
    return ToolUse(name, arguments, "w", 1, 1, executed=output is not None, output=output)


def message(*names: str) -> dict[str, Any]:
    calls = [{"id": f"c{name}", "type": "function", "function": {"name": name, "arguments": "{}"}} for name in names]
    return {"role": "assistant", "content": "x", "tool_calls": calls}


def test_what_no_message_reports_comes_from_the_wire() -> None:
    """In order, with the turn in which it was called; also after the last message."""
    talk: list[dict[str, Any]] = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    found = merge_calls(talk, [0, 0], {1: [wire("look", '{"n": 1}')], 2: [wire("late")]})
    assert [(call.name, call.input, call.output, call.turn, call.source) for call in found] == [
        ("look", {"n": 1}, "seen", 0, "wire"),
        ("late", {}, "seen", 0, "wire"),
    ]


def test_a_call_that_both_show_is_one() -> None:
    """The wire gives the result that the messages lack; a second equal call stays a second call."""
    found = merge_calls([message("look", "look")], [0], {0: [wire("look"), wire("hidden")]})
    told = [(call.name, call.output, call.source) for call in found]
    assert told == [("look", "seen", "message"), ("look", None, "message"), ("hidden", "seen", "wire")]


def test_none_is_a_false_call() -> None:
    """So that `calls.last.input` needs no question first."""
    none = ToolCalls([], "look")
    assert (bool(none.last), none.first.input, none.last.name, none.inputs, len(none)) == (False, None, "look", [], 0)
    assert repr(none) == "ToolCalls([])"


def test_a_message_as_text() -> None:
    """Parts that are no text, and calls, as JSON."""
    image = {"type": "image_url", "image_url": {"url": "u"}}
    assert render_message({"role": "user", "content": [{"type": "text", "text": "see"}, image]}).startswith("see\n{")
    assert render_message({"role": "assistant", "content": None}) == ""
