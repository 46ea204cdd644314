"""Overrides for a recording that is replayed to a live agent: results of tools, answers of the model.

    {"tools": [{"tool": "get_weather", "nth": 2, "result": {"temp": 5}}],
     "answers": [{"call": 0, "text": "Cold.", "tool_calls": [{"name": "get_weather", "arguments": {"city": "Oslo"}}]}]}

Values only: `forks.swap_results` replaces the results in a request, `engine.forking` writes an answer. They are parsed
strictly, since an override that silently does nothing is worse than none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from llmproxy.core.dialects.messages import Message, ToolCall
from llmproxy.core.traffic.canonical_json import equals_json, parse_json
from llmproxy.errors import RefusedError, SettingsError, remove_prefix
from llmproxy.lazy_regex import late

Json = Any

MOST_CALLS = 1_000_000
_TOOL = late(r"(?P<tool>[^=]+?)(?:#(?P<nth>[0-9]{1,6}))?=(?P<value>.*)", re.DOTALL)
_ANSWER = late(r"(?P<call>[0-9]{1,6})=(?P<value>.*)", re.DOTALL)


class OverrideError(SettingsError):
    code = "llmproxy_override"


class CallArgumentsUnknown(RefusedError):
    """The override of a result depends on the arguments of its call, which are unknown."""

    code = "llmproxy_override"


@dataclass(frozen=True, slots=True)
class ToolOverride:
    tool: str
    text: str
    """Result for the model, as typed."""
    nth: int | None = None
    """Number of the tool's call in a conversation, from 1; None: every call."""
    when: Mapping[str, Json] | None = None
    """Arguments that the call must have, each equal; None: any arguments."""

    def applies_to(self, nth: int, arguments: str | None) -> bool:
        """Return whether it applies to this call. Raises CallArgumentsUnknown if that depends on unknown arguments."""
        if self.nth not in (None, nth):
            return False
        if self.when is None:
            return True
        if arguments is None:
            raise CallArgumentsUnknown(
                f"llmproxy: a result of {self.tool} came without the call that it belongs to, so nobody can tell "
                f"whether {self.name_as_typed} is for it.",
                hint="Override it by the number of the call, or for every call.",
            )
        given = parse_json(arguments)
        return isinstance(given, dict) and all(
            name in given and equals_json(given[name], value) for name, value in self.when.items()
        )

    @property
    def parsed_value(self) -> Json:
        """The result as a value if it is an object or a list, else the text; for dialects without texts."""
        value = parse_json(self.text) if self.text.lstrip()[:1] in ("{", "[") else None
        return self.text if value is None else value

    @property
    def name_as_typed(self) -> str:
        """Name as typed, ``get_weather#2``, with the required arguments."""
        name = self.tool if self.nth is None else f"{self.tool}#{self.nth}"
        return name if self.when is None else f"{name}({json.dumps(self.when, ensure_ascii=False, sort_keys=True)})"

    def to_json(self) -> dict[str, Json]:
        plain = {"tool": self.tool, "nth": self.nth, "result": self.text}
        return plain if self.when is None else {**plain, "when": dict(self.when)}


@dataclass(frozen=True, slots=True)
class Overrides:
    tools: tuple[ToolOverride, ...] = ()
    answers: Mapping[int, Message] = field(default_factory=dict)
    """Answers by number of the agent's call to the model, from 0."""

    def __bool__(self) -> bool:
        return bool(self.tools or self.answers)

    def find_tool_override(self, tool: str, nth: int, arguments: str | None = None) -> ToolOverride | None:
        """Return the override of a tool's n-th call, else of its arguments, else all. Raises CallArgumentsUnknown."""
        mine = [each for each in reversed(self.tools) if each.tool == tool and each.applies_to(nth, arguments)]
        return min(mine, key=lambda each: (each.nth is None, each.when is None), default=None)

    def with_fallback(self, other: Overrides) -> Overrides:
        mine = {each.name_as_typed for each in self.tools}
        below = tuple(each for each in other.tools if each.name_as_typed not in mine)
        return Overrides((*below, *self.tools), {**other.answers, **self.answers})

    def redact_texts(self, hide: Callable[[str], str]) -> Overrides:
        tools = tuple(replace(each, text=hide(each.text)) for each in self.tools)
        return Overrides(tools, {n: replace(said, text=hide(said.text)) for n, said in self.answers.items()})

    def to_json(self) -> dict[str, Json]:
        return {
            "tools": [each.to_json() for each in self.tools],
            "answers": [
                {
                    "call": number,
                    "text": said.text,
                    "tool_calls": [{"name": call.name, "arguments": call.arguments} for call in said.tool_calls],
                }
                for number, said in sorted(self.answers.items())
            ],
        }


# -- from JSON


def parse_json_overrides(value: Json) -> Overrides:
    """Return the overrides in JSON form. Raises OverrideError."""
    if value is None:
        return Overrides()
    if not isinstance(value, dict) or (unknown := sorted(set(value) - {"tools", "answers"}, key=repr)):
        what = (
            "not an object" if not isinstance(value, dict) else f"there is no {format_given_value(unknown[0])} in them"
        )
        raise OverrideError(f"llmproxy: overrides: {what}.", hint="They have: tools, answers")
    answers: dict[int, Message] = {}
    for each in _iter_checked_rows(value, "answers", {"call", "text", "tool_calls"}):
        number = _check_call_number(each.get("call"), "call", 0)
        answers[number] = parse_model_answer({name: each[name] for name in ("text", "tool_calls") if name in each})
    return Overrides(
        tuple(_parse_tool(each) for each in _iter_checked_rows(value, "tools", {"tool", "nth", "when", "result"})),
        answers,
    )


def _iter_checked_rows(value: Mapping[str, Json], name: str, members: set[str]) -> Iterable[Mapping[str, Json]]:
    rows = [] if value.get(name) is None else value[name]
    if not isinstance(rows, list):
        raise OverrideError(f"llmproxy: overrides.{name} is {format_given_value(rows)}, not a list.")
    for row in rows:
        if not isinstance(row, dict) or set(row) - members:
            raise OverrideError(
                f"llmproxy: overrides.{name} holds {format_given_value(row)}.",
                hint=f"Each has: {', '.join(sorted(members))}",
            )
        yield row


def _parse_tool(row: Mapping[str, Json]) -> ToolOverride:
    tool, nth = row.get("tool"), row.get("nth")
    if not isinstance(tool, str) or not tool:
        raise OverrideError(f"llmproxy: the tool of an override is {format_given_value(tool)}, not a name.")
    if "result" not in row:
        raise OverrideError(f"llmproxy: the override of {tool[:80]} has no result.")
    when = row.get("when")
    if when is not None and (not isinstance(when, dict) or not when):
        raise OverrideError(f"llmproxy: when of an override is {format_given_value(when)}, not an object of arguments.")
    result = row["result"]
    text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
    return ToolOverride(tool, text, None if nth is None else _check_call_number(nth, "nth", 1), when)


def _check_call_number(value: Json, name: str, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < MOST_CALLS:
        raise OverrideError(f"llmproxy: {name} of an override is {format_given_value(value)}; it counts from {least}.")
    return value


def parse_model_answer(value: Json) -> Message:
    """Parse an answer, an object of text and tool calls. Raises OverrideError."""
    hint = 'An answer is a text, or {"text": "...", "tool_calls": [{"name": "...", "arguments": {...}}]}.'
    if not isinstance(value, dict) or not value or set(value) - {"text", "tool_calls"}:
        raise OverrideError(f"llmproxy: an overridden answer is {format_given_value(value)}.", hint=hint)
    text, calls = value.get("text") or "", value.get("tool_calls") or []
    if not isinstance(text, str) or not isinstance(calls, list) or not (text or calls or "text" in value):
        raise OverrideError(f"llmproxy: an overridden answer is {format_given_value(value)}.", hint=hint)
    return Message("assistant", text, tuple(_parse_overriding_tool_call(each, hint) for each in calls))


def _parse_overriding_tool_call(value: Json, hint: str) -> ToolCall:
    known = isinstance(value, dict) and set(value) <= {"name", "arguments", "id"}
    if not known or not isinstance(value.get("name"), str):
        raise OverrideError(f"llmproxy: a tool call of an overridden answer is {format_given_value(value)}.", hint=hint)
    arguments = value.get("arguments", {})
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    given = value.get("id")
    return ToolCall(given if isinstance(given, str) and given else None, value["name"], text)


def format_given_value(value: Json) -> str:
    try:
        text = json.dumps(value, ensure_ascii=True)
    except (TypeError, ValueError, RecursionError):
        text = type(value).__name__
    return text if len(text) <= 80 else text[:79] + "…"


# -- as it is typed


def parse_overrides(tools: Iterable[str], answers: Iterable[str]) -> Overrides:
    """Return the overrides of --override-tool and --override-llm. Raises OverrideError."""
    found: dict[int, Message] = {}
    for text in answers:
        match = _ANSWER.fullmatch(text)
        if match is None:
            raise OverrideError(
                f"--override-llm {text[:80]!r}: it must begin with the number of a call and =.",
                hint="The agent's calls of the model count from 0: --override-llm 0='It is cold.'",
            )
        if int(match["call"]) in found:
            raise OverrideError(f"--override-llm {match['call']}: given twice.")
        found[int(match["call"])] = _parse_command_line_answer(match["value"], f"--override-llm {match['call']}")
    return Overrides(tuple(map(_parse_override_tool_option, tools)), found)


def _parse_override_tool_option(text: str) -> ToolOverride:
    match = _TOOL.fullmatch(text)
    if match is None or (match["nth"] is not None and int(match["nth"]) == 0):
        raise OverrideError(
            f"--override-tool {text[:80]!r}: it must be NAME=RESULT, or NAME#N=RESULT for the N-th call, from 1.",
            hint="""For example: --override-tool get_weather='{"temp": 5}'""",
        )
    _parse_json_like_or_none(match["value"], f"--override-tool {match['tool']}")
    return ToolOverride(match["tool"], match["value"], None if match["nth"] is None else int(match["nth"]))


def _parse_command_line_answer(text: str, what: str) -> Message:
    value = _parse_json_like_or_none(text, what)
    if not isinstance(value, dict):
        return Message("assistant", value if isinstance(value, str) and text.lstrip().startswith('"') else text)
    try:
        return parse_model_answer(value)
    except OverrideError as error:
        as_text = json.dumps({"text": text}, ensure_ascii=False)
        hint = f"{error.hint}\nTo answer with this very JSON as text: {as_text}"
        raise OverrideError(f"{what}: {remove_prefix(error.message)}", hint=hint) from error


def _parse_json_like_or_none(text: str, what: str) -> Json:
    """Return the value of a text that looks like JSON, None for other text; broken JSON is an error, not a text."""
    if text.lstrip()[:1] not in ("{", "[", '"') or not text.strip():
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        msg = f"{what}: this looks like JSON and is none: {error}."
        raise OverrideError(msg, hint="Quote it for the shell: '{\"temp\": 5}'") from error
