"""`asyncio.as_completed` over streams of OpenAI's SDK."""

import asyncio

from openai import AsyncOpenAI

from parallel import QUESTIONS, URL, repeat


async def main() -> str:
    async with AsyncOpenAI(base_url=URL, api_key="x", max_retries=0) as client:

        async def ask(text: str) -> str:
            messages = [{"role": "user", "content": text}]
            parts = await client.chat.completions.create(model="m", messages=messages, stream=True)
            return "".join([each.choices[0].delta.content or "" async for each in parts if each.choices])

        asked = asyncio.as_completed([ask(text) for text in QUESTIONS])
        return await ask("join " + " ".join([await each for each in asked]))


with asyncio.Runner() as runner:
    repeat(lambda: runner.run(main()))
