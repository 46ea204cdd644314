"""Two requests, walked in step: which leaf of the one stands at which leaf of the other, and where that is."""

from __future__ import annotations

from llmproxy.core.bindings.fitting.places import Place, Reader, Zone, iterate
from llmproxy.core.bindings.fitting.results import Mismatch, tell_difference
from llmproxy.core.bindings.values.json_texts import read_json
from llmproxy.core.bindings.values.table import Bindings, bind_arguments


class Walking:
    """Goes through two trees in step."""

    def __init__(self, bindings: Bindings) -> None:
        """Know no calls yet."""
        self.bindings = bindings
        self.reader = Reader()
        self._bound: dict[int, str] = {}

    def compare_bodies(self, recorded: object, present: object) -> Mismatch | None:
        """Compare two whole trees."""
        mine, theirs = list(iterate(recorded)), {name: value for name, value, _ in iterate(present)}
        if [name for name, _, _ in mine] != list(theirs):
            return tell_difference("$", sorted({name for name, _, _ in mine} ^ set(theirs)), sorted(theirs))
        for name, value, place in mine:
            if (wrong := self.node(value, theirs[name], place)) is not None:
                return wrong
        return None

    def node(self, recorded: object, present: object, place: Place) -> Mismatch | None:
        """Compare two values."""
        if type(recorded) is not type(present):
            if place.json and self.value(recorded, present, place) is None:
                return None
            return tell_difference(place.path, recorded, present)
        if isinstance(recorded, dict) and isinstance(present, dict):
            return self._object(recorded, present, place)
        if isinstance(recorded, list) and isinstance(present, list):
            return self._array(recorded, present, place)
        if isinstance(recorded, str) and isinstance(present, str):
            return self._string(recorded, present, place)
        return self.value(recorded, present, place)

    def _object(self, recorded: dict[str, object], present: dict[str, object], place: Place) -> Mismatch | None:
        if recorded.keys() != present.keys():
            return self.keys(recorded, present, place)
        place = self.reader.enter(recorded, place)
        for name in sorted(recorded):
            member = self.reader.member(recorded, name, place)
            if (wrong := self.node(recorded[name], present[name], member)) is not None:
                return wrong
        return None

    def keys(self, recorded: dict[str, object], present: dict[str, object], place: Place) -> Mismatch | None:
        """Say what it means that two objects have different members."""
        return tell_difference(
            place.path, sorted(recorded.keys() - present.keys()), sorted(present.keys() - recorded.keys())
        )

    def _array(self, recorded: list[object], present: list[object], place: Place) -> Mismatch | None:
        for n, (mine, theirs) in enumerate(zip(recorded, present, strict=False)):
            if (wrong := self.node(mine, theirs, place.at(n))) is not None:
                return wrong
        if len(recorded) != len(present):
            return tell_difference(place.path, f"{len(recorded)} elements", f"{len(present)} elements")
        return None

    def _string(self, recorded: str, present: str, place: Place) -> Mismatch | None:
        if place.zone is Zone.ARGUMENTS and place.inner == "$":
            trees = read_json(recorded), read_json(present)
            if trees[0] is not None and trees[1] is not None:
                return self.node(*trees, place)
        return self.text(recorded, present, place)

    def value(self, recorded: object, present: object, place: Place) -> Mismatch | None:
        """Compare two leaves that are no texts."""
        raise NotImplementedError

    def text(self, recorded: str, present: str, place: Place) -> Mismatch | None:
        """Compare two texts."""
        raise NotImplementedError

    def bound_arguments(self, arguments: object) -> str:
        """Return a recorded call's arguments in canonical JSON, with names for what is bound."""
        if (text := self._bound.get(id(arguments))) is None:
            text = self._bound[id(arguments)] = bind_arguments(self.bindings, arguments)
        return text
