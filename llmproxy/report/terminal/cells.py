"""Text in the cells of a terminal: a Chinese character takes two, a combining accent none."""

from __future__ import annotations

from unicodedata import combining, east_asian_width

_BORDERS = " /:,-"
"""Where a long name is best broken."""


def width(text: str) -> int:
    """Return how many cells a text of printable characters takes."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def cut(text: str, room: int) -> str:
    """Return as much of a text as fits into `room` cells, a cut marked."""
    if width(text) <= room:
        return text
    return text[: _fitting(text, room - 1)].rstrip() + "…" if room > 0 else ""


def cut_middle(text: str, room: int) -> str:
    """Return as much of a name as fits, cut in its middle: long ones begin alike and part at their ends."""
    if width(text) <= room:
        return text
    front = cut(text, (room + 2) // 3)
    end = _fitting(text[::-1], room - width(front))
    return front + text[len(text) - end :]


def fold_text(text: str, room: int, borders: str = _BORDERS) -> list[str]:
    """Return the lines of a text in a column of `room` cells: all of it, broken behind a border where one is near."""
    lines = []
    while width(text) > room:
        most = max(_fitting(text, room), 1)
        near = max(text.rfind(border, 0, most) for border in borders) + 1
        end = near if near > most // 2 else most
        lines.append(text[:end])
        text = text[end:]
    return [*lines, text]


def fill(text: str, room: int, *, right: bool = False) -> str:
    """Return a text with the spaces that it lacks."""
    spaces = " " * (room - width(text))
    return spaces + text if right else text + spaces


def _fitting(text: str, room: int) -> int:
    """Return how many characters stand in `room` cells."""
    taken = 0
    for n, char in enumerate(text):
        taken += _cells(char)
        if taken > room:
            return n
    return len(text)


def _cells(char: str) -> int:
    return 0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1
