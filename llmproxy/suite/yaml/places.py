"""Where something stands in a file, and what is wrong there: every complaint about a suite names file, line and column.

A file is read to its end before anything is said: `Problems` gathers, and :meth:`Problems.stop` raises one `SuiteProblems` that tells
them all, in the order of the files. Mappings and lists of a YAML file (`Map`, `List`) are ordinary dicts and lists that know where
each of their members was written; whoever holds one can say so at run time as well.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from llmproxy.amounts import format_count
from llmproxy.errors import SuiteError

_SHOWN = 50
"""Problems that one error tells; after so many, a reader wants to repair the first."""


class YamlPlace(NamedTuple):
    """A place in a file; line and column count from 1, a column is a character."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, or (of a warning) doubtful."""

    place: YamlPlace | None
    """None for what has no place: a file that is not there."""
    message: str
    hint: str = ""

    def __str__(self) -> str:
        where = f"{self.place}: " if self.place else ""
        return f"{where}{self.message}" + (f" ({self.hint})" if self.hint else "")


class SuiteProblems(SuiteError):
    """All problems of the files that were read."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        """Tell the problems, one a line, in the order of the files."""
        self.problems = tuple(problems)
        lines = [str(problem) for problem in self.problems[:_SHOWN]]
        if len(self.problems) > _SHOWN:
            lines.append(f"... and {format_count(len(self.problems) - _SHOWN, 'more problem')}")
        super().__init__("\n".join(lines))


class Problems:
    """Gathers what is wrong; the same complaint about the same place is kept once."""

    def __init__(self) -> None:
        """Start with nothing wrong."""
        self._seen: dict[Problem, None] = {}

    def add(self, place: YamlPlace | None, message: str, hint: str = "") -> None:
        self._seen[Problem(place, message, hint)] = None

    def extend(self, problems: Iterable[Problem]) -> None:
        """Keep several problems."""
        self._seen.update(dict.fromkeys(problems))

    def stop(self) -> None:
        """Raise what was gathered, if anything was."""
        if self._seen:
            raise SuiteProblems(self)

    def __iter__(self) -> Iterator[Problem]:
        found = list(self._seen)
        files = {name: i for i, name in reversed([*enumerate(p.place.file for p in found if p.place)])}
        return iter(
            sorted(
                found,
                key=lambda p: (files.get(p.place.file, 0), p.place.line, p.place.column) if p.place else (-1, 0, 0),
            )
        )

    def __len__(self) -> int:
        return len(self._seen)


class Map(dict[str, Any]):
    """A mapping of a YAML file. Its keys are texts as they were written."""

    __slots__ = ("keys_at", "place", "values_at")

    def __init__(self, place: YamlPlace) -> None:
        """Begin an empty mapping at a place."""
        super().__init__()
        self.place = place
        self.keys_at: dict[str, YamlPlace] = {}
        self.values_at: dict[str, YamlPlace] = {}

    def put(self, key: str, value: object, key_at: YamlPlace, value_at: YamlPlace) -> None:
        """Set a member together with where it was written."""
        self[key] = value
        self.keys_at[key], self.values_at[key] = key_at, value_at

    def twin(self) -> Map:
        """Return a shallow copy that knows the same places."""
        copy = Map(self.place)
        copy.update(self)
        copy.keys_at.update(self.keys_at)
        copy.values_at.update(self.values_at)
        return copy


class List(list[Any]):
    """A sequence of a YAML file."""

    __slots__ = ("items_at", "place")

    def __init__(self, place: YamlPlace) -> None:
        """Begin an empty sequence at a place."""
        super().__init__()
        self.place = place
        self.items_at: list[YamlPlace] = []

    def put(self, value: object, at: YamlPlace) -> None:
        """Add an item together with where it was written."""
        self.append(value)
        self.items_at.append(at)


def place_of(node: object, member: Hashable = None, *, key: bool = False) -> YamlPlace | None:
    """Return where a mapping or list stands, or one of its members (its key with `key`); None if nobody knows."""
    if isinstance(node, Map):
        if isinstance(member, str) and member in node.values_at:
            return node.keys_at[member] if key else node.values_at[member]
        return node.place
    if isinstance(node, List):
        return node.items_at[member] if isinstance(member, int) and 0 <= member < len(node.items_at) else node.place
    return None


def locate(root: object, path: Iterable[object], *, key: bool = False) -> YamlPlace | None:
    """Return where the value at `path` stands; steps that lead nowhere (the names of a union's branches) are skipped.

    With `key` the place is that of the last step's key.
    """
    node, found = root, place_of(root)
    for step in path:
        if isinstance(node, dict) and step in node:
            found = place_of(node, str(step), key=key) or found
            node = node[step]
        elif isinstance(node, list) and isinstance(step, int) and 0 <= step < len(node):
            found = place_of(node, step) or found
            node = node[step]
    return found
