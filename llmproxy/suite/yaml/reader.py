"""Read YAML the way version 1.2 means it, and remember where everything was written.

PyYAML parses (libyaml where it is built in); we make the values ourselves from its events, because its constructors follow YAML 1.1:
there ``no`` is false, ``12:30`` a number, ``1_000`` a thousand, ``2026-01-02`` a date, and of two equal keys the last wins in silence.
Here (core schema, https://yaml.org/spec/1.2.2/#103-core-schema) only true and false are booleans, numbers look like numbers, all else
is text; equal keys are refused; keys are always texts. Anchors, aliases and ``<<`` merges work, but what they expand to is counted,
so that a small file cannot become a large one. Size, depth and count are limited: no file may stop the program.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from llmproxy.did_you_mean import suggest
from llmproxy.files import read_bytes
from llmproxy.suite.yaml.places import List, Map, Problems, YamlPlace
from llmproxy.suite.yaml.text import decode_text, explain, too_large

MAX_BYTES = 1_000_000
"""Of one file: about 4,000 scenarios, which take a second to read."""
MAX_BYTES_SLOW = 200_000
"""The same where PyYAML was built without libyaml, which is ten times slower."""
MAX_NODES = 300_000
"""Values of one file after its aliases are expanded."""
MAX_DEPTH = 60
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_TELLING = frozenset("~nNtTfF+-.0123456789")
"""What a plain value that is no text begins with."""
_NULL = re.compile(r"~|null|Null|NULL|")
_TRUE, _FALSE = re.compile(r"true|True|TRUE"), re.compile(r"false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]+")
_OTHER_INT = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"([-+]?)\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_DIGITS = 400
"""Longer numbers are no numbers that anybody writes; Python refuses to read 4,300 digits."""
_TAG = "tag:yaml.org,2002:"


class _Halt(Exception):
    """The rest of the file cannot be understood; the problem is already noted."""


def read_file(
    path: Path, problems: Problems, name: str = "", doubts: Problems | None = None
) -> list[tuple[object, YamlPlace]]:
    """Return the documents of a file, each with its place; `name` stands for the file in messages (default: its path)."""
    shown = name or str(path)
    try:
        size = path.stat().st_size
        content = read_bytes(path, MAX_BYTES) if size <= MAX_BYTES else b""
    except OSError as error:
        problems.add(None, f"cannot read {shown}: {error.strerror or error}")
        return []
    if size > MAX_BYTES:
        too_large(size, shown, MAX_BYTES, problems)
        return []
    return read(content, shown, problems, doubts)


def read(
    content: bytes | str, name: str, problems: Problems, doubts: Problems | None = None
) -> list[tuple[object, YamlPlace]]:
    """Return the documents of a YAML text, each with its place; empty documents between others are left out.

    What is wrong goes to `problems`, what may be meant otherwise to `doubts`. After a mistake of syntax nothing that follows can be read.
    """
    text = decode_text(content, name, problems)
    if text is None:
        return []
    limit = MAX_BYTES if _LOADER is not yaml.SafeLoader else MAX_BYTES_SLOW
    if len(text) > limit:
        too_large(len(text), name, limit, problems)
        return []
    documents: list[tuple[object, YamlPlace]] = []
    try:
        for value, place in _Maker(text, name, problems, Problems() if doubts is None else doubts).documents():
            if value is not None:
                documents.append((value, place))
    except _Halt:
        return documents
    except yaml.MarkedYAMLError as error:
        explain(error, text, name, problems)
        return documents
    except yaml.YAMLError as error:
        at = text[: getattr(error, "position", 0) or 0]
        place = YamlPlace(name, at.count("\n") + 1, len(at) - at.rfind("\n"))
        problems.add(place, f"this is no YAML: {getattr(error, 'reason', error)}", "save the file as UTF-8 text")
        return documents
    if not documents:
        problems.add(
            YamlPlace(name, 1, 1),
            "the file is empty" if not text.strip() else "the file holds nothing but comments",
            "a suite has `name` and `scenarios`, a scenario has `id` and `steps`; `llmproxy test --init` writes a first one",
        )
    return documents


class _Maker:
    """Makes values of the events of one file."""

    def __init__(self, text: str, name: str, problems: Problems, doubts: Problems) -> None:
        self.name, self.problems, self.doubts = name, problems, doubts
        self.events: Iterator[Any] = yaml.parse(text, Loader=_LOADER)
        self.anchors: dict[str, tuple[Any, int]] = {}
        """Name -> its value and how many values it holds."""
        self.open: set[str] = set()
        """Anchors whose value is not finished."""
        self.nodes = 0

    def documents(self) -> Iterator[tuple[object, YamlPlace]]:
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                self.anchors.clear()
                first = next(self.events)
                place = self.place(first)
                yield self.value(first, 0), place

    def place(self, event: Any) -> YamlPlace:  # noqa: ANN401 (PyYAML has no types for what it yields)
        mark = event.start_mark
        return YamlPlace(self.name, mark.line + 1, mark.column + 1)

    def halt(self, event: Any, message: str, hint: str = "") -> _Halt:  # noqa: ANN401 - libyaml's event
        self.problems.add(self.place(event), message, hint)
        return _Halt()

    def count(self, event: Any, more: int) -> None:  # noqa: ANN401 - libyaml's event
        self.nodes += more
        if self.nodes > MAX_NODES:
            raise self.halt(
                event, f"the file holds more than {MAX_NODES:,} values once its aliases are expanded", "split it"
            )

    def value(self, event: Any, depth: int) -> object:  # noqa: ANN401 - libyaml's event
        if isinstance(event, yaml.AliasEvent):
            return self.alias(event)
        if depth > MAX_DEPTH:
            raise self.halt(event, f"values are nested more than {MAX_DEPTH} deep here")
        before, name = self.nodes, event.anchor
        self.count(event, 1)
        if name:
            self.open.add(name)
        if isinstance(event, yaml.ScalarEvent):
            made = self.scalar(event)
        elif isinstance(event, yaml.SequenceStartEvent):
            self.tag(event, "seq")
            made = self.sequence(event, depth)
        else:
            self.tag(event, "map")
            made = self.mapping(event, depth)
        if name:
            self.open.discard(name)
            self.anchors[name] = (made, self.nodes - before)
        return made

    def alias(self, event: Any) -> object:  # noqa: ANN401 - libyaml's event
        if event.anchor in self.open:
            raise self.halt(event, f"*{event.anchor} stands inside of what it names: it would never end")
        if event.anchor not in self.anchors:
            raise self.halt(event, f"*{event.anchor} names no anchor above", suggest(event.anchor, self.anchors))
        made, size = self.anchors[event.anchor]
        self.count(event, size)
        return made

    def sequence(self, event: Any, depth: int) -> List:  # noqa: ANN401 - libyaml's event
        made = List(self.place(event))
        for each in self.events:
            if isinstance(each, yaml.SequenceEndEvent):
                break
            made.put(self.value(each, depth + 1), self.place(each))
        return made

    def mapping(self, event: Any, depth: int) -> Map:  # noqa: ANN401 - libyaml's event
        made, merges = Map(self.place(event)), None
        for each in self.events:
            if isinstance(each, yaml.MappingEndEvent):
                break
            key, at = self.key(each, depth), self.place(each)
            first = next(self.events)
            place = self.place(first)
            value = self.value(first, depth + 1)
            if key == "<<" and isinstance(each, yaml.ScalarEvent) and each.implicit[0]:
                if merges is not None:
                    self.problems.add(at, "`<<` stands here twice", "merge a list: `<<: [*a, *b]`")
                merges = (value, place)
            elif key in made:
                earlier = made.keys_at[key]
                self.problems.add(
                    at, f"`{key}` stands here twice, first at line {earlier.line}, column {earlier.column}", "keep one"
                )
            else:
                made.put(key, value, at, place)
        if merges is not None:
            self.merge(made, *merges)
        return made

    def key(self, event: Any, depth: int) -> str:  # noqa: ANN401 - libyaml's event
        if isinstance(event, yaml.AliasEvent):
            value = self.alias(event)
            if isinstance(value, str):
                return value
        elif isinstance(event, yaml.ScalarEvent):
            if event.anchor:
                self.value(event, depth)
            self.count(event, 1)
            return str(event.value)
        raise self.halt(event, "a key must be a plain text", "a text that begins with { or [ needs quotes around it")

    def merge(self, made: Map, value: object, place: YamlPlace) -> None:
        """Take what is missing from other mappings; the first of them that has a key wins."""
        for other in value if isinstance(value, List) else [value]:
            if not isinstance(other, Map):
                self.problems.add(place, "`<<` merges mappings, and this is none", "write `<<: *name`")
                continue
            for key in other:
                if key not in made:
                    made.put(key, other[key], other.keys_at[key], other.values_at[key])

    def tag(self, event: Any, expected: str) -> None:  # noqa: ANN401 - libyaml's event
        if event.tag not in {None, "!", _TAG + expected}:
            self.refuse_tag(event)

    def refuse_tag(self, event: Any) -> None:  # noqa: ANN401 - libyaml's event
        written = str(event.tag).replace(_TAG, "!!")
        hint = "parts of other files come by `include:`" if "include" in written else "write the value without a tag"
        self.problems.add(self.place(event), f"the tag {written} is not known", hint)

    def scalar(self, event: Any) -> object:  # noqa: ANN401 - libyaml's event
        text: str = event.value
        if event.tag in {"!", _TAG + "str"}:
            return text
        if event.tag is None:
            return self.plain(event, text) if event.implicit[0] else text  # not in quotes
        kind = event.tag.removeprefix(_TAG)
        made = self.plain(event, text)
        wanted = {"null": type(None), "bool": bool, "int": int, "float": float}.get(kind)
        if wanted is None:
            self.refuse_tag(event)
        elif kind == "float" and type(made) is int:
            return float(made)
        elif type(made) is not wanted:
            self.problems.add(self.place(event), f"{text!r} is no {kind}")
        return made

    def plain(self, event: Any, text: str) -> object:  # noqa: ANN401 - libyaml's event
        if text and text[0] not in _TELLING:
            return text
        if _NULL.fullmatch(text):
            return None
        if _TRUE.fullmatch(text) or _FALSE.fullmatch(text):
            return text[0] in "tT"
        if len(text) > _DIGITS and (_FLOAT.fullmatch(text) or _OTHER_INT.fullmatch(text)):
            self.problems.add(
                self.place(event), f"this number has {len(text)} digits", "put it in quotes to mean the text"
            )
            return text
        if _INT.fullmatch(text):
            if text.lstrip("+-").startswith("0") and len(text) > 1:
                self.doubts.add(
                    self.place(event), f"{text} is read as the number {int(text)}", "put it in quotes to keep its zeros"
                )
            return int(text)
        if _OTHER_INT.fullmatch(text):
            return int(text, 0)
        if _FLOAT.fullmatch(text):
            return float(text)
        if found := _SPECIAL.fullmatch(text):
            return float(f"{found[1] or ''}inf" if found[2] else "nan")
        return text
