"""The judge: reads the transcript, and decides criterion by criterion. It fails closed.

While the conversation can continue, it ends only with a failed criterion or with all of them passed. When a verdict is
demanded (the last turn, `scenario.judge()`), success means that every criterion passed, and nothing else does.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from llmproxy.errors import SettingsError
from llmproxy.scenario.agent_adapter import (
    AgentAdapter,
    find_session,
    get_scenario_description,
    get_wire_tool_calls,
    is_conversation_unscripted,
    list_unknown_call_reasons,
)
from llmproxy.scenario.config import UNSET_ZERO, ModelConfig, refuse_typos
from llmproxy.scenario.judging import Lookup, Question, Ruling, VoteRule, combine_votes, estimate_tokens, read_vote_rule
from llmproxy.scenario.models.model_calls import require_model
from llmproxy.scenario.prompts import fence_text, format_entries, format_transcript, prompt
from llmproxy.scenario.run_session import RunSession
from llmproxy.scenario.types import AgentInput, AgentReturnTypes, AgentRole, CriterionResult, ScenarioResult
from llmproxy.scenario.values.criteria import Criteria, CriterionStatus, mark_unproven_findings_inconclusive

NO_CRITERIA = "TestingAgent was called as a judge, but it has no criteria to judge against"
SUCCESS = "success"
TOKENS = 8192  # of a transcript above which a judge gets an outline; LangWatch Scenario's
STEPS = 10  # lookups of a judge; LangWatch Scenario's


class JudgeAgent(AgentAdapter):
    role: ClassVar[AgentRole] = AgentRole.JUDGE
    uses_session: ClassVar[bool] = True
    raises_misses: ClassVar[bool] = True

    def __init__(
        self,
        *,
        criteria: Sequence[str] | None = None,
        model: str | ModelConfig | None = None,
        api_key: str | None = None,
        temperature: float = UNSET_ZERO,
        max_tokens: int | None = None,
        system_prompt: str | None = None,
        judges: int | Sequence[str | ModelConfig] = 1,
        vote: str = VoteRule.MAJORITY,
        min_turns: int = 0,
        token_threshold: int = TOKENS,
        max_discovery_steps: int = STEPS,
        **more: Any,
    ) -> None:
        """Prepare a judge.

        Besides the usual parameters of a model:
            criteria: Sentences that are true of a good conversation; none for a judge that is only called by
                `scenario.judge(criteria=[...])`.
            model: Name of the model; None: the default model of `scenario.configure`.
            temperature: Of the model. The default is dropped if the model refuses it.
            system_prompt: Replaces the instructions about judging; criteria, scenario and transcript follow.
            judges: Number of judges, all of this model; or the models, one for each judge.
            vote: ``majority``, ``unanimous``, or ``confirm-on-fail``, which calls the others only if the first one
                would fail something.
            min_turns: Turns before the judge examines the conversation, unless a verdict is demanded.
            token_threshold: Estimated tokens of a transcript above which the judge gets an outline, with lookups.
            more: ``api_base`` and any other keyword of ``litellm.completion``.

        Raises SettingsError: no model, an invalid number of judges or vote; TypeError: a misspelt keyword; ValueError:
        criteria that are no list of texts, or an empty one.
        """
        self.criteria = list(Criteria(() if criteria is None else criteria).texts)
        extra = refuse_typos(JudgeAgent, more)
        self.configs = _build_judge_configs(judges, model, api_key, temperature, max_tokens, extra)
        first = self.configs[0]
        self.model, self.api_key = first.model, first.api_key
        self.temperature, self.max_tokens = first.temperature, first.max_tokens
        self.system_prompt = system_prompt
        self.vote = read_vote_rule(vote)
        self.min_turns = min_turns
        self.token_threshold, self.max_discovery_steps = token_threshold, max_discovery_steps
        alike = len(self.configs) > 1 and len({config.model for config in self.configs}) == 1
        if alike and all(config.temperature == 0 for config in self.configs):
            warnings.warn(
                f"{len(self.configs)} judges of one model ({self.model}) at temperature 0 answer nearly the same: they "
                "cost more and add little. Give judges= different models, or temperature= above 0.",
                stacklevel=2,
            )

    @property
    def models(self) -> tuple[ModelConfig, ...]:
        return self.configs

    async def call(self, input: AgentInput) -> AgentReturnTypes:  # noqa: A002 (the documented name)
        asked = input.judgment_request
        forced = asked is not None
        texts = self.criteria if asked is None or asked.criteria is None else asked.criteria
        if not texts:
            return ScenarioResult(success=False, messages=[], reasoning=NO_CRITERIA) if forced else []
        if not forced and self._is_too_early(input):
            return []
        criteria, seen = Criteria(texts), format_transcript(input.messages, get_wire_tool_calls(input))
        question = Question(
            self.system_prompt or prompt("judge"), self._build_prompt_text(input, criteria, seen), criteria, forced
        )
        if estimate_tokens(seen) > self.token_threshold and self.max_discovery_steps > 0:
            look = Lookup(format_entries(input.messages, get_wire_tool_calls(input), longest=None))
            outlined = self._build_prompt_text(input, criteria, look.format_outline())
            steps = self.max_discovery_steps
            question = replace(question, text=outlined, look=look, steps=steps, whole=question.text)
            seen = "\n".join(look.entries)
        rulings = await self._ask_judges_for_rulings(question, find_session(input))
        if forced and is_conversation_unscripted(input) and all(ruling.goes_on for ruling in rulings):
            return []  # no verdict even at the end: the run ends without conclusion
        result = self._result(criteria, rulings, seen, input)
        forced = forced or any(ruling.forced for ruling in rulings)
        return result if forced or result.success or result.failed_criteria else []

    def _is_too_early(self, given: AgentInput) -> bool:
        """Return whether it is too early: the judge's `min_turns` include its turn, the run's do not."""
        state = given.scenario_state
        if state is None:
            return False
        floor = getattr(getattr(state, "config", None), "min_turns", None) or 0
        return bool(state.current_turn + 1 < self.min_turns or state.current_turn < floor)

    def _build_prompt_text(self, given: AgentInput, criteria: Criteria, seen: str) -> str:
        parts = [
            fence_text("scenario", get_scenario_description(given)),
            fence_text("criteria", criteria.format_lines()),
        ]
        if given.judgment_context:
            parts.append(fence_text("context", given.judgment_context))
        if unknown := list_unknown_call_reasons(given):
            reasons = "\n".join(f"- {why}" for why in unknown)
            parts.append(fence_text("unknown", prompt("judge_unknown", reasons=reasons)))
        return "\n\n".join([*parts, fence_text("transcript", seen or "(nothing was said)")])

    async def _ask_judges_for_rulings(self, question: Question, session: RunSession | None) -> list[Ruling]:
        """Return each judge's ruling; all are awaited before an error of one is raised."""
        names = list_judge_party_names(len(self.configs))
        asked = list(zip(self.configs, names, strict=True))
        rulings: list[Ruling] = []
        if self.vote is VoteRule.CONFIRM_ON_FAIL:
            first = await question.ask_judge(*asked[0], session)
            rulings.append(first)
            if not _first_ruling_fails_run(first, question):
                return rulings
        said = await asyncio.gather(
            *(question.ask_judge(config, name, session) for config, name in asked[len(rulings) :]),
            return_exceptions=True,
        )
        for each in said:
            if isinstance(each, BaseException):
                raise each
            rulings.append(each)
        return rulings

    def _result(self, criteria: Criteria, rulings: Sequence[Ruling], seen: str, given: AgentInput) -> ScenarioResult:
        votes = [mark_unproven_findings_inconclusive(ruling.findings, seen) for ruling in rulings]
        findings, cast = combine_votes(criteria.ids, votes, self.vote) if len(votes) > 1 else (votes[0], {})
        judged = criteria.build_results(findings, cast)
        texts = {status: [each.text for each in judged if each.status == status] for status in CriterionStatus}
        passed = len(texts[CriterionStatus.PASSED]) == len(judged)
        against = [ruling.verdict for ruling in rulings if ruling.verdict not in {None, SUCCESS}] if passed else []
        reasoning = _join_reasonings(rulings, judged)
        if against:
            reasoning += f" (The judge's own verdict was {against[0]!r}, although all criteria passed.)"
        return ScenarioResult(
            success=passed and not against,
            messages=given.messages,
            reasoning=reasoning,
            passed_criteria=texts[CriterionStatus.PASSED],
            failed_criteria=texts[CriterionStatus.FAILED],
            inconclusive_criteria=texts[CriterionStatus.INCONCLUSIVE],
            criteria=judged,
        )


def list_judge_party_names(judges: int) -> tuple[str, ...]:
    return ("judge", *(f"judge.{number}" for number in range(2, judges + 1)))


def _build_judge_configs(
    judges: int | Sequence[str | ModelConfig],
    model: str | ModelConfig | None,
    api_key: str | None,
    temperature: float,
    max_tokens: int | None,
    more: Mapping[str, Any],
) -> tuple[ModelConfig, ...]:
    if isinstance(judges, str | bool) or not judges or (isinstance(judges, int) and judges < 1):
        raise SettingsError(f"judges={judges!r}: it is a number from 1 on, or a list of models.")
    models = [model] * judges if isinstance(judges, int) else list(judges)
    written = 'JudgeAgent(model="openai/gpt-4.1-mini", criteria=[...])'
    return tuple(
        require_model("JudgeAgent", each, api_key, temperature, max_tokens, more, written=written) for each in models
    )


def _first_ruling_fails_run(ruling: Ruling, question: Question) -> bool:
    """Return whether the other judges must be called: the first one would fail the run."""
    if ruling.goes_on:
        return False
    statuses = [finding.status for finding in ruling.findings.values()]
    all_passed = statuses == [CriterionStatus.PASSED] * len(question.criteria)
    return CriterionStatus.FAILED in statuses or (question.forced and not all_passed)


def _join_reasonings(rulings: Sequence[Ruling], judged: Sequence[CriterionResult]) -> str:
    if len(rulings) == 1 and rulings[0].reasoning:
        return rulings[0].reasoning
    named = zip(list_judge_party_names(len(rulings)), rulings, strict=True)
    if told := [f"{name}: {ruling.reasoning}" for name, ruling in named if ruling.reasoning]:
        return "\n".join(told)
    return "; ".join(f"{each.id} {each.status}{each.reason and ': ' + each.reason}" for each in judged)
