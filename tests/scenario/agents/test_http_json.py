"""Agents behind any JSON endpoint."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from llmproxy.errors import AgentError, SuiteError
from llmproxy.scenario.agents.http_json import HttpAgent
from llmproxy.scenario.proxy.session import RunSession
from llmproxy.scenario.types import AgentInput
from llmproxy.trace.observing.wire import read_tools
from tests.provider import Provider
from tests.scenario.agents_fixtures import ANSWER, Served, dialogue, given, http_agent
from tests.support import near


def ask(agent: HttpAgent, *inputs: AgentInput) -> list[Any]:
    """Let an agent answer messages, and close it."""

    async def run() -> list[Any]:
        await agent.open(None)
        try:
            return [await agent.call(each) for each in inputs or (given(),)]
        finally:
            await agent.close()

    return asyncio.run(run())


def test_what_is_sent_is_the_template_filled_in(agent: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Body, headers and address."""
    monkeypatch.setenv("AGENT_KEY", "s3cret")
    mine = HttpAgent(
        agent.url + "/echo?user=$thread_id",
        body={"q": "$message", "all": "$messages"},
        headers={"Authorization": "Bearer $env.AGENT_KEY", "x-conversation": "$thread_id"},
    )
    (said,) = ask(mine, given("hi", thread="a/b c"))
    sent = json.loads(said)
    assert sent["body"] == {"q": "hi", "all": [{"role": "user", "content": "hi"}]}
    assert sent["path"] == "/echo?user=a%2Fb%20c"
    assert sent["headers"]["Authorization"] == "Bearer s3cret"
    assert sent["headers"]["x-conversation"] == "a/b c"


def test_without_a_template_message_and_conversation_are_sent(agent: Served) -> None:
    """And an answer is looked for where JSON-lines agents have it."""
    (said,) = ask(HttpAgent(agent.url + "/echo"), given("hi", thread="t9"))
    assert json.loads(said)["body"] == {"message": "hi", "thread_id": "t9"}


def test_a_get_sends_no_body(agent: Served) -> None:
    """What it says stands in the address."""
    (said,) = ask(HttpAgent(agent.url + "/echo?q=$message", method="get"), given("grüß & gott"))
    assert json.loads(said)["path"] == "/echo?q=gr%C3%BC%C3%9F%20%26%20gott"
    assert json.loads(said)["body"] is None


def test_the_agents_own_conversation_goes_back_to_it(agent: Served) -> None:
    """Null at first, then what it said; another conversation, and another run, begin anew."""
    mine = HttpAgent(
        agent.url + "/own",
        body={"text": "$message", "in": "$conversation"},
        reply="$.seen['in']",
        conversation="$.data.id",
    )
    with pytest.raises(AgentError, match="null at"):
        ask(mine, given())

    async def run() -> list[Any]:
        await mine.open(None)
        found: list[Any] = []
        for thread in ("a", "a", "b"):
            try:
                found.append(await mine.call(given(thread=thread)))
            except AgentError:
                found.append(None)
        await mine.close()
        return found

    assert asyncio.run(run()) == [None, "c-7", None]


def test_pieces_of_text_are_put_together(agent: Served) -> None:
    """A path with [*] finds several."""
    assert ask(HttpAgent(agent.url + "/own", reply="data.parts[*]")) == ["It works."]


def test_a_plain_text_is_an_answer_where_no_path_says_otherwise(agent: Served) -> None:
    """`reply: $` says the same."""
    assert ask(HttpAgent(agent.url + "/plain")) == ["Just text."]
    assert ask(HttpAgent(agent.url + "/plain", reply="$")) == ["Just text."]
    with pytest.raises(AgentError, match="no JSON"):
        ask(HttpAgent(agent.url + "/plain", reply="$.text"))


def test_an_answer_without_what_the_path_wants_shows_what_it_has(agent: Served) -> None:
    """So that the path can be put right."""
    with pytest.raises(
        AgentError, match=r"without \$\.answer: there is no \$\.answer; \$ is an object with data, seen"
    ):
        ask(HttpAgent(agent.url + "/own", reply="$.answer"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"method": "POTS"}, "method: 'POTS'.*did you mean 'POST'"),
        ({"method": "GET", "body": {}}, "a GET sends no body"),
        ({"body": "$mesage"}, "no \\$mesage"),
        ({"headers": {"a": "$x"}}, "headers: there is no \\$x"),
        ({"reply": "$..x"}, "reply: "),
        ({"conversation": "$..x"}, "conversation: "),
        ({"body": {"c": "$conversation"}}, "nothing says where it stands"),
        ({"url": "localhost"}, "no address"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(arguments: dict[str, Any], said: str) -> None:
    """Before anything is sent."""
    with pytest.raises(SuiteError, match=said):
        HttpAgent(**{"url": "http://127.0.0.1:9/", **arguments})


def test_an_agent_that_is_told_its_session_in_the_body_is_recorded_and_replayed(tmp_path: Path) -> None:
    """Two runs in parallel at one service, each in its own session, then without the provider."""

    async def one(px: str, url: str, name: str, mode: str) -> tuple[Any, list[str], int]:
        session = await RunSession.open(px, cassette=name, mode=mode)
        mine = HttpAgent(
            url, body={"question": "$message", "thread": "$thread_id", "llm": "$llm"}, reply="$.answer.said"
        )
        assert mine.hands_over
        await mine.open(session)
        try:
            said = await mine.call(given(thread=f"{name}-{mode}", llm=session.llm))
            return said, [each.name for each in read_tools(await session.calls())], len(await session.misses())
        finally:
            await mine.close()
            await session.close()

    async def both(px: str, url: str, mode: str) -> list[Any]:
        return list(await asyncio.gather(*(one(px, url, name, mode) for name in ("one", "two"))))

    with http_agent(tmp_path / "a") as running:
        with (
            Provider(dialogue(times=2), ordered=False) as provider,
            near("record", tmp_path / "x.db", upstreams={"openai": provider.url}) as px,
        ):
            recorded = asyncio.run(both(px.url, running.url + "/ask", "record"))
            provider.finish()
        with near("replay", tmp_path / "x.db") as px:
            replayed = asyncio.run(both(px.url, running.url + "/ask", "replay"))
    assert recorded == replayed == [(ANSWER, ["get_weather"], 0)] * 2
