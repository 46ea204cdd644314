"""How an adapter leaves a conversation that goes on by itself: it returns its last messages as a Farewell.

It is a list of messages like any other, perhaps an empty one; who gets it knows that nobody of this role will speak again.
"""

from __future__ import annotations

from llmproxy.scenario.types import Message

__all__ = ["Farewell"]


class Farewell(list[Message]):
    """Last messages. The judge is next, and has to decide."""
