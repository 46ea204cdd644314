"""What a recorded message would say in this run, if nothing but run variables differed: made once, then compared as a
whole.

    recorded message, bindings -> `Expected`, or None where only the comparison of its leaves can tell

An agent sends its whole conversation with every request. A message that says exactly what is expected fits by the rules
of `fits`, since what is expected is what these rules would try first at each place; one that does not is compared leaf
by leaf. A message in which a volatile field may stand is never expected, and one that holds an id which a tool made is
compared leaf by leaf as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from llmproxy.core.bindings.comparison import ChosenOption, FittingGap, splice
from llmproxy.core.bindings.identities import list_shorts
from llmproxy.core.bindings.places import LeafPlace, PlacedCall, PlaceReader, Zone, are_plain, volatile_fields_at
from llmproxy.core.bindings.table import Bindings
from llmproxy.core.bindings.volatile_fields import may_stand
from llmproxy.core.traffic.json_bytes import dump, split_json

MOST_KEPT = 16 << 20
"""Characters of expected messages that are kept for one recorded run."""
_PLAIN_ESCAPES = ("n", "r", "t", '"', "\\n", "\\r", "\\t", '\\"', '\\\\\\"', "\\\\n")

FindGaps = Callable[[str, LeafPlace], list[FittingGap]]


@dataclass(slots=True)
class Expected:
    source: object
    """The recorded one."""
    tree: object
    written: bytes = b""
    """Its canonical writing where it holds numbers: in Python 1 equals True."""
    texts: str = ""
    """Whatever it says, recorded and expected."""
    calls: list[tuple[str | None, PlacedCall]] = field(default_factory=list)
    asked: list[tuple[dict[str, Any], str | None]] = field(default_factory=list)
    """Whose results stand in it."""
    chosen: list[tuple[ChosenOption, str, LeafPlace]] = field(default_factory=list)
    """What stands at each gap, the recorded text in which it lies, and where."""
    free_of: set[str] = field(default_factory=set)
    """Values of tools that are not in it."""

    def is_met_by(self, present: object) -> bool:
        """Return whether a message says just that."""
        return self.tree == present and (not self.written or dump(present) == self.written)

    def holds(self, values: Iterable[str]) -> bool:
        """Return whether one of some values stands in it; what does not is remembered."""
        for value in values:
            if value not in self.free_of:
                if value in self.texts:
                    return True
                self.free_of.add(value)
        return False


_UNSEEN = Expected(None, None)


class ExpectedMessages:
    """The expected messages of one recorded run, by identity of the recorded ones, which stay in memory with them."""

    def __init__(self, bindings: Bindings, find_gaps: FindGaps) -> None:
        """Expect nothing yet; `find_gaps` is the comparison's, where no tool has made anything."""
        self._find_gaps = find_gaps
        self._bindings = bindings
        self._off = bool(list_shorts(bindings.pairs, ()))  # these stand at members of JSON
        self._made: dict[int, tuple[object, Expected | None]] = {}
        self._size = 0

    def of(self, message: object, place: LeafPlace, reader: PlaceReader) -> Expected | None:
        """Return what is expected of a message that was seen before: for one comparison it is not worth its while.

        `reader` knows the calls before this message, and knows those of it afterwards if there is an answer.
        """
        if self._off:
            return None
        found = self._made.get(id(message))
        if found is None or found[0] is not message:
            self._remember_message(message, _UNSEEN)
            return None
        if (made := found[1]) is not _UNSEEN:
            if made is None or not reader.answers(made.asked):
                return None
            reader.recall(made.calls)
            return made
        known, asked = len(reader.noted), len(reader.asked)
        try:
            made = _ExpectingWriter(self._bindings, self._find_gaps, reader).message(message, place)
            made.calls, made.asked = reader.noted[known:], reader.asked[asked:]
        except _Unsure:
            reader.forget(known)
            made = None
        self._remember_message(message, made)
        return made

    @property
    def expected(self) -> list[Expected]:
        return [made for _, made in self._made.values() if made is not None and made is not _UNSEEN]

    def _remember_message(self, message: object, made: Expected | None) -> None:
        self._size += len(made.texts) if made is not None else 100
        if self._size > MOST_KEPT:
            self._made.clear()
            self._size = 0
        self._made[id(message)] = message, made


class _Unsure(Exception): ...


class _ExpectingWriter:
    def __init__(self, bindings: Bindings, find_gaps: FindGaps, reader: PlaceReader) -> None:
        self._bindings, self._find_gaps, self._reader = bindings, find_gaps, reader
        self._texts: list[str] = []
        self._chosen: list[tuple[ChosenOption, str, LeafPlace]] = []
        self._numbers = False

    def message(self, message: object, place: LeafPlace) -> Expected:
        tree = self._make_node(message, place)
        written = dump(tree) if self._numbers else b""
        return Expected(message, tree, written, "\0".join(self._texts), chosen=self._chosen)

    def _make_node(self, node: object, place: LeafPlace) -> object:
        if isinstance(node, dict):
            place = self._reader.enter(node, place)
            if place.json and not are_plain(node):
                raise _Unsure
            return {name: self._make_node(node[name], self._reader.member(node, name, place)) for name in sorted(node)}
        if isinstance(node, list):
            return [self._make_node(each, place.at(n)) for n, each in enumerate(node)]
        if isinstance(node, str):
            return self._expect_text(node, place)
        self._numbers |= node is not None
        return node

    def _expect_text(self, text: str, place: LeafPlace) -> str:
        if place.zone is Zone.RESULT and place.call is not None and place.call.tool in self._bindings.json_tools:
            raise _Unsure
        volatile = volatile_fields_at(self._bindings, place)
        if any(may_stand(each, text) for each in volatile):
            raise _Unsure
        new = self._exchange_values(text, place)
        if any(may_stand(each, new) for each in volatile):
            raise _Unsure
        self._texts += (text, new) if new != text else (text,)
        return new

    def _exchange_values(self, text: str, place: LeafPlace) -> str:
        gaps = self._find_gaps(text, place)
        if any(gap.free is not None for gap in gaps):  # a listing's columns
            raise _Unsure
        if gaps and _is_json(text, place) and not all(reads_alike(text, gap) for gap in gaps):
            raise _Unsure
        if any(
            not any(gap.start < spot.end and spot.start < gap.end for gap in gaps)
            for spot in self._bindings.present_forms.find(text)
        ):
            raise _Unsure  # this run's value stood there already
        new = splice(text, ((gap.start, gap.end, gap.options[0].text) for gap in gaps))
        options = ((gap, gap.options[0]) for gap in gaps)
        self._chosen += ((ChosenOption(gap, option, option.text), text, place) for gap, option in options)
        _check_borders(gaps, new)
        return new


def _check_borders(gaps: list[FittingGap], new: str) -> None:
    shift = 0
    for gap in gaps:
        option = gap.options[0]
        start = gap.start + shift
        end = start + len(option.text)
        if not option.unchanged and not option.border(new, start, end):
            raise _Unsure
        shift += len(option.text) - (gap.end - gap.start)


def _is_json(text: str, place: LeafPlace) -> bool:
    if place.zone is Zone.ARGUMENTS:
        return place.opened
    if place.zone is not Zone.RESULT or place.json or not ("{" in text or "[" in text):
        return False
    return any(not isinstance(part, str) for part in split_json(text))


def reads_alike(text: str, gap: FittingGap) -> bool:
    """Return whether a value in JSON text stays when parsed: no escaped letter follows, and it names no member."""
    behind = text[gap.end : gap.end + 5]
    if behind[:1] == "\\" and not behind[1:].startswith(_PLAIN_ESCAPES):
        return False
    end = text.find('"', gap.end)
    return end >= 0 and text[end + 1 : end + 2] != ":"
