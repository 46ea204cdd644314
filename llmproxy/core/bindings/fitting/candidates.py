"""The bound key: which recordings may fit a request at all.

    canonical request -> ``b1:`` + sha256 over what no binding can change

Route, model, headers that count, the order of roles and blocks, the names of tools, and what a user typed where that can hold no bound value
(no separator, no long id: ``What do my 7 notes say?``). Neither circumstances nor slots are in it, so it never has to be derived anew when one
of them is declared or learned. It finds candidates and decides nothing: `fits` does.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from llmproxy.core.bindings.fitting.places import Place, Reader, Zone, find_blocks, iterate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llmproxy.core.keys.normalize import Canonical

TAG = "b1:"
_MAY_HOLD = re.compile(r"[/\\~%]|[^\x00-\x7f]")
"""A text with one of these may hold a path, whose words nobody can tell from others."""
_LONG = re.compile(r"[^\s\"'`<>()\[\]{},;:=|.]*(?:[_-]|\d)[^\s\"'`<>()\[\]{},;:=|.]*")
"""What may be an id: from six characters on it says nothing here."""
_SHORTEST = 6
_COUNTED = ("type", "role", "name")


def bound_key(canonical: Canonical) -> str:
    """Return the bound key of a canonical request."""
    parts = [canonical.provider, canonical.method, canonical.model or "", str(canonical.stream), canonical.kind]
    parts += [text for pair in canonical.headers for text in pair]
    parts += [text for pair in canonical.query for text in pair]
    parts.append(canonical.operation)
    reader = Reader()
    for name, value, place in iterate(canonical.tree):
        parts.append(name)
        if place.zone is not Zone.SYSTEM:
            parts += _outline(value, place, reader)
    if canonical.tree is None:
        parts.append(hashlib.sha256(canonical.body).hexdigest())
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8) + data)
    return TAG + digest.hexdigest()


def _outline(node: object, place: Place, reader: Reader) -> Iterator[str]:
    if isinstance(node, dict):
        place = reader.enter(node, place)
        if place.zone in (Zone.SYSTEM, Zone.RESULT, Zone.ARGUMENTS):
            yield place.zone
            return
        for name in sorted(node):
            member = reader.member(node, name, place)
            yield name
            value = node[name]
            if name in _COUNTED and isinstance(value, str):
                yield value
            elif member.zone not in (Zone.SYSTEM, Zone.RESULT, Zone.ARGUMENTS):
                yield from _outline(value, member, reader)
    elif isinstance(node, list):
        yield str(len(node))
        for n, each in enumerate(node):
            yield from _outline(each, place.at(n), reader)
    elif isinstance(node, str):
        if place.zone is Zone.USER and not _MAY_HOLD.search(node) and not find_blocks(node):
            yield _LONG.sub(lambda found: found[0] if len(found[0]) < _SHORTEST else "*", node)
    elif place.zone is not Zone.USER:
        yield repr(node)
