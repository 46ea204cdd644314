"""YAML for review, and JSON with its exact formatting: texts that restore the exact values or bytes.

The writer supports JSON's values only, and writes one value per line, so that a diff shows the changes. The reader
takes plain scalars as JSON does: ``no``, ``1_000`` and ``2024-01-01`` are texts; it refuses duplicate members, tags and
expansion bombs. A JSON body that no style restores (duplicate members, ``1.00``, escaped slashes, ``NaN``) must be kept
as text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from llmproxy.core.traffic.canonical_json import is_json_nested_too_deeply, reject_nan_and_infinity
from llmproxy.errors import CassetteCorrupt
from llmproxy.lazy_regex import late

_STEP = "  "
PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./@+=;~*()-]*(?:[ :][A-Za-z0-9_./@+=;~*()-]+)*")
"""Texts that need no quotes in YAML."""
_RESERVED = frozenset(["true", "false", "null", "yes", "no", "on", "off", "y", "n"])
"""Words that YAML 1.1 or 1.2 reads as other values; our reader does not, but an editor might."""
_ODD = re.compile(
    "[^\t\n\x20-\x7e\xa0-\u061b\u061d-\u200d\u2010-\u2027\u202f-\u2065\u206a-\ud7ff\ue000-\ufefe\uff00-\ufffd"
    "\U00010000-\U0010ffff]"
)
"""Characters that a block cannot have: controls, surrogates, YAML's line breaks, marks that reverse text (U+202E)."""
_ESCAPED = late("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufffe\uffff]")


@dataclass(frozen=True, slots=True)
class YamlValueWithAnchor:
    name: str
    value: object


@dataclass(frozen=True, slots=True)
class YamlAliasToWrite:
    name: str


@dataclass(frozen=True, slots=True)
class FlowStyleValue:
    """A mapping or list that people skip: on one line of `room` characters, if it fits."""

    value: object
    room: int = 400


_WIDTH = 112  # maximum characters of a line with a mapping or a list
_BARE = re.compile(r"[A-Za-z](?:[\w./ -]*[\w./-])?")


def dump_yaml_collection(value: object) -> str:
    """Return the text of a non-empty mapping or list, in lines."""
    out: list[str] = []
    _append_block_collection(out, value, "")
    return "".join(f"{line}\n" for line in out)


def _append_block_collection(out: list[str], value: object, indent: str) -> None:
    if isinstance(value, dict):
        for name, child in value.items():
            _append_entry(out, f"{indent}{write_scalar(str(name))}:", child, indent)
        return
    if isinstance(value, list):
        for child in value:
            start = len(out)
            bare, room = _get_value_and_room(child, _WIDTH - len(indent))
            if isinstance(bare, dict | list) and bare and not (indent and _write_flow(bare, room)):
                _append_block_collection(out, bare, indent + _STEP)
                out[start] = f"{indent}- {out[start][len(indent) + 2 :]}"
            else:
                _append_entry(out, f"{indent}-", child, indent)
        return
    raise TypeError(f"{type(value).__name__} is no block")


def _append_entry(out: list[str], head: str, value: object, indent: str) -> None:
    """Write the value after ``name:`` or ``-``; inside an interaction on the same line if it is short."""
    if isinstance(value, YamlValueWithAnchor):
        head, value = f"{head} &{value.name}", value.value
    value, room = _get_value_and_room(value, _WIDTH - len(head))
    if isinstance(value, YamlAliasToWrite):
        out.append(f"{head} *{value.name}")
    elif indent and isinstance(value, dict | list) and value and (short := _write_flow(value, room)):
        out.append(f"{head} {short}")
    elif isinstance(value, dict | list) and value:
        out.append(head)
        _append_block_collection(out, value, indent + _STEP)
    elif isinstance(value, str) and "\n" in value and not _ODD.search(value):
        _append_literal(out, head, value, indent + _STEP)
    else:
        out.append(f"{head} {write_scalar(value)}")


def _get_value_and_room(value: object, room: int) -> tuple[object, int]:
    return (value.value, value.room) if isinstance(value, FlowStyleValue) else (value, room)


def _write_flow(value: object, room: int) -> str:
    """Return a value on one line of `room` characters; empty if too long, or with a multi-line text or an anchor."""
    if isinstance(value, dict | list) and value:
        many = [("", each) for each in value]
        if isinstance(value, dict):
            many = [(f"{_write_word(name)}: ", each) for name, each in value.items()]
        parts = [name + said if (said := _write_flow(each, room)) else "" for name, each in many]
        text = ", ".join(parts) if all(parts) else ""
        return "" if not text or len(text) > room - 2 else f"{{{text}}}" if isinstance(value, dict) else f"[{text}]"
    has_lines = isinstance(value, str) and "\n" in value
    if has_lines or isinstance(value, YamlValueWithAnchor | YamlAliasToWrite | FlowStyleValue):
        return ""
    return _write_word(value) if isinstance(value, str) else write_scalar(value)


def _write_word(text: str) -> str:
    return text if _BARE.fullmatch(text) and text.lower() not in _RESERVED else _quote_text(text)


def _append_literal(out: list[str], head: str, text: str, indent: str) -> None:
    body = text.rstrip("\n")
    ends = len(text) - len(body)
    if not body:
        out.append(f"{head} {_quote_text(text)}")
        return
    lead = str(len(_STEP)) if body[0] in " \n\t" else ""
    out.append(f"{head} |{lead}{'-' if ends == 0 else '' if ends == 1 else '+'}")
    out.extend(indent + line if line else "" for line in body.split("\n"))
    out.extend("" for _ in range(ends - 1))


def write_scalar(value: object) -> str:
    """Return a value on one line. Raises TypeError for what is not JSON; lists and mappings must be empty."""
    if isinstance(value, str):
        plain = PLAIN.fullmatch(value) and len(value) <= 1000 and value.lower() not in _RESERVED
        return value if plain and not value.endswith(":") else _quote_text(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        text = repr(value)
        return text if "." in text or "e" not in text else text.replace("e", ".0e")  # YAML 1.1 wants a point
    if isinstance(value, int):
        return str(value)
    if isinstance(value, dict | list):
        return "{}" if isinstance(value, dict) else "[]"
    raise TypeError(f"{type(value).__name__} is not JSON")


def _quote_text(text: str) -> str:
    return _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(text, ensure_ascii=False))


_VALUES = {"null": None, "~": None, "": None, "true": True, "false": False}
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_SIZES = 1 << 40, 20_000_000
"""Maximum characters of a file, and values added by its aliases: parts of a conversation are in each request."""


def _parse_plain(text: str) -> object:
    """Return the value of a text without quotes. Raises ValueError for thousands of digits."""
    if text in _VALUES:
        return _VALUES[text]
    if (found := _NUMBER.fullmatch(text)) is None:
        return text
    return float(text) if found[1] or found[2] else int(text)


def load_yaml(text: str, name: str) -> Any:
    """Return the tree of a file's text; `name` is for errors. Raises CassetteCorrupt with file, line and column."""
    from llmproxy.yaml_reader import SuiteProblemsError, YamlLimits, parse_single_yaml_document

    try:
        return parse_single_yaml_document(text, name, limits=YamlLimits(*_SIZES, _parse_plain))
    except SuiteProblemsError as error:
        raise CassetteCorrupt(f"{error.problems[0]}.") from error
    except ValueError as error:
        raise CassetteCorrupt(f"{name}: {error}") from error


def find_yaml_lines_of_interactions(text: str) -> dict[int, int]:
    """Return the line of each interaction, both from 1; needed only for errors."""
    from llmproxy.yaml_reader import Problems, YamlLimits, read_documents

    tree: Any = next((tree for tree, _ in read_documents(text, "", Problems(), limits=YamlLimits(*_SIZES))), None)
    items = tree.get("interactions") if isinstance(tree, dict) else None
    return {number: place.line for number, place in enumerate(getattr(items, "items_at", ()), 1)}


MAX_BYTES = 1 << 20  # largest body to analyse: nobody reads a longer one as a tree
_DEPTH = 39


_SHAPES: dict[str, tuple[str, str, int | None]] = {
    "compact": (",", ":", None), "spaced": (", ", ": ", None), "indent1": (",", ": ", 1), "indent2": (",", ": ", 2),
    "indent4": (",", ": ", 4),
}  # fmt: skip
STYLES: dict[str, tuple[dict[str, Any], str]] = {
    f"{name}{'-ascii' if escaped else ''}{'-newline' if end else ''}": (
        {"separators": (item, colon), "indent": indent, "ensure_ascii": escaped},
        end,
    )
    for name, (item, colon, indent) in _SHAPES.items()
    for escaped in (False, True)
    for end in ("", "\n")
}
"""Options of `json.dumps` and end of the text by name: ``compact`` is the style of JavaScript and most SDKs,
``spaced-ascii`` Python's, ``indent2`` OpenAI's, Google's."""


def encode_json_in_style(tree: object, style: str) -> bytes:
    """Write a tree. Raises KeyError for an unknown style, ValueError and TypeError for values that are not JSON."""
    how, end = STYLES[style]
    return (json.dumps(tree, allow_nan=False, **how) + end).encode("utf-8", "strict")


def detect_json_style(body: bytes) -> tuple[object, str] | None:
    """Return tree and style of a JSON object or array; None if no style restores these exact bytes."""
    if not 2 <= len(body) <= MAX_BYTES or body[:1] not in (b"{", b"["):
        return None
    try:
        tree = json.loads(body, parse_constant=reject_nan_and_infinity)
    except (ValueError, RecursionError):
        return None
    if is_json_nested_too_deeply(tree, _DEPTH):
        return None
    for name in _candidate_json_styles(body):
        try:
            if encode_json_in_style(tree, name) == body:
                return tree, name
        except (ValueError, TypeError, RecursionError):
            return None
    return None


def _candidate_json_styles(body: bytes) -> Iterator[str]:
    end = "-newline" if body.endswith(b"\n") else ""
    text = body.rstrip(b"\n")
    if b"\n" in text:
        indent = len(text[2:20]) - len(text[2:20].lstrip(b" "))
        shapes = [f"indent{indent}"] if f"indent{indent}" in STYLES else []
    elif b'": ' in text or b", " in text:
        shapes = ["spaced", "compact"]
    else:
        shapes = ["compact", "spaced"]
    escapes = ("", "-ascii") if text.isascii() else ("",)
    yield from (shape + escape + end for escape in escapes for shape in shapes)
