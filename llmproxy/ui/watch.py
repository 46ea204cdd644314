"""The last things that happened in a proxy, for whoever looks later: a ring, filled where every call passes.

It costs an answer one append. Nothing here is imported before somebody looks.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

from llmproxy.calls import Call

KEPT = 5000
"""Calls; about 400 bytes each."""


class Watch:
    """Remembers calls by number; for one thread."""

    def __init__(self) -> None:
        self.count = 0
        """Calls so far."""
        self._last: deque[Call] = deque(maxlen=KEPT)

    def record(self, call: Call) -> None:
        self.count += 1
        self._last.append(call)

    def since(self, number: int, most: int) -> list[tuple[int, Call]]:
        """Return what came after the `number`-th, numbered; of more than `most` the last ones."""
        count = min(self.count - number, most, len(self._last)) if number < self.count else 0
        first = self.count - count + 1
        return list(enumerate(islice(self._last, len(self._last) - count, None), first))
