"""Texts shared by several reports: messages, assertions, run facts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from llmproxy.amount_formatting import name_some, sum_if_all_known
from llmproxy.errors import Exit
from llmproxy.report.events import Assertion, Completed, Finished, Message, PartyUse
from llmproxy.report.run_tree import Run

_LONGEST = 300
"""Maximum characters of a value on one line."""


def show_value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}… ({len(text)} characters)"


def describe_assertion(assertion: Assertion) -> str:
    said = f"{assertion.name}: {assertion.message or assertion.status.value}"
    tail = [f"evidence: {assertion.evidence}" if assertion.evidence else "", assertion.where]
    rest = ", ".join(filter(None, tail))
    return f"{said} ({rest})" if rest else said


def explain_bad_test_end(ended: Completed | None) -> str:
    """Describe a bad end that no run explains: the test did not end, or failed without a failed run (a broken
    suite).
    """
    if ended is None:
        return "the test did not end"
    if ended.exit_code in (Exit.OK, Exit.FAILED):
        return ""
    return "\n".join([*ended.notes, f"the test ended with exit code {ended.exit_code:d}"])


def format_content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list):
        return "\n".join(_format_part(part) for part in content)
    return json.dumps(content, ensure_ascii=False, default=str)


def _format_part(part: object) -> str:
    if not isinstance(part, dict):
        return str(part)
    text = part.get("text")
    return text if isinstance(text, str) else f"[{part.get('type', 'part')}]"


def format_tool_calls(message: Message) -> Iterator[str]:
    """Yield a line for each tool call of a message, its own or observed ones: name, arguments, result."""
    for call in message.tool_calls:
        said = "" if call.get("result") is None else show_value(call["result"])
        yield f"  {call.get('name')}({_format_args(call.get('arguments'))})" + (f" -> {said}" if said else "")
    if not message.tool_calls:
        for call in message.message.get("tool_calls") or ():
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict):
                yield f"  {function.get('name')}({_format_args(function.get('arguments'))})"


def _format_args(value: object) -> str:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return str(value)
    if isinstance(value, dict):
        return ", ".join(f"{name}={json.dumps(part, ensure_ascii=False, default=str)}" for name, part in value.items())
    return "" if value is None else json.dumps(value, ensure_ascii=False, default=str)


def format_conversation(run: Run) -> str:
    lines: list[str] = []
    for message in run.messages:
        lines += format_tool_calls(message)
        if text := format_content(message.message):
            lines.append(f"{message.message.get('role', '?')}: {text}")
    return "\n".join(lines)


def describe_replay_match_kinds(finished: Finished) -> str:
    """Describe a replayed run: bound answers, their variables, and answers assigned in order of arrival."""
    bound = f"{finished.bound:,} bound: {', '.join(finished.bound_names)}" if finished.bound else ""
    carried = f"{finished.carried:,} carried under {name_some(finished.carried_names)}" if finished.carried else ""
    stale = f"{finished.stale:,} older than its max age" if finished.stale else ""
    dealt = f"{finished.dealt:,} of equal requests, dealt as they came" if finished.dealt else ""
    return ", ".join(filter(None, ("replayed" if finished.replayed else "", bound, carried, stale, dealt)))


def format_run_facts(finished: Finished) -> list[str]:
    agent = finished.usage.get("agent", PartyUse())
    tokens = sum_if_all_known((agent.input_tokens, agent.output_tokens))
    facts = "" if tokens is None else f"{tokens:,} tokens", describe_replay_match_kinds(finished)
    return [*filter(None, facts), *finished.labels]
