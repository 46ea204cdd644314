"""Prompts for judges and simulators (``llmproxy/data/prompts``), and conversations as text.

    [1] user: What is the weather in Paris?
    [2] assistant: Let me look.
        calls get_weather({"location": "Paris"})
    [3] tool get_weather: {"degrees": 24}

Tool calls that an agent does not report come from the wire and precede the following message. Nothing is shown that
differs in another run of the same conversation: no ids, times, costs. Images, sounds and files are named, not shown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from string import Template

from llmproxy.core.traffic.canonical_json import format_value_as_one_line_json
from llmproxy.scenario.types import Message
from llmproxy.trace.observing.tool_calls import ToolUse


def fill_prompt(name: str, **values: str) -> str:
    """Return a prompt with its placeholders replaced. Raises KeyError for one without a value."""
    return Template(read_prompt_file(f"{name}.md")).substitute(values).strip()


@cache
def read_prompt_file(name: str) -> str:
    return (files("llmproxy") / "data" / "prompts" / name).read_text("utf-8")


def enclose_in_tags(tag: str, text: str) -> str:
    """Return text between tags that it cannot close."""
    return f"<{tag}>\n{text.replace(f'</{tag}', f'<\\/{tag}')}\n</{tag}>"


LONGEST_RESULT = 4000
"""Maximum characters shown of a tool's arguments or result: enough for an answer, not for a table dump."""
_DATA = re.compile(r"data:([\w.+/-]*)[;,]")


def format_transcript(messages: Sequence[Message], wire: Mapping[int, Sequence[ToolUse]] | None = None) -> str:
    return "\n".join(format_transcript_entries(messages, wire))


def format_transcript_entries(
    messages: Sequence[Message],
    wire: Mapping[int, Sequence[ToolUse]] | None = None,
    *,
    longest: int | None = LONGEST_RESULT,
) -> list[str]:
    """Return it by message, calls before each; `longest` characters of arguments and results, None: all."""
    names: dict[str, str] = {}
    found: list[str] = []
    seen = {} if any(message.get("tool_calls") for message in messages) else (wire or {})
    for place, message in enumerate(messages):
        lines = _format_message(place + 1, message, names, longest)
        found.append("\n".join([*_format_wire_calls(seen.get(place) or (), longest), *lines]))
    if late := _format_wire_calls(seen.get(len(messages)) or (), longest):
        found.append("\n".join(late))
    return found


def list_messages_visible_to_user(messages: Iterable[Message], *, show: bool = False) -> list[Message]:
    """Return a conversation as its user sees it: texts, or with `show` tool calls in brackets."""
    found: list[Message] = []
    names: dict[str, str] = {}
    for message in messages:
        calls, text = _format_tool_calls(message, names), content_to_text(message.get("content"))
        if message.get("role") == "tool":
            text = f"[{names.get(str(message.get('tool_call_id')), 'tool')} returned {_cut_text(text)}]" if show else ""
            role = "assistant"
        else:
            role = str(message.get("role"))
            if show and calls:
                text = "\n".join([*([text] if text else []), *(f"[called {call}]" for call in calls)])
        if text:
            found.append({"role": role, "content": text})
    return found


def content_to_text(content: object) -> str:
    if isinstance(content, list):
        return "\n".join(filter(None, (_format_content_part(part) for part in content)))
    return content if isinstance(content, str) else "" if content is None else format_value_as_one_line_json(content)


def _format_message(number: int, message: Message, names: dict[str, str], longest: int | None) -> list[str]:
    role = str(message.get("role", "?"))
    calls, text = _format_tool_calls(message, names, longest), content_to_text(message.get("content"))
    if role == "tool":
        name = message.get("name") or names.get(str(message.get("tool_call_id")))
        role, text = f"tool {name}" if name else "tool", _cut_text(text, longest)
    said = "" if calls and not text else f" {text or '(empty)'}"
    return [f"[{number}] {role}:{said}", *(f"    calls {call}" for call in calls)]


def _format_tool_calls(message: Message, names: dict[str, str], longest: int | None = LONGEST_RESULT) -> list[str]:
    """Return the tool calls of a message, and note the name of each by its id."""
    found = []
    for call in message.get("tool_calls") or ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            continue
        name = str(function.get("name"))
        if call.get("id"):
            names[str(call["id"])] = name
        found.append(f"{name}({_normalize_arguments(function.get('arguments'), longest)})")
    return found


def _format_wire_calls(calls: Sequence[ToolUse], longest: int | None) -> list[str]:
    lines = []
    for call in calls:
        lines.append(f"    the agent calls {call.name}({_normalize_arguments(call.arguments, longest)})")
        if call.result is not None:
            result = call.result if isinstance(call.result, str) else format_value_as_one_line_json(call.result)
            lines.append(f"    {call.name} returns {_cut_text(result, longest)}")
    return lines


def _normalize_arguments(given: object, longest: int | None) -> str:
    if isinstance(given, str):
        try:
            given = json.loads(given) if given.strip() else {}
        except (ValueError, RecursionError):
            return _cut_text(str(given), longest)
    return "" if given in ({}, None) else _cut_text(format_value_as_one_line_json(given), longest)


def _format_content_part(part: object) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        return ""
    text = part.get("text")
    if isinstance(text, str):
        return text
    kind = str(part.get("type", "part"))
    inner, source = part.get(kind), part.get(kind)
    if isinstance(inner, Mapping):
        source = inner.get("url") or inner.get("data") or inner.get("file_data")
    return f"[{kind.removesuffix('_url').removeprefix('input_')}{_describe_media_attachment(source, inner)}]"


def _describe_media_attachment(source: object, inner: object) -> str:
    name = inner.get("filename") or inner.get("format") or "" if isinstance(inner, Mapping) else ""
    said = [str(name)] if name else []
    if isinstance(source, str) and source:
        if (data := _DATA.match(source)) or "://" not in source:
            said += [data[1]] if data and data[1] else []
            said.append(f"{len(source)} characters")
        else:
            said.append(source if len(source) <= 200 else source[:200] + "...")
    return ": " + ", ".join(said) if said else ""


def _cut_text(text: str, longest: int | None = LONGEST_RESULT) -> str:
    more = 0 if longest is None else len(text) - longest
    return text if more <= 0 else f"{text[:longest]} ... ({more} more characters)"
