"""One run of one case, for the run engine (`scenario.running.run_lifecycle`): its steps and their outcome.

A failed step ends the run, because later ones depend on its captures (`keep_going` continues). Of each step all
assertions are evaluated; none of them skips another. One that cannot be evaluated has the status ENVIRONMENT_ERROR; a
step that could not be executed raises (an agent that crashed, a name without a value).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from llmproxy.amount_formatting import format_count
from llmproxy.calls_and_totals import Call
from llmproxy.client.session_reports import SessionReport
from llmproxy.errors import AgentError, LLMProxyError, MachineError
from llmproxy.protocol import OFFLINE, Mode
from llmproxy.report.events import Assertion, Started, Status, Step
from llmproxy.scenario.agent_adapter import OptionalAdapterAttributes
from llmproxy.scenario.run_session import RunSession, run_in_thread_to_end
from llmproxy.scenario.running.run_lifecycle import EventEmitter, RunLifecycle, SessionToOpen
from llmproxy.scenario.types import AgentRole
from llmproxy.scenario.values.run_ids_and_options import classify_run_error, describe_error, make_run_id
from llmproxy.suite.checks.chat_step_assertions import (
    TrafficWindowStart,
    check_answer_assertions,
    check_token_usage_and_cost,
    evaluate_step_traffic_assertions,
    explain_unseen_traffic,
    list_hosted_tools_not_checked,
)
from llmproxy.suite.checks.row_checks import (
    check_created_rows,
    run_verify_step_row_checks,
    take_row_snapshot_before_step,
    wait_until_rows_match,
)
from llmproxy.suite.checks.tools import find_expected_tools_never_offered
from llmproxy.suite.matchers.apply import all_assertions_hold, make_error_assertion, worst_status
from llmproxy.suite.matchers.variable_references import StepError
from llmproxy.suite.reading.load import SuiteCase
from llmproxy.suite.run.case_resources import CaseResources
from llmproxy.suite.run.run_context import SuiteRunContext, build_not_rejudgeable_assertion
from llmproxy.suite.run.step_context import (
    StepContext,
    StepResult,
    SuiteConversation,
    inject_step_faults,
    rejudge_simulated_conversation,
    run_judge,
    run_simulated_conversation,
)
from llmproxy.suite.schema.assertions import PauseFor, SetupRow, WaitForRows
from llmproxy.suite.schema.suite import (
    ChatOrSimulateStep,
    ChatStep,
    JudgeStep,
    SetupStep,
    SimulateStep,
    StepBase,
    VerifyStep,
    WaitStep,
)
from llmproxy.suite.selection import (
    RunNotRecorded,
    build_case_cassette_name,
    build_run_not_recorded_error,
    list_case_steps_up_to_label,
)
from llmproxy.trace.observing.agent_activity import (
    AgentActivity,
    find_oldest_replayed_answer_time,
    sum_recorded_agent_call_times,
)
from llmproxy.trace.observing.tool_calls import diff_asked_and_served_tool_calls
from llmproxy.yaml_reader import YamlPlace

_DONE = re.compile(
    r"\b(created|added|updated|changed|completed|marked|deleted|removed|cancell?ed|sent|scheduled|booked|saved|done)\b",
    re.IGNORECASE,
)
"""Words of agents that claim to have done something."""
_ANSWER_TIMEOUT = 120_000.0
"""Default time limit of an agent's answer in milliseconds."""
_FAST = 20.0
"""Milliseconds between two checks of a fast wait."""
_TOLD = 3  # differences in a label


def hash_step_inputs_affecting_answer(case: SuiteCase, step: StepBase) -> str:
    """Return a digest of what a step's answers depend on besides the texts in a report; empty if it is no talk."""
    if not isinstance(step, ChatOrSimulateStep):
        return ""
    scenario = case.scenario
    said = step.simulate.model_dump(exclude={"model", "criteria"}) if isinstance(step, SimulateStep) else None
    later = [row for each in scenario.steps if isinstance(each, SetupStep) for row in each.setup]
    told: list[object] = [said, scenario.mock, scenario.faults, step.faults, scenario.user_id, step.conversation]
    told += [step.continue_conversation, [row.model_dump() for row in (*scenario.setup, *later)]]
    if "$" in str(told):  # a variable that only assertions have changes no answer
        told.append(case.values)
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=repr).encode()).hexdigest()[:16]


async def _execute_step(context: StepContext, step: StepBase) -> StepResult:
    judges_again, rows = context.recorded is not None, context.rows
    match step:
        case ChatStep():
            text = context.scope.interpolate_text(step.chat)

            async def send(conversation: SuiteConversation) -> tuple[str, list[Assertion]]:
                return await conversation.send_user_message(text), []

            return await _run_talk_step(context, step, send)
        case SimulateStep() as simulated:
            talk = rejudge_simulated_conversation if judges_again else run_simulated_conversation
            return await _run_talk_step(context, step, lambda conversation: talk(context, conversation, simulated))
        case JudgeStep():
            conversation = context.conversations.find_conversation(step.conversation)
            return StepResult(rest=await run_judge(context, conversation, step.judge, "judge"))
        case WaitStep(wait=PauseFor() as pause):
            if not judges_again:
                await asyncio.sleep(pause.milliseconds / 1000)
        case VerifyStep() | WaitStep() if judges_again:
            return StepResult(rest=[build_not_rejudgeable_assertion(step.kind)])
        case VerifyStep():
            return StepResult(rest=await asyncio.to_thread(run_verify_step_row_checks, rows, "verify", step.verify))
        case WaitStep(wait=WaitForRows() as wanted):
            if context.run_context.options.fast_waits:
                wanted = wanted.model_copy(update={"poll_interval": _FAST})
            return StepResult(rest=await asyncio.to_thread(wait_until_rows_match, rows, "wait", wanted))
        case SetupStep():
            if not judges_again:
                await _insert_setup_rows(context, step.setup)
        case _:
            raise AssertionError(f"nothing executes a step of the kind {step.kind}")
    return StepResult()


async def _run_talk_step(
    context: StepContext,
    step: ChatOrSimulateStep,
    send: Callable[[SuiteConversation], Awaitable[tuple[str, list[Assertion]]]],
) -> StepResult:
    if context.recorded is not None:
        given = hash_step_inputs_affecting_answer(context.case, step)
        context.recorded.begin_step(context.index, step.kind, given)
    entities = [item.entity for item in step.created or ()] if context.recorded is None else []
    before = await asyncio.to_thread(take_row_snapshot_before_step, context.rows, entities) if entities else None
    conversation = context.conversations.choose_conversation(step.conversation, goes_on=step.continue_conversation)
    window = TrafficWindowStart(context.traffic.seen, continues=conversation.has_begun, index=context.index)
    done = StepResult()
    context.asking.limit = (_ANSWER_TIMEOUT if step.timeout is None else step.timeout) / 1000
    async with inject_step_faults(context, step.faults if context.recorded is None else None, done):
        answer, judged = await send(conversation)
    context.scope.record_answer(answer)
    if conversation.name:
        context.scope.record_conversation_id(conversation.name, conversation.thread_id)
    measured, strays = context.wire.build_step(window.after), 0
    if step.traffic_assertion_keys and not measured.request_count and context.session is not None:
        strays = await context.session.count_unattributed()  # calls of this process outside any turn
    done.again = lambda: evaluate_step_traffic_assertions(context, step, window, strays)
    done.rest = [*judged, *done.rest]
    done.recheck_traffic()
    labels = _list_traffic_remarks(context, step, window, measured)
    uncalled = {f"tools.{name}" for name in step.tools or ()} - {f"tools.{use.name}" for use in measured.tools}
    failed = [each.name for each in done.wire if each.status is Status.FAILED]
    if _DONE.search(answer) and any(name in uncalled or name.rpartition(".")[0] in uncalled for name in failed):
        labels.insert(0, "the answer says that something was done, and an expected tool was not called")
    context.labels += [f"step {context.index + 1}: {label}" for label in labels]
    if step.response is not None:
        done.rest += check_answer_assertions(context, step, step.response, answer)
        if step.response.judge is not None:
            done.rest += await run_judge(context, conversation, step.response.judge, "response.judge")
    if context.recorded is not None:
        if step.message_processing is not None:
            why = "what the agent itself said of it is not in the report"
            done.rest.append(build_not_rejudgeable_assertion("messageProcessing", why))
        done.rest += [build_not_rejudgeable_assertion(f"created[{n}]") for n in range(len(step.created or ()))]
    if before is not None:
        done.rest += await asyncio.to_thread(check_created_rows, context.rows, before, step.created or ())
    return done


def _list_traffic_remarks(
    context: StepContext, step: ChatOrSimulateStep, window: TrafficWindowStart, measured: AgentActivity
) -> list[str]:
    unoffered = find_expected_tools_never_offered(step.tools, measured, context.wire.calls) if step.tools else []
    made = [f"no model is offered {name}, so that it was not called proves little" for name in unoffered]
    if uncounted := ", ".join(list_hosted_tools_not_checked(step, measured)):
        made.append(f"not counted, since the provider runs it: {uncounted} (`includeHosted: true` counts it)")
    if step.observe != "none" and not measured.unreadable:
        served, asked = context.wire.read_tool_server_calls(window.after), measured.tools
        if not served.unknown_reason and (differing := diff_asked_and_served_tool_calls(asked, served)):
            made.append("; ".join(differing[:_TOLD]))
    return made


async def _insert_setup_rows(context: StepContext, items: Iterable[SetupRow]) -> None:
    """Insert rows in order. Raises StoreError, SuiteError, StepError: one could not be inserted."""
    for item in items:
        await run_in_thread_to_end(
            context.rows.insert_row, item.insert, item.data, item.as_ or "", overwrite=item.overwrite
        )


@dataclass(frozen=True, slots=True)
class CaseResult:
    status: Status
    error: BaseException | None = None
    reasoning: str = ""
    xfail: bool = False
    """Whether it was expected to fail, and could."""
    wire: SessionReport | None = None
    recorded_at: float | None = None
    """Unix time of the replayed recordings; None without any."""
    calls: Sequence[Call] = ()
    """The run's calls, kept only if needed later (`SuiteRunContext.keeps_calls`), since bodies are large."""
    served: frozenset[int | None] = frozenset()
    """Replayed recordings."""
    latency: float | None = None
    """Recorded milliseconds of the agent's model calls; None if one is unknown."""


async def run_case_once(
    run_context: SuiteRunContext, case: SuiteCase, sample: int, runs: int, *, alone: bool = True
) -> CaseResult:
    """Run a case once; `alone`: no other run uses the store meanwhile. Raises only on cancellation."""
    rerun = run_context.options.build_rerun_command(case.id)
    emitter = build_run_event_emitter(
        run_context, case, sample, runs, rerun=rerun, place=_format_place(case.scenario.place)
    )
    emitter.emit_start(mode=run_context.options.mode or "")
    return await _CaseRun(run_context, case, emitter, alone=alone).lifecycle.run()


def build_run_event_emitter(
    run_context: SuiteRunContext, case: SuiteCase, sample: int, runs: int, *, rerun: str = "", place: str = ""
) -> EventEmitter:
    about = Started(
        run_id=make_run_id(), scenario=case.id, name=case.title or case.id, description=case.description,
        suite=case.suite.name, set_id=case.suite.name, sample=sample, runs=runs, tags=tuple(case.scenario.tags),
        cassette=build_case_cassette_name(case.suite.name, case.id), rerun=rerun, place=place,
    )  # fmt: skip
    return EventEmitter(about, run_context.handlers, run_context.now)


def _format_place(place: YamlPlace | None) -> str:
    return f"{place.file}:{place.line}" if place else ""


class _CaseRun:
    describe_actor = "something in the run"
    late_hint = (
        "What the scenario asserts about the agent's traffic was evaluated before them. `settle: 2000` in the scenario "
        "waits until the traffic has been quiet for 2 s after each answer."
    )

    def __init__(self, run_context: SuiteRunContext, case: SuiteCase, emitter: EventEmitter, *, alone: bool) -> None:
        self.run_context, self.case, self.emitter = run_context, case, emitter
        self._statuses: list[Status] = []
        self._reasons: list[str] = []
        self._pending: list[tuple[Step, StepResult]] = []
        """A chat step, evaluated once more before the next one, and the quiet steps since: told when that is over."""
        self._next = 0
        self.since = run_context.clock()
        self.steps = list_case_steps_up_to_label(case, run_context.options.label)
        limit = case.scenario.timeout
        self.lifecycle = RunLifecycle(
            self, limit=None if limit is None else limit / 1000, call_limit=None, clock=run_context.clock, thorough=True
        )
        self.opening = CaseResources(run_context, case, emitter, alone=alone)
        self._concluded: CaseResult | None = None

    @property
    def context(self) -> StepContext | None:
        return self.opening.context

    async def choose_session(self) -> SessionToOpen | None:
        return await self.opening.build_session_request()

    async def open(self, session: RunSession | None) -> None:
        if self.run_context.recorded is None:
            self._require_recording(None if session is None else session.opened)
        await self.opening.open_all_but_session(session, self.lifecycle.caller)

    def emit_start(self) -> None:
        """Do nothing: the start was emitted before anything was opened."""

    async def leave(self) -> list[str]:
        opened = self.context is not None
        notes = await self.opening.close_all()
        return notes if opened else []

    @property
    def forbids_late_calls(self) -> bool:
        if self.context is None:
            return False
        return self.case.scenario.usage is not None or any(
            isinstance(step, JudgeStep)
            or (isinstance(step, SimulateStep) and bool(step.simulate.criteria))
            or (
                isinstance(step, ChatOrSimulateStep)
                and bool(step.traffic_assertion_keys or (step.response and step.response.judge))
            )
            for step in self.case.scenario.steps
        )

    def _require_recording(self, report: SessionReport | None) -> None:
        """Check that there is something to replay. Raises RunNotRecorded."""
        talks = any(
            step.kind in ("chat", "simulate", "judge") and getattr(step, "observe", None) != "none"
            for step in self.steps
        )
        silent = self.case.scenario.observe == "none"
        if report is None or report.mode not in OFFLINE or report.unused != () or not talks or silent:
            return
        if report.live is not None:  # there is something; only what is live is not among the unused
            return
        about, flag = self.emitter.about, self.run_context.options.mode_flag
        raise build_run_not_recorded_error(self.case.id, about.rerun, about.sample, about.runs, flag=flag)

    async def begin(self) -> None:
        context = self.opening.require_context()
        if context.recorded is None:
            await _insert_setup_rows(context, self.case.scenario.setup)

    async def take_step(self, number: int, step: StepBase) -> CaseResult | None:
        context = self.opening.require_context()
        context.index = self._next = number
        if isinstance(step, ChatOrSimulateStep):
            await self._recheck_late_calls(context)
        await context.declare_new_ids_to_proxy()
        went = await self._try_step(context, number, step)
        return None if went or self.run_context.options.keep_going else await self.conclude()

    async def conclude(self) -> CaseResult:
        context = self.opening.require_context()
        await context.declare_new_ids_to_proxy()
        await self._recheck_late_calls(context)
        self._check_total_usage(context)
        self._skip_rest("an earlier step did not pass")
        self._concluded = self._build_result(worst_status(self._statuses))
        return self._concluded

    async def _try_step(self, context: StepContext, index: int, step: StepBase) -> bool:
        since = self.run_context.clock()

        def describe_step() -> Step:
            return replace(self._build_step_event(index, step), ms=(self.run_context.clock() - since) * 1000)

        try:
            done = await _execute_step(context, step)
        except LLMProxyError as error:
            failed = StepResult(message=describe_error(error), status=classify_run_error(error, None))
            self._pending.append((describe_step(), failed))
            if self.run_context.options.keep_going and isinstance(error, StepError):
                return False
            raise
        if self._pending or done.again is not None:
            self._pending.append((describe_step(), done))
        else:
            self._emit_step(describe_step(), done)
        return all_assertions_hold(done.assertions)

    def _build_step_event(self, index: int, step: StepBase) -> Step:
        about, place = self.emitter.about, _format_place(step.place)
        given = hash_step_inputs_affecting_answer(self.case, step)
        return Step(run_id=about.run_id, index=index, kind=step.kind, label=step.label or "", place=place, given=given)

    async def _recheck_late_calls(self, context: StepContext) -> None:
        """Recheck the last chat step, and those after it, with calls that came after its answer."""
        try:
            if self._pending:
                await context.read_new_calls()  # a judge's step may have read them before
                self._pending[0][1].recheck_traffic()
        finally:
            self._emit_pending()

    def _emit_pending(self) -> None:
        pending, self._pending = self._pending, []
        for told_as, done in pending:
            self._emit_step(told_as, done)

    def _emit_step(self, step: Step, done: StepResult) -> None:
        status = done.decide_status()
        self._statuses += [status, *(each.status for each in done.assertions)]
        self._next = step.index + 1
        name = f"step {step.index + 1}" + (f" ({step.label})" if step.label else "")
        self._reasons += [f"{name}: {each.name}: {each.message}" for each in done.assertions if each.message][:3]
        told = replace(step, status=status, assertions=tuple(done.assertions), message=done.message)
        self.emitter.emit(replace(told, interactions=tuple(done.interactions), recordings=tuple(done.recordings)))

    def _check_total_usage(self, context: StepContext) -> None:
        if (wanted := self.case.scenario.usage) is None:
            return
        measured = context.wire.build_step(0)
        reason = explain_unseen_traffic(context, wanted, measured)
        if reason:
            made = [make_error_assertion("usage", reason)]
        else:
            made = check_token_usage_and_cost(wanted, measured, context.scope)
        total = Step(run_id=self.emitter.about.run_id, index=len(self.steps), kind="usage", label="all steps")
        self._emit_step(total, StepResult(wire=made))

    def build_time_limit_error(self, *, blocked: bool = False) -> LLMProxyError:
        limit = (self.case.scenario.timeout or 0) / 1000
        at = f"step {self._next + 1}" if self.context else "before its first step"
        step = self.steps[min(self._next, len(self.steps) - 1)]
        kind = AgentError if self.context and step.kind in ("chat", "simulate") else MachineError
        return kind(
            f"{self.case.id} did not end within {limit:g} s; it was at {at}.",
            hint="`timeout:` of the scenario allows more.",
        )

    def _skip_rest(self, why: str) -> None:
        first, self._next = self._next, len(self.steps)
        for index, step in enumerate(self.steps[first:], first):
            self.emitter.emit(
                replace(self._build_step_event(index, step), status=Status.SKIPPED, message=why, place="")
            )

    def has_passed(self, result: CaseResult) -> bool:
        return result.status is Status.PASSED

    def build_error_result(self, error: BaseException) -> CaseResult:
        self._emit_pending()  # the run ended before it could be looked at again
        self._skip_rest("the run ended before it")
        if self._concluded is not None:
            return replace(self._concluded, status=Status.ENVIRONMENT_ERROR, error=error)
        ours = isinstance(error, (LLMProxyError, asyncio.CancelledError, KeyboardInterrupt))
        return self._build_result(classify_run_error(error, None if ours else AgentRole.JUDGE), error)

    def emit_end(self, result: CaseResult, error: BaseException | None) -> CaseResult:
        context, lifecycle = self.context, self.lifecycle
        report = None if context is None else lifecycle.report
        labels: list[str] = []
        if context is not None:
            labels += [*context.labels, *OptionalAdapterAttributes.of_adapter(context.agent).notes]
            labels += [*context.rows.remarks, *lifecycle.problems, *lifecycle.late]
        if report is not None and report.served_failures:
            labels.append(format_count(report.served_failures, "recorded failure"))
        self.emitter.emit_end(
            status=result.status, reasoning=result.reasoning, xfail=result.xfail,
            total_seconds=self.run_context.clock() - self.since,
            agent_seconds=None if context is None else context.agent_seconds,
            waited_seconds=None if context is None else lifecycle.caller.waited,
            live=None if report is None else report.live, **({} if context is None else lifecycle.read_measures()),
            unrecorded=isinstance(error, RunNotRecorded),
            error="" if error is None else describe_error(error) if isinstance(error, Exception) else "interrupted",
            labels=tuple(labels), rerun=self._build_rerun_command(report, result.status),
        )  # fmt: skip
        beside_live = report is not None and report.live is not None
        calls = () if context is None else lifecycle.traffic.calls
        return replace(
            result,
            wire=report,
            recorded_at=None if context is None or beside_live else find_oldest_replayed_answer_time(calls),
            calls=calls if self.run_context.keeps_calls else (),
            served=frozenset(each.interaction for each in calls),
            latency=sum_recorded_agent_call_times(calls),
        )

    def _build_rerun_command(self, report: SessionReport | None, status: Status) -> str:
        """Return the command that reruns it, with a mode that requests what failed again; empty if none is needed."""
        mode = ""
        if report is not None and report.mode in OFFLINE:
            mode = Mode.AUTO if report.served_failures else ""
        elif report is not None:
            failed = any(each.status >= 400 for each in self.lifecycle.traffic.calls)
            mode = report.mode if failed or status in (Status.AGENT_ERROR, Status.ENVIRONMENT_ERROR) else ""
        return f"{self.emitter.about.rerun} {self.run_context.options.mode_flag} {mode}" if mode else ""

    def _build_result(self, status: Status, error: BaseException | None = None) -> CaseResult:
        status, reason = self._apply_xfail(status)
        return CaseResult(status, error, "\n".join(filter(None, [reason, *self._reasons])), xfail=bool(reason))

    def _apply_xfail(self, status: Status) -> tuple[Status, str]:
        """Invert the outcome of a scenario with `xfail`; an error stays one, also beside a failure."""
        if not (said := self.case.scenario.xfail):
            return status, ""
        why = f": {said}" if isinstance(said, str) else ""
        if status is Status.PASSED:
            return Status.FAILED, f"it was expected to fail{why}, and passed; remove `xfail`"
        if status in (Status.FAILED, Status.AGENT_ERROR):
            if Status.ENVIRONMENT_ERROR in self._statuses:
                return Status.ENVIRONMENT_ERROR, ""
            return Status.PASSED, f"failed as expected{why}"
        return status, ""
