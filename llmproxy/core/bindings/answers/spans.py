"""Where the values of a JSON text stand in it, and texts with other ones at these places."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from llmproxy.core.bindings.answers.channels import Path, Piece
from llmproxy.late import late


class RewrittenPart(NamedTuple):
    """One value to be replaced in a text."""

    start: int
    end: int
    new: str
    name: str


def format_path(path: Path) -> str:
    """Return a path as people write it: ``$.input.path[0]``."""
    return f"${''.join(f'[{step}]' if isinstance(step, int) else f'.{step}' for step in path)}"


def apply_changes(text: str, changes: Iterable[RewrittenPart]) -> str:
    """Return the text with its changes, which are in order and do not overlap."""
    parts, last = [], 0
    for change in changes:
        parts += [text[last : change.start], change.new]
        last = change.end
    return "".join([*parts, text[last:]])


def value_at(value: object, path: tuple[str | int, ...]) -> object:
    """Return what stands at a path that is there."""
    for step in path:
        value = value[step]  # type: ignore[index]
    return value


def block_of(channel: tuple[object, ...]) -> object:
    """Return what of a channel names the block that it is in."""
    return (
        (channel[0], channel[1]) if channel[0] == "block" else (channel[:3] if channel[0] == "choice" else channel[-3:])
    )


_SCALAR = late(
    r'(?P<string>"(?:[^"\\]|\\.)*")(?P<called>\s*:)?|-?\d+(?P<other>\.\d+(?:[eE][+-]?\d+)?|[eE][+-]?\d+)?|(?P<word>true|false|null)'
)


def members_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return an object; a ValueError where two members have one name, so that its texts cannot be told by their places."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("two members of one name")
    return found


def pair_leaves(text: str, pieces: Iterable[Piece]) -> Iterator[tuple[int, int, Piece | None]]:
    """Pair the strings and whole numbers of JSON text with where they stand in its tree; None for what a member is called."""
    left = (piece for piece in pieces if not piece.is_name)
    for found in _SCALAR.finditer(text):
        if found["called"] is not None:
            yield found.start(), found.end("string"), None
        elif found["other"] is None and found["word"] is None:
            if (piece := next(left, None)) is None:
                return
            yield found.start(), found.end(), piece


def narrow(text: str, start: int, end: int, value: str, inner: list[RewrittenPart], new: str) -> list[RewrittenPart]:
    """Return changes to a JSON string as narrow as they can be, so that a stream's other pieces stay; else the whole string."""
    raw = text[start + 1 : end - 1]
    if raw != value:  # escapes: positions in the value are not those in the text
        shift = _positions(raw)
        if shift is None:
            return [RewrittenPart(start, end, new, inner[0].name)]
    else:
        shift = None
    changes = []
    for each in inner:
        a, b = (each.start, each.end) if shift is None else (shift[each.start], shift[each.end])
        written = json.dumps(each.new, ensure_ascii=text.isascii())[1:-1]
        changes.append(RewrittenPart(start + 1 + a, start + 1 + b, written, each.name))
    return changes


_ESCAPE = late(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.|[^\\]", re.DOTALL)


def _positions(raw: str) -> list[int] | None:
    """Return where each character of a JSON string begins in its escaped text, and where the last ends."""
    found = [match.start() for match in _ESCAPE.finditer(raw)]
    return [*found, len(raw)]
