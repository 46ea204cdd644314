"""Four deepagents by `gather`: each the same question at first, and then what its answer makes of it."""

import asyncio

from deepagents import create_deep_agent
from langchain_openai import ChatOpenAI

from parallel import QUESTIONS, URL, repeat


async def main() -> str:
    model = ChatOpenAI(base_url=URL, api_key="x", model="m", max_retries=0)
    agents = [create_deep_agent(model=model, tools=[], system_prompt="be brief") for _ in QUESTIONS]
    heard = []

    async def ask(agent: object, text: str) -> None:
        made = await agent.ainvoke({"messages": [{"role": "user", "content": text}]})
        heard.append(made["messages"][-1].content)

    await asyncio.gather(*(ask(agent, text) for agent, text in zip(agents, QUESTIONS, strict=True)))
    return (await model.ainvoke("join " + " ".join(heard))).content


with asyncio.Runner() as runner:
    repeat(lambda: runner.run(main()))
