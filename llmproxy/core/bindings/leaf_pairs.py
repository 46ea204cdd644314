"""Pairs of leaves of two requests at equal places, from one walk over both trees; and the result of comparing them.

Equal leaves that can contain no value of a run are left out, so that a long conversation costs little more than its
texts. An agent sends its whole conversation with every request: two messages that fitted once fit again, so they are
remembered with their values, and compared as a whole from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from llmproxy.core.bindings.created_id_pairs import (
    IdPair,
    IdPairs,
    RecordedIdTextMatcher,
    ShortValue,
    find_short_values_at_leaf,
)
from llmproxy.core.bindings.leaf_places import (
    Bindings,
    LeafPlace,
    Node,
    RequestZoneMapper,
    ToolInvocation,
    Zone,
    are_member_names_stable,
    find_volatile_matches,
    is_in_any_span,
    is_volatile_field_of_tool_result,
    iterate_request_members,
    list_volatile_fields_for_leaf,
    mask_bound_values_in_tool_args,
)
from llmproxy.core.bindings.run_variables import RunVariableKind
from llmproxy.core.bindings.text_alignment import FilledGap, PossibleSpanText, VariableSpan, drop_llmproxy_files_from_ls
from llmproxy.core.bindings.volatile_result_fields import (
    Names,
    VolatileField,
    matches_field_kind,
    matches_volatile_field_path,
)
from llmproxy.core.dialects.messages import find_system_reminder_spans
from llmproxy.core.traffic.canonical_json import (
    LossyJsonError,
    dump,
    parse_json_container,
    split_and_pair_texts_with_json,
)
from llmproxy.core.traffic.json_diff import count_common_prefix
from llmproxy.lazy_regex import late

ON_TRIAL = "on trial: "
SHOWN = 80


class MisfitReason(StrEnum):
    """Reason why a recording does not fit, or why its answer cannot be written; `Mismatch.__str__` explains each."""

    DIFFERENT = "different"
    LEAKED = "leaked"
    NOT_ONE_TO_ONE = "not one to one"
    BOTH_WAYS = "both ways"
    QUOTING = "quoting"
    AMBIGUOUS = "ambiguous"
    UNEVEN = "uneven"
    MERGED = "merged"
    UNREADABLE = "unreadable"
    SHORT = "short"


@dataclass(frozen=True, slots=True)
class Mismatch:
    why: MisfitReason
    path: str
    """JSON path in the request, or in the answer."""
    recorded: str = ""
    """The recorded text at the path, shortened."""
    present: str = ""
    name: str = ""

    def __str__(self) -> str:
        recorded, present, name = repr(self.recorded), repr(self.present), self.name
        texts = {
            MisfitReason.DIFFERENT: f"recorded {recorded}, now {present}",
            MisfitReason.LEAKED: f"leaked: {recorded} is of the recorded run ({name})",
            MisfitReason.NOT_ONE_TO_ONE: f"{name} does not map one to one: {recorded} became {present}",
            MisfitReason.BOTH_WAYS: f"the answer names {name}, of which the request holds both values",
            MisfitReason.QUOTING: f"{present} ({name}) needs quotes in a command, where it had none",
            MisfitReason.AMBIGUOUS: f"{recorded} was {name}, which differ now",
            MisfitReason.UNEVEN: f"{recorded} stays as it was recorded, where {name} is {present} "
            "elsewhere in the request: its places change all or none",
            MisfitReason.MERGED: f"{present} ({name}) is equal now to what was another value when it was recorded: "
            f"{recorded}",
            MisfitReason.UNREADABLE: "the answer cannot be rewritten",
            MisfitReason.SHORT: f"{name} ({recorded}, now {present}) stands in prose, where so short a value is not "
            "bound; it is at members of tools' JSON that name it",
        }
        return f"{self.path}: {texts[self.why]}"


def build_id_pair_conflict_mismatch(path: str, pair: IdPair, before: str) -> Mismatch:
    return Mismatch(MisfitReason.NOT_ONE_TO_ONE, path, pair.recorded, f"{pair.present}, before {before}", pair.name)


@dataclass(slots=True)
class Fit:
    names: tuple[str, ...]
    """Bindings and volatile fields whose values differ, sorted."""
    identities: tuple[IdPair, ...]
    """Ids that tools created in this pair of requests."""
    chosen: dict[str, set[str]] = field(default_factory=dict)
    unchanged: set[str] = field(default_factory=set)
    """Bindings whose recorded value occurs unchanged."""
    below: frozenset[str] = frozenset()
    """Path variables below which the request names something with this run's value."""


def build_recorded_value_mismatch(path: str, recorded: object, present: object) -> Mismatch:
    texts = [value if isinstance(value, str) else repr(value) for value in (recorded, present)]
    at = count_common_prefix(*texts)
    return Mismatch(MisfitReason.DIFFERENT, path, *(excerpt_line(text, at) for text in texts))


def excerpt_line(text: str, at: int) -> str:
    start = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at)
    end = len(text) if end < 0 else end
    if end - start > SHOWN:
        start = max(start, at - SHOWN // 2)
        end = min(end, start + SHOWN)
    return text[start:end]


Leaf = tuple[object, object, LeafPlace]
_LABELS = frozenset({"role", "type", "id", "call_id", "tool_call_id", "tool_use_id", "toolUseId", "object"})
"""Members whose texts contain no value of a run outside of tools' JSON: roles, kinds, ids that the key renamed."""
MOST_KEPT = 16 << 20
"""Maximum characters of the messages that are remembered for one recorded run."""


@dataclass(slots=True, eq=False)
class MessagePair:
    """A message of the recorded request and the present one at its place; another member of the body likewise."""

    recorded: object
    present: object
    leaves: list[Leaf] = field(default_factory=list)
    calls: list[tuple[str | None, ToolInvocation]] = field(default_factory=list)
    results: list[tuple[Node, str | None]] = field(default_factory=list)
    filled: list[tuple[FilledGap, str, LeafPlace]] = field(default_factory=list)
    """The value at each gap, the recorded text that contains the gap, and its place."""
    texts: str = ""
    """Both texts of all leaves; empty unless it is remembered: then its leaves need no comparison."""
    _written: bytes = b""
    """The present message as canonical JSON if it contains numbers: in Python 1 equals True."""
    _free_of: set[str] = field(default_factory=set)

    def equals_present(self, message: object) -> bool:
        return self.present == message and (not self._written or dump(message) == self._written)

    def contains_any(self, values: Iterable[str]) -> bool:
        """Return whether it contains one of some values; absent values are cached."""
        for value in values:
            if value not in self._free_of:
                if value in self.texts:
                    return True
                self._free_of.add(value)
        return False

    def remember(self, texts: str, filled: list[tuple[FilledGap, str, LeafPlace]]) -> None:
        self.texts, self.filled, self.leaves = texts, filled, []
        self._written = dump(self.present) if _has_non_text_leaf(self.present) else b""


def _has_non_text_leaf(node: object) -> bool:
    if isinstance(node, (dict, list)):
        return any(map(_has_non_text_leaf, node.values() if isinstance(node, dict) else node))
    return node is not None and not isinstance(node, str)


class MatchedMessageCache:
    """The messages of one recorded run that fitted, by `id()` of the recorded ones, which it keeps in memory."""

    def __init__(self) -> None:
        self._pairs: dict[int, MessagePair] = {}
        self._size = 0

    def find_pair(self, recorded: object, present: object, reader: RequestZoneMapper) -> MessagePair | None:
        """Return a pair that fits; `reader` knows the calls before this message, and then those in it."""
        pair = self._pairs.get(id(recorded))
        if pair is None or pair.recorded is not recorded or not pair.equals_present(present):
            return None
        if not reader.has_same_result_tools(pair.results):
            return None
        for id_, call in pair.calls:
            reader.note_call(id_, call)
        return pair

    def add_pair(self, pair: MessagePair) -> None:
        self._size += len(pair.texts)
        if self._size > MOST_KEPT:
            self._pairs.clear()
            self._size = len(pair.texts)
        self._pairs[id(pair.recorded)] = pair


class PairedRequestBodies(NamedTuple):
    messages: list[MessagePair]
    parted: Mismatch | None
    """The first place where the shapes differ; the leaves are those before it."""

    @property
    def leaves(self) -> list[Leaf]:
        return [leaf for pair in self.messages if not pair.texts for leaf in pair.leaves]

    def is_in_recorded_request(self, value: str) -> bool:
        texts = (str(recorded) for recorded, _, _ in self.leaves)
        return any(value in text for text in texts) or any(value in pair.texts for pair in self.messages)


def pair_request_leaves(
    recorded: object, present: object, fitted: MatchedMessageCache | None = None
) -> PairedRequestBodies:
    mine = list(iterate_request_members(recorded))
    theirs = {name: value for name, value, _ in iterate_request_members(present)}
    if [name for name, _, _ in mine] != list(theirs):
        names = {name for name, _, _ in mine} ^ set(theirs)
        return PairedRequestBodies([], build_recorded_value_mismatch("$", sorted(names), sorted(theirs)))
    reader, pairs = RequestZoneMapper(), list[MessagePair]()
    for name, value, place in mine:
        other, wrong = theirs[name], None
        if not isinstance(value, list) or not isinstance(other, list):
            wrong = _pair_message(reader, value, other, place, pairs, None)
        else:
            for n, (one, two) in enumerate(zip(value, other, strict=False)):
                if (wrong := _pair_message(reader, one, two, place.enter_child(n), pairs, fitted)) is not None:
                    break
            wrong = wrong or _compare_list_lengths(value, other, place)
        if wrong is not None:
            return PairedRequestBodies(pairs, wrong)
    return PairedRequestBodies(pairs, None)


def _pair_message(
    reader: RequestZoneMapper, mine: object, theirs: object, place: LeafPlace, into: list[MessagePair],
    fitted: MatchedMessageCache | None,
) -> Mismatch | None:  # fmt: skip
    known = fitted.find_pair(mine, theirs, reader) if fitted is not None else None
    into.append(pair := known or MessagePair(mine, theirs))
    if known is not None:
        return None
    calls, results = len(reader.noted), len(reader.asked)
    wrong = collect_leaf_pairs(reader, mine, theirs, place, pair.leaves)
    pair.calls, pair.results = reader.noted[calls:], reader.asked[results:]
    return wrong


def collect_leaf_pairs(
    reader: RequestZoneMapper, mine: object, theirs: object, place: LeafPlace, into: list[Leaf]
) -> Mismatch | None:
    """Add the leaves below two nodes; return the first place where their shapes differ."""
    if type(mine) is not type(theirs):
        if not place.json:
            return build_recorded_value_mismatch(place.path, mine, theirs)
    elif isinstance(mine, dict) and isinstance(theirs, dict):
        return _collect_member_leaf_pairs(reader, mine, theirs, place, into)
    elif isinstance(mine, list) and isinstance(theirs, list):
        for n, (one, other) in enumerate(zip(mine, theirs, strict=False)):
            if (wrong := collect_leaf_pairs(reader, one, other, place.enter_child(n), into)) is not None:
                return wrong
        return _compare_list_lengths(mine, theirs, place)
    elif mine == theirs and not place.json and not isinstance(mine, str):
        return None
    into.append((mine, theirs, place))
    return None


def _compare_list_lengths(mine: list[object], theirs: list[object], place: LeafPlace) -> Mismatch | None:
    if len(mine) == len(theirs):
        return None
    return build_recorded_value_mismatch(place.path, f"{len(mine)} elements", f"{len(theirs)} elements")


def _collect_member_leaf_pairs(
    reader: RequestZoneMapper, mine: dict[str, object], theirs: dict[str, object], place: LeafPlace, into: list[Leaf]
) -> Mismatch | None:
    if place.json and not (are_member_names_stable(mine) and are_member_names_stable(theirs)):
        into.append((mine, theirs, place))
        return None
    if mine.keys() != theirs.keys():
        return build_recorded_value_mismatch(
            place.path, sorted(mine.keys() - theirs.keys()), sorted(theirs.keys() - mine.keys())
        )
    place = reader.determine_object_zone(mine, place)
    bare = not place.json
    for name in sorted(mine):
        one, other = mine[name], theirs[name]
        if bare and one == other and (one is None or (name in _LABELS and isinstance(one, str))):
            continue
        if (wrong := collect_leaf_pairs(reader, one, other, reader.enter_member(mine, name, place), into)) is not None:
            return wrong
    return None


class LeafPairVisitor:
    def __init__(self, bindings: Bindings) -> None:
        self.bindings = bindings
        self._bound: dict[int, str] = {}

    def visit(self, leaves: list[Leaf]) -> Mismatch | None:
        for recorded, present, place in leaves:
            if (wrong := self.visit_leaf(recorded, present, place)) is not None:
                return wrong
        return None

    def descend(self, recorded: object, present: object, place: LeafPlace) -> Mismatch | None:
        leaves = list[Leaf]()
        wrong = collect_leaf_pairs(RequestZoneMapper(), recorded, present, place, leaves)
        return self.visit(leaves) or wrong

    def visit_leaf(self, recorded: object, present: object, place: LeafPlace) -> Mismatch | None:
        if type(recorded) is not type(present):
            if self.visit_value(recorded, present, place) is None:
                return None
            return build_recorded_value_mismatch(place.path, recorded, present)
        if isinstance(recorded, dict) and isinstance(present, dict):
            return self._visit_members(recorded, present, place)
        if not isinstance(recorded, str) or not isinstance(present, str):
            return self.visit_value(recorded, present, place)
        if place.zone is Zone.ARGUMENTS and place.opened:
            trees = parse_json_container(recorded), parse_json_container(present)
            if trees[0] is not None and trees[1] is not None:
                return self.descend(*trees, place)
        return self.visit_text(recorded, present, place)

    def _visit_members(self, recorded: Node, present: Node, place: LeafPlace) -> Mismatch | None:
        if isinstance(names := self.pair_member_names(recorded, present, place), Mismatch):
            return names
        for mine, theirs in names.items():
            if (wrong := self.descend(recorded[mine], present[theirs], at := place.enter_child(mine))) is not None:
                here = place.enter_child(theirs).path + wrong.path.removeprefix(at.path)
                return replace(wrong, path=here) if wrong.path.startswith(at.path) else wrong
        return None

    def pair_member_names(
        self, recorded: Mapping[str, object], present: Mapping[str, object], place: LeafPlace
    ) -> dict[str, str] | Mismatch:
        """Return the present name for each recorded member, in objects whose names may contain values of a run."""
        raise NotImplementedError

    def visit_value(self, recorded: object, present: object, place: LeafPlace) -> Mismatch | None:
        """Compare two leaves that are not texts."""
        raise NotImplementedError

    def visit_text(self, recorded: str, present: str, place: LeafPlace) -> Mismatch | None:
        raise NotImplementedError

    def find_volatile_field_at(self, place: LeafPlace) -> VolatileField | None:
        if not place.json or not self.has_volatile_json_fields(place):
            return None
        fields, mask = self.bindings.fields, self.write_arguments_with_placeholders
        named = (
            each
            for each in fields
            if each.at.startswith("$") and is_volatile_field_of_tool_result(each, place.call, mask)
        )
        return next((field for field in named if matches_volatile_field_path(field.at, place.subpath)), None)

    def has_volatile_json_fields(self, place: LeafPlace) -> bool:
        return place.zone is Zone.RESULT and place.call is not None and place.call.tool in self.bindings.json_tools

    def write_arguments_with_placeholders(self, arguments: object) -> str:
        if (text := self._bound.get(id(arguments))) is None:
            text = self._bound[id(arguments)] = mask_bound_values_in_tool_args(self.bindings, arguments)
        return text


class VolatileFieldValue(NamedTuple):
    field: VolatileField
    value: str
    place: LeafPlace


class VolatileFieldReader(LeafPairVisitor):
    """Reads the volatile fields of both requests and pairs their ids; it ignores all other differences."""

    def __init__(self, bindings: Bindings) -> None:
        super().__init__(bindings)
        self.found = IdPairs()
        self.values: list[VolatileFieldValue] = []
        # This run may have the present value, its other form, or the recorded one unchanged.
        sides = [(pair.name, pair.recorded.value, pair.present.value, pair.present.other) for pair in bindings.pairs]
        self._names: tuple[Names, Names] = (
            tuple((name, (was,)) for name, was, _, _ in sides),
            tuple((name, tuple(dict.fromkeys((now, other or now, was)))) for name, was, now, other in sides),
        )

    def collect_field_values(self, leaves: list[Leaf]) -> Mismatch | None:
        """Fill `found`; return a mismatch if the values of a volatile field do not map one to one."""
        bindings = self.bindings
        return self.visit(
            [x for x in leaves if list_volatile_fields_for_leaf(bindings, x[2]) or self.has_volatile_json_fields(x[2])]
        )

    def pair_member_names(
        self, recorded: Mapping[str, object], present: Mapping[str, object], place: LeafPlace
    ) -> dict[str, str]:
        """Pair members of equal names, and the remaining one of each side; the comparison checks its name."""
        names = {name: name for name in sorted(recorded) if name in present}
        mine, theirs = ([name for name in names_of if name not in names] for names_of in (recorded, present))
        return names | (dict(zip(mine, theirs, strict=True)) if len(mine) == len(theirs) == 1 else {})

    def visit_value(self, recorded: object, present: object, place: LeafPlace) -> Mismatch | None:
        field = self.find_volatile_field_at(place)
        if field is not None and not isinstance(recorded, bool) and not isinstance(present, bool):
            return self._read_pair(field, str(recorded), str(present), place)
        return None

    def visit_text(self, recorded: str, present: str, place: LeafPlace) -> Mismatch | None:
        if (field := self.find_volatile_field_at(place)) is not None:
            return self._read_pair(field, recorded, present, place)
        call = place.call if place.zone is Zone.RESULT else None
        if call is not None and not place.json:
            recorded, present = drop_llmproxy_files_from_ls(recorded, present)
        # JSON in a result: a field may stand at a path, or in the lines of a member
        if call is not None and not place.json and (recorded[:1] == "{" or self.has_volatile_json_fields(place)):
            for mine, theirs in split_and_pair_texts_with_json(recorded, present):
                if not isinstance(mine, str) and (wrong := self.descend(mine, theirs, place.enter_json())) is not None:
                    return wrong
        fields = list_volatile_fields_for_leaf(self.bindings, place)
        mine, theirs = (find_volatile_matches(fields, call, text, names, self.write_arguments_with_placeholders)
                        for text, names in zip((recorded, present), self._names, strict=True))  # fmt: skip
        for one, other in zip(mine, theirs, strict=False):
            if one.field != other.field:
                break
            if (wrong := self._read_pair(one.field, one.value, other.value, place)) is not None:
                return wrong
        return None

    def _read_pair(self, field: VolatileField, recorded: str, present: str, place: LeafPlace) -> Mismatch | None:
        if not matches_field_kind(field.kind, recorded):
            return None
        self.values.append(VolatileFieldValue(field, recorded, place))
        is_pid = field.kind == "pid" and field.noise is None
        if not ((field.is_id or is_pid) and matches_field_kind(field.kind, present)):
            return None
        pair = IdPair(field.name, field.kind, recorded, present)
        if is_pid:  # any process has one, but a command may name that of the recorded run
            self.found.record_new_pair(pair)
            return None
        conflict = self.found.add_pair(pair)
        return None if conflict is None else build_id_pair_conflict_mismatch(place.path, pair, conflict.other)


def list_volatile_field_values(fields: Sequence[VolatileField], tree: object) -> list[VolatileFieldValue]:
    reader = VolatileFieldReader(Bindings((), (), fields))
    reader.collect_field_values(pair_request_leaves(tree, tree).leaves)
    return reader.values


_BINDING_ZONES = frozenset({Zone.USER, Zone.ARGUMENTS})
"""Zones in which a path that stays as recorded counts as unchanged."""
_HIDDEN = late(r"[/\\]\.\w")
"""Text before a hidden file, which is the home's own also if the working folder was the home: ``~/.bashrc``."""
FindGaps = Callable[[str, LeafPlace], list[VariableSpan]]


class ValueReplacementConsistency:
    """A check that equal values stay equal: all places of a variable in a request and its history change, or none.

    "Today is 25 November. The contract ends on 25 November." is another question from "Today is 26 November. The
    contract ends on 25 November." Three rules follow, none of which can be checked at a single place:

    1. A value that is this run's at one place is this run's at all of them. A path may stay as it was recorded in
       results and in system text only, where a committed file may name the home of the person who recorded it.
    2. A present value must not occur in the recorded request outside of variables: it would become equal to that text.
    3. Two variables with different recorded values must not be equal now. Short values (``7``) may.
    """

    def __init__(self, bindings: Bindings, identities: IdPairs, shorts: Sequence[ShortValue]) -> None:
        self._bindings = bindings
        self._natures = {pair.name: pair.recorded.kind for pair in bindings.pairs}
        self._values = {pair.name: pair.recorded.value for pair in bindings.pairs}
        self._tokens = RecordedIdTextMatcher(
            each._replace(recorded=each.present, present=each.recorded)
            for each in identities
            if each.recorded != each.present
        )
        self.id_prefilter_texts: Sequence[str] = self._tokens.heads
        """Texts of which every text with a present id contains at least one."""
        self._shorts = [short._replace(recorded=short.present, present=short.recorded) for short in shorts]
        self.moved: dict[str, str] = {}
        self.below: set[str] = set()
        """Path variables with this run's value in a longer path: ``/tmp/a/x`` is stronger evidence than ``/tmp/a``."""
        self._stayed: dict[str, tuple[LeafPlace, str]] = {}
        self._names: dict[str, str] = {}
        self._shell_names: dict[tuple[str, str], str] = {}
        """Recorded users and branches in tools' output, by variable and present text."""
        self._merged: Mismatch | None = None
        self._readings: dict[str, frozenset[tuple[str, int]]] = {}
        """Remaining readings of a date, and of recorded texts of several names."""
        self._stood: dict[str, tuple[LeafPlace, str]] = {}

    def record_filled_gap(self, chosen: FilledGap, recorded: str, place: LeafPlace) -> None:
        option, gap = chosen.option, chosen.gap
        if option is None:
            if not gap.in_answers:
                # A user or branch in a tool's output: no two of them may be one now.
                before = recorded[gap.start : gap.end]
                other = self._shell_names.setdefault((gap.name, chosen.text), before)
                if other != before and self._merged is None:
                    both = f"{other} and {before}"
                    self._merged = Mismatch(MisfitReason.MERGED, place.path, both, chosen.text, gap.name)
            return
        name = option.name
        if option.readings and (not option.unchanged or self._conflicts_if_unchanged(name, gap, recorded, place)):
            self._narrow_readings(chosen, option, recorded, place)
        if not option.unchanged and name in self.below and self._names.get(chosen.text) == name:
            return  # recorded already
        # A line may have the same text for another thing: main is the main branch on every branch.
        if name not in self._bindings.changed or option.same or self._natures.get(name) is RunVariableKind.BLOCK:
            return
        if not option.unchanged:
            self.moved.setdefault(name, chosen.text)
            if recorded[gap.end : gap.end + 1] in ("/", "\\") and recorded[gap.end + 1 : gap.end + 2].strip():
                self.below.add(name)
            other = name if gap.label else self._names.setdefault(chosen.text, name)
            if other != name and self._values.get(other) != self._values.get(name):
                values = f"{self._values.get(other)} and {self._values.get(name)}"
                self._merged = self._merged or Mismatch(MisfitReason.MERGED, place.path, values, chosen.text, name)
        elif self._conflicts_if_unchanged(name, gap, recorded, place):
            self._stayed.setdefault(name, (place, recorded[gap.start : gap.end]))

    def _narrow_readings(self, chosen: FilledGap, option: PossibleSpanText, recorded: str, place: LeafPlace) -> None:
        """Keep what a recorded text can still stand for; nothing if it stands for another thing than before."""
        name, before = option.name, recorded[chosen.gap.start : chosen.gap.end]
        key = name if self._natures.get(name) is RunVariableKind.DATE else before
        if before == self._values.get("home") and _HIDDEN.match(recorded, chosen.gap.end):
            key += "/."
        seen = self._readings.get(key, option.readings)
        if left := seen & option.readings:
            self._readings[key] = left
        elif self._merged is None:
            names = sorted({each for each, _ in seen | option.readings})
            why = MisfitReason.UNEVEN if option.unchanged else MisfitReason.NOT_ONE_TO_ONE
            why = MisfitReason.AMBIGUOUS if len(names) > 1 else why
            now = self.moved.get(name, chosen.text) if option.unchanged else chosen.text
            self._merged = Mismatch(why, place.path, before, now, " and ".join(names))

    def record_unchanged_member(self, value: object, place: LeafPlace) -> None:
        """Record a member of JSON that is no variable and is equal in both requests."""
        if not self._shorts:
            return
        tool = place.call.tool if place.call else ""
        for short in find_short_values_at_leaf(self._shorts, tool, place.subpath, place.member, value):
            self._stood.setdefault(short.name, (place, short.recorded))

    def find_unequal(self, leaves: Iterable[Leaf], find_gaps: FindGaps, present: IdPairs) -> Mismatch | None:
        """Return values that are no longer equal, or became equal; `leaves` are those of both requests."""
        if self._merged is not None:
            return self._merged
        for name, (place, text) in self._stayed.items():
            if name in self.moved:
                return Mismatch(MisfitReason.UNEVEN, place.path, text, self.moved[name], name)
        for name, (place, text) in self._stood.items():
            if name in self.moved or any(each.name == name for each in present):
                return Mismatch(MisfitReason.MERGED, place.path, text, text, name)
        if not self.moved and not self.id_prefilter_texts:
            return None
        days = {name for name in self.moved if self._natures.get(name) is RunVariableKind.DATE}
        for recorded, _, place in leaves if days else ():
            text = get_searchable_leaf_text(recorded) if place.zone is Zone.USER else ""
            for spot in self._bindings.forms_in_system_text.find_matches(text):
                name = next((each.name for each in spot.forms if each.name in days), "")
                gaps = find_gaps(text, place) if name else ()
                if name and not any(gap.start < spot.end and spot.start < gap.end for gap in gaps):
                    before = text[spot.start : spot.end]
                    return Mismatch(MisfitReason.UNEVEN, place.path, before, self.moved[name], name)
        return next(self.find_newly_equal_values(leaves, find_gaps, self.moved), None)

    def find_newly_equal_values(
        self, leaves: Iterable[Leaf], find_gaps: FindGaps, moved: Collection[str]
    ) -> Iterator[Mismatch]:
        """Yield the present values of some names (`moved`), and those of ids, that recorded leaves contain as texts."""
        for recorded, _, place in leaves:
            text = get_searchable_leaf_text(recorded)
            found = list(self._find_present_in_recorded(text, moved)) if text else ()
            gaps = find_gaps(text, place) if found else ()
            for start, end, name in found:
                if not any(gap.start < end and start < gap.end for gap in gaps):
                    yield Mismatch(MisfitReason.MERGED, place.path, excerpt_line(text, start), text[start:end], name)

    def _find_present_in_recorded(self, text: str, moved: Collection[str]) -> Iterator[tuple[int, int, str]]:
        for spot in self._bindings.forms_of_present_values.find_matches(text) if moved else ():
            name = next((each.name for each in spot.forms if each.name in moved), None)
            found = text[spot.start : spot.end]
            if name is not None and not any(each.name == name and found in each.present for each in spot.forms):
                yield spot.start, spot.end, name
        for token in self._tokens.find_matches(text):
            yield token.start, token.end, token.identity.name

    def _conflicts_if_unchanged(self, name: str, gap: VariableSpan, recorded: str, place: LeafPlace) -> bool:
        """Return whether a recorded value that stays means something else than this run's value."""
        if self._natures.get(name) is not RunVariableKind.PATH:
            return place.zone is not Zone.THINKING
        if not gap.in_answers or place.zone not in _BINDING_ZONES:
            return False
        return place.zone is not Zone.USER or not is_in_any_span(find_system_reminder_spans(recorded), gap.start)


def find_ids_no_longer_distinct(found: IdPairs) -> Mismatch | None:
    """Return the mismatch of two ids that tools created under different names: they became equal, or were equal."""
    seen, were = dict[str, tuple[str, str]](), dict[str, tuple[str, str]]()
    for each in found:
        if not each.is_searchable_in_text:
            continue
        name, recorded = seen.setdefault(each.present, (each.name, each.recorded))
        if recorded != each.recorded and name != each.name:
            return Mismatch(MisfitReason.MERGED, "$", f"{recorded} and {each.recorded}", each.present, each.name)
        name, present = were.setdefault(each.recorded, (each.name, each.present))
        if present != each.present and name != each.name:
            return Mismatch(MisfitReason.AMBIGUOUS, "$", each.recorded, "", f"{name} and {each.name}")
    return None


def get_searchable_leaf_text(value: object) -> str:
    if isinstance(value, str):
        return value
    try:
        return dump(value).decode("utf-8", "replace") if isinstance(value, (dict, list)) else ""
    except LossyJsonError:
        return ""
