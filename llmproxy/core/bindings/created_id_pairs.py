"""Pairs of ids that tools created in the recorded run and in this one, one to one, by the name of the volatile field.

A distinctive value is found in any text if no letter or digit is next to it; hex also as a prefix of 7 digits and more
(a model gives 10 digits of a commit's 40). A short one (``7``, ``app``) counts only at members of tools' JSON that name
it: in a sentence it may be any number. But an answer that says ``Created task 7`` or ``git push origin topic`` while
that value differs in this run would be wrong: then the request is a miss that gives the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from llmproxy.core.bindings.run_variables import WORDS, RunVariablePair
from llmproxy.core.bindings.value_forms import UUID_SPELLINGS, is_isolated_in_text, is_letter_or_digit
from llmproxy.core.bindings.volatile_result_fields import matches_volatile_field_path
from llmproxy.core.traffic.json_diff import count_common_prefix
from llmproxy.lazy_regex import late

SHORTEST_PREFIX = 7
_SHORTEST = 6
PREFIXED = frozenset({"hex", "uuid"})


class IdPair(NamedTuple):
    name: str
    kind: str
    recorded: str
    present: str

    @property
    def is_searchable_in_text(self) -> bool:
        """Whether both values are so long and unusual that they occur in no text by chance."""
        return self.kind not in ("integer", "pid", "port") and all(
            len(value) >= _SHORTEST and (self.kind in PREFIXED or not value.isalpha())
            for value in (self.recorded, self.present)
        )


class IdPairConflict(NamedTuple):
    other: str
    """The earlier present value of this recorded one, or the earlier recorded value of this present one."""
    merges: bool = False
    """Whether two recorded values became one; otherwise one became two."""


class IdPairs:
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
        before = self._by_recorded.get((each.name, each.recorded))
        if before is not None and before.present != each.present:
            return IdPairConflict(before.present)
        meant = self._by_present.get((each.name, each.present))
        if meant is not None and meant.recorded != each.recorded:
            return IdPairConflict(meant.recorded, merges=True)
        return None

    def get_present_value(self, name: str, recorded: str) -> str | None:
        known = self._by_recorded.get((name, recorded))
        return None if known is None else known.present

    def add_pair(self, each: IdPair) -> IdPairConflict | None:
        """Add a pair; on a conflict change nothing and return the conflict."""
        if (conflict := self.find_conflict(each)) is not None:
            return conflict
        self._index_pair(each)
        return None

    def record_new_pair(self, each: IdPair) -> bool:
        """Add a pair from a session's next pair of requests; False if its recorded value is known already.

        Recordings of several runs may have one present value: a conflict only within one pair of requests.
        """
        if (each.name, each.recorded) in self._by_recorded:
            return False
        self._index_pair(each)
        return True

    def _index_pair(self, each: IdPair) -> None:
        self._by_recorded[each.name, each.recorded] = each
        self._by_present[each.name, each.present] = each


class RecordedIdOccurrence(NamedTuple):
    start: int
    end: int
    present: str
    identity: IdPair


class RecordedIdTextMatcher:
    def __init__(self, identities: Iterable[IdPair]) -> None:
        self._heads: dict[str, list[IdPair]] = {}
        for each in identities:
            spelled: Iterable[IdPair] = _list_spellings(each) if each.is_searchable_in_text else ()
            if each.kind == "port" and each.recorded != each.present:
                # Only the host name before a port distinguishes it from other numbers.
                pairs = ((f"{host}:{each.recorded}", f"{host}:{each.present}") for host in _HOSTS)
                spelled = (each._replace(recorded=recorded, present=present) for recorded, present in pairs)
            for found in spelled:
                head = found.recorded[:SHORTEST_PREFIX] if found.kind in PREFIXED else found.recorded
                self._heads.setdefault(head, []).append(found)
        self.heads = sorted(self._heads, key=len, reverse=True)
        """Texts of which every text with an id contains at least one."""
        self._pattern = re.compile("|".join(map(re.escape, self.heads))) if self.heads else None

    def find_matches(self, text: str) -> Iterator[RecordedIdOccurrence]:
        if self._pattern is None or not any(head in text for head in self._heads):
            return
        at = 0
        while found := self._pattern.search(text, at):
            token = self._match_at(text, found.start())
            at = found.start() + 1 if token is None else token.end
            if token is not None:
                yield token

    def _match_at(self, text: str, start: int) -> RecordedIdOccurrence | None:
        best: RecordedIdOccurrence | None = None
        for head, identities in self._heads.items():
            if not text.startswith(head, start):
                continue
            for each in identities:
                length = _measure_recorded_id_at(text, start, each)
                if (
                    length
                    and is_isolated_in_text(text, start, start + length)
                    and (best is None or start + length > best.end)
                ):
                    present = each.present[:length] if length < len(each.recorded) else each.present
                    best = RecordedIdOccurrence(start, start + length, present, each)
        return best


_HOSTS = ("127.0.0.1", "localhost", "0.0.0.0", "[::1]")  # noqa: S104 - a name in a text
_SPELLED: Mapping[str, tuple[Callable[[str], str], ...]] = {"hex": (str.lower, str.upper), "uuid": UUID_SPELLINGS}


def _list_spellings(each: IdPair) -> Iterator[IdPair]:
    """Yield a value as created, and then in its other spellings."""
    yield each
    seen = {each.recorded}
    for write in _SPELLED.get(each.kind, ()):
        if (recorded := write(each.recorded)) not in seen:
            seen.add(recorded)
            yield each._replace(recorded=recorded, present=write(each.present))


def contains_recorded_id(each: IdPair, text: str) -> bool:
    """Return whether a text contains the recorded value in any spelling, whatever is next to it."""
    return any(one.recorded in text and one.recorded not in one.present for one in _list_spellings(each))


def _measure_recorded_id_at(text: str, start: int, each: IdPair) -> int:
    """Return the length of the recorded value at a position: all of it or a prefix; 0 if it is not there."""
    if text.startswith(each.recorded, start):
        return len(each.recorded)
    if len(each.recorded) != len(each.present):
        return 0
    length = count_common_prefix(each.recorded, text[start : start + len(each.recorded)])
    return length if SHORTEST_PREFIX <= length <= 40 else 0


class ShortValue(NamedTuple):
    name: str
    recorded: str
    present: str
    tool: str = ""
    path: str = ""
    identity: bool = False
    """Whether a tool created it, so that the recorded value must not be served."""

    @property
    def names(self) -> tuple[str, ...]:
        """Its name, and that without the number by which one of several fields of this name is told apart."""
        return (self.name, _NUMBERED.sub("", self.name)) if self.identity else (self.name,)

    @property
    def is_conspicuous(self) -> bool:
        """Whether it hardly occurs by chance."""
        return len(self.recorded) >= _ODD and any(letter.isdigit() for letter in self.recorded)

    @property
    def comparison_label(self) -> str:
        """Its label in a comparison: another name may have the same value."""
        return f"{self.name}={self.recorded}"

    def equals_present(self, recorded: object, present: object) -> bool:
        expected = convert_to_type_of(recorded, self.present)
        return present == expected and type(present) is type(expected)


def list_changed_short_bindings(pairs: Iterable[RunVariablePair], identities: Iterable[IdPair]) -> list[ShortValue]:
    made = [
        ShortValue(each.name, each.recorded, each.present, identity=True)
        for each in identities
        if not each.is_searchable_in_text and each.recorded != each.present
    ]
    declared = [
        ShortValue(pair.name, pair.recorded.value, pair.present.value, pair.recorded.tool, pair.recorded.path)
        for pair in pairs
        if pair.has_changed and pair.is_too_short and (pair.name not in WORDS or pair.recorded.path)
    ]
    return made + declared  # tools' ids come first: none of their recorded values may remain


def _keep_letters_and_digits(text: str) -> str:
    return "".join(letter for letter in text.lower() if is_letter_or_digit(letter))


def member_matches_variable_name(name: str, member: str, tool: str) -> bool:
    """Return whether a member of a tool's JSON holds values of this name.

    ``task.id`` (or ``task``, ``task_id``) matches ``task_id``, ``taskId``, ``task``, ``task_ids``, and ``id`` if the
    tool's name contains task.
    """
    things, field = split_entity_attribute(name)
    here = _keep_letters_and_digits(member)
    if not things:
        return False
    if any(here in (thing, thing + field, thing + field + "s") for thing in things):
        return True
    return here in (field, field + "s") and any(thing in _keep_letters_and_digits(tool) for thing in things)


def split_entity_attribute(name: str) -> tuple[tuple[str, ...], str]:
    """Return the thing that a value's name contains, as it is and in the singular, and its attribute."""
    entity, dot, attribute = name.rpartition(".")
    if not dot:
        entity, attribute = re.sub(r"(?:_id|Id|_ids)\Z", "", name), "id"
    thing = _keep_letters_and_digits(entity.rpartition(".")[2])
    singular = thing[:-3] + "y" if thing.endswith("ies") else thing.removesuffix("s")  # of a table ``tasks``
    return tuple(dict.fromkeys(filter(None, (thing, singular)))), _keep_letters_and_digits(attribute)


def find_short_values_at_leaf(
    shorts: Iterable[ShortValue], tool: str, path: str, member: str, value: object
) -> list[ShortValue]:
    """Return the short values possible at a leaf of tools' JSON (`path` from ``$``); several if names are alike."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return []
    text = value if isinstance(value, str) else str(value)
    same = [each for each in shorts if each.recorded == text]
    placed = [
        each for each in same if each.path and each.tool in ("", tool) and matches_volatile_field_path(each.path, path)
    ]
    return placed or [each for each in same if any(member_matches_variable_name(x, member, tool) for x in each.names)]


def convert_to_type_of(value: object, text: str) -> object:
    """Return a text in the type of a value; text that replaces a number but is none stays text and never fits."""
    return int(text) if isinstance(value, int) and re.fullmatch(r"-?(?:0|[1-9]\d*)", text) else text


def index_changed_id_pairs(identities: Iterable[IdPair]) -> Mapping[str, IdPair]:
    return {each.recorded: each for each in identities if each.recorded != each.present}


_ODD = 4
"""Minimum characters of a value with a digit that hardly occurs by chance."""
_NUMBERED = late(r"_\d+\Z")
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
    """Return whether a text names the thing by a short value: ``task 7``, ``Task #7``, ``created with id 7``. A number
    of four digits counts anywhere; in an argument of a call, ``git push origin topic``, so does a tool's word.
    """
    value = short.recorded
    named = is_argument and short.identity and len(value) >= _SHORTEST_NAME and not value.isdigit()
    start = text.find(value)
    while start >= 0:
        if _is_own_word(text, start, start + len(value)) and (
            short.is_conspicuous
            or named
            or any(_ends_with_value_name(each, text[max(0, start - _WITHIN) : start]) for each in short.names)
        ):
            return True
        start = text.find(value, start + 1)
    return False


def _is_own_word(text: str, start: int, end: int) -> bool:
    if not is_isolated_in_text(text, start, end):
        return False
    before, after, marks = text[max(0, start - 2) : start], text[end : end + 2], (".", ",", ":")
    fraction = (before[-1:] in marks and before[:1].isdigit()) or (after[:1] in marks and after[1:].isdigit())
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
"""Four digits between its dashes are not the beginning of another id."""
_BEGUN = late(r"(?<![^\W_])(?=[a-f]*[0-9])(?=[0-9]*[a-f])[0-9a-f]{4,6}(?![^\W_])")


def find_abbreviated_id_in_text(changed: Iterable[IdPair], text: str) -> tuple[IdPair, str] | None:
    """Return a recorded id of which a text has too few digits to be found by search, and these digits."""
    begun = {found[0]: found[0] for found in _BEGUN.finditer(_UUID.sub("", text))}
    for each in changed if begun else ():
        if each.kind in PREFIXED and len(each.recorded) > SHORTEST_PREFIX:
            for word in begun:
                if each.recorded.startswith(word) and not each.present.startswith(word):
                    return each, word
    return None
