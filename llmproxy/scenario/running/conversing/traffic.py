"""What passed the session of one run, as far as somebody has looked: scripts and steps of suites see it by this alone.

One request that was never recorded makes the run an error, whatever the adapter answered or raised: an agent that swallows the 404 and
says "sorry" must not pass. So who looks is told of it by MissError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from llmproxy.errors import MachineError, MissError
from llmproxy.protocol import AGENT

if TYPE_CHECKING:
    from llmproxy.client.reports import Call
    from llmproxy.scenario.proxy.session import RunSession
    from llmproxy.trace.observing.servers import Served
    from llmproxy.trace.observing.tools import ToolUse
    from llmproxy.trace.observing.wire import Wire


@dataclass
class Traffic:
    session: RunSession | None = None
    """None without a proxy: nothing is ever seen."""
    seen: int = 0
    """Number of the last call of the session that was looked at."""
    answered: int = 0
    """Number of the last call that was there when the agent answered, or somebody looked; what comes later is late."""
    calls: list[Call] = field(default_factory=list)
    """Of the whole run, as far as it was looked at; whoever made them."""
    misses: list[str] = field(default_factory=list)
    """What was never recorded, as texts that explain themselves."""
    relied: bool = False
    """Whether somebody saw what the agent called, and relies on there being nothing else."""
    hear_calls: Callable[[Sequence[Call]], None] | None = None
    """Hears of calls that are new."""
    _wire: Wire | None = None
    _read: int = 0
    """How many of the calls the wire has read."""

    async def look(self, error: Exception | None = None) -> Sequence[Call]:
        """Ask the session what passed since it was asked last; `error` is what the adapter raised meanwhile.

        Raises:
            MissError: a request was never recorded.

        """
        if self.session is None:
            return ()
        return await self._note(self.session, await self.session.calls(self.seen), error)

    async def catch_up(self) -> None:
        """Look for somebody who is about to look at the wire: what is there now is not late. Raises MissError."""
        await self.look()
        self.answered = self.seen

    async def late(self, session: RunSession, further: Sequence[Call] | None, *, named: bool = False) -> list[Call]:
        """Return the agent's calls that nobody could know of; `further` came with the end of the session.

        `named`: everything was said about the run already, so what was never recorded is named like the rest.

        Raises:
            MissError: a request was never recorded.
            MachineError: the proxy did not say what came.

        """
        if further is None:
            raise MachineError("the proxy is of an earlier version: it does not tell which calls came last.")
        if named:
            late = [call for call in further if call.party == AGENT]
            self.wire.read(late)
            return late
        await self._note(session, further, None)
        return [call for call in self.calls if call.party == AGENT and call.seq > self.answered]

    async def _note(self, session: RunSession, calls: Sequence[Call], error: Exception | None) -> Sequence[Call]:
        before, self.seen = self.seen, max((call.seq for call in calls), default=self.seen)
        self.calls.extend(calls)
        if self.hear_calls is not None:
            self.hear_calls(calls)
        if missed := [call for call in calls if call.miss]:
            texts = await session.misses(before) or tuple(call.note for call in missed)
            self.misses.extend(texts)
            raise MissError(texts[0]) from error
        return calls

    # -- what it says

    @property
    def wire(self) -> Wire:
        """Everything that the agent said to models and servers, as far as it was looked at; results may come with a later call."""
        if self._wire is None:
            from llmproxy.trace.observing.wire import Wire

            self._wire = Wire()
        self._wire.read(self.calls[self._read :])
        self._read = len(self.calls)
        return self._wire

    @property
    def tools(self) -> Sequence[ToolUse] | None:
        """The agent's tool calls, None without a proxy, for somebody who relies on there being no others."""
        if self.session is None:
            return None
        self.relied = True
        return self.wire.tools()

    @property
    def served(self) -> Served | None:
        """What servers of tools (MCP) got from the agent, None without a proxy; whoever asks relies on it."""
        if self.session is None:
            return None
        self.relied = True
        return self.wire.read_served()

    @property
    def unread(self) -> str:
        """Which answer to the agent is not known, and why; empty if all are."""
        if not self.calls:
            return ""
        return next((f"{each.where} {each.unread}" for each in self.wire.step(0).unread), "")

    @property
    def unknown(self) -> Sequence[str]:
        """Why it is not known what answers to the agent asked for, each reason once; the same in every replay."""
        if not self.calls:
            return ()
        return tuple(dict.fromkeys(each.unread for each in self.wire.step(0).unread))

    def recorded_at(self) -> float | None:
        """Return when the first of the replayed calls was recorded, Unix time; None if none was replayed."""
        if not self.calls:
            return None
        from llmproxy.trace.observing.wire import recorded_at

        return recorded_at(self.calls)
