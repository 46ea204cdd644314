"""Which slots would make a recording fit: learned from two requests that ask the same, and from nothing else.

    recorded tree, present tree, bindings -> the slots that are missing (`Lesson`), or the `Mismatch` that no slot takes away

Only inside tools' results is anything learned, and only of values that look volatile on both sides, at one place, behind the same text: the
rest of the requests must be equal under what is bound already. A slot is as narrow as the evidence: the tool, its bound arguments, and what
stands before the value. Nothing is stored and nothing is decided here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from llmproxy.core.bindings.fitting.comparison import Parted, align
from llmproxy.core.bindings.fitting.fits import Comparing, fit_request
from llmproxy.core.bindings.fitting.places import Place, Zone
from llmproxy.core.bindings.fitting.results import Fit, Mismatch, Why
from llmproxy.core.bindings.fitting.slot_values import json_slot
from llmproxy.core.bindings.values.identities import Identities, Identity, Tokens
from llmproxy.core.bindings.values.slots import KINDS, LINE, OUTSIDE, SYSTEM, TEXT, Slot, is_of_kind
from llmproxy.core.bindings.values.table import Bindings

ROUNDS = 40
"""Times that two requests are compared anew, each with what the time before taught: a slot's id may stand in a later result."""
MOST_SLOTS = 200
"""Slots that one pair of requests may teach; two that differ in more are different requests."""
LONGEST_BEFORE = 400
"""Characters of a slot's anchor."""
_BESIDE = 12
"""Values that may vary before a value on one line."""

_ORDER = ("uuid", "time", "hex", "duration", "port", "pid", "count", "integer", "decimal", "name", "word")
"""The kind that says most comes first."""
_ENDS = r"(?![^\W_])"
"""No letter or digit follows."""
_SHORTEST_HEX = 6
_UNIT = re.compile(r"\s?(?:ns|us|µs|ms|milliseconds?|s|secs?|seconds?|mins?|minutes?|h|hours?)(?![^\W_])")
_NAMES_PID = re.compile(r"\b(?:pid|pgid|ppid|process|proc(?:ess)?_?id|session(?:_id)?)\b[^\n]{0,12}$", re.IGNORECASE)
_NAMES_PORT = re.compile(r"(?:\bport\b[\W_]{0,3}|localhost:|127\.0\.0\.1:|0\.0\.0\.0:|\]:)$", re.IGNORECASE)
_NAMES_COUNT = re.compile(
    r"\b(?:total|count|tokens?|size|bytes?|lines?|chars|length|files?)\b[^\n]{0,12}$", re.IGNORECASE
)
_NAMES_DURATION = re.compile(r"\b(?:took|elapsed|duration|time|real|user|sys)\b[^\n]{0,12}$", re.IGNORECASE)
_NAMES_ID = re.compile(r"\b(?:id|chunk|commit|hash|sha\d*|digest|token|key|index)\b[^\n]{0,12}$", re.IGNORECASE)
_LISTED = re.compile(r"[-dlbcps][-rwxsStT]{9}")
"""How a line of ``ls -l`` begins."""
_WORDS = re.compile(r"[A-Za-z][A-Za-z0-9]*")


@dataclass(frozen=True, slots=True)
class Lesson:
    """A slot, and what it was learned from."""

    slot: Slot
    recorded: str
    present: str
    path: str
    """JSON path in the request."""

    @property
    def accepted(self) -> bool:
        """Whether ``--accept`` takes it; all others are accepted one by one, by name."""
        return KINDS[self.slot.kind].accepted and self.slot.tool not in (OUTSIDE, SYSTEM)


class Value(NamedTuple):
    """A value that differs between two texts."""

    kind: str
    start: int
    """In the recorded text."""
    recorded: str
    present: str


def find_lessons(
    bindings: Bindings,
    recorded: object,
    present: object,
    known: Identities | None = None,
    *,
    outside: bool = False,
) -> tuple[Lesson, ...] | Mismatch:
    """Return the slots under which a recorded request fits the present one; empty where it fits as it is.

    Both are canonical trees. The mismatch is the first difference that no slot takes away. `outside` also learns from system text, which
    nobody but the agent writes: such a slot is for whoever ships slots for an agent, never for a trial.
    """
    learned: list[Lesson] = []
    outcome: Fit | Mismatch = Mismatch(Why.DIFFERENT, "$")
    for _ in range(ROUNDS):
        now = _with_slots(bindings, [lesson.slot for lesson in learned])
        outcome = fit_request(now, recorded, present, known)
        if isinstance(outcome, Fit):
            return tuple(learned)
        if _unlearn_identity(outcome, learned):
            continue
        new = _Learning(now, recorded, present, known, [lesson.slot for lesson in learned], outside=outside).lessons
        if not new or len(learned) + len(new) > MOST_SLOTS:
            break
        learned += new
    return outcome if isinstance(outcome, Mismatch) else tuple(learned)


def _unlearn_identity(outcome: Mismatch, learned: list[Lesson]) -> bool:
    """Make noise of a number that was taken for an id and does not map one to one: a count, then."""
    if outcome.why is not Why.NOT_ONE_TO_ONE:
        return False
    for n, lesson in enumerate(learned):
        if lesson.slot.name == outcome.name and lesson.slot.kind == "integer" and lesson.slot.identity:
            learned[n] = replace(lesson, slot=replace(lesson.slot, kind="count"))
            return True
    return False


def _with_slots(bindings: Bindings, slots: Sequence[Slot]) -> Bindings:
    return Bindings(
        [pair.recorded for pair in bindings.pairs],
        [pair.present for pair in bindings.pairs],
        (*bindings.slots, *slots),
    )


class _Learning(Comparing):
    """A comparison that notes what it would have to know to go on, and goes on."""

    def __init__(
        self,
        bindings: Bindings,
        recorded: object,
        present: object,
        known: Identities | None,
        before: Sequence[Slot],
        *,
        outside: bool,
    ) -> None:
        from llmproxy.core.bindings.fitting.slot_values import SlotReading

        reading = SlotReading(bindings)
        reading.read(recorded, present)
        whole = Identities()
        for each in (*reading.found, *(known or ())):
            whole.add(each)
        super().__init__(bindings, whole, None)
        self.lessons: list[Lesson] = []
        self._outside = outside
        self._known = [*bindings.slots, *before]
        self._taken = {slot.name for slot in self._known}
        self.compare_bodies(recorded, present)

    # -- leaves

    def value(self, recorded: object, present: object, place: Place) -> Mismatch | None:
        """Learn from two leaves of JSON that are no texts."""
        wrong = super().value(recorded, present, place)
        if wrong is None or not self._may_learn(place) or not place.json:
            return wrong
        if isinstance(recorded, bool) or isinstance(present, bool) or type(recorded) is not type(present):
            return wrong
        if not isinstance(recorded, (int, float)):
            return wrong
        return None if self._learn_leaf(str(recorded), str(present), place) else wrong

    def text(self, recorded: str, present: str, place: Place) -> Mismatch | None:
        """Learn from two texts."""
        if place.json and self._may_learn(place):
            wrong = super().text(recorded, present, place)
            return None if wrong is None or self._learn_leaf(recorded, present, place) else wrong
        return super().text(recorded, present, place)

    def _plain(self, recorded: str, present: str, place: Place) -> Mismatch | None:
        wrong = super()._plain(recorded, present, place)
        while wrong is not None and self._may_learn(place) and not place.json and len(self.lessons) < MOST_SLOTS:
            lesson = self._learn_text(recorded, present, place)
            if lesson is None:
                return wrong
            wrong = super()._plain(recorded, present, place)
        return wrong

    def _may_learn(self, place: Place) -> bool:
        if self._outside and place.zone is Zone.SYSTEM and not place.json:
            return True
        return place.zone is Zone.RESULT and place.call is not None

    # -- what is learned

    def _learn_leaf(self, recorded: str, present: str, place: Place) -> bool:
        if json_slot(self.bindings, self.bound_arguments, place) is not None:
            return False
        kind = kind_of(recorded, present, f"{place.member}: ")
        if kind is None or kind == "word":
            return False
        at = re.sub(r"\[\d+\]", "[*]", place.inner)
        return self._take(Value(kind, 0, recorded, present), place, at=at, before="", called=place.member)

    def _learn_text(self, recorded: str, present: str, place: Place) -> bool | None:
        gaps = self._gaps(recorded, place)
        parted = align(recorded, gaps, present) if gaps else Parted(*_part(recorded, present))
        if not isinstance(parted, Parted) or parted.leaked:
            return None
        free = [(gap.start, gap.end) for gap in gaps]
        value = self._declared(recorded, parted.recorded, present, parted.present) or find_value(
            recorded, parted.recorded, present, parted.present, free
        )
        if value is None:
            return None
        start = recorded.rfind("\n", 0, value.start) + 1
        before, at = self._anchor(recorded, start, value, place), LINE
        if not before and start and value.kind not in ("uuid", "time"):
            # The first thing of its line: what stands on the line before tells it from the first things of other lines.
            start = recorded.rfind("\n", 0, start - 1) + 1
            before, at = self._anchor(recorded, start, value, place), TEXT
        if before is None or len(before) > LONGEST_BEFORE or not self._take(value, place, at=at, before=before):
            return None
        return True

    def _declared(self, recorded: str, at: int, present: str, there: int) -> Value | None:
        """Return a circumstance that is too short to be bound in a text, or bound elsewhere only, where both texts hold their run's."""
        for pair in self.bindings.pairs:
            mine, theirs = pair.recorded.value, pair.present.value
            if mine == theirs or not is_of_kind("name", mine) or not is_of_kind("name", theirs):
                continue
            same = next(
                (
                    n
                    for n in range(len(mine))
                    if recorded[at - n : at] == mine[:n] and recorded.startswith(mine, at - n)
                ),
                -1,
            )
            if same >= 0 and present.startswith(theirs, there - same) and not _joined(recorded, at - same):
                return Value("name", at - same, mine, theirs)
        return None

    def _anchor(self, text: str, start: int, value: Value, place: Place) -> str | None:
        """Return what stands before a value, with names for what is bound and kinds for what varies; None where too much varies."""
        parts: list[str] = []
        last = start
        varying = 0
        for gap in self._gaps(text, place):
            if gap.start < start or gap.end > value.start:
                continue
            parts.append(_literal(text[last : gap.start]))
            parts.append(self._wild(gap.name, text[gap.start : gap.end]))
            last = gap.end
            varying += 1
        if varying > _BESIDE:
            return None
        return "".join([*parts, _literal(text[last : value.start])])

    def _wild(self, name: str, text: str) -> str:
        for pair in self.bindings.pairs:
            if pair.name == name and text == pair.recorded.value:
                return f"{{{name}}}"
        slot = next((each for each in self._known if each.name == name), None)
        if slot is not None and is_of_kind(slot.kind, text):
            return f"{{:{slot.kind}}}"
        return "{:word}"

    def _take(self, value: Value, place: Place, *, at: str, before: str, called: str = "") -> bool:
        """Note a slot, and go on as if it had been known; False where it cannot be."""
        tool, arguments = SYSTEM, ""
        if place.zone is Zone.RESULT and place.call is not None:
            tool, arguments = place.call.tool, self.bound_arguments(place.call.arguments)
        same = [
            each
            for each in self._known
            if (each.tool, each.at, each.before, each.arguments) == (tool, at, before, arguments)
        ]
        if same:
            return False  # it is known, and did not help
        name = name_slot(before, called, value.kind, tool, self._taken)
        slot = Slot(name, value.kind, tool, at, before, arguments)
        identity = Identity(name, value.kind, value.recorded, value.present)
        self._taken.add(name)
        self._known.append(slot)
        self.lessons.append(Lesson(slot, value.recorded, value.present, place.path))
        self.bindings = _with_slots(self.bindings, [slot])
        if slot.identity:
            self._identities.add(identity)
            self._tokens = Tokens(self._identities)
        return True


def _part(recorded: str, present: str) -> tuple[int, int]:
    from llmproxy.core.bindings.fitting.results import first_difference

    at = first_difference(recorded, present)
    return at, at


def _literal(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def find_value(recorded: str, at: int, present: str, there: int, taken: Sequence[tuple[int, int]] = ()) -> Value | None:
    """Return the volatile value in which two texts first differ, at `at` and `there`; None where that is nothing volatile.

    Before both positions the texts say the same; `taken` are places of the recorded text that are bound already.
    """
    for kind in _ORDER:
        for start, end in _around(kind, recorded, at):
            same = at - start
            if (
                any(start < stop and begin < end for begin, stop in taken)
                or recorded[start:at] != present[there - same : there]
            ):
                continue
            mine = recorded[start:end]
            for theirs in _beginning(kind, present, there - same):
                before = recorded[max(0, start - LONGEST_BEFORE) : start].rpartition("\n")[2]
                behind = recorded[end : end + 20], present[there - same + len(theirs) :][:20]
                if mine != theirs and _is_likely(kind, mine, theirs, before, behind):
                    return Value(kind, start, mine, theirs)
    return None


def kind_of(recorded: str, present: str, before: str = "") -> str | None:
    """Return the kind of two whole values that differ; None where they do not look volatile."""
    for kind in _ORDER:
        if (
            is_of_kind(kind, recorded)
            and is_of_kind(kind, present)
            and _is_likely(kind, recorded, present, before, ("", ""))
        ):
            return kind
    return None


def _around(kind: str, text: str, at: int) -> Iterator[tuple[int, int]]:
    """Yield where values of a kind stand that a position touches, on borders of words, the longest first."""
    start = max(text.rfind("\n", 0, at) + 1, at - 200)
    end = text.find("\n", at)
    end = len(text) if end < 0 else end
    pattern = re.compile(f"(?:{KINDS[kind].pattern}){_ENDS}")
    found = []
    for begin in range(start, at + 1):
        if begin > start and _joined(text, begin) and not (kind == "duration" and text[begin - 1] in "mh"):  # 0m1.234s
            continue
        match = pattern.match(text, begin, min(end, begin + 300))
        if match is not None and match.end() >= at:
            found.append((begin, match.end()))
    yield from sorted(found, key=lambda each: each[0] - each[1])


def _beginning(kind: str, text: str, start: int) -> Iterator[str]:
    match = re.compile(f"(?:{KINDS[kind].pattern}){_ENDS}").match(text, start)
    if match is not None:
        yield match[0]


def _joined(text: str, at: int) -> bool:
    return text[at - 1].isalnum() and text[at].isalnum() if at < len(text) else False


def _is_likely(kind: str, recorded: str, present: str, before: str, behind: tuple[str, str]) -> bool:
    """Tell whether two values of a kind are what its name says, and not anything that its pattern takes."""
    both = recorded, present
    match kind:
        case "uuid" | "time":
            return kind == "uuid" or any(not each.isdigit() or len(each) >= 10 for each in both)
        case "hex":
            alike = len(recorded) == len(present) >= _SHORTEST_HEX
            digits = all(each.isdigit() for each in both)
            return alike and (not digits or bool(_NAMES_ID.search(before)))
        case "duration":
            united = all(_UNIT.search(each) for each in both) or all(_UNIT.match(each) for each in behind)
            return united or (bool(_NAMES_DURATION.search(before)) and any("." in each for each in both))
        case "port":
            return bool(_NAMES_PORT.search(before))
        case "pid":
            return bool(_NAMES_PID.search(before))
        case "count":
            return bool(_NAMES_COUNT.search(before))
        case "name":
            return _is_made_up(recorded) and _is_made_up(present)
        case "word":
            return False
        case _:
            return True


_ROLLED = re.compile(r"[A-Za-z0-9]{6,}")


def _is_made_up(name: str) -> bool:
    """Tell whether a name holds a part that nobody typed: letters of both cases, or letters and digits, mixed."""
    for part in _ROLLED.findall(name):
        mixed = any(c.islower() for c in part[1:]) and any(c.isupper() for c in part[1:])
        if mixed or (any(c.isdigit() for c in part) and any(c.isalpha() for c in part)):
            return True
    return False


def name_slot(before: str, called: str, kind: str, tool: str, taken: set[str]) -> str:
    """Return a name for a slot that is not taken: of its member, or of the words before it."""
    words = _WORDS.findall(called or re.sub(r"\{:?[^{}]*\}", " ", before.rpartition("\n")[2]))
    base = "_".join(word.lower() for word in words[-2:])[:40] or kind
    if _LISTED.match(before):
        base = f"file_{kind}"
    if base in ("id", "key", "name", "value"):
        base = f"{'_'.join(_WORDS.findall(tool)[-2:]).lower()}_{base}"
    name, n = base, 1
    while name in taken:
        n += 1
        name = f"{base}_{n}"
    return name


_OFTEN = 3
"""Commands behind which a value must have varied to be taken to vary behind every command of the tool."""


def generalize(lessons: Sequence[Lesson], often: int = _OFTEN) -> tuple[Lesson, ...]:
    """Return lessons with one slot for any arguments where the same text stood before a value behind `often` commands."""
    groups: dict[tuple[str, str, str, str], list[Lesson]] = {}
    for lesson in lessons:
        slot = lesson.slot
        groups.setdefault((slot.tool, slot.at, slot.before, slot.kind), []).append(lesson)
    found = []
    for (_, at, before, _), group in groups.items():
        commands = {lesson.slot.arguments for lesson in group}
        if len(commands) >= often and at == LINE and len(_WORDS.findall(before)) > 1:
            found.append(replace(group[0], slot=replace(group[0].slot, arguments="")))
        else:
            found += group
    return tuple(found)
