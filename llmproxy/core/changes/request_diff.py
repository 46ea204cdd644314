"""The changes between two requests at one place, or the reason why the recorded answer does not apply.

Changes are possible in system text, tools, parameters, headers, query, template lines around the user's question, the
wording of a tool's result, and members that a client adds to its calls. Any other difference is a refusal that names
the segment. Nothing is left out: every slot of both requests is compared. A recorded answer that the model could not
give to the changed request is never carried either; a change that is not understood makes it impossible.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple, Self

from llmproxy.core.changes.recordings_by_position import (
    RecordingWithParsedRequest,
    find_tool_result_rewording,
    is_same_question_in_new_template,
)
from llmproxy.core.changes.request_parsing import (
    FRAME,
    ClientPromptBoilerplate,
    RequestInSegments,
    Slot,
    extends_recorded_arguments,
    extract_text_only_content,
    get_client_prompt_boilerplate,
    parse_tool_call_in_request,
    remove_tool_call_ids,
    to_text,
)
from llmproxy.core.changes.segment_change import (
    CarriedAnswerRefusal,
    ChangeCause,
    ChangeSource,
    Hunk,
    RefusalReason,
    SegmentChange,
    diff_hunks,
    digest_texts,
    iterate_sequence_edits,
)
from llmproxy.core.dialects.answer_writing import parse_tool_args
from llmproxy.core.dialects.conversation import Kind, Segment, describe_first_change_within_tool
from llmproxy.core.dialects.messages import SCHEMAS, Message, as_dict, as_list, as_str
from llmproxy.core.dialects.usage_and_cost import LIMITS
from llmproxy.core.keys.built_in_body_rules import SYSTEM_ROLES
from llmproxy.core.keys.server_state_in_keys import STATE_HEADER
from llmproxy.core.providers.provider_table import ClientProgram
from llmproxy.core.traffic.canonical_json import dump

_PROJECTS = "mcp__"
"""Prefix of the names of tools whose definitions a tool server wrote."""
_SHOWN = 160
_SYSTEM_ROLES = frozenset(f'"{role}"' for role in SYSTEM_ROLES)


ReadVolatile = Callable[[str, object, str], tuple[str, Sequence[str]]]
"""Returns a result's text (of a tool, its arguments) without volatile values, and values an answer may repeat."""


class CarryRefused(Exception):
    def __init__(self, why: RefusalReason, text: str) -> None:
        super().__init__(text)
        self.refusal = CarriedAnswerRefusal(why, text)


def diff_requests(
    placed: RecordingWithParsedRequest, now: RequestInSegments, client: ClientProgram | None, *,
    recorded: Mapping[str, AbstractSet[str]], present: Mapping[str, AbstractSet[str]], output: int | None = None,
    read_volatile: ReadVolatile | None = None,
) -> list[SegmentChange] | CarriedAnswerRefusal:  # fmt: skip
    """Return the changes between a recording and a request at its place, in the order in which people edit them.

    `recorded` and `present` are each tool's results in the recordings and in this run. `output`: tokens of the recorded
    answer. `read_volatile` finds the volatile values in a tool's result.
    """
    then = placed.recorded.client
    upgraded = then is not None and client is not None and then.name == client.name and then != client
    frames = get_client_prompt_boilerplate(client) if upgraded else None
    compared = _RequestDiff(placed, now, client, recorded, present, frames, read_volatile)
    try:
        found = list(compared.iter_changes())
    except CarryRefused as refused:
        return refused.refusal
    answer = placed.recorded.answer or Message("assistant", "")
    if answer.unknown:
        why = f"the recorded answer holds {answer.unknown[0]}, which nobody here knows"
        return CarriedAnswerRefusal(RefusalReason.IMPOSSIBLE, why)
    if impossible := check_answer_fits_new_request(answer, output, placed.request, now):
        return CarriedAnswerRefusal(RefusalReason.IMPOSSIBLE, impossible)
    return found or [compared.build_segment_order_change()]


@dataclass(slots=True)
class _RequestDiff:
    placed: RecordingWithParsedRequest
    now: RequestInSegments
    client: ClientProgram | None
    recorded: Mapping[str, AbstractSet[str]]
    present: Mapping[str, AbstractSet[str]]
    frames: ClientPromptBoilerplate | None
    """The client's frames, if another version of the client sent the present request."""
    read_volatile: ReadVolatile | None

    def iter_changes(self) -> Iterator[SegmentChange]:
        was, now = self.placed.request.canonical, self.now.canonical
        if (was.variant, was.model) != (now.variant, now.model):
            raise CarryRefused(
                RefusalReason.MODEL, f"the path: {was.model or was.variant} -> {now.model or now.variant}"
            )
        if was.kind != now.kind or was.refs != now.refs:
            raise CarryRefused(RefusalReason.REQUEST, "what the server keeps: the request names something else of it")
        yield from self._compare_system_texts() if self.frames is None else self._compare_frames(self.frames)
        slots = {**self.placed.request.slots, **self.now.slots}
        order: list[str | int] = [Kind.TOOL, Kind.MODEL, Kind.PARAMETER]
        for slot in sorted(slots, key=lambda each: order.index(each[0]) if each[0] in order else len(order)):
            old, new = self.placed.request.slots.get(slot), self.now.slots.get(slot)
            if old is None or new is None or dump(old.value) != dump(new.value):
                yield from self._compare_segment_pair(slot, old, new)
        yield from self._compare_message_members()
        yield from self._compare_headers_or_query("header", was.headers, now.headers)
        yield from self._compare_headers_or_query("query", was.query, now.query)

    def _compare_system_texts(self) -> Iterator[SegmentChange]:
        old, new = ([dump(each.value) for each in side.systems] for side in (self.placed.request, self.now))
        for i, j, at, to in iterate_sequence_edits(old, new):
            for n in range(max(j - i, to - at)):
                before = self.placed.request.systems[i + n] if i + n < j else None
                after = self.now.systems[at + n] if at + n < to else None
                yield self._build_system_change(before, after)

    def _build_system_change(self, before: Segment | None, after: Segment | None) -> SegmentChange:
        change = self._build_change(Kind.SYSTEM, before, after, "system prompt")
        if _touches_varying_lines(change, self.placed.data):
            raise CarryRefused(RefusalReason.DATA, f"{change}: other recordings say something else there")
        return change

    def _compare_segment_pair(self, slot: Slot, old: Segment | None, new: Segment | None) -> Iterator[SegmentChange]:
        segment = old or new
        if segment is None:
            return
        name = segment.name
        match slot[0]:
            case Kind.TOOL | Kind.PARAMETER:
                known = getattr(self.frames, "tools" if segment.kind is Kind.TOOL else "parameters", ())
                source = ChangeSource.CLIENT if segment.own in known else None
                change = self._build_change(segment.kind, old, new, name, source)
                sides = [each.value for each in (old, new) if each is not None and slot[0] == Kind.PARAMETER]
                if any(can_request_member_hold_question(segment.own, each) for each in sides):
                    raise CarryRefused(RefusalReason.QUESTION, f"{name}: {_format_first_hunk(change)}")
                yield change
            case kind if kind == FRAME:
                if self.frames is None:
                    raise self._build_refusal(RefusalReason.RESULT, segment.kind, old, new, name)
            case Kind.MODEL:
                shown = " -> ".join("none" if each is None else to_text(each.value) for each in (old, new))
                raise CarryRefused(RefusalReason.MODEL, f"model: {shown}")
            case Kind.USER:
                change = self._build_change(Kind.USER, old, new, "user's words")
                if old is None or new is None or not is_same_question_in_new_template(self.placed, self.now):
                    raise CarryRefused(RefusalReason.QUESTION, f"{name}: {_format_first_hunk(change)}")
                yield change
            case Kind.RESULT:
                yield from self._compare_result(slot, name, old, new)
            case Kind.CALL:
                yield from self._compare_call(name, old, new)
            case Kind.ASSISTANT if old and new and to_text(old.value).split() == to_text(new.value).split():
                yield self._build_change(Kind.ASSISTANT, old, new, "assistant's text", ChangeSource.CLIENT)
            case _:
                what = RefusalReason.REQUEST if slot[0] == Kind.UNKNOWN else RefusalReason.HISTORY
                raise self._build_refusal(what, segment.kind, old, new, name)

    def _build_refusal(
        self, why: RefusalReason, kind: str, old: Segment | None, new: Segment | None, name: str, more: str = ""
    ) -> CarryRefused:
        return CarryRefused(why, f"{name}: {_format_first_hunk(self._build_change(kind, old, new, name))}{more}")

    def build_segment_order_change(self) -> SegmentChange:
        """Return the change of requests whose segments are all equal: in order, or in the division into messages."""
        was, now = ("\n".join(each.path for each in side.slots.values()) for side in (self.placed.request, self.now))
        before, after = (digest_texts([side.canonical.body.hex()]) for side in (self.placed.request, self.now))
        hunks = (Hunk(1, ("one order",), ("another order",)),)
        name = "order and division of the request"
        return SegmentChange("order", name, was, now, before, after, hunks, self._build_origin(ChangeSource.CLIENT))

    def _compare_call(self, name: str, old: Segment | None, new: Segment | None) -> Iterator[SegmentChange]:
        if old is None or new is None:
            raise CarryRefused(RefusalReason.HISTORY, f"{name} is {'new' if old is None else 'gone'}")
        was, now = parse_tool_call_in_request(old.value), parse_tool_call_in_request(new.value)
        if was != now and (was.name != now.name or not extends_recorded_arguments(now.arguments, was.arguments)):
            raise self._build_refusal(RefusalReason.HISTORY, Kind.CALL, old, new, name)
        if was != now or dump(remove_tool_call_ids(old.value)) != dump(remove_tool_call_ids(new.value)):
            yield self._build_change(Kind.CALL, old, new, f"call of {was.name}", ChangeSource.CLIENT)

    def _compare_result(
        self, slot: Slot, name: str, old: Segment | None, new: Segment | None
    ) -> Iterator[SegmentChange]:
        if old is None or new is None:
            raise CarryRefused(RefusalReason.RESULT, f"{name} is {'new' if old is None else 'gone'}")
        if dump(remove_tool_call_ids(old.value)) == dump(remove_tool_call_ids(new.value)):
            return
        was, now, tool = extract_text_only_content(old.value), extract_text_only_content(new.value), old.own
        if was is None or now is None:
            raise CarryRefused(RefusalReason.RESULT, f"{name}: it is more than text, and another one now")
        before, after = was[0], now[0]
        flags = [_pop_failure_flags(rest) for _, rest in (was, now)]
        if was[1] != now[1] or flags == [True, False]:
            raise CarryRefused(RefusalReason.RESULT, f"{name}: it is of another kind now")
        if self.read_volatile is not None and flags[0] == flags[1]:
            call = self.placed.request.slots.get((Kind.CALL, slot[2], 0))  # only if its id is that of a known answer
            asked = None if call is None else parse_tool_call_in_request(call.value).arguments
            (old_rest, values), (new_rest, _) = (self.read_volatile(tool, asked, text) for text in (before, after))
            answer = self.placed.recorded.answer
            text = "" if answer is None else f"{answer.text} {[call.arguments for call in answer.tool_calls]}"
            if old_rest == new_rest and not any(value in text for value in values):
                return
        found = find_tool_result_rewording(before, after, tool, self.recorded.get(tool, ()), self.present.get(tool, ()))
        if isinstance(found, str):
            raise self._build_refusal(RefusalReason.RESULT, Kind.RESULT, old, new, name, f": {found}")
        hunks, turned = found
        if flags == [False, True] and not turned:
            raise CarryRefused(RefusalReason.RESULT, f"{name}: it had succeeded, and failed now")
        yield self._build_change(Kind.RESULT, old, new, f"result of {tool}")._replace(hunks=hunks, turned=turned)

    def _compare_frames(self, frames: ClientPromptBoilerplate) -> Iterator[SegmentChange]:
        """Compare system text and the client's text in user messages together, since versions place them differently.

        The client's own lines are one change. Text between them is the project's or a tool's: it may change like any
        prompt in system text, but not in a user message.
        """
        was, now = (_ClientFramedText.from_request(side, frames) for side in (self.placed.request, self.now))
        if was.own != now.own:
            yield self._build_client_change(FRAME, "the client's own text", "\n".join(was.own), "\n".join(now.own))
        gone, new = ([*(one.others - other.others).elements()] for one, other in ((was, now), (now, was)))
        if found := next((text for text in (*gone, *new) if text in was.in_words | now.in_words), ""):
            state = "new" if found in new else "gone"
            raise CarryRefused(RefusalReason.RESULT, f"between the client's own lines: {found[:_SHOWN]!r} is {state}")
        for texts in zip_longest(gone, new):
            before, after = (None if text is None else Segment(Kind.SYSTEM, "", "", text) for text in texts)
            yield self._build_system_change(before, after)

    def _compare_message_members(self) -> Iterator[SegmentChange]:
        both = (self.placed.request, self.now)
        own = frozenset[str]() if all(each.systems for each in both) else _SYSTEM_ROLES  # a change of its own
        for slot in {**self.placed.request.members, **self.now.members}:
            sides = [(side.members.get(slot, set()) - own) or None for side in both]
            if sides[0] == sides[1]:
                continue
            if self.frames is None or slot[1] not in self.frames.members:
                values = " -> ".join(", ".join(sorted(each or {"none"})) for each in sides)
                raise CarryRefused(RefusalReason.REQUEST, f"{slot[1]} of a message, after {slot[0]} answers: {values}")
            texts = [None if each is None else "\n".join(sorted(each)) for each in sides]
            yield self._build_client_change(Kind.MEMBER, f"{slot[1]} of a message", *texts)

    def _compare_headers_or_query(
        self, kind: str, was: tuple[tuple[str, str], ...], now: tuple[tuple[str, str], ...]
    ) -> Iterator[SegmentChange]:
        for name in dict.fromkeys(name for name, _ in (*was, *now)):
            sides = [sorted(value for each, value in pairs if each == name) for pairs in (was, now)]
            if sides[0] == sides[1]:
                continue
            if name == STATE_HEADER:
                raise CarryRefused(RefusalReason.REQUEST, "what was changed before of what it names")
            yield self._build_client_change(
                kind, f"{kind} {name}", *(", ".join(side) if side else None for side in sides)
            )

    def _build_client_change(self, kind: str, name: str, before: str | None, after: str | None) -> SegmentChange:
        digests = ["" if text is None else digest_texts([text]) for text in (before, after)]
        origin = self._build_origin(ChangeSource.CLIENT)
        return SegmentChange(kind, name, before, after, digests[0], digests[1], diff_hunks(before, after), origin)

    def _build_change(
        self, kind: str, old: Segment | None, new: Segment | None, name: str, source: ChangeSource | None = None
    ) -> SegmentChange:
        before, after = (None if each is None else to_text(each.value) for each in (old, new))
        digests = ["" if each is None else digest_texts([dump(each.value).hex()]) for each in (old, new)]
        tool = next((each.own for each in (old, new) if each is not None), "")
        if source is None:
            is_of_server = kind == Kind.TOOL and tool.startswith(_PROJECTS)
            source = ChangeSource.TOOL_SERVER if is_of_server else ChangeSource.PROMPT
        origin = self._build_origin(source, tool.split("__")[1] if source is ChangeSource.TOOL_SERVER else "")
        made = SegmentChange(str(kind), name, before, after, digests[0], digests[1], diff_hunks(before, after), origin)
        if kind != Kind.TOOL or old is None or new is None:
            return made
        place, is_place_enough = describe_first_change_within_tool(old, new)
        return made._replace(place=place, is_place_enough=is_place_enough)

    def _build_origin(self, source: ChangeSource, name: str = "") -> ChangeCause:
        return ChangeCause(source, *(self.client or ())) if source is ChangeSource.CLIENT else ChangeCause(source, name)


class _ClientFramedText(NamedTuple):
    own: Sequence[str]
    others: Counter[str]
    """Texts between them; a text in their holes counts once."""
    in_words: AbstractSet[str]
    """Those of `others` in user messages."""

    @classmethod
    def from_request(cls, request: RequestInSegments, frames: ClientPromptBoilerplate) -> Self:
        systems = [frames.split(to_text(part.value)) for part in request.systems]
        words = [frames.split(to_text(part.value)) for part in request.frames]
        others = Counter(text for split in (*systems, *words) for text in split.others)
        others |= Counter({value for split in (*systems, *words) for value in split.values})
        own = dict.fromkeys(line for split in (*systems, *words) for line in split.own)  # reminders repeat
        return cls([*own], others, {text for split in words for text in (*split.others, *split.values)})


def _touches_varying_lines(change: SegmentChange, data: AbstractSet[str]) -> bool:
    """Return whether a change is at lines of system text that differ from call to call."""
    lines, after = ((text or "").split("\n") for text in (change.before, change.after))
    edits = iterate_sequence_edits(lines, after) if data else ()
    return any(line in data for i, j, _, _ in edits for line in (lines[i:j] or lines[max(0, i - 1) : i + 1]))


def _pop_failure_flags(rest: dict[str, Any]) -> bool:
    """Remove the failure flags next to a result's text, and return whether the tool failed."""
    failed = [_pop_failure_flags(each) for each in rest.values() if isinstance(each, dict)]
    status = rest.pop("status") if rest.get("status") in {"error", "success"} else None
    return any([rest.pop("is_error", None) is True, status == "error", *failed])


def _format_first_hunk(change: SegmentChange) -> str:
    hunk = change.hunks[0] if change.hunks else Hunk(1, (), ())
    old, new = ((" ".join(lines))[:_SHOWN] for lines in (hunk.before, hunk.after))
    return f"{old!r} -> {new!r}" if change.before is not None and change.after is not None else str(change)


_LIMITS = frozenset({*LIMITS, "max_tokens_to_sample"})
_COUNTS = frozenset({"n", "candidateCount", "candidate_count", "num_generations"})
_STOPS = frozenset({"stop", "stop_sequences", "stopSequences", "stop_sequence"})
_KINDS = frozenset({
    "modalities", "responseModalities", "response_modalities", "audio", "speechConfig", "logprobs", "top_logprobs",
    "responseLogprobs", "include", "echo", "background", "stream_options", "web_search_options",
})  # fmt: skip
"""Parameters that determine the content of an answer."""
_CHOICES = frozenset(
    {"tool_choice", "toolChoice", "toolConfig", "tool_config", "function_call", "functionCallingConfig"}
)
_FORMATS = frozenset({
    "response_format", "format", "responseSchema", "response_schema", "responseJsonSchema", "response_json_schema",
    "responseMimeType", "response_mime_type", "output_format", "output_config", "text",
})  # fmt: skip
_ASKING = frozenset({
    "prompt", "message", "messages", "input", "inputs", "query", "context", "suffix", "template", "variables",
    "documents", "files", "images", "image", "instances", "prediction",
})  # fmt: skip
"""Parameters that may contain the question or the conversation before it."""
_GROUPS = frozenset({"generationConfig", "generation_config", "inferenceConfig", "options", "text", "output_config"})


def check_answer_fits_new_request(
    answer: Message, output: int | None, was: RequestInSegments, now: RequestInSegments
) -> str:
    """Return why today's request cannot get a recorded answer of `output` tokens (None: unknown); empty if it can."""
    if was.canonical.stream != now.canonical.stream:
        return f"stream is {str(now.canonical.stream).lower()} now"
    before, after = dict(_list_parameters(was)), dict(_list_parameters(now))
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if old != new and (why := _check_parameter(name.rpartition(".")[2], old, new, answer, output)):
            return f"parameter {name}: {why}"
    return _check_answer_fits_tools(answer, was, now)


def can_request_member_hold_question(name: str, value: object) -> bool:
    """Return whether a parameter may contain a part of the question: by its name, or because it contains prose."""
    if name in _FORMATS | _GROUPS | _STOPS:
        return False
    return name in _ASKING or " " in json.dumps(value, separators=(",", ":"))


def _list_parameters(request: RequestInSegments) -> Iterator[tuple[str, Any]]:
    for slot, segment in request.slots.items():
        if slot[0] != Kind.PARAMETER:
            continue
        name = segment.own
        if name in _GROUPS and isinstance(segment.value, dict):
            yield from ((f"{name}.{inner}", value) for inner, value in segment.value.items())
        else:
            yield name, segment.value


def _check_parameter(name: str, old: Any, new: Any, answer: Message, output: int | None) -> str:
    if name in _LIMITS:
        return _check_answer_fits_limit(old, new, output)
    if name in _COUNTS:
        return "" if {old or 1, new or 1} == {1} else f"{new!r} answers are asked for now"
    if name in _STOPS:
        sides = [set([side] if isinstance(side, str) else as_list(side)) for side in (old, new)]
        found = [text for text in sides[1] if isinstance(text, str) and text in answer.text]
        return "" if sides[0] <= sides[1] and not found else "the answer would end elsewhere"
    if name == "include" and {*as_list(old)} ^ {*as_list(new)} == {"reasoning.encrypted_content"}:
        return ""  # it belongs to reasoning, which is optional in an answer
    if name in _KINDS:
        return "the answer would hold something else"
    if name in _CHOICES:
        return _check_answer_obeys_choice(new, [call.name for call in answer.tool_calls if not call.hosted])
    if name == "parallel_tool_calls":
        return "the answer calls several tools at once" if new is False and len(answer.tool_calls) > 1 else ""
    return _check_answer_fits_format(new, answer) if name in _FORMATS and new is not None else ""


def _check_answer_fits_limit(old: Any, new: Any, output: int | None) -> str:
    if output is None:
        return "" if isinstance(old, int) and isinstance(new, int) and new == old else "nobody knows how long it was"
    if isinstance(old, int) and output >= old:
        return "the answer had been cut by the old limit"
    return f"the answer has {output} tokens" if isinstance(new, int) and output > new else ""


def _check_answer_obeys_choice(new: Any, called: list[str]) -> str:
    tree = as_dict(new)
    tree = as_dict(tree.get("functionCallingConfig")) or as_dict(tree.get("function_calling_config")) or tree
    kind = (as_str(new) or as_str(tree.get("type")) or as_str(tree.get("mode")) or next(iter(tree), "")).lower()
    named = as_str(
        tree.get("name") or as_dict(tree.get("function")).get("name") or as_dict(tree.get("tool")).get("name")
    )
    if tree.get("disable_parallel_tool_use") is True and len(called) > 1:
        return "the answer calls several tools at once"
    if named:
        return "" if called and set(called) == {named} else f"only {named} may be called"
    if new is None or kind == "auto":
        return ""
    if kind == "none":
        return "the answer calls a tool" if called else ""
    if kind in {"any", "required"} and not tree.keys() - {"type", "mode", "any"}:
        return "" if called else "the answer calls no tool"
    return f"nobody knows whether {json.dumps(new)[:100]} allows the answer"


def _check_answer_fits_format(new: Any, answer: Message) -> str:
    tree = as_dict(new)
    inner = as_dict(tree.get("json_schema")) or as_dict(tree.get("format")) or tree
    if new in ("text", "text/plain") or tree.get("type") == "text" or not answer.text:
        return ""
    try:
        value = json.loads(answer.text)
    except ValueError:
        return "the answer is no JSON"
    if new in ("json", "application/json") or tree.get("type") == "json_object":
        return ""
    why = explain_schema_violation(value, inner.get("schema", inner))
    return f"the answer does not validate: {why}" if why else ""


def _check_answer_fits_tools(answer: Message, was: RequestInSegments, now: RequestInSegments) -> str:
    before, after = dict(_list_tools(was)), dict(_list_tools(now))
    deferred = any("tool_search" in name or "defer" in json.dumps(tool) for name, tool in after.items())
    for call in (*answer.tool_calls, *answer.beside):
        if (tool := after.get(call.name)) is None:
            gone = any(_get_parameter_schema(old) is None for name, old in before.items() if name not in after)
            if call.name in before or not (deferred or before == after or (call.hosted and not gone)):
                return f"the answer calls {call.name}, which is not offered"
            continue
        if tool == before.get(call.name) or call.hosted:
            continue
        schema = _get_parameter_schema(tool)
        if schema is not None and (why := explain_schema_violation(parse_tool_args(call.arguments), schema)):
            return f"the answer calls {call.name} with arguments that it does not take now: {why}"
    return ""


def _list_tools(request: RequestInSegments) -> Iterator[tuple[str, dict[str, Any]]]:
    for slot, segment in request.slots.items():
        if slot[0] == Kind.TOOL:
            yield segment.own, as_dict(segment.value)


def _get_parameter_schema(tool: Mapping[str, Any]) -> object:
    inner = next((tool[name] for name in ("function", "toolSpec", "custom") if as_dict(tool.get(name))), tool)
    found = next((inner[name] for name in SCHEMAS if name in inner), None)
    return as_dict(found).get("json", found)


def explain_schema_violation(value: Any, schema: object) -> str:
    """Return why a value does not validate; empty if it does. A failed check is a reason too."""
    import jsonschema

    schema = _lower_schema_types({} if schema is True else schema)
    if not isinstance(schema, dict):
        return "its schema allows nothing"
    try:
        kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        kind.check_schema(schema)
        error = next(kind(schema).iter_errors(value), None)
    except (jsonschema.SchemaError, RecursionError, re.error, LookupError) as why:
        return f"its schema cannot be read: {why}"[:200]
    return "" if error is None else f"{error.json_path}: {error.message}"[:200]


def _lower_schema_types(schema: object) -> object:
    """Return a schema with JSON Schema's type names: Google's are in capitals, and may be nullable."""
    if isinstance(schema, list):
        return [_lower_schema_types(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: _lower_schema_types(value) for name, value in schema.items()}
    if isinstance(kind := made.get("type"), str):
        made["type"] = [kind.lower(), "null"] if made.get("nullable") is True else kind.lower()
    return made
