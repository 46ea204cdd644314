"""Drive pydantic-ai on its OpenAI chat model."""

from __future__ import annotations

import asyncio

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from driver import TOOL_RESULT, key, main, prompt

model = OpenAIChatModel("gpt-4o-mini", provider=OpenAIProvider(api_key=key("OPENAI_API_KEY")))
agent = Agent(model, instructions="You are brief.")
with_tools = Agent(model)


@with_tools.tool_plain
def get_weather(city: str, unit: str) -> str:  # noqa: ARG001 - their names are what counts
    """Tell the weather of a city."""
    return TOOL_RESULT


async def stream():
    async with agent.run_stream(prompt("stream")) as result:
        return [[piece async for piece in result.stream_text(delta=True, debounce_by=None)], counted(result.usage)]


def counted(usage):
    usage = usage() if callable(usage) else usage
    return [usage.input_tokens, usage.output_tokens, usage.requests]


def run(which, case):
    result = which.run_sync(prompt(case))
    return [result.output, counted(result.usage)]


main(
    {
        "plain": lambda: run(agent, "plain"),
        "stream": lambda: asyncio.run(stream()),
        "tools": lambda: run(with_tools, "tools"),
        "error": lambda: run(agent, "error"),
    }
)
