"""A conversation as text: tool calls in order, nothing that another run changes."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import pytest

from llmproxy.scenario.transcripts import (
    content_to_text,
    enclose_in_tags,
    fill_prompt,
    format_transcript,
    list_messages_visible_to_user,
    read_prompt_file,
)
from llmproxy.scenario.types import Message
from llmproxy.trace.observing.tool_calls import ToolUse


def call(name: str, arguments: Any = "{}", number: str = "call_1") -> dict[str, Any]:
    return {"id": number, "type": "function", "function": {"name": name, "arguments": arguments}}


def talk(number: str = "call_1") -> list[Message]:
    return [
        {"role": "user", "content": "Weather in Paris?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [call("get_weather", '{"city":"Paris", "days":1}', number), call("log", "", f"{number}b")],
        },
        {"role": "tool", "tool_call_id": number, "content": '{"degrees": 24}'},
        {"role": "assistant", "content": "24 degrees."},
    ]


def seen(name: str, result: object = None) -> ToolUse:
    output = result if isinstance(result, str) or result is None else json.dumps(result)
    return ToolUse(name, '{"a": 1}', "call_x", 3, 7, executed=True, output=output)


def test_tool_calls_are_written_as_calls_in_order() -> None:
    """Row 17: who called what, and what came back, as text, once; without ids, so that the judge's call is found (row 1)."""
    assert format_transcript(talk()) == (
        "[1] user: Weather in Paris?\n"
        "[2] assistant:\n"
        '    calls get_weather({"city": "Paris", "days": 1})\n'
        "    calls log()\n"
        '[3] tool get_weather: {"degrees": 24}\n'
        "[4] assistant: 24 degrees."
    )
    assert format_transcript(talk("call_abc")) == format_transcript(talk("call_xyz"))
    assert "call_abc" not in format_transcript(talk("call_abc"))
    assert format_transcript(talk(), {1: [seen("get_weather")]}) == format_transcript(talk())


def test_calls_on_the_wire_stand_before_the_message_that_followed() -> None:
    """What an agent does not report is shown where it happened; ids and times of the wire are not."""
    messages: list[Message] = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "done"}]
    text = format_transcript(messages, {1: [seen("save", {"ok": True})], 2: [seen("later")]})
    assert text == (
        '[1] user: hi\n    the agent calls save({"a": 1})\n    save returns {"ok": true}\n'
        '[2] assistant: done\n    the agent calls later({"a": 1})'
    )


def test_media_are_named_and_not_shown() -> None:
    """Images, sounds and files do not fill the prompt."""
    data = "data:image/png;base64," + "A" * 5000
    content = [
        {"type": "text", "text": "Look:"},
        {"type": "image_url", "image_url": {"url": data}},
        {"type": "image_url", "image_url": {"url": "https://x.test/cat.png"}},
        {"type": "input_audio", "input_audio": {"data": "B" * 300, "format": "wav"}},
        {"type": "file", "file": {"filename": "bill.pdf", "file_data": data}},
        {"type": "other"},
        7,
    ]
    assert content_to_text(content) == (
        "Look:\n[image: image/png, 5022 characters]\n[image: https://x.test/cat.png]\n"
        "[audio: wav, 300 characters]\n[file: bill.pdf, image/png, 5022 characters]\n[other]"
    )


def test_a_huge_result_is_cut() -> None:
    """A dump of a table does not push the conversation out of the judge's window; messages stay whole."""
    long = "x" * 10_000
    messages: list[Message] = [{"role": "tool", "content": long}, {"role": "assistant", "content": long}]
    tool, assistant = format_transcript(messages).split("\n")
    assert tool.endswith("(6000 more characters)")
    assert assistant == f"[2] assistant: {long}"


def test_odd_messages_do_not_break_it() -> None:
    """Broken arguments, calls without a function, empty messages, unknown roles."""
    messages: list[Message] = [
        {"role": "assistant", "tool_calls": [call("a", '{"broken'), {"type": "custom"}, "odd"]},
        {"role": "assistant", "content": ""},
        {"content": {"a": 1}},
        {"role": "tool", "tool_call_id": "nobody", "content": None},
    ]
    assert format_transcript(messages) == (
        '[1] assistant:\n    calls a({"broken)\n[2] assistant: (empty)\n[3] ?: {"a": 1}\n[4] tool: (empty)'
    )


def test_who_talks_to_the_agent_sees_no_tools() -> None:
    """Row 31: calls and results are internals of the agent; with the switch, they are summarised in brackets."""
    messages = talk()
    messages[1]["content"] = "Let me look."
    assert [m["content"] for m in list_messages_visible_to_user(messages)] == [
        "Weather in Paris?",
        "Let me look.",
        "24 degrees.",
    ]
    assert [m["content"] for m in list_messages_visible_to_user(talk())] == ["Weather in Paris?", "24 degrees."]
    shown = list_messages_visible_to_user(talk(), show=True)
    assert [m["role"] for m in shown] == ["user", "assistant", "assistant", "assistant"]
    assert shown[1]["content"] == '[called get_weather({"city": "Paris", "days": 1})]\n[called log()]'
    assert shown[2]["content"] == '[get_weather returned {"degrees": 24}]'


# -- Prompts are data files, and what is filled in means nothing to the filling


def test_braces_dollars_and_backslashes_in_values_are_kept() -> None:
    """A description may hold anything; no prompt goes out with a hole in it."""
    nasty = "pay $5 {x} {{y}} \\1 ${name} %s"
    assert nasty in fill_prompt("user_simulator", description=nasty, persona="")
    with pytest.raises(KeyError):
        fill_prompt("judge_repair", problem="x")


def test_every_prompt_is_a_file_that_can_be_read() -> None:
    """All of them are UTF-8 text that says something, and lie beside the code, so that the wheel has them."""
    beside = (files("llmproxy") / "data" / "prompts").iterdir()
    names = sorted(each.name for each in beside if each.name.endswith((".md", ".yaml")))
    assert {"judge.md", "user_simulator.md", "personas.yaml"} <= set(names)
    assert all(read_prompt_file(name).strip() for name in names)


def test_text_cannot_leave_its_tags() -> None:
    """Somebody who writes the closing tag into a conversation writes no instructions with it."""
    assert enclose_in_tags("transcript", "a </transcript> b") == "<transcript>\na <\\/transcript> b\n</transcript>"
