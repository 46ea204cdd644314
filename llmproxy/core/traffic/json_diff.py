"""Differences of two JSON trees for display, and the values that differ in each run (``date/time``, ``uuid``).

Lists are aligned first: an inserted message is one difference. Work is bounded for any input (`_NODES`, `_ALIGN`);
beyond a bound the result is coarser (a whole subtree), never wrong. In doubt a difference is a real change, because a
wrong hit is worse than a miss.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import islice

from llmproxy.errors import printable
from llmproxy.lazy_regex import late

_SCAN = 100_000
"""Maximum characters of a text that is compared as a whole."""

_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_DAY = r"(?:mon|tues|wednes|thurs|fri|satur|sun)day|\b(?:mon|tue|wed|thu|fri|sat|sun)\b"
_KINDS: tuple[tuple[str, str], ...] = (
    ("uuid", r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"),
    (
        "date/time",
        (
            r"\b\d{4}[-/.]\d\d[-/.]\d\d(?:[t ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?)?(?:z|[+-]\d\d:?\d\d)?\b"
            rf"|(?:(?:{_DAY}),? )?\b(?:{_MONTH}\.? \d{{1,2}}(?:st|nd|rd|th)?,? \d{{4}}|\d{{1,2}}\.? {_MONTH},? "
            rf"\d{{4}})\b"
            rf"|\b\d{{1,2}}[/.]\d{{1,2}}[/.]\d{{2,4}}\b"
            rf"|(?<![\d.])\d\d?:\d\d(?::\d\d(?:\.\d+)?)?(?!\d)(?: ?[ap]m\b)?|{_DAY}"
        ),
    ),
    ("temporary path",
     r"(?:/private)?/(?:tmp|var/folders|var/tmp)/[^\s\"'`<>,;)]+|\b[a-z]:\\[^\s\"']*\\temp\\[^\s\"'<>]+"),
    ("home or working folder",
     r"/(?:home|users|root|workspaces?|builds?|app|mnt)/[^\s\"'`<>,;)]*|\b[a-z]:\\users\\[^\s\"'<>]*"),
    ("tool-call id", r"\b(?:call|toolu|tooluse|tool_call|fc|ctc)[_-][\w-]{6,}|\bchatcmpl-tool-\w+"),
    ("object id", r"\b(?:resp|msg|run|thread|conv|file|asst|vs|batch|chatcmpl|req|rs|ws|session)[_-][\w-]{8,}"),
    ("port", r"(?<=:)\d{4,5}\b"),
    ("unix timestamp", r"\b1[0-9]{9}(?:\.\d+|\d{3}|\d{6}|\d{9})?\b"),
    ("random hex", r"\b(?:0x)?(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{6,}\b"),
    ("random id", r"\b(?=\w*\d)(?=\w*[a-z])\w{12,}\b"),
    ("counter", r"\d+"),
)  # fmt: skip
_PATTERNS = tuple((kind, late(pattern, re.IGNORECASE)) for kind, pattern in _KINDS)
_NUMBER = late(r"\d+")


def get_volatile_difference_kind(old: object, new: object) -> str | None:
    """Return the kind of a volatile difference (``date/time``, ``uuid``, ...), or None for a real change.

    A number is volatile only as a Unix timestamp, a text only if its first differing position is inside a value of one
    kind on both sides; ``counter``: texts that differ only in numbers.
    """
    if isinstance(old, int | float) and isinstance(new, int | float):
        kind, pattern = next(item for item in _PATTERNS if item[0] == "unix timestamp")
        return kind if pattern.fullmatch(f"{old}") and pattern.fullmatch(f"{new}") else None
    if not (isinstance(old, str) and isinstance(new, str)):
        return None
    place = count_common_prefix(old, new)
    # A window around the position is enough to see a value that contains it.
    start = max(0, place - 200)
    left, right, at = old[start : place + 300], new[start : place + 300], place - start
    for kind, pattern in _PATTERNS:
        sides = _locate_position_in_match(pattern, left, at), _locate_position_in_match(pattern, right, at)
        # In "step 1" and "step 12" only one side continues at the differing position: one inside, the other at its end.
        if all(sides) and "inside" in sides:
            return kind if kind != "counter" or _differ_only_in_pattern(pattern, old, new) else None
    return None


def _locate_position_in_match(pattern: re.Pattern[str], text: str, at: int) -> str:
    for match in pattern.finditer(text):
        if match.start() <= at <= match.end():
            return "inside" if at < match.end() else "end"
    return ""


def _differ_only_in_pattern(pattern: re.Pattern[str], old: str, new: str) -> bool:
    return max(len(old), len(new)) <= _SCAN and pattern.sub("0", old) == pattern.sub("0", new)


def differ_only_in_numbers(old: object, new: object) -> bool:
    if isinstance(old, str) and isinstance(new, str):
        return _differ_only_in_pattern(_NUMBER, old, new)
    return {type(old), type(new)} <= {int, float}


def is_volatile_value(text: str) -> bool:
    return any(pattern.fullmatch(text) for kind, pattern in _PATTERNS if kind != "counter")


def count_common_prefix[T: (str, bytes)](a: T, b: T) -> int:
    """Return the number of equal characters (bytes) at the start of `a` and `b`."""
    low, high = 0, min(len(a), len(b))
    while low < high:  # binary search: slices are compared in C
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def count_common_suffix[T: (str, bytes)](a: T, b: T, limit: int) -> int:
    """Return the number of equal characters (bytes) at the end, at most `limit`, which must fit the shorter one."""
    return count_common_prefix(a[len(a) - limit :][::-1], b[len(b) - limit :][::-1])


_NODES = 50_000
_ALIGN = 400
_PAIR = 24
_DEPTH = 64
_BEFORE = 28
"""Characters shown before the first differing position of a long text."""

_CHOSEN = ("model", "version", "role", "type")
"""Members whose value is chosen even if it looks like a date (``gpt-4o-2024-08-06``)."""

SHOWN = 90
"""Maximum characters shown of one value."""


@dataclass(frozen=True, slots=True)
class Difference:
    path: str
    """JSON path, ``$.messages[2].content``; indices refer to the new tree, for removed items to the old one."""
    old: str
    """Old value as JSON, shortened, one printable line; empty if there was none."""
    new: str
    looks: str | None = None
    """Result of :func:`get_volatile_difference_kind`."""
    where: str = ""
    """Position in words, if a dialect has words for it: ``system prompt, line 12``."""
    only_numbers: bool = False

    @property
    def place(self) -> str:
        return self.where or self.path

    def to_dict(self) -> dict[str, str | None]:
        told = {"path": self.path, "old": self.old, "new": self.new, "looks": self.looks}
        return told | ({"where": self.where} if self.where else {})


ABSENT = object()

Raw = tuple[str, object, object]
"""Path, old value, new value; ABSENT for a missing one."""


def list_differences(old: object, new: object, limit: int = 20) -> list[Difference]:
    return [build_difference(*each) for each in list_unequal_values(old, new, limit)]


def list_unequal_values(old: object, new: object, limit: int) -> list[Raw]:
    return list(islice(_TreeComparison().compare("$", old, new, 0), limit))


def dump_for_comparison(value: object) -> str:
    """Return a text that is equal only for the same JSON (unlike ``==``: True is not 1)."""
    try:
        return json.dumps(value, sort_keys=True, default=repr)
    except (TypeError, ValueError, RecursionError):
        return repr(type(value)) + str(id(value))


def format_path(steps: Iterable[str | int]) -> str:
    return f"${''.join(f'[{step}]' if isinstance(step, int) else f'.{step}' for step in steps)}"


def build_member_path(path: str, name: object) -> str:
    text = str(name)
    return f"{path}.{text}" if re.fullmatch(r"[A-Za-z_][\w-]*", text) else f"{path}[{json.dumps(text)}]"


class _TreeComparison:
    def __init__(self) -> None:
        self.left = _NODES

    def compare(self, path: str, old: object, new: object, depth: int) -> Iterator[Raw]:
        self.left -= 1
        if _are_equal(old, new):
            return
        if self.left > 0 and depth < _DEPTH:
            if isinstance(old, dict) and isinstance(new, dict):
                yield from self.compare_members(path, old, new, depth)
                return
            if isinstance(old, list) and isinstance(new, list):
                yield from self.compare_items(path, old, new, depth)
                return
        yield path, old, new

    def compare_members(self, path: str, old: dict[str, object], new: dict[str, object], depth: int) -> Iterator[Raw]:
        for name, value in new.items():
            if name in old:
                yield from self.compare(build_member_path(path, name), old[name], value, depth + 1)
            else:
                yield build_member_path(path, name), ABSENT, value
        for name, value in old.items():
            if name not in new:
                yield build_member_path(path, name), value, ABSENT

    def compare_items(self, path: str, old: list[object], new: list[object], depth: int) -> Iterator[Raw]:
        for i, j in _pair_items(old, new):
            if j is None and i is not None:
                yield f"{path}[{i}]", old[i], ABSENT
            elif i is None and j is not None:
                yield f"{path}[{j}]", ABSENT, new[j]
            elif i is not None and j is not None:
                yield from self.compare(f"{path}[{j}]", old[i], new[j], depth + 1)


def build_difference(path: str, old: object, new: object, where: str = "") -> Difference:
    if isinstance(old, str) and isinstance(new, str):
        start = max(0, count_common_prefix(old, new) - _BEFORE)
        left, right = _quote_text(old, start), _quote_text(new, start)
    else:
        left, right = ("" if value is ABSENT else format_clipped_json(value) for value in (old, new))
    looks = classify_volatile_difference(path, old, new)
    return Difference(path, left, right, looks, where, only_numbers=differ_only_in_numbers(old, new))


def classify_volatile_difference(path: str, old: object, new: object) -> str | None:
    """Return the kind of a volatile difference; None at a chosen value."""
    if isinstance(old, str) and isinstance(new, str) and path.endswith(_CHOSEN):
        return None
    return get_volatile_difference_kind(old, new)


def _are_equal(old: object, new: object) -> bool:
    try:
        # The quick test comes first; alone it would treat True and 1, which are different requests, as equal.
        return old is new or (old == new and dump_for_comparison(old) == dump_for_comparison(new))
    except RecursionError:
        return False


def _pair_items(old: list[object], new: list[object]) -> Iterator[tuple[int | None, int | None]]:
    if max(len(old), len(new)) > _ALIGN:
        yield from _pair_side_by_side(0, len(old), 0, len(new))
        return
    matcher = SequenceMatcher(None, [*map(dump_for_comparison, old)], [*map(dump_for_comparison, new)], autojunk=False)
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            continue
        if tag == "replace" and i2 - i1 != j2 - j1 and max(i2 - i1, j2 - j1) <= _PAIR:
            for i, j in _align_items(old[i1:i2], new[j1:j2]):
                yield (None if i is None else i1 + i), (None if j is None else j1 + j)
        else:
            yield from _pair_side_by_side(i1, i2, j1, j2)


def _pair_side_by_side(i1: int, i2: int, j1: int, j2: int) -> Iterator[tuple[int | None, int | None]]:
    both = min(i2 - i1, j2 - j1)
    yield from ((i1 + n, j1 + n) for n in range(both))
    yield from ((None, j) for j in range(j1 + both, j2))
    yield from ((i, None) for i in range(i1 + both, i2))


def _align_items(old: list[object], new: list[object]) -> list[tuple[int | None, int | None]]:
    """Pair the most similar items (edit distance; an unpaired item costs 1, a pair 0..2)."""
    rows, columns = len(old), len(new)
    cost = [[float(i + j) for j in range(columns + 1)] for i in range(rows + 1)]
    for i in range(1, rows + 1):
        for j in range(1, columns + 1):
            pair = cost[i - 1][j - 1] + _estimate_distance(old[i - 1], new[j - 1])
            cost[i][j] = min(pair, cost[i - 1][j] + 1, cost[i][j - 1] + 1)
    result: list[tuple[int | None, int | None]] = []
    i, j = rows, columns
    while i or j:
        if i and j and cost[i][j] == cost[i - 1][j - 1] + _estimate_distance(old[i - 1], new[j - 1]):
            i, j = i - 1, j - 1
            result.append((i, j))
        elif j and cost[i][j] == cost[i][j - 1] + 1:
            j -= 1
            result.append((None, j))
        else:
            i -= 1
            result.append((i, None))
    return result[::-1]


def _estimate_distance(old: object, new: object) -> float:
    if isinstance(old, dict) and isinstance(new, dict):
        if any(old.get(name) != new.get(name) for name in ("role", "type")):
            return 1.9
        names = old.keys() | new.keys()
        unequal: int = sum(old.get(name) != new.get(name) for name in names)
        return unequal / max(1, len(names)) * 1.8
    if isinstance(old, str) and isinstance(new, str):
        return 1.8 * (1 - count_common_prefix(old, new) / max(1, len(old), len(new)))
    return 1.5 if type(old) is type(new) else 1.9


def clip(text: str, width: int = SHOWN) -> str:
    text = printable(text[: width + 1])
    return text if len(text) <= width else text[: width - 1] + "…"


def clip_json(value: object, width: int) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        text = repr(value)
    return clip(text, width)


def format_clipped_json(value: object, width: int = SHOWN) -> str:
    if isinstance(value, str):
        return _quote_text(value, 0, width)
    if isinstance(value, bytes):
        return clip(repr(value[:width]), width)
    try:
        text = json.dumps(value, ensure_ascii=False, default=repr)
    except (TypeError, ValueError, RecursionError):
        text = f"<{type(value).__name__}>"
    return clip(text, width)


def _quote_text(text: str, start: int, width: int = SHOWN) -> str:
    start = 0 if start < 8 or len(text) + 2 <= width else start
    cut = text[start : start + width]
    body = printable(cut.replace("\\", "\\\\").replace('"', '\\"'))
    more = start + len(cut) < len(text) or len(body) > width
    return f'"{"…" if start else ""}{body[:width]}{"…" if more else ""}"'
