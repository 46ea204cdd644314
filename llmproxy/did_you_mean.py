"""Suggestions for misspelt words: the one source of every "did you mean"."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

CLOSE = 0.6
"""Least similarity of two words, from 0 to 1 (`difflib`); short words with one typing error are at 0.8."""


def nearest_word(word: str, known: Iterable[str], close: float = CLOSE) -> str | None:
    from difflib import get_close_matches  # 2 ms of a start in which every word is known

    return next(iter(get_close_matches(word, list(known), 1, close)), None)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    near = nearest_word(word, known)
    return f"; did you mean {near!r}?" if near else ""


def suggest_name(word: str, known: Iterable[str], *, listing: bool = True) -> str:
    """Return ``did you mean `x`?``, else the list of known names as a hint; empty if the list is not wanted."""
    names = list(known)
    folded = {normalize_name_spelling(name): name for name in names}
    if (near := nearest_word(normalize_name_spelling(word), folded, 0.7)) is not None:
        return f"did you mean `{folded[near]}`?{_describe_non_ascii_characters(word) if folded[near].isascii() else ''}"
    return "known here: " + ", ".join(sorted(set(names))[:30]) if names and listing else ""


def normalize_name_spelling(name: str) -> str:
    """Normalise a name: dueDate, due_date and DUE_DATE are equal."""
    return name.replace("_", "").replace("-", "").casefold()


def _describe_non_ascii_characters(word: str) -> str:
    odd = [
        f"{unicodedata.name(each, '').lower() or 'a character'} (U+{ord(each):04X})"
        for each in word
        if not each.isascii()
    ]
    return f" It holds {', '.join(odd[:3])}." if odd else ""
