"""Steps with models: a simulated user who talks with the agent, a judge who evaluates the conversation.

Their calls go through the run's session as separate parties, so they are recorded and replayed like the agent's, and do
not count in assertions about the agent.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llmproxy.errors import SuiteError
from llmproxy.report.events import Assertion, Status
from llmproxy.scenario.config import UNSET_ZERO
from llmproxy.scenario.judge_agent import JudgeAgent
from llmproxy.scenario.models.errors import ModelNotSet
from llmproxy.scenario.models.model_calls import choose_model
from llmproxy.scenario.models.route_via_proxy import upstreams_of_models
from llmproxy.scenario.run_session import RunSession
from llmproxy.scenario.types import AgentRole, CriterionResult
from llmproxy.scenario.user_simulator_agent import Persona, UserSimulatorAgent, find_persona
from llmproxy.scenario.values.messages import Farewell, get_text
from llmproxy.suite.matchers.apply import assertion, build_unclear
from llmproxy.suite.matchers.match import quote
from llmproxy.suite.reading.load import SuiteCase
from llmproxy.suite.run.rejudge import build_unjudged_assertion
from llmproxy.suite.run.step_context import StepContext, SuiteConversation
from llmproxy.suite.schema.response_assertions import Judging
from llmproxy.suite.schema.steps import JudgeStep, SimulateStep, Simulation, Talk
from llmproxy.trace.observing.tool_calls import ToolUse


def model_upstreams(case: SuiteCase) -> dict[str, str]:
    """Return the upstreams of simulated users and judges with an `api_base`. Raises SettingsError: two clash."""
    asked: list[tuple[str, str | None]] = []
    judge_model = case.suite.defaults.judge_model if case.suite.defaults else None
    for step in case.scenario.steps:
        if isinstance(step, JudgeStep):
            asked.append(("JudgeAgent", step.judge.model))
        elif isinstance(step, SimulateStep):
            asked.append(("UserSimulatorAgent", step.simulate.model))
            asked += [("JudgeAgent", judge_model)] if step.simulate.criteria else []
        if isinstance(step, Talk) and step.response is not None and step.response.judge is not None:
            asked.append(("JudgeAgent", step.response.judge.model))
    if not asked:
        return {}

    models = [choose_model(who, model, None, UNSET_ZERO, None) for who, model in asked]
    return upstreams_of_models(each for each in models if each is not None)


@dataclass(slots=True)
class _ExecutorStandIn:
    """The run's interface for adapters of `llmproxy.scenario` (`scenario.agent_adapter`)."""

    session: RunSession | None
    unscripted: bool
    wire_by_message: Mapping[int, Sequence[ToolUse]] = field(default_factory=dict)
    wire_unknown: Sequence[str] = ()


@dataclass(slots=True)
class _StateStandIn:
    description: str
    _executor: _ExecutorStandIn


async def run_simulated_conversation(
    context: StepContext, conversation: SuiteConversation, step: SimulateStep
) -> tuple[str, list[Assertion]]:
    said = step.simulate
    user = _build_user(context, said)
    conversation.answer = ""
    conversation.states[AgentRole.USER] = _StateStandIn(
        context.scope.interpolate_text(said.goal), _ExecutorStandIn(context.session, unscripted=True)
    )
    await user.open(context.session)
    try:
        with conversation.playback.temporary_participant(user):
            if said.first_message and (first := context.scope.interpolate_text(said.first_message)):
                await conversation.verbs.user(first)
            await conversation.verbs.proceed(turns=said.max_turns)
    finally:
        await user.close()
    await context.read_new_calls()
    answer = conversation.answer
    if not answer:
        message = "the simulated user ended the conversation before the agent had said anything in this step"
        return answer, [build_unclear("simulate", message)]
    if said.criteria:
        return answer, await _judge_criteria(context, conversation, said)
    return answer, [_judge_goal_by_farewell(said, conversation.playback.farewell)]


async def replay_simulation(
    context: StepContext, conversation: SuiteConversation, step: SimulateStep
) -> tuple[str, list[Assertion]]:
    """Repeat the user's recorded texts; return as `run_simulated_conversation`, with criteria judged again."""
    assert context.recorded is not None  # noqa: S101 - for who reads types
    answer = ""
    for text in context.recorded.begin_step(context.index, step.kind):
        answer = await conversation.send_user_message(text)
    if step.simulate.criteria:
        return answer, await _judge_criteria(context, conversation, step.simulate)
    return answer, [
        build_unjudged_assertion("simulate.goal", "whether the user is content, the user said when the agent ran")
    ]


def _build_user(context: StepContext, said: Simulation) -> Any:
    persona: Persona | None = None
    if isinstance(said.persona, str):
        persona = find_persona(context.scope.interpolate_text(said.persona))
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


def _judge_goal_by_farewell(said: Simulation, farewell: Farewell | None) -> Assertion:
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
        return build_unclear(name, unclear, expected=expected)
    words = f": {quote(get_text(farewell[-1]), 200)}" if farewell else ""
    message = f"the simulated user gave up, the goal was not reached{words}"
    return assertion(name, message, holds=farewell.reached, expected=expected, actual=farewell.reached)


# -- judges ------------------------------------------------------------------------------------------------------------


async def run_judge(
    context: StepContext, conversation: SuiteConversation | None, said: Judging, name: str
) -> list[Assertion]:
    if conversation is None or not conversation.has_begun:
        return [build_unclear(name, "there is no conversation to judge: nothing was said in it")]
    return await _ask_judge_for_assertions(context, conversation, said, f"{name}.criteria")


async def _judge_criteria(context: StepContext, conversation: SuiteConversation, said: Simulation) -> list[Assertion]:
    model = context.case.suite.defaults.judge_model if context.case.suite.defaults else None
    judging = Judging.model_construct(criteria=said.criteria, model=model)
    return await _ask_judge_for_assertions(context, conversation, judging, "simulate.criteria")


async def _ask_judge_for_assertions(
    context: StepContext, conversation: SuiteConversation, said: Judging, name: str
) -> list[Assertion]:
    criteria = [context.scope.interpolate_text(each) for each in said.criteria]
    try:
        with warnings.catch_warnings(action="ignore"):  # of equal judges: its remedies are no keys of a suite
            agent = JudgeAgent(criteria=criteria, model=said.model, judges=said.judges)
    except ModelNotSet as error:
        raise _build_no_model_error(f"{name}: the judge", "judge", "judgeModel") from error
    about = context.case.description or context.case.title or context.case.id
    steps = {place: context.wire.build_step(*window) for place, window in conversation.windows.items()}
    running = _ExecutorStandIn(
        context.session,
        unscripted=False,
        wire_by_message={place: step.tools for place, step in steps.items()},
        wire_unknown=tuple(dict.fromkeys(each.unread_reason for step in steps.values() for each in step.unreadable)),
    )
    conversation.states[AgentRole.JUDGE] = _StateStandIn(about, running)
    with conversation.playback.temporary_participant(agent):
        returned = await conversation.verbs.judge()
    await context.read_new_calls()
    if returned is None:
        return [build_unclear(name, "the judge gave no verdict")]
    context.emitter.emit_verdict(agent.models[0].model, returned, forced=True, decided=True)
    made = [_build_criterion_assertion(f"{name}[{n}]", each) for n, each in enumerate(returned.criteria)]
    unsaid = "" if made else "the judge said nothing about any criterion"
    if all(each.status is Status.PASSED for each in made) and not returned.success:
        unsaid = returned.reasoning or "the judge found all criteria passed, and no success"
    return [*made, build_unclear(name, unsaid)] if unsaid else made


_STATUS = {"passed": Status.PASSED, "failed": Status.FAILED}


def _build_criterion_assertion(name: str, found: CriterionResult) -> Assertion:
    """Return a finding as an assertion; an undecided one is an error, never a pass."""
    status = _STATUS.get(found.status, Status.ENVIRONMENT_ERROR)
    why = found.reason or found.evidence or "no reason was given"
    message = "" if status is Status.PASSED else f"{found.text!r} is {found.status}: {why}"
    quoted = f"quoted: {found.evidence}" if found.evidence else ""
    return Assertion(name=name, status=status, expected=found.text, actual=found.status, message=message, where=quoted)
