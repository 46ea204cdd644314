"""Identities: values that tools made, one to one between the recorded run and this one, by their volatile field's name.

    V (recorded) <-> W (present), each of one volatile field; two that became one, or one that became two, conflict

A distinctive value is found in any text between what is no letter or digit, hex also as a prefix of 7 digits and more
(a model names 10 of a commit's 40). A short one (``7``, ``app``) may stand anywhere by chance, so it counts only at
members of tools' JSON that name it.

Nobody can tell ``7`` from another number in a sentence, so it is never bound there. But an answer that says
``Created task 7``, ``git push origin topic`` or ``see 98e1e`` of what is another in this run is wrong: better no
answer, and a word about it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from llmproxy.core.bindings.run_variables import WORDS, RunVariablePair
from llmproxy.core.bindings.value_forms import is_isolated, is_word_character
from llmproxy.core.bindings.volatile_fields import matches_path
from llmproxy.core.traffic.json_diff import count_common_prefix
from llmproxy.lazy_regex import late

SHORTEST_PREFIX = 7
_SHORTEST = 6
"""Characters of the shortest value that is looked for in any text."""
PREFIXED = frozenset({"hex", "uuid"})


class IdPair(NamedTuple):
    name: str
    """Of the volatile field."""
    kind: str
    recorded: str
    present: str

    @property
    def is_distinct(self) -> bool:
        """Whether it can be looked for in any text."""
        return is_distinct_value(self.kind, self.recorded) and is_distinct_value(self.kind, self.present)


def is_distinct_value(kind: str, value: str) -> bool:
    """Return whether a value is long and odd enough to be nothing else where it stands in a text."""
    if len(value) < _SHORTEST or kind in ("integer", "port"):
        return False
    return kind in PREFIXED or not value.isalpha()


class IdPairConflict(NamedTuple):
    """Why a pair cannot be added."""

    other: str
    """What the recorded value was before, or what the present one stood for."""
    merges: bool = False
    """Two recorded values became one; else one became two."""


class IdPairs:
    """What stands for what in one session, or in one pair of requests."""

    def __init__(self, known: Iterable[IdPair] = ()) -> None:
        self._by_recorded: dict[tuple[str, str], IdPair] = {}
        self._by_present: dict[tuple[str, str], IdPair] = {}
        for each in known:
            self.record_new_pair(each)

    def __iter__(self) -> Iterator[IdPair]:
        yield from self._by_recorded.values()

    def __len__(self) -> int:
        return len(self._by_recorded)

    def find_conflict(self, each: IdPair) -> IdPairConflict | None:
        """Return why a pair does not go with the others; None if it does."""
        before = self._by_recorded.get((each.name, each.recorded))
        if before is not None and before.present != each.present:
            return IdPairConflict(before.present)
        meant = self._by_present.get((each.name, each.present))
        if meant is not None and meant.recorded != each.recorded:
            return IdPairConflict(meant.recorded, merges=True)
        return None

    def find_present(self, name: str, recorded: str) -> str | None:
        """Return what stands for a recorded value of a volatile field now."""
        known = self._by_recorded.get((name, recorded))
        return None if known is None else known.present

    def add_pair(self, each: IdPair) -> IdPairConflict | None:
        """Take a pair in; where it conflicts nothing changes, and the conflict is returned."""
        if (conflict := self.find_conflict(each)) is not None:
            return conflict
        self._index_pair(each)
        return None

    def record_new_pair(self, each: IdPair) -> bool:
        """Take in what a session's next pair of requests said; False where it is known, or contradicts what is.

        A cassette may hold recordings of several runs, so that several recorded values stand for one of today: only
        within one pair of requests is that a conflict.
        """
        if (each.name, each.recorded) in self._by_recorded:
            return False
        self._index_pair(each)
        return True

    def _index_pair(self, each: IdPair) -> None:
        self._by_recorded[each.name, each.recorded] = each
        self._by_present[each.name, each.present] = each


class IdPairMatch(NamedTuple):
    """An identity, or a prefix of one, in a text."""

    start: int
    end: int
    present: str
    identity: IdPair


class IdPairSearch:
    """Distinctive identities, ready to be looked for in texts."""

    def __init__(self, identities: Iterable[IdPair]) -> None:
        """Take those that can be found in any text."""
        self._heads: dict[str, list[IdPair]] = {}
        for each in identities:
            for found in (
                _add_port_hosts(each) if each.kind == "port" else _list_spellings(each) if each.is_distinct else []
            ):
                self._heads.setdefault(_get_searchable_prefix(found), []).append(found)
        self.heads = sorted(self._heads, key=len, reverse=True)
        """Of which one is in every text that holds an identity."""
        self._pattern = re.compile("|".join(map(re.escape, self.heads))) if self.heads else None

    def find_matches(self, text: str) -> Iterator[IdPairMatch]:
        """Yield where recorded identities stand, from left to right."""
        if self._pattern is None or not any(head in text for head in self._heads):
            return
        at = 0
        while found := self._pattern.search(text, at):
            token = self._match_at(text, found.start())
            at = found.start() + 1 if token is None else token.end
            if token is not None:
                yield token

    def _match_at(self, text: str, start: int) -> IdPairMatch | None:
        best: IdPairMatch | None = None
        for head, identities in self._heads.items():
            if not text.startswith(head, start):
                continue
            for each in identities:
                length = _measure_id_match(text, start, each)
                if length and is_isolated(text, start, start + length) and (best is None or start + length > best.end):
                    best = IdPairMatch(
                        start,
                        start + length,
                        each.present[:length] if length < len(each.recorded) else each.present,
                        each,
                    )
        return best


_HOSTS = ("127.0.0.1", "localhost", "0.0.0.0", "[::1]")  # noqa: S104 - a name in a text


def _add_port_hosts(port: IdPair) -> list[IdPair]:
    """Return a port as any text has it: behind this machine's name, which alone tells it from other numbers."""
    if port.recorded == port.present:
        return []
    return [IdPair(port.name, port.kind, f"{host}:{port.recorded}", f"{host}:{port.present}") for host in _HOSTS]


_SPELLED: Mapping[str, tuple[Callable[[str], str], ...]] = {
    "hex": (str.lower, str.upper),
    "uuid": tuple(
        lambda value, case=case, mark=mark: case(value).replace("-", mark)  # type: ignore[misc]
        for case in (str.lower, str.upper)
        for mark in ("-", "", "_")
    ),
}
"""By kind: the ways in which programs write one value."""


def _list_spellings(each: IdPair) -> Iterator[IdPair]:
    """Yield a value as it was made, and in every other way in which it may be written."""
    yield each
    seen = {each.recorded}
    for write in _SPELLED.get(each.kind, ()):
        if (recorded := write(each.recorded)) not in seen:
            seen.add(recorded)
            yield each._replace(recorded=recorded, present=write(each.present))


def contains_recorded_id(each: IdPair, text: str) -> bool:
    """Return whether the recorded value stands in a text, however it is written and whatever stands beside it."""
    return any(one.recorded in text and one.recorded not in one.present for one in _list_spellings(each))


def _get_searchable_prefix(each: IdPair) -> str:
    return each.recorded[:SHORTEST_PREFIX] if each.kind in PREFIXED else each.recorded


def _measure_id_match(text: str, start: int, each: IdPair) -> int:
    """Return how much of the recorded value stands there: all of it, or a prefix up to a border."""
    if text.startswith(each.recorded, start):
        return len(each.recorded)
    if len(each.recorded) != len(each.present):
        return 0
    length = count_common_prefix(each.recorded, text[start : start + len(each.recorded)])
    return length if SHORTEST_PREFIX <= length <= 40 else 0


# -- short values ------------------------------------------------------------------------------------------------------


class ShortValue(NamedTuple):
    """A short value, which counts only at members of tools' JSON that name it."""

    name: str
    recorded: str
    present: str
    tool: str = ""
    path: str = ""
    identity: bool = False
    """Made by a tool, so that the recorded value must not come back."""

    @property
    def comparison_label(self) -> str:
        """What a comparison calls it: the value alone may be another one's as well."""
        return f"{self.name}={self.recorded}"


def list_short_values(pairs: Iterable[RunVariablePair], identities: Iterable[IdPair]) -> list[ShortValue]:
    made = [
        ShortValue(each.name, each.recorded, each.present, identity=True)
        for each in identities
        if not each.is_distinct and each.recorded != each.present
    ]
    declared = [
        ShortValue(pair.name, pair.recorded.value, pair.present.value, pair.recorded.tool, pair.recorded.path)
        for pair in pairs
        if pair.has_changed and pair.is_too_short and (pair.name not in WORDS or pair.recorded.path)
    ]
    return made + declared  # what a tool made this time comes first: of that nothing recorded may be left


def _keep_letters_and_digits(text: str) -> str:
    return "".join(letter for letter in text.lower() if is_word_character(letter))


def is_member_of_value(name: str, member: str, tool: str) -> bool:
    """Return whether a member of a tool's JSON is where a value of this name stands.

    ``task.id`` (or ``task``, ``task_id``) stands in ``task_id``, ``taskId``, ``task``, ``task_ids``; in ``id`` where
    the tool's name says task.
    """
    things, field = split_entity_attribute(name)
    here = _keep_letters_and_digits(member)
    if not things:
        return False
    if any(here in (thing, thing + field, thing + field + "s") for thing in things):
        return True
    return here in (field, field + "s") and any(thing in _keep_letters_and_digits(tool) for thing in things)


def split_entity_attribute(name: str) -> tuple[tuple[str, ...], str]:
    """Return what a value's name says: the thing in its forms, and which of its members."""
    entity, dot, attribute = name.rpartition(".")
    if not dot:
        entity, attribute = re.sub(r"(?:_id|Id|_ids)\Z", "", name), "id"
    return _list_word_forms(_keep_letters_and_digits(entity.rpartition(".")[2])), _keep_letters_and_digits(attribute)


def _list_word_forms(thing: str) -> tuple[str, ...]:
    """Return a word as it is and in the singular: a table is called ``tasks``, a member ``task_id``."""
    singular = thing[:-3] + "y" if thing.endswith("ies") else thing.removesuffix("s")
    return tuple(dict.fromkeys(each for each in (thing, singular) if each))


def short_values_at(shorts: Iterable[ShortValue], tool: str, path: str, member: str, value: object) -> list[ShortValue]:
    """Return the short values possible at a leaf of tools' JSON (`path` from ``$``); several where names are alike."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return []
    text = value if isinstance(value, str) else str(value)
    same = [each for each in shorts if each.recorded == text]
    placed = [each for each in same if each.path and each.tool in ("", tool) and matches_path(each.path, path)]
    return placed or [each for each in same if is_member_of_value(each.name, member, tool)]


def cast_to_type_of(value: object, text: str) -> object:
    """Return a text in the type of a value; text that is no number, where one stood, stays text and fits nothing."""
    if isinstance(value, int) and re.fullmatch(r"-?(?:0|[1-9]\d*)", text):
        return int(text)
    return text


def list_changed_ids(identities: Iterable[IdPair]) -> Mapping[str, IdPair]:
    """Return the identities whose recorded value must not come back, by that value."""
    return {each.recorded: each for each in identities if each.recorded != each.present}


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
        "created", "made", "added", "inserted", "got", "opened", "saved", "stored", "registered", "returned",
        "assigned", "new",
    }
)  # fmt: skip


def mentions_short_value(text: str, short: ShortValue, *, is_argument: bool) -> bool:
    """Return whether a text names the thing by a short value: ``task 7``, ``Task #7``, ``created with id 7``, a number
    of four digits anywhere.

    In an argument of a call, ``git push origin topic``, a word that a tool made is meant wherever it stands.
    """
    value = short.recorded
    odd = len(value) >= _ODD and any(letter.isdigit() for letter in value)
    named = is_argument and short.identity and len(value) >= _SHORTEST_NAME and not value.isdigit()
    start = text.find(value)
    while start >= 0:
        if _is_own_word(text, start, start + len(value)) and (
            odd or named or _ends_with_value_name(short.name, text[max(0, start - _WITHIN) : start])
        ):
            return True
        start = text.find(value, start + 1)
    return False


def _is_own_word(text: str, start: int, end: int) -> bool:
    if not is_isolated(text, start, end):
        return False
    before, after = text[max(0, start - 2) : start], text[end : end + 2]
    fraction = (before[-1:] in (".", ",", ":") and before[:1].isdigit()) or (
        after[:1] in (".", ",", ":") and after[1:].isdigit()
    )
    return not fraction and before[-1:] not in ("$", "-") and after[:1] != "%"


def _ends_with_value_name(name: str, before: str) -> bool:
    words = [word.lower() for word in _WORD_BEFORE.findall(_CLAUSE.split(before)[-1])]
    numbered = before[-1:] == "#"
    while words and (words[-1] in _ID_WORDS or words[-1] in _FILLERS or words[-1].isdigit()):
        numbered |= words.pop() in _ID_WORDS
    things = split_entity_attribute(name)[0]
    return (bool(words) and any(words[-1] in (thing, thing + "s") for thing in things)) or (
        numbered and (not words or words[-1] in _DONE)
    )


_UUID = late(r"(?<![^\W_])[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![^\W_])")
"""Four digits between its dashes begin no other id."""
_BEGUN = late(r"(?<![^\W_])(?=[a-f]*[0-9])(?=[0-9]*[a-f])[0-9a-f]{4,6}(?![^\W_])")


def find_partial_id(changed: Iterable[IdPair], text: str) -> tuple[IdPair, str] | None:
    """Return the recorded value of which a text names fewer digits than are told from other words, and these digits."""
    begun = {found[0]: found[0] for found in _BEGUN.finditer(_UUID.sub("", text))}
    for each in changed if begun else ():
        if each.kind in PREFIXED and len(each.recorded) > SHORTEST_PREFIX:
            for word in begun:
                if each.recorded.startswith(word) and not each.present.startswith(word):
                    return each, word
    return None
