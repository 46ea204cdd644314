"""Agents in scenarios, end to end: several languages and ways, recorded in parallel, replayed without the provider; misses seen."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from llmproxy import scenario
from llmproxy.errors import AgentError, AgentUnreachable
from llmproxy.scenario import agents
from llmproxy.scenario.types import ScenarioResult
from tests.provider import Provider
from tests.scenario.agents_fixtures import ANSWER, NODE_LINES, PYTHON_LINES, QUESTION, Served, dialogue, http_agent
from tests.support import Listening, free_port, near


def sloppy(message: str) -> str:
    """Ask a model by the environment, and answer whatever happens: the agent that swallows a miss."""
    import json
    import urllib.request

    body = json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": message}]}).encode()
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return str(json.loads(answer.read())["choices"][0]["message"]["content"] or "(a tool, please)")
    except OSError:
        return "Sorry."


def play(px: Listening, running: Served, mode: str) -> dict[str, ScenarioResult]:
    """Run one scenario with each kind of agent, all at once."""
    body = {"question": "$message", "thread": f"{mode}-$thread_id", "llm": "$llm"}
    kinds: dict[str, scenario.AgentAdapter] = {
        "python-lines": agents.CommandAgent(PYTHON_LINES),
        "node-lines": agents.CommandAgent(NODE_LINES),
        "service": agents.ServiceAgent(agents.OpenAIAgent(running.url + "/v1")),
        "told": agents.HttpAgent(running.url + "/ask", body=body, reply="$.answer.said"),
        "in-process": agents.FunctionAgent(sloppy),
    }

    async def run() -> dict[str, ScenarioResult]:
        script = [scenario.user(QUESTION), scenario.agent(), scenario.succeed()]
        runs = (
            scenario.run(name, "They ask for the weather.", [agent], script=script, proxy=px.url, mode=mode)
            for name, agent in kinds.items()
        )
        return dict(zip(kinds, await asyncio.gather(*runs), strict=True))

    return asyncio.run(run())


@pytest.mark.slow
def test_agents_of_every_kind_are_recorded_in_parallel_and_replayed_without_a_provider(tmp_path: Path) -> None:
    """Same messages, same tool calls on the wire, no call upstream; each in its own session."""
    with (
        Provider(dialogue(times=None), ordered=False) as provider,
        near("record", tmp_path / "x.db", upstreams={"openai": provider.url}) as px,
        http_agent(tmp_path / "a", px.url + "/v1") as running,
    ):
        recorded = play(px, running, "record")
    with near("replay", tmp_path / "x.db") as px, http_agent(tmp_path / "b", px.url + "/v1") as running:
        replayed = play(px, running, "replay")
    for name, result in recorded.items():
        assert result.success, name
        assert result.messages == replayed[name].messages, name
        said, tools = result.messages[-1]["content"], [each.name for each in replayed[name].tool_calls or ()]
        assert (said, tools) == (("(a tool, please)" if name == "in-process" else ANSWER), ["get_weather"]), name
        assert result.usage["agent"].calls == replayed[name].usage["agent"].calls == (1 if name == "in-process" else 2)


@pytest.mark.parametrize(("agent", "kind"), [
    (agents.CommandAgent([*PYTHON_LINES, "crash"]), AgentError),
    (agents.CommandAgent(["no-such-program-anywhere"]), AgentUnreachable),
    (agents.HttpAgent(f"http://127.0.0.1:{free_port()}/"), AgentUnreachable),
    (agents.FunctionAgent("no_such_module_at_all:agent"), AgentUnreachable),
])  # fmt: skip
def test_an_agent_that_fails_ends_the_run_with_its_own_error(
    agent: scenario.AgentAdapter, kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        scenario.run_sync(
            name="fails", description="x", agents=[agent], script=[scenario.user("hi"), scenario.agent()], proxy=False
        )
