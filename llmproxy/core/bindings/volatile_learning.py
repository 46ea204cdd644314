"""Learning of volatile fields from two requests that ask the same question; nothing is stored or decided here.

Fields are learned only inside tools' results, from values that look volatile on both sides, at one place, behind the
same text. A volatile field is as narrow as the evidence: the tool, its bound arguments, the text before the value.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, NamedTuple

from llmproxy.core.bindings.created_id_pairs import (
    IdPair,
    IdPairs,
    RecordedIdTextMatcher,
    ShortValue,
    find_short_values_at_leaf,
)
from llmproxy.core.bindings.leaf_pairs import Fit, MisfitReason, Mismatch, VolatileFieldReader, pair_request_leaves
from llmproxy.core.bindings.leaf_places import Bindings, LeafPlace, RequestZoneMapper, Zone, iterate_request_members
from llmproxy.core.bindings.request_comparison import (
    BoundRequestComparer,
    match_requests_with_bindings,
    rewrite_request_to_this_run,
)
from llmproxy.core.bindings.run_variables import RunVariable, RunVariableKind
from llmproxy.core.bindings.text_alignment import (
    LISTED,
    LISTING,
    TextDivergence,
    match_text_with_gaps,
    put_current_run_values_in_text,
)
from llmproxy.core.bindings.volatile_result_fields import (
    IN_TEXT,
    KINDS,
    LINE,
    SYSTEM,
    TEXT,
    VolatileField,
    matches_field_kind,
)
from llmproxy.core.traffic.canonical_json import split_text_by_json
from llmproxy.lazy_regex import late

LONGEST_BEFORE = 400
_ORDER = ("uuid", "time", "hex", "duration", "port", "pid", "count", "integer", "decimal", "name", "word")
"""Kinds, the most specific first."""
_SHORTEST_HEX = 6
_UNIT = late(r"\s?(?:ns|us|µs|ms|milliseconds?|s|secs?|seconds?|mins?|minutes?|h|hours?)(?![^\W_])")
_NAMES_BEFORE = {
    "pid": late(r"\b(?:pid|pgid|ppid|process|proc(?:ess)?_?id|session(?:_id)?)\b[^\n]{0,12}$", re.IGNORECASE),
    "port": late(r"(?:\bport\b[\W_]{0,3}|localhost:|127\.0\.0\.1:|0\.0\.0\.0:|\]:)$", re.IGNORECASE),
    "count": late(r"\b(?:total|count|tokens?|size|bytes?|lines?|chars|length|files?)\b[^\n]{0,12}$", re.IGNORECASE),
}
"""Texts before values of kinds that only their names tell."""
_NAMES_DURATION = late(r"\b(?:took|elapsed|duration|time|real|user|sys)\b[^\n]{0,12}$", re.IGNORECASE)
_NAMED = late(r"([A-Za-z_]\w*)[\"'\s:=>]{0,4}$")
_TOOK = late(
    r"(?i:duration|elapsed|latency|took)"
    r"|(?:_(?:[mun]?s|secs?|seconds|millis|milliseconds)|[a-z](?:Ms|Secs?|Seconds|Millis))$"
)
_IS_SET = late(r"(?i)time_?out|limit|max|min|ttl|interval|delay|retry|wait|expir|budget|window|period|after|until")
"""Words of durations that a person configured, not measured."""
_NAMES_TIME = late(r"(?:time|date|stamp|epoch|since|until|expires|(?<![^\W_])(?:ts|at))\b[^\n\w]{0,6}$", re.IGNORECASE)
_COMMITTED = late(r"\[\S+(?: \(root-commit\))? ")
"""The text before the commit in ``git commit``'s output; 1 of 700 pairs of commits has no letter in 7 digits."""
_ROLLED = late(r"[A-Za-z0-9]{6,}")


class DifferingVolatileValue(NamedTuple):
    kind: str
    start: int
    recorded: str
    present: str


def find_differing_volatile_value(
    recorded: str, at: int, present: str, there: int, taken: Sequence[tuple[int, int, str]] = ()
) -> DifferingVolatileValue | None:
    """Return the volatile value at which two texts first differ, at `at` and `there`; None if it is not volatile.

    Before both positions the texts are equal. `taken` are bound places of the recorded text (start, end, name).
    """
    # In the folder for temporary files every name is chosen by its creator.
    temporary = {end + 1 for _, end, name in taken if name == "tmp" and recorded[end : end + 1] in ("/", "\\")}
    for kind in _ORDER:
        for start, end in _find_kind_spans_touching(kind, recorded, at):
            same = at - start
            if (
                any(start < stop and begin < end for begin, stop, _ in taken)
                or recorded[start:at] != present[there - same : there]
                or (match := IN_TEXT[kind].match(present, there - same)) is None
            ):
                continue
            mine, theirs = recorded[start:end], match[0]
            before = recorded[max(0, start - LONGEST_BEFORE) : start].rpartition("\n")[2]
            behind = recorded[end : end + 20], present[match.end() :][:20]
            likely = _are_plausible(kind, mine, theirs, before, behind) or (kind == "name" and start in temporary)
            if mine != theirs and likely:
                return DifferingVolatileValue(kind, start, mine, theirs)
    return None


def infer_volatile_value_kind(recorded: str, present: str, before: str = "", *, number: bool = False) -> str | None:
    """Return the kind of two differing whole values; None if they do not look volatile. `number`: JSON numbers."""
    for kind in (each for each in _ORDER if not (number and each == "hex")):
        if (
            matches_field_kind(kind, recorded)
            and matches_field_kind(kind, present)
            and _are_plausible(kind, recorded, present, before, ("", ""))
        ):
            return kind
    return None


def _find_kind_spans_touching(kind: str, text: str, at: int) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of values of a kind that touch a position, at word borders, longest first."""
    start = max(text.rfind("\n", 0, at) + 1, at - 200)
    end = text.find("\n", at)
    end = len(text) if end < 0 else end
    found = []
    for begin in range(start, at + 1):
        # A duration may begin inside of a word: 0m1.234s.
        if begin > start and is_in_word(text, begin) and not (kind == "duration" and text[begin - 1] in "mh"):
            continue
        if (match := IN_TEXT[kind].match(text, begin, min(end, begin + 300))) is not None and match.end() >= at:
            found.append((begin, match.end()))
    yield from sorted(found, key=lambda each: each[0] - each[1])


def is_in_word(text: str, at: int) -> bool:
    return text[at - 1].isalnum() and text[at].isalnum() if at < len(text) else False


def _are_plausible(kind: str, recorded: str, present: str, before: str, behind: tuple[str, str]) -> bool:
    """Return whether two values are really of a kind: its pattern alone matches too much."""
    both = recorded, present
    match kind:
        case "uuid" | "time":
            return kind == "uuid" or not all(each.isdigit() for each in both) or bool(_NAMES_TIME.search(before))
        case "hex":
            alike = len(recorded) == len(present) >= _SHORTEST_HEX
            committed = _COMMITTED.fullmatch(before) is not None and all(each.startswith("]") for each in behind)
            # Digits alone are a number, which counts only behind its name; letters alone are words.
            mixed = any(c.isdigit() for c in recorded + present) and any(c.isalpha() for c in recorded + present)
            return alike and (mixed or (committed and len(recorded) > _SHORTEST_HEX))
        case "duration":
            united = all(_UNIT.search(each) for each in both) or all(_UNIT.match(each) for each in behind)
            named = _NAMED.search(before)
            took = named is not None and _TOOK.search(named[1]) is not None and not _IS_SET.search(named[1])
            return united or took or (bool(_NAMES_DURATION.search(before)) and any("." in each for each in both))
        case "port" | "pid" | "count":
            return bool(_NAMES_BEFORE[kind].search(before))
        case "name":
            return _is_generated_name(recorded) and _is_generated_name(present)
        case "word":
            return False
        case _:
            return True


def _is_generated_name(name: str) -> bool:
    """Return whether a name has a generated part: mixed case, or letters mixed with digits."""
    return any(
        (any(c.islower() for c in part[1:]) and any(c.isupper() for c in part[1:]))
        or (any(c.isdigit() for c in part) and any(c.isalpha() for c in part))
        for part in _ROLLED.findall(name)
    )


_TOOLS = late(r"^mcp_|web|brows|http|url|fetch|crawl|scrape|download|online", re.IGNORECASE)
_PROGRAMS = late(
    r"\b(?:ssh|scp|rsync|sftp|gh|glab|aws|gcloud|kubectl|psql|mysql|mongosh|redis-cli|dig|nslookup|ping)\b"
    r"|\bgit\s+(?:fetch|pull|clone|push|ls-remote)\b|\b(?:curl|wget|https?)\b"
)
_HERE = late(r"(?:https?://)?(?:localhost|127\.0\.0\.1|0\.0\.0\.0|\[::1\])(?::\d+)?[^\s\"'|;&]*")
_ASKS = late(r"\b(?:curl|wget)\b[^|;&]*\x00[^|;&]*")


def is_tool_call_to_remote_host(tool: str, arguments: str = "") -> bool:
    """Return whether a call's result comes from another machine; `arguments` are the call's in JSON, or empty."""
    if _TOOLS.search(tool):
        return True
    at_home = _ASKS.sub("", _HERE.sub("\x00", arguments))  # a request to this machine
    return _PROGRAMS.search(at_home) is not None


_WORDS = late(r"[A-Za-z][A-Za-z0-9]*")
_BOUND = late(r"\{(:?)([^{}]*)\}")
_COLUMNS = ("mode", "links", "owner", "group", "size", "time")
_BARE = ("id", "key", "name", "value")
"""Names that mean nothing without their tool's name."""
_VERBS = frozenset({
    "make", "create", "add", "new", "insert", "get", "post", "put", "open", "start", "book", "register", "save",
    "store", "write", "mcp",
})  # fmt: skip
"""Words of a tool's name for its action, not its object."""
_CAMEL = late(r"(?<=[a-z0-9])(?=[A-Z])")
_LONGEST = 40


def list_words_before_value(before: str) -> list[str]:
    return _WORDS.findall(_BOUND.sub(" ", before))


def choose_volatile_field_name(before: str, called: str, kind: str, tool: str, taken: Collection[str]) -> str:
    """Return an unused name; `called` is the JSON member of the value, empty in a text."""
    base = _name_for_tool(called or _name_after_preceding_text(before.rpartition("\n")[2], kind), tool)
    return find_unused_name(base, taken)


def find_unused_name(base: str, taken: Collection[str]) -> str:
    """Return the first of ``base``, ``base_2``, ``base_3`` ... that is not taken."""
    names = (base if n == 1 else f"{base}_{n}" for n in count(1))
    return next(name for name in names if name not in taken)


def _name_after_preceding_text(before: str, kind: str) -> str:
    if LISTED.match(before):
        column = len(before.split())
        return f"file_{_COLUMNS[column] if column < len(_COLUMNS) else 'time' if kind == 'time' else 'name'}"
    if _COMMITTED.fullmatch(before):
        return "commit"
    if kind == "port" or (kind == "name" and before == "["):
        return "branch" if before == "[" else kind
    bound = [name for wild, name in _BOUND.findall(before) if not wild]
    if bound and before.endswith(f"{{{bound[-1]}}}/"):
        return f"{bound[-1]}_{kind}"
    if words := list_words_before_value(before):
        return "_".join([*words[-2:], "email"] if before.endswith(" <") else words[-2:])
    return "_".join([*bound[-1:], kind])


def _name_for_tool(base: str, tool: str) -> str:
    base = "_".join(_WORDS.findall(base)[-2:]).lower()[:_LONGEST] or "value"
    if base not in _BARE:
        return base
    # Named after the object that the tool creates: `task_id` of make_task is the `task_id` argument of another tool.
    words = [word.lower() for word in _WORDS.findall(_CAMEL.sub(" ", tool))]
    things = [word for word in words if word not in _VERBS] or words
    return "_".join([*things[-1:], base])[:_LONGEST]


ROUNDS = 40
"""Maximum comparisons of two requests while learning: an id that is learned may occur in a later result."""
MOST_SLOTS = 200
"""Maximum volatile fields learned from one pair of requests; with more differences they are different requests."""
_BESIDE = 12
"""Maximum varying values before a value on one line."""


@dataclass(frozen=True, slots=True)
class LearnedField:
    field: VolatileField
    recorded: str
    present: str
    path: str
    """JSON path in the request."""

    @property
    def is_bulk_acceptable(self) -> bool:
        """Whether ``--accept`` accepts it; all others are accepted one by one, by name."""
        number = self.field.kind == "hex" and (self.recorded + self.present).isdigit()
        elsewhere = self.field.is_outside_of_results or self.comes_from_other_machine
        return KINDS[self.field.kind].accepted and not number and not elsewhere

    @property
    def comes_from_other_machine(self) -> bool:
        """Whether the value came from outside of the agent's machine: listed separately, accepted by name only."""
        return is_tool_call_to_remote_host(self.field.tool, self.field.arguments)


def infer_volatile_fields_from_pair(
    bindings: Bindings, recorded: object, present: object, known: IdPairs | None = None, *, outside: bool = False
) -> tuple[LearnedField, ...] | Mismatch:
    """Return the volatile fields with which a recorded canonical tree fits the present one; empty if it fits already.

    The mismatch is the first difference that no volatile field removes. `outside` also learns from system text: for
    developers of an agent's built-in volatile fields, never for a trial.
    """
    learned, outcome = _learn_fields_and_compare(bindings, recorded, present, known, outside=outside)
    return outcome if isinstance(outcome, Mismatch) else learned


def _learn_fields_and_compare(
    bindings: Bindings, recorded: object, present: object, known: IdPairs | None, *, outside: bool
) -> tuple[tuple[LearnedField, ...], Fit | Mismatch]:
    learned: list[LearnedField] = []
    outcome: Fit | Mismatch = Mismatch(MisfitReason.DIFFERENT, "$")
    for _ in range(ROUNDS):
        now = add_field_definitions_to_bindings(bindings, [lesson.field for lesson in learned])
        if isinstance(outcome := match_requests_with_bindings(now, recorded, present, known), Fit):
            break
        if _demote_conflicting_id_to_count(outcome, learned):
            continue
        new = _FieldLearningComparison(now, recorded, present, known, outside=outside).lessons
        if not new or len(learned) + len(new) > MOST_SLOTS:
            break
        learned += new
    return tuple(learned), outcome


def _demote_conflicting_id_to_count(outcome: Mismatch, learned: list[LearnedField]) -> bool:
    """Turn a number that was taken for an id but does not map one to one into a count, which is noise."""
    if outcome.why is not MisfitReason.NOT_ONE_TO_ONE:
        return False
    for n, lesson in enumerate(learned):
        if lesson.field.name == outcome.name and lesson.field.kind == "integer" and lesson.field.is_id:
            learned[n] = replace(lesson, field=replace(lesson.field, kind="count"))
            return True
    return False


def add_field_definitions_to_bindings(bindings: Bindings, fields: Sequence[VolatileField]) -> Bindings:
    return Bindings([pair.recorded for pair in bindings.pairs], bindings.present, (*bindings.fields, *fields))


class _FieldLearningComparison(BoundRequestComparer):
    """A comparison that records which volatile fields are missing, and continues as if they were known."""

    def __init__(
        self, bindings: Bindings, recorded: object, present: object, known: IdPairs | None, *, outside: bool
    ) -> None:
        leaves = pair_request_leaves(recorded, present).leaves
        reading = VolatileFieldReader(bindings)
        reading.collect_field_values(leaves)
        super().__init__(bindings, IdPairs((*reading.found, *(known or ()))), None)
        self.lessons: list[LearnedField] = []
        self._outside = outside
        self.visit(leaves)

    def pair_member_names(
        self, recorded: Mapping[str, object], present: Mapping[str, object], place: LeafPlace
    ) -> dict[str, str] | Mismatch:
        """Continue past members whose names differ without a volatile field: later text may explain the difference."""
        names = super().pair_member_names(recorded, present, place)
        return {name: name for name in sorted(recorded) if name in present} if isinstance(names, Mismatch) else names

    def visit_leaf(self, recorded: object, present: object, place: LeafPlace) -> Mismatch | None:
        wrong = super().visit_leaf(recorded, present, place)
        if wrong is None or not place.json or not self._may_learn_at(place) or type(recorded) is not type(present):
            return wrong
        if isinstance(recorded, bool) or not isinstance(recorded, (str, int, float)):
            return wrong
        is_number = not isinstance(recorded, str)
        kind = infer_volatile_value_kind(str(recorded), str(present), f"{place.member}: ", number=is_number)
        if kind is None or kind == "word" or self.find_volatile_field_at(place) is not None:
            return wrong
        at = _INDEX.sub("[*]", place.subpath)
        value = DifferingVolatileValue(kind, 0, str(recorded), str(present))
        return None if self._add_field(value, place, at=at, before="", called=place.member) else wrong

    def _compare_plain_text(self, recorded: str, present: str, place: LeafPlace) -> Mismatch | None:
        wrong = super()._compare_plain_text(recorded, present, place)
        lines = not place.json or "\n" in recorded  # a command's output in a member of its tool's JSON
        while wrong is not None and lines and self._may_learn_at(place) and len(self.lessons) < MOST_SLOTS:
            if not self._learn_text(recorded, present, place):
                return wrong
            wrong = super()._compare_plain_text(recorded, present, place)
        return wrong

    def _may_learn_at(self, place: LeafPlace) -> bool:
        if self._outside and place.zone is Zone.SYSTEM and not place.json:
            return True
        return place.zone is Zone.RESULT and place.call is not None

    def _learn_text(self, recorded: str, present: str, place: LeafPlace) -> bool:
        gaps = self.list_spans_that_may_differ(recorded, place)
        parted = match_text_with_gaps(recorded, gaps, present)
        if not isinstance(parted, TextDivergence) or parted.leaked:
            return False
        free = [(gap.start, gap.end, gap.name) for gap in gaps]
        points = recorded, parted.recorded, present, parted.present
        value = self._find_variable(*points, place) or find_differing_volatile_value(*points, free)
        if value is None:
            return False
        start = recorded.rfind("\n", 0, value.start) + 1
        before, at = self._build_anchor(recorded, start, value, place), LINE
        if not before and start and value.kind not in ("uuid", "time"):
            # The first text of its line: the previous line distinguishes it from the first texts of other lines.
            start = recorded.rfind("\n", 0, start - 1) + 1
            before, at = self._build_anchor(recorded, start, value, place), TEXT
        if before is None or len(before) > LONGEST_BEFORE:
            return False
        return self._add_field(value, place, at=at, before=before)

    def _find_variable(
        self, recorded: str, at: int, present: str, there: int, place: LeafPlace
    ) -> DifferingVolatileValue | None:
        """Find a run variable at the difference of two texts that is not bound there: too short, or bound elsewhere."""
        for pair in self.bindings.pairs:
            mine, theirs, kind = pair.recorded.value, pair.present.value, "name"
            if pair.recorded.kind is RunVariableKind.DATE:  # treated as a time: never written into an answer
                continue
            if pair.name == "git_user" and place.zone is Zone.SYSTEM:  # an agent writes the name without the address
                mine, theirs, kind = mine.partition(" <")[0], theirs.partition(" <")[0], "person"
            if mine == theirs or not matches_field_kind(kind, mine) or not matches_field_kind(kind, theirs):
                continue
            begun = (n for n in range(len(mine)) if recorded[at - n : at] == mine[:n])
            same = next((n for n in begun if recorded.startswith(mine, at - n)), -1)
            if same >= 0 and present.startswith(theirs, there - same) and not is_in_word(recorded, at - same):
                return DifferingVolatileValue(kind, at - same, mine, theirs)
        return None

    def _build_anchor(self, text: str, start: int, value: DifferingVolatileValue, place: LeafPlace) -> str | None:
        """Return the text before a value with bound names and volatile kinds; None if too much of it varies."""
        parts: list[str] = []
        last = start
        for gap in self.list_spans_that_may_differ(text, place):
            if gap.start >= start and gap.end <= value.start and gap.name != LISTING:
                parts.append(_escape_braces(text[last : gap.start]))
                parts.append(self._format_anchor_placeholder(gap.name, text[gap.start : gap.end]))
                last = gap.end
        return None if len(parts) > 2 * _BESIDE else "".join([*parts, _escape_braces(text[last : value.start])])

    def _format_anchor_placeholder(self, name: str, text: str) -> str:
        if any(pair.name == name and text == pair.recorded.value for pair in self.bindings.pairs):
            return f"{{{name}}}"
        field = next((each for each in self.bindings.fields if each.name == name), None)
        return f"{{:{field.kind}}}" if field is not None and matches_field_kind(field.kind, text) else "{:word}"

    def _add_field(
        self, value: DifferingVolatileValue, place: LeafPlace, *, at: str, before: str, called: str = ""
    ) -> bool:
        """Record a volatile field and use it from now on; False if it is known already."""
        tool, arguments = SYSTEM, ""
        if place.zone is Zone.RESULT and place.call is not None:
            tool, arguments = place.call.tool, self.write_arguments_with_placeholders(place.call.arguments)
        bare = value.kind if at == LINE and not before else ""  # then only its kind distinguishes it from others
        if any(
            (each.tool, each.at, each.before, each.arguments) == (tool, at, before, arguments)
            and bare in ("", each.kind)
            for each in self.bindings.fields
        ):
            return False  # it is known already and does not fit
        taken = {each.name for each in self.bindings.fields}
        name = choose_volatile_field_name(before, called, value.kind, tool, taken)
        field = VolatileField(name, value.kind, tool, at, before, arguments)
        self.lessons.append(LearnedField(field, value.recorded, value.present, place.path))
        self.bindings = add_field_definitions_to_bindings(self.bindings, [field])
        if field.is_id:
            self._identities.add_pair(IdPair(name, value.kind, value.recorded, value.present))
            self._tokens = RecordedIdTextMatcher(self._identities)
            self._heads = (*self._tokens.heads, *self._forbidden)
        return True


def _escape_braces(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def widen_volatile_fields_to_any_args(lessons: Sequence[LearnedField], often: int = 3) -> tuple[LearnedField, ...]:
    """Return lessons with any arguments for texts behind `often` commands, and one field for a listing's times."""
    groups: dict[tuple[str, str, str, str], list[LearnedField]] = {}
    for lesson in _merge_listing_rows(lessons):
        field = lesson.field
        groups.setdefault((field.tool, field.at, field.before, field.kind), []).append(lesson)
    found = []
    for (_, at, before, _), group in groups.items():
        commands = {lesson.field.arguments for lesson in group}
        if len(commands) >= often and at == LINE and len(list_words_before_value(before)) > 1:
            found.append(replace(group[0], field=replace(group[0].field, arguments="")))
        else:
            found += group
    return tuple(found)


def _merge_listing_rows(lessons: Sequence[LearnedField]) -> Iterator[LearnedField]:
    """Yield lessons with one volatile field for all times of a listing, if at least two of them varied."""
    rows = Counter(_get_call_of_file_listing(lesson.field) for lesson in lessons)
    seen = set[tuple[str, str]]()
    for lesson in lessons:
        if (listing := _get_call_of_file_listing(lesson.field)) is None or rows[listing] == 1:
            yield lesson
        elif listing not in seen:
            seen.add(listing)
            yield replace(lesson, field=replace(lesson.field, before="{:row} "))


def _get_call_of_file_listing(field: VolatileField) -> tuple[str, str] | None:
    listed = field.kind == "time" and field.at == LINE and LISTED.match(field.before)
    return (field.tool, field.arguments) if listed else None


_KINDS = ("integer", "uuid", "hex", "name", "word")
_INDEX = re.compile(r"\[\d+\]")
_UNNAMED = re.compile(r"[^\w.-]")


def find_fields_of_captured_value(trees: Iterable[object], captured: RunVariable) -> list[VolatileField]:
    """Return the volatile fields for a captured value in tools' results of canonical requests, each once: the next
    run's tool answers another id, which the model gets before any capture.
    """
    kind = next((kind for kind in _KINDS if matches_field_kind(kind, captured.value)), None)
    if kind is None or captured.kind not in (RunVariableKind.SHORT, RunVariableKind.IDENTIFIER):
        return []
    wanted = (ShortValue(captured.name, captured.value, captured.value, captured.tool, captured.path),)
    name = _UNNAMED.sub("_", captured.name)
    found: dict[VolatileField, None] = {}

    def find_in_leaf(leaf: object, place: LeafPlace) -> None:
        if place.zone is not Zone.RESULT or place.call is None:
            return
        if place.json:
            if find_short_values_at_leaf(wanted, place.call.tool, place.subpath, place.member, leaf):
                found[VolatileField(name, kind, place.call.tool, _INDEX.sub("[*]", place.subpath))] = None
        elif isinstance(leaf, str):
            for part in split_text_by_json(leaf):
                if not isinstance(part, str):
                    RequestZoneMapper().transform_leaves(part, place.enter_json(), find_in_leaf)

    for tree in trees:
        reader = RequestZoneMapper()
        for _, node, place in iterate_request_members(tree):
            reader.transform_leaves(node, place, find_in_leaf)
    return list(found)


class RecordedRequestWithPresentValues(NamedTuple):
    tree: object
    bound: tuple[str, ...] = ()
    """Run variables and volatile fields whose values differ and fit, sorted."""
    varying: tuple[LearnedField, ...] = ()
    """Values of tools that a trial could learn; the tree has their present form."""


def rewrite_recorded_request_for_miss(
    bindings: Bindings, recorded: object, present: object, known: IdPairs | None = None
) -> RecordedRequestWithPresentValues:
    """Return a recorded request with this run's values, for the text of a miss, never for an answer."""
    if not isinstance(recorded, dict) or not isinstance(present, dict):
        return RecordedRequestWithPresentValues(recorded)
    if varying := _learn_fields_and_compare(bindings, recorded, present, known, outside=False)[0]:
        wider = add_field_definitions_to_bindings(bindings, [each.field for each in varying])
        whole = _restate_request(wider, recorded, present, known)
        if whole.tree != present:
            learned = {each.field.name for each in varying}
            bound = tuple(name for name in whole.bound if name not in learned)
            return RecordedRequestWithPresentValues(whole.tree, bound, varying)
    found = _restate_request(bindings, recorded, present, known)
    if found.tree == present:
        return RecordedRequestWithPresentValues(rewrite_request_to_this_run(bindings, recorded))
    return found


def _restate_request(
    bindings: Bindings, recorded: object, present: object, known: IdPairs | None
) -> RecordedRequestWithPresentValues:
    paired, fields = pair_request_leaves(recorded, present), VolatileFieldReader(bindings)
    fields.collect_field_values(paired.leaves)
    restating = BoundRequestComparer(bindings, fields.found, known)
    tree = rewrite_request_to_this_run(bindings, recorded)
    for mine, theirs, place in paired.leaves:
        fits = restating.visit_leaf(mine, theirs, place) is None
        restated = theirs if fits else _restate_beginning(restating, mine, theirs, place)
        _replace_existing_at_path(tree, place.list_steps(), restated)
    return RecordedRequestWithPresentValues(tree, restating.build_fit().names)


def _restate_beginning(comparing: BoundRequestComparer, recorded: object, present: object, place: LeafPlace) -> object:
    """Return a leaf that does not fit, with its fitting beginning in the present form."""
    if not isinstance(recorded, str) or not isinstance(present, str):
        return recorded
    gaps = comparing.list_spans_that_may_differ(recorded, place)
    if not isinstance(parted := match_text_with_gaps(recorded, gaps, present), TextDivergence):
        return recorded
    # After a leaked value the texts diverge behind it: its expected text is the difference.
    at = parted.recorded
    behind = (gap for gap in gaps if gap.options and gap.start >= at)
    return present[: parted.present] + put_current_run_values_in_text(recorded, behind)[at:]


def _replace_existing_at_path(tree: Any, steps: list[str | int], value: object) -> None:
    """Put a value into a tree, unless a member on its path has another name in this run."""
    for step in steps[:-1]:
        if isinstance(tree, dict) and step not in tree:
            return
        tree = tree[step]
    if steps and not (isinstance(tree, dict) and steps[-1] not in tree):
        tree[steps[-1]] = value
