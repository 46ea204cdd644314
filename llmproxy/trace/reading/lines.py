"""Spans in their order, given away as early as can be.

A tool call is complete when its result comes, which is some requests later. Spans wait in a line until everything
before them is complete; so a reader sees them in the order of what happened, and only the unfinished ones and what
follows them are held. The line is bounded: a call that nobody answers is let go as it is when it gets too long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from llmproxy.trace.values.model import Span

HELD_SPANS = 10_000
HELD_BYTES = 8 << 20
"""Bounds of the line; bytes as estimated from the bodies."""


@dataclass(slots=True, eq=False)
class Entry:
    span: Span
    ready: bool
    size: int


class Line:
    def __init__(self) -> None:
        self._waiting: deque[Entry] = deque()
        self._size = 0

    def put(self, span: Span, *, ready: bool = True, size: int = 0) -> Entry:
        """Add a span at the end; set `ready` of what is returned when it is complete."""
        entry = Entry(span, ready, size)
        self._waiting.append(entry)
        self._size += size
        return entry

    def take(self) -> Iterator[Span]:
        """Take what is complete, and what there is too much of."""
        waiting = self._waiting
        while waiting and (waiting[0].ready or len(waiting) > HELD_SPANS or self._size > HELD_BYTES):
            entry = waiting.popleft()
            self._size -= entry.size
            yield entry.span

    def rest(self) -> Iterator[Span]:
        while self._waiting:
            yield self._waiting.popleft().span
        self._size = 0
