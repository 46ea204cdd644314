"""A service that runs already: one message at a time, unless it proves that it sends a header on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from llmproxy.client.control import Control
from llmproxy.errors import SuiteError
from llmproxy.scenario.agents.already_running_service import PROBE, ServiceAgent
from llmproxy.scenario.agents.http import OpenAIAgent
from llmproxy.scenario.run_session import RunSession
from tests.provider import Provider
from tests.scenario.agents_fixtures import ANSWER, TOOLS, dialogue, given, http_agent, one_run
from tests.support import near
from tests.support.proxy import ask_chat


async def five(px: str, agent: ServiceAgent, mode: str) -> list[Any]:
    """Run five at once, each with a clone, as runs in parallel do."""
    return list(await asyncio.gather(*(one_run(px, agent.clone(), f"run-{n}", mode) for n in range(5))))


@pytest.mark.parametrize(
    ("path", "options", "propagates", "session"),
    [("/v1", (), None, "default"), ("/s/mine/v1", (), None, "mine"), ("/v1", ("--propagate",), "x-run", "nobody")],
    ids=["an address without a session", "a session of its own", "sends a header on"],
)
def test_five_runs_at_one_service_land_in_their_own_sessions(
    path: str, options: tuple[str, ...], propagates: str | None, session: str, tmp_path: Path
) -> None:
    """Recorded in parallel, then replayed without the provider: same answers, same tools, nothing upstream."""
    with Provider(dialogue(times=5), ordered=False) as provider:
        with (
            near("record", tmp_path / "x.db", upstreams={"openai": provider.url}) as px,
            http_agent(tmp_path / "a", px.url + path, *options) as running,
        ):
            agent = ServiceAgent(OpenAIAgent(running.url + "/v1"), session, propagates)
            recorded = asyncio.run(five(px.url, agent, "record"))
        provider.finish()
    with near("replay", tmp_path / "x.db") as px, http_agent(tmp_path / "b", px.url + path, *options) as running:
        agent = ServiceAgent(OpenAIAgent(running.url + "/v1"), session, propagates)
        replayed = asyncio.run(five(px.url, agent, "replay"))
        open_now = [report.name for report in Control(px.url).sessions()]
    assert recorded == [(ANSWER, TOOLS, 2)] * 5
    assert replayed == [(ANSWER, TOOLS, 0)] * 5
    assert not [name for name in open_now if name.startswith(PROBE)]


def test_a_header_that_is_not_sent_on_is_not_believed(tmp_path: Path) -> None:
    """The service is tested one message at a time instead, and the user is told; nothing went to the provider for the probe."""
    with (
        Provider(dialogue(times=5), ordered=False) as provider,
        near("record", tmp_path / "x.db", upstreams={"openai": provider.url}) as px,
        http_agent(tmp_path / "a", px.url + "/v1") as running,
    ):
        agent = ServiceAgent(OpenAIAgent(running.url + "/v1"), propagates="x-run")
        found = asyncio.run(five(px.url, agent, "record"))
        provider.finish()
        assert found == [(ANSWER, TOOLS, 2)] * 5

        async def once_more() -> tuple[str, ...]:
            session = await RunSession.open(px.url, cassette="again", mode="replay")
            try:
                await agent.open(session)
                return agent.notes
            finally:
                await agent.close()
                await session.close()

        assert "did not send 'x-run' on" in asyncio.run(once_more())[0]
        assert px.control("interactions?session=default")["interactions"] == []


def test_what_a_service_does_between_messages_is_unattributed(tmp_path: Path) -> None:
    """It is seen, and belongs to no run."""

    async def run(px: str) -> tuple[int, int]:
        session = await RunSession.open(px, cassette="x", mode="replay")
        agent = ServiceAgent(OpenAIAgent("http://127.0.0.1:9/v1"), "mine")
        await agent.open(session)
        try:
            await asyncio.to_thread(ask_chat, f"{px}/s/mine/v1")
            return await session.count_unattributed(), len(await session.calls())
        finally:
            await agent.close()
            await session.close()

    with near("replay", tmp_path / "x.db") as px:
        assert asyncio.run(run(px.url)) == (1, 0)


def test_without_a_proxy_a_service_is_simply_asked() -> None:
    with Provider(dialogue()[:1]) as provider:
        agent = ServiceAgent(OpenAIAgent(provider.url + "/v1"))
        assert asyncio.run(agent.call(given()))["tool_calls"]  # type: ignore[call-overload,index]


def test_a_header_that_cannot_be_one_is_refused() -> None:
    with pytest.raises(SuiteError, match="name of a header"):
        ServiceAgent(OpenAIAgent("http://127.0.0.1:9/v1"), propagates="x run")
