"""JSON with its syntax taken off and nothing else: equal values written differently become the same bytes, different ones never.

    bytes -> `parse` -> tree -> `dump` -> bytes that depend on the value alone

Member order, white space, escapes and ``1.0 = 1 = 1e0`` go; array order, ``true`` beside ``1``, ints beyond 2**53 and lone surrogates stay.
What cannot be told apart safely is refused (`NotLossless`): numbers that a double cannot carry, NaN, duplicate members, nesting
deeper than `DEPTH`, bytes that are not UTF-8. The caller then keys the raw bytes. There is one canonicaliser only: two would split keys.
"""

from __future__ import annotations

import json
from decimal import Decimal
from math import isinf
from typing import Any, NoReturn

DEPTH = 256
"""Deepest nesting taken. Fixed, so that whether a body is taken never depends on how full the stack is just now."""

_SAFE_DIGITS = 16
"""A decimal of at most 15 digits (16 characters with its point) survives a double: IEEE 754 guarantees 15."""


class NotLossless(ValueError):
    """This text is not JSON that can be canonicalised without loss."""


def _number(text: str) -> int | float:
    """Return a number with a point or an exponent: as int if it is integral, as float if a double carries it exactly."""
    value = float(text)
    if len(text) <= _SAFE_DIGITS and "e" not in text and "E" not in text:
        return int(value) if value.is_integer() else value
    if isinf(value):
        message = "number beyond the range of a double"
        raise NotLossless(message)
    exact = Decimal(text)
    if value.is_integer() and exact == exact.to_integral_value():
        return int(exact)
    if Decimal(repr(value)) != exact:
        message = "number beyond the precision of a double"
        raise NotLossless(message)
    return value


def _members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        message = "duplicate member"
        raise NotLossless(message)
    return members


def _constant(name: str) -> NoReturn:
    message = f"{name} is not JSON"
    raise NotLossless(message)


_decoder = json.JSONDecoder(object_pairs_hook=_members, parse_float=_number, parse_constant=_constant)
_encoder = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False, check_circular=False
)


def parse(text: bytes | str) -> object:
    """Parse JSON into a tree that stands for its value.

    Raises:
        NotLossless: it is not JSON, or cannot be canonicalised without loss.

    """
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        tree: object = _decoder.decode(text)
    except NotLossless:
        raise
    except (
        ValueError,
        RecursionError,
        ArithmeticError,
    ) as error:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
        raise NotLossless(str(error)) from error
    if text.count("[") + text.count("{") > DEPTH and _too_deep(tree):
        message = f"nested deeper than {DEPTH}"
        raise NotLossless(message)
    return tree


def _too_deep(tree: object) -> bool:
    level: list[Any] = [tree]
    for _ in range(DEPTH + 1):  # the parser makes nothing but plain dicts and lists
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
    """Return the one way of writing this tree, in ASCII."""
    return _encoder.encode(tree).encode("ascii")
