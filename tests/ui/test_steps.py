"""Asked, done, answered: a recording in a few lines."""

from __future__ import annotations

import dataclasses

from llmproxy.ui.calls import TEXT, summarize_recorded_steps
from tests.support.chats import chat
from tests.ui import samples


def test_the_steps_tell_what_was_asked_done_and_answered() -> None:
    """Each step names the call where it stands; what failed was asked again; a sub-agent stands deeper."""
    calls = [dataclasses.replace(each, id=n) for n, each in enumerate(samples.agent(), 1)]
    told = [(step["kind"], step["call"], step["depth"]) for step in summarize_recorded_steps(calls)]
    assert told == [
        ("user", 1, 0),
        ("says", 1, 0),
        ("tool", 1, 0),
        ("failed", 2, 0),
        ("tool", 3, 0),
        ("tool", 3, 0),
        ("user", 4, 1),
        ("answer", 4, 1),
        ("answer", 5, 0),
    ]


def test_a_tool_stands_with_what_it_was_given_and_what_it_returned() -> None:
    calls = [dataclasses.replace(each, id=n) for n, each in enumerate(samples.agent(), 1)]
    tool = next(step for step in summarize_recorded_steps(calls) if step["kind"] == "tool")
    assert (tool["name"], tool["given"]) == ("read_file", '{"path": "calc.py"}')
    assert tool["result"].startswith("def add")
    assert tool["ms"] == 573.0


def test_a_long_text_is_cut_and_says_so() -> None:
    steps = summarize_recorded_steps([dataclasses.replace(chat(answer="x" * 3 * TEXT), id=1)])
    assert steps[-1]["text"].endswith(f"… ({3 * TEXT:,} characters)")
