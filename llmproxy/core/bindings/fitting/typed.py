"""What a user typed last, looked at before anything else: of many recordings that may fit, most say something else there.

    this run's request -> `Typed`, which tells at little cost that a recorded request asks something else; or None where only the comparison can

A suite of a thousand questions that begin with a path has a thousand candidates for each of them. Where no tool answered yet, nothing but a
path or a declared id can differ in what was typed, and the bindings say where in the recorded text one stands.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from llmproxy.core.bindings.values.slots import OUTSIDE
from llmproxy.core.bindings.values.table import Bindings
from llmproxy.core.dialects.blocks import find_blocks
from llmproxy.core.keys.normalize import Canonical

_RESULTS = re.compile(rb'tool_result|_output"|"role":"(?:tool|function|TOOL)"|unction_?[rR]esponse|toolResult')
_LISTS = ("messages", "input", "contents")
_MOST = 100_000


class TypedEnds(NamedTuple):
    """The literal ends of a recorded text; `tail` None where all of it is literal."""

    head: str
    tail: str | None


class Typed:
    """The last thing that was typed in one request."""

    def __init__(self, text: str, known: dict[tuple[int, int], TypedEnds | None]) -> None:
        """Take this run's text, and what is known of recorded ones."""
        self._text, self._known = text, known

    def may_be(self, id_: int, recorded: Canonical, table: Bindings) -> bool:
        """Tell whether a recording may say the same under these bindings; yes where that is not clear."""
        which = id_, id(table)
        if which not in self._known:
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known[which] = _read_ends(recorded, table)
        ends = self._known[which]
        if ends is None:
            return True
        if ends.tail is None:
            return self._text == ends.head
        return self._text.startswith(ends.head) and self._text.endswith(ends.tail)


def read_typed(present: Canonical, known: dict[tuple[int, int], TypedEnds | None]) -> Typed | None:
    """Return what was typed last; None where a tool answered, or where it is not clear who wrote it."""
    text = _last(present)
    return None if text is None else Typed(text, known)


def _read_ends(recorded: Canonical, table: Bindings) -> TypedEnds | None:
    text = _last(recorded)
    if text is None or table.text_slots.get(OUTSIDE):
        return None
    spots = table.typed_forms.find(text)
    return TypedEnds(text[: spots[0].start], text[spots[-1].end :]) if spots else TypedEnds(text, None)


def _last(canonical: Canonical) -> str | None:
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
    return said if isinstance(said, str) and not find_blocks(said) else None
