"""The text of a recorded message in this run if only run variables differ: built once, then compared as a whole.

    recorded message, bindings -> `ExpectedMessage`, or None if its leaves must be compared

An agent sends its whole conversation with every request. A message equal to the expected one fits by the rules of
`request_comparison`, since the expected text has at each place the value that these rules try first. Any other message
is compared leaf by leaf, and so is one that contains an id created by a tool. A message that may contain a volatile
field is never expected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from llmproxy.core.bindings.id_pairs import collect_changed_short_values
from llmproxy.core.bindings.leaf_places import (
    LeafPlace,
    PlaceReader,
    ToolInvocation,
    Zone,
    are_plain_names,
    list_fields_at,
)
from llmproxy.core.bindings.run_bindings import Bindings
from llmproxy.core.bindings.text_alignment import FilledGap, TextGap, fill_gaps
from llmproxy.core.bindings.volatile_fields import may_occur
from llmproxy.core.traffic.canonical_json import dump, split_text_by_json

MOST_KEPT = 16 << 20
"""Maximum characters of expected messages cached for one recorded run."""
_PLAIN_ESCAPES = ("n", "r", "t", '"', "\\n", "\\r", "\\t", '\\"', '\\\\\\"', "\\\\n")

FindGaps = Callable[[str, LeafPlace], list[TextGap]]


@dataclass(slots=True)
class ExpectedMessage:
    tree: object
    written: bytes = b""
    """Its canonical JSON if it contains numbers: in Python 1 equals True."""
    texts: str = ""
    """All its texts, recorded and expected."""
    calls: list[tuple[str | None, ToolInvocation]] = field(default_factory=list)
    asked: list[tuple[dict[str, Any], str | None]] = field(default_factory=list)
    """Results in it, with the tools that returned them."""
    chosen: list[tuple[FilledGap, str, LeafPlace]] = field(default_factory=list)
    """The value at each gap, the recorded text that contains the gap, and its place."""
    free_of: set[str] = field(default_factory=set)
    """Values of tools that it does not contain."""

    def equals_message(self, present: object) -> bool:
        """Return whether a message equals this one."""
        return self.tree == present and (not self.written or dump(present) == self.written)

    def contains_any(self, values: Iterable[str]) -> bool:
        """Return whether it contains one of some values; absent values are cached."""
        for value in values:
            if value not in self.free_of:
                if value in self.texts:
                    return True
                self.free_of.add(value)
        return False


_UNSEEN = ExpectedMessage(None)


class ExpectedMessages:
    """The expected messages of one recorded run, by `id()` of the recorded ones, which it keeps in memory."""

    def __init__(self, bindings: Bindings, find_gaps: FindGaps) -> None:
        """Start empty; `find_gaps` is the comparison's function, without ids created by tools."""
        self._find_gaps = find_gaps
        self._bindings = bindings
        self._off = bool(collect_changed_short_values(bindings.pairs, ()))  # these occur at members of JSON
        self._made: dict[int, tuple[object, ExpectedMessage | None]] = {}
        self._size = 0

    def get_expected(self, message: object, place: LeafPlace, reader: PlaceReader) -> ExpectedMessage | None:
        """Return a message's expected form from its second comparison on: for a single one it costs more than it saves.

        `reader` knows the calls before this message; if a message is returned, it knows those in it afterwards.
        """
        if self._off:
            return None
        found = self._made.get(id(message))
        if found is None or found[0] is not message:
            self._remember_message(message, _UNSEEN)
            return None
        if (made := found[1]) is not _UNSEEN:
            if made is None or not reader.has_same_result_tools(made.asked):
                return None
            reader.add_known_calls(made.calls)
            return made
        known, asked = len(reader.noted), len(reader.asked)
        try:
            made = _ExpectedMessageBuilder(self._bindings, self._find_gaps, reader).build_message(message, place)
            made.calls, made.asked = reader.noted[known:], reader.asked[asked:]
        except _UncertainMessageError:
            reader.truncate_calls(known)
            made = None
        self._remember_message(message, made)
        return made

    def _remember_message(self, message: object, made: ExpectedMessage | None) -> None:
        self._size += len(made.texts) if made is not None else 100
        if self._size > MOST_KEPT:
            self._made.clear()
            self._size = 0
        self._made[id(message)] = message, made


class _UncertainMessageError(Exception): ...


class _ExpectedMessageBuilder:
    def __init__(self, bindings: Bindings, find_gaps: FindGaps, reader: PlaceReader) -> None:
        self._bindings, self._find_gaps, self._reader = bindings, find_gaps, reader
        self._texts: list[str] = []
        self._chosen: list[tuple[FilledGap, str, LeafPlace]] = []
        self._numbers = False

    def build_message(self, message: object, place: LeafPlace) -> ExpectedMessage:
        tree = self._reader.map_leaves(message, place, self._build_leaf, self._keep_plain_name)
        written = dump(tree) if self._numbers else b""
        return ExpectedMessage(tree, written, "\0".join(self._texts), chosen=self._chosen)

    @staticmethod
    def _keep_plain_name(name: str, _: LeafPlace) -> str:
        if not are_plain_names([name]):
            raise _UncertainMessageError
        return name

    def _build_leaf(self, text: object, place: LeafPlace) -> object:
        if not isinstance(text, str):
            self._numbers |= text is not None
            return text
        if place.zone is Zone.RESULT and place.call is not None and place.call.tool in self._bindings.json_tools:
            raise _UncertainMessageError
        volatile = list_fields_at(self._bindings, place)
        if any(may_occur(each, text) for each in volatile):
            raise _UncertainMessageError
        new = self._replace_values(text, place)
        if any(may_occur(each, new) for each in volatile):
            raise _UncertainMessageError
        self._texts += (text, new) if new != text else (text,)
        return new

    def _replace_values(self, text: str, place: LeafPlace) -> str:
        gaps = self._find_gaps(text, place)
        if any(gap.free is not None for gap in gaps):  # a listing's columns
            raise _UncertainMessageError
        if gaps and _is_json_text(text, place) and not all(gap_survives_parsing(text, gap) for gap in gaps):
            raise _UncertainMessageError
        if any(
            not any(gap.start < spot.end and spot.start < gap.end for gap in gaps)
            for spot in self._bindings.present_forms.find_matches(text)
        ):
            raise _UncertainMessageError  # the recorded text contains this run's value
        new = fill_gaps(text, gaps)
        options = ((gap, gap.options[0]) for gap in gaps)
        self._chosen += ((FilledGap(gap, option, option.text), text, place) for gap, option in options)
        _check_gap_borders(gaps, new)
        return new


def _check_gap_borders(gaps: list[TextGap], new: str) -> None:
    shift = 0
    for gap in gaps:
        option = gap.options[0]
        start = gap.start + shift
        end = start + len(option.text)
        if not option.unchanged and not option.border(new, start, end):
            raise _UncertainMessageError
        shift += len(option.text) - (gap.end - gap.start)


def _is_json_text(text: str, place: LeafPlace) -> bool:
    if place.zone is Zone.ARGUMENTS:
        return place.opened
    if place.zone is not Zone.RESULT or place.json or not ("{" in text or "[" in text):
        return False
    return any(not isinstance(part, str) for part in split_text_by_json(text))


def gap_survives_parsing(text: str, gap: TextGap) -> bool:
    """Return whether parsing JSON text keeps a value in it: no escape follows it, and it is in no member's name."""
    behind = text[gap.end : gap.end + 5]
    if behind[:1] == "\\" and not behind[1:].startswith(_PLAIN_ESCAPES):
        return False
    end = text.find('"', gap.end)
    return end >= 0 and text[end + 1 : end + 2] != ":"
