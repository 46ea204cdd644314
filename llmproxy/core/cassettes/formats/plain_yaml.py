"""YAML for people who review: written in one way only, read without surprises.

    tree of JSON values -> lines        `lines`         file text -> tree        `load`

The writer knows JSON's values and nothing else, keeps the order of members, writes texts of several lines as blocks and
one value a line, so that a diff shows what changed. A part that stands in several places is written once with an anchor
(:class:`AnchoredValue`), and as an alias after that (:class:`Same`).

The reader takes plain scalars as JSON does: ``no``, ``1_000`` and ``2024-01-01`` are texts. It refuses duplicate members,
tags and whatever explodes.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from llmproxy.errors import CassetteCorrupt
from llmproxy.late import late

_STEP = "  "
PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./@+=;~*()-]*(?:[ :][A-Za-z0-9_./@+=;~*()-]+)*")
"""Texts that stand in YAML as they are."""
_RESERVED = frozenset(["true", "false", "null", "yes", "no", "on", "off", "y", "n"])
"""What YAML 1.1 or 1.2 would read as something else; ours does not, an editor might."""
_ODD = re.compile(
    "[^\t\n\x20-\x7e\xa0-\u061b\u061d-\u200d\u2010-\u2027\u202f-\u2065\u206a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)
"""What cannot stand in a block as it is: controls, surrogates, line breaks that only YAML knows, and marks that turn the text
round that a reviewer reads (U+202E)."""
_ESCAPED = late("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufffe\uffff]")


@dataclass(frozen=True, slots=True)
class AnchoredValue:
    """A value with an anchor, so that later places can name it."""

    name: str
    value: object


@dataclass(frozen=True, slots=True)
class Same:
    """The value of an anchor that was written before."""

    name: str


def lines(value: object, indent: int = 0) -> list[str]:
    """Return the lines of a mapping or list that is not empty, indented by so many steps."""
    out: list[str] = []
    _block(out, value, _STEP * indent)
    return out


def _block(out: list[str], value: object, indent: str) -> None:
    if isinstance(value, dict):
        for name, child in value.items():
            _entry(out, f"{indent}{scalar(str(name))}:", child, indent)
        return
    if isinstance(value, list):
        for child in value:
            start = len(out)
            if isinstance(child, dict | list) and child:
                _block(out, child, indent + _STEP)
                out[start] = f"{indent}- {out[start][len(indent) + 2 :]}"
            else:
                _entry(out, f"{indent}-", child, indent)
        return
    msg = f"{type(value).__name__} is no block"
    raise TypeError(msg)


def _entry(out: list[str], head: str, value: object, indent: str) -> None:
    """Write what stands after ``name:`` or ``-``."""
    if isinstance(value, AnchoredValue):
        head, value = f"{head} &{value.name}", value.value
    if isinstance(value, Same):
        out.append(f"{head} *{value.name}")
    elif isinstance(value, dict | list) and value:
        out.append(head)
        _block(out, value, indent + _STEP)
    elif isinstance(value, str) and "\n" in value and not _ODD.search(value):
        _literal(out, head, value, indent + _STEP)
    else:
        out.append(f"{head} {scalar(value)}")


def _literal(out: list[str], head: str, text: str, indent: str) -> None:
    """Write a text as a block; how it ends, and whether it starts with blanks, stands in the head."""
    body = text.rstrip("\n")
    ends = len(text) - len(body)
    if not body:
        out.append(f"{head} {_quote_text(text)}")
        return
    lead = str(len(_STEP)) if body[0] in " \n\t" else ""
    out.append(f"{head} |{lead}{'-' if ends == 0 else '' if ends == 1 else '+'}")
    out.extend(indent + line if line else "" for line in body.split("\n"))
    out.extend("" for _ in range(ends - 1))


def scalar(value: object) -> str:
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
    msg = f"{type(value).__name__} is not JSON"
    raise TypeError(msg)


def _quote_text(text: str) -> str:
    quoted = json.dumps(text, ensure_ascii=False)
    return _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", quoted)


# -- reading


_VALUES = {"null": None, "~": None, "": None, "true": True, "false": False}
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_SIZES = 1 << 40, 20_000_000
"""Characters of a file, and values that its aliases may add: parts of a long conversation stand in each of its requests."""


def _make_plain(text: str) -> object:
    """Return what a text without quotes means. Raises ValueError for thousands of digits."""
    if text in _VALUES:
        return _VALUES[text]
    found = _NUMBER.fullmatch(text)
    if found is None:
        return text
    return float(text) if found[1] or found[2] else int(text)


def load(text: str, name: str) -> Any:  # noqa: ANN401 (what a file holds)
    """Return the tree of a file's text; `name` stands in errors. Raises CassetteCorrupt with file, line and column."""
    from llmproxy.yaml_reader import Limits, Problems, read, to_plain

    problems = Problems()
    try:
        documents = read(text, name, problems, limits=Limits(*_SIZES), plain=_make_plain)
    except ValueError as error:
        raise CassetteCorrupt(f"{name}: {error}") from error
    for problem in problems:
        raise CassetteCorrupt(f"{problem}.")
    if len(documents) != 1:
        raise CassetteCorrupt(f"{documents[1][1]}: a second document begins here.")
    return to_plain(documents[0][0])
