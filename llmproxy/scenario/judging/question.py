"""Ask one judge, and make something of what it answers.

    pinned tool -> any tool -> JSON schema -> JSON by request       the way down, where a model refuses to be asked so
    answer -> Ruling                                                one more attempt if it cannot be used

Of several tool calls the first counts; where it decides, the others must say the same. What is still malformed after the repair is an error; a verdict that lacks something is a verdict in which
that is inconclusive. The way down is the same in every run, so that a replay takes the same steps.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from llmproxy.scenario.config import ModelConfig
from llmproxy.scenario.judging.outline import EXPAND, GREP, Lookup
from llmproxy.scenario.models.answer import Answer
from llmproxy.scenario.models.errors import ModelError
from llmproxy.scenario.models.models import RefusedChoice, complete
from llmproxy.scenario.prompts.load import prompt
from llmproxy.scenario.types import Message
from llmproxy.scenario.values.criteria import Criteria, Finding

if TYPE_CHECKING:
    from llmproxy.scenario.proxy.session import RunSession

CONTINUE, FINISH = "continue_test", "finish_test"
INVALID = "Invalid response from judge agent"
_OBJECT = re.compile(r"\{.*\}", re.DOTALL)
_SHOWN = 300
"""Characters of a malformed answer that an error quotes."""


class JudgeError(ModelError):
    """A judge answered twice what is no answer."""

    code = "llmproxy_judge"


@dataclass(frozen=True, slots=True)
class Ruling:
    """What one judge said."""

    goes_on: bool
    """Whether it wants to see more."""
    findings: Mapping[str, Finding] = field(default_factory=dict)
    """By id of the criterion; what is missing is inconclusive."""
    reasoning: str = ""
    forced: bool = False
    """Whether it had to decide: it was asked to, or it had looked things up for long enough."""
    verdict: str | None = None
    """Its own word for all of it, where it gave one; it is not asked for."""


class _AskingWay(IntEnum):
    """How the answer is demanded."""

    PINNED = 0
    REQUIRED = 1
    SCHEMA = 2
    PLAIN = 3


@dataclass(frozen=True, slots=True)
class _Unusable(Exception):
    """Why an answer cannot be used; what of it can."""

    problem: str
    literal: str
    partial: Ruling | None = None


@dataclass(frozen=True, slots=True)
class Question:
    system: str
    text: str
    criteria: Criteria
    forced: bool
    """Whether it has to decide."""
    look: Lookup | None = None
    """Of a conversation that `text` shows in outline."""
    steps: int = 0
    """How often something may be looked up."""
    whole: str = ""
    """`text` with the whole conversation, for a model that takes no tools to look things up."""

    async def put(self, model: ModelConfig, party: str, session: RunSession | None) -> Ruling:
        """Ask a judge. Raises JudgeError for an answer that makes no sense twice, and what `complete` raises."""
        said: list[Message] = []
        if self.look is None:
            return await self._make_ruling(model, party, session, said, None)
        way = _AskingWay.REQUIRED
        for _ in range(self.steps):
            way, answer = await self._ask_model(model, party, session, said, way)
            call = answer.tool_calls[0] if answer.tool_calls else None
            if call is None or call.name not in {EXPAND, GREP}:
                return await self._make_ruling(model, party, session, said, (way, answer))
            found = self.look.answer(call.name, call.arguments)
            said += [{"role": "assistant", "content": _echo(answer)}, {"role": "user", "content": found}]
        decides = replace(self, forced=True, steps=0)
        return await decides._make_ruling(model, party, session, said, None)  # noqa: SLF001 (its own kind)

    async def _make_ruling(
        self,
        model: ModelConfig,
        party: str,
        session: RunSession | None,
        said: list[Message],
        first: tuple[_AskingWay, Answer] | None,
    ) -> Ruling:
        """Make a ruling of the first answer, which is asked for unless it is there, or of a second one."""
        way = _AskingWay.PINNED if self.forced and not self.steps else _AskingWay.REQUIRED
        unusable: _Unusable | None = None
        for _ in range(2):
            way, answer = first or await self._ask_model(model, party, session, said, way)
            first = None
            try:
                return self._read(answer)
            except _Unusable as error:
                unusable = error
            said += [
                {"role": "assistant", "content": _echo(answer)},
                {
                    "role": "user",
                    "content": prompt("judge_repair", problem=unusable.problem, instruction=self.instruction),
                },
            ]
        assert unusable is not None  # noqa: S101 - the loop runs
        if unusable.partial is not None:
            return unusable.partial
        raise JudgeError(
            unusable.literal, hint=f"{model.model} ({party}) was asked twice; another model may do better."
        )

    @property
    def instruction(self) -> str:
        return prompt("judge_final" if self.forced else "judge_open")

    def tools(self) -> list[dict[str, Any]]:
        """Return the tools that the judge is offered."""
        finish = _tool(FINISH, "End the test with a status for every criterion.", self._verdict())
        more = self.look.tools() if self.look is not None and self.steps else []
        if self.forced:
            return [*more, finish]
        return [*more, _tool(CONTINUE, "Let the conversation go on.", _object({})), finish]

    def _verdict(self) -> dict[str, Any]:
        return _object(
            {
                "criteria": self.criteria.schema(),
                "reasoning": {"type": "string", "description": "Why, in a few sentences."},
            }
        )

    async def _ask_model(
        self, model: ModelConfig, party: str, session: RunSession | None, said: Sequence[Message], way: _AskingWay
    ) -> tuple[_AskingWay, Answer]:
        """Ask in this way, or in the first one below it that the model does not refuse."""
        while True:
            try:
                return way, await complete(
                    model=model, party=party, session=session, messages=self._messages(said, way), **self._how(way)
                )
            except RefusedChoice:
                if way is _AskingWay.PLAIN:
                    raise
                way = _AskingWay(way + 1)

    def _messages(self, said: Sequence[Message], way: _AskingWay) -> list[Message]:
        shown = self.whole if self.whole and way >= _AskingWay.SCHEMA else self.text
        text = f"{shown}\n\n{self.instruction}"
        messages: list[Message] = [{"role": "system", "content": self.system}, {"role": "user", "content": text}, *said]
        if way >= _AskingWay.SCHEMA:
            how = prompt("judge_json", or_continue="" if self.forced else ' or "continue_test"')
            messages[-1] = {"role": "user", "content": f"{messages[-1]['content']}\n\n{how}"}
        return messages

    def _how(self, way: _AskingWay) -> dict[str, Any]:
        if way is _AskingWay.PLAIN:
            return {}
        if way is _AskingWay.SCHEMA:
            decision = {"type": "string", "enum": [FINISH] if self.forced else [CONTINUE, FINISH]}
            schema = _object({"decision": decision, **self._verdict()["properties"]})
            return {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "verdict", "strict": True, "schema": schema},
                }
            }
        pinned = {"type": "function", "function": {"name": FINISH}}
        return {"tools": self.tools(), "tool_choice": pinned if way is _AskingWay.PINNED else "required"}

    # -- what came back

    def _read(self, answer: Answer) -> Ruling:
        if answer.tool_calls:
            first, *more = [(call.name, _parse_arguments(call.arguments)) for call in answer.tool_calls]
            if first[0] == FINISH and any(each != first for each in more):
                problem = "it decides more than once, and not alike"
                raise _Unusable(problem, f"{INVALID}, {problem}: {_short(_echo(answer))!r}")
            return self._ruling(*first)
        found = _OBJECT.search(answer.text)
        given = _load_json(found[0]) if found else None
        if isinstance(given, Mapping) and ("criteria" in given or given.get("decision") == CONTINUE):
            return self._ruling(str(given.get("decision") or FINISH), given)
        raise _Unusable(
            f"it calls no tool; call {self._names()}", f"{INVALID}, tool calls not found: {_short(answer.text)!r}"
        )

    def _ruling(self, name: str, given: object) -> Ruling:
        if name == CONTINUE:
            if self.forced:
                problem = "the conversation is over and cannot go on"
                raise _Unusable(problem, f"{INVALID}, {problem}", Ruling(goes_on=True))
            return Ruling(goes_on=True)
        if name in {EXPAND, GREP} and self.look is not None:
            raise _Unusable(
                f"nothing more can be looked up; call {self._names()}", f"{INVALID}, it only looks things up"
            )
        if name != FINISH:
            raise _Unusable(
                f"there is no tool {_short(name)!r}; call {self._names()}", f"{INVALID}, unknown tool: {_short(name)!r}"
            )
        if not isinstance(given, Mapping):
            problem = f"the arguments of {FINISH} are no JSON object"
            raise _Unusable(problem, f"{INVALID}, {problem}: {_short(str(given))!r}")
        reasoning, verdict = given.get("reasoning"), given.get("verdict")
        findings, problems = self.criteria.read(given.get("criteria"))
        ruling = Ruling(
            goes_on=False,
            forced=self.forced,
            findings=findings,
            reasoning=reasoning if isinstance(reasoning, str) else "",
            verdict=verdict if isinstance(verdict, str) else None,
        )
        if problems:
            raise _Unusable("; ".join(problems), f"{INVALID}, {'; '.join(problems)}", ruling)
        return ruling

    def _names(self) -> str:
        return FINISH if self.forced else f"{CONTINUE} or {FINISH}"


def _tool(name: str, description: str, parameters: dict[str, Any]) -> dict[str, Any]:
    function = {"name": name, "description": description, "strict": True, "parameters": parameters}
    return {"type": "function", "function": function}


def _object(members: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": members, "required": list(members), "additionalProperties": False}


def _parse_arguments(arguments: str) -> object:
    """Return arguments as a value; the text itself where it is no JSON."""
    if not arguments.strip():
        return {}
    found = _load_json(arguments)
    return arguments if found is None else found


def _load_json(text: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        return None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of members; a member that stands there twice, with two values, says nothing."""
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made and made[name] != value:
            raise ValueError(f"{name} stands there twice")
        made[name] = value
    return made


def _echo(answer: Answer) -> str:
    """Return an answer as text, to be shown to the one who gave it."""
    calls = [f"{call.name}({call.arguments})" for call in answer.tool_calls[:1]]
    return "\n".join([*([answer.text] if answer.text else []), *calls]) or "(nothing)"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
