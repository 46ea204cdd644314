"""The conversation in a request, the answer in a response, ids that later requests may name, and a request's segments.

Nothing here raises on odd input; unknown parts are left out. Segments are the parts that people write and edit as a
whole ("tool search_orders", "message 3 (user)"), each with its JSON path. Together they contain every leaf of the body
exactly once: an unknown part is a segment of its own. A dialect's row gives the members that contain them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from enum import StrEnum
from functools import partial
from itertools import islice, zip_longest
from math import inf
from typing import Any, NamedTuple

from llmproxy.core.dialects import messages
from llmproxy.core.dialects.dialect_table import (
    RequestBodyLayout,
    find_dialect_codec,
    get_dialect_codec_or_default,
    get_provider_dialect,
)
from llmproxy.core.dialects.messages import (
    Draft,
    Message,
    as_dict,
    as_list,
    as_str,
    read_tool_call_of_any_provider,
    read_tool_result_of_any_provider,
)
from llmproxy.core.dialects.stream_events import parse_events_cached
from llmproxy.core.providers.provider_table import Family
from llmproxy.core.traffic.canonical_json import parse_json_or_none
from llmproxy.core.traffic.interaction import Interaction, Response
from llmproxy.core.traffic.json_diff import ABSENT, build_member_path, count_common_prefix, list_unequal_values

LOOKED_AT = 1000
"""Maximum entries, from the end, that are searched for the user's last words: 5 MB may contain millions."""


# Any: a JSON value.
_Part = tuple["Callable[[Any], Iterable[Message]]", Any]


def _list_system_messages(body: dict[str, Any]) -> Iterator[Message]:
    for name in ("system", "instructions", "systemInstruction", "system_instruction", "preamble"):
        if body.get(name) and (text := messages.extract_content_text(body[name])):
            yield Message("system", text)


_CONVERSATIONS = ("chat_history", "messages", "contents", "input")
_PROMPTS = ("message", "prompt", "inputText", "inputs", "query", "texts", "content", "instances")


def _list_conversation_parts(tree: dict[str, Any]) -> list[_Part]:
    found: list[_Part] = [(_list_system_messages, tree)]
    for name in _CONVERSATIONS:
        if isinstance(value := tree.get(name), str):
            found.append((messages.convert_conversation_entry, value))
        elif isinstance(value, dict):  # a single content; Replicate's input is an object
            prompt = messages.extract_content_text(value["prompt"]) if "prompt" in value else value
            found += [(_list_system_messages, value), (messages.convert_conversation_entry, prompt)]
        else:
            found.extend((messages.convert_conversation_entry, part) for part in as_list(value))
    for name in _PROMPTS:
        if isinstance(value := tree.get(name), (str, list)) and value:
            texts = isinstance(value, list) and all(isinstance(part, str) for part in value)
            role = messages.normalize_role(tree.get("role"), "user")
            parts = value if texts else [messages.extract_content_text(value)]
            found.extend((partial(messages.convert_conversation_entry, default=role), part) for part in parts if part)
            break
    return found


def _parse_unwrapped_body(body: bytes) -> dict[str, Any]:
    tree = as_dict(parse_json_or_none(body))
    return as_dict(tree.get("request")) or tree  # Code Assist wraps it


def read_request_messages(body: bytes) -> list[Message]:
    """Return the conversation of a request, system first; empty if there is none. Never raises."""
    found = (message for make, part in _list_conversation_parts(_parse_unwrapped_body(body)) for message in make(part))
    return [each for each in found if each.text or each.tool_calls or each.reasoning or each.tool_call_id]


def read_last_user_text(body: bytes) -> str | None:
    """Return the user's last typed text, else the agent's text around it; None if the last entries have none."""
    sent = None
    for make, part in islice(reversed(_list_conversation_parts(_parse_unwrapped_body(body))), LOOKED_AT):
        for message in reversed(list(make(part))):
            if message.role == "user" and message.text:
                if typed := messages.remove_system_reminders(message.text):
                    return typed
                sent = sent or message.text
    return sent


def parse_answer_body_as_message(operation: str, content_type: str, body: bytes) -> Message | None:
    """Return the answer, joined if it was streamed, as far as it was received; None if there is none. Never raises."""
    add, draft = get_dialect_codec_or_default(operation).add, Draft()
    for value in parse_events_cached(content_type, body):
        if isinstance(value, dict):
            add(draft, value)
    return draft.build_message() if draft.heard else None


def parse_model_response_message(operation: str, response: Response) -> Message | None:
    return parse_answer_body_as_message(operation, response.mime_type, response.body)


def parse_answer_as_message(one: Interaction) -> Message | None:
    return parse_model_response_message(one.operation, one.response)


_MAKERS = ("responses", "files", "containers", "conversations", "vector_stores", "batches", "threads", "assistants",
           "uploads", "evals", "videos", "skills", "fine_tuning", "messages/batches", "interactions",
           "predictions")  # fmt: skip


def list_server_made_ids(family: Family, operation: str, content_type: str, body: bytes) -> tuple[str, ...]:
    """Return the ids in a response that later requests may refer to, each once, in order. Never raises."""
    makes, names = operation.startswith(_MAKERS), get_provider_dialect(family).made_names
    if not (makes or names or ((codec := find_dialect_codec(operation)) and codec.makes_ids)):
        return ()
    values = (value for value in parse_events_cached(content_type, body) if isinstance(value, dict))
    return tuple(dict.fromkeys(found for value in values for found in _list_server_made_ids(value, names, makes=makes)))


def _list_server_made_ids(value: dict[str, Any], names: tuple[str, ...], *, makes: bool) -> Iterable[str]:
    response = as_dict(value.get("response")) or as_dict(value.get("message")) or value
    candidates: list[object] = []
    if makes and not isinstance(value.get("error"), dict):
        candidates.append(response.get("id"))
    for item in (*as_list(response.get("output")), value.get("item")):
        candidates += [as_dict(item).get("id"), as_dict(item).get("call_id")]
    waiting = as_dict(as_dict(response.get("required_action")).get("submit_tool_outputs"))
    candidates += [as_dict(call).get("id") for call in as_list(waiting.get("tool_calls"))]
    for name in ("conversation", "container"):
        delta = as_dict(as_dict(value.get("delta")).get(name))
        candidates.append(as_dict(response.get(name)).get("id") or delta.get("id"))
    for holder in (value, as_dict(value.get("file"))):
        name = as_str(holder.get("name"))
        candidates.append(name if name.startswith(names) else None)
    return [name for name in candidates if isinstance(name, str) and name]


class Kind(StrEnum):
    SYSTEM = "system"
    TOOL = "tool"
    MODEL = "model"
    PARAMETER = "parameter"
    USER = "user"
    ASSISTANT = "assistant"
    THOUGHT = "thought"
    CALL = "call"
    RESULT = "result"
    MEMBER = "member"
    """A member next to the parts of a message: its role, an id."""
    UNKNOWN = "unknown"


_RANKS = {kind: rank for rank, kind in enumerate((Kind.SYSTEM, Kind.TOOL, Kind.MODEL, Kind.PARAMETER))}
"""Order of the kinds that people edit first; the conversation follows in its own order."""
_BY_ROLE = {"system": Kind.SYSTEM, "user": Kind.USER, "assistant": Kind.ASSISTANT, "tool": Kind.RESULT}
_LIST = "tools"
_TOOL_GROUPS = ("functionDeclarations", "function_declarations", _LIST)
_HOLDERS = ("content", "parts", "message", "text")
"""Members of a message, of which the first contains its parts."""
_THOUGHTS = frozenset({"reasoning_content", "reasoning", "thinking"})
_KNOWN = frozenset({
    "text", "input_text", "output_text", "refusal", "image", "image_url", "input_image", "images", "document", "file",
    "input_file", "audio", "input_audio", "video", "video_url", "source", "inlineData", "inline_data", "fileData",
    "file_data", "cachePoint", "guardContent", "citationsContent", "search_result", "searchResult", "executableCode",
    "executable_code", "codeExecutionResult", "code_execution_result", "tool_reference", "container_upload",
})  # fmt: skip


class Segment(NamedTuple):
    kind: Kind
    name: str
    """Name for people."""
    path: str
    value: object
    own: str = ""
    """Name of a tool, a parameter or a member; for a result the name of its tool."""


class RequestDifferenceAtPath(NamedTuple):
    """A place where two requests differ; `ABSENT` on the side that lacks it."""

    where: str
    """Description for people; empty if the dialect is unknown."""
    path: str
    old: object
    new: object
    kind: str = ""
    """`Kind` of the segment; empty if the dialect is unknown."""


def list_request_segments(operation: str, body: object, most: float = inf) -> list[Segment]:
    """Return a request's segments: system prompt, tools, model, parameters, messages. Raises _TooManySegments."""
    codec = find_dialect_codec(operation)
    reader = _SegmentReader(codec.layout if codec else RequestBodyLayout(), most)
    reader.read_body("$", body)
    return sorted(reader.found, key=_rank_by_kind)


def _rank_by_kind(segment: Segment) -> int:
    return _RANKS.get(segment.kind, len(_RANKS))


_MOST = 20_000
"""Maximum segments of a request that are compared: a refusal is quick for a body of any size."""


class _TooManySegments(Exception):
    pass


class _SegmentReader:
    def __init__(self, layout: RequestBodyLayout, most: float = inf) -> None:
        self.found: list[Segment] = []
        self._layout, self._most = layout, most
        self._tools: dict[str, str] = {}
        """Tool names by the ids of calls."""

    def _add(self, kind: Kind, name: str, path: str, value: object, own: str = "") -> None:
        self.found.append(Segment(kind, name or f"{kind} {own}", path, value, own))
        if len(self.found) > self._most:
            raise _TooManySegments

    def read_body(self, path: str, body: object) -> None:
        if not isinstance(body, dict) or not body:
            self._add(Kind.UNKNOWN, "body", path, body)
            return
        layout = self._layout
        for name, value in body.items():
            here = build_member_path(path, name)
            if name == layout.wrapper and as_dict(value):
                self._layout = layout._replace(wrapper="")
                self.read_body(here, value)
            elif name in layout.system:
                self._read_system(here, value)
            elif name in layout.tools:
                self._read_tools(name, here, value)
            elif name in layout.turns:
                self._read_turns(name, here, value)
            elif name in layout.results and as_list(value):
                for n, each in enumerate(value):
                    tool = as_str(as_dict(as_dict(each).get("call")).get("name"))
                    self._add(Kind.RESULT, f"result of {tool}", f"{here}[{n}]", each, tool)
            elif name == "model":
                self._add(Kind.MODEL, name, here, value)
            else:
                self._add(Kind.PARAMETER, "", here, value, name)

    def _read_system(self, path: str, value: object) -> None:
        if as_list(as_dict(value).get("parts")):
            for name, each in as_dict(value).items():
                if name == "parts":
                    self._read_system(build_member_path(path, name), each)
                else:
                    self._add(Kind.MEMBER, f"system prompt: {name}", build_member_path(path, name), each, name)
            return
        blocks = as_list(value)
        for n, block in enumerate(blocks):
            number = f", block {n + 1}" if len(blocks) > 1 else ""
            self._add(Kind.SYSTEM, f"system prompt{number}", f"{path}[{n}]", block)
        if not blocks:
            self._add(Kind.SYSTEM, "system prompt", path, value)

    def _read_tools(self, name: str, path: str, value: object) -> None:
        for n, entry in enumerate(as_list(value)):
            self._read_tool(f"{path}[{n}]", entry)
        for inner, each in as_dict(value).items():
            if inner == _LIST and not isinstance(each, dict):
                self._read_tools(inner, build_member_path(path, inner), each)
            else:
                self._add(Kind.PARAMETER, "", build_member_path(path, inner), each, inner)
        if not as_list(value) and not as_dict(value):
            self._add(Kind.PARAMETER, "", path, value, name)

    def _read_tool(self, path: str, entry: object, space: str | None = None) -> None:
        """Add a tool, or those of a group; `space` is the prefix of names in a group."""
        tree = as_dict(entry)
        group = next((name for name in _TOOL_GROUPS if space is None and as_list(tree.get(name))), None)
        if group is None:
            inner = next((tree[name] for name in ("function", "toolSpec", "custom") if as_dict(tree.get(name))), tree)
            name = as_str(inner.get("name")) or as_str(inner.get("type")) or next(iter(inner), "")
            self._add(Kind.TOOL, "", path, entry, f"{space or ''}{name}")
            return
        own = as_str(tree.get("name"))
        for name, value in tree.items():
            here = build_member_path(path, name)
            if name != group:
                self._add(Kind.TOOL, "", here, value, own or name)
                continue
            for n, each in enumerate(value):
                self._read_tool(f"{here}[{n}]", each, f"{own}{messages.NAMESPACE}" if own else "")

    def _read_turns(self, name: str, path: str, value: object) -> None:
        entries = as_list(value)
        if as_dict(value):
            self._read_message(path, name, 0, value)
        elif entries and all(isinstance(each, (dict, str)) for each in entries):
            for n, entry in enumerate(entries):
                self._read_message(f"{path}[{n}]", f"message {n + 1}", n, entry)
        else:
            self._add(Kind.USER, f"{name} (user)", path, value)

    def _read_message(self, path: str, said: str, number: int, entry: object) -> None:
        tree = as_dict(entry)
        role = messages.normalize_role(tree.get("role"), "user").lower()
        holder = next((name for name in _HOLDERS if name in tree), None)
        if not tree or ("role" not in tree and self._read_call_result_or_thought(path, said, tree)):
            if not tree:
                self._add(Kind.USER if isinstance(entry, str) else Kind.UNKNOWN, f"{said} (user)", path, entry)
            return
        if holder is None and not tree.keys() & {"tool_calls", "function_call"}:
            self._add(Kind.UNKNOWN, f"{said}, {as_str(tree.get('type')) or 'which nobody knows'}", path, entry)
            return
        whose, tool = "system prompt" if role == "system" and not number else f"{said} ({role})", ""
        if role == "tool":
            known = self._tools.get(as_str(tree.get("tool_call_id"))) or tree.get("tool_name") or tree.get("name")
            tool = str(known or "a tool")
            whose = f"{said}, result of {tool}"
        for name, value in tree.items():
            here = build_member_path(path, name)
            parts = as_list(value)
            if name == holder and parts:
                for n, part in enumerate(parts):
                    named = whose + (f", part {n + 1}" if len(parts) > 1 else "")
                    self._read_message_part(f"{here}[{n}]", said, named, role, part, tool)
            elif name == holder:
                self._add(_BY_ROLE.get(role, Kind.UNKNOWN), whose, here, value, tool)
            elif name == "tool_calls" and parts:
                for n, call in enumerate(parts):
                    self._read_call(f"{here}[{n}]", said, as_dict(call).get("id"), call)
            elif name == "function_call" and as_dict(value):
                self._read_call(here, said, None, value)
            else:
                kind = Kind.THOUGHT if name in _THOUGHTS else Kind.MEMBER
                self._add(kind, f"{said}, thinking" if kind is Kind.THOUGHT else f"{said}: {name}", here, value, name)

    def _read_call(self, path: str, said: str, call_id: object, call: object) -> None:
        tree = as_dict(call)
        name = as_str((as_dict(tree.get("function")) or as_dict(tree.get("custom")) or tree).get("name"))
        self._tools |= {call_id: name} if isinstance(call_id, str) else {}  # else its result contains the name
        self._add(Kind.CALL, f"{said}, call of {name or 'a tool'}", path, call)

    def _read_message_part(self, path: str, said: str, whose: str, role: str, part: object, tool: str) -> None:
        tree = as_dict(part)
        if self._read_call_result_or_thought(path, said, tree):
            return
        named = as_str(tree.get("type"))
        if isinstance(part, str) or named in _KNOWN or (not named and tree.keys() & _KNOWN):
            self._add(_BY_ROLE.get(role, Kind.UNKNOWN), whose, path, part, tool)
        else:
            self._add(Kind.UNKNOWN, f"{said}, {named or next(iter(tree), '') or 'which nobody knows'}", path, part)

    def _read_call_result_or_thought(self, path: str, said: str, block: dict[str, Any]) -> bool:
        if (call := read_tool_call_of_any_provider(block)) is not None:
            self._tools |= {call[0]: as_str(call[1])} if isinstance(call[0], str) else {}
            self._add(Kind.CALL, f"{said}, call of {as_str(call[1]) or 'a tool'}", path, block)
        elif (result := read_tool_result_of_any_provider(block)) is not None:
            of = result.tool_call_id or ""
            tool = self._tools.get(of) or of or "a tool"
            self._add(Kind.RESULT, f"{said}, result of {tool}", path, block, tool)
        elif messages.is_thought_block(block):
            self._add(Kind.THOUGHT, f"{said}, thinking", path, block)
        else:
            return False
        return True


def compare_requests(operation: str, old: object, new: object, limit: int) -> list[RequestDifferenceAtPath]:
    """Return the places where two requests differ, in order of editing; tools by name, messages aligned."""
    codec, sides = find_dialect_codec(operation), []
    with suppress(_TooManySegments):
        sides = [list_request_segments(operation, each, _MOST) for each in (old, new)]
    if codec is None or not sides:
        return [RequestDifferenceAtPath("", *each) for each in list_unequal_values(old, new, limit)]
    before, after = sides
    rest = [_remove_tool_definitions(each, codec.layout) for each in (old, new)]
    found = [*_compare_tools(before, after, limit), *list_unequal_values(rest[0], rest[1], limit)]
    found = found or list_unequal_values(old, new, limit)  # only the order of tools differs
    indices = [{each.path: each for each in side} for side in (before, after)]
    told = ((_find_enclosing_segment(indices[now is not ABSENT], path), path, was, now) for path, was, now in found)
    placed = sorted(told, key=lambda each: _rank_by_kind(each[0]))[:limit]
    return [RequestDifferenceAtPath(_describe_place_of_change(*each), *each[1:], each[0].kind) for each in placed]


def _remove_tool_definitions(body: object, layout: RequestBodyLayout) -> object:
    if not isinstance(body, dict):
        return body
    kept = {}
    for name, value in sorted(body.items(), key=lambda each: each[0] in layout.turns):  # messages last, for the limit
        if name == layout.wrapper:
            kept[name] = _remove_tool_definitions(value, layout)
        elif name not in layout.tools or not value:
            kept[name] = value
        elif isinstance(value, dict):
            kept[name] = {inner: each for inner, each in value.items() if inner != _LIST or not each}
    return kept


def _compare_tools(old: list[Segment], new: list[Segment], limit: int) -> Iterator[tuple[str, object, object]]:
    sides: list[dict[str, list[Segment]]] = [{}, {}]
    for side, segments in zip(sides, (old, new), strict=True):
        for each in segments:
            if each.kind is Kind.TOOL:
                side.setdefault(each.name, []).append(each)
    for name in {**sides[1], **sides[0]}:
        for before, after in zip_longest(*(side.get(name, ()) for side in sides)):
            path = (after or before).path
            was, now = (ABSENT if each is None else each.value for each in (before, after))
            yield from ((path + inner[1:], left, right) for inner, left, right in list_unequal_values(was, now, limit))


def describe_first_change_within_tool(old: Segment, new: Segment) -> tuple[str, bool]:
    """Return ``tool search_orders: parameter limit is new`` for one tool, and whether a member of it is new or gone."""
    path, was, now = next(_compare_tools([old], [new], 1))
    return _describe_place_of_change(new, path, was, now), was is ABSENT or now is ABSENT


def _find_enclosing_segment(index: dict[str, Segment], path: str) -> Segment:
    above = path
    while above and above not in index:
        above = above[: max(above.rfind("."), above.rfind("["), 0)]
    below = [each for at, each in index.items() if at.startswith(path)] if not above else []
    told = next((each for each in below if each.kind is not Kind.MEMBER), None)
    return index.get(above) or told or Segment(Kind.UNKNOWN, path, path, None)


_ARGUMENT = re.compile(r"^(?:[\w.]*\.)?properties\.([\w-]+)")
_PLAIN = re.compile(r"(?:^|[.\]])(?:text|content|parts|thinking|json)$")


def _describe_place_of_change(segment: Segment, path: str, old: object, new: object) -> str:
    inner = path[len(segment.path) :].lstrip(".") if path.startswith(segment.path) else ""
    if segment.kind is Kind.TOOL:
        inner = _ARGUMENT.sub(r"parameter \1", inner).removeprefix("function.").removeprefix("toolSpec.")
    elif _PLAIN.search(inner):
        inner = ""
    line = ""
    if isinstance(old, str) and isinstance(new, str) and "\n" in old + new:
        line = f", line {new.count(chr(10), 0, count_common_prefix(old, new)) + 1}"
    state = " is new" if old is ABSENT else " is gone" if new is ABSENT else ""
    return f"{segment.name}{f': {inner}' if inner else ''}{line}{state}"
