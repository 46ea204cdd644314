"""Call one adapter once, and make sure of what comes back.

    take turns (adapters of this process, with a session) -> call, at most `call_timeout` seconds -> what the wire saw -> a result or messages

This is the one place where a run calls somebody: a turn of a scenario and one of a suite differ in how long they wait and in the words of
their errors (`AskAdapter`, `ReadAnswer`, `ExplainMiss`), in nothing else.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from llmproxy.client.reports import never_reached
from llmproxy.errors import AgentError, LLMProxyError, MachineError, MissError, UpstreamError
from llmproxy.scenario.agent_adapter import AgentAdapter
from llmproxy.scenario.running.conversing.traffic import Traffic
from llmproxy.scenario.types import AgentInput, AgentRole, Message, ScenarioResult
from llmproxy.scenario.values.criteria import refuse_contradiction
from llmproxy.scenario.values.messages import Farewell, messages_of, not_awaitable
from llmproxy.scenario.values.run import describe_exit

if TYPE_CHECKING:
    from llmproxy.trace.observing.tools import ToolUse


@dataclass(frozen=True, slots=True)
class AdapterAnswer:
    returned: ScenarioResult | list[Message]
    seconds: float
    tool_calls: Sequence[ToolUse] = ()
    """What it called on the wire meanwhile."""
    farewell: Farewell | None = None
    """How it took its leave, if it did."""


AskAdapter = Callable[[AgentAdapter, AgentInput], Awaitable[object]]
"""Calls an adapter, and limits how long that takes."""
ReadAnswer = Callable[[AgentAdapter, object], ScenarioResult | list[Message]]
"""Makes sure of what an adapter returned."""
ExplainMiss = Callable[[AgentAdapter, MissError], MissError]
"""Makes an error of one, for a reader who knows what he typed."""


@dataclass
class Caller:
    """Calls the adapters of one run."""

    limit: float | None
    """Seconds that one call may take; None: as long as it likes."""
    traffic: Traffic = field(default_factory=Traffic)
    clock: Callable[[], float] = time.monotonic
    busy: AgentAdapter | None = None
    """Who is being called now."""
    since: float = 0.0
    """When, by `clock`."""
    waited: float = 0.0
    """Seconds that agents waited for their turn."""
    broke: AgentRole | None = None
    """Whose call an error ended."""
    ask: AskAdapter | None = None
    """How an adapter is called; None: in limited time."""
    read: ReadAnswer | None = None
    """What an answer is taken for; None: for a result or messages."""
    explain: ExplainMiss | None = None
    """Says more of a request that was never recorded."""

    @property
    def at_work(self) -> AgentRole | None:
        """Who is called, or was when an error ended the run."""
        return self.broke or (self.busy.role if self.busy else None)

    async def call(self, agent: AgentAdapter, given: AgentInput) -> AdapterAnswer:
        """Call an adapter.

        Raises what `ask` and `read` raise (without them: what the adapter raises; AgentError or UpstreamError when it takes too long,
        ValueError when it returns what is no message), MissError when a request of it was never recorded, UpstreamError when it failed
        because it could not reach its provider.
        """
        try:
            return await self._call(agent, given)
        except MissError as error:
            if self.explain is None:
                raise
            raise self.explain(agent, error) from error.__cause__

    async def _call(self, agent: AgentAdapter, given: AgentInput) -> AdapterAnswer:
        async with self._turn(agent) as waited:
            self.waited += waited or 0.0
            self.busy, self.since = agent, self.clock()
            try:
                returned = await (self.ask or self._call_in_time)(agent, given)
            except Exception as error:
                await self._look(agent, error)
                raise
            finally:
                seconds, self.busy = self.clock() - self.since, None
        try:
            meant = (self.read or _read_answer)(agent, returned)
        except Exception as error:
            await self._look(agent, error)
            raise
        return AdapterAnswer(
            meant, seconds, await self._look(agent), returned if isinstance(returned, Farewell) else None
        )

    def too_long(self, agent: AgentAdapter, limit: float, *, blocked: bool = False) -> LLMProxyError:
        """Return the error for an adapter that was called and has not answered."""
        name = type(agent).__name__
        how = "It blocks its thread, which goes on until it returns; " if blocked else ""
        kind = AgentError if agent.role is AgentRole.AGENT else UpstreamError
        return kind(
            f"{name} ({agent.role.value}) gave no answer in {limit:g} s.",
            hint=f"{how}call_timeout=<seconds> allows more for each call, call_timeout=None any time.",
        )

    async def _call_in_time(self, agent: AgentAdapter, given: AgentInput) -> object:
        return await call_in_time(agent, given, self.limit, partial(self.too_long, agent), name=type(agent).__name__)

    def _turn(self, agent: AgentAdapter) -> AbstractAsyncContextManager[float | None]:
        session = self.traffic.session
        return nullcontext(0.0) if session is None else session.turn(agent)

    async def _look(self, agent: AgentAdapter, error: Exception | None = None) -> Sequence[ToolUse]:
        """Look at what the session saw since the last look.

        Raises:
            MissError: a request was never recorded.
            UpstreamError: the agent raised, and could not reach its provider.

        """
        traffic = self.traffic
        before, calls = traffic.seen, () if agent.raises_misses else await traffic.look(error)
        if isinstance(error, MissError):  # that the session does not tell by itself
            traffic.misses.append(str(error))
        if agent.role is not AgentRole.AGENT:
            return ()
        traffic.answered = traffic.seen
        if error is not None and (lost := never_reached(calls)):
            raise UpstreamError(lost) from error
        return [each for each in traffic.wire.tools() if each.seq > before] if calls else ()


async def call_in_time(
    agent: AgentAdapter,
    given: AgentInput,
    limit: float | None,
    too_long: Callable[[float], LLMProxyError],
    *,
    name: str,
    hint: str = "",
) -> object:
    """Call an adapter once, at most `limit` seconds, and let nothing of it end more than this call.

    Raises what `too_long` makes of the limit; AgentError for an agent that exits (`hint`: what it should do instead), MachineError for
    another adapter that does; AgentError for a cancellation of its own; TypeError for what cannot be awaited; and what the adapter raises.
    """
    task, scope = asyncio.current_task(), asyncio.timeout(limit)
    try:
        async with scope:
            pending = agent.call(given)
            if not inspect.isawaitable(pending):
                raise TypeError(not_awaitable(type(agent).__name__))
            return await pending
    except TimeoutError as error:
        if scope.expired() and limit is not None:
            raise too_long(limit) from error
        raise
    except SystemExit as error:
        kind = AgentError if agent.role is AgentRole.AGENT else MachineError
        raise kind(f"{describe_exit(name, error)} instead of answering.", hint=hint) from error
    except asyncio.CancelledError as error:
        if task is None or task.cancelling():
            raise
        raise AgentError(f"{name} raised CancelledError, although nobody cancelled it.") from error


def _read_answer(agent: AgentAdapter, returned: object) -> ScenarioResult | list[Message]:
    name = type(agent).__name__
    if isinstance(returned, ScenarioResult):
        refuse_contradiction(name, returned)
        return returned
    return messages_of(returned, agent.role, name)
