"""The changes between two requests at one place, or the reason why the recorded answer does not apply.

    placed recording, present request -> list of `Change`, or `Refusal`

Changes are possible in system text, tools, parameters, headers, query, template lines around the user's question, the
wording of a tool's result, and members that a client adds to its calls. Any other difference is a refusal that names
the segment. Nothing is left out: every slot of both requests is compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple, Self

from llmproxy.core.changes.answer_plausibility import explain_impossible, may_contain_question
from llmproxy.core.changes.change import (
    Author,
    Change,
    ChangeSource,
    Hunk,
    Refusal,
    RefusalReason,
    diff_hunks,
    digest_texts,
    iterate_edits,
)
from llmproxy.core.changes.client_boilerplate import FRAME, ClientFrames, get_client_frames
from llmproxy.core.changes.recordings_by_position import ParsedRecording, asks_same_question
from llmproxy.core.changes.request_parsing import (
    ParsedRequest,
    Slot,
    drop_ids,
    extends_arguments,
    read_call,
    read_text,
    to_text,
)
from llmproxy.core.changes.reworded_results import find_rewording
from llmproxy.core.dialects.conversation import Kind, Segment, describe_first_tool_change
from llmproxy.core.dialects.messages import Message
from llmproxy.core.keys.server_object_changes import STATE_HEADER
from llmproxy.core.providers.provider_table import Client
from llmproxy.core.traffic.canonical_json import dump

_PROJECTS = "mcp__"
"""Prefix of the names of tools whose definitions a tool server wrote."""
_SHOWN = 160


ReadVolatile = Callable[[str, object, str], tuple[str, Sequence[str]]]
"""Returns a result's text (of a tool, its arguments) without volatile values, and values an answer may repeat."""


class Refused(Exception):
    def __init__(self, why: RefusalReason, text: str) -> None:
        super().__init__(text)
        self.refusal = Refusal(why, text)


def diff_requests(
    standing: ParsedRecording,
    now: ParsedRequest,
    client: Client | None,
    *,
    recorded: Mapping[str, AbstractSet[str]],
    present: Mapping[str, AbstractSet[str]],
    output: int | None = None,
    read_volatile: ReadVolatile | None = None,
) -> list[Change] | Refusal:
    """Return the changes between a recording and a request at its place, in the order in which people edit them.

    `recorded` and `present` are each tool's results in the recordings and in this run. `output`: tokens of the recorded
    answer. `read_volatile` finds the volatile values in a tool's result.
    """
    then = standing.recorded.client
    upgraded = then is not None and client is not None and then.name == client.name and then != client
    frames = get_client_frames(client) if upgraded else None
    compared = _RequestDiff(standing, now, client, recorded, present, frames, read_volatile)
    try:
        found = list(compared.iter_changes())
    except Refused as refused:
        return refused.refusal
    answer = standing.recorded.answer or Message("assistant", "")
    if answer.unknown:
        return Refusal(
            RefusalReason.IMPOSSIBLE, f"the recorded answer holds {answer.unknown[0]}, which nobody here knows"
        )
    if impossible := explain_impossible(answer, output, standing.request, now):
        return Refusal(RefusalReason.IMPOSSIBLE, impossible)
    return found or [compared.build_segment_order_change()]


@dataclass(slots=True)
class _RequestDiff:
    standing: ParsedRecording
    now: ParsedRequest
    client: Client | None
    recorded: Mapping[str, AbstractSet[str]]
    present: Mapping[str, AbstractSet[str]]
    frames: ClientFrames | None
    """The client's frames, if another version of the client sent the present request."""
    read_volatile: ReadVolatile | None

    def iter_changes(self) -> Iterator[Change]:
        was, now = self.standing.request.canonical, self.now.canonical
        if (was.variant, was.model) != (now.variant, now.model):
            raise Refused(RefusalReason.MODEL, f"the path: {was.model or was.variant} -> {now.model or now.variant}")
        if was.kind != now.kind or was.refs != now.refs:
            raise Refused(RefusalReason.REQUEST, "what the server keeps: the request names something else of it")
        yield from self._compare_system_texts() if self.frames is None else self._compare_frames(self.frames)
        slots = {**self.standing.request.slots, **self.now.slots}
        order: list[str | int] = [Kind.TOOL, Kind.MODEL, Kind.PARAMETER]
        for slot in sorted(slots, key=lambda each: order.index(each[0]) if each[0] in order else len(order)):
            old, new = self.standing.request.slots.get(slot), self.now.slots.get(slot)
            if old is None or new is None or dump(old.value) != dump(new.value):
                yield from self._compare_segments(slot, old, new)
        yield from self._compare_message_members()
        yield from self._compare_headers_or_query("header", was.headers, now.headers)
        yield from self._compare_headers_or_query("query", was.query, now.query)

    def _compare_system_texts(self) -> Iterator[Change]:
        old, new = ([dump(each.value) for each in side.systems] for side in (self.standing.request, self.now))
        for i, j, at, to in iterate_edits(old, new):
            for n in range(max(j - i, to - at)):
                before = self.standing.request.systems[i + n] if i + n < j else None
                after = self.now.systems[at + n] if at + n < to else None
                yield self._build_system_change(before, after)

    def _build_system_change(self, before: Segment | None, after: Segment | None) -> Change:
        change = self._build_change(Kind.SYSTEM, before, after, "system prompt")
        if touches_varying_lines(change, self.standing.data):
            raise Refused(RefusalReason.DATA, f"{change}: other recordings say something else there")
        return change

    def _compare_segments(self, slot: Slot, old: Segment | None, new: Segment | None) -> Iterator[Change]:
        segment = old or new
        if segment is None:
            return
        name = segment.name
        match slot[0]:
            case Kind.TOOL | Kind.PARAMETER:
                change = self._build_change(segment.kind, old, new, name, self._find_author(segment))
                sides = [each.value for each in (old, new) if each is not None and slot[0] == Kind.PARAMETER]
                if any(may_contain_question(segment.own, each) for each in sides):
                    raise Refused(RefusalReason.QUESTION, f"{name}: {_format_first_hunk(change)}")
                yield change
            case kind if kind == FRAME:
                if self.frames is None:
                    raise self._build_refusal(RefusalReason.RESULT, segment.kind, old, new, name)
            case Kind.MODEL:
                shown = " -> ".join("none" if each is None else to_text(each.value) for each in (old, new))
                raise Refused(RefusalReason.MODEL, f"model: {shown}")
            case Kind.USER:
                change = self._build_change(Kind.USER, old, new, "user's words")
                if old is None or new is None or not asks_same_question(self.standing, self.now):
                    raise Refused(RefusalReason.QUESTION, f"{name}: {_format_first_hunk(change)}")
                yield change
            case Kind.RESULT:
                yield from self._compare_result(slot, name, old, new)
            case Kind.CALL:
                yield from self._compare_call(name, old, new)
            case Kind.ASSISTANT if old and new and to_text(old.value).split() == to_text(new.value).split():
                yield self._build_change(Kind.ASSISTANT, old, new, "assistant's text", Author.CLIENT)
            case _:
                what = RefusalReason.REQUEST if slot[0] == Kind.UNKNOWN else RefusalReason.HISTORY
                raise self._build_refusal(what, segment.kind, old, new, name)

    def _build_refusal(
        self, why: RefusalReason, kind: str, old: Segment | None, new: Segment | None, name: str, more: str = ""
    ) -> Refused:
        return Refused(why, f"{name}: {_format_first_hunk(self._build_change(kind, old, new, name))}{more}")

    def build_segment_order_change(self) -> Change:
        """Return the change of requests whose segments are all equal: in order, or in the division into messages."""
        was, now = ("\n".join(each.path for each in side.slots.values()) for side in (self.standing.request, self.now))
        before, after = (digest_texts([side.canonical.body.hex()]) for side in (self.standing.request, self.now))
        hunks = (Hunk(1, ("one order",), ("another order",)),)
        name = "order and division of the request"
        return Change("order", name, was, now, before, after, hunks, self._build_origin(Author.CLIENT))

    def _compare_call(self, name: str, old: Segment | None, new: Segment | None) -> Iterator[Change]:
        if old is None or new is None:
            raise Refused(RefusalReason.HISTORY, f"{name} is {'new' if old is None else 'gone'}")
        was, now = read_call(old.value), read_call(new.value)
        if was != now and (was.name != now.name or not extends_arguments(now.arguments, was.arguments)):
            raise self._build_refusal(RefusalReason.HISTORY, Kind.CALL, old, new, name)
        if was != now or dump(drop_ids(old.value)) != dump(drop_ids(new.value)):
            yield self._build_change(Kind.CALL, old, new, f"call of {was.name}", Author.CLIENT)

    def _compare_result(self, slot: Slot, name: str, old: Segment | None, new: Segment | None) -> Iterator[Change]:
        if old is None or new is None:
            raise Refused(RefusalReason.RESULT, f"{name} is {'new' if old is None else 'gone'}")
        if dump(drop_ids(old.value)) == dump(drop_ids(new.value)):
            return
        was, now, tool = read_text(old.value), read_text(new.value), old.own
        if was is None or now is None:
            raise Refused(RefusalReason.RESULT, f"{name}: it is more than text, and another one now")
        before, after = was[0], now[0]
        flags = [_pop_failure_flags(rest) for _, rest in (was, now)]
        if was[1] != now[1] or flags == [True, False]:
            raise Refused(RefusalReason.RESULT, f"{name}: it is of another kind now")
        if self.read_volatile is not None and flags[0] == flags[1]:
            call = self.standing.request.slots.get((Kind.CALL, slot[2], 0))  # only if its id is that of a known answer
            asked = None if call is None else read_call(call.value).arguments
            (old_rest, values), (new_rest, _) = (self.read_volatile(tool, asked, text) for text in (before, after))
            answer = self.standing.recorded.answer
            said = "" if answer is None else f"{answer.text} {[call.arguments for call in answer.tool_calls]}"
            if old_rest == new_rest and not any(value in said for value in values):
                return
        found = find_rewording(before, after, tool, self.recorded.get(tool, ()), self.present.get(tool, ()))
        if isinstance(found, str):
            raise self._build_refusal(RefusalReason.RESULT, Kind.RESULT, old, new, name, f": {found}")
        hunks, turned = found
        if flags == [False, True] and not turned:
            raise Refused(RefusalReason.RESULT, f"{name}: it had succeeded, and failed now")
        made = self._build_change(Kind.RESULT, old, new, f"result of {tool}")
        yield made._replace(hunks=hunks, turned=turned)

    def _compare_frames(self, frames: ClientFrames) -> Iterator[Change]:
        """Compare system text and the client's text in user messages together, since versions place them differently.

        The client's own lines are one change. Text between them is the project's or a tool's: it may change like any
        prompt in system text, but not in a user message.
        """
        was, now = (_ClientFramedText.from_request(side, frames) for side in (self.standing.request, self.now))
        if was.own != now.own:
            yield self._client_change(FRAME, "the client's own text", "\n".join(was.own), "\n".join(now.own))
        gone, new = ([*(one.others - other.others).elements()] for one, other in ((was, now), (now, was)))
        if found := next((text for text in (*gone, *new) if text in was.in_words | now.in_words), ""):
            said = "new" if found in new else "gone"
            raise Refused(RefusalReason.RESULT, f"between the client's own lines: {found[:_SHOWN]!r} is {said}")
        for texts in zip_longest(gone, new):
            before, after = (None if text is None else Segment(Kind.SYSTEM, "", "", text) for text in texts)
            yield self._build_system_change(before, after)

    def _compare_message_members(self) -> Iterator[Change]:
        """Compare the members next to the parts of messages: roles, names, types."""
        for slot in {**self.standing.request.members, **self.now.members}:
            sides = [side.members.get(slot) for side in (self.standing.request, self.now)]
            if sides[0] == sides[1]:
                continue
            if self.frames is None or slot[1] not in self.frames.members:
                raise Refused(RefusalReason.REQUEST, f"{slot[1]} of a message, after {slot[0]} answers")
            texts = [None if each is None else "\n".join(sorted(each)) for each in sides]
            yield self._client_change(Kind.MEMBER, f"{slot[1]} of a message", *texts)

    def _compare_headers_or_query(
        self, kind: str, was: tuple[tuple[str, str], ...], now: tuple[tuple[str, str], ...]
    ) -> Iterator[Change]:
        for name in dict.fromkeys(name for name, _ in (*was, *now)):
            sides = [sorted(value for each, value in pairs if each == name) for pairs in (was, now)]
            if sides[0] == sides[1]:
                continue
            if name == STATE_HEADER:
                raise Refused(RefusalReason.REQUEST, "what was changed before of what it names")
            yield self._client_change(kind, f"{kind} {name}", *(", ".join(side) if side else None for side in sides))

    def _client_change(self, kind: str, name: str, before: str | None, after: str | None) -> Change:
        """Return a change that only a client can have caused."""
        digests = ["" if text is None else digest_texts([text]) for text in (before, after)]
        origin = self._build_origin(Author.CLIENT)
        return Change(kind, name, before, after, digests[0], digests[1], diff_hunks(before, after), origin)

    def _find_author(self, segment: Segment) -> Author | None:
        """Return the author of a tool or parameter from another client version: the client, or None if unknown."""
        names = {Kind.TOOL: "tools", Kind.PARAMETER: "parameters"}
        known = getattr(self.frames, names[segment.kind], ())
        return Author.CLIENT if segment.own in known else None

    def _build_change(
        self, kind: str, old: Segment | None, new: Segment | None, name: str, source: Author | None = None
    ) -> Change:
        before, after = (None if each is None else to_text(each.value) for each in (old, new))
        digests = ["" if each is None else digest_texts([dump(each.value).hex()]) for each in (old, new)]
        tool = next((each.own for each in (old, new) if each is not None), "")
        if source is None:
            source = Author.TOOL_SERVER if kind == Kind.TOOL and tool.startswith(_PROJECTS) else Author.PROMPT
        origin = self._build_origin(source, tool.split("__")[1] if source is Author.TOOL_SERVER else "")
        made = Change(str(kind), name, before, after, digests[0], digests[1], diff_hunks(before, after), origin)
        return made._replace(place=describe_first_tool_change(old, new)) if kind == Kind.TOOL and old and new else made

    def _build_origin(self, source: Author, name: str = "") -> ChangeSource:
        return ChangeSource(source, *(self.client or ())) if source is Author.CLIENT else ChangeSource(source, name)


class _ClientFramedText(NamedTuple):
    """System text, and a client's text in user messages."""

    own: Sequence[str]
    """The client's lines."""
    others: Counter[str]
    """Texts between them; a text in their holes counts once."""
    in_words: AbstractSet[str]
    """Those of `others` in user messages."""

    @classmethod
    def from_request(cls, request: ParsedRequest, frames: ClientFrames) -> Self:
        systems = [frames.split(to_text(part.value)) for part in request.systems]
        words = [frames.split(to_text(part.value)) for part in request.frames]
        others = Counter(text for split in (*systems, *words) for text in split.others)
        others |= Counter({value for split in (*systems, *words) for value in split.values})
        own = dict.fromkeys(line for split in (*systems, *words) for line in split.own)  # reminders repeat
        return cls([*own], others, {text for split in words for text in (*split.others, *split.values)})


def touches_varying_lines(change: Change, data: AbstractSet[str]) -> bool:
    """Return whether a change is at lines of system text that differ from call to call."""
    lines, after = ((text or "").split("\n") for text in (change.before, change.after))
    edits = iterate_edits(lines, after) if data else ()
    return any(line in data for i, j, _, _ in edits for line in (lines[i:j] or lines[max(0, i - 1) : i + 1]))


def _pop_failure_flags(rest: dict[str, Any]) -> bool:
    """Remove the failure flags next to a result's text, and return whether the tool failed."""
    failed = [_pop_failure_flags(each) for each in rest.values() if isinstance(each, dict)]
    status = rest.pop("status") if rest.get("status") in {"error", "success"} else None
    return any([rest.pop("is_error", None) is True, status == "error", *failed])


def _format_first_hunk(change: Change) -> str:
    hunk = change.hunks[0] if change.hunks else Hunk(1, (), ())
    old, new = ((" ".join(lines))[:_SHOWN] for lines in (hunk.before, hunk.after))
    return f"{old!r} -> {new!r}" if change.before is not None and change.after is not None else str(change)
