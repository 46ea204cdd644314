"""Canonical JSON: the same bytes for equal values written differently, different bytes for different values.

Member order, white space, escapes and ``1.0 = 1 = 1e0`` are normalised; array order, ``true`` versus ``1``, integers
beyond 2**53 and lone surrogates are kept. Text that cannot be converted safely is refused (`LossyJsonError`); its raw
bytes go into the key. There is only one canonicaliser: two would give different keys. Also JSON inside text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from math import isinf
from typing import Any, NoReturn

DEPTH = 256
"""Maximum nesting. A constant, so that acceptance of a body never depends on the current stack depth."""

_SAFE_DIGITS = 16
"""A decimal of at most 15 digits (16 characters with its point) survives a double: IEEE 754 guarantees 15."""


class LossyJsonError(ValueError):
    """Text that is not JSON, or cannot be canonicalised without loss."""


def _parse_exact_number(text: str) -> int | float:
    """Return a number with point or exponent: int if it is integral, float if a double represents it exactly."""
    value = float(text)
    if len(text) <= _SAFE_DIGITS and "e" not in text and "E" not in text:
        return int(value) if value.is_integer() else value
    if isinf(value):
        raise LossyJsonError("number beyond the range of a double")
    exact = Decimal(text)
    if value.is_integer() and exact == exact.to_integral_value():
        return int(exact)
    if Decimal(repr(value)) != exact:
        raise LossyJsonError("number beyond the precision of a double")
    return value


def reject_duplicate_members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return an object, as `object_pairs_hook`. Raises LossyJsonError: two members have one name."""
    members = dict(pairs)
    if len(members) != len(pairs):
        raise LossyJsonError("duplicate member")
    return members


def reject_nan_and_infinity(name: str) -> NoReturn:
    """Refuse NaN and infinities, as `parse_constant`. Raises LossyJsonError."""
    raise LossyJsonError(f"{name} is not JSON")


_decoder = json.JSONDecoder(
    object_pairs_hook=reject_duplicate_members, parse_float=_parse_exact_number, parse_constant=reject_nan_and_infinity
)
_encoder = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False, check_circular=False
)


def parse_json_or_raise_if_lossy(text: bytes | str) -> object:
    """Parse JSON into a tree that represents its value. Raises LossyJsonError: invalid, or canonical with loss."""
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        tree: object = _decoder.decode(text)
    except LossyJsonError:
        raise
    except (ValueError, RecursionError, ArithmeticError) as error:  # ValueError: not JSON, or not UTF-8
        raise LossyJsonError(str(error)) from error
    if text.count("[") + text.count("{") > DEPTH and is_json_nested_too_deeply(tree, DEPTH):
        raise LossyJsonError(f"nested deeper than {DEPTH}")
    return tree


def is_json_nested_too_deeply(tree: object, depth: int) -> bool:
    level: list[Any] = [tree]
    for _ in range(depth + 1):  # the parser creates only plain dicts and lists
        level = [
            child
            for node in level
            for child in (node.values() if type(node) is dict else node if type(node) is list else ())
            if type(child) is dict or type(child) is list
        ]
        if not level:
            return False
    return True


def dump(tree: object) -> bytes:
    return _encoder.encode(tree).encode("ascii")


def parse_json_or_none(data: str | bytes) -> Any:
    """Return the JSON value, or None if the text is no JSON (or nested too deeply)."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def format_value_as_one_line_json(value: object) -> str:
    """Return a value as JSON for people; what JSON does not know becomes its text."""
    return json.dumps(value, ensure_ascii=False, default=str)


def parse_json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def sort_json_members(text: str) -> str:
    """Return JSON in one layout with sorted members; other text unchanged."""
    try:
        return json.dumps(json.loads(text or "{}"), sort_keys=True)
    except (ValueError, RecursionError):
        return text


def parse_json_container(text: str) -> object | None:
    if text[:1] not in ("{", "[") and text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        tree = parse_json_or_raise_if_lossy(text)
    except LossyJsonError:
        return None
    return tree if isinstance(tree, (dict, list)) else None


_MOST_PIECES = 2_000
_LABEL = re.compile(r"[A-Z][a-z]{2,15}: (?=[{\[])")
"""Label that some agents write before a command's output: ``Output: {"a": 1}``."""


def split_text_by_json(text: str) -> list[object]:
    """Return a text's parts: strings, and (parsed) arrays and objects at the start of a line, or after a label."""
    if (whole := parse_json_container(text)) is not None:
        return [whole]
    parts: list[object] = []
    prose: list[str] = []
    lines = text.splitlines(keepends=True)
    n = 0
    while n < len(lines):
        line = lines[n]
        label = line[: found.end()] if (found := _LABEL.match(line)) else ""
        lines[n] = line[len(label) :]
        may_begin = lines[n][:1] in ("{", "[") and len(parts) < _MOST_PIECES
        taken = _parse_json_block_or_none(lines, n) if may_begin else None
        if taken is None:
            prose.append(line)
            n += 1
            continue
        prose += [label] if label else []
        if prose:
            parts.append("".join(prose))
            prose = []
        parts.append(taken[0])
        n = taken[1]
    return [*parts, "".join(prose)] if prose else parts


def _parse_json_block_or_none(lines: Sequence[str], start: int) -> tuple[object, int] | None:
    """Return the value in a line, or up to a line that closes it, and the index of the next line."""
    if (value := parse_json_container(lines[start])) is not None:
        return value, start + 1
    closing = "}" if lines[start][0] == "{" else "]"
    for end in range(start + 1, len(lines)):
        if lines[end][:1] == closing:
            value = parse_json_container("".join(lines[start : end + 1]))
            return None if value is None else (value, end + 1)
    return None


def split_and_pair_texts_with_json(recorded: str, present: str) -> Iterator[tuple[object, object]]:
    mine, theirs = split_text_by_json(recorded), split_text_by_json(present)
    if len(mine) == len(theirs):
        yield from zip(mine, theirs, strict=True)


def is_equal_json(one: object, other: object) -> bool:
    """Compare as JSON: 1 equals 1.0, true is no number."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_equal_json(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_equal_json, one, other))
    return bool(one == other)
