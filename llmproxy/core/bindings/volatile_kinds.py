"""The kind of a value that differs between two texts, if it looks as if a tool had created it.

    recorded text, present text, where they diverge -> the whole value at that position and its kind, or None

A pattern matches more than its kind means (any number is a decimal), so the text before the value counts too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from llmproxy.core.bindings.volatile_field_matching import IN_TEXT, fits_kind
from llmproxy.lazy_regex import late

LONGEST_BEFORE = 400
_ORDER = ("uuid", "time", "hex", "duration", "port", "pid", "count", "integer", "decimal", "name", "word")
"""Kinds, the most specific first."""
_SHORTEST_HEX = 6
_UNIT = late(r"\s?(?:ns|us|µs|ms|milliseconds?|s|secs?|seconds?|mins?|minutes?|h|hours?)(?![^\W_])")
_NAMES_BEFORE = {
    "pid": late(r"\b(?:pid|pgid|ppid|process|proc(?:ess)?_?id|session(?:_id)?)\b[^\n]{0,12}$", re.IGNORECASE),
    "port": late(r"(?:\bport\b[\W_]{0,3}|localhost:|127\.0\.0\.1:|0\.0\.0\.0:|\]:)$", re.IGNORECASE),
    "count": late(r"\b(?:total|count|tokens?|size|bytes?|lines?|chars|length|files?)\b[^\n]{0,12}$", re.IGNORECASE),
}
"""Texts before values of kinds that only their names tell."""
_NAMES_DURATION = late(r"\b(?:took|elapsed|duration|time|real|user|sys)\b[^\n]{0,12}$", re.IGNORECASE)
_NAMED = late(r"([A-Za-z_]\w*)[\"'\s:=>]{0,4}$")
_TOOK = late(
    r"(?i:duration|elapsed|latency|took)"
    r"|(?:_(?:[mun]?s|secs?|seconds|millis|milliseconds)|[a-z](?:Ms|Secs?|Seconds|Millis))$"
)
_IS_SET = late(r"(?i)time_?out|limit|max|min|ttl|interval|delay|retry|wait|expir|budget|window|period|after|until")
"""Words of durations that a person configured, not measured."""
_NAMES_TIME = late(r"(?:time|date|stamp|epoch|since|until|expires|(?<![^\W_])(?:ts|at))\b[^\n\w]{0,6}$", re.IGNORECASE)
_NAMES_COMMIT = late(r"^\[\S+(?: \(root-commit\))? $")
"""The text before the commit in ``git commit``'s output: 1 of 700 pairs of commits has no letter in 7 digits."""
_TEMPORARY = "tmp"
"""Name of the folder in which every name is chosen by its creator."""
_ROLLED = late(r"[A-Za-z0-9]{6,}")


class ValuePair(NamedTuple):
    kind: str
    start: int
    recorded: str
    present: str


def find_value_pair(
    recorded: str, at: int, present: str, there: int, taken: Sequence[tuple[int, int, str]] = ()
) -> ValuePair | None:
    """Return the volatile value at which two texts first differ, at `at` and `there`; None if it is not volatile.

    Before both positions the texts are equal. `taken` are bound places of the recorded text (start, end, name).
    """
    temporary = {end + 1 for _, end, name in taken if name == _TEMPORARY and recorded[end : end + 1] in ("/", "\\")}
    for kind in _ORDER:
        for start, end in _find_kind_spans_touching(kind, recorded, at):
            same = at - start
            if (
                any(start < stop and begin < end for begin, stop, _ in taken)
                or recorded[start:at] != present[there - same : there]
                or (match := IN_TEXT[kind].match(present, there - same)) is None
            ):
                continue
            mine, theirs = recorded[start:end], match[0]
            before = recorded[max(0, start - LONGEST_BEFORE) : start].rpartition("\n")[2]
            behind = recorded[end : end + 20], present[match.end() :][:20]
            likely = _are_plausible(kind, mine, theirs, before, behind) or (kind == "name" and start in temporary)
            if mine != theirs and likely:
                return ValuePair(kind, start, mine, theirs)
    return None


def find_pair_kind(recorded: str, present: str, before: str = "", *, number: bool = False) -> str | None:
    """Return the kind of two differing whole values; None if they do not look volatile. `number`: JSON numbers."""
    for kind in (each for each in _ORDER if not (number and each == "hex")):
        if (
            fits_kind(kind, recorded)
            and fits_kind(kind, present)
            and _are_plausible(kind, recorded, present, before, ("", ""))
        ):
            return kind
    return None


def _find_kind_spans_touching(kind: str, text: str, at: int) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of values of a kind that touch a position, at word borders, longest first."""
    start = max(text.rfind("\n", 0, at) + 1, at - 200)
    end = text.find("\n", at)
    end = len(text) if end < 0 else end
    found = []
    for begin in range(start, at + 1):
        # A duration may begin inside of a word: 0m1.234s.
        if begin > start and is_in_word(text, begin) and not (kind == "duration" and text[begin - 1] in "mh"):
            continue
        match = IN_TEXT[kind].match(text, begin, min(end, begin + 300))
        if match is not None and match.end() >= at:
            found.append((begin, match.end()))
    yield from sorted(found, key=lambda each: each[0] - each[1])


def is_in_word(text: str, at: int) -> bool:
    return text[at - 1].isalnum() and text[at].isalnum() if at < len(text) else False


def _are_plausible(kind: str, recorded: str, present: str, before: str, behind: tuple[str, str]) -> bool:
    """Return whether two values are really of a kind: its pattern alone matches too much."""
    both = recorded, present
    match kind:
        case "uuid" | "time":
            return kind == "uuid" or not all(each.isdigit() for each in both) or bool(_NAMES_TIME.search(before))
        case "hex":
            alike = len(recorded) == len(present) >= _SHORTEST_HEX
            committed = bool(_NAMES_COMMIT.search(before)) and all(each.startswith("]") for each in behind)
            # Digits alone are a number, which counts only behind its name; letters alone are words.
            mixed = any(c.isdigit() for c in recorded + present) and any(c.isalpha() for c in recorded + present)
            return alike and (mixed or (committed and len(recorded) > _SHORTEST_HEX))
        case "duration":
            united = all(_UNIT.search(each) for each in both) or all(_UNIT.match(each) for each in behind)
            named = _NAMED.search(before)
            took = named is not None and _TOOK.search(named[1]) is not None and not _IS_SET.search(named[1])
            return united or took or (bool(_NAMES_DURATION.search(before)) and any("." in each for each in both))
        case "port" | "pid" | "count":
            return bool(_NAMES_BEFORE[kind].search(before))
        case "name":
            return _is_generated_name(recorded) and _is_generated_name(present)
        case "word":
            return False
        case _:
            return True


def _is_generated_name(name: str) -> bool:
    """Return whether a name has a generated part: mixed case, or letters mixed with digits."""
    return any(
        (any(c.islower() for c in part[1:]) and any(c.isupper() for c in part[1:]))
        or (any(c.isdigit() for c in part) and any(c.isalpha() for c in part))
        for part in _ROLLED.findall(name)
    )
