"""The bindings of one session, and the place of each text in a request: a zone, in a tool's JSON also the call.

Places are derived from shapes rather than providers, as in the dialects. The binding rules depend on the zone (`Zone`);
in results and arguments also on the tool and its arguments, which are found by the id of the call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple

from llmproxy.core.bindings.run_variables import PATHS, RunVariable, RunVariablePair, pair_run_variables
from llmproxy.core.bindings.text_alignment import replace_text_spans
from llmproxy.core.bindings.value_forms import (
    RunValueSpelling,
    RunValueSpellingSearch,
    SpellingSearchScope,
    list_run_value_spellings,
)
from llmproxy.core.bindings.volatile_result_fields import (
    BLOCK,
    LINE,
    OUTSIDE,
    SYSTEM,
    TEXT,
    Names,
    VolatileField,
    VolatileFieldTextMatch,
    can_text_contain_volatile_field,
    find_volatile_values_after_anchor,
)
from llmproxy.core.dialects.messages import build_namespaced_tool_name, find_system_reminder_spans
from llmproxy.core.traffic.canonical_json import dump, parse_json_container
from llmproxy.core.traffic.json_diff import format_path
from llmproxy.protocol import BindingPolicy


class Bindings:
    def __init__(
        self, recorded: Iterable[RunVariable], present: Iterable[RunVariable], fields: Iterable[VolatileField] = (),
        scope: BindingPolicy = BindingPolicy.ALL,
    ) -> None:  # fmt: skip
        """Pair the run variables; `scope` PATHS keeps only cwd, home and tmp and no volatile fields, NONE nothing."""
        self.present = tuple(present)
        pairs = pair_run_variables(recorded, self.present) if scope is not BindingPolicy.NONE else ()
        if scope is BindingPolicy.PATHS:
            pairs = tuple(pair for pair in pairs if pair.name in PATHS)
        self.pairs: tuple[RunVariablePair, ...] = pairs
        self.fields: tuple[VolatileField, ...] = tuple(fields) if scope is BindingPolicy.ALL else ()
        self.json_tools = frozenset(field.tool for field in self.fields if field.at.startswith("$"))
        self.text_slots: dict[str, tuple[VolatileField, ...]] = {}
        """Volatile fields in texts, by tool: a text without any need not be searched."""
        for field in self.fields:
            if field.at in (LINE, TEXT):
                self.text_slots[field.tool] = (*self.text_slots.get(field.tool, ()), field)
        self.of_many: tuple[VolatileField, ...] = tuple(field for field in self.fields if field.tool_name_prefix)
        self.changed = frozenset(pair.name for pair in pairs if pair.has_changed)
        self.values = {pair.name: (pair.recorded.value, pair.present.value) for pair in pairs}
        declared = {each.name: each.value for each in self.present} if scope is BindingPolicy.ALL else {}
        self.git_user = declared.get("git_user", "")
        """This run's value, also if the recorded one was not kept: a file for pull requests names no person."""

    @cached_property
    def _all_forms(self) -> tuple[RunValueSpelling, ...]:
        return tuple(list_run_value_spellings(self.pairs))

    @cached_property
    def forms_in_system_text(self) -> RunValueSpellingSearch:
        """Every form: the agent's own text may contain any."""
        return RunValueSpellingSearch(self._all_forms)

    @cached_property
    def forms_of_present_values(self) -> RunValueSpellingSearch:
        """Search for present values in recorded text, where they are no variables."""
        return RunValueSpellingSearch(
            list_run_value_spellings([RunVariablePair(pair.present, pair.recorded) for pair in self.pairs])
        )

    @cached_property
    def forms_outside_system_text(self) -> RunValueSpellingSearch:
        """Forms that count in arguments, results and the model's words: no dates, no blocks."""
        return RunValueSpellingSearch(form for form in self._all_forms if form.reach is not SpellingSearchScope.AGENT)

    @cached_property
    def forms_in_user_text(self) -> RunValueSpellingSearch:
        return RunValueSpellingSearch(form for form in self._all_forms if form.reach is SpellingSearchScope.EVERYWHERE)

    @cached_property
    def answer_forms(self) -> RunValueSpellingSearch:
        return RunValueSpellingSearch(form for form in self._all_forms if form.in_answers)

    @cached_property
    def limited_to_run_paths(self) -> Bindings:
        """Bindings that may change an exact hit's answer: cwd, home and tmp, if the recorded one is that run's own."""
        pairs = [pair for pair in self.pairs if pair.recorded.is_run_specific]
        return Bindings((pair.recorded for pair in pairs), (pair.present for pair in pairs), scope=BindingPolicy.PATHS)

    def __bool__(self) -> bool:
        """Return whether anything can be bound; if not, only equal requests fit."""
        return bool(self.changed or self.fields)


def mask_bound_values_in_tool_args(bindings: Bindings, arguments: object) -> str:
    """Return a recorded call's arguments as canonical JSON with ``{name}`` for bound values, as in anchors."""
    value = parse_json_container(arguments) if isinstance(arguments, str) else arguments
    text = dump(arguments if value is None else value).decode("ascii")
    spots = bindings.forms_in_user_text.find_matches(text)
    return replace_text_spans(text, ((spot.start, spot.end, f"{{{spot.forms[0].name}}}") for spot in spots))


Node = dict[str, Any]


class Zone(StrEnum):
    SYSTEM = "system"
    """System text and descriptions of tools."""
    USER = "user"
    """The user's text, without the blocks that the agent put around it (`find_system_reminder_spans`)."""
    ASSISTANT = "assistant"
    THINKING = "thinking"
    ARGUMENTS = "arguments"
    RESULT = "result"
    OTHER = "other"


class ToolInvocation(NamedTuple):
    tool: str
    arguments: object


class LeafPlace:
    """The place of a node. One is created for each node of each request, so its path is built only on demand."""

    __slots__ = ("call", "json", "opened", "parent", "step", "zone")

    def __init__(
        self, zone: Zone = Zone.OTHER, call: ToolInvocation | None = None, parent: LeafPlace | None = None,
        step: str | int = "", *, opened: bool = False,
    ) -> None:  # fmt: skip
        """Create a place one step below `parent`; `opened`: a tool's JSON begins here."""
        self.zone, self.call = zone, call
        self.parent, self.step, self.opened = parent, step, opened
        self.json: bool = opened or (parent is not None and parent.json)
        """Whether it is inside of the JSON of arguments or of a result."""

    @property
    def member(self) -> str:
        place: LeafPlace | None = self
        while place is not None:
            if isinstance(place.step, str) and place.step:
                return place.step
            place = place.parent
        return ""

    def enter_child(self, step: str | int) -> LeafPlace:
        return LeafPlace(self.zone, self.call, self, step)

    def enter_zone(self, zone: Zone, call: ToolInvocation | None = None) -> LeafPlace:
        return LeafPlace(zone, call or self.call, self.parent, self.step, opened=self.opened)

    def enter_json(self) -> LeafPlace:
        return LeafPlace(self.zone, self.call, self.parent, self.step, opened=True)

    @property
    def path(self) -> str:
        return format_path(self.list_steps())

    @property
    def subpath(self) -> str:
        """Path in the JSON of arguments or of a result, from ``$``; empty outside of one."""
        return format_path(self.list_steps(within_json=True)) if self.json else ""

    def list_steps(self, *, within_json: bool = False) -> list[str | int]:
        """Return the member names and indexes from the request's root to here, or from the root of a tool's JSON."""
        steps: list[str | int] = []
        place: LeafPlace | None = self
        while place is not None and not (within_json and place.opened):
            steps += [place.step] if place.step != "" else []
            place = place.parent
        return steps[::-1]


_SYSTEM = frozenset(
    {"system", "instructions", "systemInstruction", "system_instruction", "preamble", "tools", "functions"}
)
_TURNS = frozenset({"messages", "input", "contents", "chat_history", "message", "prompt", "content"})
ROLES = {"system": Zone.SYSTEM, "developer": Zone.SYSTEM, "assistant": Zone.ASSISTANT, "model": Zone.ASSISTANT,
          "CHATBOT": Zone.ASSISTANT, "user": Zone.USER, "USER": Zone.USER, "SYSTEM": Zone.SYSTEM,
          "tool": Zone.RESULT, "TOOL": Zone.RESULT, "function": Zone.RESULT}  # fmt: skip
_ASKED = ("arguments", "args", "input", "parameters")
_IDS = ("call_id", "tool_use_id", "tool_call_id", "toolUseId", "id")
_RESULTS = ("toolResult", "functionResponse", "function_response")
_CALLS = ("toolUse", "functionCall", "function_call", "function")
_THOUGHTS = ("reasoning_content", "thinking", "reasoningContent")
_SPECIAL = frozenset((*_ASKED, *_RESULTS, *_CALLS, *_THOUGHTS))
_CLOSED = frozenset({Zone.ARGUMENTS, Zone.SYSTEM})
"""Zones in which no member is taken for a role or a call: a tool's arguments may have any shape."""


def derive_request_member_zone(tree: object, member: str, parent: LeafPlace | None = None) -> LeafPlace:
    place = (parent or LeafPlace()).enter_child(member)
    if member in _SYSTEM:
        return place.enter_zone(Zone.SYSTEM)
    return place.enter_zone(Zone.USER) if member in _TURNS and isinstance(tree, dict) else place


class RequestZoneMapper:
    """Maps the members of each object of a request to their zones, and collects the calls in order."""

    def __init__(self) -> None:
        self._calls: dict[str, ToolInvocation] = {}
        self._last: dict[str, ToolInvocation] = {}
        self.noted: list[tuple[str | None, ToolInvocation]] = []
        self.asked: list[tuple[Node, str | None]] = []
        """Objects taken for results of calls, with the names of the tools."""

    def note_call(self, id_: str | None, call: ToolInvocation) -> None:
        if id_ is not None:
            self._calls[id_] = call
        self._last[call.tool] = call
        self.noted.append((id_, call))

    def determine_object_zone(self, node: Node, place: LeafPlace) -> LeafPlace:
        """Return the place of an object by its role and type; record an object that is a result."""
        if place.json or place.zone in _CLOSED:
            return place
        kind, role = node.get("type"), node.get("role")
        if isinstance(kind, str) and (kind.endswith(("tool_result", "_call_output"))):
            return place.enter_zone(Zone.RESULT, self._record_result_call(node))
        if place.zone is Zone.RESULT:
            return place
        if isinstance(role, str) and role in ROLES:
            zone = ROLES[role]
            return place.enter_zone(zone, self._record_result_call(node) if zone is Zone.RESULT else None)
        if kind in ("thinking", "redacted_thinking", "reasoning") or node.get("thought") is True:
            return place.enter_zone(Zone.THINKING)
        return place

    def enter_member(self, node: Node, name: str, place: LeafPlace) -> LeafPlace:
        """Return the place of a member of an object whose own place is known."""
        if place.json or place.zone in _CLOSED or (name not in _SPECIAL and place.zone is not Zone.RESULT):
            return LeafPlace(place.zone, place.call, place, name)
        inner = place.enter_child(name)
        value = node[name]
        if place.zone is Zone.RESULT and isinstance(value, dict) and (name == "json" or _is_bare_response(name, value)):
            return inner.enter_json()
        if name in _RESULTS and isinstance(value, dict):
            return inner.enter_zone(Zone.RESULT, self._record_result_call(value))
        if name in _CALLS and isinstance(value, dict):
            self._record_tool_call(value, node.get("id") or value.get("id") or value.get("toolUseId"))
            return inner.enter_zone(Zone.ASSISTANT)
        if name in _ASKED and (tool := build_namespaced_tool_name(node)) is not None:
            call = self._record_tool_call(node, node.get("call_id") or node.get("id") or node.get("toolUseId"))
            return inner.enter_zone(Zone.ARGUMENTS, call or ToolInvocation(tool, value)).enter_json()
        return inner.enter_zone(Zone.THINKING) if name in _THOUGHTS else inner

    def transform_leaves(
        self,
        node: object,
        place: LeafPlace,
        leaf: Callable[[object, LeafPlace], object],
        named: Callable[[str, LeafPlace], str] = lambda name, _: name,
    ) -> object:
        """Return a tree with other leaves, and with other names of members inside of a tool's JSON."""
        if isinstance(node, dict):
            at = self.determine_object_zone(node, place)
            made = {}
            for name in sorted(node):
                made[name] = self.transform_leaves(node[name], self.enter_member(node, name, at), leaf, named)
            return {named(name, at) if at.json else name: made[name] for name in node}
        if isinstance(node, list):
            return [self.transform_leaves(each, place.enter_child(n), leaf, named) for n, each in enumerate(node)]
        return leaf(node, place)

    def _record_tool_call(self, node: Node, name: object) -> ToolInvocation | None:
        if (tool := build_namespaced_tool_name(node)) is None:
            return None
        call = ToolInvocation(tool, next((node[each] for each in _ASKED if each in node), None))
        self.note_call(None if name is None else str(name), call)
        return call

    def _record_result_call(self, node: Node) -> ToolInvocation | None:
        call = self._find_call(node)
        self.asked.append((node, call.tool if call is not None else None))
        return call

    def has_same_result_tools(self, asked: list[tuple[Node, str | None]]) -> bool:
        """Return whether results belong to the same tools here as at their first reading."""
        return all((call.tool if (call := self._find_call(node)) is not None else None) == tool for node, tool in asked)

    def _find_call(self, node: Node) -> ToolInvocation | None:
        for name in _IDS:
            if (value := node.get(name)) is not None and (call := self._calls.get(str(value))) is not None:
                return call
        tool = node.get("tool_name") or node.get("name")
        return self._last.get(tool, ToolInvocation(tool, None)) if isinstance(tool, str) else None


_WRAPPERS = ("output", "result", "content", "error")


def _is_bare_response(name: str, value: Node) -> bool:
    """Return whether a `functionResponse` is a tool's own object, not one in which an SDK wrapped a text."""
    return name == "response" and not (
        len(value) == 1 and isinstance(value.get(next(iter(value))), str) and next(iter(value)) in _WRAPPERS
    )


_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z_-]*")
"""A member name that contains neither a path nor an id."""


def are_member_names_stable(names: Iterable[str]) -> bool:
    """Return whether no member name of an object contains a value of a run: ``{"/tmp/a/x.py": ...}`` does."""
    return all(_PLAIN_NAME.fullmatch(name) for name in names)


def is_in_any_span(spans: list[tuple[int, int]], at: int) -> bool:
    return any(start <= at < end for start, end in spans)


def iterate_request_members(tree: object) -> Iterator[tuple[str, object, LeafPlace]]:
    """Yield the top-level members of a request's tree with their places, sorted; any other tree as a whole."""
    if not isinstance(tree, dict):
        yield "", tree, LeafPlace()
        return
    body = tree.get("request")
    for name in sorted(tree):
        if name == "request" and isinstance(body, dict):  # Code Assist wraps it
            for each in sorted(body):
                yield f"request.{each}", body[each], derive_request_member_zone(body, each, LeafPlace(step="request"))
        else:
            yield name, tree[name], derive_request_member_zone(tree, name)


def find_volatile_matches(
    fields: Sequence[VolatileField],
    call: ToolInvocation | None,
    text: str,
    names: Names,
    bound: Callable[[object], str],
) -> list[VolatileFieldTextMatch]:
    """Return the values of text volatile fields in a tool's result, or (`call` None) elsewhere; in order, disjoint."""
    wanted = [
        each
        for each in fields
        if each.at in (LINE, TEXT)
        and can_text_contain_volatile_field(each, text)
        and is_volatile_field_of_tool_result(each, call, bound)
    ]
    if not wanted:
        return []
    found = sorted(
        (each for field in wanted for each in find_volatile_values_after_anchor(field, text, names)),
        key=lambda each: (each.start, -each.end),
    )
    blocks = find_system_reminder_spans(text) if any(field.tool == BLOCK for field in wanted) else []
    kept: list[VolatileFieldTextMatch] = []
    for each in found:
        if each.field.tool == BLOCK and not is_in_any_span(blocks, each.start):
            continue
        if not kept or each.start >= kept[-1].end:
            kept.append(each)
    return kept


def list_volatile_fields_for_leaf(bindings: Bindings, place: LeafPlace) -> tuple[VolatileField, ...]:
    """Return the volatile fields possible in a text: its tool's, or those of system text in the agent's text."""
    if not (fields := bindings.text_slots):
        return ()
    if place.zone is Zone.RESULT and place.call is not None:
        tool = place.call.tool
        alike = tuple(field for field in bindings.of_many if tool.startswith(field.tool_name_prefix))
        return (*fields.get(tool, ()), *alike) if alike else fields.get(tool, ())
    anywhere = fields.get(OUTSIDE, ())
    written = {Zone.SYSTEM: SYSTEM, Zone.USER: BLOCK}.get(place.zone)
    return (*anywhere, *fields.get(written, ())) if written else anywhere


def is_volatile_field_of_tool_result(
    field: VolatileField, call: ToolInvocation | None, bound: Callable[[object], str]
) -> bool:
    """Return whether a field applies to this call's results; `bound` is `mask_bound_values_in_tool_args`."""
    if field.is_outside_of_results or call is None:
        return field.is_outside_of_results and call is None
    same = call.tool.startswith(field.tool_name_prefix) if field.tool_name_prefix else field.tool == call.tool
    return same and (not field.arguments or field.arguments == bound(call.arguments))
