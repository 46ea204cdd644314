"""Parsing of a request into segments, so that it can be compared with another one at its place.

Segments of two requests correspond if their `Slot` is the same: the second block of system text, the tool with a name,
the first part of the user's words after the third answer, the result of a call. Every leaf of the body is in exactly
one segment, so that no difference is missed. An answer in a history is identified by the ids of its calls, which a
client in a replay returns; by names and arguments only if the ids were not kept; by its text if it has no calls.

Also here: the text that a client itself writes into its requests, around the text of people and tools
(`ClientPromptBoilerplate`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import groupby
from typing import Any, NamedTuple

from llmproxy.core.changes.segment_change import digest_texts
from llmproxy.core.dialects.answer_writing import parse_tool_args
from llmproxy.core.dialects.conversation import Kind, Segment, list_request_segments
from llmproxy.core.dialects.messages import (
    Message,
    as_dict,
    as_list,
    as_str,
    read_tool_call_of_any_provider,
    read_tool_result_of_any_provider,
)
from llmproxy.core.keys.normalize import Canonical
from llmproxy.core.providers.provider_table import ClientProgram
from llmproxy.core.traffic.canonical_json import dump
from llmproxy.file_io import DATA

FRAME = "frame"
"""Kind of a slot: a part of a user's message that the client wrote."""
_SHORT = 24
"""Minimum characters of a line that is always the client's. A shorter one (``---``) is the client's only between its
lines, or next to one if it is a heading."""
_HEADING = 6
_LETTER = re.compile(r"[^\W\d_]")
_DIGITS = 12


class _MatchedClientLine(NamedTuple):
    text: str
    values: tuple[str, ...] = ()
    """Texts in its holes."""


class ClientBoilerplateSplit(NamedTuple):
    own: tuple[str, ...]
    others: tuple[str, ...]
    """The text between them, each run of lines as one text."""
    values: tuple[str, ...]
    """Texts in holes."""


class ClientPromptBoilerplate:
    """The text that one client writes itself, as `scripts/lab/derive-frames` found it (``data/frames.json``).

    A line is recognised by its whole text, never by a tag that a user could type; a line with holes by all text around
    them. Text in a hole or between the lines is never the client's: an attached file, a project's instructions.
    """

    def __init__(self, row: dict[str, list[str]]) -> None:
        self._lines = frozenset(row["lines"])
        self._holes = {text: _build_pattern(text) for text in row["holes"]}
        self.tools, self.members = frozenset(row["tools"]), frozenset(row["members"])
        """Names of its own tools, and of the members that it writes next to the parts of messages."""
        self.parameters = frozenset(row["parameters"])
        self.split = lru_cache(64)(self._split_text)

    def is_client_part(self, text: str) -> bool:
        """Return whether the client wrote a part of a user's message: its first two lines and the last one."""
        lines = [line for line in text.split("\n") if line.strip()]
        known = len(lines) > 2 and all(map(self._match_client_line, (*lines[:2], lines[-1])))
        return known and len(lines[0]) + len(lines[1]) >= _SHORT

    def _match_client_line(self, line: str) -> _MatchedClientLine | None:
        """Return a client's line with the texts in its holes; None if it is not the client's."""
        if digest_stripped_line(line) in self._lines:
            return _MatchedClientLine(line.strip())
        matches = ((text, pattern.fullmatch(line.strip())) for text, pattern in self._holes.items())
        return next((_MatchedClientLine(text, found.groups()) for text, found in matches if found), None)

    def _split_text(self, text: str) -> ClientBoilerplateSplit:
        own, others, between = list[_MatchedClientLine](), list[str](), list[str]()
        for line, found in self._match_each_line_to_client(text.split("\n")):
            if found is None:
                between.append(line)
            else:
                own.append(found)
                others.append("\n".join(between).strip())
                between.clear()
        others.append("\n".join(between).strip())
        values = tuple(value for each in own for value in each.values)
        return ClientBoilerplateSplit(tuple(each.text for each in own), tuple(filter(None, others)), values)

    def _match_each_line_to_client(self, lines: Sequence[str]) -> Iterator[tuple[str, _MatchedClientLine | None]]:
        """Yield each line with its match; None if it is empty or not the client's."""
        said = [n for n, line in enumerate(lines) if line.strip()]
        found = {n: self._match_client_line(lines[n]) for n in said}
        sure = {n for n, own in found.items() if own and (own.values or len(own.text) >= _SHORT)}
        numbers = range(len(said))

        def is_sure(at: int) -> bool:
            return at not in numbers or said[at] in sure

        for at in (*numbers, *reversed(numbers)):
            is_heading = len(_LETTER.findall(lines[said[at]])) >= _HEADING
            if found[said[at]] and is_heading and (is_sure(at - 1) or is_sure(at + 1)):
                sure.add(said[at])
        for is_short, group in groupby(numbers, lambda at: not is_sure(at) and bool(found[said[at]])):
            run = [*group]
            if is_short and not (is_sure(run[0] - 1) and is_sure(run[-1] + 1)):
                found.update((said[at], None) for at in run)
        yield from ((line, found.get(n)) for n, line in enumerate(lines))


def digest_stripped_line(line: str) -> str:
    return hashlib.sha256(line.strip().encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]


def _build_pattern(text: str) -> re.Pattern[str]:
    """Return a line's pattern: ``{}`` is a compared value, ``{*}`` the client's text on a model, compared elsewhere."""
    return re.compile(re.escape(text.strip()).replace(r"\{\}", "(.+?)").replace(r"\{\*\}", ".+?"))


@cache
def _load_client_frames() -> dict[str, ClientPromptBoilerplate]:
    return {row["client"]: ClientPromptBoilerplate(row) for row in json.loads((DATA / "frames.json").read_bytes())}


def get_client_prompt_boilerplate(client: ClientProgram | None) -> ClientPromptBoilerplate | None:
    return None if client is None else _load_client_frames().get(client.name)


Slot = tuple[str | int, ...]
_ENTRY = re.compile(r"\$\.(?:request\.)?\w+\[\d+\]")
_CONVERSATION = frozenset({Kind.USER, Kind.ASSISTANT, Kind.THOUGHT, Kind.CALL, Kind.RESULT, Kind.MEMBER, Kind.UNKNOWN})
_OF_MODEL = frozenset({Kind.ASSISTANT, Kind.THOUGHT, Kind.CALL})
_IDS = frozenset({"id", "call_id", "tool_call_id", "tool_use_id", "toolUseId"})
_ARGUMENTS = ("arguments", "args", "input", "parameters")


class HistoryToolCall(NamedTuple):
    id: str
    """Id as it was sent; empty if there is none."""
    name: str
    arguments: object


class RecordedAnswerWithCalls(NamedTuple):
    digest: str
    """Digest of its content and of the ids of its calls."""
    calls: tuple[HistoryToolCall, ...]
    """Calls whose results the client sends."""


class RecordedAnswersByToolCalls:
    """The recorded answers of one cassette, by their calls in histories."""

    def __init__(self) -> None:
        self._by_id: dict[str, RecordedAnswerWithCalls | None] = {}
        """None: calls of several answers have this id, so it proves nothing."""
        self._by_names: dict[tuple[str, ...], dict[str, RecordedAnswerWithCalls]] = {}

    def add_answer(self, message: Message) -> None:
        calls = tuple(
            HistoryToolCall(call.id or "", call.name, parse_tool_args(call.arguments))
            for call in message.tool_calls
            if not call.hosted
        )
        if not calls:
            return
        told = [message.text, *(text for call in calls for text in (call.id, call.name, _dump_json(call.arguments)))]
        answer = RecordedAnswerWithCalls(digest_texts(told), calls)
        for call in calls:
            if call.id and self._by_id.setdefault(call.id, answer) != answer:
                self._by_id[call.id] = None
        self._by_names.setdefault(tuple(call.name for call in calls), {})[answer.digest] = answer

    def find_by_id(self, call: HistoryToolCall) -> RecordedAnswerWithCalls | None:
        return self._by_id.get(call.id) if call.id else None

    def find_by_calls(self, calls: Sequence[HistoryToolCall]) -> RecordedAnswerWithCalls | None:
        """Return the one answer that calls these tools with these arguments or fewer; None unless it is unique."""
        known = self._by_names.get(tuple(call.name for call in calls), {}).values()
        pairs = ((answer, zip(calls, answer.calls, strict=True)) for answer in known)
        found = [
            answer
            for answer, each in pairs
            if all(extends_recorded_arguments(a.arguments, b.arguments) for a, b in each)
        ]
        return found[0] if len(found) == 1 else None


def extends_recorded_arguments(now: object, was: object) -> bool:
    """Return whether arguments are the recorded ones, possibly with further members that clients add as defaults."""
    if isinstance(now, dict) and isinstance(was, dict):
        return all(name in now and now[name] == value for name, value in was.items())
    return now == was


def _dump_json(value: object) -> str:
    return dump(value).decode("utf-8", "surrogatepass")


@dataclass(slots=True)
class RequestInSegments:
    canonical: Canonical
    slots: dict[Slot, Segment] = field(default_factory=dict)
    filled: Counter[Slot] = field(default_factory=Counter)
    """Number of `slots` that begin alike."""
    systems: list[Segment] = field(default_factory=list)
    members: dict[Slot, set[str]] = field(default_factory=dict)
    """Members next to the parts of messages, by turn and name: each value once."""
    chain: list[str] = field(default_factory=list)
    whole: bool = True
    """Whether its history has all calls of each recorded answer in it."""
    words: list[Segment] = field(default_factory=list)
    """Texts in the role of the user, except those of its client."""
    frames: list[Segment] = field(default_factory=list)
    """Texts of its client in the role of the user."""
    turns: list[int] = field(default_factory=list)
    """For each of `words` the number of answers before it."""

    @property
    def first_system_text(self) -> str:
        return _dump_json(self.systems[0].value) if self.systems else ""

    @property
    def first_user_texts(self) -> tuple[str, ...]:
        """The user's first words: with the system text they distinguish the threads of one run."""
        return tuple(to_text(part.value) for part, turn in zip(self.words, self.turns, strict=True) if not turn)

    @property
    def tool_results(self) -> Iterator[tuple[str, str]]:
        for slot, segment in self.slots.items():
            if slot[0] == Kind.RESULT:
                yield segment.own, to_text(segment.value)


_NESTED = ("toolUse", "toolResult", "functionCall", "function_call", "functionResponse", "function_response")


def remove_tool_call_ids(value: object) -> object:
    """Return the content of a call or a result, without the ids that link the two."""
    kept = {name: each for name, each in as_dict(value).items() if name not in _IDS}
    return {name: remove_tool_call_ids(each) if name in _NESTED else each for name, each in kept.items()} or value


def parse_tool_call_in_request(value: object, call_id: str = "") -> HistoryToolCall:
    tree = as_dict(value)
    if (block := read_tool_call_of_any_provider(tree)) is not None:
        name, arguments = block[1], block[2]
    else:
        inner = as_dict(tree.get("function")) or as_dict(tree.get("custom")) or tree
        name, arguments = inner.get("name"), next((inner[each] for each in _ARGUMENTS if each in inner), None)
    parsed = parse_tool_args(arguments) if isinstance(arguments, str) else arguments
    return HistoryToolCall(call_id, as_str(name), parsed)


def list_history_call_ids(operation: str, body: object) -> list[str]:
    """Return the ids of calls in a request's history as sent, in order: its canonical form has none."""
    calls = (segment for segment in list_request_segments(operation, body) if segment.kind is Kind.CALL)
    return [_read_call_id(segment.value) for segment in calls]


def parse_request_into_segments(
    canonical: Canonical, ids: Sequence[str], known: RecordedAnswersByToolCalls, client: ClientProgram | None = None
) -> RequestInSegments:
    """Parse a request; `ids`: of its calls (`list_history_call_ids`), `known`: the cassette's answers."""
    made = RequestInSegments(canonical)
    entries: dict[str, list[Segment]] = {}
    for segment in list_request_segments(canonical.operation, canonical.tree):
        if segment.kind is Kind.SYSTEM:
            made.systems.append(segment)
        elif segment.kind in _CONVERSATION:
            entry = _ENTRY.match(segment.path)
            entries.setdefault(entry[0] if entry else "", []).append(segment)
        else:
            _add_segment_at_next_position(made, (segment.kind, segment.name), segment)
    reader = _ConversationReader(made, list(ids), known, get_client_prompt_boilerplate(client))
    reader.read_entries(list(entries.values()))
    return made


def _add_segment_at_next_position(made: RequestInSegments, slot: Slot, segment: Segment) -> None:
    made.slots[*slot, made.filled[slot]] = segment
    made.filled[slot] += 1


class _ConversationReader:
    def __init__(
        self,
        made: RequestInSegments,
        ids: list[str],
        known: RecordedAnswersByToolCalls,
        frames: ClientPromptBoilerplate | None,
    ) -> None:
        self._made, self._ids, self._known, self._frames = made, ids, known, frames
        self._turn = 0
        self._open: dict[str, set[str]] = {}
        """Missing call ids of the answers in the history, by answer."""
        self._calls: dict[str, Slot] = {}
        """Slots of calls by their aliases in the canonical form."""

    def read_entries(self, entries: list[list[Segment]]) -> None:
        step: list[list[Segment]] = []
        for entry in entries:
            kinds = {each.kind for each in entry}
            if kinds & _OF_MODEL or (step and kinds <= {Kind.MEMBER}):
                step.append(entry)
                continue
            self._read_answer_step(step)
            step = []
            self._read_entry(entry, iter(()))
        self._read_answer_step(step)
        self._made.whole = self._made.whole and not any(self._open.values())

    def _read_answer_step(self, entries: list[list[Segment]]) -> None:
        if not entries:
            return
        said = [each for entry in entries for each in entry if each.kind is Kind.CALL]
        calls = [parse_tool_call_in_request(each.value, self._ids.pop(0) if self._ids else "") for each in said]
        told, proven = self._identify_answers(entries, calls)
        if not (proven and told == self._made.chain[-1:]):  # a client may send one answer's calls one by one
            self._made.chain += told
            self._turn += 1
        rest = iter(calls)
        for entry in entries:
            self._read_entry(entry, rest)

    def _identify_answers(self, entries: list[list[Segment]], calls: list[HistoryToolCall]) -> tuple[list[str], bool]:
        """Return the digests of the answers in entries, and whether the ids of their calls prove them."""
        proven = [answer for call in calls if (answer := self._known.find_by_id(call)) is not None]
        if calls and len(proven) == len(calls):
            for call, answer in zip(calls, proven, strict=True):
                self._open.setdefault(answer.digest, {each.id for each in answer.calls}).discard(call.id)
            return list(dict.fromkeys(f"answer {answer.digest}" for answer in proven)), True
        if calls and (alike := self._known.find_by_calls(calls)) is not None:
            return [f"answer {alike.digest}"], False
        texts = [to_text(each.value).strip() for entry in entries for each in entry if each.kind is Kind.ASSISTANT]
        told = [*texts, *(part for call in calls for part in (call.name, _dump_json(call.arguments)))]
        return [digest_texts(told)], False

    def _read_entry(self, entry: list[Segment], calls: Iterator[HistoryToolCall]) -> None:
        for segment in entry:
            match segment.kind:
                case Kind.MEMBER:
                    if segment.own not in _IDS:
                        self._made.members.setdefault((self._turn, segment.own), set()).add(_dump_json(segment.value))
                case Kind.CALL:
                    call = next(calls, HistoryToolCall("", "", None))
                    slot: Slot = (Kind.CALL, call.id) if self._known.find_by_id(call) else (Kind.CALL, self._turn, "")
                    self._calls[_read_call_id(segment.value)] = slot
                    _add_segment_at_next_position(self._made, slot, segment)
                case Kind.RESULT:
                    of = self._calls.get(self._get_call_id_of_result(entry, segment), ("", self._turn))
                    _add_segment_at_next_position(self._made, (Kind.RESULT, *of), segment)
                case Kind.USER if self._frames is not None and self._frames.is_client_part(to_text(segment.value)):
                    self._made.frames.append(segment)
                    _add_segment_at_next_position(self._made, (FRAME, self._turn), segment)
                case Kind.USER:
                    self._made.words.append(segment)
                    self._made.turns.append(self._turn)
                    _add_segment_at_next_position(self._made, (Kind.USER, self._turn), segment)
                case _:
                    _add_segment_at_next_position(self._made, (segment.kind, self._turn), segment)

    @staticmethod
    def _get_call_id_of_result(entry: Sequence[Segment], segment: Segment) -> str:
        if (block := read_tool_result_of_any_provider(as_dict(segment.value))) is not None:
            return block.tool_call_id or ""
        beside = (each for each in entry if each.kind is Kind.MEMBER and each.own == "tool_call_id")
        return next((as_str(each.value) for each in beside), "")


def _read_call_id(value: object) -> str:
    tree = as_dict(value)
    block = read_tool_call_of_any_provider(tree)
    return as_str(block[0] if block is not None else tree.get("id"))


def to_text(value: object) -> str:
    """Return a value as readable and comparable text; a tree with a line for each leaf."""
    if (plain := extract_text_only_content(value)) is not None:
        return plain[0]
    return json.dumps(value, ensure_ascii=False, indent=1, sort_keys=True)


def extract_text_only_content(value: object) -> tuple[str, dict[str, Any]] | None:
    """Return the text of a part or a result that contains only text, and its other members; None for others."""
    if isinstance(value, str):
        return value, {}
    tree = {name: each for name, each in as_dict(value).items() if name not in _IDS}
    if (inner := next((name for name in _NESTED if name in tree), None)) is not None:
        found = extract_text_only_content(tree.pop(inner))
        return None if found is None else (found[0], {**tree, inner: found[1]})
    if isinstance(text := tree.get("text"), str) and tree.keys() <= {"text", "type"}:
        return text, {"type": tree.get("type")}
    if (holder := next((name for name in ("content", "output", "response") if name in tree), None)) is None:
        return None
    said = tree.pop(holder)
    texts: list[Any] = [said] if isinstance(said, str) else [as_dict(part).get("text") for part in as_list(said)]
    if holder == "response" and len(as_dict(said)) == 1:
        tree[holder], texts = [*said], list(said.values())  # an output is no error
    plain = all(as_dict(part).keys() <= {"type", "text"} for part in as_list(said))
    if not texts or not plain or not all(isinstance(text, str) for text in texts):
        return None
    return "\n".join(texts), tree
