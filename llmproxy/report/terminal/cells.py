"""Text in the cells of a terminal: a Chinese character takes two, a combining accent none."""

from __future__ import annotations

from unicodedata import combining, east_asian_width

__all__ = ["cut", "fill", "width"]


def width(text: str) -> int:
    """Return how many cells a text of printable characters takes."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def cut(text: str, room: int) -> str:
    """Return as much of a text as fits into `room` cells, a cut marked."""
    if width(text) <= room:
        return text
    if room <= 0:
        return ""
    taken, kept = 1, []  # the mark
    for char in text:
        taken += _cells(char)
        if taken > room:
            break
        kept.append(char)
    return "".join(kept).rstrip() + "…"


def fill(text: str, room: int, *, right: bool = False) -> str:
    """Return a text with the spaces that it lacks."""
    spaces = " " * (room - width(text))
    return spaces + text if right else text + spaces


def _cells(char: str) -> int:
    return 0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1
