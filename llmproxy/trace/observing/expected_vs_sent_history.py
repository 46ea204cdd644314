"""Differences between the expected and the sent history of a thread's requests.

Expected are the predecessor's messages, its answer, and then new messages. Messages are reduced to what clients
preserve (white space, ids and the layout of arguments do not count); answers in pieces are one. A message that was only
rewritten (a clock, retrieved text) is an edit, not a loss.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from llmproxy.core.dialects.messages import Message
from llmproxy.core.traffic.canonical_json import sort_json_members
from llmproxy.trace.reading.conversations import remove_whitespace

ALIKE = 0.9
"""Least similarity of two texts that are versions of one."""
_TIMES = re.compile(
    r"[\d\W_]+|\b(?:(?:mon|tues|wednes|thurs|fri|satur|sun)day|(?:mon|tue|wed|thu|fri|sat|sun)\b|january|february|march"
    r"|april|may|june|july|august|september|october|november|december"
    r"|(?:jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec)\b|[ap]m\b|utc\b|gmt\b)"
)
"""Characters of dates, clocks and word separators."""
_LONG = 4000
"""Maximum characters of a text compared for similarity."""
type History = Sequence[HistoryItem]


@dataclass(frozen=True, slots=True)
class HistoryItem:
    role: str
    text: str
    calls: tuple[str, ...] = ()
    call_id: str | None = None
    reasoning: bool = False
    alike: str = ""
    """Normalised text."""

    @property
    def key(self) -> tuple[str, str, tuple[str, ...]]:
        return self.role, self.alike, self.calls


@dataclass(frozen=True, slots=True)
class MissingHistoryMessages:
    missing: tuple[HistoryItem, ...]
    inserted: tuple[HistoryItem, ...]
    kept: int
    """Number of expected messages after the gap that are present."""
    sure: bool = True
    """Whether its position is certain: in a repetitive conversation it may be nearby."""


@dataclass(frozen=True, slots=True)
class SentHistoryDeviation:
    expected: int
    """Number of messages, new ones included."""
    gaps: tuple[MissingHistoryMessages, ...] = ()
    pruned: int = 0
    """Parts missing from kept messages: tool calls, shortened results, reasoning."""
    grown: str = ""
    other: bool = False
    """Whether these are more than a date or number."""

    @property
    def missing(self) -> tuple[HistoryItem, ...]:
        return tuple(item for gap in self.gaps for item in gap.missing)


def join_system_text(messages: Sequence[Message]) -> str:
    return "\n".join(message.text for message in messages if message.role == "system")


def list_history_items_without_system(messages: Sequence[Message]) -> list[HistoryItem]:
    items: list[HistoryItem] = []
    for message in messages:
        if message.role == "system":
            continue
        calls = tuple(f"{call.name} {sort_json_members(call.arguments)}" for call in message.tool_calls)
        text, reasoning = message.text, bool(message.reasoning)
        item = HistoryItem(message.role, text, calls, message.tool_call_id, reasoning, remove_whitespace(text))
        if items and item.role == "assistant" == items[-1].role:
            last = items.pop()
            item = HistoryItem(
                "assistant", last.text + item.text, last.calls + calls, None, last.reasoning or item.reasoning,
                last.alike + item.alike,
            )  # fmt: skip
        items.append(item)
    return items


def count_common_head_and_tail(one: History, other: History) -> tuple[int, int]:
    most = min(len(one), len(other))
    head = next((n for n in range(most) if one[n].key != other[n].key), most)
    return head, next((n for n in range(most - head) if one[-1 - n].key != other[-1 - n].key), most - head)


def compare_expected_and_sent_history(
    expected: History, sent: History, *, before: str = "", after: str = "", written: Sequence[str] = ()
) -> SentHistoryDeviation:
    """Compare an expected history with a request's; `before` and `after` are the system prompts.

    `written` are texts, without white space, that earlier calls wrote for this request.
    """
    end = len(sent) - _count_trailing_new_messages(sent)
    body, new = list(sent[:end]), list(sent[end:])
    gaps: list[MissingHistoryMessages] = []
    pruned = 0
    opcodes = _compute_opcodes(expected, body)
    equal_after = sum(i2 - i1 for tag, i1, i2, _, _ in opcodes if tag == "equal")
    for tag, i1, i2, j1, j2 in opcodes:
        if tag == "equal":
            equal_after -= i2 - i1
            pairs = zip(expected[i1:i2], body[j1:j2], strict=True)
            pruned += sum(item.reasoning and not sent.reasoning for item, sent in pairs)
            continue
        if tag == "insert":
            new += body[j1:j2] if i1 == len(expected) else []
            continue
        missing, inserted, parts = _find_unpaired_messages(expected[i1:i2], body[j1:j2], written)
        pruned += parts
        if missing:
            earlier = i1 > 0 and expected[i1 - 1].key == expected[i2 - 1].key  # moved, it would leave the same history
            later = i2 < len(expected) and expected[i1].key == expected[i2].key
            gaps.append(
                MissingHistoryMessages(tuple(missing), tuple(inserted), equal_after, sure=not (earlier or later))
            )
    grown, other = _find_added_lines(before, after) if before != after else ("", False)
    return SentHistoryDeviation(len(expected) + len(new), tuple(gaps), pruned, grown, other)


def _compute_opcodes(one: History, other: History) -> list[tuple[str, int, int, int, int]]:
    """Return edit steps that keep both ends: else, among equal messages, a summary would precede what it replaces."""
    head, tail = count_common_head_and_tail(one, other)
    keys, other_keys = ([item.key for item in side[head : len(side) - tail]] for side in (one, other))
    middle = SequenceMatcher(None, keys, other_keys, autojunk=False)
    steps = [("equal", 0, head, 0, head)] if head else []
    steps += [(tag, i1 + head, i2 + head, j1 + head, j2 + head) for tag, i1, i2, j1, j2 in middle.get_opcodes()]
    return steps + ([("equal", len(one) - tail, len(one), len(other) - tail, len(other))] if tail else [])


def _count_trailing_new_messages(sent: History) -> int:
    """Return the number of new messages at the end: tool results, or the user's next text."""
    count = 0
    while count < len(sent) and sent[-1 - count].role == "tool":
        count += 1
    return count or (1 if sent and sent[-1].role == "user" else 0)


def _find_unpaired_messages(
    expected: History, sent: History, written: Sequence[str]
) -> tuple[list[HistoryItem], list[HistoryItem], int]:
    gone: dict[int, HistoryItem] = {}
    reworded: dict[int, int] = {}
    pruned, at, used, joined = 0, 0, set[int](), 0
    for number, item in enumerate(expected):
        if number < joined:
            continue
        rest = expected[number:]
        free = [j for j in range(at, len(sent)) if j not in used]
        several = next(((j, made) for j in free if (made := _count_joined_messages(rest, sent[j]))), None)
        if several is not None:
            place, (length, parts) = several
            used.add(place)
            at, joined, pruned = place + 1, number + length, pruned + parts
            continue
        found = next((j for j in free if _count_pruned_parts(item, sent[j]) or _is_edited(item, sent[j])), None)
        if found is None:
            gone[number] = item
            continue
        used.add(found)
        at = found + 1
        pruned += _count_pruned_parts(item, sent[found])
        if item.role == "user" and _differs_beyond_times(item, sent[found], written):
            reworded[number] = found
    # One summary may be much like the one before it: with what it stands for it is no edit.
    for number in (each for each in reworded if {each - 1, each + 1} & gone.keys()):
        gone[number] = expected[number]
        used.discard(reworded[number])
    return [gone[number] for number in sorted(gone)], [item for j, item in enumerate(sent) if j not in used], pruned


def _differs_beyond_times(item: HistoryItem, sent: HistoryItem, written: Sequence[str]) -> bool:
    """Return whether an edited message has more new text than dates or numbers; text written for it always counts."""
    if any(text in sent.alike and text not in item.alike for text in written):
        return True
    return _strip_times([item.text]) != _strip_times([sent.text])


def _count_joined_messages(expected: History, sent: HistoryItem) -> tuple[int, int] | None:
    """Return the number of an answer's messages that match when joined, and of missing ones; or None."""
    text, calls, results = "", list[str](), 0
    for length, item in enumerate(expected, 1):
        if item.role == "tool" and length > 1:
            results += 1
            continue
        if item.role != "assistant" or sent.role != "assistant" or not sent.alike.startswith(text + item.alike):
            return None
        text, calls = text + item.alike, [*calls, *item.calls]
        if length > 1 and text == sent.alike and len(sent.calls) < len(calls) and set(sent.calls) <= set(calls):
            return length, len(calls) - len(sent.calls) + results
    return None


def _count_pruned_parts(item: HistoryItem, sent: HistoryItem) -> int:
    if item.role != sent.role:
        return 0
    if item.role == "assistant" and item.alike == sent.alike and len(sent.calls) < len(item.calls):
        return len(item.calls) - len(sent.calls) if set(sent.calls) <= set(item.calls) else 0
    same_call = item.call_id is not None and item.call_id == sent.call_id
    return int(item.role == "tool" and same_call and len(sent.alike) < len(item.alike))


def _is_edited(item: HistoryItem, sent: HistoryItem) -> bool:
    if item.role != sent.role or item.calls != sent.calls:
        return False
    if item.role == "tool" and item.call_id is not None and item.call_id == sent.call_id:
        return True
    one, other = item.alike[:_LONG], sent.alike[:_LONG]
    matcher = SequenceMatcher(None, one, other, autojunk=False)
    return matcher.real_quick_ratio() >= ALIKE and matcher.quick_ratio() >= ALIKE and matcher.ratio() >= ALIKE


def _find_added_lines(before: str, after: str) -> tuple[str, bool]:
    """Return the new lines of a system prompt, and whether they have more than new dates and numbers."""
    old, lines = before.splitlines(), after.splitlines()
    new, other = list[str](), False
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, old, lines, autojunk=False).get_opcodes():
        if tag in ("insert", "replace"):
            new += lines[j1:j2]
            other = other or _strip_times(old[i1:i2]) != _strip_times(lines[j1:j2])
    return "\n".join(new), other


def _strip_times(lines: Sequence[str]) -> str:
    return _TIMES.sub("", "\n".join(lines).casefold())
