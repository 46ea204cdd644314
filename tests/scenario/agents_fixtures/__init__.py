"""Agents as real programs, and what tests of adapters need to speak to them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llmproxy.scenario.agent_adapter import AgentAdapter
from llmproxy.scenario.run_session import RunSession
from llmproxy.scenario.types import AdapterModelAccessThroughProxy, AgentInput, Message
from llmproxy.trace.observing.agent_activity import ModelCallObserver
from tests.provider import Step, step
from tests.support.process import Process, clean_env

HERE = Path(__file__).parent
PYTHON_LINES = (sys.executable, str(HERE / "lines_agent.py"))
NODE_LINES = ("node", str(HERE / "lines_agent.mjs"))
QUESTION, ANSWER = "How warm is it in Oslo?", "It is 12 degrees in Oslo."
TOOLS = ["get_weather {'city': 'Oslo'} 12"]
"""What the wire shows of a dialogue."""


def dialogue(times: int | None = 1) -> list[Step]:
    """What the model says to the agents of this folder: it asks for a tool, then answers."""
    ask = step(user=QUESTION, call=[{"name": "get_weather", "arguments": {"city": "Oslo"}}], times=times)
    return [ask, step(user=QUESTION, tool_result="12", say=ANSWER, times=times)]


def given(
    text: str | None = QUESTION,
    *,
    thread: str = "t1",
    llm: AdapterModelAccessThroughProxy | None = None,
    before: tuple[Message, ...] = (),
) -> AgentInput:
    """Return the input of an adapter after a user said `text`."""
    new = [] if text is None else [{"role": "user", "content": text}]
    return AgentInput(thread_id=thread, messages=[*before, *new], new_messages=new, scenario_state=None).set_llm(llm)


def ask(agent: AgentAdapter, *inputs: AgentInput) -> list[Any]:
    """Open an agent without a session, and return what it says to each."""

    async def run() -> list[Any]:
        await agent.open(None)
        try:
            return [await agent.call(each) for each in inputs or (given(),)]
        finally:
            await agent.close()

    return asyncio.run(run())


async def one_run(url: str, agent: AgentAdapter, name: str, mode: str) -> tuple[Any, list[str], int]:
    """Run one message in a session of its own: the answer, the tools called on the wire, calls that went upstream."""
    session = await RunSession.open(url, cassette=name, mode=mode)
    await agent.open(session)
    try:
        async with session.speaking_turn(agent):
            said = await agent.call(given(thread=f"{name}-{mode}", llm=session.llm))
        assert (await session.misses(), await session.count_unattributed()) == ((), 0)
        wire = ModelCallObserver()
        wire.add_calls_with_recordings(await session.calls())
        tools = [f"{each.name} {each.arguments} {each.result}" for each in wire.list_tool_uses()]
    finally:
        await agent.close()
        report = await session.close()
    return said, tools, report.live_calls


class Served(Process):
    """The HTTP agent, running."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.stdout.split()[0]}"


@contextmanager
def http_agent(folder: Path, base_url: str = "http://127.0.0.1:9/v1", *options: str) -> Iterator[Served]:
    """Run the HTTP agent for the block, its LLM calls going to `base_url`."""
    env = clean_env({"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": "none", "PYTHONUNBUFFERED": "1"})
    served = Served([sys.executable, str(HERE / "http_agent.py"), *options], folder, "agent", env)
    served.wait_until(lambda: "\n" in served.stdout)
    try:
        yield served
    finally:
        served.end()
