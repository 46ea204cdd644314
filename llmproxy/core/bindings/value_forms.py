r"""All spellings of a run variable in both runs, and the search for recorded values in a text, longest first.

``/tmp/a`` occurs in ``cd /tmp/a/x`` and in ``-I/tmp/a``, and neither in ``/tmp/ab`` nor in ``/private/tmp/a``. Texts
are searched as received: inside of nested JSON a line break is the two letters ``\n``, a colour is ``\u001b[32m``, and
neither is part of a path.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from enum import StrEnum
from functools import partial
from itertools import chain, product
from typing import NamedTuple
from urllib.parse import quote

from llmproxy.core.bindings.run_variables import UUID, RunVariable, RunVariableKind, RunVariablePair
from llmproxy.core.bindings.text_alignment import Border
from llmproxy.core.dialects.messages import STATE_FOLDERS
from llmproxy.lazy_regex import late

_INSIDE_PATH = frozenset("._-~/\\$%+@)}")
_BEFORE_ANSI = late(r"(?:\x1b|\\u001[bB]|\\x1[bB]|\\e|\\033)\[[0-9;]*[A-Za-z]\Z")
_BEFORE_ESCAPE = late(r"(?<!\\)(?:\\\\)*\\+[nrtbf\"']\Z")
_BEFORE_FLAG = late(r"(?:^|[\s\"'=,(\[])-[A-Za-z]\Z")
_ABOVE = late(r"(?<![^\s\"'`=:,(/\\])(?:\.\.\.?|…)[/\\]\Z")
_PARTS = late(r"/[^\s\"'`<>|*?]*/")
_LONGEST_PATH = 400
_LOOK_BACK = 24
_TAIL = frozenset(".-")
_FOLLOWED = frozenset("_~$%+@")
_FIRST_MARK = "\u0300"


def is_letter_or_digit(letter: str) -> bool:
    """Return whether a character is a letter or digit of any script, or a mark on one: ``é`` may be two characters."""
    return letter.isalnum() or (letter >= _FIRST_MARK and unicodedata.category(letter)[0] == "M")


def is_isolated_in_text(text: str, start: int, end: int) -> bool:
    """Return whether no letter or digit is next to text[start:end]: the border of ids (``<uuid>.txt`` contains one)."""
    if start and is_letter_or_digit(text[start - 1]) and not _follows_escape(text, start):
        return False
    return end >= len(text) or not is_letter_or_digit(text[end])


def _follows_escape(text: str, start: int) -> bool:
    before = text[max(0, start - _LOOK_BACK) : start]
    return bool(_BEFORE_ESCAPE.search(before) or _BEFORE_ANSI.search(before))


def has_path_boundaries(text: str, start: int, end: int) -> bool:
    """Return whether the path text[start:end] begins and ends there; a separator may follow, for a path below it."""
    return _is_path_start(text, start) and is_path_end(text, end)


def _is_path_start(text: str, start: int) -> bool:
    if not start:
        return True
    last = text[start - 1]
    if not (is_letter_or_digit(last) or last in _INSIDE_PATH):
        return True
    before = text[max(0, start - _LOOK_BACK) : start]
    if before.endswith("://") or (before.endswith("\\/\\/") and ":" in before[-5:]):
        return True
    return bool(_BEFORE_ANSI.search(before) or _BEFORE_ESCAPE.search(before) or _BEFORE_FLAG.search(before))


def is_path_end(text: str, end: int) -> bool:
    length = len(text)
    at = end
    while at < length and text[at] in _TAIL:  # the full stop of a sentence, not the one in a.bak
        at += 1
    if at >= length:
        return True
    letter = text[at]
    if at > end:
        return not (is_letter_or_digit(letter) or letter in "_/")
    if is_letter_or_digit(letter) or letter in _FOLLOWED:
        return False
    return not (letter == "\\" and text[at : at + 2] == "\\ ")


def has_slug_boundaries(text: str, start: int, end: int) -> bool:
    if start and (is_letter_or_digit(text[start - 1]) or text[start - 1] in "-_") and not _follows_escape(text, start):
        return False
    return end >= len(text) or not (is_letter_or_digit(text[end]) or text[end] in "-_")


def is_slug_after_path_separator(text: str, start: int, end: int) -> bool:
    """Return whether a one-part path's name is a folder in a path: ``-app`` alone is an option."""
    return start > 0 and text[start - 1] in "/\\" and has_slug_boundaries(text, start, end)


def follows_dot_dot_slash(text: str, start: int, end: int) -> bool:
    """Return whether a folder's name follows only ``../``, behind no other folder: ``../project``."""
    return _ABOVE.search(text, max(0, start - 5), start) is not None and is_path_end(text, end)


def covers_whole_lines_or_tag(text: str, start: int, end: int) -> bool:
    """Return whether text[start:end] is the rest of a line, whole lines, or the whole content of a tag."""
    before, after = text[max(0, start - 2) : start], text[end : end + 2]
    begins = not before or before[-1] in "\n>" or before == ": " or before.endswith("\\n")
    ends = not after or after[0] in "\n<\r" or after == "\\n"
    return begins and ends


_MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
           "December")  # fmt: skip
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def format_date_in_all_styles(day: str) -> tuple[str, ...]:
    """Return a day, ``2026-11-22``, in all forms, in the same order for all days. Raises ValueError."""
    on = date.fromisoformat(day)
    month, name, number = _MONTHS[on.month - 1], _DAYS[on.weekday()], on.day
    short, brief = month[:3], name[:3]
    return (
        on.isoformat(),
        f"{name}, {month} {number}, {on.year}",
        f"{brief} {short} {number:02} {on.year}",
        f"{brief} {short} {number} {on.year}",
        f"{brief}, {short} {number}, {on.year}",
        f"{month} {number}, {on.year}",
        f"{short} {number}, {on.year}",
        f"{number} {month} {on.year}",
        f"{number} {short} {on.year}",
        f"{on.month}/{number}/{on.year}",
        f"{on.month:02}/{number:02}/{on.year}",
        f"{on.year}/{on.month:02}/{number:02}",
        f"{month} {on.year}",
    )


class SpellingSearchScope(StrEnum):
    EVERYWHERE = "everywhere"
    NOT_TYPED = "not typed"
    """Not in the user's text: too short to be unambiguous there."""
    AGENT = "agent"
    """Only in the agent's own text: system text, descriptions of tools, its blocks."""


@dataclass(frozen=True, slots=True, eq=False)
class RunValueSpelling:
    """One spelling of a recorded value and the possible present ones; compared by identity."""

    name: str
    recorded: str
    present: tuple[str, ...]
    """Answers are written with the first."""
    border: Border
    reach: SpellingSearchScope = SpellingSearchScope.EVERYWHERE
    in_answers: bool = True
    way: int = 0
    """For a date: which of the ways in which the days of both runs may correspond."""


class ValueFormOccurrence(NamedTuple):
    start: int
    end: int
    forms: tuple[RunValueSpelling, ...]
    """More than one if two names have the same recorded value."""

    @property
    def in_answers(self) -> bool:
        return any(form.in_answers for form in self.forms)


def list_run_value_spellings(pairs: Sequence[RunVariablePair]) -> list[RunValueSpelling]:
    if not any(pair.has_changed for pair in pairs):
        return []
    homes = next((pair for pair in pairs if pair.name == "home" and pair.recorded.kind is RunVariableKind.PATH), None)
    found: list[RunValueSpelling] = []
    for pair in pairs:
        sides = (pair.recorded.value, pair.present.value)
        match pair.recorded.kind:
            case RunVariableKind.PATH:  # even if equal on both sides: /home/kim/work stays while /home/kim changes
                found += _list_path_forms(pair, homes if homes is not pair else None)
            case RunVariableKind.DATE if pair.has_changed:
                found += _list_date_forms(pair)
            case RunVariableKind.BLOCK if pair.has_changed:
                border, scope = covers_whole_lines_or_tag, SpellingSearchScope.AGENT
                for prefix in _LINE_PREFIXES:
                    text, now = (prefix + value.replace("\n", f"\n{prefix}") for value in sides)
                    found.append(RunValueSpelling(pair.name, text, (now,), border, scope, in_answers=False))
            case RunVariableKind.IDENTIFIER if pair.has_changed and pair.present.kind is RunVariableKind.IDENTIFIER:
                for write in UUID_SPELLINGS if all(map(UUID.fullmatch, sides)) else UUID_SPELLINGS[:1]:
                    text, now = (write(each) for each in sides)
                    found.append(RunValueSpelling(pair.name, text, (now,), is_isolated_in_text))
    return found


UUID_SPELLINGS: tuple[Callable[[str], str], ...] = (
    str,
    *(
        lambda value, case=case, mark=mark: case(value).replace("-", mark)
        for case in (str.lower, str.upper)
        for mark in ("-", "", "_")
    ),
)
"""As declared, then as programs write it."""
_LINE_PREFIXES = ("", "git: ")
"""Prefixes that an agent writes before each line of a block; the second is Qwen Code's."""


def _list_date_forms(pair: RunVariablePair) -> Iterator[RunValueSpelling]:
    """Yield the forms of local and UTC day for each one-to-one way in which those of both runs may correspond."""
    sides = [[day for day in dict.fromkeys((each.value, each.other)) if day] for each in (pair.recorded, pair.present)]
    try:
        recorded, present = ([format_date_in_all_styles(day) for day in days] for days in sides)
    except ValueError:
        return
    same = len(recorded) == len(present)
    ways = [[*zip(recorded, present, strict=True)]] if same else [[each] for each in product(recorded, present)]
    for way, days in enumerate(ways):
        for text, now in chain.from_iterable(zip(*each, strict=True) for each in days):
            yield RunValueSpelling(
                pair.name, text, (now,), is_isolated_in_text, SpellingSearchScope.AGENT, in_answers=False, way=way
            )


class _PathSpelling(NamedTuple):
    """One spelling of a path; `write` returns an empty text if a path has none."""

    write: Callable[[str], str]
    border: Border
    reach: SpellingSearchScope = SpellingSearchScope.EVERYWHERE
    in_answers: bool = True


_WAYS = (
    _PathSpelling(lambda path: path, has_path_boundaries),
    _PathSpelling(lambda path: json.dumps(path, ensure_ascii=False)[1:-1], has_path_boundaries),
    _PathSpelling(lambda path: json.dumps(path)[1:-1], has_path_boundaries),
    _PathSpelling(lambda path: json.dumps(json.dumps(path)[1:-1])[1:-1], has_path_boundaries),
    _PathSpelling(lambda path: json.dumps(path)[1:-1].replace("/", "\\/"), has_path_boundaries),
    _PathSpelling(
        lambda path: re.sub(r"([^\w@%+=:,./~-])", r"\\\1", path) if path[:1] == "/" else "", has_path_boundaries
    ),
    _PathSpelling(lambda path: path.replace("'", "'\\''") if path[:1] == "/" else "", has_path_boundaries),
    _PathSpelling(lambda path: re.sub(r'(["$`\\])', r"\\\1", path) if path[:1] == "/" else "", has_path_boundaries),
    _PathSpelling(lambda path: quote(path, safe="/"), has_path_boundaries),
    _PathSpelling(lambda path: quote(path, safe=""), is_isolated_in_text),
    _PathSpelling(
        lambda path: quote(path, safe="").lower() if quote(path, safe="") != path else "", is_isolated_in_text
    ),
    _PathSpelling(lambda path: path.replace("/", "\\") if path[:1] != "/" else "", has_path_boundaries),
    _PathSpelling(lambda path: path.replace("\\", "/") if path[:1] != "/" else "", has_path_boundaries),
    _PathSpelling(lambda path: re.sub(r"[^A-Za-z0-9]", "-", path) if len(path) > 2 else "", has_slug_boundaries),
    _PathSpelling(lambda path: hashlib.sha256(path.encode("utf-8", "surrogatepass")).hexdigest(), is_isolated_in_text),
    _PathSpelling(
        lambda path: posixpath.basename(path.replace("\\", "/")),
        follows_dot_dot_slash,
        SpellingSearchScope.NOT_TYPED,
        in_answers=False,
    ),
)


def _list_nfc_forms(path: str) -> tuple[str, ...]:
    if path.isascii():
        return (path,)
    return tuple(dict.fromkeys((path, unicodedata.normalize("NFC", path), unicodedata.normalize("NFD", path))))


def _strip_slashes(path: str) -> str:
    return path.rstrip("/\\") or path


def _list_plain_and_resolved_path(one: RunVariable) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_strip_slashes(path) for path in (one.value, one.other) if path))


def _list_path_forms(pair: RunVariablePair, homes: RunVariablePair | None) -> Iterator[RunValueSpelling]:
    recorded, present = _list_plain_and_resolved_path(pair.recorded), _list_plain_and_resolved_path(pair.present)
    for n, before in enumerate(recorded):
        now = (present[min(n, len(present) - 1)], *present)
        for way in _WAYS:
            written = (way.write(each) for path in now for each in _list_nfc_forms(path))
            there = tuple(dict.fromkeys(filter(None, written)))
            for spelled in _list_nfc_forms(before) if there else ():
                if text := way.write(spelled):
                    is_folder = way.border is has_slug_boundaries and spelled.rfind("/") == 0
                    border = is_slug_after_path_separator if is_folder else way.border
                    yield RunValueSpelling(pair.name, text, there, border, way.reach, way.in_answers)
    if homes is None:
        return
    sides = ((pair.recorded, homes.recorded), (pair.present, homes.present))
    trimmed = [(_strip_slashes(each.value), _strip_slashes(home.value)) for each, home in sides]
    mine, theirs = ("~" + path[len(home) :] if path.startswith(home + "/") else "" for path, home in trimmed)
    if mine:
        yield RunValueSpelling(pair.name, mine, tuple(text for text in (theirs, *present) if text), has_path_boundaries)
    elif theirs:
        yield RunValueSpelling(pair.name, recorded[0], (present[0], theirs), has_path_boundaries)
    yield from _list_forms_below_hidden_folders(pair, homes)
    between = [_home_relative_to_path(path, home) for path, home in trimmed]
    if between[0] and between[1]:
        there = (between[1], *_list_plain_and_resolved_path(homes.present))
        yield RunValueSpelling(homes.name, between[0], there, has_path_boundaries, SpellingSearchScope.NOT_TYPED)


def _list_forms_below_hidden_folders(pair: RunVariablePair, homes: RunVariablePair) -> Iterator[RunValueSpelling]:
    """Yield the working folder's name in hidden folders below home; in answers only for known agents."""
    recorded, present = (posixpath.basename(_strip_slashes(each.value)) for each in (pair.recorded, pair.present))
    if pair.name != "cwd" or not (recorded and present):
        return
    before, now = _list_plain_and_resolved_path(homes.recorded), _list_plain_and_resolved_path(homes.present)
    border = partial(_is_below_hidden_folder, (*before, *now, "~"))
    for write in (str, _make_slug):
        yield RunValueSpelling(
            pair.name, write(recorded), (write(present),), border, SpellingSearchScope.NOT_TYPED, in_answers=False
        )
        for folder in STATE_FOLDERS:
            there = tuple(f"{home}/{folder}/{write(present)}" for home in now)
            for home in before:
                yield RunValueSpelling(pair.name, f"{home}/{folder}/{write(recorded)}", there, has_path_boundaries)


def _make_slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or name


def _is_below_hidden_folder(homes: Sequence[str], text: str, start: int, end: int) -> bool:
    for home in homes:
        at = text.rfind(f"{home}/.", max(0, start - _LONGEST_PATH), start)
        if at >= 0 and _PARTS.fullmatch(text, at + len(home), start) and _is_path_start(text, at):
            return is_path_end(text, end)
    return False


def _home_relative_to_path(path: str, home: str) -> str:
    """Return home relative to a path, if that names a folder: dots alone may occur anywhere."""
    if not (path.startswith("/") and home.startswith("/")):
        return ""
    relative = posixpath.relpath(home, path)
    return relative if relative.startswith("../") and relative.strip("./") else ""


class RunValueSpellingSearch:
    def __init__(self, forms: Iterable[RunValueSpelling]) -> None:
        """Group forms by recorded text; merge forms of one name with the same border and reach."""
        self.by_text: dict[str, tuple[RunValueSpelling, ...]] = {}
        for form in forms:
            self.by_text[form.recorded] = _merge_form(self.by_text.get(form.recorded, ()), form)
        self.stems = _list_prefilter_texts(tuple(self.by_text))
        """The fewest texts of which every text with a recorded value contains at least one."""
        below: dict[str, list[str]] = {stem: [] for stem in self.stems}
        for text in self.by_text:
            below[next(stem for stem in self.stems if stem in text)].append(text)
        self._texts_by_stem = {stem: tuple(each) for stem, each in below.items()}
        self._least = min(map(len, self.stems), default=0)

    def find_matches(
        self, text: str, allowed: Callable[[RunValueSpelling, int], bool] | None = None
    ) -> list[ValueFormOccurrence]:
        """Return the recorded values in a text, in order, longest first; `allowed` checks a form at a position."""
        if len(text) < self._least:
            return []
        # One search for each value that may occur: a single pattern of all values costs twenty times as much.
        found: list[tuple[int, int, str]] = []
        for stem in self.stems:
            if stem in text:
                for each in self._texts_by_stem[stem]:
                    start = text.find(each)
                    while start >= 0:
                        found.append((start, -len(each), each))
                        start = text.find(each, start + 1)
        if not found:
            return []
        found.sort()
        spots: list[ValueFormOccurrence] = []
        at = 0
        for start, length, recorded in found:
            if start < at:
                continue
            end = start - length
            forms = tuple(
                form
                for form in self.by_text[recorded]
                if form.border(text, start, end) and (allowed is None or allowed(form, start))
            )
            if forms:
                spots.append(ValueFormOccurrence(start, end, forms))
                at = end
        return spots


def _merge_form(before: tuple[RunValueSpelling, ...], form: RunValueSpelling) -> tuple[RunValueSpelling, ...]:
    for n, each in enumerate(before):
        if each.name == form.name and each.border is form.border and (each.reach, each.way) == (form.reach, form.way):
            present = tuple(dict.fromkeys((*each.present, *form.present)))
            both = replace(each, present=present, in_answers=each.in_answers or form.in_answers)
            return (*before[:n], both, *before[n + 1 :])
    return (*before, form)


def _list_prefilter_texts(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the fewest texts of which every text with any of these contains at least one: a quick prefilter."""
    stems: list[str] = []
    for text in sorted(texts, key=len):
        if not any(stem in text for stem in stems):
            stems.append(text)
    return tuple(stems)
