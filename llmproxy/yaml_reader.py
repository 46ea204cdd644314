"""YAML 1.2 reader that keeps the place of every value, for suites, their data, cassettes, faults and personas.

PyYAML parses; values are built here from its events, because its constructors follow YAML 1.1: there ``no`` is false,
``12:30`` a number, and the last of two equal keys wins silently. Here (core schema,
https://yaml.org/spec/1.2.2/#103-core-schema) only true and false are booleans, and equal keys are refused. Size, depth,
and the values that aliases add are limited: no file may stop the program. Errors are collected, and raised at the end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from llmproxy.amount_formatting import format_count
from llmproxy.did_you_mean import suggest_name
from llmproxy.errors import SuiteError
from llmproxy.file_io import read_bounded_bytes

MAX_BYTES = 1_000_000
"""Maximum bytes of a file: about 4,000 scenarios, which take a second to read."""
MAX_DEPTH = 64
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_TYPED_FIRST_CHARACTERS = frozenset("~nNtTfF+-.0123456789")
"""First characters of plain values that are no texts."""
_NULL = re.compile(r"~|null|Null|NULL|")
_TRUE, _FALSE = re.compile(r"true|True|TRUE"), re.compile(r"false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]+")
_OTHER_INT = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"([-+]?)\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_DIGITS = 400
"""Maximum digits of a number; Python refuses to parse 4,300."""
_TAG = "tag:yaml.org,2002:"
_SHOWN = 50
_EXPLAINED = (
    ("mapping values are not allowed", "a text that holds `: ` needs quotes around it"),
    ("could not find expected ':'", "a key needs a colon and a space after it; a text over several lines needs quotes"),
    ("did not find expected key", "check the indentation of this line and the one before, and the quotes"),
    ("did not find expected '-' indicator", "check the indentation of this line and the one before"),
    ("did not find expected ',' or", "a bracket or a comma is missing, or a text needs quotes"),
    ("cannot start any token", "a text that begins with @, `, % or a tab needs quotes around it"),
    ("found unexpected end of stream", "a quote is opened and never closed"),
    ("control characters", "the file holds a character that YAML forbids"),
)


class YamlPlace(NamedTuple):
    """A place in a file; line and column count from 1, a column is a character."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class YamlProblem:
    """An error, or a warning about a doubtful value."""

    place: YamlPlace | None
    """None if there is none, as for a missing file."""
    message: str
    hint: str = ""
    code: str = ""
    """Code for programs; may be empty."""

    def __str__(self) -> str:
        where = f"{self.place}: " if self.place else ""
        return f"{where}{self.message}" + (f" ({self.hint})" if self.hint else "")


class SuiteProblemsError(SuiteError):
    def __init__(self, problems: Iterable[YamlProblem]) -> None:
        self.problems = tuple(problems)
        lines = [str(problem) for problem in self.problems[:_SHOWN]]
        if len(self.problems) > _SHOWN:
            lines.append(f"... and {format_count(len(self.problems) - _SHOWN, 'more problem')}")
        super().__init__("\n".join(lines))


class Problems:
    def __init__(self) -> None:
        self._seen: dict[YamlProblem, None] = {}

    def add(self, place: YamlPlace | None, message: str, hint: str = "", code: str = "") -> None:
        self._seen[YamlProblem(place, message, hint, code)] = None

    def raise_if_any(self) -> None:
        if self._seen:
            raise SuiteProblemsError(self)

    def __iter__(self) -> Iterator[YamlProblem]:
        found = list(self._seen)
        files = {name: i for i, name in reversed([*enumerate(p.place.file for p in found if p.place)])}
        return iter(sorted(found, key=lambda p: (files.get(p.place.file, 0), *p.place[1:]) if p.place else (-1, 0, 0)))

    def __len__(self) -> int:
        return len(self._seen)


class YamlMapping(dict[str, Any]):
    __slots__ = ("keys_at", "place", "values_at")

    def __init__(self, place: YamlPlace) -> None:
        super().__init__()
        self.place = place
        self.keys_at: dict[str, YamlPlace] = {}
        self.values_at: dict[str, YamlPlace] = {}

    def put(self, key: str, value: object, key_at: YamlPlace, value_at: YamlPlace) -> None:
        self[key] = value
        self.keys_at[key], self.values_at[key] = key_at, value_at

    def copy_with_places(self) -> YamlMapping:
        copy = YamlMapping(self.place)
        copy.update(self)
        copy.keys_at.update(self.keys_at)
        copy.values_at.update(self.values_at)
        return copy


class YamlList(list[Any]):
    __slots__ = ("items_at", "place")

    def __init__(self, place: YamlPlace) -> None:
        super().__init__()
        self.place = place
        self.items_at: list[YamlPlace] = []

    def put(self, value: object, at: YamlPlace) -> None:
        self.append(value)
        self.items_at.append(at)


def get_yaml_place(node: object, member: Hashable = None, *, key: bool = False) -> YamlPlace | None:
    """Return the place of a mapping or list, or of a member (of its key with `key`); None if unknown."""
    if isinstance(node, YamlMapping):
        if isinstance(member, str) and member in node.values_at:
            return node.keys_at[member] if key else node.values_at[member]
        return node.place
    if isinstance(node, YamlList):
        return node.items_at[member] if isinstance(member, int) and 0 <= member < len(node.items_at) else node.place
    return None


def find_yaml_place_of_path(root: object, path: Iterable[object]) -> YamlPlace | None:
    """Return the place of the value at `path`; unknown steps are skipped."""
    node: Any = root
    found = get_yaml_place(root)
    for step in path:
        known = node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        if step in known:
            found = get_yaml_place(node, step) or found
            node = node[step]
    return found


class _HaltReading(Exception):
    """Signal that the rest of the file cannot be parsed; the problem is already noted."""


class YamlLimits(NamedTuple):
    size: int
    aliased: int
    """Maximum values added by the aliases of one file."""
    plain: Callable[[str], object] | None = None
    """Converter of unquoted texts, in place of the core schema."""


SUITE = YamlLimits(MAX_BYTES, 300_000)


def read_yaml_file(
    path: Path, problems: Problems, name: str = "", doubts: Problems | None = None, *, empty_hint: str = ""
) -> list[tuple[object, YamlPlace]]:
    """Return a file's documents with their places; `name` replaces the path in messages."""
    shown = name or str(path)
    try:
        size = path.stat().st_size
        content = read_bounded_bytes(path, MAX_BYTES) if size <= MAX_BYTES else b""
    except OSError as error:
        problems.add(None, f"cannot read {shown}: {error.strerror or error}")
        return []
    if size > MAX_BYTES:
        _add_size_problem(size, shown, MAX_BYTES, problems)
        return []
    return read_documents(content, shown, problems, doubts, empty_hint=empty_hint)


def read_documents(
    content: bytes | str, name: str, problems: Problems, doubts: Problems | None = None, *, empty_hint: str = "",
    limits: YamlLimits = SUITE,
) -> list[tuple[object, YamlPlace]]:  # fmt: skip
    """Return the documents of a YAML text with their places, without empty documents in between.

    Errors go to `problems`, doubtful values to `doubts`. Parsing stops at a syntax error. `empty_hint` describes the
    expected content of an empty file.
    """
    if (text := _decode_file(content, name, problems)) is None:
        return []
    if len(text) > limits.size:
        _add_size_problem(len(text), name, limits.size, problems)
        return []
    documents: list[tuple[object, YamlPlace]] = []
    maker = _ValueBuilder(text, name, problems, Problems() if doubts is None else doubts, limits)
    try:
        for value, place in maker.documents():
            if value is not None:
                documents.append((value, place))
        if not documents:
            said = "the file is empty" if not text.strip() else "the file holds nothing but comments"
            problems.add(YamlPlace(name, 1, 1), said, empty_hint)
    except _HaltReading:
        pass
    except yaml.MarkedYAMLError as error:
        _add_syntax_problem(error, text, name, problems)
    except yaml.YAMLError as error:
        at = text[: getattr(error, "position", 0) or 0]
        place = YamlPlace(name, at.count("\n") + 1, len(at) - at.rfind("\n"))
        problems.add(place, f"this is no YAML: {getattr(error, 'reason', error)}", "save the file as UTF-8 text")
    return documents


def parse_single_yaml_document(
    content: bytes | str, name: str, *, empty_hint: str = "", limits: YamlLimits = SUITE
) -> Any:
    """Return the only document of a YAML text as plain values. Raises SuiteProblemsError."""
    problems = Problems()
    documents = read_documents(content, name, problems, empty_hint=empty_hint, limits=limits)
    if not problems and len(documents) > 1:
        problems.add(documents[1][1], "a second document begins here")
    problems.raise_if_any()
    return convert_yaml_maps_to_dicts(documents[0][0])


def convert_yaml_maps_to_dicts(value: object, known: dict[int, Any] | None = None) -> Any:
    """Return a value as plain dicts and lists without places; aliases keep sharing their values."""
    if not isinstance(value, YamlMapping | YamlList):
        return value
    known = {} if known is None else known
    if (made := known.get(id(value))) is None:
        if isinstance(value, YamlMapping):
            made = {name: convert_yaml_maps_to_dicts(member, known) for name, member in value.items()}
        else:
            made = [convert_yaml_maps_to_dicts(item, known) for item in value]
        known[id(value)] = made
    return made


def _add_size_problem(size: int, name: str, limit: int, problems: Problems) -> None:
    said = f"the file has {size / 1e6:.1f} MB, and at most {limit / 1e6:.1f} MB are read"
    problems.add(YamlPlace(name, 1, 1), said, "split it: `scenarios` may name files and globs")


def _decode_file(content: bytes | str, name: str, problems: Problems) -> str | None:
    """Return the text of a file, UTF-8 or UTF-16 with a byte order mark; None and a problem otherwise."""
    if isinstance(content, str):
        return content.removeprefix("\ufeff")
    codec = "utf-16" if content[:2] in {b"\xff\xfe", b"\xfe\xff"} else "utf-8-sig"
    try:
        return content.decode(codec)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        column = error.start - content.rfind(b"\n", 0, error.start)
        problems.add(YamlPlace(name, line, column), "the file is not UTF-8 text", "save it as UTF-8")
        return None


def _add_syntax_problem(error: yaml.MarkedYAMLError, text: str, name: str, problems: Problems) -> None:
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line, mark.column) if mark else (0, 0)
    lines = text.splitlines()
    for number in (line, line - 1):
        written = lines[number] if 0 <= number < len(lines) else ""
        blank = written[: len(written) - len(written.lstrip())]
        if "\t" in blank:
            place = YamlPlace(name, number + 1, blank.index("\t") + 1)
            said = "this line is indented with a tab, and YAML allows only spaces"
            problems.add(place, said, "replace the tab by spaces")
            return
    said = error.problem or str(error)
    hint = next((hint for part, hint in _EXPLAINED if part in said), "")
    begun = error.context_mark.line + 1 if error.context_mark and error.context_mark.line != line else None
    also = f" ({error.context}, which begins in line {begun})" if begun and error.context else ""
    problems.add(YamlPlace(name, line + 1, column + 1), f"this is no YAML: {said}{also}", hint)


class _ValueBuilder:
    def __init__(self, text: str, name: str, problems: Problems, doubts: Problems, limits: YamlLimits) -> None:
        self.limits = limits
        self.name, self.problems, self.doubts = name, problems, doubts
        self.events: Iterator[Any] = yaml.parse(text, Loader=_LOADER)
        self.anchors: dict[str, tuple[Any, int]] = {}
        """Name -> its value and number of contained values."""
        self.open: set[str] = set()
        """Anchors whose value is incomplete."""
        self.nodes = self.aliased = 0
        """Values so far, and how many of them aliases added."""

    def documents(self) -> Iterator[tuple[object, YamlPlace]]:
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                self.anchors.clear()
                first = next(self.events)
                place = self.place(first)
                yield self.build_value(first, 0), place

    def place(self, event: Any) -> YamlPlace:
        mark = event.start_mark
        return YamlPlace(self.name, mark.line + 1, mark.column + 1)

    def halt(self, event: Any, message: str, hint: str = "") -> _HaltReading:
        self.problems.add(self.place(event), message, hint)
        return _HaltReading()

    def build_value(self, event: Any, depth: int) -> object:
        if isinstance(event, yaml.AliasEvent):
            return self.alias(event)
        if depth > MAX_DEPTH:
            raise self.halt(event, f"values are nested more than {MAX_DEPTH} deep here")
        before, name = self.nodes, event.anchor
        self.nodes += 1
        if name:
            self.open.add(name)
        if isinstance(event, yaml.ScalarEvent):
            made = self.build_scalar(event)
        elif isinstance(event, yaml.SequenceStartEvent):
            self.check_tag(event, "seq")
            made = self.sequence(event, depth)
        else:
            self.check_tag(event, "map")
            made = self.mapping(event, depth)
        if name:
            self.open.discard(name)
            self.anchors[name] = (made, self.nodes - before)
        return made

    def alias(self, event: Any) -> object:
        if event.anchor in self.open:
            raise self.halt(event, f"*{event.anchor} stands inside of what it names: it would never end")
        if event.anchor not in self.anchors:
            raise self.halt(event, f"*{event.anchor} names no anchor above", suggest_name(event.anchor, self.anchors))
        made, size = self.anchors[event.anchor]
        self.nodes, self.aliased = self.nodes + size, self.aliased + size
        if self.aliased > self.limits.aliased:
            said = f"the aliases of the file expand to more than {self.limits.aliased:,} values"
            raise self.halt(event, said, "split it")
        return made

    def sequence(self, event: Any, depth: int) -> YamlList:
        made = YamlList(self.place(event))
        for each in self.events:
            if isinstance(each, yaml.SequenceEndEvent):
                break
            made.put(self.build_value(each, depth + 1), self.place(each))
        return made

    def mapping(self, event: Any, depth: int) -> YamlMapping:
        made, merges = YamlMapping(self.place(event)), None
        for each in self.events:
            if isinstance(each, yaml.MappingEndEvent):
                break
            key, at = self.key(each, depth), self.place(each)
            first = next(self.events)
            place = self.place(first)
            value = self.build_value(first, depth + 1)
            if key == "<<" and isinstance(each, yaml.ScalarEvent) and each.implicit[0]:
                if merges is not None:
                    self.problems.add(at, "`<<` stands here twice", "merge a list: `<<: [*a, *b]`")
                merges = (value, place)
            elif key in made:
                line, column = made.keys_at[key][1:]
                self.problems.add(at, f"`{key}` stands here twice, first at line {line}, column {column}", "keep one")
            else:
                made.put(key, value, at, place)
        if merges is not None:
            self.apply_merge_key(made, *merges)
        return made

    def key(self, event: Any, depth: int) -> str:
        if isinstance(event, yaml.AliasEvent):
            value = self.alias(event)
            if isinstance(value, str):
                return value
        elif isinstance(event, yaml.ScalarEvent):
            if event.anchor:
                self.build_value(event, depth)
            return str(event.value)
        raise self.halt(event, "a key must be a plain text", "a text that begins with { or [ needs quotes around it")

    def apply_merge_key(self, made: YamlMapping, value: object, place: YamlPlace) -> None:
        """Add members missing here from merged mappings; the first mapping with a key wins."""
        for other in value if isinstance(value, YamlList) else [value]:
            if not isinstance(other, YamlMapping):
                self.problems.add(place, "`<<` merges mappings, and this is none", "write `<<: *name`")
                continue
            for key in other:
                if key not in made:
                    made.put(key, other[key], other.keys_at[key], other.values_at[key])

    def check_tag(self, event: Any, expected: str) -> None:
        if event.tag not in {None, "!", _TAG + expected}:
            self.refuse_tag(event)

    def refuse_tag(self, event: Any) -> None:
        written = str(event.tag).replace(_TAG, "!!")
        hint = "parts of other files come by `include:`" if "include" in written else "write the value without a tag"
        self.problems.add(self.place(event), f"the tag {written} is not known", hint)

    def build_scalar(self, event: Any) -> object:
        text: str = event.value
        if event.tag in {"!", _TAG + "str"}:
            return text
        if event.tag is None:
            return self.resolve_plain(event, text) if event.implicit[0] else text  # not in quotes
        kind = event.tag.removeprefix(_TAG)
        made = self.resolve_plain(event, text)
        wanted = {"null": type(None), "bool": bool, "int": int, "float": float}.get(kind)
        if wanted is None:
            self.refuse_tag(event)
        elif kind == "float" and type(made) is int:
            return float(made)
        elif type(made) is not wanted:
            self.problems.add(self.place(event), f"{text!r} is no {kind}")
        return made

    def resolve_plain(self, event: Any, text: str) -> object:
        if self.limits.plain is not None:
            return self.limits.plain(text)
        if text and text[0] not in _TYPED_FIRST_CHARACTERS:
            return text
        if _NULL.fullmatch(text):
            return None
        if _TRUE.fullmatch(text) or _FALSE.fullmatch(text):
            return text[0] in "tT"
        if len(text) > _DIGITS and (_FLOAT.fullmatch(text) or _OTHER_INT.fullmatch(text)):
            said = f"this number has {len(text)} digits"
            self.problems.add(self.place(event), said, "put it in quotes to mean the text")
            return text
        if _INT.fullmatch(text):
            if text.lstrip("+-").startswith("0") and len(text) > 1:
                said = f"{text} is read as the number {int(text)}"
                self.doubts.add(self.place(event), said, "put it in quotes to keep its zeros")
            return int(text)
        if _OTHER_INT.fullmatch(text):
            return int(text, 0)
        if _FLOAT.fullmatch(text):
            return float(text)
        if found := _SPECIAL.fullmatch(text):
            return float(f"{found[1] or ''}inf" if found[2] else "nan")
        return text
