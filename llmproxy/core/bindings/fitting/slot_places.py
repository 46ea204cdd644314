"""Where the slots of a cassette may stand: in which texts and at which leaves of a request, and what is found there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llmproxy.core.bindings.fitting.places import LeafPlace, PlacedCall, Zone
from llmproxy.core.bindings.values.slots import (
    LINE,
    OUTSIDE,
    SYSTEM,
    TEXT,
    FoundSlot,
    Names,
    Slot,
    find_in_text,
    is_at,
    may_stand,
)
from llmproxy.core.bindings.values.table import Bindings


def find_slots(
    slots: Sequence[Slot], call: PlacedCall | None, text: str, names: Names, bound: Callable[[object], str]
) -> list[FoundSlot]:
    """Return the values of text slots in a tool's result, or (`call` None) outside of results; in order, no two overlapping."""
    wanted = [slot for slot in slots if slot.at in (LINE, TEXT) and may_stand(slot, text) and is_of(slot, call, bound)]
    if not wanted:
        return []
    found = sorted(
        (each for slot in wanted for each in find_in_text(slot, text, names)), key=lambda each: (each.start, -each.end)
    )
    kept: list[FoundSlot] = []
    for each in found:
        if not kept or each.start >= kept[-1].end:
            kept.append(each)
    return kept


def slots_at(bindings: Bindings, place: LeafPlace) -> tuple[Slot, ...]:
    """Return the slots that may stand in a text: those of its tool, in what the agent wrote those of system text, whatever a user types."""
    slots = bindings.text_slots
    if not slots:
        return ()
    if place.zone is Zone.RESULT and place.call is not None:
        tool = place.call.tool
        alike = tuple(slot for slot in bindings.of_many if tool.startswith(slot.prefix))
        return (*slots.get(tool, ()), *alike) if alike else slots.get(tool, ())
    anywhere = slots.get(OUTSIDE, ())
    return (*anywhere, *slots.get(SYSTEM, ())) if place.zone is Zone.SYSTEM else anywhere


def is_of(slot: Slot, call: PlacedCall | None, bound: Callable[[object], str]) -> bool:
    """Tell whether a slot is of this call's results; `bound` writes its arguments with names (`bind_arguments`)."""
    if slot.tool in (OUTSIDE, SYSTEM) or call is None:
        return slot.tool in (OUTSIDE, SYSTEM) and call is None
    same = call.tool.startswith(slot.prefix) if slot.prefix else slot.tool == call.tool
    return same and (not slot.arguments or slot.arguments == bound(call.arguments))


def json_slot(bindings: Bindings, bound: Callable[[object], str], place: LeafPlace) -> Slot | None:
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


def has_json_slots(bindings: Bindings, call: PlacedCall) -> bool:
    """Tell whether slots stand in the JSON of a tool's results."""
    return call.tool in bindings.json_tools
