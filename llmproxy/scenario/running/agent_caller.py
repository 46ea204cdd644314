"""Adapters of a run: created or cloned, opened, called one by one with the session's traffic observed, and closed.

An adapter with a lifecycle (it overrides `open` or `clone`) belongs to one run at a time: a concurrent run gets its
clone. Other objects are shared, as users expect.

This is the only place where a run calls an adapter; a scenario and a suite differ only in `AskAdapter`, `ReadAnswer`,
`ExplainMiss`. A request that was never recorded makes the run an error, whatever the adapter answered or raised: an
agent that swallows the 404 and says "sorry" must not pass. So readers of the traffic get it as MissError.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from contextvars import copy_context
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, Self

from llmproxy.calls_and_totals import Call
from llmproxy.client.child_env import detect_cwd_home_date_variables
from llmproxy.client.session_reports import explain_unreachable_provider
from llmproxy.errors import AgentError, LLMProxyError, MachineError, MissError, UpstreamError
from llmproxy.protocol import AGENT
from llmproxy.scenario.agent_adapter import AgentAdapter, OptionalAdapterAttributes
from llmproxy.scenario.run_session import RunSession
from llmproxy.scenario.types import AgentInput, AgentReturnTypes, AgentRole, Message, ScenarioResult
from llmproxy.scenario.values.criteria import reject_contradictory_verdict
from llmproxy.scenario.values.messages import UserFarewellMessages, convert_return_to_messages, explain_call_not_async
from llmproxy.scenario.values.run_ids_and_options import describe_sys_exit
from llmproxy.trace.observing.agent_activity import ModelCallObserver
from llmproxy.trace.observing.tool_calls import ToolCallsAtMcpServers, ToolUse


@dataclass
class ConnectedAgentCall:
    messages: list[Message]
    new_messages: list[Message] = field(default_factory=list)
    thread_id: str = ""
    session: Any = None  # the agent's, of the previous turn
    trace_id: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)

    def turn_fields(self) -> dict[str, Any]:
        """Return the turn's fields, without the parameters of the run."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "parameters"}


class ConnectedAgentAdapter(AgentAdapter):
    def __init__(self, agent: Any, parameters: Mapping[str, Any] | None = None) -> None:
        """Wrap an object with `name` and `invoke`. Raises TypeError for another."""
        if not is_agent_with_invoke_method(agent):
            raise TypeError(f"ConnectedAgentAdapter takes an object with a name and a method invoke, not {agent!r}")
        self.agent = agent
        self.name: str = agent.name
        self.parameters = dict(parameters or {})
        self._sessions: dict[str, Any] = {}

    def session_for(self, thread_id: str) -> Any:
        return self._sessions.get(thread_id)

    def clone(self) -> Self:
        return type(self)(self.agent, self.parameters)

    async def call(self, input: AgentInput) -> AgentReturnTypes:  # noqa: A002 (the documented name)
        parts = input.propagation_headers.get("traceparent", "").split("-")
        told = ConnectedAgentCall(
            messages=input.messages,
            new_messages=input.new_messages,
            thread_id=input.thread_id,
            session=self._sessions.get(input.thread_id),
            trace_id=parts[1] if len(parts) > 1 else None,
            parameters=dict(self.parameters),
        )
        reply = self.agent.invoke(told)
        output, session = _split_output_and_session(await reply if inspect.isawaitable(reply) else reply)
        if session is not None:
            self._sessions[input.thread_id] = session
        return output


def is_agent_with_invoke_method(value: object) -> bool:
    return (
        not isinstance(value, AgentAdapter | type)
        and isinstance(getattr(value, "name", None), str)
        and callable(getattr(value, "invoke", None))
    )


def _split_output_and_session(reply: Any) -> tuple[Any, Any]:
    if isinstance(reply, Mapping):
        return (reply["output"], reply.get("session")) if "output" in reply else (reply, None)
    if not isinstance(reply, str | list | tuple) and hasattr(reply, "output"):
        return reply.output, getattr(reply, "session", None)
    return list(reply) if isinstance(reply, tuple) else reply, None


_ENTRY = threading.Lock()
_PLAYING: dict[int, AgentAdapter] = {}  # by identity, of active runs; guarded by the lock
_log = logging.getLogger(__name__)


def read_run_variables_from_agent_env(agent: AgentAdapter) -> list[dict[str, str]]:
    """Return the run variables of an agent, started by us or in this process; a service's are unknown."""
    if agent.in_process:
        return detect_cwd_home_date_variables(os.environ, Path.cwd())
    where = OptionalAdapterAttributes.of_adapter(agent).process_env_and_folder
    return detect_cwd_home_date_variables(*where) if where else []


def convert_to_agent_adapters(agents: Sequence[Any], parameters: Mapping[str, Any] | None = None) -> list[AgentAdapter]:
    """Return the adapters in a list of agents; connected ones get `parameters`. Raises ValueError for anything else."""
    found = []
    for place, given in enumerate(agents):
        made = ConnectedAgentAdapter(given, parameters) if is_agent_with_invoke_method(given) else given
        if isinstance(made, type) or (callable(made) and not isinstance(made, AgentAdapter)):
            made = made()
        if not isinstance(made, AgentAdapter):
            raise ValueError(  # noqa: TRY004 (as for every other argument that cannot be meant)
                f"agents[{place}] is {made!r}, which is no agent; wrap it in a class that inherits from "
                f"scenario.AgentAdapter:\n\n"
                "    class MyAgent(scenario.AgentAdapter):\n"
                "        async def call(self, input: scenario.AgentInput) -> scenario.AgentReturnTypes:\n"
                "            return my_agent(input.last_new_user_message_str())\n"
            )
        found.append(made)
    return found


class Participants:
    def __init__(self, agents: list[AgentAdapter]) -> None:
        """Use these; `claim_adapters` may replace them by clones, in the same list."""
        self.agents = agents
        self._mine: list[AgentAdapter] = []
        self.opened: list[AgentAdapter] = []

    def claim_adapters(self) -> None:
        """Claim the adapters for this run, with clones of those in use by another run."""
        clones: dict[int, AgentAdapter] = {}
        with _ENTRY:
            for place, agent in enumerate(self.agents):
                kind = type(agent)
                is_shared = kind.open is AgentAdapter.open and kind.clone is AgentAdapter.clone
                if is_shared or any(agent is each for each in self._mine):
                    continue
                if id(agent) in clones:
                    self.agents[place] = clones[id(agent)]
                    continue
                if id(agent) in _PLAYING:
                    self.agents[place] = clones[id(agent)] = agent.clone()
                taken = self.agents[place]
                _PLAYING[id(taken)] = taken
                self._mine.append(taken)

    async def open_adapters(self, session: RunSession | None) -> None:
        """Open every adapter once, in order. Raises the first error; its adapter is the last of `opened`."""
        for agent in self.agents:
            if not any(agent is each for each in self.opened):
                self.opened.append(agent)
                await agent.open(session)

    async def close_adapters(self) -> list[str]:
        problems = []
        try:
            while self.opened:
                agent = self.opened.pop()
                try:
                    await agent.close()
                except Exception as error:  # noqa: BLE001 (told in the result)
                    _log.exception("%s could not close", type(agent).__name__)
                    problems.append(f"{type(agent).__name__} could not close: {str(error) or type(error).__name__}")
        finally:
            with _ENTRY:
                while self._mine:
                    _PLAYING.pop(id(self._mine.pop()), None)
        return problems


@dataclass
class AgentTraffic:
    session: RunSession | None = None  # None without a proxy: no traffic is observed
    seen: int = 0  # number of the last call that was read
    answered: int = 0
    """Number of the last call at the agent's answer, or at the last read; later ones are late."""
    calls: list[Call] = field(default_factory=list)
    misses: list[str] = field(default_factory=list)
    relied: bool = False
    """Whether the agent's calls were read by code that relies on there being no others."""
    on_calls: Callable[[Sequence[Call]], None] | None = None
    _wire: ModelCallObserver = field(default_factory=ModelCallObserver)
    _read: int = 0

    async def read_new_calls(self, error: Exception | None = None) -> Sequence[Call]:
        """Read new calls; `error`: the adapter's exception meanwhile. Raises MissError."""
        if self.session is None:
            return ()
        return await self._add_calls(self.session, await self.session.calls(self.seen), error)

    async def mark_calls_not_late(self) -> None:
        """Read calls for a reader of the wire: existing ones are not late. Raises MissError."""
        await self.read_new_calls()
        self.answered = self.seen

    async def find_late_calls(
        self, session: RunSession, further: Sequence[Call] | None, *, named: bool = False
    ) -> list[Call]:
        """Return late calls of the agent; `named`: with misses. Raises MissError, MachineError: they are gone."""
        if further is None:
            raise MachineError("the proxy is of an earlier version: it does not tell which calls came last.")
        if named:
            late = [call for call in further if call.party == AGENT]
            self.wire_observer.add_calls_with_recordings(late)
            return late
        await self._add_calls(session, further, None)
        return [call for call in self.calls if call.party == AGENT and call.seq > self.answered]

    async def _add_calls(self, session: RunSession, calls: Sequence[Call], error: Exception | None) -> Sequence[Call]:
        before, self.seen = self.seen, max((call.seq for call in calls), default=self.seen)
        self.calls.extend(calls)
        if self.on_calls is not None:
            self.on_calls(calls)
        if missed := [call for call in calls if call.miss]:
            texts = await session.misses(before) or tuple(call.note for call in missed)
            self.misses.extend(texts)
            raise MissError(texts[0]) from error
        return calls

    @property
    def wire_observer(self) -> ModelCallObserver:
        """All traffic of the agent with models and servers that was read; results may come with later calls."""
        self._wire.add_calls_with_recordings(self.calls[self._read :])
        self._read = len(self.calls)
        return self._wire

    @property
    def agent_tool_calls(self) -> Sequence[ToolUse] | None:
        """The agent's tool calls, None without a proxy; the reader relies on there being no others."""
        if self.session is None:
            return None
        self.relied = True
        return self.wire_observer.list_tool_uses()

    @property
    def server_calls(self) -> ToolCallsAtMcpServers | None:
        """The agent's calls received by MCP servers, None without a proxy; the reader relies on it."""
        if self.session is None:
            return None
        self.relied = True
        return self.wire_observer.read_tool_server_calls()

    @property
    def unread_reason(self) -> str:
        return next((f"{each.label} {each.unread_reason}" for each in self.wire_observer.build_step(0).unreadable), "")

    @property
    def unknown_call_reasons(self) -> Sequence[str]:
        """Reasons why tool calls in answers to the agent are unknown, each once; the same in every replay."""
        return tuple(dict.fromkeys(each.unread_reason for each in self.wire_observer.build_step(0).unreadable))


@dataclass(frozen=True, slots=True)
class AdapterAnswer:
    returned: ScenarioResult | list[Message]
    seconds: float
    tool_calls: Sequence[ToolUse] = ()
    farewell: UserFarewellMessages | None = None


AskAdapter = Callable[[AgentAdapter, AgentInput], Awaitable[object]]
ReadAnswer = Callable[[AgentAdapter, object], ScenarioResult | list[Message]]
ExplainMiss = Callable[[AgentAdapter, MissError], Awaitable[MissError]]
"""Builds the error of a miss, with advice for the user's command."""


@dataclass
class AgentCaller:
    limit: float | None  # seconds for a call
    traffic: AgentTraffic = field(default_factory=AgentTraffic)
    clock: Callable[[], float] = time.monotonic
    busy: AgentAdapter | None = None
    since: float = 0.0  # by `clock`
    waited: float = 0.0  # seconds that agents waited for their turn
    broke: AgentRole | None = None  # whose call raised an error
    ask: AskAdapter | None = None  # None: with a time limit
    read: ReadAnswer | None = None  # None: as a result or messages
    explain: ExplainMiss | None = None

    @property
    def current_party(self) -> AgentRole | None:
        return self.broke or (self.busy.role if self.busy else None)

    async def call_agent(self, agent: AgentAdapter, given: AgentInput) -> AdapterAnswer:
        """Call an adapter.

        Raises the errors of `ask` and `read` (without them: the adapter's; AgentError or UpstreamError after a timeout,
        ValueError for an invalid return value), MissError when a request of it was never recorded, UpstreamError when
        it failed because it could not reach its provider.
        """
        try:
            return await self._call_in_turn(agent, given)
        except MissError as error:
            if self.explain is None:
                raise
            raise await self.explain(agent, error) from error.__cause__

    async def _call_in_turn(self, agent: AgentAdapter, given: AgentInput) -> AdapterAnswer:
        session = self.traffic.session
        async with nullcontext(0.0) if session is None else session.speaking_turn(agent) as waited:
            self.waited += waited
            self.busy, self.since = agent, self.clock()
            try:
                if self.ask is not None:
                    returned = await self.ask(agent, given)
                else:
                    too_long = partial(self.build_timeout_error, agent)
                    returned = await call_async_adapter_in_time(
                        agent, given, self.limit, too_long, name=type(agent).__name__
                    )
            except Exception as error:
                await self._read_new_tool_calls(agent, error)
                raise
            finally:
                seconds, self.busy = self.clock() - self.since, None
        try:
            meant = (self.read or _read_result_or_messages)(agent, returned)
        except Exception as error:
            await self._read_new_tool_calls(agent, error)
            raise
        farewell = returned if isinstance(returned, UserFarewellMessages) else None
        return AdapterAnswer(meant, seconds, await self._read_new_tool_calls(agent), farewell)

    def build_timeout_error(self, agent: AgentAdapter, limit: float, *, blocked: bool = False) -> LLMProxyError:
        name = type(agent).__name__
        how = "It blocks its thread, which goes on until it returns; " if blocked else ""
        kind = AgentError if agent.role is AgentRole.AGENT else UpstreamError
        return kind(
            f"{name} ({agent.role.value}) gave no answer in {limit:g} s.",
            hint=f"{how}call_timeout=<seconds> allows more for each call, call_timeout=None any time.",
        )

    async def _read_new_tool_calls(self, agent: AgentAdapter, error: Exception | None = None) -> Sequence[ToolUse]:
        """Read new traffic. Raises MissError; UpstreamError: the agent's provider is unreachable."""
        traffic = self.traffic
        before, calls = traffic.seen, () if agent.raises_misses else await traffic.read_new_calls(error)
        if isinstance(error, MissError):  # that the session does not tell by itself
            traffic.misses.append(str(error))
        if agent.role is not AgentRole.AGENT:
            return ()
        traffic.answered = traffic.seen
        if error is not None and (lost := explain_unreachable_provider(calls)):
            raise UpstreamError(lost) from error
        return [each for each in traffic.wire_observer.list_tool_uses() if each.seq > before] if calls else ()


async def call_async_adapter_in_time(
    agent: AgentAdapter, given: AgentInput, limit: float | None, too_long: Callable[[float], LLMProxyError], *,
    name: str, hint: str = "",
) -> object:  # fmt: skip
    """Call an adapter once, at most `limit` seconds, and contain its failures.

    Raises the error of `too_long`; AgentError for an agent that exits the process (`hint`: an alternative),
    MachineError for another adapter that does; AgentError for a cancellation of its own; TypeError: not awaitable.
    """
    task, scope = asyncio.current_task(), asyncio.timeout(limit)
    try:
        async with scope:
            pending = agent.call(given)
            if not inspect.isawaitable(pending):
                raise TypeError(explain_call_not_async(type(agent).__name__))
            return await pending
    except TimeoutError as error:
        if scope.expired() and limit is not None:
            raise too_long(limit) from error
        raise
    except SystemExit as error:
        kind = AgentError if agent.role is AgentRole.AGENT else MachineError
        raise kind(f"{describe_sys_exit(name, error)} instead of answering.", hint=hint) from error
    except asyncio.CancelledError as error:
        if task is None or task.cancelling():
            raise
        raise AgentError(f"{name} raised CancelledError, although nobody cancelled it.") from error


def submit_call_to_daemon_thread[T](act: Callable[[], T]) -> Future[T]:
    """Make a blocking call in a thread that nobody waits for at the end: one that hangs must not hang the rest."""
    done: Future[T] = Future()
    context = copy_context()

    def work() -> None:
        try:
            done.set_result(context.run(act))
        except BaseException as error:  # noqa: BLE001 - it belongs to the caller
            done.set_exception(error)

    done.set_running_or_notify_cancel()
    threading.Thread(target=work, daemon=True, name="llmproxy call").start()
    return done


async def await_call_in_daemon_thread[T](act: Callable[[], T]) -> T:
    return await asyncio.wrap_future(submit_call_to_daemon_thread(act))


def _read_result_or_messages(agent: AgentAdapter, returned: object) -> ScenarioResult | list[Message]:
    name = type(agent).__name__
    if isinstance(returned, ScenarioResult):
        reject_contradictory_verdict(name, returned)
        return returned
    return convert_return_to_messages(returned, agent.role, name)
