"""A recorded request in other words: each run variable's present value where the recorded one stands and counts.

    request tree, bindings -> the tree as the other run would have sent it, as far as run variables go

What is exchanged is what a comparison would let differ: paths and ids in any text, days and blocks where the agent
wrote, the user's name in rows of ``ls -l``. Volatile fields are none of its business.
"""

from __future__ import annotations

from llmproxy.core.bindings.fits import Comparing
from llmproxy.core.bindings.identities import Identities
from llmproxy.core.bindings.listings import find_listed
from llmproxy.core.bindings.places import LeafPlace, PlaceReader, Zone, begin, iterate
from llmproxy.core.bindings.table import Bindings


def rename_request(bindings: Bindings, tree: object) -> object:
    """Return a request's tree, as it was sent or canonical, with present values for recorded ones."""
    return Renamer(bindings).request(tree)


_WRAPPED = "request."


class Renamer:
    """Tells recorded requests in the words of one other run, whole or message by message."""

    def __init__(self, bindings: Bindings) -> None:
        self._comparing = Comparing(bindings, Identities(), None)
        users = next((pair for pair in bindings.pairs if pair.name == "user" and pair.differs), None)
        self._users = (users.recorded.value, users.present.value) if users is not None else None

    def request(self, tree: object) -> object:
        if not isinstance(tree, dict):
            return tree
        reader = PlaceReader()
        renamed = {name: self._node(reader, value, place) for name, value, place in iterate(tree)}
        wrapped = {
            name.removeprefix(_WRAPPED): renamed.pop(name) for name in list(renamed) if name.startswith(_WRAPPED)
        }
        whole = renamed | ({"request": wrapped} if wrapped else {})
        return {name: whole[name] for name in tree}

    def message(self, member: str, message: object) -> object:
        """Return one element of a body's member, as in the whole: speaker and form stand in the message itself."""
        return self._node(PlaceReader(), message, begin({}, member).at(0))

    def _node(self, reader: PlaceReader, node: object, place: LeafPlace) -> object:
        if isinstance(node, dict):
            place = reader.enter(node, place)
            called = (lambda name: self._text(name, place)) if place.json else str
            return {
                called(name): self._node(reader, value, reader.member(node, name, place))
                for name, value in node.items()
            }
        if isinstance(node, list):
            return [self._node(reader, each, place.at(n)) for n, each in enumerate(node)]
        return self._text(node, place) if isinstance(node, str) else node

    def _text(self, text: str, place: LeafPlace) -> str:
        changes = [(spot.start, spot.end, spot.forms[0].present[0]) for spot in self._comparing.spots(text, place)]
        if self._users is not None and place.zone is Zone.RESULT:
            rows = find_listed(text, elsewhere=False, users=self._users)
            changes += [(part.start, part.end, self._users[1]) for part in rows if part.name == "user"]
        parts, last = list[str](), 0
        for start, end, new in sorted(changes):
            if start >= last:
                parts += (text[last:start], new)
                last = end
        return "".join([*parts, text[last:]])
