"""Agents behind an OpenAI-compatible endpoint."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from llmproxy.errors import AgentError
from llmproxy.scenario.agents.openai_http import OpenAIAgent
from llmproxy.scenario.types import AgentInput
from tests.provider import Provider, step
from tests.scenario.agents_fixtures import ANSWER, Served, dialogue, given, http_agent
from tests.support import near


def ask(agent: OpenAIAgent, given: AgentInput) -> Any:  # noqa: ANN401
    """Ask an agent, and close it."""

    async def run() -> Any:  # noqa: ANN401
        await agent.open(None)
        try:
            return await agent.call(given)
        finally:
            await agent.close()

    return asyncio.run(run())


@pytest.mark.parametrize("stream", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_conversation_is_sent_and_the_answer_is_text(stream: bool, tmp_path: Path) -> None:
    """Whole or as a stream, recorded and replayed through a proxy that the agent was started with."""
    with (
        Provider(dialogue()) as provider,
        near("record", tmp_path / "x.db", upstreams={"openai": provider.url}) as px,
        http_agent(tmp_path / "a", f"{px.url}/v1") as running,
    ):
        assert ask(OpenAIAgent(running.url + "/v1", stream=stream), given()) == ANSWER
        provider.finish()
    with near("replay", tmp_path / "x.db") as px, http_agent(tmp_path / "b", f"{px.url}/v1") as running:
        assert ask(OpenAIAgent(running.url + "/v1/chat/completions", stream=stream), given()) == ANSWER


def test_model_headers_and_history_are_sent() -> None:
    """A provider stands in for the agent, and looks at what arrives."""
    before = ({"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"})
    expected = step(user="and now?", model="my-agent", sends={"x-user": "t1"}, contains='"hello"', say="fine")
    with Provider([expected]) as provider:
        mine = OpenAIAgent(provider.url + "/v1", "my-agent", {"x-user": "$thread_id"})
        assert ask(mine, given("and now?", before=before)) == "fine"
        provider.finish()


@pytest.mark.parametrize("stream", [False, True])
def test_tool_calls_that_an_agent_reports_are_given_on(stream: bool) -> None:
    """As a message, so that they are seen."""
    with Provider([step(user="hi", call=[{"name": "get_weather", "arguments": {"city": "Oslo"}}])]) as provider:
        said = ask(OpenAIAgent(provider.url + "/v1", stream=stream), given("hi"))
    assert said["role"] == "assistant"
    assert said["tool_calls"][0]["function"]["name"] == "get_weather"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/no-completion", "no chat completion"),
        ("/html", "a web page"),
        ("/empty", "empty answer"),
        ("/error", "quota"),
        ("/500", "HTTP 500"),
    ],
)
def test_what_is_no_completion_is_the_agents_fault(path: str, said: str, agent: Served) -> None:
    """The error shows what came."""
    mine = OpenAIAgent(agent.url)
    mine.url = agent.url + path
    with pytest.raises(AgentError, match=said):
        ask(mine, given())


def test_an_empty_completion_is_no_answer() -> None:
    """An agent that says nothing has failed."""
    with Provider([step(user="hi", say="")]) as provider, pytest.raises(AgentError, match="empty answer"):
        ask(OpenAIAgent(provider.url + "/v1"), given("hi"))
