"""Values of a cassette's volatile fields in two requests, and the id pairs that they give.

Each request is read separately, with its own values of the bound names; the values of one place are then paired in
order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from llmproxy.core.bindings.comparison_outcome import Mismatch, MismatchKind
from llmproxy.core.bindings.id_pairs import IdPair, IdPairs
from llmproxy.core.bindings.leaf_pairs import Leaf, LeafPairVisitor, pair_bodies
from llmproxy.core.bindings.leaf_places import LeafPlace, Zone, find_volatile_matches, list_fields_at
from llmproxy.core.bindings.run_bindings import Bindings
from llmproxy.core.bindings.shell_listings import remove_llmproxy_files
from llmproxy.core.bindings.volatile_fields import Names, VolatileField, fits_kind
from llmproxy.core.traffic.canonical_json import pair_json_parts


class VolatileValue(NamedTuple):
    field: VolatileField
    value: str
    place: LeafPlace
    """In the request."""


class VolatileFieldReader(LeafPairVisitor):
    """Reads the volatile fields of both requests and pairs their ids; it ignores all other differences."""

    def __init__(self, bindings: Bindings) -> None:
        super().__init__(bindings)
        self.found = IdPairs()
        self.values: list[VolatileValue] = []
        """Values of the fields in the recorded request."""
        # This run may have the present value, its other form, or the recorded one unchanged.
        sides = [(pair.name, pair.recorded.value, pair.present.value, pair.present.other) for pair in bindings.pairs]
        self._names: tuple[Names, Names] = (
            tuple((name, (was,)) for name, was, _, _ in sides),
            tuple((name, tuple(dict.fromkeys((now, other or now, was)))) for name, was, now, other in sides),
        )

    def read_fields(self, leaves: list[Leaf]) -> Mismatch | None:
        """Fill `found`; return a mismatch if the values of a volatile field do not map one to one."""
        return self.visit(leaves) if self.bindings.fields else None

    def pair_member_names(
        self, recorded: Mapping[str, object], present: Mapping[str, object], place: LeafPlace
    ) -> dict[str, str]:
        """Pair members of equal names, and the remaining one of each side; the comparison checks its name."""
        names = {name: name for name in sorted(recorded) if name in present}
        mine, theirs = ([name for name in names_of if name not in names] for names_of in (recorded, present))
        return names | (dict(zip(mine, theirs, strict=True)) if len(mine) == len(theirs) == 1 else {})

    def visit_value(self, recorded: object, present: object, place: LeafPlace) -> Mismatch | None:
        """Read a volatile field that is a number."""
        field = self.find_json_field(place)
        if field is not None and not isinstance(recorded, bool) and not isinstance(present, bool):
            return self._read_pair(field, str(recorded), str(present), place)
        return None

    def visit_text(self, recorded: str, present: str, place: LeafPlace) -> Mismatch | None:
        fields = list_fields_at(self.bindings, place)
        if not (fields or (place.call is not None and place.call.tool in self.bindings.json_tools)):
            return None
        if (field := self.find_json_field(place)) is not None:
            return self._read_pair(field, recorded, present, place)
        call = place.call if place.zone is Zone.RESULT else None
        if call is not None and not place.json:
            recorded, present = remove_llmproxy_files(recorded, present)
        # JSON in a result: a field may stand at a path, or in the lines of a member
        if call is not None and not place.json and (recorded[:1] == "{" or call.tool in self.bindings.json_tools):
            for mine, theirs in pair_json_parts(recorded, present):
                if not isinstance(mine, str) and (wrong := self.descend(mine, theirs, place.enter_json())) is not None:
                    return wrong
        if not fields:
            return None
        mine, theirs = (find_volatile_matches(fields, call, text, names, self.mask_call_arguments)
                        for text, names in zip((recorded, present), self._names, strict=True))  # fmt: skip
        for one, other in zip(mine, theirs, strict=False):
            if one.field != other.field:
                break
            if (wrong := self._read_pair(one.field, one.value, other.value, place)) is not None:
                return wrong
        return None

    def _read_pair(self, field: VolatileField, recorded: str, present: str, place: LeafPlace) -> Mismatch | None:
        if not fits_kind(field.kind, recorded):
            return None
        self.values.append(VolatileValue(field, recorded, place))
        if not (field.is_id and fits_kind(field.kind, present)):
            return None
        conflict = self.found.add_pair(IdPair(field.name, field.kind, recorded, present))
        if conflict is None:
            return None
        both = f"{present}, before {conflict.other}"
        return Mismatch(MismatchKind.NOT_ONE_TO_ONE, place.path, recorded, both, field.name)


def list_volatile_values(fields: Sequence[VolatileField], tree: object) -> list[VolatileValue]:
    """Return the values of volatile fields in one request (a canonical tree), in its order."""
    reader = VolatileFieldReader(Bindings((), (), fields))
    reader.read_fields(pair_bodies(tree, tree).leaves)
    return reader.values
