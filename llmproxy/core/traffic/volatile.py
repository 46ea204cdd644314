"""What changes from run to run by nature: dates, ids, temporary paths, ports.

    (old value, new value) -> ``date/time``, ``uuid``, ... or None

A difference of such a kind is a candidate for a normalisation rule; any other is a real change of the request, and a
wrong hit is worse than a miss, so in doubt the answer is None. The table is in order of precedence: the first kind that
covers the first differing place on both sides names it.
"""

from __future__ import annotations

import re

from llmproxy.core.traffic.common_ends import common_prefix
from llmproxy.late import late

_SCAN = 100_000
"""Characters of a text that are looked at as a whole."""

_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_DAY = r"(?:mon|tues|wednes|thurs|fri|satur|sun)day|\b(?:mon|tue|wed|thu|fri|sat|sun)\b"
_KINDS: tuple[tuple[str, str], ...] = (
    ("uuid", r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"),
    (
        "date/time",
        (
            r"\b\d{4}[-/.]\d\d[-/.]\d\d(?:[t ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?)?(?:z|[+-]\d\d:?\d\d)?\b"
            rf"|(?:(?:{_DAY}),? )?\b(?:{_MONTH}\.? \d{{1,2}}(?:st|nd|rd|th)?,? \d{{4}}|\d{{1,2}}\.? {_MONTH},? \d{{4}})\b"
            rf"|\b\d{{1,2}}[/.]\d{{1,2}}[/.]\d{{2,4}}\b|\b\d\d?:\d\d(?::\d\d(?:\.\d+)?)?(?: ?[ap]m\b)?|{_DAY}"
        ),
    ),
    (
        "temporary path",
        r"(?:/private)?/(?:tmp|var/folders|var/tmp)/[^\s\"'`<>,;)]+|\b[a-z]:\\[^\s\"']*\\temp\\[^\s\"'<>]+",
    ),
    (
        "home or working folder",
        r"/(?:home|users|root|workspaces?|builds?|app|mnt)/[^\s\"'`<>,;)]*|\b[a-z]:\\users\\[^\s\"'<>]*",
    ),
    ("tool-call id", r"\b(?:call|toolu|tooluse|tool_call|fc|ctc)[_-][\w-]{6,}|\bchatcmpl-tool-\w+"),
    ("object id", r"\b(?:resp|msg|run|thread|conv|file|asst|vs|batch|chatcmpl|req|rs|ws|session)[_-][\w-]{8,}"),
    ("port", r"(?<=:)\d{4,5}\b"),
    ("unix timestamp", r"\b1[0-9]{9}(?:\.\d+|\d{3}|\d{6}|\d{9})?\b"),
    ("random hex", r"\b(?:0x)?(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{6,}\b"),
    ("random id", r"\b(?=\w*\d)(?=\w*[a-z])\w{12,}\b"),
    ("counter", r"\d+"),
)
_PATTERNS = tuple((kind, late(pattern, re.IGNORECASE)) for kind, pattern in _KINDS)


def volatile(old: object, new: object) -> str | None:
    """Name what the difference of two values looks like (``date/time``, ``uuid``, ...), or None for a real change.

    A number counts only as a Unix timestamp: temperatures and limits are what the caller asked for. A text counts if
    its first differing place lies inside a value of one kind on both sides; of a text whose numbers alone differ
    ``counter`` is said.
    """
    if isinstance(old, int | float) and isinstance(new, int | float):
        kind, pattern = next(item for item in _PATTERNS if item[0] == "unix timestamp")
        return kind if pattern.fullmatch(f"{old}") and pattern.fullmatch(f"{new}") else None
    if not (isinstance(old, str) and isinstance(new, str)):
        return None
    place = common_prefix(old, new)
    # A window around the place is enough to see a value that contains it.
    start = max(0, place - 200)
    left, right, at = old[start : place + 300], new[start : place + 300], place - start
    for kind, pattern in _PATTERNS:
        sides = _touches(pattern, left, at), _touches(pattern, right, at)
        # Of "step 1" and "step 12" only one side goes on at the differing place: one inside, the other at its end.
        if all(sides) and "inside" in sides:
            return kind if kind != "counter" or _only(pattern, old, new) else None
    return None


def _touches(pattern: re.Pattern[str], text: str, at: int) -> str:
    for match in pattern.finditer(text):
        if match.start() <= at <= match.end():
            return "inside" if at < match.end() else "end"
    return ""


def _only(pattern: re.Pattern[str], old: str, new: str) -> bool:
    return max(len(old), len(new)) <= _SCAN and pattern.sub("0", old) == pattern.sub("0", new)


def is_one(text: str) -> bool:
    """Tell whether `text` is one volatile value and nothing else."""
    return any(pattern.fullmatch(text) for kind, pattern in _PATTERNS if kind != "counter")
