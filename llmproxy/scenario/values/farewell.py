"""How an adapter leaves a conversation that goes on by itself: it returns its last messages as a Farewell.

It is a list of messages like any other, perhaps an empty one; who gets it knows that nobody of this role will speak again.
"""

from __future__ import annotations

from collections.abc import Iterable

from llmproxy.scenario.types import Message


class Farewell(list[Message]):
    """Last messages. The judge is next, and has to decide."""

    def __init__(self, messages: Iterable[Message] = (), *, reached: bool | None = None) -> None:
        """Leave with these words; `reached`: with what one came for, None if one does not say."""
        super().__init__(messages)
        self.reached = reached
