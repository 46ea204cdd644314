"""The judge: it fails closed, sees a transcript, decides at the end, and does not judge the description."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from llmproxy import scenario
from llmproxy.errors import SettingsError
from llmproxy.scenario.config import ModelConfig, ScenarioConfig
from llmproxy.scenario.judge_agent import JudgeAgent
from llmproxy.scenario.types import AgentInput
from llmproxy.scenario.user_simulator_agent import UserSimulatorAgent
from tests.provider import Step, step
from tests.scenario.parties import MODEL, TALK, Echo, bodies, finish, go_on, model, shown, words
from tests.scenario.people import Agent, User, play, roles

pytestmark = pytest.mark.usefixtures("untouched")


def judged(*steps: Step, forced: bool = True, given: AgentInput | None = None, **how: Any) -> tuple[Any, list[Any]]:
    """Return what a judge says who answers so, and what it was asked."""
    how = {"criteria": ["polite", "fast"]} | how
    with model(*steps) as (config, provider):
        said = asyncio.run(JudgeAgent(model=config, **how).call(given or shown(forced=forced)))
        provider.finish()
        return said, bodies(provider)


# -- verdicts


def test_all_passed_is_success() -> None:
    """Every criterion with its finding, and the judge's own words."""
    result, _ = judged(finish("passed", "passed", evidence=["On its way"]))
    assert (result.success, result.reasoning) == (True, "so it is")
    assert result.passed_criteria == ["polite", "fast"]
    found = [(each.id, each.status, each.evidence) for each in result.criteria]
    assert found == [("c1", "passed", "On its way"), ("c2", "passed", "")]


@pytest.mark.parametrize("second", ["failed", "inconclusive"])
def test_anything_else_is_none(second: str) -> None:
    """Row 12: a failed or an inconclusive criterion is never a success when a verdict is demanded."""
    result, _ = judged(finish("passed", second))
    assert not result.success
    assert result.passed_criteria == ["polite"]
    other = {"failed": "inconclusive", "inconclusive": "failed"}[second]
    assert (getattr(result, f"{second}_criteria"), getattr(result, f"{other}_criteria")) == (["fast"], [])


def test_a_missing_criterion_is_no_success() -> None:
    """Row 12: what the judge leaves out twice is inconclusive; a criterion passes only with words that were really said."""
    result, _ = judged(finish("passed"), finish("passed"))
    assert (result.success, result.inconclusive_criteria) == (False, ["fast"])
    assert result.criteria[1].reason == "the judge said nothing about it"
    result, _ = judged(finish("passed", "passed", evidence=["Delivered yesterday"]))
    assert (result.success, result.inconclusive_criteria) == (False, ["polite"])
    assert result.criteria[0].evidence == "[not in the conversation] Delivered yesterday"


def test_a_verdict_of_its_own_cannot_make_a_success_but_unmake_one() -> None:
    """The verdict follows from the criteria; a judge that contradicts itself has not passed anybody."""
    findings = {"c1": {"status": "passed"}, "c2": {"status": "passed"}}
    arguments = {"criteria": findings, "reasoning": "", "verdict": "failure"}
    result, _ = judged(step(call=[{"name": "finish_test", "arguments": arguments}]))
    assert not result.success
    assert "'failure'" in result.reasoning
    findings["c2"]["status"] = "inconclusive"
    result, _ = judged(step(call=[{"name": "finish_test", "arguments": arguments | {"verdict": "success"}}]))
    assert not result.success


def test_an_open_verdict_lets_the_conversation_go_on() -> None:
    """What is not decided yet does not end a run that can go on; a failure and a full success do."""
    assert judged(go_on(), forced=False)[0] == []
    assert judged(finish("passed", "inconclusive"), forced=False)[0] == []
    assert judged(finish("failed", "inconclusive"), forced=False)[0].failed_criteria == ["polite"]
    assert judged(finish("passed", "passed"), forced=False)[0].success


def test_the_result_has_the_conversation() -> None:
    """Row 16: the messages are what was said to the agent, not the judge's prompt."""
    assert judged(finish("passed", "passed"))[0].messages == TALK


def test_an_empty_criterion_is_refused() -> None:
    with pytest.raises(ValueError, match=r"criteria\[0\] is ''"):
        JudgeAgent(model=MODEL, criteria=[""])
    with pytest.raises(ValueError, match="takes a list"):
        JudgeAgent(model=MODEL, criteria="polite")


# -- without criteria


def test_without_criteria_a_demanded_verdict_fails_without_a_call() -> None:
    """There is nothing to judge against, and nobody is asked; a run ends without conclusion (row 14)."""
    result, asked = judged(criteria=None)
    assert (result.success, asked) == (False, [])
    assert result.reasoning == "TestingAgent was called as a judge, but it has no criteria to judge against"
    result = play(Agent(), User(), JudgeAgent(model=MODEL), max_turns=2)
    assert (result.success, result.reasoning) == (False, "Reached maximum turns (2) without conclusion")


# -- what it sees


def test_it_sees_a_transcript_and_ends_on_the_user() -> None:
    """Row 17: no tool calls of somebody else as its own, two messages, the last one the user's."""
    call = {"id": "call_7", "type": "function", "function": {"name": "track", "arguments": '{"id":"A-1"}'}}
    talk = [*TALK[:1], {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_7", "content": "in Kassel"}, TALK[1]]  # fmt: skip
    _, (request,) = judged(
        finish("passed", "passed", evidence=['track({"id": "A-1"})']), given=shown(*talk, forced=True)
    )
    assert [message["role"] for message in request["messages"]] == ["system", "user"]
    assert '    calls track({"id": "A-1"})\n[3] tool track: in Kassel\n[4] assistant: On its way.' in words(request)
    assert "call_7" not in words(request)


def test_the_description_is_context_and_no_criterion() -> None:
    """The scenario is told apart from the criteria; `system_prompt` replaces how to judge, not what."""
    _, (request,) = judged(finish("passed", "passed"))
    said = words(request)
    assert "<scenario>\nSomebody misses a lamp.\n</scenario>" in said
    assert "<criteria>\nc1: polite\nc2: fast\n</criteria>" in said
    assert "it is context" in said
    _, (request,) = judged(finish("passed", "passed"), system_prompt="You are a strict reviewer {x} $y")
    assert request["messages"][0] == {"role": "system", "content": "You are a strict reviewer {x} $y"}
    assert "c2: fast" in request["messages"][1]["content"]


def test_the_context_of_a_demanded_verdict_is_shown() -> None:
    """Row 27: `judge(text)` is told to the judge, and is no part of the conversation."""
    with model(finish("passed")) as (config, provider):
        script = [scenario.user("hi"), scenario.agent(), scenario.judge("The shop was closed.")]
        result = play(Echo(), JudgeAgent(model=config, criteria=["polite"]), script=script)
        assert "<context>\nThe shop was closed.\n</context>" in words(bodies(provider)[0])
    assert (result.success, roles(result)) == (True, "ua")


def test_an_empty_conversation_can_be_judged() -> None:
    """A verdict before anybody spoke is asked for as it is."""
    given = shown(forced=True)
    given.messages = []
    assert "(nothing was said)" in words(judged(finish("failed", "failed"), given=given)[1][0])


# -- when it decides


def test_it_knows_its_last_turn() -> None:
    """Row 14: in the last turn the same call demands the verdict; there is no extra one."""
    with model(go_on(), go_on(), finish("passed")) as (config, provider):
        result = play(Echo(), User(), JudgeAgent(model=config, criteria=["polite"]), max_turns=3)
        provider.finish()
        assert ["can still go on" in words(body) for body in bodies(provider)] == [True, True, False]
        assert "Give your final verdict now" in words(bodies(provider)[2])
    assert (result.success, roles(result)) == (True, "uauaua")


@pytest.mark.parametrize(
    ("turns", "said", "passed", "inconclusive"),
    [(2, [go_on()] * 3, [], ["polite", "fast"]), (1, [finish("passed", "inconclusive")], ["polite"], ["fast"])],
    ids=["without a verdict", "an open verdict"],
)
def test_at_the_end_every_criterion_has_its_status(
    turns: int, said: list[Step], passed: list[str], inconclusive: list[str]
) -> None:
    """Rows 14 and 15: judged or not, what was not decided is listed as inconclusive, and is no success."""
    with model(*said) as (config, _):
        result = play(Echo(), User(), JudgeAgent(model=config, criteria=["polite", "fast"]), max_turns=turns)
    assert (result.success, result.passed_criteria, result.inconclusive_criteria) == (False, passed, inconclusive)
    assert passed or result.reasoning == "Reached maximum turns (2) without conclusion"


def test_a_verdict_in_mid_script_goes_on_when_it_is_open() -> None:
    """Row 27: something inconclusive and steps left: the script goes on; a failure ends it."""
    for status, spoken in (("inconclusive", "uaua"), ("failed", "ua")):
        with model(finish("passed", status)) as (config, _):
            judge, turn = JudgeAgent(model=config, criteria=["polite", "fast"]), [scenario.user("a"), scenario.agent()]
            script = [*turn, scenario.judge(), *turn, scenario.succeed()]
            assert roles(play(Echo(), judge, script=script)) == spoken


def test_min_turns_spares_the_calls() -> None:
    """Before so many turns are over nobody is asked, unless a verdict is demanded."""
    assert judged(forced=False, min_turns=2) == ([], [])
    assert judged(go_on(), given=shown(turn=1), min_turns=2)[0] == []
    assert judged(finish("passed", "passed"), min_turns=9)[0].success


# -- which model


@pytest.mark.parametrize("kind", [JudgeAgent, UserSimulatorAgent])
def test_no_model_is_refused_with_what_to_write(kind: type[Any]) -> None:
    """The error comes when the judge or the user is made, not in the middle of a run, and says TestingAgent."""
    with pytest.raises(SettingsError, match=rf"TestingAgent(.|\n)*{kind.__name__}(.|\n)*configure\(default_model="):
        kind()


@pytest.mark.parametrize("kind", [JudgeAgent, UserSimulatorAgent])
def test_parameters_and_defaults_are_those_of_the_documentation(kind: type[Any]) -> None:
    """Keyword-only, with the documented defaults; the temperature prints as 0.0 and knows whether it was given."""
    parameters = inspect.signature(kind).parameters
    documented = ["model", "api_key", "temperature", "max_tokens", "system_prompt"]
    documented += ["criteria"] if kind is JudgeAgent else []
    defaults = {name: repr(parameters[name].default) for name in documented}
    assert defaults == dict.fromkeys(documented, "None") | {"temperature": "0.0"}
    assert all(each.kind in {each.KEYWORD_ONLY, each.VAR_KEYWORD} for each in parameters.values())


def test_an_explicit_zero_is_not_overridden() -> None:
    """Row 18: also for the judge."""
    ScenarioConfig.configure(default_model=ModelConfig(model=MODEL, temperature=0.7, api_key="k"))
    assert (JudgeAgent(temperature=0.0).temperature, JudgeAgent().temperature, JudgeAgent().api_key) == (0.0, 0.7, "k")
