"""Two requests, walked in step: which leaf of the one stands at which leaf of the other, and where that is.

The walk is done once; who reads volatile fields and who compares go through the leaves. What is equal and can hold no
value is left out, so that a long conversation costs little more than its texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from llmproxy.core.bindings.expected_messages import Expected, ExpectedMessages
from llmproxy.core.bindings.places import LeafPlace, PlaceReader, Zone, are_plain, iterate
from llmproxy.core.bindings.results import Mismatch, describe_difference
from llmproxy.core.bindings.table import Bindings, bind_arguments
from llmproxy.core.traffic.json_bytes import read_json

Leaf = tuple[object, object, LeafPlace]
"""What was recorded, what stands there now, and where."""
_LABELS = frozenset({"role", "type", "id", "call_id", "tool_call_id", "tool_use_id", "toolUseId", "object"})
"""Members whose texts hold no value of a run outside of tools' JSON: roles, kinds, ids that the key renamed."""


class Paired(NamedTuple):
    leaves: list[Leaf]
    settled: list[Expected]
    """Messages that say what was expected; their leaves are left out."""
    parted: Mismatch | None
    """Where the shapes of the two differ; the leaves are those before."""

    def holds(self, value: str) -> bool:
        """Return whether a value stands anywhere in the recorded request."""
        texts = (str(recorded) for recorded, _, _ in self.leaves)
        return any(value in text for text in texts) or any(value in each.texts for each in self.settled)


def pair_bodies(recorded: object, present: object, expectations: ExpectedMessages | None = None) -> Paired:
    """Return the leaves of two whole trees side by side."""
    mine, theirs = list(iterate(recorded)), {name: value for name, value, _ in iterate(present)}
    if [name for name, _, _ in mine] != list(theirs):
        names = {name for name, _, _ in mine} ^ set(theirs)
        return Paired([], [], describe_difference("$", sorted(names), sorted(theirs)))
    reader, paired = PlaceReader(), Paired([], [], None)
    for name, value, place in mine:
        other = theirs[name]
        if expectations is not None and isinstance(value, list) and isinstance(other, list):
            wrong = _pair_messages(reader, value, other, place, paired, expectations)
        else:
            wrong = pair_leaves(reader, value, other, place, paired.leaves)
        if wrong is not None:
            return paired._replace(parted=wrong)
    return paired


def _pair_messages(
    reader: PlaceReader,
    mine: list[object],
    theirs: list[object],
    place: LeafPlace,
    paired: Paired,
    expectations: ExpectedMessages,
) -> Mismatch | None:
    for n, (one, other) in enumerate(zip(mine, theirs, strict=False)):
        at, known = place.at(n), len(reader.noted)
        expected = expectations.of(one, at, reader)
        if expected is not None and expected.is_met_by(other):
            paired.settled.append(expected)
            continue
        if expected is not None and expected.calls:
            reader.forget(known)
        if (wrong := pair_leaves(reader, one, other, at, paired.leaves)) is not None:
            return wrong
    return compare_lengths(mine, theirs, place)


def pair_leaves(
    reader: PlaceReader, mine: object, theirs: object, place: LeafPlace, into: list[Leaf]
) -> Mismatch | None:
    """Add the leaves below two nodes; return where their shapes differ."""
    if type(mine) is not type(theirs):
        if not place.json:
            return describe_difference(place.path, mine, theirs)
    elif isinstance(mine, dict) and isinstance(theirs, dict):
        return _pair_members(reader, mine, theirs, place, into)
    elif isinstance(mine, list) and isinstance(theirs, list):
        for n, (one, other) in enumerate(zip(mine, theirs, strict=False)):
            if (wrong := pair_leaves(reader, one, other, place.at(n), into)) is not None:
                return wrong
        return compare_lengths(mine, theirs, place)
    elif mine == theirs and not place.json and not isinstance(mine, str):
        return None
    into.append((mine, theirs, place))
    return None


def compare_lengths(mine: list[object], theirs: list[object], place: LeafPlace) -> Mismatch | None:
    if len(mine) == len(theirs):
        return None
    return describe_difference(place.path, f"{len(mine)} elements", f"{len(theirs)} elements")


def _pair_members(
    reader: PlaceReader, mine: dict[str, object], theirs: dict[str, object], place: LeafPlace, into: list[Leaf]
) -> Mismatch | None:
    if place.json and not (are_plain(mine) and are_plain(theirs)):
        into.append((mine, theirs, place))
        return None
    if mine.keys() != theirs.keys():
        return describe_difference(place.path, sorted(mine.keys() - theirs.keys()), sorted(theirs.keys() - mine.keys()))
    place = reader.enter(mine, place)
    bare = not place.json
    for name in sorted(mine):
        one, other = mine[name], theirs[name]
        if bare and one == other and (one is None or (name in _LABELS and isinstance(one, str))):
            continue
        if (wrong := pair_leaves(reader, one, other, reader.member(mine, name, place), into)) is not None:
            return wrong
    return None


class Walking:
    """Goes through the leaves of two trees."""

    def __init__(self, bindings: Bindings) -> None:
        self.bindings = bindings
        self._bound: dict[int, str] = {}

    def go(self, leaves: list[Leaf]) -> Mismatch | None:
        """Look at leaves in their order; return the first that does not fit."""
        for recorded, present, place in leaves:
            if (wrong := self._compare_leaf(recorded, present, place)) is not None:
                return wrong
        return None

    def node(self, recorded: object, present: object, place: LeafPlace) -> Mismatch | None:
        """Compare two values inside of a tool's JSON."""
        leaves = list[Leaf]()
        wrong = pair_leaves(PlaceReader(), recorded, present, place, leaves)
        return self.go(leaves) or wrong

    def _compare_leaf(self, recorded: object, present: object, place: LeafPlace) -> Mismatch | None:
        if type(recorded) is not type(present):
            if self.value(recorded, present, place) is None:
                return None
            return describe_difference(place.path, recorded, present)
        if isinstance(recorded, dict) and isinstance(present, dict):
            return self._compare_members(recorded, present, place)
        if not isinstance(recorded, str) or not isinstance(present, str):
            return self.value(recorded, present, place)
        if place.zone is Zone.ARGUMENTS and place.opened:
            if self.is_settled(recorded, present, place):
                return None
            trees = read_json(recorded), read_json(present)
            if trees[0] is not None and trees[1] is not None:
                return self.node(*trees, place)
        return self.text(recorded, present, place)

    def _compare_members(
        self, recorded: dict[str, object], present: dict[str, object], place: LeafPlace
    ) -> Mismatch | None:
        names = self.pair_names(recorded, present, place)
        if isinstance(names, Mismatch):
            return names
        for mine, theirs in names.items():
            if (wrong := self.node(recorded[mine], present[theirs], at := place.at(mine))) is not None:
                here = place.at(theirs).path + wrong.path.removeprefix(at.path)
                return replace(wrong, path=here) if wrong.path.startswith(at.path) else wrong
        return None

    def pair_names(
        self, recorded: Mapping[str, object], present: Mapping[str, object], place: LeafPlace
    ) -> dict[str, str] | Mismatch:
        """Return which member of the one object is which of the other, where their names may hold values of a run."""
        raise NotImplementedError

    def is_settled(self, recorded: str, present: str, place: LeafPlace) -> bool:
        """Return whether JSON text of arguments need not be parsed; never says more than parsing would."""
        raise NotImplementedError

    def value(self, recorded: object, present: object, place: LeafPlace) -> Mismatch | None:
        """Compare two leaves that are no texts."""
        raise NotImplementedError

    def text(self, recorded: str, present: str, place: LeafPlace) -> Mismatch | None:
        raise NotImplementedError

    def bound_arguments(self, arguments: object) -> str:
        """Return a recorded call's arguments in canonical JSON, with names for what is bound."""
        if (text := self._bound.get(id(arguments))) is None:
            text = self._bound[id(arguments)] = bind_arguments(self.bindings, arguments)
        return text
