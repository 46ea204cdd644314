"""The bound key: which recordings may fit a request at all.

    canonical request -> ``b1:`` + sha256 over what no binding can change

Route, model, headers that count, the order of roles and blocks, the names of tools, and what a user typed before
anything that can hold a bound value (a path, a long id: ``What do my 7 notes say?``). Neither run variables nor
volatile fields are in it, so it never has to be derived anew. It finds candidates; `request_comparison` decides.

    this run's request -> `LastUserText`: whether a recorded one asks something else, or None where only comparing tells

A suite of a thousand questions that begin with a path has a thousand candidates for each of them. Where no tool
answered yet, nothing but a path or a declared id can differ in what was typed last, and the bindings say where.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from llmproxy.core.bindings.leaf_places import ROLES, Zone, iterate_request_members
from llmproxy.core.bindings.run_bindings import Bindings
from llmproxy.core.bindings.volatile_fields import OUTSIDE
from llmproxy.core.dialects.messages import find_agent_written_spans
from llmproxy.core.keys.normalize import Canonical
from llmproxy.lazy_regex import late

TAG = "b1:"
_SIGNS = late(r"[/\\~%\x1b]")
"""One of them is in every path."""
_INSIDE = late(r"(?:[^\W_](?<!-[A-Za-z])|(?<!-)[A-Za-z]{2}:/?)\Z")
"""Behind this a separator begins no path: in ``docs/x`` and ``https://``, unlike ``-I/x`` and ``file:///x``."""
_DRIVE = late(r"(?:(?<![^\W_])[A-Za-z]:?){1,3}\Z")
_LONG = late(r"(?<!\S)(?:-\S*|\S*(?:[_-]|\d)\S*)")
"""What may hold an id, or be a folder's name made of a path: from six characters on it says nothing here."""
_SHORTEST = 6
_COUNTED = ("type", "role", "name", "model")
_AGENTS = ("tool_result", "_output", "_call", "tool_use", "thinking", "reasoning")
"""How the kinds of items and blocks end that nobody typed: what they say is left to the comparison."""
_BESIDE = frozenset({"toolResult", "functionResponse", "function_response", "toolUse", "functionCall",
    "function_call", "function",
                     "arguments", "args", "parameters", "id", "call_id", "tool_call_id", "tool_use_id"})  # fmt: skip
"""Members beside what was typed, likewise."""


def build_bound_key(canonical: Canonical) -> str:
    parts = [canonical.provider, canonical.method, canonical.model or "", str(canonical.stream), canonical.kind]
    parts += [text for pair in canonical.headers for text in pair]
    parts += [text for pair in canonical.query for text in pair]
    parts.append(canonical.operation)
    for name, value, place in iterate_request_members(canonical.tree):
        parts.append(name)
        if place.zone is Zone.USER:
            parts += _iter_turns(value)
        elif place.zone is not Zone.SYSTEM:
            parts += _iter_parameters(name, value)
    return TAG + hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _iter_parameters(name: str, node: object) -> Iterator[str]:
    """Yield what parameters say: names, numbers, and no texts but those that name a thing."""
    if isinstance(node, dict):
        for each in sorted(node):
            yield each
            yield from _iter_parameters(each, node[each])
    elif isinstance(node, list):
        yield str(len(node))
        for one in node:
            yield from _iter_parameters("", one)
    elif not isinstance(node, str):
        yield repr(node)
    elif name in _COUNTED:
        yield node


def _iter_turns(node: object) -> Iterator[str]:
    """Yield who spoke in which order, and what users typed."""
    if isinstance(node, list):
        yield str(len(node))
        for each in node:
            yield from _iter_turns(each)
    elif isinstance(node, str):
        if not find_agent_written_spans(node):
            yield _LONG.sub(_blank_id_like_word, node[: _find_path_start(node)])
    elif isinstance(node, dict):
        yield from _list_turn_parts(node)
    else:
        yield repr(node)


def _find_path_start(text: str) -> int:
    """Return where the first path may begin, whose end nobody can tell; the length of a text without one."""
    for sign in _SIGNS.finditer(text):
        at = sign.start()
        if sign[0] == "/" and _INSIDE.search(text, max(0, at - 4), at):
            continue
        drive = _DRIVE.search(text, max(0, at - 6), at)
        return drive.start() if drive else at
    return len(text)


def _blank_id_like_word(found: re.Match[str]) -> str:
    return found[0] if len(found[0]) < _SHORTEST and "-" not in found[0] else "*"


def _list_turn_parts(node: dict[str, object]) -> Iterator[str]:
    role, kind = node.get("role"), node.get("type")
    if isinstance(role, str):
        yield role
        if ROLES.get(role, Zone.USER) is not Zone.USER:
            return
    if isinstance(kind, str):
        yield kind
        if kind.endswith(_AGENTS):
            return
    for name in sorted(node):
        yield name
        if name not in _BESIDE and name not in _COUNTED:
            yield from _iter_turns(node[name])


_RESULTS = re.compile(rb'tool_result|_output"|"role":"(?:tool|function|TOOL)"|unction_?[rR]esponse|toolResult')
_LISTS = ("messages", "input", "contents")
_MOST = 100_000


class UserTextEnds(NamedTuple):
    """The literal ends of a recorded text; `tail` None where all of it is literal."""

    head: str
    tail: str | None


class LastUserText:
    """The last thing that was typed in one request."""

    def __init__(self, text: str, known: dict[tuple[int, int], UserTextEnds | None]) -> None:
        self._text, self._known = text, known

    def may_equal_recorded(self, id_: int, recorded: Canonical, table: Bindings) -> bool:
        """Return whether a recording may say the same under these bindings; yes where that is not clear."""
        which = id_, id(table)
        if which not in self._known:
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known[which] = _read_literal_ends(recorded, table)
        ends = self._known[which]
        if ends is None:
            return True
        if ends.tail is None:
            return self._text == ends.head
        return self._text.startswith(ends.head) and self._text.endswith(ends.tail)


def read_last_user_text(present: Canonical, known: dict[tuple[int, int], UserTextEnds | None]) -> LastUserText | None:
    """Return what was typed last; None where a tool answered, or where it is not clear who wrote it."""
    text = _last_message_text(present)
    return None if text is None else LastUserText(text, known)


def _read_literal_ends(recorded: Canonical, table: Bindings) -> UserTextEnds | None:
    text = _last_message_text(recorded)
    if text is None or table.text_slots.get(OUTSIDE):
        return None
    spots = table.forms_in_user_text.find_matches(text)
    return UserTextEnds(text[: spots[0].start], text[spots[-1].end :]) if spots else UserTextEnds(text, None)


def _last_message_text(canonical: Canonical) -> str | None:
    tree = canonical.tree
    if not isinstance(tree, dict) or _RESULTS.search(canonical.body):
        return None
    said = next((tree[name] for name in _LISTS if name in tree), None)
    if isinstance(said, list) and said and isinstance(said[-1], dict):
        turn: Mapping[str, object] = said[-1]
        said = turn.get("content", turn.get("parts")) if turn.get("role") == "user" else None
    if isinstance(said, list):
        texts = [each.get("text") if isinstance(each, dict) else None for each in said]
        said = "\0".join(each for each in texts if isinstance(each, str)) if texts and None not in texts else None
    return said if isinstance(said, str) and not find_agent_written_spans(said) else None
