"""What a step of a scenario has at hand, and what follows an answer of the agent; faults of a scenario, and of a step
in their place.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmproxy.calls import Call
from llmproxy.client.reports import find_unused_faults
from llmproxy.errors import MissError, SuiteError
from llmproxy.protocol import AGENT
from llmproxy.report.events import Assertion, Event, Message, Status
from llmproxy.scenario.agent_adapter import AdapterAttributes, AgentAdapter
from llmproxy.scenario.running.calling import AdapterAnswer, Caller, Traffic
from llmproxy.scenario.session import RunSession
from llmproxy.scenario.types import AgentRole
from llmproxy.scenario.values.messages import text_of
from llmproxy.suite.checks.answers import Snapshots
from llmproxy.suite.checks.entities.verify import Entities
from llmproxy.suite.matchers.variables import VariableScope
from llmproxy.suite.project import Options
from llmproxy.suite.reading.load import SuiteCase
from llmproxy.suite.run.conversations import Conversations, Player, SuiteCalling, SuiteConversation
from llmproxy.suite.run.rejudge import RecordedAgent
from llmproxy.suite.selection import explain_miss
from llmproxy.trace.observing.wire import Observed, Wire

STEP_TIMEOUT = 120_000.0
"""Milliseconds for one answer of an agent, unless the suite says otherwise."""
_QUIET = 0.02
"""Seconds between two looks whether the traffic is quiet."""


@dataclass(slots=True)
class StepResult:
    wire: list[Assertion] = field(default_factory=list)
    """Assertions about the agent's traffic."""
    rest: list[Assertion] = field(default_factory=list)
    """All others."""
    message: str = ""
    interactions: Sequence[int] = ()
    recordings: Sequence[str] = ()
    again: Callable[[], tuple[list[Assertion], Observed]] | None = None
    """Evaluates what is about traffic again, for calls that came after the answer."""
    status: Status | None = None
    """If its assertions do not say so."""

    @property
    def assertions(self) -> list[Assertion]:
        return [*self.wire, *self.rest]

    def recheck_traffic(self) -> None:
        """Evaluate once more what is about traffic."""
        if self.again is not None:
            self.wire, measured = self.again()
            self.interactions, self.recordings = measured.interactions, measured.recordings


def status_of(done: StepResult) -> Status:
    """Return how a step ended: failed, even if some of it cannot be evaluated; else that is an error."""
    if done.status is not None:
        return done.status
    found = {each.status for each in done.assertions}
    return next((each for each in (Status.FAILED, Status.ENVIRONMENT_ERROR) if each in found), Status.PASSED)


@dataclass(slots=True, kw_only=True)
class StepContext:
    """Everything that a step may use."""

    case: SuiteCase
    run_id: str
    sample: int
    options: Options
    scope: VariableScope
    entities: Entities
    agent: AgentAdapter
    session: RunSession | None
    caller: Caller
    """Calls the run's adapters, and keeps what passed the proxy."""
    snapshots: Snapshots
    user: str
    """Whose rows these are; told to the agent."""
    emit: Callable[[Event], None]
    clock: Callable[[], float]
    """Seconds that only grow."""
    now: Callable[[], float]
    """Unix time."""
    conversations: Conversations = field(init=False)
    rerun: str = ""
    """The command that runs only this case again."""
    recorded: RecordedAgent | None = None
    """The agent of a recorded run that is only judged again; None where one is run."""
    turn: int = 0
    index: int = 0
    """Of the step that is being executed, from 0."""
    agent_seconds: float = 0.0
    declared: list[tuple[int, Any]] = field(default_factory=list)
    """What the agent says about its history, by index of the step."""
    spoken: list[str] = field(default_factory=list)
    """What users said to the agent, in order."""
    labels: list[str] = field(default_factory=list)
    remarks: Sequence[Sequence[str]] = ()
    """What the checks of rows, and the clean-up, say beside the result; known at the end."""
    judged: dict[str, Any] = field(default_factory=dict)
    """What judges found, for the end of the run."""
    asking: SuiteCalling = field(default_factory=SuiteCalling)
    _start: int = 0
    """Number of the session's last call before the agent was asked."""
    _ms: float = 0.0
    """How long it took to answer."""

    def __post_init__(self) -> None:
        """Call adapters as a suite does, and hear of every call."""
        self.caller.ask, self.caller.read, self.caller.explain = self.asking.ask, self.asking.read, self._explain
        self.traffic.on_calls = self._record_faults

    # -- the wire

    @property
    def traffic(self) -> Traffic:
        return self.caller.traffic

    @property
    def wire(self) -> Wire:
        """What the agent said to models and servers."""
        return self.traffic.wire

    @property
    def cursor(self) -> int:
        """Number of the last call of the session that was looked at."""
        return self.traffic.seen

    async def pull(self) -> int:
        """Ask what passed since; returns how many calls the agent made. Raises MissError: one was never recorded."""
        known = len(self.traffic.calls)
        try:
            await self.traffic.read_new_calls()
        except MissError as error:
            raise MissError(await self._explain_miss(error.message)) from error.__cause__
        return sum(call.party == AGENT for call in self.traffic.calls[known:])

    def _record_faults(self, calls: Sequence[Call]) -> None:
        self.labels += [f"step {self.index + 1}: call {call.seq} met {call.note}" for call in calls if call.fault]

    async def _explain(self, agent: AgentAdapter, error: MissError) -> MissError:
        """Say of a miss what to do about it; what a simulated user asked is told as it is."""
        if agent.role is AgentRole.AGENT:
            return MissError(await self._explain_miss(error.message))
        if agent.role is AgentRole.USER or not self.rerun:
            return error
        return MissError(await self._explain_miss(error.message, who="the judge"))

    async def declare(self) -> None:
        """Tell the proxy the ids of rows that are known since: they are others in every run of a store that counts."""
        noted = self.scope.take_recorded()
        if noted and self.session is not None:
            await self.session.declare(noted)

    async def _explain_miss(self, text: str, who: str = "the agent") -> str:
        if not self.rerun:
            return text
        miss = await self.session.find_miss(text) if self.session is not None else None
        counted = self.entities.list_counted() if miss and miss.numbers_only and who == "the agent" else []
        starts = miss.starts if miss else {}
        return explain_miss(text, self.rerun, flag=self.options.mode_flag, starts=starts, counted=counted, who=who)

    async def settle(self) -> None:
        """Wait until the agent's traffic has been quiet for as long as the scenario says."""
        pause = (self.case.scenario.settle or 0) / 1000
        until = self.clock() + pause
        while (left := until - self.clock()) > 0:
            await asyncio.sleep(min(left, max(_QUIET, pause / 4)))
            if await self.pull():
                until = self.clock() + pause

    async def strays(self) -> int:
        """Return how many calls of this process arrived while nobody had its turn."""
        return 0 if self.session is None else await self.session.count_unattributed()

    # -- the agent

    def converse(self, name: str, thread: str) -> SuiteConversation:
        return SuiteConversation(name, thread, self.agent, self.caller, player=Player(self.user), listener=self)

    def allow(self, within: float | None) -> None:
        """Allow the agent so many milliseconds for each answer."""
        self.asking.limit = (STEP_TIMEOUT if within is None else within) / 1000

    def on_user(self, conversation: SuiteConversation, message: Mapping[str, Any]) -> None:
        self.turn += 1
        self.spoken.append(text_of(dict(message)))
        self._start = self.cursor
        self._emit(conversation, message)

    async def on_answer(self, conversation: SuiteConversation, answer: AdapterAnswer) -> None:
        """Look at the wire, until it is quiet: what passed belongs to the answer. Raises MissError."""
        if (declared := AdapterAttributes.by(self.agent).declared) is not None:
            self.declared.append((self.index, declared))
        await self.settle()
        conversation.windows[len(conversation.messages)] = self._start, self.cursor
        self.agent_seconds += answer.seconds
        self._ms = answer.seconds * 1000

    def on_agent(self, conversation: SuiteConversation, message: Mapping[str, Any], *, first: bool) -> None:
        """Tell the reports what the agent says, and before its first words what it called."""
        measured = self.wire.step(self._start)
        calls = [
            {"name": use.name, "arguments": use.arguments, "result": use.result, "where": use.where}
            for use in measured.tools
        ]
        self._emit(
            conversation,
            message,
            author="agent",
            ms=self._ms,
            tool_calls=calls if first else (),
            recordings=measured.recordings if first else (),
        )

    def _emit(self, conversation: SuiteConversation, message: Mapping[str, Any], **about: Any) -> None:  # noqa: ANN401 - fields of the event
        self.emit(
            Message(
                run_id=self.run_id,
                message=dict(message),
                turn=self.turn,
                conversation=conversation.name,
                at=self.now(),
                **about,
            )
        )

    def environment(self) -> Mapping[str, str]:
        """Return what identifies the run, for hooks."""
        return {"LLMPROXY_SCENARIO": self.case.id, "LLMPROXY_RUN": str(self.sample), "LLMPROXY_USER": self.user}


NAME = "faults"


def asked_faults(value: object, folder: Path) -> Mapping[str, Any] | None:
    """Return what `faults:` asks for as a session takes it; a file lies beside the suite. Raises SuiteError."""
    if value is None:
        return None
    from llmproxy.core.faults import BadFaults, faults_for_session

    try:
        return faults_for_session(value, folder if isinstance(value, str) else None).to_json()
    except BadFaults as error:
        raise SuiteError(f"faults: {error.inner}", hint=error.hint) from error


@asynccontextmanager
async def meet_faults(context: StepContext, value: object, done: StepResult) -> AsyncIterator[None]:
    """Let a step meet faults of its own; a sure one that was not injected is an error, put into `done`."""
    if value is None:
        yield
        return
    if context.session is None:
        raise SuiteError("faults: this scenario has no proxy, so nothing can be broken on purpose.")
    await context.session.meet(asked_faults(value, context.case.folder))
    try:
        yield
    finally:
        met = await context.session.meet(asked_faults(context.case.scenario.faults, context.case.folder), again=True)
        done.rest += [
            Assertion(name=NAME, status=Status.ENVIRONMENT_ERROR, message=text) for text in find_unused_faults(met)
        ]
