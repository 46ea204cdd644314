"""The steps of a run: one function a kind, in one table. Each executes the step and evaluates all its assertions.

    snapshot of the entities -> send -> answer -> settle -> tools, usage, history, answer, rows; none of them skips
    another -> capture

A function raises if the step could not be executed (an agent that crashed, a name without a value); an assertion that
cannot be evaluated has the status ENVIRONMENT_ERROR.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import cast

from llmproxy.report.events import Assertion
from llmproxy.scenario.run_session import finish_in_thread
from llmproxy.suite.checks.answer_checks import check_response
from llmproxy.suite.checks.entities.verify import check_verify, check_wait
from llmproxy.suite.checks.misspelt_tools import find_never_offered_tools
from llmproxy.suite.checks.traffic import TrafficWindow, evaluate_traffic, find_uncounted_hosted_tools
from llmproxy.suite.run.rejudge import build_unjudged
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
from llmproxy.suite.schema.values import PauseFor, SetupItem
from llmproxy.trace.observing.agent_activity import AgentStep
from llmproxy.trace.observing.tool_calls import find_mismatches, find_misreadings

_DONE = re.compile(
    r"\b(created|added|updated|changed|completed|marked|deleted|removed|cancell?ed|sent|scheduled|booked|saved|done)\b",
    re.IGNORECASE,
)
"""Words of agents that claim to have done something."""
_ANSWER_TIMEOUT = 120_000.0
"""Default time limit of an agent's answer in milliseconds."""
_FAST = 20.0
"""Milliseconds between two checks of a fast wait."""


# -- talking -----------------------------------------------------------------------------------------------------------


async def _run_chat(context: StepContext, step: StepBase) -> StepResult:
    chat = cast("ChatStep", step)
    text = context.scope.interpolate_text(chat.chat)

    async def send(conversation: SuiteConversation) -> tuple[str, list[Assertion]]:
        return await conversation.send_user_message(text), []

    return await _run_conversation(context, chat, send)


async def _run_simulation(context: StepContext, step: StepBase) -> StepResult:
    from llmproxy.suite.run.simulate_and_judge import replay_simulation, simulate_user

    simulated = cast("SimulateStep", step)
    how = simulate_user if context.recorded is None else replay_simulation
    return await _run_conversation(context, simulated, lambda conversation: how(context, conversation, simulated))


async def _run_conversation(
    context: StepContext, step: Talk, send: Callable[[SuiteConversation], Awaitable[tuple[str, list[Assertion]]]]
) -> StepResult:
    """Talk with the agent and check all; `send` gives its answer, and what a simulation asserts of the talk."""
    if context.recorded is not None:
        context.recorded.begin_step(context.index, step.kind)
    entities = [item.entity for item in step.created or ()] if context.recorded is None else []
    before = await asyncio.to_thread(context.entities.take_baseline, entities) if entities else None
    conversation = context.conversations.choose_conversation(step.conversation, goes_on=step.continue_conversation)
    window = TrafficWindow(context.traffic.seen, continues=conversation.has_begun, index=context.index)
    done = StepResult()
    context.asking.limit = (_ANSWER_TIMEOUT if step.timeout is None else step.timeout) / 1000
    async with inject_step_faults(context, step.faults if context.recorded is None else None, done):
        answer, judged = await send(conversation)
    context.scope.record_answer(answer)
    if conversation.name:
        context.scope.record_conversation(conversation.name, conversation.thread_id)
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
            from llmproxy.suite.run.simulate_and_judge import run_judge

            done.rest += await run_judge(context, conversation, step.response.judge, "response.judge")
    if context.recorded is not None:
        done.rest += [build_unjudged(f"created[{number}]") for number, _ in enumerate(step.created or ())]
    if before is not None:
        done.rest += await asyncio.to_thread(context.entities.check_created, before, step.created or ())
    return done


_TOLD = 3
"""Maximum differences listed in a label."""


def _describe_traffic(context: StepContext, step: Talk, window: TrafficWindow, measured: AgentStep) -> list[str]:
    """Describe what is remarkable about a step's tools, whatever it asserts."""
    made = [
        f"no model is offered {name}, so that it was not called proves little"
        for name in find_never_offered_tools(step.tools or {}, measured, context.wire.calls)
    ]
    if uncounted := ", ".join(find_uncounted_hosted_tools(step, measured)):
        made.append(f"not counted, since the provider runs it: {uncounted} (`includeHosted: true` counts it)")
    if step.observe != "none" and not measured.unreadable:
        served, asked = context.wire.read_served_calls(window.after), measured.tools
        if not served.unknown_reason:  # models' calls and servers' received ones, results read and returned
            differing = [*find_mismatches(asked, served)[:_TOLD], *find_misreadings(asked, served)[:_TOLD]]
            made += ["; ".join(differing)] if differing else []
    return made


# -- rows --------------------------------------------------------------------------------------------------------------


async def _run_verify(context: StepContext, step: StepBase) -> StepResult:
    if context.recorded is not None:
        return StepResult(rest=[build_unjudged("verify")])
    said = cast("VerifyStep", step).verify
    return StepResult(rest=await asyncio.to_thread(check_verify, context.entities.run, "verify", said))


async def _run_wait(context: StepContext, step: StepBase) -> StepResult:
    said = cast("WaitStep", step).wait
    if context.recorded is not None:
        return StepResult(rest=[] if isinstance(said, PauseFor) else [build_unjudged("wait")])
    if isinstance(said, PauseFor):
        await asyncio.sleep(said.milliseconds / 1000)
        return StepResult()
    wanted = said.model_copy(update={"poll_interval": _FAST}) if context.options.fast_waits else said
    return StepResult(rest=await asyncio.to_thread(check_wait, context.entities.run, "wait", wanted))


async def _run_setup(context: StepContext, step: StepBase) -> StepResult:
    if context.recorded is None:
        await insert_setup_rows(context, cast("SetupStep", step).setup)
    return StepResult()


async def insert_setup_rows(context: StepContext, items: Iterable[SetupItem]) -> None:
    """Insert rows in order. Raises StoreError, SuiteError, StepError: one could not be inserted."""
    for item in items:
        await finish_in_thread(
            context.entities.insert_row, item.insert, item.data, item.as_ or "", overwrite=item.overwrite
        )


# -- judges ------------------------------------------------------------------------------------------------------------


async def _run_judge(context: StepContext, step: StepBase) -> StepResult:
    from llmproxy.suite.run.simulate_and_judge import run_judge

    said = cast("JudgeStep", step)
    return StepResult(
        rest=await run_judge(context, context.conversations.find_conversation(said.conversation), said.judge, "judge")
    )


KINDS: dict[str, Callable[[StepContext, StepBase], Awaitable[StepResult]]] = {
    "chat": _run_chat,
    "simulate": _run_simulation,
    "judge": _run_judge,
    "verify": _run_verify,
    "wait": _run_wait,
    "setup": _run_setup,
}
"""Kind of a step -> the function that executes it."""
