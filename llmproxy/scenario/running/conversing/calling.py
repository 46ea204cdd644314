"""Call one adapter once, and make sure of what comes back.

    take turns (adapters of this process, with a session) -> call, at most `call_timeout` seconds -> what the wire saw -> a result or messages

After the call the session is asked for requests that were never recorded. One is enough to make the run an error, whatever the adapter
answered or raised: an agent that swallows the 404 and says "sorry" must not pass.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from llmproxy.client.control.told import never_reached
from llmproxy.errors import AgentError, LLMProxyError, MachineError, MissError, UpstreamError
from llmproxy.protocol import AGENT
from llmproxy.scenario.agent_adapter import AgentAdapter
from llmproxy.scenario.types import AgentInput, AgentRole, Message, ScenarioResult
from llmproxy.scenario.values.criteria import refuse_contradiction
from llmproxy.scenario.values.farewell import Farewell
from llmproxy.scenario.values.fault import left
from llmproxy.scenario.values.messages import messages_of, not_awaitable

if TYPE_CHECKING:
    from llmproxy.client.control.client import Call
    from llmproxy.scenario.proxy.session import RunSession
    from llmproxy.trace.observing.servers import Served
    from llmproxy.trace.observing.tools import ToolUse
    from llmproxy.trace.observing.wire import Wire

__all__ = ["AdapterAnswer", "Caller"]


@dataclass(frozen=True, slots=True)
class AdapterAnswer:
    """What an adapter answered."""

    returned: ScenarioResult | list[Message]
    seconds: float
    tool_calls: Sequence[ToolUse] = ()
    """What it called on the wire meanwhile."""
    leaves: bool = False
    """Whether it took its leave (`Farewell`)."""


@dataclass
class Caller:
    """Calls the adapters of one run."""

    limit: float | None
    """Seconds that one call may take; None: as long as it likes."""
    session: RunSession | None = None
    clock: Callable[[], float] = time.monotonic
    busy: AgentAdapter | None = None
    """Who is being called now."""
    since: float = 0.0
    """When, by `clock`."""
    waited: float = 0.0
    """Seconds that agents waited for their turn."""
    seen: int = 0
    """Number of the last exchange of the session that was looked at."""
    answered: int = 0
    """Number of the last exchange that was there when the agent answered, or somebody looked; what comes later is late."""
    misses: list[str] = field(default_factory=list)
    exchanges: list[Call] = field(default_factory=list)
    """What went over the wire, of the whole run, as far as it was looked at."""
    _wire: Wire | None = None
    _fed: int = 0
    """How many of the exchanges the wire has read."""

    async def call(self, agent: AgentAdapter, given: AgentInput) -> AdapterAnswer:
        """Call an adapter.

        Raises what it raises; AgentError or UpstreamError when it takes too long, ValueError when it returns what is no message,
        MissError when a request of it was never recorded.
        """
        async with self._turn(agent) as waited:
            self.waited += waited or 0.0
            self.busy, self.since = agent, self.clock()
            try:
                returned = await self._limited(agent, given)
            except Exception as error:
                await self._look(agent, error)
                raise
            finally:
                seconds, self.busy = self.clock() - self.since, None
        calls = await self._look(agent)
        name = type(agent).__name__
        if isinstance(returned, ScenarioResult):
            refuse_contradiction(name, returned)
        meant = returned if isinstance(returned, ScenarioResult) else messages_of(returned, agent.role, name)
        return AdapterAnswer(meant, seconds, calls, isinstance(returned, Farewell))

    def too_long(self, agent: AgentAdapter, limit: float, *, blocked: bool = False) -> LLMProxyError:
        """Return the error for an adapter that was called and has not answered."""
        name = type(agent).__name__
        how = "It blocks its thread, which goes on until it returns; " if blocked else ""
        kind = AgentError if agent.role is AgentRole.AGENT else UpstreamError
        return kind(
            f"{name} ({agent.role.value}) gave no answer in {limit:g} s.",
            hint=f"{how}call_timeout=<seconds> allows more for each call, call_timeout=None any time.",
        )

    async def _limited(self, agent: AgentAdapter, given: AgentInput) -> object:
        pending = agent.call(given)
        if not inspect.isawaitable(pending):
            raise TypeError(not_awaitable(type(agent).__name__))
        task = asyncio.current_task()
        scope = asyncio.timeout(self.limit)
        try:
            async with scope:
                return await pending
        except TimeoutError as error:
            if scope.expired() and self.limit is not None:
                raise self.too_long(agent, self.limit) from error
            raise
        except SystemExit as error:
            kind = AgentError if agent.role is AgentRole.AGENT else MachineError
            raise kind(f"{left(type(agent).__name__, error)} instead of answering.") from error
        except asyncio.CancelledError as error:
            if task is None or task.cancelling():
                raise
            raise AgentError(f"{type(agent).__name__} raised CancelledError, although nobody cancelled it.") from error

    def _turn(self, agent: AgentAdapter) -> AbstractAsyncContextManager[float | None]:
        return nullcontext(0.0) if self.session is None else self.session.turn(agent)

    async def _look(self, agent: AgentAdapter, error: Exception | None = None) -> Sequence[ToolUse]:
        """Look at what the session saw since the last look.

        Raises:
            MissError: a request was never recorded.
            UpstreamError: the agent raised, and could not reach its provider.

        """
        if isinstance(error, MissError):
            self.misses.append(str(error))
        if isinstance(error, MissError) or agent.raises_misses:
            return ()
        before, calls = self.seen, await self._pull(error)
        if agent.role is not AgentRole.AGENT:
            return ()
        self.answered = self.seen
        if error is not None and (lost := never_reached(calls)):
            raise UpstreamError(lost) from error
        return [each for each in self.wire() if each.seq > before] if calls else ()

    async def catch_up(self) -> None:
        """Look at what passed since, for somebody who is about to look at the wire. Raises MissError."""
        await self._pull(None)
        self.answered = self.seen

    async def late(self, session: RunSession, further: Sequence[Call] | None) -> list[Call]:
        """Return the agent's calls that nobody could know of; `further` came with the end of the session.

        Raises:
            MissError: a request was never recorded.
            MachineError: the proxy did not say what came.

        """
        if further is None:
            raise MachineError("the proxy is of an earlier version: it does not tell which calls came last.")
        await self._take(session, further, None)
        return [call for call in self.exchanges if call.party == AGENT and call.seq > self.answered]

    async def _pull(self, error: Exception | None) -> Sequence[Call]:
        """Ask the session what passed since it was asked last."""
        if self.session is None:
            return ()
        return await self._take(self.session, await self.session.calls(self.seen), error)

    async def _take(self, session: RunSession, calls: Sequence[Call], error: Exception | None) -> Sequence[Call]:
        """Note calls that are new."""
        before, self.seen = self.seen, max((call.seq for call in calls), default=self.seen)
        self.exchanges.extend(calls)
        if any(call.miss for call in calls):
            texts = await session.misses(before)
            self.misses.extend(texts)
            raise MissError(texts[0] if texts else next(call.note for call in calls if call.miss)) from error
        return calls

    def wire(self) -> Sequence[ToolUse]:
        """Return the tool calls of the agent on the wire, of the whole run; results may have come with a later call."""
        return self.read().tools() if self.exchanges else ()

    def served(self) -> Served:
        """Return what servers of tools got from the agent, of the whole run."""
        return self.read().served()

    def unread(self) -> str:
        """Say which answer to the agent is not known, and why; empty if all are."""
        if not self.exchanges:
            return ""
        return next((f"{each.where} {each.unread}" for each in self.read().step(0).unread), "")

    def unknown(self) -> Sequence[str]:
        """Say why it is not known what answers to the agent asked for, each reason once; the same in every replay."""
        if not self.exchanges:
            return ()
        return tuple(dict.fromkeys(each.unread for each in self.read().step(0).unread))

    def read(self) -> Wire:
        """Return everything that the agent said to models, as far as it was looked at."""
        if self._wire is None:
            from llmproxy.trace.observing.wire import Wire

            self._wire = Wire()
        self._wire.read(self.exchanges[self._fed :])
        self._fed = len(self.exchanges)
        return self._wire

    def recorded_at(self) -> float | None:
        """Return when the first of the replayed exchanges was recorded, Unix time; None if none was replayed."""
        if not self.exchanges:
            return None
        from llmproxy.trace.observing.wire import recorded_at

        return recorded_at(self.exchanges)
