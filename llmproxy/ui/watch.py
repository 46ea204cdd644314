"""The last things that happened in a proxy, for whoever looks later: a ring, filled where every outcome passes.

It costs an answer one append. Nothing here is imported before somebody looks.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

from llmproxy.core.sessions.outcomes.outcome import Outcome

KEPT = 5000
"""Outcomes; about 400 bytes each."""


class Watch:
    """Remembers outcomes by number. Hear and look in one thread."""

    def __init__(self) -> None:
        self.count = 0
        """Outcomes so far."""
        self._last: deque[Outcome] = deque(maxlen=KEPT)

    def hear(self, outcome: Outcome) -> None:
        self.count += 1
        self._last.append(outcome)

    def since(self, number: int, most: int) -> list[tuple[int, Outcome]]:
        """Return what came after the `number`-th, numbered; of more than `most` the last ones."""
        count = min(self.count - number, most, len(self._last)) if number < self.count else 0
        first = self.count - count + 1
        return list(enumerate(islice(self._last, len(self._last) - count, None), first))
