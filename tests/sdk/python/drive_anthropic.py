"""Drive anthropic (newest and the one before)."""

from __future__ import annotations

import asyncio

import anthropic

from driver import TOOL_RESULT, WEATHER, key, main, prompt

client = anthropic.Anthropic(api_key=key("ANTHROPIC_API_KEY"))
BASE = {"model": "claude-haiku-4-5", "max_tokens": 200}
TOOLS = [{"name": "get_weather", "description": "Current weather", "input_schema": WEATHER}]


def user(case):
    return [{"role": "user", "content": prompt(case)}]


def create(case, **more):
    return client.messages.create(**BASE, system="You are brief.", messages=user(case), **more)


def stream():
    with client.messages.stream(**BASE, messages=user("stream")) as events:
        return [list(events), events.get_final_message()]


def asynchronous():
    async def run():
        async with anthropic.AsyncAnthropic(api_key=key("ANTHROPIC_API_KEY")) as other:
            return await other.messages.create(**BASE, messages=user("asynchronous"))

    return asyncio.run(run())


def tools(case, ask):
    messages, results = user(case), []
    while True:
        answer = ask(messages)
        results.append(answer)
        calls = [block for block in answer.content if block.type == "tool_use"]
        if not calls:
            return results
        messages.append({"role": "assistant", "content": answer.content})
        told = [{"type": "tool_result", "tool_use_id": call.id, "content": TOOL_RESULT} for call in calls]
        messages.append({"role": "user", "content": told})


def ask(messages):
    return client.messages.create(**BASE, messages=messages, tools=TOOLS)


def ask_streamed(messages):
    with client.messages.stream(**BASE, messages=messages, tools=TOOLS) as events:
        return events.get_final_message()


main(
    {
        "plain": lambda: create("plain"), "stream": stream,
        "stream_usage": lambda: list(create("stream_usage", stream=True)), "asynchronous": asynchronous,
        "tools": lambda: tools("tools", ask), "tools_stream": lambda: tools("tools_stream", ask_streamed),
        "count_tokens": lambda: client.messages.count_tokens(model=BASE["model"], messages=user("count_tokens")),
        "retry": lambda: create("retry"), "error": lambda: create("error"),
    }
)  # fmt: skip
