"""Several judges of one conversation, and judges at a proxy: votes, what is on the wire, and all of it
again in replay.
"""

# ruff: noqa: A002 (adapters as their users write them; JSON)

from __future__ import annotations

import asyncio
import warnings
from pathlib import Path
from typing import Any

import pytest

from llmproxy import scenario
from llmproxy.errors import SettingsError
from llmproxy.scenario.config import ModelConfig
from llmproxy.scenario.judge_agent import JudgeAgent
from llmproxy.scenario.types import AgentInput, ScenarioResult
from tests.provider import Provider, Step, step
from tests.scenario.parties import MODEL, bodies, finish, served, shown, words
from tests.scenario.people import play
from tests.support import near


def voters(*steps: Step, **how: Any) -> tuple[ScenarioResult, Provider]:
    """Return what three judges come to, who answer in any order."""
    with Provider(steps, ordered=False) as provider:
        judge = JudgeAgent(judges=3, model=served(provider, temperature=1.0), criteria=["polite"], **how)
        result = asyncio.run(judge.call(shown(forced=True)))
        assert isinstance(result, ScenarioResult)
        return result, provider


@pytest.mark.parametrize(("votes", "vote", "success", "status"), [
    ("ppf", "majority", True, "passed"),
    ("pff", "majority", False, "failed"),
    ("ppf", "unanimous", False, "inconclusive"),
    ("ppp", "unanimous", True, "passed"),
])  # fmt: skip
def test_votes_decide(votes: str, vote: str, success: bool, status: str) -> None:
    """Each criterion by its votes, which are all told."""
    result, _ = voters(*(finish({"p": "passed", "f": "failed"}[each]) for each in votes), vote=vote)
    assert (result.success, result.criteria[0].status) == (success, status)
    assert sorted(result.criteria[0].votes) == sorted({"p": "passed", "f": "failed"}[each] for each in votes)


def test_a_failure_can_be_confirmed() -> None:
    """One judge is enough to pass; to fail somebody, the others are heard."""
    result, provider = voters(finish("passed"), vote="confirm-on-fail")
    assert (result.success, len(provider.requests)) == (True, 1)
    result, provider = voters(finish("failed"), finish("passed"), finish("passed"), vote="confirm-on-fail")
    assert (result.success, len(provider.requests)) == (True, 3)
    assert result.criteria[0].votes == ("failed", "passed", "passed")


def test_one_model_at_temperature_zero_is_warned_about() -> None:
    """Three times nearly the same answer is no vote; different models or a temperature are."""
    with pytest.warns(UserWarning, match="3 judges of one model"):
        JudgeAgent(judges=3, model=MODEL, criteria=["x"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        JudgeAgent(judges=3, model=MODEL, temperature=0.7)
        assert JudgeAgent(judges=[MODEL, "anthropic/claude-sonnet-4-5"]).model == MODEL


@pytest.mark.parametrize("judges", [0, -1, True, [], MODEL])
def test_a_number_of_judges_that_there_is_not_is_refused(judges: Any) -> None:
    """Nobody judges by no judge, and a name is no list of models."""
    with pytest.raises(SettingsError, match="judges="):
        JudgeAgent(judges=judges, model=MODEL)


class Looking(scenario.AgentAdapter):
    """An agent that calls a model with a tool by the run's session, and tells nobody about the tool."""

    uses_session = True

    async def call(self, input: AgentInput) -> str:
        import httpx

        assert input.llm is not None
        talk: list[Any] = [{"role": "user", "content": input.last_new_user_message_str()}]
        tool = {"type": "function", "function": {"name": "track", "parameters": {"type": "object"}}}
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            for _ in range(2):
                body = {"model": "gpt-4o", "messages": talk, "tools": [tool]}
                got = await client.post(
                    f"{input.llm.base_url('openai')}/chat/completions", json=body, headers={"authorization": "Bearer k"}
                )
                message = got.json()["choices"][0]["message"]
                talk += [message, *self.results(message)]
        return str(talk[-1]["content"])

    @staticmethod
    def results(message: dict[str, Any]) -> list[dict[str, Any]]:
        calls = message.get("tool_calls") or ()
        return [{"role": "tool", "tool_call_id": call["id"], "content": '{"place": "Kassel"}'} for call in calls]


def test_it_sees_what_the_agent_called_on_the_wire_and_votes_replay(tmp_path: Path) -> None:
    """Row 17: unreported tools are in the transcript; rows 1 and 10: each judge's own vote is found again."""

    def once(url: str) -> ScenarioResult:
        config = ModelConfig(model=MODEL, temperature=1.0, api_key="k")
        judge = JudgeAgent(model=config, judges=3, criteria=["The agent looks it up"])
        script = [scenario.user("Where is A-1?"), scenario.agent(), scenario.judge()]
        return play(Looking(), judge, script=script, proxy=url, name="wire")

    seen = 'the agent calls track({"id": "A-1"})\n    track returns {"place": "Kassel"}\n[2] assistant: In Kassel.'
    steps = [
        step(call=[{"name": "track", "arguments": {"id": "A-1"}}], user="Where is A-1?"),
        step(say="In Kassel.", tool_result="Kassel"),
        *(finish(status, evidence=['track({"id": "A-1"})']) for status in ("passed", "failed", "passed")),
    ]
    with Provider(steps, ordered=False) as provider:
        with near("record", tmp_path / "x.db", upstreams={"openai": f"{provider.url}/v1"}) as px:
            first = once(px.url)
        provider.finish()
        judges = [words(body) for body in bodies(provider)[2:]]
        assert [seen in said for said in judges] == [True] * 3
    with near("replay", tmp_path / "x.db") as px:
        second = once(px.url)
    assert first.success
    assert sorted(first.criteria[0].votes) == ["failed", "passed", "passed"]
    assert second.criteria == first.criteria
    assert (second.replayed, set(second.usage)) == (True, {"agent", "judge", "judge.2", "judge.3"})
