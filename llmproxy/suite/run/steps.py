"""The steps of a run: each is executed, and all its assertions are evaluated.

    snapshot of the entities -> send -> answer -> settle -> tools, usage, history, answer, rows; none of them skips
    another -> capture

A function raises if the step could not be executed (an agent that crashed, a name without a value); an assertion that
cannot be evaluated has the status ENVIRONMENT_ERROR.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable

from llmproxy.report.events import Assertion
from llmproxy.scenario.run_session import finish_in_thread
from llmproxy.suite.checks.answer_checks import check_response
from llmproxy.suite.checks.entities.new_rows import check_created, take_baseline
from llmproxy.suite.checks.entities.verify import check_verify, check_wait
from llmproxy.suite.checks.misspelt_tools import find_never_offered_tools
from llmproxy.suite.checks.traffic import TrafficWindowStart, evaluate_traffic, find_uncounted_hosted_tools
from llmproxy.suite.run.rejudge import build_unjudged_assertion
from llmproxy.suite.run.simulate_and_judge import replay_simulation, run_judge, simulate_user
from llmproxy.suite.run.step_context import StepContext, StepResult, SuiteConversation, inject_step_faults
from llmproxy.suite.schema.steps import (
    ChatStep,
    JudgeStep,
    SetupStep,
    SimulateStep,
    StepBase,
    Talk,
    VerifyStep,
    WaitStep,
)
from llmproxy.suite.schema.values import PauseFor, SetupItem, WaitFor
from llmproxy.trace.observing.agent_activity import AgentStep
from llmproxy.trace.observing.tool_calls import find_altered_results, find_call_mismatches

_DONE = re.compile(
    r"\b(created|added|updated|changed|completed|marked|deleted|removed|cancell?ed|sent|scheduled|booked|saved|done)\b",
    re.IGNORECASE,
)
"""Words of agents that claim to have done something."""
_ANSWER_TIMEOUT = 120_000.0
"""Default time limit of an agent's answer in milliseconds."""
_FAST = 20.0
"""Milliseconds between two checks of a fast wait."""


async def execute_step(context: StepContext, step: StepBase) -> StepResult:
    """Execute a step, and evaluate all its assertions; if a recorded run is judged again, without agent and store."""
    judges_again, rows = context.recorded is not None, context.rows
    match step:
        case ChatStep():
            text = context.scope.interpolate_text(step.chat)

            async def send(conversation: SuiteConversation) -> tuple[str, list[Assertion]]:
                return await conversation.send_user_message(text), []

            return await _run_talk_step(context, step, send)
        case SimulateStep() as simulated:
            talk = replay_simulation if judges_again else simulate_user
            return await _run_talk_step(context, step, lambda conversation: talk(context, conversation, simulated))
        case JudgeStep():
            conversation = context.conversations.find_conversation(step.conversation)
            return StepResult(rest=await run_judge(context, conversation, step.judge, "judge"))
        case WaitStep(wait=PauseFor() as pause):
            if not judges_again:
                await asyncio.sleep(pause.milliseconds / 1000)
        case VerifyStep() | WaitStep() if judges_again:
            return StepResult(rest=[build_unjudged_assertion(step.kind)])
        case VerifyStep():
            return StepResult(rest=await asyncio.to_thread(check_verify, rows, "verify", step.verify))
        case WaitStep(wait=WaitFor() as wanted):
            if context.run_context.options.fast_waits:
                wanted = wanted.model_copy(update={"poll_interval": _FAST})
            return StepResult(rest=await asyncio.to_thread(check_wait, rows, "wait", wanted))
        case SetupStep():
            if not judges_again:
                await insert_setup_rows(context, step.setup)
        case _:
            raise AssertionError(f"nothing executes a step of the kind {step.kind}")
    return StepResult()


async def _run_talk_step(
    context: StepContext, step: Talk, send: Callable[[SuiteConversation], Awaitable[tuple[str, list[Assertion]]]]
) -> StepResult:
    """Talk with the agent and check all; `send` gives its answer, and what a simulation asserts of the talk."""
    if context.recorded is not None:
        context.recorded.begin_step(context.index, step.kind)
    entities = [item.entity for item in step.created or ()] if context.recorded is None else []
    before = await asyncio.to_thread(take_baseline, context.rows, entities) if entities else None
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
    if step.wire_keys and not measured.request_count and context.session is not None:
        strays = await context.session.count_unattributed()  # calls of this process outside any turn
    done.again, done.rest = lambda: evaluate_traffic(context, step, window, strays), [*judged, *done.rest]
    done.recheck_traffic()
    labels = _describe_traffic(context, step, window, measured)
    if _DONE.search(answer) and any(
        each.name.startswith("tools.") and not each.actual for each in done.wire if each.message
    ):
        labels.insert(0, "the answer says that something was done, and an expected tool was not called")
    context.labels += [f"step {context.index + 1}: {label}" for label in labels]
    if step.response is not None:
        done.rest += check_response(context, step, step.response, answer)
        if step.response.judge is not None:
            done.rest += await run_judge(context, conversation, step.response.judge, "response.judge")
    if context.recorded is not None:
        done.rest += [build_unjudged_assertion(f"created[{number}]") for number, _ in enumerate(step.created or ())]
    if before is not None:
        done.rest += await asyncio.to_thread(check_created, context.rows, before, step.created or ())
    return done


_TOLD = 3
"""Maximum differences listed in a label."""


def _describe_traffic(context: StepContext, step: Talk, window: TrafficWindowStart, measured: AgentStep) -> list[str]:
    """Describe what is remarkable about a step's tools, whatever it asserts."""
    unoffered = find_never_offered_tools(step.tools, measured, context.wire.calls) if step.tools else []
    made = [f"no model is offered {name}, so that it was not called proves little" for name in unoffered]
    if uncounted := ", ".join(find_uncounted_hosted_tools(step, measured)):
        made.append(f"not counted, since the provider runs it: {uncounted} (`includeHosted: true` counts it)")
    if step.observe != "none" and not measured.unreadable:
        served, asked = context.wire.read_served_calls(window.after), measured.tools
        if not served.unknown_reason:  # models' calls and servers' received ones, results read and returned
            differing = [*find_call_mismatches(asked, served)[:_TOLD], *find_altered_results(asked, served)[:_TOLD]]
            made += ["; ".join(differing)] if differing else []
    return made


async def insert_setup_rows(context: StepContext, items: Iterable[SetupItem]) -> None:
    """Insert rows in order. Raises StoreError, SuiteError, StepError: one could not be inserted."""
    for item in items:
        await finish_in_thread(
            context.rows.insert_row, item.insert, item.data, item.as_ or "", overwrite=item.overwrite
        )
