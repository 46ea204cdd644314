"""What is read of an answer of many megabytes: one event after the other, and a document without what fills it.

Parsed at once, such an answer takes ten times its size. Of a stream the events are given one by one. Of a single
document a shorter one is made, in which long strings (an image, a sound, a text) keep their beginning and long lists
(vectors, scores) are empty: model, tokens, ids and the first words stand in what is left. Where even that is long,
nothing is known of the answer.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from llmproxy.late import late

if TYPE_CHECKING:
    from collections.abc import Iterator

LONG = 4 << 20
"""Bytes of an answer from which on it is read this way."""
MOST_WEIGHT = 32 << 20
"""Bytes that parsed values may take, by `weight`, before they are read this way as well: of tiny ones a body makes
forty times its size."""
_STRING = 2048
"""Bytes of a string that are kept."""
_LIST = 1 << 20
"""Bytes of a list or an object, its long strings shortened, above which it is left out."""

_ALL = 2 << 20
"""Bytes of all that is kept, above which nothing is."""
_PIECES = 600_000
"""Strings and brackets of it, likewise: parsed, each is worth many bytes."""
_DEEPEST = 500
"""Lists in lists, which nobody reads."""
_MOST = 3_000_000
"""Strings and brackets that are looked at, some seconds; a document of more is left unread."""
_UNITS = late(
    rb"(?:[^\\]|\\[^u]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*+",
    re.DOTALL,
)
"""What stands in a string, up to half an escape or half a pair of them."""
_MARK = late(rb'["\[\]{}]')
_STRING_HERE = late(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\Z)', re.DOTALL)


def is_long(body: bytes) -> bool:
    """Return whether a body is to be read this way."""
    return len(body) > LONG or (len(body) > _SURELY_SHORT and weight(body) > MOST_WEIGHT)


_SURELY_SHORT = MOST_WEIGHT // 256


def weight(body: bytes) -> int:
    """Return about how many bytes the JSON in a body takes when it is parsed: objects, lists, strings, members."""
    return 232 * body.count(b"{") + 72 * body.count(b"[") + 30 * body.count(b'"') + 40 * body.count(b",") + len(body)


def _tokens(body: bytes | bytearray) -> Iterator[tuple[bytes, int, int]]:
    """Yield the strings and brackets of a document: (first byte, start, end). A string without its end ends with the
    document.
    """
    at = 0
    while match := _MARK.search(body, at):  # one set of bytes is looked for much quicker than a choice of expressions
        start = match.start()
        found = match if match[0] != b'"' else _STRING_HERE.match(body, start)
        at = found.end() if found else match.end()
        yield match[0], start, at


class _OpenNode(NamedTuple):
    """A list or an object that has begun."""

    at: int
    """Where in what is kept."""
    kept: int
    """Bytes that were kept before it."""


class _Kept:
    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._open: list[_OpenNode] = []
        self._left_out = 0
        """How deep the scan is inside what is left out; 0: not at all."""

    def text(self, data: bytes | bytearray) -> None:
        """Keep what stands there, unless it makes what it stands in too long."""
        if self._left_out:
            return
        self._parts.append(bytes(data))
        self._size += len(data)
        if len(self._open) > 1 and self._size - self._open[-1].kept > _LIST:
            at, kept = self._open[-1]
            del self._parts[at + 1 :]
            self._size = kept + 1
            self._left_out = 1

    def begin(self, bracket: bytes) -> None:
        """Enter a list or an object."""
        if self._left_out:
            self._left_out += 1
            return
        self._open.append(_OpenNode(len(self._parts), self._size))
        self._parts.append(bracket)
        self._size += 1

    def end(self, bracket: bytes) -> None:
        self._left_out = max(0, self._left_out - 1)
        if self._left_out:
            return
        self._parts.append(bracket)
        self._size += 1
        if self._open:
            self._open.pop()

    def is_lost(self) -> bool:
        """Return whether nothing will be left, whatever comes."""
        too_much = self._size > _ALL or len(self._parts) > _PIECES
        return too_much or len(self._open) + self._left_out > _DEEPEST

    def document(self) -> bytes:
        return b"".join(self._parts)


def shorten_json(body: bytes | bytearray) -> bytes:
    """Return a JSON document without what fills it; b"" if nothing else is left. What is no JSON is none afterwards."""
    kept, at = _Kept(), 0
    for number, (mark, start, after) in enumerate(_tokens(body)):
        kept.text(body[at : min(start, at + LONG + 1)])
        at = after
        if number > _MOST or kept.is_lost():
            return b""
        if mark == b'"':
            kept.text(_beginning(body, start, after))
        elif mark in b"[{":
            kept.begin(mark)
        else:
            kept.end(mark)
    kept.text(body[at : at + LONG + 1])
    return b"" if kept.is_lost() else kept.document()


def elements(body: bytes) -> Iterator[bytes]:
    """Yield the elements of a JSON array that are lists or objects, each a document; one that was cut short is left
    out.
    """
    depth, begun = 0, 0
    for mark, start, after in _tokens(body):
        if mark in b"[{":
            begun = start if depth == 1 else begun
            depth += 1
            if depth > _DEEPEST:
                return
        elif mark != b'"':
            depth -= 1
            if depth == 1:
                yield body[begun:after]


def _beginning(body: bytes | bytearray, start: int, end: int) -> bytes:
    """Return the string that stands there, quotes and all, if it is long its beginning."""
    if end - start <= _STRING:
        return bytes(body[start:end])
    whole = _UNITS.match(body, start + 1, start + _STRING)
    text = whole[0] if whole else b""
    return b'"' + text.decode("utf-8", "ignore").encode() + b'"'
