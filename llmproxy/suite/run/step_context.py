"""Context of a scenario's steps: the conversations of its run, calls of the agent, faults; simulated users and judges.

The agent knows a conversation by an id. It is derived from recording, run and conversation, so that an agent that puts
it into a prompt replays; an agent that lives longer than the run gets a new one each time, or it would continue the
conversation of an earlier run. A scenario's faults apply to its steps, and are replaced by a step's own. Calls of
simulated users and judges go through the run's session as separate parties, so they are recorded and replayed like the
agent's, and do not count in assertions about the agent.
"""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from llmproxy.calls_and_totals import Call
from llmproxy.client.session_reports import find_unused_faults
from llmproxy.core.faults.parsing import BadFaults, parse_session_faults
from llmproxy.errors import AgentError, LLMProxyError, MissError, SuiteError
from llmproxy.protocol import AGENT
from llmproxy.report.events import Assertion, Status
from llmproxy.scenario.agent_adapter import AgentAdapter, OptionalAdapterAttributes
from llmproxy.scenario.config import UNSET_ZERO, ScenarioConfig
from llmproxy.scenario.judge_agent import JudgeAgent
from llmproxy.scenario.models.errors import ModelNotSet
from llmproxy.scenario.models.model_calls import choose_model
from llmproxy.scenario.models.route_via_proxy import map_upstream_names_to_urls
from llmproxy.scenario.run_session import RunSession
from llmproxy.scenario.running.agent_caller import AdapterAnswer, AgentCaller, AgentTraffic, call_async_adapter_in_time
from llmproxy.scenario.running.conversation import ConversationRunner, ScriptActions
from llmproxy.scenario.running.run_lifecycle import EventEmitter
from llmproxy.scenario.scenario_state import ScenarioState
from llmproxy.scenario.types import AgentInput, AgentRole, CriterionResult, Message, ScenarioResult
from llmproxy.scenario.user_simulator_agent import Persona, UserSimulatorAgent, resolve_persona_name_file_or_text
from llmproxy.scenario.values.messages import (
    UserFarewellMessages,
    convert_return_to_messages,
    format_value_as_short_json,
    get_message_text,
)
from llmproxy.scenario.values.run_ids_and_options import derive_thread_id
from llmproxy.suite.checks.chat_step_assertions import SuiteSnapshotFile
from llmproxy.suite.checks.row_selection import RowCheckContext
from llmproxy.suite.matchers.apply import assertion, make_error_assertion, worst_status
from llmproxy.suite.matchers.registry import quote
from llmproxy.suite.matchers.variable_references import CaseVariables
from llmproxy.suite.reading.load import SuiteCase
from llmproxy.suite.run.run_context import ReplayingAgentAdapter, SuiteRunContext, build_not_rejudgeable_assertion
from llmproxy.suite.schema.assertions import JudgeAssertion
from llmproxy.suite.schema.suite import ChatOrSimulateStep, JudgeStep, SimulateStep, Simulation
from llmproxy.suite.selection import add_record_command_to_miss
from llmproxy.trace.observing.agent_activity import AgentActivity, ModelCallObserver

_ENDLESS = ScenarioConfig(max_turns=sys.maxsize, verbose=False)
"""No limit of turns: a suite's steps define their own lengths."""
_ANSWERS = 'An answer is a text, a message {"role": "assistant", "content": "..."}, or a list of messages.'
_QUIET = 0.02
"""Seconds between two checks whether the traffic is quiet."""
_STATUS = {"passed": Status.PASSED, "failed": Status.FAILED}


@dataclass(frozen=True, slots=True)
class UserIdForAgent:
    user_id: str


class SuiteConversation:
    """One conversation with the agent; also the engine's emitter and setting."""

    running_scenario = None
    adds_user_farewell = False

    def __init__(
        self,
        name: str,
        thread: str,
        agent: AgentAdapter,
        caller: AgentCaller,
        player: UserIdForAgent,
        listener: StepContext,
    ) -> None:
        self.name, self.thread_id = name, thread
        self.answer = ""
        self.windows: dict[int, tuple[int, int]] = {}
        """Position of an answer -> numbers of the session's last call before it, and of its own last call."""
        self.states: dict[AgentRole, object] = {AgentRole.AGENT: player}
        """State of the scenario by role."""
        self._listener = listener
        self._answering: bool | None = None
        """Whether the first message of an answer is next; None if it is not the agent's turn."""
        state = ScenarioState(description="", messages=[], thread_id=thread, current_turn=0, config=_ENDLESS)
        self.playback = ConversationRunner(state, [agent], caller=caller, emitter=self, setting=self)
        self.verbs = ScriptActions(self.playback)

    @property
    def messages(self) -> list[Message]:
        return self.playback.messages

    @property
    def has_begun(self) -> bool:
        return bool(self.messages)

    async def send_user_message(self, text: str) -> str:
        """Send a message to the agent; returns its answer.

        Raises MissError: a request was never recorded, whatever its answer; UpstreamError: it reached no provider;
        AgentError: the agent crashed, timed out, or gave an invalid answer; AgentUnreachable: it was never reached.
        """
        await self.verbs.user(text)
        await self.verbs.agent()
        return self.answer

    async def prepare_call(self, conversation: ConversationRunner, index: int) -> Mapping[str, Any]:
        return {"scenario_state": self.states[conversation.agents[index].role]}

    async def on_answer(self, conversation: ConversationRunner, answer: AdapterAnswer) -> None:
        assert isinstance(answer.returned, list)  # noqa: S101 - `SuiteAgentCaller.read_answer` gives nothing else
        self.answer, self._answering = _get_last_answer_text(answer.returned), True
        await self._listener.on_answer(self, answer)

    def emit_message(self, message: Message, **about: Any) -> None:
        if self._answering is None:
            self._listener.on_user_message(self, message)
        else:
            self._listener.on_agent_message(self, message, first=self._answering)
            self._answering = False

    def emit_step(self, kind: str, **about: Any) -> None:
        """Continue with the next turn; a suite's steps are emitted with their assertions elsewhere."""
        self._answering = None

    def emit_verdict(self, judge: str, result: ScenarioResult | None, *, forced: bool, decided: bool) -> None:
        """Do nothing: a judge's verdict is emitted with its model, after its traffic was read."""


class NamedConversationRegistry:
    def __init__(
        self, cassette: str, sample: int, make: Callable[[str, str], SuiteConversation], *, fresh: bool = False
    ) -> None:
        """Start empty; `make` creates one from a name and an id, `fresh`: new ids in every execution."""
        self._cassette, self._sample, self._make, self._fresh = cassette, sample, make, fresh
        self._named: dict[str, SuiteConversation] = {}
        self._unnamed = 0
        self.last: SuiteConversation | None = None

    def choose_conversation(self, name: str | None = None, *, goes_on: bool = False) -> SuiteConversation:
        """Return a step's conversation, and make it the last one. Raises LLMProxyError: none to continue."""
        if goes_on and name is None:
            if self.last is None:
                raise LLMProxyError("continueConversation: no step has talked with the agent before this one")
            return self.last
        if name is None:
            self._unnamed += 1
            chosen = self._make_conversation("", f"#{self._unnamed}")
        else:
            chosen = self._named.get(name) or self._named.setdefault(name, self._make_conversation(name, name))
        self.last = chosen
        return chosen

    def find_conversation(self, name: str | None) -> SuiteConversation | None:
        return self.last if name is None else self._named.get(name)

    def _make_conversation(self, name: str, key: str) -> SuiteConversation:
        return self._make(name, derive_thread_id("" if self._fresh else self._cassette or "suite", self._sample, key))


@dataclass(slots=True)
class SuiteAgentCaller:
    """Caller for a suite's run (`AgentCaller`): the step's time limit, and the suite's messages for missing answers."""

    limit: float | None = None
    """Time limit of an answer in seconds."""
    _said: str = ""

    async def call_adapter_in_time(self, agent: AgentAdapter, given: AgentInput) -> object:
        """Call an adapter; simulated users and judges have no time limit."""
        if agent.role is not AgentRole.AGENT:
            return await agent.call(given)
        self._said, name = get_message_text(given.messages[-1]), _name_agent(agent)

        def too_long(limit: float) -> AgentError:
            more = "`timeout: 120s` beside `chat`, or `defaults: {stepTimeout: 120s}`, allows more."
            hint = "\n".join(filter(None, [OptionalAdapterAttributes.of_adapter(agent).silence_hint, more]))
            return AgentError(f"{name} gave no answer within {limit:g} s.", hint=hint)

        try:
            return await call_async_adapter_in_time(agent, given, self.limit, too_long, name=name, hint=_ANSWERS)
        except TimeoutError as error:
            raise AgentError(f"{name} raised TimeoutError: {error}") from error
        except (LLMProxyError, asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            raise AgentError(f"{name} crashed: {type(error).__name__}: {error}") from error

    def read_answer(self, agent: AgentAdapter, returned: object) -> ScenarioResult | list[Message]:
        """Check an answer. Raises AgentError if it is invalid."""
        name = _name_agent(agent)
        if isinstance(returned, ScenarioResult):
            if agent.role is not AgentRole.AGENT:
                return returned
            raise AgentError(f"{name} returned a ScenarioResult; in a suite an agent answers with a text or messages.")
        try:
            messages = convert_return_to_messages(returned, agent.role, name)
        except ValueError as error:
            if agent.role is not AgentRole.AGENT:
                raise
            what = type(returned).__name__
            raise AgentError(
                f"{name} returned {format_value_as_short_json(returned)} ({what}).", hint=_ANSWERS
            ) from error
        if agent.role is AgentRole.AGENT and not _get_last_answer_text(messages):
            raise AgentError(f"{name} gave an empty answer to {self._said!r}.")
        return messages


def _get_last_answer_text(messages: list[Message]) -> str:
    spoken = (get_message_text(message).strip() for message in reversed(messages) if message["role"] == "assistant")
    return next(filter(None, spoken), "")


def _name_agent(agent: AgentAdapter) -> str:
    return OptionalAdapterAttributes.of_adapter(agent).who or type(agent).__name__


@dataclass(slots=True)
class StepResult:
    wire: list[Assertion] = field(default_factory=list)
    rest: list[Assertion] = field(default_factory=list)
    message: str = ""
    interactions: Sequence[int] = ()
    recordings: Sequence[str] = ()
    again: Callable[[], tuple[list[Assertion], AgentActivity]] | None = None
    """Evaluates assertions about traffic again, with calls that came after the answer."""
    status: Status | None = None
    """Status if its assertions do not decide it."""

    @property
    def assertions(self) -> list[Assertion]:
        return [*self.wire, *self.rest]

    def decide_status(self) -> Status:
        return self.status or worst_status(each.status for each in self.assertions)

    def recheck_traffic(self) -> None:
        if self.again is not None:
            self.wire, measured = self.again()
            self.interactions, self.recordings = measured.interactions, measured.recordings


@dataclass(slots=True, kw_only=True)
class StepContext:
    run_context: SuiteRunContext
    case: SuiteCase
    emitter: EventEmitter
    scope: CaseVariables
    rows: RowCheckContext
    agent: AgentAdapter
    session: RunSession | None
    caller: AgentCaller
    """Calls the run's adapters, and keeps the proxy's calls."""
    snapshots: SuiteSnapshotFile
    user: str
    """Owner of the rows, passed to the agent."""
    conversations: NamedConversationRegistry = field(init=False)
    recorded: ReplayingAgentAdapter | None = None
    """The agent of a recorded run that is judged again; None if one is run."""
    turn: int = 0
    index: int = 0
    agent_seconds: float = 0.0
    declared: list[tuple[int, Any]] = field(default_factory=list)
    """The agent's statements about its history, by index of the step."""
    spoken: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    asking: SuiteAgentCaller = field(default_factory=SuiteAgentCaller)
    _start: int = 0
    """Number of the session's last call before the agent's turn."""
    _ms: float = 0.0
    """Duration of its answer in milliseconds."""

    def __post_init__(self) -> None:
        self.caller.ask, self.caller.read = self.asking.call_adapter_in_time, self.asking.read_answer
        self.caller.explain = self._advise_on_miss
        self.traffic.on_calls = self._record_faults

    @property
    def traffic(self) -> AgentTraffic:
        return self.caller.traffic

    @property
    def wire(self) -> ModelCallObserver:
        return self.traffic.wire_observer

    async def read_new_calls(self) -> int:
        """Fetch new calls; returns the number of the agent's. Raises MissError: one was never recorded."""
        known = len(self.traffic.calls)
        try:
            await self.traffic.read_new_calls()
        except MissError as error:
            raise MissError(await self._explain_miss(error.message)) from error.__cause__
        return sum(call.party == AGENT for call in self.traffic.calls[known:])

    def _record_faults(self, calls: Sequence[Call]) -> None:
        self.labels += [f"step {self.index + 1}: call {call.seq} met {call.note}" for call in calls if call.fault]

    async def _advise_on_miss(self, agent: AgentAdapter, error: MissError) -> MissError:
        """Return a miss with advice; a simulated user's is unchanged."""
        if agent.role is AgentRole.USER:
            return error
        who = "the agent" if agent.role is AgentRole.AGENT else "the judge"
        return MissError(await self._explain_miss(error.message, who))

    async def declare_new_ids_to_proxy(self) -> None:
        """Declare new row ids to the proxy: they differ in every run of a store that numbers keys."""
        if (noted := self.scope.pop_noted_ids()) and self.session is not None:
            await self.session.declare_run_variables(noted)

    async def _explain_miss(self, text: str, who: str = "the agent") -> str:
        miss = await self.session.find_miss_by_text(text) if self.session is not None else None
        counted = self.rows.list_auto_key_entities() if miss and miss.numbers_only and who == "the agent" else []
        starts = miss.starts if miss else {}
        rerun, flag = self.emitter.about.rerun, self.run_context.options.mode_flag
        return add_record_command_to_miss(text, rerun, flag=flag, starts=starts, counted=counted, who=who)

    async def wait_for_quiet(self) -> None:
        pause = (self.case.scenario.settle or 0) / 1000
        clock = self.run_context.clock
        until = clock() + pause
        while (left := until - clock()) > 0:
            await asyncio.sleep(min(left, max(_QUIET, pause / 4)))
            if await self.read_new_calls():
                until = clock() + pause

    def create_conversation(self, name: str, thread: str) -> SuiteConversation:
        return SuiteConversation(name, thread, self.agent, self.caller, player=UserIdForAgent(self.user), listener=self)

    def on_user_message(self, conversation: SuiteConversation, message: Message) -> None:
        self.turn += 1
        self.spoken.append(get_message_text(message))
        self._start = self.traffic.seen
        self.emitter.emit_message(message, turn=self.turn, conversation=conversation.name)

    async def on_answer(self, conversation: SuiteConversation, answer: AdapterAnswer) -> None:
        """Read the traffic until it is quiet: it belongs to the answer. Raises MissError."""
        if (declared := OptionalAdapterAttributes.of_adapter(self.agent).declared_processing) is not None:
            self.declared.append((self.index, declared))
        await self.wait_for_quiet()
        conversation.windows[len(conversation.messages)] = self._start, self.traffic.seen
        self.agent_seconds += answer.seconds
        self._ms = answer.seconds * 1000

    def on_agent_message(self, conversation: SuiteConversation, message: Message, *, first: bool) -> None:
        measured = self.wire.build_step(self._start)
        calls = [
            {"name": use.name, "arguments": use.arguments, "result": use.result, "where": use.label}
            for use in measured.tools
        ]
        of_answer = {"tool_calls": calls, "recordings": measured.recordings} if first else {}
        self.emitter.emit_message(
            message, turn=self.turn, conversation=conversation.name, author="agent", ms=self._ms, **of_answer
        )

    def hook_environment(self) -> Mapping[str, str]:
        about = self.emitter.about
        return {"LLMPROXY_SCENARIO": about.scenario, "LLMPROXY_RUN": str(about.sample), "LLMPROXY_USER": self.user}


def normalize_suite_faults(value: object, folder: Path) -> Mapping[str, Any] | None:
    """Return `faults:` in the form of a session; a file is relative to the suite. Raises SuiteError."""
    if value is None:
        return None
    try:
        return parse_session_faults(value, folder if isinstance(value, str) else None).to_json()
    except BadFaults as error:
        raise SuiteError(f"faults: {error.inner}", hint=error.hint) from error


@asynccontextmanager
async def inject_step_faults(context: StepContext, value: object, done: StepResult) -> AsyncIterator[None]:
    """Inject a step's own faults; a certain one that was not injected is an error, added to `done`."""
    if value is None:
        yield
        return
    if context.session is None:
        raise SuiteError("faults: this scenario has no proxy, so nothing can be broken on purpose.")
    await context.session.set_faults(normalize_suite_faults(value, context.case.folder))
    try:
        yield
    finally:
        met = await context.session.set_faults(
            normalize_suite_faults(context.case.scenario.faults, context.case.folder), again=True
        )
        done.rest += [make_error_assertion("faults", text) for text in find_unused_faults(met)]


def find_judge_and_user_upstreams(case: SuiteCase) -> dict[str, str]:
    """Return the upstreams of simulated users and judges with an `api_base`. Raises SettingsError: two clash."""
    asked: list[tuple[str, str | None]] = []
    judge_model = case.suite.defaults.judge_model if case.suite.defaults else None
    for step in case.scenario.steps:
        if isinstance(step, JudgeStep):
            asked.append(("JudgeAgent", step.judge.model))
        elif isinstance(step, SimulateStep):
            asked.append(("UserSimulatorAgent", step.simulate.model))
            asked += [("JudgeAgent", judge_model)] if step.simulate.criteria else []
        if isinstance(step, ChatOrSimulateStep) and step.response is not None and step.response.judge is not None:
            asked.append(("JudgeAgent", step.response.judge.model))
    if not asked:
        return {}

    models = [choose_model(who, model, None, UNSET_ZERO, None) for who, model in asked]
    return map_upstream_names_to_urls(each for each in models if each is not None)


def _build_state_stand_in(description: str, session: RunSession | None, **about_run: Any) -> SimpleNamespace:
    """Return what adapters of `llmproxy.scenario` read of a run's state (`scenario.agent_adapter`)."""
    return SimpleNamespace(description=description, _executor=SimpleNamespace(session=session, **about_run))


async def run_simulated_conversation(
    context: StepContext, conversation: SuiteConversation, step: SimulateStep
) -> tuple[str, list[Assertion]]:
    said = step.simulate
    user = _build_user(context, said)
    conversation.answer = ""
    goal = context.scope.interpolate_text(said.goal)
    conversation.states[AgentRole.USER] = _build_state_stand_in(goal, context.session, unscripted=True)
    await user.open(context.session)
    try:
        with conversation.playback.temporary_participant(user):
            if said.first_message and (first := context.scope.interpolate_text(said.first_message)):
                await conversation.verbs.user(first)
            await conversation.verbs.proceed(turns=said.max_turns)
    finally:
        await user.close()
    await context.read_new_calls()
    if not (answer := conversation.answer):
        message = "the simulated user ended the conversation before the agent had said anything in this step"
        return answer, [make_error_assertion("simulate", message)]
    if said.criteria:
        return answer, await _judge_criteria(context, conversation, said)
    return answer, [_judge_goal_by_farewell(said, conversation.playback.farewell)]


async def rejudge_simulated_conversation(
    context: StepContext, conversation: SuiteConversation, step: SimulateStep
) -> tuple[str, list[Assertion]]:
    assert context.recorded is not None  # noqa: S101 - for who reads types
    answer = ""
    for text in context.recorded.list_user_texts():
        answer = await conversation.send_user_message(text)
    if step.simulate.criteria:
        return answer, await _judge_criteria(context, conversation, step.simulate)
    why = "whether the user is content, the user said when the agent ran"
    return answer, [build_not_rejudgeable_assertion("simulate.goal", why)]


def _build_user(context: StepContext, said: Simulation) -> Any:
    persona: Persona | None = None
    if isinstance(said.persona, str):
        persona = resolve_persona_name_file_or_text(context.scope.interpolate_text(said.persona))
    elif said.persona is not None:
        persona = Persona(name=said.persona.name or "", about=context.scope.interpolate_text(said.persona.description))
    try:
        return UserSimulatorAgent(model=said.model, persona=persona)
    except ModelNotSet as error:
        raise _build_no_model_error("simulate: the simulated user", "simulate", "simulatorModel") from error


def _build_no_model_error(who: str, step: str, default: str) -> SuiteError:
    model = "openai/gpt-4.1-mini"
    return SuiteError(
        f"{who} has no model, and the suite has no default.",
        hint=f"Write `{step}: {{model: {model}, ...}}` in the step, or once for all of them `defaults: {{{default}:"
        f" {model}}}`.",
    )


def _judge_goal_by_farewell(said: Simulation, farewell: UserFarewellMessages | None) -> Assertion:
    name, expected = "simulate.goal", "the user says that the goal was reached"
    if farewell is None:
        turns = f"{said.max_turns} {'turn' if said.max_turns == 1 else 'turns'}"
        ended = f"the simulated user had not ended the conversation after {turns}: the goal was not reached"
        return assertion(name, ended, expected=expected)
    if farewell.reached is None:
        unclear = (
            "the simulated user ended the conversation and did not say whether the goal was reached; `criteria` let a "
            "judge decide"
        )
        return make_error_assertion(name, unclear, expected=expected)
    words = f": {quote(get_message_text(farewell[-1]), 200)}" if farewell else ""
    message = f"the simulated user gave up, the goal was not reached{words}"
    return assertion(name, message, holds=farewell.reached, expected=expected, actual=farewell.reached)


async def run_judge(
    context: StepContext, conversation: SuiteConversation | None, said: JudgeAssertion, name: str
) -> list[Assertion]:
    if conversation is None or not conversation.has_begun:
        return [make_error_assertion(name, "there is no conversation to judge: nothing was said in it")]
    return await _ask_judge_for_assertions(context, conversation, said, f"{name}.criteria")


async def _judge_criteria(context: StepContext, conversation: SuiteConversation, said: Simulation) -> list[Assertion]:
    model = context.case.suite.defaults.judge_model if context.case.suite.defaults else None
    judging = JudgeAssertion.model_construct(criteria=said.criteria, model=model)
    return await _ask_judge_for_assertions(context, conversation, judging, "simulate.criteria")


async def _ask_judge_for_assertions(
    context: StepContext, conversation: SuiteConversation, said: JudgeAssertion, name: str
) -> list[Assertion]:
    criteria = [context.scope.interpolate_text(each) for each in said.criteria]
    try:
        with warnings.catch_warnings(action="ignore"):  # of equal judges: its remedies are no keys of a suite
            agent = JudgeAgent(criteria=criteria, model=said.model, judges=said.judges)
    except ModelNotSet as error:
        raise _build_no_model_error(f"{name}: the judge", "judge", "judgeModel") from error
    about = context.case.description or context.case.title or context.case.id
    steps = {place: context.wire.build_step(*window) for place, window in conversation.windows.items()}
    conversation.states[AgentRole.JUDGE] = _build_state_stand_in(
        about,
        context.session,
        wire_by_message={place: step.tools for place, step in steps.items()},
        wire_unknown=tuple(dict.fromkeys(each.unread_reason for step in steps.values() for each in step.unreadable)),
    )
    with conversation.playback.temporary_participant(agent):
        returned = await conversation.verbs.judge()
    await context.read_new_calls()
    if returned is None:
        return [make_error_assertion(name, "the judge gave no verdict")]
    context.emitter.emit_verdict(agent.models[0].model, returned, forced=True, decided=True)
    made = [_build_criterion_assertion(f"{name}[{n}]", each) for n, each in enumerate(returned.criteria)]
    unsaid = "" if made else "the judge said nothing about any criterion"
    if all(each.status is Status.PASSED for each in made) and not returned.success:
        unsaid = returned.reasoning or "the judge found all criteria passed, and no success"
    return [*made, make_error_assertion(name, unsaid)] if unsaid else made


def _build_criterion_assertion(name: str, found: CriterionResult) -> Assertion:
    """Return a finding as an assertion; an undecided one is an error, never a pass."""
    status = _STATUS.get(found.status, Status.ENVIRONMENT_ERROR)
    why = found.reason or found.evidence or "no reason was given"
    message = "" if status is Status.PASSED else f"{found.text!r} is {found.status}: {why}"
    quoted = f"quoted: {found.evidence}" if found.evidence else ""
    return Assertion(name=name, status=status, expected=found.text, actual=found.status, message=message, where=quoted)
