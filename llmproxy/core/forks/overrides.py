"""Overrides for a recording that is replayed to a live agent: results of tools, answers of the model.

    {"tools": [{"tool": "get_weather", "nth": 2, "result": {"temp": 5}}],
     "answers": [{"call": 0, "text": "Cold.", "tool_calls": [{"name": "get_weather", "arguments": {"city": "Oslo"}}]}]}

`engine.forking` writes an answer; `replace_tool_results` replaces results in a request before its key is derived. It
recognizes structures rather than providers, as `messages` does. A result is found by the id of its call, in the same
request's history or in an earlier answer (`known`); in a dialect without ids by its tool's name, else by its position.
Overrides are parsed strictly, since one that silently does nothing is worse than none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from llmproxy.core.dialects.messages import Message, ToolCall, as_dict, as_list, convert_conversation_entry
from llmproxy.core.traffic.canonical_json import is_equal_json, parse_json_or_none
from llmproxy.did_you_mean import did_you_mean
from llmproxy.errors import MachineError, RefusedError, SettingsError, remove_program_prefix
from llmproxy.lazy_regex import late

Json = Any

MOST_CALLS = 1_000_000
_TOOL = late(r"(?P<tool>[^=]+?)(?:#(?P<nth>[0-9]{1,6}))?=(?P<value>.*)", re.DOTALL)
_ANSWER = late(r"(?P<call>[0-9]{1,6})=(?P<value>.*)", re.DOTALL)


class OverrideError(SettingsError):
    code = "llmproxy_override"


class OverrideNeedsCallArgumentsError(RefusedError):
    """The override of a result depends on the arguments of its call, which are unknown."""

    code = "llmproxy_override"


@dataclass(frozen=True, slots=True)
class ToolResultOverride:
    tool: str
    text: str
    """Result for the model, as typed."""
    nth: int | None = None
    """Number of the tool's call in a conversation, from 1; None: every call."""
    when: Mapping[str, Json] | None = None
    """Arguments that the call must have, each equal; None: any arguments."""

    def applies_to(self, nth: int, arguments: str | None) -> bool:
        """Whether it applies to this call. Raises OverrideNeedsCallArgumentsError: arguments are unknown."""
        if self.nth not in (None, nth):
            return False
        if self.when is None:
            return True
        if arguments is None:
            raise OverrideNeedsCallArgumentsError(
                f"llmproxy: a result of {self.tool} came without the call that it belongs to, so nobody can tell "
                f"whether {self.name_as_typed} is for it.",
                hint="Override it by the number of the call, or for every call.",
            )
        given = parse_json_or_none(arguments)
        return isinstance(given, dict) and all(n in given and is_equal_json(given[n], v) for n, v in self.when.items())

    @property
    def parsed_value(self) -> Json:
        """The result as a value if it is an object or a list, else the text; for dialects without texts."""
        value = parse_json_or_none(self.text) if self.text.lstrip()[:1] in ("{", "[") else None
        return self.text if value is None else value

    @property
    def name_as_typed(self) -> str:
        name = self.tool if self.nth is None else f"{self.tool}#{self.nth}"
        return name if self.when is None else f"{name}({json.dumps(self.when, ensure_ascii=False, sort_keys=True)})"

    def to_json(self) -> dict[str, Json]:
        plain = {"tool": self.tool, "nth": self.nth, "result": self.text}
        return plain if self.when is None else {**plain, "when": dict(self.when)}


@dataclass(frozen=True, slots=True)
class AnswerOverrides:
    tools: tuple[ToolResultOverride, ...] = ()
    answers: Mapping[int, Message] = field(default_factory=dict)
    """Answers by number of the agent's call to the model, from 0."""

    def __bool__(self) -> bool:
        return bool(self.tools or self.answers)

    def find_tool_override(self, tool: str, nth: int, arguments: str | None = None) -> ToolResultOverride | None:
        """Return the override of the n-th call, of its arguments, or of all. Raises OverrideNeedsCallArgumentsError."""
        mine = [each for each in reversed(self.tools) if each.tool == tool and each.applies_to(nth, arguments)]
        return min(mine, key=lambda each: (each.nth is None, each.when is None), default=None)

    def with_fallback(self, other: AnswerOverrides) -> AnswerOverrides:
        mine = {each.name_as_typed for each in self.tools}
        below = tuple(each for each in other.tools if each.name_as_typed not in mine)
        return AnswerOverrides((*below, *self.tools), {**other.answers, **self.answers})

    def redact_texts(self, hide: Callable[[str], str]) -> AnswerOverrides:
        tools = tuple(replace(each, text=hide(each.text)) for each in self.tools)
        return AnswerOverrides(tools, {n: replace(said, text=hide(said.text)) for n, said in self.answers.items()})

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


def parse_answer_overrides_from_json(value: Json) -> AnswerOverrides:
    """Return the overrides in JSON form. Raises OverrideError."""
    if value is None:
        return AnswerOverrides()
    if not isinstance(value, dict) or (unknown := sorted(set(value) - {"tools", "answers"}, key=repr)):
        what = (
            "not an object" if not isinstance(value, dict) else f"there is no {format_given_value(unknown[0])} in them"
        )
        raise OverrideError(f"llmproxy: overrides: {what}.", hint="They have: tools, answers")
    answers: dict[int, Message] = {}
    for each in _iter_checked_rows(value, "answers", {"call", "text", "tool_calls"}):
        number = _check_call_number(each.get("call"), "call", 0)
        said = {name: part for name, part in each.items() if name != "call"}
        answers[number] = parse_overriding_model_answer(said)
    rows = _iter_checked_rows(value, "tools", {"tool", "nth", "when", "result"})
    return AnswerOverrides(tuple(map(_parse_tool, rows)), answers)


def _iter_checked_rows(value: Mapping[str, Json], name: str, members: set[str]) -> Iterable[Mapping[str, Json]]:
    rows = [] if value.get(name) is None else value[name]
    if not isinstance(rows, list):
        raise OverrideError(f"llmproxy: overrides.{name} is {format_given_value(rows)}, not a list.")
    for row in rows:
        if not isinstance(row, dict) or set(row) - members:
            hint = f"Each has: {', '.join(sorted(members))}"
            raise OverrideError(f"llmproxy: overrides.{name} holds {format_given_value(row)}.", hint=hint)
        yield row


def _parse_tool(row: Mapping[str, Json]) -> ToolResultOverride:
    tool, nth = row.get("tool"), row.get("nth")
    if not isinstance(tool, str) or not tool:
        raise OverrideError(f"llmproxy: the tool of an override is {format_given_value(tool)}, not a name.")
    if "result" not in row:
        raise OverrideError(f"llmproxy: the override of {tool[:80]} has no result.")
    if (when := row.get("when")) is not None and (not isinstance(when, dict) or not when):
        raise OverrideError(f"llmproxy: when of an override is {format_given_value(when)}, not an object of arguments.")
    result = row["result"]
    text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
    return ToolResultOverride(tool, text, None if nth is None else _check_call_number(nth, "nth", 1), when)


def _check_call_number(value: Json, name: str, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < MOST_CALLS:
        raise OverrideError(f"llmproxy: {name} of an override is {format_given_value(value)}; it counts from {least}.")
    return value


def parse_overriding_model_answer(value: Json) -> Message:
    """Parse an answer, an object of text and tool calls. Raises OverrideError."""
    hint = 'An answer is a text, or {"text": "...", "tool_calls": [{"name": "...", "arguments": {...}}]}.'
    parts = value if isinstance(value, dict) and set(value) <= {"text", "tool_calls"} else {}
    text, calls = parts.get("text") or "", parts.get("tool_calls") or []
    if not isinstance(text, str) or not isinstance(calls, list) or not (text or calls or "text" in parts):
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


def parse_answer_override_options(tools: Iterable[str], answers: Iterable[str]) -> AnswerOverrides:
    """Return the overrides of --override-tool and --override-llm. Raises OverrideError."""
    found: dict[int, Message] = {}
    for text in answers:
        if (match := _ANSWER.fullmatch(text)) is None:
            raise OverrideError(
                f"--override-llm {text[:80]!r}: it must begin with the number of a call and =.",
                hint="The agent's calls of the model count from 0: --override-llm 0='It is cold.'",
            )
        if int(match["call"]) in found:
            raise OverrideError(f"--override-llm {match['call']}: given twice.")
        found[int(match["call"])] = _parse_command_line_answer(match["value"], f"--override-llm {match['call']}")
    results = tuple(map(_parse_override_tool_option, tools))
    names = [each.name_as_typed for each in results]
    if twice := [name for name in names if names.count(name) > 1]:
        raise OverrideError(f"--override-tool {twice[0][:80]}: given twice.")
    return AnswerOverrides(results, found)


def _parse_override_tool_option(text: str) -> ToolResultOverride:
    if (match := _TOOL.fullmatch(text)) is None or (match["nth"] is not None and int(match["nth"]) == 0):
        raise OverrideError(
            f"--override-tool {text[:80]!r}: it must be NAME=RESULT, or NAME#N=RESULT for the N-th call, from 1.",
            hint="""For example: --override-tool get_weather='{"temp": 5}'""",
        )
    _parse_json_like_or_none(match["value"], f"--override-tool {match['tool']}")
    return ToolResultOverride(match["tool"], match["value"], None if match["nth"] is None else int(match["nth"]))


def _parse_command_line_answer(text: str, what: str) -> Message:
    if not isinstance(value := _parse_json_like_or_none(text, what), dict):
        return Message("assistant", value if isinstance(value, str) and text.lstrip().startswith('"') else text)
    try:
        return parse_overriding_model_answer(value)
    except OverrideError as error:
        as_text = json.dumps({"text": text}, ensure_ascii=False)
        hint = f"{error.hint}\nTo answer with this very JSON as text: {as_text}"
        raise OverrideError(f"{what}: {remove_program_prefix(error.message)}", hint=hint) from error


def _parse_json_like_or_none(text: str, what: str) -> Json:
    """Return the value of a text that looks like JSON, None for other text; broken JSON is an error, not a text."""
    if text.lstrip()[:1] not in ("{", "[", '"') or not text.strip():
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        msg = f"{what}: this looks like JSON and is none: {error}."
        raise OverrideError(msg, hint="Quote it for the shell: '{\"temp\": 5}'") from error


Node = dict[str, Any]
Known = Callable[[str], "NthCallOfTool | None"]
"""Returns the call of an id that is not in the request's history."""
_LISTS = ("chat_history", "messages", "contents", "input")
_WRAPPERS = ("result", "output")
"""Members in which SDKs wrap a result for a dialect that requires an object."""


@dataclass(frozen=True, slots=True)
class NthCallOfTool:
    """A call to a tool: the n-th of its name, from 1."""

    tool: str
    nth: int
    arguments: str | None = field(default=None, compare=False)
    """As JSON; None if unknown."""


class ToolOverrideAtCall(NamedTuple):
    override: ToolResultOverride
    place: NthCallOfTool


@dataclass(slots=True)
class RequestWithReplacedToolResults:
    body: bytes
    swaps: tuple[ToolOverrideAtCall, ...] = ()
    seen: tuple[str, ...] = ()
    """Names of tools with calls or results in the request."""
    calls: dict[str, NthCallOfTool] = field(default_factory=dict)
    """Calls in its history, by id."""


def replace_tool_results(
    body: bytes, overrides: AnswerOverrides, known: Known = lambda _id: None
) -> RequestWithReplacedToolResults:
    """Replace the results of a request. A body that is no JSON object is returned unchanged."""
    if not isinstance(tree := parse_json_or_none(body), dict):
        return RequestWithReplacedToolResults(body)
    reader = _ResultSwapper(overrides, known)
    reader.swap_body_in_place(as_dict(tree.get("request")) or tree)  # Code Assist wraps it
    if reader.swaps:
        body = json.dumps(tree, separators=(",", ":")).encode()
    return RequestWithReplacedToolResults(body, tuple(reader.swaps), tuple(dict.fromkeys(reader.seen)), reader.calls)


class _ResultSwapper:
    def __init__(self, overrides: AnswerOverrides, known: Known) -> None:
        self._overrides, self._known = overrides, known
        self.swaps: list[ToolOverrideAtCall] = []
        self.seen: list[str] = []
        self.calls: dict[str, NthCallOfTool] = {}
        self._counts: dict[str, int] = {}
        self._results: dict[str, int] = {}
        self._open: list[NthCallOfTool] = []

    def swap_body_in_place(self, tree: Node) -> None:
        for name in _LISTS:
            value = tree.get(name)
            for entry in [value] if isinstance(value, dict) else as_list(value):
                if isinstance(entry, dict):
                    self._swap_entry_in_place(entry)
        self._swap_cohere_outputs(tree)

    def _swap_entry_in_place(self, entry: Node) -> None:
        for message in convert_conversation_entry(entry):
            for call in message.tool_calls:
                self._counts[call.name] = nth = self._counts.get(call.name, 0) + 1
                place = NthCallOfTool(call.name, nth, call.arguments)
                self.seen.append(call.name)
                self._open.append(place)
                if call.id:
                    self.calls[call.id] = place
        if entry.get("role") in ("tool", "function") and not _has_result_blocks(entry):
            # Chat completions, Ollama, Cohere v2, or OpenAI's old functions.
            found = self._take_override(entry.get("tool_call_id"), entry.get("tool_name") or entry.get("name"))
            if found is not None:
                entry["content"] = _build_content(entry.get("content"), found)
        else:
            for block in _iter_entry_and_blocks(entry):
                self._swap_block_in_place(block)
        self._swap_cohere_outputs(entry)

    def _take_override(self, call_id: object, name: object) -> ToolResultOverride | None:
        if (place := self._find_call_of_result(call_id, name)) is None:
            return None
        if place in self._open:
            self._open.remove(place)
        self.seen.append(place.tool)
        self._results[place.tool] = max(self._results.get(place.tool, 0), place.nth)
        if (found := self._overrides.find_tool_override(place.tool, place.nth, place.arguments)) is not None:
            self.swaps.append(ToolOverrideAtCall(found, place))
        return found

    def _find_call_of_result(self, call_id: object, name: object) -> NthCallOfTool | None:
        if isinstance(call_id, str) and call_id and (place := self.calls.get(call_id) or self._known(call_id)):
            return place
        for tool in (name, call_id):  # without ids, some clients send the tool's name as id
            if isinstance(tool, str) and tool and (tool is name or tool in self._counts):
                waiting = next((each for each in self._open if each.tool == tool), None)
                return waiting or NthCallOfTool(tool, self._results.get(tool, 0) + 1)
        return self._open[0] if self._open and not call_id else None

    def _swap_block_in_place(self, block: Node) -> None:
        kind = block.get("type")
        if kind in ("tool_result", "mcp_tool_result"):
            if (found := self._take_override(block.get("tool_use_id"), None)) is not None:
                block["content"] = _build_content(block.get("content"), found)
                block.pop("is_error", None)
        elif isinstance(kind, str) and kind.endswith("_call_output"):
            if (found := self._take_override(block.get("call_id"), None)) is not None:
                block["output"] = _build_content(block.get("output"), found)
        elif isinstance(result := block.get("toolResult"), dict):
            if (found := self._take_override(result.get("toolUseId"), None)) is not None:
                value = found.parsed_value
                result["content"] = [{"json": value} if isinstance(value, dict) else {"text": found.text}]
                if result.get("status") == "error":
                    result["status"] = "success"
        else:
            for name in ("functionResponse", "function_response"):
                if isinstance(result := block.get(name), dict):
                    found = self._take_override(result.get("id"), result.get("name"))
                    if found is not None:
                        result["response"] = _build_object(result.get("response"), found)

    def _swap_cohere_outputs(self, tree: Node) -> None:
        for result in map(as_dict, as_list(tree.get("tool_results"))):
            if (found := self._take_override(None, as_dict(result.get("call")).get("name"))) is not None:
                value = found.parsed_value
                result["outputs"] = value if isinstance(value, list) else [_build_object(None, found)]


def _has_result_blocks(entry: Node) -> bool:
    return any(block.keys() & {"functionResponse", "function_response", "toolResult"} or
               block.get("type") == "tool_result" for block in _iter_entry_and_blocks(entry))  # fmt: skip


def _iter_entry_and_blocks(entry: Node) -> Iterator[Node]:
    yield entry
    for name in ("content", "parts"):
        yield from (block for block in as_list(entry.get(name)) if isinstance(block, dict))


def _build_content(old: object, found: ToolResultOverride) -> object:
    """Return a result in the form of the old one: a text, or a list of blocks of its kind."""
    if not isinstance(old, list):
        return found.text
    first = as_dict(next((block for block in old if isinstance(block, dict)), None))
    if isinstance(document := first.get("document"), dict):  # Cohere v2
        return [{**first, "document": {**document, "data": found.text}}]
    kind = first.get("type")
    return [{"type": kind if kind in ("input_text", "output_text") else "text", "text": found.text}]


def _build_object(old: object, found: ToolResultOverride) -> object:
    """Return a result as an object, wrapped like the old one."""
    value = found.parsed_value
    wrapped = next((name for name in _WRAPPERS if isinstance(old, dict) and list(old) == [name]), None)
    if wrapped is not None and not (isinstance(value, dict) and list(value) == [wrapped]):
        return {wrapped: found.text if isinstance(as_dict(old)[wrapped], str) else value}
    return value if isinstance(value, dict) else {"result": value}


RULE = ("when", "nth", "returns")


class InvalidMock(OverrideError):
    """A mock is invalid; `inner` is its text for callers that name the place themselves."""

    def __init__(self, inner: str, *, hint: str = "") -> None:
        super().__init__(f"mock {inner}", hint=hint)
        self.inner = inner


def parse_mocks(value: Json) -> tuple[ToolResultOverride, ...]:
    """Read mocks of tests: the tool still runs, but the model reads another result. Raises InvalidMock.

        {"get_weather": {"temp": 5}}                            whatever the arguments are
        {"search": [{"when": {"city": "Oslo"}, "returns": []},  the first that applies to the call
                    {"nth": 2, "returns": "..."}, {"returns": null}]}

    A rule for one call (`nth`, from 1 in a conversation) has priority over one for its arguments (`when`, each equal),
    and that over one for all. A call without a rule keeps the tool's own result.
    """
    if not isinstance(value, Mapping) or not value:
        inner = f"takes tools and what they return, not {format_given_value(value)}"
        raise InvalidMock(inner, hint='{"get_weather": {"temp": 5}}')
    found: list[ToolResultOverride] = []
    for tool, said in value.items():
        if not isinstance(tool, str) or not tool:
            raise InvalidMock(f"names no tool by {format_given_value(tool)}")
        if isinstance(said, list | tuple):
            if not said:
                hint = "a tool that returns an empty list: [{returns: []}]"
                raise InvalidMock(f"of {tool}: an empty list has no rules", hint=hint)
            # Overrides prefer the last given; people read a list from its top.
            found += reversed([_parse_mock_rule(tool, each) for each in said])
        else:
            found.append(ToolResultOverride(tool, _dump_result(tool, said)))
    return tuple(found)


def _parse_mock_rule(tool: str, rule: Json) -> ToolResultOverride:
    hint = "a list is one of rules: [{when: {city: Oslo}, returns: ...}, {nth: 2, returns: ...}, {returns: ...}]"
    if not isinstance(rule, Mapping):
        raise InvalidMock(f"of {tool}: {format_given_value(rule)} is no rule", hint=hint)
    if (unknown := next((str(name) for name in rule if name not in RULE), None)) is not None:
        raise InvalidMock(f"of {tool}: a rule has no {unknown[:80]!r}{did_you_mean(unknown, RULE)}", hint=hint)
    if "returns" not in rule:
        raise InvalidMock(f"of {tool}: {format_given_value(rule)} does not say what it `returns`", hint=hint)
    when, nth = rule.get("when"), rule.get("nth")
    if "when" in rule and (not isinstance(when, Mapping) or not when):
        raise InvalidMock(f"of {tool}: when is {format_given_value(when)}, not arguments with their values", hint=hint)
    if "nth" in rule and (isinstance(nth, bool) or not isinstance(nth, int) or not 1 <= nth < MOST_CALLS):
        raise InvalidMock(f"of {tool}: nth is {format_given_value(nth)}; calls of a tool count from 1")
    return ToolResultOverride(
        tool, _dump_result(tool, rule["returns"]), nth, None if when is None else json.loads(_dump_result(tool, when))
    )


def _dump_result(tool: str, result: Json) -> str:
    if isinstance(result, str):
        return result
    try:
        return json.dumps(result, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidMock(f"of {tool}: {format_given_value(result)} is no JSON: {error}") from error


class UnusedMocksError(MachineError):
    """A run passed, but some of its mocked results were never used: nothing is proved about them."""

    code = "llmproxy_unmocked"


def build_unused_mocks_error(told: Mapping[str, Any] | None) -> UnusedMocksError | None:
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for row in (told or {}).get("tools") or ():
        if not row.get("inherited"):
            rows.setdefault(row["tool"], []).append(row)
    seen = list((told or {}).get("seen") or ())
    idle = [_explain_idle(tool, mine, seen) for tool, mine in rows.items() if not any(row.get("used") for row in mine)]
    hint = "`mock` names tools as the model does; take out what is not called."
    return UnusedMocksError("\n".join(idle), hint=hint) if idle else None


def _explain_idle(tool: str, rules: Sequence[Mapping[str, Any]], seen: Sequence[str]) -> str:
    if tool in seen:
        for_all = any(row.get("nth") is None and row.get("when") is None for row in rules)
        why = "no result of it was sent to the model" if for_all else "no rule is for a call of it"
        return f"mock of {tool!r} changed nothing: it was called, and {why}"
    called = ", ".join(seen) or "none"
    return f"mock of {tool!r} changed nothing: the tool was never called (called: {called}){did_you_mean(tool, seen)}"
