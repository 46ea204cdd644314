"""The slots of a cassette in two requests: where they stand, and what their identities map.

Both requests are read by themselves, each with its own values of what is bound; the values of one place are then paired in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llmproxy.core.bindings.fitting.places import Call, Place, Zone
from llmproxy.core.bindings.fitting.results import Mismatch, Why
from llmproxy.core.bindings.fitting.walking import Walking
from llmproxy.core.bindings.values.identities import Identities, Identity
from llmproxy.core.bindings.values.json_texts import pair_json
from llmproxy.core.bindings.values.slots import (
    LINE,
    OUTSIDE,
    SYSTEM,
    TEXT,
    Found,
    Names,
    Slot,
    find_in_text,
    is_at,
    is_of_kind,
)
from llmproxy.core.bindings.values.table import Bindings


def find_slots(
    slots: Sequence[Slot], call: Call | None, text: str, names: Names, bound: Callable[[object], str]
) -> list[Found]:
    """Return the values of text slots in a tool's result, or (`call` None) outside of results; in order, no two overlapping."""
    wanted = [slot for slot in slots if slot.at in (LINE, TEXT) and is_of(slot, call, bound)]
    found = sorted(
        (each for slot in wanted for each in find_in_text(slot, text, names)), key=lambda each: (each.start, -each.end)
    )
    kept: list[Found] = []
    for each in found:
        if not kept or each.start >= kept[-1].end:
            kept.append(each)
    return kept


def keep_written(found: Sequence[Found], place: Place) -> list[Found]:
    """Return the slots of a text that may stand there: those of system text nowhere else, whatever a user types."""
    return [each for each in found if each.slot.tool != SYSTEM or place.zone is Zone.SYSTEM]


def is_of(slot: Slot, call: Call | None, bound: Callable[[object], str]) -> bool:
    """Tell whether a slot is of this call's results; `bound` writes its arguments with names (`bind_arguments`)."""
    if slot.tool in (OUTSIDE, SYSTEM) or call is None:
        return slot.tool in (OUTSIDE, SYSTEM) and call is None
    return slot.tool == call.tool and (not slot.arguments or slot.arguments == bound(call.arguments))


def json_slot(bindings: Bindings, bound: Callable[[object], str], place: Place) -> Slot | None:
    """Return the slot that a leaf of JSON in a result is."""
    if (
        not place.json
        or place.call is None
        or place.zone is not Zone.RESULT
        or place.call.tool not in bindings.json_tools
    ):
        return None
    return next((slot for slot in bindings.slots
                 if slot.at.startswith("$") and is_of(slot, place.call, bound) and is_at(slot.at, place.inner)), None)  # fmt: skip


def has_json_slots(bindings: Bindings, call: Call) -> bool:
    """Tell whether slots stand in the JSON of a tool's results."""
    return call.tool in bindings.json_tools


class SlotReading(Walking):
    """Reads the slots of both requests and pairs their identities; differences are none of its business, but those of slots."""

    def __init__(self, bindings: Bindings) -> None:
        """Have found nothing yet."""
        super().__init__(bindings)
        self.found = Identities()
        self._names: tuple[Names, Names] = (
            tuple((pair.name, (pair.recorded.value,)) for pair in bindings.pairs),
            tuple((pair.name, tuple(dict.fromkeys((pair.present.value, pair.present.other or pair.present.value, pair.recorded.value))))
                  for pair in bindings.pairs),
        )  # fmt: skip

    def read(self, recorded: object, present: object) -> Mismatch | None:
        """Fill `found`; a mismatch where the values of a slot do not map one to one."""
        return self.compare_bodies(recorded, present) if self.bindings.slots else None

    def keys(self, recorded: dict[str, object], present: dict[str, object], place: Place) -> Mismatch | None:  # noqa: ARG002
        """Let it be."""
        return None  # said by the comparison, with a better reason

    def value(self, recorded: object, present: object, place: Place) -> Mismatch | None:
        """Read a slot that is a number."""
        slot = json_slot(self.bindings, self.bound_arguments, place)
        if slot is not None and slot.identity and not isinstance(recorded, bool) and not isinstance(present, bool):
            return self._pair(slot, str(recorded), str(present), place)
        return None

    def text(self, recorded: str, present: str, place: Place) -> Mismatch | None:
        """Read the slots of a text."""
        slot = json_slot(self.bindings, self.bound_arguments, place)
        if slot is not None:
            return self._pair(slot, recorded, present, place) if slot.identity else None
        call = place.call if place.zone is Zone.RESULT else None
        if call is not None and not place.json and has_json_slots(self.bindings, call):
            for mine, theirs in pair_json(recorded, present):
                if not isinstance(mine, str) and (wrong := self.node(mine, theirs, place.open_json())) is not None:
                    return wrong
        mine, theirs = (
            keep_written(find_slots(self.bindings.slots, call, text, names, self.bound_arguments), place)
            for text, names in zip((recorded, present), self._names, strict=True)
        )
        if not mine and not theirs:
            return None
        for one, other in zip(mine, theirs, strict=False):
            if one.slot != other.slot:
                break
            if one.slot.identity and (wrong := self._pair(one.slot, one.value, other.value, place)) is not None:
                return wrong
        return None

    def _pair(self, slot: Slot, recorded: str, present: str, place: Place) -> Mismatch | None:
        if not (is_of_kind(slot.kind, recorded) and is_of_kind(slot.kind, present)):
            return None
        conflict = self.found.add(Identity(slot.name, slot.kind, recorded, present))
        if conflict is None:
            return None
        return Mismatch(Why.NOT_ONE_TO_ONE, place.path, recorded, f"{present}, before {conflict.other}", slot.name)
