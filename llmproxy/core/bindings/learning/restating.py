"""A recorded request as this run would have sent it, held against one that missed: so that only what really differs is left.

    recorded tree, present tree, bindings -> `Restated`: the recorded request with whatever fits as it stands now, and what only varies

Circumstances and slots that fit are no difference; a value that a trial could learn is one, but never the first that is told where something
else differs. Nothing is served by it: it is for the text of a miss.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from llmproxy.core.bindings.fitting.comparison import Parted, align
from llmproxy.core.bindings.fitting.fits import Comparing
from llmproxy.core.bindings.fitting.places import LeafPlace
from llmproxy.core.bindings.fitting.renaming import rename_request
from llmproxy.core.bindings.fitting.slot_values import SlotReading
from llmproxy.core.bindings.fitting.walking import pair_bodies
from llmproxy.core.bindings.learning.lessons import Lesson, list_lessons, with_slots
from llmproxy.core.bindings.values.identities import Identities
from llmproxy.core.bindings.values.table import Bindings


class Restated(NamedTuple):
    """A recorded request in this run's words."""

    tree: object
    bound: tuple[str, ...] = ()
    """Circumstances and slots whose values differ and fit, sorted."""
    varying: tuple[Lesson, ...] = ()
    """Values of tools that a trial could learn; in the tree they stand as they are now."""


def restate(bindings: Bindings, recorded: object, present: object, known: Identities | None = None) -> Restated:
    """Return a recorded request in this run's words; what varies stays in it where nothing else differs."""
    if not isinstance(recorded, dict) or not isinstance(present, dict):
        return Restated(recorded)
    varying = list_lessons(bindings, recorded, present, known)
    whole = (
        _restate(with_slots(bindings, [each.slot for each in varying]), recorded, present, known) if varying else None
    )
    if whole is not None and whole.tree != present:
        learned = {each.slot.name for each in varying}
        return Restated(whole.tree, tuple(name for name in whole.bound if name not in learned), varying)
    found = _restate(bindings, recorded, present, known)
    return found if found.tree != present else Restated(rename_request(bindings, recorded))


def _restate(bindings: Bindings, recorded: object, present: object, known: Identities | None) -> Restated:
    paired, slots = pair_bodies(recorded, present), SlotReading(bindings)
    slots.read(paired.leaves)
    restating, tree = _Restating(bindings, slots.found, known), rename_request(bindings, recorded)
    for mine, theirs, place in paired.leaves:
        new = theirs if restating.go([(mine, theirs, place)]) is None else restating.part(mine, theirs, place)
        _put(tree, _steps(place), new)
    return Restated(tree, restating.fit().names)


class _Restating(Comparing):
    def part(self, recorded: object, present: object, place: LeafPlace) -> object:
        """Return a leaf that does not fit, as it stands now as far as it fits."""
        if not isinstance(recorded, str) or not isinstance(present, str):
            return recorded
        gaps = self.gaps(recorded, place)
        parted = align(recorded, gaps, present)
        return (
            present[: parted.present] + self._said_now(recorded, parted.recorded, place)
            if isinstance(parted, Parted)
            else recorded
        )

    def _said_now(self, text: str, start: int, place: LeafPlace) -> str:
        """Return a recorded text from a position on, with what must stand at its gaps in this run."""
        parts, last = [], start
        for gap in self.gaps(text, place):
            # Where a value leaked the texts part behind it: what should have stood there is the difference.
            if gap.options and gap.start >= start:
                parts += [text[last : gap.start], gap.options[0].text]
                last = gap.end
        return "".join([*parts, text[last:]])


def _steps(place: LeafPlace) -> list[str | int]:
    steps: list[str | int] = []
    at: LeafPlace | None = place
    while at is not None:
        steps += [at.step] if at.step != "" else []
        at = at.parent
    return steps[::-1]


def _put(tree: Any, steps: list[str | int], value: object) -> None:  # noqa: ANN401 - any JSON
    """Put a value into a tree; nowhere where a member is called otherwise in this run."""
    for step in steps[:-1]:
        if isinstance(tree, dict) and step not in tree:
            return
        tree = tree[step]
    if steps and not (isinstance(tree, dict) and steps[-1] not in tree):
        tree[steps[-1]] = value
