"""What a server keeps is part of the question: the changes that one session made to what its later requests name.

    POST conversations/conv_1/items   changes conv_1; so does POST responses with `conversation: conv_1`
    GET conversations/conv_1/items    asks what conv_1 is after them

An id stands for an object at its birth (`core.keys.normalize.IdOrigin`). What was made of it since is a digest of the
successful changes in this session, in their order where that counts; it stands among the stored request's header fields
(`STATE_HEADER`), so that the key is derived from what is stored alone. Which operations change what stands in the
providers' rows (`core.providers.provider_table.Operation`). A change is told by its own key, in which the state stands
that it met: so recordings with other ids, made in the same order, agree. What an object refers to is part of its state:
a file that was put into a vector store that an assistant searches.

A collection is a thing as well: listing files after an upload is another question than listing them without it. What
is added side by side has no order for whoever searches it; a list tells the order, so there it counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from llmproxy.core.keys.normalize import MadeBy
from llmproxy.core.providers.provider_table import METHOD_BEHIND_ID, SAFE
from llmproxy.core.providers.routing import Route, changes_something
from llmproxy.core.traffic.interaction import Key

STATE_HEADER = "x-llmproxy-state"
_DIGITS = 16


def is_success(status: int) -> bool:
    """Return whether an answer says that what was asked was done."""
    return 200 <= status < 300


class StateChange(NamedTuple):
    """A request that changes something, if it succeeds."""

    things: tuple[str, ...]
    key: Key
    """What was asked, and in which state."""
    ordered: bool
    names: tuple[str, ...]
    """Ids in the request: what is changed or made refers to them from now on."""
    takes_out: bool = False
    """It takes one thing out of another: whether it can depends on what was done with these two."""

    @property
    def names_if_removal(self) -> frozenset[str]:
        return frozenset(self.names if self.takes_out and not self.ordered else ())


class StateChanges:
    """What one session changed since it began."""

    def __init__(self) -> None:
        self.made: dict[str, list[StateChange]] = {}
        """By thing: what changed it, in order."""
        self._births: dict[Key, StateChange] = {}

    def begin_change(self, change: StateChange) -> None:
        """Note a change when it is asked for: what is asked beside it comes after it, as it does in replay."""
        for thing in change.things:
            self.made.setdefault(thing, []).append(change)
        self._births[change.key] = change

    def undo_change(self, change: StateChange) -> None:
        """Forget a change that failed."""
        for thing in change.things:
            found = self.made.get(thing, [])
            found[:] = [each for each in found if each is not change]

    def clear_changes(self) -> None:
        """Begin again."""
        self.made.clear()
        self._births.clear()

    def digest_state_for_request(
        self, route: Route, method: str, refs: Iterable[str], change: StateChange | None, made_by: MadeBy
    ) -> str:
        """Return the state of all that a request's answer may depend on; empty where nothing of it was changed."""
        both = change.names_if_removal if change is not None else frozenset[str]()
        names = list_state_dependencies(route, method, refs, change)
        lists = (
            method in SAFE and route.operation.rpartition("/")[2] not in route.ids
        )  # not one of a collection's things
        return self.digest_state(names, made_by, both, lists=lists)

    def digest_state(
        self, names: Iterable[str], made_by: MadeBy, both: frozenset[str] = frozenset(), *, lists: bool = False
    ) -> str:
        """Return 16 hex digits for what was made of these things, and of all that they refer to; empty where nothing
        was. `made_by` finds what an object referred to at its birth; only changes with `names_if_removal` count.

        `lists`: the answer tells what was added, in its order.
        """
        said, todo = [], list(names)
        known, listed = set(todo), len(todo) if lists else 0
        for number, name in enumerate(todo):  # which grows
            made = [each for each in self.made.get(_strip_collection(name), []) if both <= {*each.names}]
            in_order = [each for each in made if each.ordered]
            heap = [each for each in made if not each.ordered]
            if number >= listed:
                heap.sort(key=lambda each: each.key)
            if made:
                said.append((number, [each.key for each in in_order], [each.key for each in heap]))
            born = (origin := made_by(name)) and self._births.get(origin.key)
            for each in (*((born,) if born else ()), *in_order, *heap):
                todo += (other for other in dict.fromkeys(each.names) if other not in known)
                known.update(each.names)
        return hashlib.sha256(repr(said).encode()).hexdigest()[:_DIGITS] if said else ""


def find_change(route: Route, method: str, key: Key, refs: tuple[str, ...], tree: object) -> StateChange | None:
    """Return what a request changes if it succeeds; None for nearly all."""
    things: list[str] = []
    if changes_something(route, method):
        things += [*map(_strip_collection, _list_ids_without_colon_verb(route)), _get_collection(route)]
    if method not in SAFE:
        things += (_strip_collection(each) for at in route.changes for each in iter_texts_at_path(tree, at.split(".")))
    takes_out = method == "DELETE" and len(route.ids) > 1
    return StateChange(tuple(dict.fromkeys(things)), key, not route.unordered, refs, takes_out) if things else None


def list_state_dependencies(route: Route, method: str, refs: Iterable[str], change: StateChange | None) -> list[str]:
    """Return the things whose state an answer may depend on, in order; adding to an unordered one needs none."""
    named = list(dict.fromkeys(refs))
    if change is not None:
        return (
            named
            if change.ordered or change.takes_out
            else [each for each in named if _strip_collection(each) not in change.things]
        )
    return [*named, _get_collection(route)] if (route.keeps or method in SAFE) and not route.ids else named


def _strip_collection(name: str) -> str:
    """Return an id without what Google writes before it, ``files/abc``."""
    return name.rstrip("/").rpartition("/")[2]


def _list_ids_without_colon_verb(route: Route) -> tuple[str, ...]:
    """Return the ids of a path without the method that Google writes behind one, ``fileSearchStores/s:importFile``."""
    if route.family not in METHOD_BEHIND_ID:
        return route.ids
    return tuple(each.partition(":")[0] for each in route.ids)


def _get_collection(route: Route) -> str:
    """Return what a request's thing is one of; Ollama's requests are all about its models (``api.tags``)."""
    name = route.operation.partition("/")[0]
    return f"{'api' if name.startswith('api.') else name} of {route.provider.name}"


def iter_texts_at_path(tree: object, path: list[str]) -> Iterator[str]:
    if isinstance(tree, list):
        for each in tree:
            yield from iter_texts_at_path(each, path)
    elif not path:
        if isinstance(tree, str):
            yield tree
    elif isinstance(tree, dict) and path[0] in tree:
        yield from iter_texts_at_path(tree[path[0]], path[1:])
