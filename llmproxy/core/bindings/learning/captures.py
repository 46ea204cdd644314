"""Slots from what was captured: a run says that ``task.id`` is 7 after a tool had answered ``{"id": 7}``.

In the next run the tool answers 1007, and the model is asked about it before anybody captures anything. So the place where the value stood
before it was declared is known to vary, by evidence: it becomes a slot of the cassette. Only members that the value's name names count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from llmproxy.core.bindings.fitting.places import LeafPlace, PlaceReader, Zone, iterate
from llmproxy.core.bindings.values.circumstances import Circumstance, Nature
from llmproxy.core.bindings.values.identities import Short, find_shorts
from llmproxy.core.bindings.values.json_texts import split_json
from llmproxy.core.bindings.values.slots import Slot, is_of_kind

_KINDS = ("integer", "uuid", "hex", "name", "word")
_INDEX = re.compile(r"\[\d+\]")
_UNNAMED = re.compile(r"[^\w.-]")


def find_captured(trees: Iterable[object], captured: Circumstance) -> list[Slot]:
    """Return the slots in which a captured value stood in tools' results of these requests (canonical trees), each once."""
    kind = next((kind for kind in _KINDS if is_of_kind(kind, captured.value)), None)
    if kind is None or captured.nature not in (Nature.SHORT, Nature.IDENTIFIER):
        return []
    wanted = (Short(captured.name, captured.value, captured.value, captured.tool, captured.path),)
    found: dict[Slot, None] = {}
    for tree in trees:
        for tool, inner, member, value in _leaves(tree):
            if find_shorts(wanted, tool, inner, member, value):
                name = _UNNAMED.sub("_", captured.name)
                found[Slot(name, kind, tool, _INDEX.sub("[*]", inner))] = None
    return list(found)


def _leaves(tree: object) -> Iterator[tuple[str, str, str, object]]:
    """Yield tool, path, member and value of each leaf of JSON in results."""
    reader = PlaceReader()
    for _, value, place in iterate(tree):
        yield from _walk(value, place, reader)


def _walk(node: object, place: LeafPlace, reader: PlaceReader) -> Iterator[tuple[str, str, str, object]]:
    if isinstance(node, dict):
        place = reader.enter(node, place)
        for name in sorted(node):
            yield from _walk(node[name], reader.member(node, name, place), reader)
    elif isinstance(node, list):
        for n, each in enumerate(node):
            yield from _walk(each, place.at(n), reader)
    elif place.zone is Zone.RESULT and place.call is not None:
        if place.json:
            yield place.call.tool, place.inner, place.member, node
        elif isinstance(node, str):
            for part in split_json(node):
                if not isinstance(part, str):
                    yield from _walk(part, place.open_json(), reader)
