"""An agent in this process that does what is written down, over real sockets: in its turn, later, and after the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from llmproxy.scenario.agent_adapter import AgentAdapter
from llmproxy.scenario.types import AgentInput, AgentReturnTypes
from tests.oracle.agents import Exchange

__all__ = ["ACTOR", "Part"]


@dataclass
class Part:
    now: Sequence[Exchange]
    """Before the answer."""
    writes: Callable[[], None]
    """Then its rows."""
    later: Sequence[Exchange] = ()
    """After the answer, while a quiet step goes on."""
    writes_later: Callable[[], None] = lambda: None


@dataclass
class Actor(AgentAdapter):
    uses_session: ClassVar[bool] = True
    parts: list[Part] = field(default_factory=list)
    after_end: Sequence[Exchange] = ()
    send: Callable[[str, Exchange], None] = lambda session, exchange: None
    session: str = ""
    place: int = 0

    def clone(self) -> Self:
        """Return itself: one run at a time."""
        return self

    async def open(self, session: Any) -> None:
        self.session, self.place = session.name, 0

    async def call(self, input: AgentInput) -> AgentReturnTypes:  # noqa: A002 (the documented name)
        part = self.parts[self.place]
        self.place += 1
        await asyncio.to_thread(self._send, part.now)
        part.writes()
        return f"answer {self.place}"

    def go_on(self) -> None:
        part = self.parts[self.place - 1]
        later, part.later = part.later, ()
        self._send(later)
        part.writes_later()

    async def close(self) -> None:
        await asyncio.to_thread(self._send, self.after_end)

    def _send(self, exchanges: Sequence[Exchange]) -> None:
        for each in exchanges:
            self.send(self.session, each)


ACTOR = Actor()
"""The one that suites of these tests name."""
