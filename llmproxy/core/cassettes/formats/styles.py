"""How a JSON text is written: the styles in which programs write JSON, by name.

    bytes -> (tree, name of its style), if writing the tree in that style gives just these bytes back     `style_of`
    tree, name of a style -> bytes                                                                        `written`

A body whose style is known may be shown as a tree and is still exact. One that no style gives back (duplicate members,
``1.00``, escaped slashes, ``NaN``) has none, and must be kept as text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

MAX_BYTES = 1 << 20
"""Largest body that is looked at: nobody reads a longer one as a tree."""
_DEPTH = 40


@dataclass(frozen=True, slots=True)
class _Style:
    item: str
    colon: str
    indent: int | None = None
    ascii: bool = False
    end: str = ""


def _table() -> dict[str, _Style]:
    shapes = {
        "compact": _Style(",", ":"),
        "spaced": _Style(", ", ": "),
        "indent1": _Style(",", ": ", 1),
        "indent2": _Style(",", ": ", 2),
        "indent4": _Style(",", ": ", 4),
    }
    table: dict[str, _Style] = {}
    for name, shape in shapes.items():
        for ascii_ in (False, True):
            for end, said in (("", ""), ("\n", "-newline")):
                full = name + ("-ascii" if ascii_ else "") + said
                table[full] = _Style(shape.item, shape.colon, shape.indent, ascii_, end)
    return table


STYLES = _table()
"""``compact`` is JavaScript's and most SDKs', ``spaced-ascii`` Python's own, ``indent2`` OpenAI's and Google's."""


def write_tree(tree: object, style: str) -> bytes:
    """Write a tree. Raises KeyError for an unknown style, ValueError and TypeError for what is not JSON."""
    how = STYLES[style]
    text = json.dumps(
        tree, ensure_ascii=how.ascii, indent=how.indent, separators=(how.item, how.colon), allow_nan=False
    )
    return (text + how.end).encode("utf-8", "strict")


def style_of(body: bytes) -> tuple[object, str] | None:
    """Return tree and style of a JSON object or array; None if no style gives these very bytes back."""
    if not 2 <= len(body) <= MAX_BYTES or body[:1] not in (b"{", b"["):
        return None
    try:
        tree = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None
    if _deep(tree):
        return None
    for name in _candidates(body):
        try:
            if write_tree(tree, name) == body:
                return tree, name
        except (ValueError, TypeError, RecursionError):
            return None
    return None


def _no_constant(name: str) -> NoReturn:
    message = f"{name} is not JSON"
    raise ValueError(message)


def _candidates(body: bytes) -> Iterator[str]:
    """Yield the styles that this text may be in; at most a few."""
    end = "-newline" if body.endswith(b"\n") else ""
    text = body.rstrip(b"\n")
    if b"\n" in text:
        indent = len(text[2:20]) - len(text[2:20].lstrip(b" "))
        shapes = [f"indent{indent}"] if f"indent{indent}" in STYLES else []
    elif b'": ' in text or b", " in text:
        shapes = ["spaced", "compact"]
    else:
        shapes = ["compact", "spaced"]
    escapes = ("", "-ascii") if text.isascii() else ("",)
    yield from (shape + escape + end for escape in escapes for shape in shapes)


def _deep(tree: object) -> bool:
    level = [tree]
    for _ in range(_DEPTH):
        level = [child for node in level for child in _children(node)]
        if not level:
            return False
    return True


def _children(node: object) -> list[object]:
    values = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return [value for value in values if isinstance(value, dict | list)]


def by_length(tree: object, length: str | None) -> bytes:
    """Write a tree whose own bytes are lost: in the style that has the length which was recorded, else compact.

    Raises ValueError and TypeError for what is not JSON.
    """
    best = write_tree(tree, "compact")
    if length is None or str(len(best)) == length:
        return best
    return next((text for style in STYLES if str(len(text := write_tree(tree, style))) == length), best)
