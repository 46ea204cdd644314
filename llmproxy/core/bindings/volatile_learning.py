"""Which volatile fields would make a recording fit: learned from two requests that ask the same, and from nothing else.

    recorded tree, present tree, bindings -> the missing volatile fields (`LearnedField`), or the `Mismatch` that stays
                                          -> `RestatedRecording`: the recorded request as this run would have sent it

Only inside tools' results is anything learned, and only of values that look volatile on both sides, at one place,
behind the same text. A volatile field is as narrow as the evidence: the tool, its bound arguments, what stands before
the value; it is called after the words before it, or its column in a listing. Nothing is stored or decided here.

A captured value teaches as well: where a run says that ``task.id`` is 7 after a tool had answered ``{"id": 7}``, the
next run's tool answers 1007, and the model is asked about it before anybody captures anything. So that place is known
to vary, at members that the value's name names.

A restated request is for the text of a miss: what fits is no difference; what a trial could learn is none that is told
first. Nothing is served by it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from llmproxy.core.bindings.comparison_outcome import Fit, Mismatch, MismatchKind
from llmproxy.core.bindings.id_pairs import IdPair, IdPairs, IdPairSearch, ShortValue, short_values_at
from llmproxy.core.bindings.leaf_pairs import pair_bodies
from llmproxy.core.bindings.leaf_places import LeafPlace, PlaceReader, Zone, iterate_request_members
from llmproxy.core.bindings.pair_volatile_values import VolatileFieldReader
from llmproxy.core.bindings.request_comparison import RequestComparison, fit_request, rewrite_recorded
from llmproxy.core.bindings.run_bindings import Bindings
from llmproxy.core.bindings.run_variables import RunVariable, ValueKind
from llmproxy.core.bindings.shell_listings import LISTED, LISTING, USER
from llmproxy.core.bindings.text_alignment import TextDivergence, align_text, splice
from llmproxy.core.bindings.volatile_fields import BLOCK, KINDS, LINE, OUTSIDE, SYSTEM, TEXT, VolatileField, fits_kind
from llmproxy.core.bindings.volatile_kinds import LONGEST_BEFORE, ValuePair, find_pair_kind, find_value_pair, is_in_word
from llmproxy.core.traffic.canonical_json import split_text_by_json
from llmproxy.lazy_regex import late

_TOOLS = late(r"^mcp_|web|brows|http|url|fetch|crawl|scrape|download|online", re.IGNORECASE)
_PROGRAMS = late(
    r"\b(?:ssh|scp|rsync|sftp|gh|glab|aws|gcloud|kubectl|psql|mysql|mongosh|redis-cli|dig|nslookup|ping)\b"
    r"|\bgit\s+(?:fetch|pull|clone|push|ls-remote)\b|\b(?:curl|wget|https?)\b"
)
_HERE = late(r"(?:https?://)?(?:localhost|127\.0\.0\.1|0\.0\.0\.0|\[::1\])(?::\d+)?[^\s\"'|;&]*")
_ASKS = late(r"\b(?:curl|wget)\b[^|;&]*\x00[^|;&]*")


def is_external_result(tool: str, arguments: str = "") -> bool:
    """Return whether a call's result says what others know; `arguments` are the call's in JSON, or empty."""
    if _TOOLS.search(tool):
        return True
    at_home = _ASKS.sub("", _HERE.sub("\x00", arguments))  # a server of this machine is asked here
    return _PROGRAMS.search(at_home) is not None


_WORDS = late(r"[A-Za-z][A-Za-z0-9]*")
_BOUND = late(r"\{(:?)([^{}]*)\}")
_COMMITTED = late(r"\[\S+(?: \(root-commit\))? $")
"""What ``git commit`` says before the commit: ``[main 1f3a9c0] Add the note``."""
_COLUMNS = ("mode", "links", "owner", "group", "size", "time")
_BARE = ("id", "key", "name", "value")
"""Names that say nothing without that of their tool."""
_VERBS = frozenset({
    "make", "create", "add", "new", "insert", "get", "post", "put", "open", "start", "book", "register", "save",
    "store", "write", "mcp",
})  # fmt: skip
"""Words of a tool's name that say what it does, and not with what."""
_CAMEL = late(r"(?<=[a-z0-9])(?=[A-Z])")
_LONGEST = 40


def list_anchor_words(before: str) -> list[str]:
    """Return the words of an anchor that are no names of what is bound."""
    return _WORDS.findall(_BOUND.sub(" ", before))


def name_volatile_field(before: str, called: str, kind: str, tool: str, taken: Collection[str]) -> str:
    """Return a name that is not taken; `called` is the member of JSON that the value is, empty in a text."""
    base = _name_for_tool(called or _derive_base_name(before.rpartition("\n")[2], kind), tool)
    name, n = base, 1
    while name in taken:
        n += 1
        name = f"{base}_{n}"
    return name


def _derive_base_name(before: str, kind: str) -> str:
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
    if words := list_anchor_words(before):
        return "_".join([*words[-2:], "email"] if before.endswith(" <") else words[-2:])
    return "_".join([*bound[-1:], kind])


def _name_for_tool(base: str, tool: str) -> str:
    base = "_".join(_WORDS.findall(base)[-2:]).lower()[:_LONGEST] or "value"
    if base not in _BARE:
        return base
    # After the thing that the tool makes: `task_id` of make_task stands in the `task_id` that another tool is given.
    words = [word.lower() for word in _WORDS.findall(_CAMEL.sub(" ", tool))]
    things = [word for word in words if word not in _VERBS] or words
    return "_".join([*things[-1:], base])[:_LONGEST]


ROUNDS = 40
"""Times that two requests are compared anew, with what was learned: a volatile field's id may stand in a later result.
"""
MOST_SLOTS = 200
"""Volatile fields that one pair of requests may teach; two that differ in more are different requests."""
_BESIDE = 12
"""Values that may vary before a value on one line."""


@dataclass(frozen=True, slots=True)
class LearnedField:
    """A volatile field, and what it was learned from."""

    field: VolatileField
    recorded: str
    present: str
    path: str
    """JSON path in the request."""

    @property
    def is_bulk_acceptable(self) -> bool:
        """Whether ``--accept`` takes it; all others are accepted one by one, by name."""
        number = self.field.kind == "hex" and (self.recorded + self.present).isdigit()
        return (
            KINDS[self.field.kind].accepted
            and not number
            and self.field.tool not in (BLOCK, OUTSIDE, SYSTEM)
            and not self.is_from_other_machine
        )

    @property
    def is_from_other_machine(self) -> bool:
        """Whether the value came from outside of the agent's machine: shown apart, and accepted by name only."""
        return is_external_result(self.field.tool, self.field.arguments)


def learn_volatile_fields(
    bindings: Bindings, recorded: object, present: object, known: IdPairs | None = None, *, outside: bool = False
) -> tuple[LearnedField, ...] | Mismatch:
    """Return the volatile fields under which a recorded request fits the present one; empty where it fits as it is.

    Both are canonical trees. The mismatch is the first difference that no volatile field takes away. `outside` also
    learns from system text, which nobody but the agent writes: such a volatile field is for whoever ships volatile
    fields for an agent, never for a trial.
    """
    learned, outcome = _learn_fields(bindings, recorded, present, known, outside=outside)
    return outcome if isinstance(outcome, Mismatch) else learned


def _learn_fields(
    bindings: Bindings, recorded: object, present: object, known: IdPairs | None, *, outside: bool
) -> tuple[tuple[LearnedField, ...], Fit | Mismatch]:
    """Return what was learned, and how the two compare then."""
    learned: list[LearnedField] = []
    outcome: Fit | Mismatch = Mismatch(MismatchKind.DIFFERENT, "$")
    for _ in range(ROUNDS):
        now = with_volatile_fields(bindings, [lesson.field for lesson in learned])
        outcome = fit_request(now, recorded, present, known)
        if isinstance(outcome, Fit):
            break
        if _demote_id_to_count(outcome, learned):
            continue
        new = _FieldLearner(now, recorded, present, known, [each.field for each in learned], outside=outside).lessons
        if not new or len(learned) + len(new) > MOST_SLOTS:
            break
        learned += new
    return tuple(learned), outcome


def _demote_id_to_count(outcome: Mismatch, learned: list[LearnedField]) -> bool:
    """Make noise of a number that was taken for an id and does not map one to one: a count, then."""
    if outcome.why is not MismatchKind.NOT_ONE_TO_ONE:
        return False
    for n, lesson in enumerate(learned):
        if lesson.field.name == outcome.name and lesson.field.kind == "integer" and lesson.field.is_id:
            learned[n] = replace(lesson, field=replace(lesson.field, kind="count"))
            return True
    return False


def with_volatile_fields(bindings: Bindings, fields: Sequence[VolatileField]) -> Bindings:
    return Bindings([pair.recorded for pair in bindings.pairs], bindings.present, (*bindings.fields, *fields))


class _FieldLearner(RequestComparison):
    """A comparison that notes what it would have to know to go on, and goes on."""

    def __init__(
        self,
        bindings: Bindings,
        recorded: object,
        present: object,
        known: IdPairs | None,
        before: Sequence[VolatileField],
        *,
        outside: bool,
    ) -> None:
        leaves = pair_bodies(recorded, present).leaves
        reading = VolatileFieldReader(bindings)
        reading.read_fields(leaves)
        super().__init__(bindings, IdPairs((*reading.found, *(known or ()))), None)
        self.lessons: list[LearnedField] = []
        self._outside = outside
        self._known = [*bindings.fields, *before]
        self._taken = {field.name for field in self._known}
        self.visit(leaves)

    # -- leaves

    def pair_member_names(
        self, recorded: Mapping[str, object], present: Mapping[str, object], place: LeafPlace
    ) -> dict[str, str] | Mismatch:
        """Go on where members are called by what no volatile field is of yet: what comes behind may teach it."""
        names = super().pair_member_names(recorded, present, place)
        return {name: name for name in sorted(recorded) if name in present} if isinstance(names, Mismatch) else names

    def visit_value(self, recorded: object, present: object, place: LeafPlace) -> Mismatch | None:
        """Learn from two leaves of JSON that are no texts."""
        wrong = super().visit_value(recorded, present, place)
        if wrong is None or not self._may_learn_at(place) or not place.json:
            return wrong
        if isinstance(recorded, bool) or isinstance(present, bool) or type(recorded) is not type(present):
            return wrong
        if not isinstance(recorded, (int, float)):
            return wrong
        return None if self._learn_leaf(str(recorded), str(present), place, number=True) else wrong

    def visit_text(self, recorded: str, present: str, place: LeafPlace) -> Mismatch | None:
        if place.json and self._may_learn_at(place):
            wrong = super().visit_text(recorded, present, place)
            return None if wrong is None or self._learn_leaf(recorded, present, place) else wrong
        return super().visit_text(recorded, present, place)

    def _compare_plain_text(self, recorded: str, present: str, place: LeafPlace) -> Mismatch | None:
        wrong = super()._compare_plain_text(recorded, present, place)
        lines = not place.json or "\n" in recorded  # what a command wrote, as a member of its tool's JSON
        while wrong is not None and lines and self._may_learn_at(place) and len(self.lessons) < MOST_SLOTS:
            if self._learn_text(recorded, present, place) is None:
                return wrong
            wrong = super()._compare_plain_text(recorded, present, place)
        return wrong

    def _may_learn_at(self, place: LeafPlace) -> bool:
        if self._outside and place.zone is Zone.SYSTEM and not place.json:
            return True
        return place.zone is Zone.RESULT and place.call is not None

    # -- what is learned

    def _learn_leaf(self, recorded: str, present: str, place: LeafPlace, *, number: bool = False) -> bool:
        if self.find_json_field(place) is not None:
            return False
        kind = find_pair_kind(recorded, present, f"{place.member}: ", number=number)
        if kind is None or kind == "word":
            return False
        at = re.sub(r"\[\d+\]", "[*]", place.subpath)
        return self._add_field(ValuePair(kind, 0, recorded, present), place, at=at, before="", called=place.member)

    def _learn_text(self, recorded: str, present: str, place: LeafPlace) -> bool | None:
        gaps = self.list_gaps(recorded, place)
        parted = align_text(recorded, gaps, present)
        if not isinstance(parted, TextDivergence) or parted.leaked:
            return None
        free = [(gap.start, gap.end, gap.name) for gap in gaps]
        value = self._find_variable(recorded, parted.recorded, present, parted.present, place) or find_value_pair(
            recorded, parted.recorded, present, parted.present, free
        )
        if value is None:
            return None
        start = recorded.rfind("\n", 0, value.start) + 1
        before, at = self._build_anchor(recorded, start, value, place), LINE
        if not before and start and value.kind not in ("uuid", "time"):
            # The first thing of its line: what stands on the line before tells it from the first things of other lines.
            start = recorded.rfind("\n", 0, start - 1) + 1
            before, at = self._build_anchor(recorded, start, value, place), TEXT
        if before is None or len(before) > LONGEST_BEFORE or not self._add_field(value, place, at=at, before=before):
            return None
        return True

    def _find_variable(self, recorded: str, at: int, present: str, there: int, place: LeafPlace) -> ValuePair | None:
        """Find a run variable too short to be bound in a text, or bound elsewhere only, where both texts hold it."""
        for pair in self.bindings.pairs:
            mine, theirs, kind = pair.recorded.value, pair.present.value, "name"
            if pair.recorded.kind is ValueKind.DATE:  # a time like any other, which is never written into an answer
                continue
            if pair.name == USER and place.zone is Zone.SYSTEM:  # an agent says the name without the address
                mine, theirs, kind = mine.partition(" <")[0], theirs.partition(" <")[0], "person"
            if mine == theirs or not fits_kind(kind, mine) or not fits_kind(kind, theirs):
                continue
            same = next(
                (
                    n
                    for n in range(len(mine))
                    if recorded[at - n : at] == mine[:n] and recorded.startswith(mine, at - n)
                ),
                -1,
            )
            if same >= 0 and present.startswith(theirs, there - same) and not is_in_word(recorded, at - same):
                return ValuePair(kind, at - same, mine, theirs)
        return None

    def _build_anchor(self, text: str, start: int, value: ValuePair, place: LeafPlace) -> str | None:
        """Return what stands before a value: names of bound, kinds of volatile values; None: too much varies."""
        parts: list[str] = []
        last = start
        varying = 0
        for gap in self.list_gaps(text, place):
            if gap.start < start or gap.end > value.start or gap.name == LISTING:
                continue
            parts.append(_escape_braces(text[last : gap.start]))
            parts.append(self._format_anchor_part(gap.name, text[gap.start : gap.end]))
            last = gap.end
            varying += 1
        if varying > _BESIDE:
            return None
        return "".join([*parts, _escape_braces(text[last : value.start])])

    def _format_anchor_part(self, name: str, text: str) -> str:
        for pair in self.bindings.pairs:
            if pair.name == name and text == pair.recorded.value:
                return f"{{{name}}}"
        field = next((each for each in self._known if each.name == name), None)
        if field is not None and fits_kind(field.kind, text):
            return f"{{:{field.kind}}}"
        return "{:word}"

    def _add_field(self, value: ValuePair, place: LeafPlace, *, at: str, before: str, called: str = "") -> bool:
        """Note a volatile field, and go on as if it had been known; False where it cannot be."""
        tool, arguments = SYSTEM, ""
        if place.zone is Zone.RESULT and place.call is not None:
            tool, arguments = place.call.tool, self.mask_call_arguments(place.call.arguments)
        bare = value.kind if at == LINE and not before else ""  # then its kind alone tells it from another one
        if any(
            (each.tool, each.at, each.before, each.arguments) == (tool, at, before, arguments)
            and bare in ("", each.kind)
            for each in self._known
        ):
            return False  # it is known, and did not help
        name = name_volatile_field(before, called, value.kind, tool, self._taken)
        field = VolatileField(name, value.kind, tool, at, before, arguments)
        identity = IdPair(name, value.kind, value.recorded, value.present)
        self._taken.add(name)
        self._known.append(field)
        self.lessons.append(LearnedField(field, value.recorded, value.present, place.path))
        self.bindings = with_volatile_fields(self.bindings, [field])
        if field.is_id:
            self._identities.add_pair(identity)
            self._tokens = IdPairSearch(self._identities)
            self._heads = (*self._tokens.heads, *self._forbidden)
        return True


def _escape_braces(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


_OFTEN = 3
"""Commands behind which a value must have varied to be taken to vary behind every command of the tool."""
_ANY_ROW = "{:row} "


def generalize_fields(lessons: Sequence[LearnedField], often: int = _OFTEN) -> tuple[LearnedField, ...]:
    """Return lessons with any arguments for texts behind `often` commands, and one field for a listing's times."""
    groups: dict[tuple[str, str, str, str], list[LearnedField]] = {}
    for lesson in _merge_listing_rows(lessons):
        field = lesson.field
        groups.setdefault((field.tool, field.at, field.before, field.kind), []).append(lesson)
    found = []
    for (_, at, before, _), group in groups.items():
        commands = {lesson.field.arguments for lesson in group}
        if len(commands) >= often and at == LINE and len(list_anchor_words(before)) > 1:
            found.append(replace(group[0], field=replace(group[0].field, arguments="")))
        else:
            found += group
    return tuple(found)


def _merge_listing_rows(lessons: Sequence[LearnedField]) -> Iterator[LearnedField]:
    """Yield lessons with one volatile field for the times of all rows of a listing, where two of them varied."""
    rows = Counter(_get_call_of_listed_time(lesson.field) for lesson in lessons)
    seen = set[tuple[str, str]]()
    for lesson in lessons:
        listing = _get_call_of_listed_time(lesson.field)
        if listing is None or rows[listing] == 1:
            yield lesson
        elif listing not in seen:
            seen.add(listing)
            yield replace(lesson, field=replace(lesson.field, before=_ANY_ROW))


def _get_call_of_listed_time(field: VolatileField) -> tuple[str, str] | None:
    """Return tool and arguments of the listing in which a file's time stands; None for any other volatile field."""
    return (
        (field.tool, field.arguments)
        if field.kind == "time" and field.at == LINE and LISTED.match(field.before)
        else None
    )


_KINDS = ("integer", "uuid", "hex", "name", "word")
_INDEX = re.compile(r"\[\d+\]")
_UNNAMED = re.compile(r"[^\w.-]")


def find_captured_fields(trees: Iterable[object], captured: RunVariable) -> list[VolatileField]:
    """Return the volatile fields where a captured value stood in tools' results of requests (canonical), each once."""
    kind = next((kind for kind in _KINDS if fits_kind(kind, captured.value)), None)
    if kind is None or captured.kind not in (ValueKind.SHORT, ValueKind.IDENTIFIER):
        return []
    wanted = (ShortValue(captured.name, captured.value, captured.value, captured.tool, captured.path),)
    found: dict[VolatileField, None] = {}
    for tree in trees:
        for tool, inner, member, value in _list_result_leaves(tree):
            if short_values_at(wanted, tool, inner, member, value):
                name = _UNNAMED.sub("_", captured.name)
                found[VolatileField(name, kind, tool, _INDEX.sub("[*]", inner))] = None
    return list(found)


def _list_result_leaves(tree: object) -> Iterator[tuple[str, str, str, object]]:
    """Yield tool, path, member and value of each leaf of JSON in results."""
    reader = PlaceReader()
    for _, value, place in iterate_request_members(tree):
        yield from _walk_leaves(value, place, reader)


def _walk_leaves(node: object, place: LeafPlace, reader: PlaceReader) -> Iterator[tuple[str, str, str, object]]:
    if isinstance(node, dict):
        place = reader.enter_object(node, place)
        for name in sorted(node):
            yield from _walk_leaves(node[name], reader.enter_member(node, name, place), reader)
    elif isinstance(node, list):
        for n, each in enumerate(node):
            yield from _walk_leaves(each, place.enter_child(n), reader)
    elif place.zone is Zone.RESULT and place.call is not None:
        if place.json:
            yield place.call.tool, place.subpath, place.member, node
        elif isinstance(node, str):
            for part in split_text_by_json(node):
                if not isinstance(part, str):
                    yield from _walk_leaves(part, place.enter_json(), reader)


class RestatedRecording(NamedTuple):
    """A recorded request in this run's words."""

    tree: object
    bound: tuple[str, ...] = ()
    """Run variables and volatile fields whose values differ and fit, sorted."""
    varying: tuple[LearnedField, ...] = ()
    """Values of tools that a trial could learn; in the tree they stand as they are now."""


def restate_recording(
    bindings: Bindings, recorded: object, present: object, known: IdPairs | None = None
) -> RestatedRecording:
    """Return a recorded request in this run's words; what varies stays in it where nothing else differs."""
    if not isinstance(recorded, dict) or not isinstance(present, dict):
        return RestatedRecording(recorded)
    varying = _learn_fields(bindings, recorded, present, known, outside=False)[0]
    whole = (
        _restate_once(with_volatile_fields(bindings, [each.field for each in varying]), recorded, present, known)
        if varying
        else None
    )
    if whole is not None and whole.tree != present:
        learned = {each.field.name for each in varying}
        return RestatedRecording(whole.tree, tuple(name for name in whole.bound if name not in learned), varying)
    found = _restate_once(bindings, recorded, present, known)
    return found if found.tree != present else RestatedRecording(rewrite_recorded(bindings, recorded))


def _restate_once(bindings: Bindings, recorded: object, present: object, known: IdPairs | None) -> RestatedRecording:
    paired, fields = pair_bodies(recorded, present), VolatileFieldReader(bindings)
    fields.read_fields(paired.leaves)
    restating, tree = _PresentValueWriter(bindings, fields.found, known), rewrite_recorded(bindings, recorded)
    for mine, theirs, place in paired.leaves:
        new = (
            theirs if restating.visit([(mine, theirs, place)]) is None else restating.restate_leaf(mine, theirs, place)
        )
        _put_at_path(tree, place.list_steps(), new)
    return RestatedRecording(tree, restating.build_fit().names)


class _PresentValueWriter(RequestComparison):
    def restate_leaf(self, recorded: object, present: object, place: LeafPlace) -> object:
        """Return a leaf that does not fit, as it stands now as far as it fits."""
        if not isinstance(recorded, str) or not isinstance(present, str):
            return recorded
        gaps = self.list_gaps(recorded, place)
        parted = align_text(recorded, gaps, present)
        return (
            present[: parted.present] + self._restate_text_from(recorded, parted.recorded, place)
            if isinstance(parted, TextDivergence)
            else recorded
        )

    def _restate_text_from(self, text: str, start: int, place: LeafPlace) -> str:
        """Return a recorded text from a position on, with what must stand at its gaps in this run."""
        # Where a value leaked the texts part behind it: what should have stood there is the difference.
        gaps = (gap for gap in self.list_gaps(text, place) if gap.options and gap.start >= start)
        return splice(text[start:], ((gap.start - start, gap.end - start, gap.options[0].text) for gap in gaps))


def _put_at_path(tree: Any, steps: list[str | int], value: object) -> None:
    """Put a value into a tree; nowhere where a member is called otherwise in this run."""
    for step in steps[:-1]:
        if isinstance(tree, dict) and step not in tree:
            return
        tree = tree[step]
    if steps and not (isinstance(tree, dict) and steps[-1] not in tree):
        tree[steps[-1]] = value
