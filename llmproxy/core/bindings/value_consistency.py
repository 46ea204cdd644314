"""Check that bindings keep equal values equal: all places of a variable in a request and its history change, or none.

"Today is 25 November. The contract ends on 25 November." is another question from "Today is 26 November. The contract
ends on 25 November." Three rules follow, none of which can be checked at a single place:

1. A value that is this run's at one place is this run's at all of them. A path may stay as it was recorded in results
   and in system text only, where a committed file may name the home of the person who recorded it.
2. A present value must not occur in the recorded request outside of variables: it would become equal to that text.
3. Two variables with different recorded values must not be equal now. Short values (``7``) may: a task and an order
   can have one number.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from llmproxy.core.bindings.comparison_outcome import Mismatch, MismatchKind, excerpt_line
from llmproxy.core.bindings.id_pairs import IdPairs, RecordedIdFinder, ShortValue, short_values_at
from llmproxy.core.bindings.leaf_pairs import Leaf
from llmproxy.core.bindings.leaf_places import LeafPlace, Zone, is_in_any_span
from llmproxy.core.bindings.run_bindings import Bindings
from llmproxy.core.bindings.run_variables import ValueKind
from llmproxy.core.bindings.text_alignment import FilledGap, GapOption, VariableSpan
from llmproxy.core.dialects.messages import find_system_reminder_spans
from llmproxy.core.traffic.canonical_json import LossyJson, dump
from llmproxy.lazy_regex import late

_BINDING_ZONES = frozenset({Zone.USER, Zone.ARGUMENTS})
"""Zones in which a path that stays as recorded counts as unchanged."""
_HIDDEN = late(r"[/\\]\.\w")
"""Text before a hidden file, which is the home's own also if the working folder was the home: ``~/.bashrc``."""
FindGaps = Callable[[str, LeafPlace], list[VariableSpan]]


class ValueConsistency:
    def __init__(self, bindings: Bindings, identities: IdPairs, shorts: Sequence[ShortValue]) -> None:
        self._bindings = bindings
        self._natures = {pair.name: pair.recorded.kind for pair in bindings.pairs}
        self._values = {pair.name: pair.recorded.value for pair in bindings.pairs}
        self._tokens = RecordedIdFinder(
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
                self._record_name(gap.name, recorded[gap.start : gap.end], chosen.text, place)
            return
        name = option.name
        if option.readings and (not option.unchanged or self._conflicts_if_unchanged(name, gap, recorded, place)):
            self._narrow_readings(chosen, option, recorded, place)
        if not option.unchanged and name in self.below and self._names.get(chosen.text) == name:
            return  # recorded already
        # A line may have the same text for another thing: main is the main branch on every branch.
        if name not in self._bindings.changed or option.same or self._natures.get(name) is ValueKind.BLOCK:
            return
        if not option.unchanged:
            self.moved.setdefault(name, chosen.text)
            if recorded[gap.end : gap.end + 1] in ("/", "\\") and recorded[gap.end + 1 : gap.end + 2].strip():
                self.below.add(name)
            other = name if gap.label else self._names.setdefault(chosen.text, name)
            if other != name and self._values.get(other) != self._values.get(name):
                values = f"{self._values.get(other)} and {self._values.get(name)}"
                self._merged = self._merged or Mismatch(MismatchKind.MERGED, place.path, values, chosen.text, name)
        elif self._conflicts_if_unchanged(name, gap, recorded, place):
            self._stayed.setdefault(name, (place, recorded[gap.start : gap.end]))

    def _record_name(self, name: str, before: str, now: str, place: LeafPlace) -> None:
        """Record a user or branch in a tool's output: no two of them may be one now."""
        other = self._shell_names.setdefault((name, now), before)
        if other != before and self._merged is None:
            self._merged = Mismatch(MismatchKind.MERGED, place.path, f"{other} and {before}", now, name)

    def _narrow_readings(self, chosen: FilledGap, option: GapOption, recorded: str, place: LeafPlace) -> None:
        """Keep what a recorded text can still stand for; nothing if it stands for another thing than before."""
        name, before = option.name, recorded[chosen.gap.start : chosen.gap.end]
        key = name if self._natures.get(name) is ValueKind.DATE else before
        if before == self._values.get("home") and _HIDDEN.match(recorded, chosen.gap.end):
            key += "/."
        seen = self._readings.get(key, option.readings)
        if left := seen & option.readings:
            self._readings[key] = left
        elif self._merged is None:
            names = sorted({each for each, _ in seen | option.readings})
            why = MismatchKind.UNEVEN if option.unchanged else MismatchKind.NOT_ONE_TO_ONE
            why = MismatchKind.AMBIGUOUS if len(names) > 1 else why
            now = self.moved.get(name, chosen.text) if option.unchanged else chosen.text
            self._merged = Mismatch(why, place.path, before, now, " and ".join(names))

    def record_unchanged_member(self, value: object, place: LeafPlace) -> None:
        """Record a member of JSON that is no variable and is equal in both requests."""
        if not self._shorts:
            return
        tool = place.call.tool if place.call else ""
        for short in short_values_at(self._shorts, tool, place.subpath, place.member, value):
            self._stood.setdefault(short.name, (place, short.recorded))

    def find_unequal(self, leaves: Iterable[Leaf], find_gaps: FindGaps, present: IdPairs) -> Mismatch | None:
        """Return values that are no longer equal, or became equal; `leaves` are those of both requests."""
        if self._merged is not None:
            return self._merged
        for name, (place, text) in self._stayed.items():
            if name in self.moved:
                return Mismatch(MismatchKind.UNEVEN, place.path, text, self.moved[name], name)
        for name, (place, text) in self._stood.items():
            if name in self.moved or any(each.name == name for each in present):
                return Mismatch(MismatchKind.MERGED, place.path, text, text, name)
        if not self.moved and not self.id_prefilter_texts:
            return None
        return next(self.find_newly_equal_values(leaves, find_gaps, self.moved), None)

    def find_newly_equal_values(
        self, leaves: Iterable[Leaf], find_gaps: FindGaps, moved: Collection[str]
    ) -> Iterator[Mismatch]:
        """Yield the present values of some names (`moved`), and those of ids, that recorded leaves contain as texts."""
        for recorded, _, place in leaves:
            text = format_leaf_text(recorded)
            found = list(self._find_present_in_recorded(text, moved)) if text else ()
            gaps = find_gaps(text, place) if found else ()
            for start, end, name in found:
                if not any(gap.start < end and start < gap.end for gap in gaps):
                    yield Mismatch(MismatchKind.MERGED, place.path, excerpt_line(text, start), text[start:end], name)

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
        if self._natures.get(name) is not ValueKind.PATH:
            return place.zone is not Zone.THINKING
        if not gap.in_answers or place.zone not in _BINDING_ZONES:
            return False
        return place.zone is not Zone.USER or not is_in_any_span(find_system_reminder_spans(recorded), gap.start)


def find_merged_ids(found: IdPairs) -> Mismatch | None:
    """Return the mismatch of two ids that tools created under different names and that became equal."""
    seen: dict[str, tuple[str, str]] = {}
    for each in found:
        if not each.is_searchable_in_text:
            continue
        name, recorded = seen.setdefault(each.present, (each.name, each.recorded))
        if recorded != each.recorded and name != each.name:
            return Mismatch(MismatchKind.MERGED, "$", f"{recorded} and {each.recorded}", each.present, each.name)
    return None


def format_leaf_text(value: object) -> str:
    if isinstance(value, str):
        return value
    try:
        return dump(value).decode("utf-8", "replace") if isinstance(value, (dict, list)) else ""
    except LossyJson:
        return ""
