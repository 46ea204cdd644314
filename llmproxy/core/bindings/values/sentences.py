"""Short values in a sentence: where one is named so that it can hardly be anything else, though it cannot be exchanged there.

    Created task 7.     git push origin topic     see 98e1e

Nobody can tell ``7`` from another number, so it is never bound in a text. But an answer that says ``task 7`` of what is task 1007 in this run is
wrong: better no answer, and a word about it.
"""

from __future__ import annotations

from collections.abc import Iterable

from llmproxy.core.bindings.values.borders import stands_alone
from llmproxy.core.bindings.values.identities import PREFIXED, SHORTEST_PREFIX, Identity, Short, things_of
from llmproxy.late import late

_ODD = 4
"""Characters from which on a value with a digit in it is hardly another one by chance."""
_SHORTEST_NAME = 3
_WITHIN = 60
_WORD_BEFORE = late(r"[^\W_]+")
_CLAUSE = late(r"[.!?;\n]\s")
_ID_WORDS = frozenset({"id", "ids", "key", "no", "nr", "number", "numbers", "num"})
_FILLERS = frozenset(
    {"with", "is", "has", "the", "a", "an", "as", "its", "of", "and", "or", "named", "called", "it", "under", "to"}
)
_DONE = frozenset(
    {
        "created",
        "made",
        "added",
        "inserted",
        "got",
        "opened",
        "saved",
        "stored",
        "registered",
        "returned",
        "assigned",
        "new",
    }
)


def is_named_in(text: str, short: Short, *, is_argument: bool) -> bool:
    """Tell whether a text names the thing by a short value: ``task 7``, ``Task #7``, ``created with id 7``, a number of four digits anywhere.

    In an argument of a call, ``git push origin topic``, a word that a tool made is meant wherever it stands.
    """
    value = short.recorded
    odd = len(value) >= _ODD and any(letter.isdigit() for letter in value)
    named = is_argument and short.identity and len(value) >= _SHORTEST_NAME and not value.isdigit()
    start = text.find(value)
    while start >= 0:
        if _stands_as_word(text, start, start + len(value)) and (
            odd or named or _says(short.name, text[max(0, start - _WITHIN) : start])
        ):
            return True
        start = text.find(value, start + 1)
    return False


def _stands_as_word(text: str, start: int, end: int) -> bool:
    if not stands_alone(text, start, end):
        return False
    before, after = text[max(0, start - 2) : start], text[end : end + 2]
    fraction = (before[-1:] in (".", ",", ":") and before[:1].isdigit()) or (
        after[:1] in (".", ",", ":") and after[1:].isdigit()
    )
    return not fraction and before[-1:] not in ("$", "-") and after[:1] != "%"


def _says(name: str, before: str) -> bool:
    """Tell whether the words before a value say what it is."""
    words = [word.lower() for word in _WORD_BEFORE.findall(_CLAUSE.split(before)[-1])]
    numbered = before[-1:] == "#"
    while words and (words[-1] in _ID_WORDS or words[-1] in _FILLERS or words[-1].isdigit()):
        numbered |= words.pop() in _ID_WORDS
    things = things_of(name)[0]
    return (bool(words) and any(words[-1] in (thing, thing + "s") for thing in things)) or (
        numbered and (not words or words[-1] in _DONE)
    )


_UUID = late(r"(?<![^\W_])[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![^\W_])")
"""Four digits between its dashes begin no other id."""
_BEGUN = late(r"(?<![^\W_])(?=[a-f]*[0-9])(?=[0-9]*[a-f])[0-9a-f]{4,6}(?![^\W_])")


def find_begun(changed: Iterable[Identity], text: str) -> tuple[Identity, str] | None:
    """Return the recorded value of which a text names fewer digits than are told from other words, and these digits."""
    begun = {found[0]: found[0] for found in _BEGUN.finditer(_UUID.sub("", text))}
    for each in changed if begun else ():
        if each.kind in PREFIXED and len(each.recorded) > SHORTEST_PREFIX:
            for word in begun:
                if each.recorded.startswith(word) and not each.present.startswith(word):
                    return each, word
    return None
