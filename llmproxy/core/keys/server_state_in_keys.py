"""Server state in keys: the changes that one session made to objects which its later requests name.

    POST conversations/conv_1/items   changes conv_1; so does POST responses with `conversation: conv_1`
    GET conversations/conv_1/items    reads conv_1 after these changes

The state of an object is a digest of the successful changes in this session, stored in the request's header field
`STATE_HEADER`, so that the key can be derived from the stored request alone. A change is identified by its own key,
which includes the state before it; so recordings with other ids, created in the same order, agree. It includes the
objects to which the object refers: a file in a vector store that an assistant searches. A collection has a state as
well. Objects added to an unordered one have no order for a search, but a list shows the order, so there it counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from llmproxy.core.keys.normalize import MadeBy
from llmproxy.core.providers.provider_table import METHOD_BEHIND_ID, SAFE
from llmproxy.core.providers.routing import RoutedRequest, does_request_change_server_state
from llmproxy.core.traffic.interaction import Key

STATE_HEADER = "x-llmproxy-state"
_DIGITS = 16


def is_success(status: int) -> bool:
    return 200 <= status < 300


class ServerObjectChange(NamedTuple):
    things: tuple[str, ...]
    key: Key
    """Key of the request, which includes the state before it."""
    ordered: bool
    names: tuple[str, ...]
    """Ids in the request: changed or created objects refer to them from now on."""
    takes_out: bool = False
    """Whether it removes an object from another one: its success depends on earlier changes of these two."""


class ServerObjectChangeLog:
    def __init__(self) -> None:
        self.made: dict[str, list[ServerObjectChange]] = {}
        self._births: dict[Key, ServerObjectChange] = {}

    def begin_change(self, change: ServerObjectChange) -> None:
        """Record a change when it is requested: concurrent requests come after it, as they do in replay."""
        for thing in change.things:
            self.made.setdefault(thing, []).append(change)
        self._births[change.key] = change

    def undo_change(self, change: ServerObjectChange) -> None:
        for thing in change.things:
            found = self.made.get(thing, [])
            found[:] = [each for each in found if each is not change]

    def clear_changes(self) -> None:
        self.made.clear()
        self._births.clear()

    def digest_state_for_request(
        self, route: RoutedRequest, method: str, refs: Iterable[str], change: ServerObjectChange | None, made_by: MadeBy
    ) -> str:
        """Return a digest of all state on which a request's answer may depend; empty if none of it was changed."""
        both = frozenset(change.names if change is not None and change.takes_out and not change.ordered else ())
        names = list_server_objects_behind_answer(route, method, refs, change)
        lists = method in SAFE and route.operation.rpartition("/")[2] not in route.ids  # a whole collection
        return self.digest_state(names, made_by, both, lists=lists)

    def digest_state(
        self, names: Iterable[str], made_by: MadeBy, both: frozenset[str] = frozenset(), *, lists: bool = False
    ) -> str:
        """Return 16 hex digits for the changes of these objects and all that they refer to; empty if there are none.

        `made_by` finds the references of an object at its creation. Only changes that name all of `both` count.
        `lists`: the answer shows added objects in order.
        """
        said, todo = [], list(names)
        known, listed = set(todo), len(todo) if lists else 0
        for number, name in enumerate(todo):  # the list grows during the loop
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


def predict_request_effect_on_provider(
    route: RoutedRequest, method: str, key: Key, refs: tuple[str, ...], tree: object
) -> ServerObjectChange | None:
    """Return the change that a request makes if it succeeds; None for nearly all requests."""
    things: list[str] = []
    if does_request_change_server_state(route, method):
        # Google appends a method to an id: ``fileSearchStores/s:importFile``.
        ids = [each.partition(":")[0] for each in route.ids] if route.family in METHOD_BEHIND_ID else route.ids
        things += [*map(_strip_collection, ids), _get_collection(route)]
    if method not in SAFE:
        for at in route.row.changes:
            things += map(_strip_collection, iter_texts_at_path(tree, at.split(".")))
    if not things:
        return None
    takes_out = method == "DELETE" and len(route.ids) > 1
    return ServerObjectChange(tuple(dict.fromkeys(things)), key, not route.row.unordered, refs, takes_out)


def list_server_objects_behind_answer(
    route: RoutedRequest, method: str, refs: Iterable[str], change: ServerObjectChange | None
) -> list[str]:
    """Return objects whose state may affect an answer, in order; adding to an unordered one does not depend on it."""
    named = list(dict.fromkeys(refs))
    if change is None:
        return [*named, _get_collection(route)] if (route.keeps or method in SAFE) and not route.ids else named
    alone = not (change.ordered or change.takes_out)
    return [each for each in named if _strip_collection(each) not in change.things] if alone else named


def _strip_collection(name: str) -> str:
    """Return an id without Google's collection prefix, as in ``files/abc``."""
    return name.rstrip("/").rpartition("/")[2]


def _get_collection(route: RoutedRequest) -> str:
    """Return the collection of a request's object; all requests of Ollama concern its models (``api.tags``)."""
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
