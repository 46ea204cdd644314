"""What one session binds: pairs of circumstances in all their forms, and the slots of its cassette."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from llmproxy.core.bindings.values.circumstances import PATHS, Circumstance, Pair, pair_circumstances
from llmproxy.core.bindings.values.forms import Forms, Reach, list_forms
from llmproxy.core.bindings.values.json_texts import read_json
from llmproxy.core.bindings.values.slots import Slot
from llmproxy.core.traffic.json_bytes import dump
from llmproxy.protocol import Scope


class Bindings:
    """The circumstances of a recorded run and of this one, with the slots of the cassette; the same for all requests of a session."""

    def __init__(
        self,
        recorded: Iterable[Circumstance],
        present: Iterable[Circumstance],
        slots: Iterable[Slot] = (),
        scope: Scope = Scope.ALL,
    ) -> None:
        """Pair the circumstances; `scope` PATHS leaves cwd, home and tmp and no slots, NONE nothing."""
        pairs = pair_circumstances(recorded, present) if scope is not Scope.NONE else ()
        if scope is Scope.PATHS:
            pairs = tuple(pair for pair in pairs if pair.name in PATHS)
        self.pairs: tuple[Pair, ...] = pairs
        self.slots: tuple[Slot, ...] = tuple(slots) if scope is Scope.ALL else ()
        self.json_tools = frozenset(slot.tool for slot in self.slots if slot.at.startswith("$"))
        """Tools with slots in the JSON of their results."""
        self.forms = Forms(list_forms(pairs))
        self.changed = frozenset(pair.name for pair in pairs if pair.differs)

    @cached_property
    def only_paths(self) -> Bindings:
        """The same with cwd, home and tmp only, and no slots: what may change the answer of an exact hit."""
        return Bindings(
            (pair.recorded for pair in self.pairs), (pair.present for pair in self.pairs), scope=Scope.PATHS
        )

    def __bool__(self) -> bool:
        """Tell whether anything can be bound at all; where not, only equal requests fit."""
        return bool(self.changed or self.slots)


def bind_arguments(bindings: Bindings, arguments: object) -> str:
    """Return a recorded call's arguments in canonical JSON, with ``{name}`` for what is bound: how slots are anchored."""
    value = read_json(arguments) if isinstance(arguments, str) else arguments
    text = dump(arguments if value is None else value).decode("ascii")
    parts, last = [], 0
    for spot in bindings.forms.find(text, lambda form, _: form.reach is Reach.EVERYWHERE):
        parts += [text[last : spot.start], "{", spot.forms[0].name, "}"]
        last = spot.end
    return "".join([*parts, text[last:]])
