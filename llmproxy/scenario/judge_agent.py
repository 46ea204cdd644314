"""The judge: reads the transcript, and decides criterion by criterion. It fails closed.

While the conversation can continue, it ends only with a failed criterion or with all of them passed. When a verdict is
demanded (the last turn, `scenario.judge()`), success means that every criterion passed, and nothing else does.

Of several tool calls the first counts; if it decides, the others must agree. An answer malformed after one retry is an
error; a missing finding is inconclusive, a missing vote supports nothing and still counts as cast. The order of
fallbacks (`_AnswerForcing`), for models that refuse a form of request, is the same in every run: a replay follows it.
"""

from __future__ import annotations

import asyncio
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import Any, ClassVar

from llmproxy.errors import SettingsError
from llmproxy.scenario.agent_adapter import (
    AgentAdapter,
    find_scenario_session,
    get_scenario_description,
    get_tool_calls_seen_by_proxy,
    is_conversation_unscripted,
    list_unreadable_call_reasons,
)
from llmproxy.scenario.config import UNSET_ZERO, ModelConfig, refuse_misspelt_keywords
from llmproxy.scenario.models.errors import ModelError
from llmproxy.scenario.models.model_calls import ToolChoiceRefused, choose_model, complete, require_model
from llmproxy.scenario.models.transport import ModelAnswer
from llmproxy.scenario.run_session import RunSession
from llmproxy.scenario.transcripts import enclose_in_tags, fill_prompt, format_transcript, format_transcript_entries
from llmproxy.scenario.types import AgentInput, AgentReturnTypes, AgentRole, CriterionResult, Message, ScenarioResult
from llmproxy.scenario.values.criteria import (
    Criteria,
    CriterionStatus,
    JudgeFinding,
    mark_misquoted_findings_undecided,
    object_schema,
)

EXPAND, GREP = "expand_transcript", "grep_transcript"
_CHARACTERS = 4  # of a token, approximately
_HEAD = 120  # characters of a message in the outline
_LONGEST = 16_000  # characters of a lookup's answer
_AROUND = 160  # characters shown around a match
_MATCHES = 20
_PATTERN = 200  # characters; longer patterns are pasted texts


def estimate_tokens(text: str) -> int:
    return len(text) // _CHARACTERS


@dataclass(frozen=True, slots=True)
class JudgeTranscriptTools:
    entries: Sequence[str]  # texts of messages; each begins with its number in brackets

    def format_outline(self) -> str:
        lines = []
        for entry in self.entries:
            first, more = entry.replace("\n", " "), len(entry) - _HEAD
            lines.append(first if more <= 0 else f"{first[:_HEAD]} ... ({more} more characters)")
        lines.append(
            f"(Beginnings only. {EXPAND}(indices) shows messages as a whole, {GREP}(pattern) searches all of them. "
            f"Quote what you looked up.)"
        )
        return "\n".join(lines)

    def lookup_tools(self) -> list[dict[str, Any]]:
        indices = {
            "type": "array",
            "items": {"type": "integer"},
            "description": "Numbers of messages, as in the brackets.",
        }
        pattern = {"type": "string", "description": "Words as they stand there; a|b finds either. Case does not count."}
        return [
            _function_tool(EXPAND, "Show messages as a whole.", object_schema({"indices": indices})),
            _function_tool(GREP, "Search all messages.", object_schema({"pattern": pattern})),
        ]

    def answer_tool_call(self, name: str, arguments: str) -> str:
        try:
            given = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            return f"The arguments of {name} are no JSON."
        if not isinstance(given, dict):
            return f"The arguments of {name} are no object."
        text = self._expand_messages(given.get("indices")) if name == EXPAND else self._search(given.get("pattern"))
        if (more := len(text) - _LONGEST) <= 0:
            return text
        return f"{text[:_LONGEST]} ... ({more} more characters: ask for fewer messages, or search)"

    def _expand_messages(self, indices: object) -> str:
        wanted = [each for each in indices if type(each) is int] if isinstance(indices, list) else []
        found = [self.entries[each - 1] for each in dict.fromkeys(wanted) if 0 < each <= len(self.entries)]
        return "\n".join(found) or f"There is no such message; they are numbered 1 to {len(self.entries)}."

    def _search(self, pattern: object) -> str:
        if not isinstance(pattern, str) or not pattern.strip():
            return "The pattern is empty."
        if len(pattern) > _PATTERN:
            return f"The pattern is longer than {_PATTERN} characters; a few words do."
        # As it is written: an expression of a model's would be run on a text that is not the user's, for as long as it
        # likes.
        words = [each for each in re.split(r"\.\*|\|", pattern) if each.strip()]
        found = [line for entry in self.entries for line in _excerpt_around_words(entry, words)]
        more = f"\n({len(found) - _MATCHES} more matches)" if len(found) > _MATCHES else ""
        return "\n".join(found[:_MATCHES]) + more if found else f"No message has {pattern!r}."


def _excerpt_around_words(entry: str, words: Sequence[str]) -> list[str]:
    number, folded = entry.partition(" ")[0], entry.casefold()
    found = []
    for word in words:
        if (place := folded.find(word.casefold())) >= 0:
            start, end = max(0, place - _AROUND), place + len(word) + _AROUND
            found.append(f"{number} ...{entry[start:end]}...".replace("\n", " "))
    return found


CONTINUE, FINISH = "continue_test", "finish_test"
_OBJECT = re.compile(r"(?:[^{.!?]*:)?\s*(?:```(?:json)?\s*)?(\{.*\})\s*(?:```\s*)?", re.DOTALL | re.IGNORECASE)
"""A JSON object, maybe in a fence or after a sentence with a colon; in other prose it may be an example."""
_SHOWN = 300  # characters of a malformed answer quoted in an error


class JudgeError(ModelError):
    """A judge gave an unusable answer twice."""

    code = "llmproxy_judge"


@dataclass(frozen=True, slots=True)
class JudgeRulingOnConversation:
    goes_on: bool
    findings: Mapping[str, JudgeFinding] = field(default_factory=dict)  # by criterion id; missing ones are inconclusive
    reasoning: str = ""
    forced: bool = False
    """Whether it had to decide: by demand, or after the maximum lookups."""
    verdict: str | None = None  # its overall verdict, which is not requested


class _AnswerForcing(IntEnum):
    PINNED = 0
    REQUIRED = 1
    SCHEMA = 2
    PLAIN = 3


@dataclass(frozen=True, slots=True)
class _Unusable(Exception):
    problem: str
    literal: str
    partial: JudgeRulingOnConversation | None = None


@dataclass(frozen=True, slots=True)
class JudgeQuestionOnConversation:
    system: str
    text: str
    criteria: Criteria
    forced: bool
    look: JudgeTranscriptTools | None = None  # lookup of what `text` shows as an outline
    steps: int = 0
    whole: str = ""
    """`text` with the whole conversation, for a model without tools."""

    async def ask_judge(self, model: ModelConfig, party: str, session: RunSession | None) -> JudgeRulingOnConversation:
        """Call a judge. Raises JudgeError for a second unusable answer, and errors of `complete`."""
        said: list[Message] = []
        if self.look is None:
            return await self._get_ruling_with_retry(model, party, session, said, None)
        way = _AnswerForcing.REQUIRED
        for _ in range(self.steps):
            way, answer = await self._ask_with_fallback_form(model, party, session, said, way)
            call = answer.tool_calls[0] if answer.tool_calls else None
            if call is None or call.name not in {EXPAND, GREP}:
                return await self._get_ruling_with_retry(model, party, session, said, (way, answer))
            found = self.look.answer_tool_call(call.name, call.arguments)
            said += [
                {"role": "assistant", "content": _format_answer_for_retry(answer)},
                {"role": "user", "content": found},
            ]
        decides = replace(self, forced=True, steps=0)
        return await decides._get_ruling_with_retry(model, party, session, said, None)  # noqa: SLF001 (its own kind)

    async def _get_ruling_with_retry(
        self, model: ModelConfig, party: str, session: RunSession | None, said: list[Message],
        first: tuple[_AnswerForcing, ModelAnswer] | None,
    ) -> JudgeRulingOnConversation:  # fmt: skip
        """Return the ruling of the first answer, which is requested unless given, or of a second one."""
        way = _AnswerForcing.PINNED if self.forced and not self.steps else _AnswerForcing.REQUIRED
        unusable: _Unusable | None = None
        for _ in range(2):
            way, answer = first or await self._ask_with_fallback_form(model, party, session, said, way)
            first = None
            try:
                return self._read_ruling(answer)
            except _Unusable as error:
                unusable = error
            repair = fill_prompt("judge_repair", problem=unusable.problem, instruction=self.answer_instruction)
            said += [
                {"role": "assistant", "content": _format_answer_for_retry(answer)},
                {"role": "user", "content": repair},
            ]
        assert unusable is not None  # noqa: S101 - the loop runs
        if unusable.partial is not None:
            return unusable.partial
        hint = f"{model.model} ({party}) was asked twice; another model may do better."
        raise JudgeError(f"Invalid response from judge agent, {unusable.literal}", hint=hint)

    @property
    def answer_instruction(self) -> str:
        return fill_prompt("judge_final" if self.forced else "judge_open")

    def list_judge_tools(self) -> list[dict[str, Any]]:
        finish = _function_tool(FINISH, "End the test with a status for every criterion.", self._verdict_schema())
        more = self.look.lookup_tools() if self.look is not None and self.steps else []
        if self.forced:
            return [*more, finish]
        return [*more, _function_tool(CONTINUE, "Let the conversation go on.", object_schema({})), finish]

    def _verdict_schema(self) -> dict[str, Any]:
        return object_schema(
            {
                "criteria": self.criteria.findings_schema(),
                "reasoning": {"type": "string", "description": "Why, in a few sentences."},
            }
        )

    async def _ask_with_fallback_form(
        self, model: ModelConfig, party: str, session: RunSession | None, said: Sequence[Message], way: _AnswerForcing
    ) -> tuple[_AnswerForcing, ModelAnswer]:
        while True:
            try:
                return way, await complete(
                    model=model,
                    party=party,
                    session=session,
                    messages=self._messages(said, way),
                    **self._build_answer_forcing_parameters(way),
                )
            except ToolChoiceRefused:
                if way is _AnswerForcing.PLAIN:
                    raise
                way = _AnswerForcing(way + 1)

    def _messages(self, said: Sequence[Message], way: _AnswerForcing) -> list[Message]:
        shown = self.whole if self.whole and way >= _AnswerForcing.SCHEMA else self.text
        text = f"{shown}\n\n{self.answer_instruction}"
        messages: list[Message] = [{"role": "system", "content": self.system}, {"role": "user", "content": text}, *said]
        if way >= _AnswerForcing.SCHEMA:
            how = fill_prompt("judge_json", or_continue="" if self.forced else ' or "continue_test"')
            messages[-1] = {"role": "user", "content": f"{messages[-1]['content']}\n\n{how}"}
        return messages

    def _build_answer_forcing_parameters(self, way: _AnswerForcing) -> dict[str, Any]:
        if way is _AnswerForcing.PLAIN:
            return {}
        if way is _AnswerForcing.SCHEMA:
            decision = {"type": "string", "enum": [FINISH] if self.forced else [CONTINUE, FINISH]}
            schema = object_schema({"decision": decision, **self._verdict_schema()["properties"]})
            form = {"name": "verdict", "strict": True, "schema": schema}
            return {"response_format": {"type": "json_schema", "json_schema": form}}
        pinned = {"type": "function", "function": {"name": FINISH}}
        return {"tools": self.list_judge_tools(), "tool_choice": pinned if way is _AnswerForcing.PINNED else "required"}

    def _read_ruling(self, answer: ModelAnswer) -> JudgeRulingOnConversation:
        if answer.tool_calls:
            first, *more = [(call.name, _parse_json_or_keep_text(call.arguments)) for call in answer.tool_calls]
            if first[0] == FINISH and any(each != first for each in more):
                problem = "it decides more than once, and not alike"
                raise _Unusable(problem, f"{problem}: {_shorten(_format_answer_for_retry(answer))!r}")
            return self._parse_ruling(*first)
        found = _OBJECT.fullmatch(answer.text)
        given = _load_json_or_none(found[1]) if found else None
        if isinstance(given, Mapping) and ("criteria" in given or given.get("decision") == CONTINUE):
            return self._parse_ruling(str(given.get("decision") or FINISH), given)
        said = f"tool calls not found: {_shorten(answer.text)!r}"
        raise _Unusable(f"it calls no tool; call {self._format_verdict_tool_names()}", said)

    def _parse_ruling(self, name: str, given: object) -> JudgeRulingOnConversation:
        if name == CONTINUE:
            if self.forced:
                problem = "the conversation is over and cannot go on"
                raise _Unusable(problem, problem, JudgeRulingOnConversation(goes_on=True))
            return JudgeRulingOnConversation(goes_on=True)
        tools = self._format_verdict_tool_names()
        if name in {EXPAND, GREP} and self.look is not None:
            raise _Unusable(f"nothing more can be looked up; call {tools}", "it only looks things up")
        if name != FINISH:
            odd = repr(_shorten(name))
            raise _Unusable(f"there is no tool {odd}; call {tools}", f"unknown tool: {odd}")
        if not isinstance(given, Mapping):
            problem = f"the arguments of {FINISH} are no JSON object"
            raise _Unusable(problem, f"{problem}: {_shorten(str(given))!r}")
        reasoning, verdict = given.get("reasoning"), given.get("verdict")
        findings, problems = self.criteria.read_findings(given.get("criteria"))
        ruling = JudgeRulingOnConversation(
            goes_on=False,
            forced=self.forced,
            findings=findings,
            reasoning=reasoning if isinstance(reasoning, str) else "",
            verdict=verdict if isinstance(verdict, str) else None,
        )
        if problems:
            raise _Unusable("; ".join(problems), "; ".join(problems), ruling)
        return ruling

    def _format_verdict_tool_names(self) -> str:
        return FINISH if self.forced else f"{CONTINUE} or {FINISH}"


def _function_tool(name: str, description: str, parameters: dict[str, Any]) -> dict[str, Any]:
    function = {"name": name, "description": description, "strict": True, "parameters": parameters}
    return {"type": "function", "function": function}


def _parse_json_or_keep_text(arguments: str) -> object:
    if not arguments.strip():
        return {}
    found = _load_json_or_none(arguments)
    return arguments if found is None else found


def _load_json_or_none(text: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=_build_unambiguous_object)
    except (ValueError, RecursionError):
        return None


def _build_unambiguous_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object from members. Raises ValueError: a member stands there twice, with two values."""
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made and made[name] != value:
            raise ValueError(f"{name} stands there twice")
        made[name] = value
    return made


def _format_answer_for_retry(answer: ModelAnswer) -> str:
    calls = [f"{call.name}({call.arguments})" for call in answer.tool_calls[:1]]
    return "\n".join([*([answer.text] if answer.text else []), *calls]) or "(nothing)"


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


class VoteRule(StrEnum):
    MAJORITY = "majority"
    UNANIMOUS = "unanimous"
    CONFIRM_ON_FAIL = "confirm-on-fail"


def read_vote_rule(said: str) -> VoteRule:
    """Return the rule of this name. Raises SettingsError."""
    try:
        return VoteRule(said.strip().lower().replace("_", "-"))
    except ValueError as error:
        raise SettingsError(f"vote={said!r} is no way to vote.", hint=f"There are: {', '.join(VoteRule)}.") from error


def combine_votes(
    ids: Sequence[str], votes: Sequence[Mapping[str, JudgeFinding]], rule: VoteRule
) -> tuple[dict[str, JudgeFinding], dict[str, tuple[str, ...]]]:
    """Return each criterion's outcome, with the first agreeing judge's evidence, and each judge's status."""
    found: dict[str, JudgeFinding] = {}
    cast: dict[str, tuple[str, ...]] = {}
    silent = JudgeFinding(CriterionStatus.INCONCLUSIVE)
    for id_ in ids:
        findings = [vote.get(id_, silent) for vote in votes]
        cast[id_] = tuple(finding.status.value for finding in findings)
        decided = _decide_status_by_vote([finding.status for finding in findings], rule)
        disagreement = JudgeFinding(
            CriterionStatus.INCONCLUSIVE, reason=f"the judges do not agree: {', '.join(cast[id_])}"
        )
        found[id_] = next((finding for finding in findings if finding.status is decided), disagreement)
    return found, cast


def _decide_status_by_vote(statuses: Sequence[CriterionStatus], rule: VoteRule) -> CriterionStatus:
    wanted = len(statuses) if rule is VoteRule.UNANIMOUS else len(statuses) // 2 + 1
    for status in (CriterionStatus.PASSED, CriterionStatus.FAILED):
        if statuses.count(status) >= wanted:
            return status
    return CriterionStatus.INCONCLUSIVE


NO_CRITERIA = "TestingAgent was called as a judge, but it has no criteria to judge against"
SUCCESS = "success"
TOKENS = 8192  # of a transcript above which a judge gets an outline; LangWatch Scenario's
STEPS = 10  # lookups of a judge; LangWatch Scenario's


class JudgeAgent(AgentAdapter):
    role: ClassVar[AgentRole] = AgentRole.JUDGE
    uses_session: ClassVar[bool] = True
    raises_misses: ClassVar[bool] = True

    def __init__(
        self, *, criteria: Sequence[str] | None = None, model: str | ModelConfig | None = None,
        api_key: str | None = None, temperature: float = UNSET_ZERO, max_tokens: int | None = None,
        system_prompt: str | None = None, judges: int | Sequence[str | ModelConfig] = 1, vote: str = VoteRule.MAJORITY,
        min_turns: int = 0, token_threshold: int = TOKENS, max_discovery_steps: int = STEPS, **more: Any,
    ) -> None:  # fmt: skip
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
        extra = refuse_misspelt_keywords(JudgeAgent, more)
        models = _list_judge_models(judges, model)
        chosen = (choose_model("JudgeAgent", each, api_key, temperature, max_tokens, extra) for each in models)
        written = 'JudgeAgent(model="openai/gpt-4.1-mini", criteria=[...])'
        self.configs = tuple(require_model("JudgeAgent", each, written) for each in chosen)
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
        criteria, seen = Criteria(texts), format_transcript(input.messages, get_tool_calls_seen_by_proxy(input))
        question = JudgeQuestionOnConversation(
            self.system_prompt or fill_prompt("judge"), self._build_prompt_text(input, criteria, seen), criteria, forced
        )
        if estimate_tokens(seen) > self.token_threshold and self.max_discovery_steps > 0:
            look = JudgeTranscriptTools(
                format_transcript_entries(input.messages, get_tool_calls_seen_by_proxy(input), longest=None)
            )
            outlined = self._build_prompt_text(input, criteria, look.format_outline())
            question = replace(question, text=outlined, look=look, steps=self.max_discovery_steps, whole=question.text)
            seen = "\n".join(look.entries)
        rulings = await self._ask_judges_for_rulings(question, find_scenario_session(input))
        if forced and is_conversation_unscripted(input) and all(ruling.goes_on for ruling in rulings):
            return []  # no verdict even at the end: the run ends without conclusion
        result = self._result(criteria, rulings, seen, input)
        forced = forced or any(ruling.forced for ruling in rulings)
        return result if forced or result.success or result.failed_criteria else []

    def _is_too_early(self, given: AgentInput) -> bool:
        """Return whether it is too early: the judge's `min_turns` include its turn, the run's do not."""
        if (state := given.scenario_state) is None:
            return False
        floor = getattr(getattr(state, "config", None), "min_turns", None) or 0
        return bool(state.current_turn + 1 < self.min_turns or state.current_turn < floor)

    def _build_prompt_text(self, given: AgentInput, criteria: Criteria, seen: str) -> str:
        parts = [
            enclose_in_tags("scenario", get_scenario_description(given)),
            enclose_in_tags("criteria", criteria.format_lines()),
        ]
        if given.judgment_context:
            parts.append(enclose_in_tags("context", given.judgment_context))
        if unknown := list_unreadable_call_reasons(given):
            reasons = "\n".join(f"- {why}" for why in unknown)
            parts.append(enclose_in_tags("unknown", fill_prompt("judge_unknown", reasons=reasons)))
        return "\n\n".join([*parts, enclose_in_tags("transcript", seen or "(nothing was said)")])

    async def _ask_judges_for_rulings(
        self, question: JudgeQuestionOnConversation, session: RunSession | None
    ) -> list[JudgeRulingOnConversation]:
        """Return each judge's ruling; all are awaited before an error of one is raised."""
        asked = list(zip(self.configs, list_judge_party_names(len(self.configs)), strict=True))
        rulings: list[JudgeRulingOnConversation] = []
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

    def _result(
        self, criteria: Criteria, rulings: Sequence[JudgeRulingOnConversation], seen: str, given: AgentInput
    ) -> ScenarioResult:
        votes = [mark_misquoted_findings_undecided(ruling.findings, seen) for ruling in rulings]
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


def _list_judge_models[M](judges: int | Sequence[M], model: M) -> list[M]:
    if isinstance(judges, str | bool) or not judges or (isinstance(judges, int) and judges < 1):
        raise SettingsError(f"judges={judges!r}: it is a number from 1 on, or a list of models.")
    return [model] * judges if isinstance(judges, int) else list(judges)


def _first_ruling_fails_run(ruling: JudgeRulingOnConversation, question: JudgeQuestionOnConversation) -> bool:
    """Return whether the other judges must be called: the first one would fail the run."""
    if ruling.goes_on:
        return False
    statuses = [finding.status for finding in ruling.findings.values()]
    all_passed = statuses == [CriterionStatus.PASSED] * len(question.criteria)
    return CriterionStatus.FAILED in statuses or (question.forced and not all_passed)


def _join_reasonings(rulings: Sequence[JudgeRulingOnConversation], judged: Sequence[CriterionResult]) -> str:
    if len(rulings) == 1 and rulings[0].reasoning:
        return rulings[0].reasoning
    named = zip(list_judge_party_names(len(rulings)), rulings, strict=True)
    if told := [f"{name}: {ruling.reasoning}" for name, ruling in named if ruling.reasoning]:
        return "\n".join(told)
    return "; ".join(f"{each.id} {each.status}{each.reason and ': ' + each.reason}" for each in judged)
