"""Swarms of strands at once: in each one agent hands over to another; the last question says who ended first."""

import asyncio

from strands import Agent
from strands.models.openai import OpenAIModel
from strands.multiagent import Swarm

from parallel import QUESTIONS, URL, repeat


def agent(name: str, text: str) -> Agent:
    model = OpenAIModel(client_args={"base_url": URL, "api_key": "x", "max_retries": 0}, model_id="m")
    return Agent(model=model, system_prompt=text, callback_handler=None, name=name)


async def main() -> str:
    heard = []

    async def ask(text: str) -> None:
        made = await Swarm([agent("first", f"hand=second {text}"), agent("second", text)]).invoke_async("go")
        heard.append(str(made.results["second"].result).strip())

    await asyncio.gather(*map(ask, QUESTIONS))
    return str(await agent("join", "join").invoke_async(" ".join(heard))).strip()


with asyncio.Runner() as runner:
    repeat(lambda: runner.run(main()))
