"""Drive ollama's own client (NDJSON)."""

from __future__ import annotations

import asyncio
import os

import ollama

from driver import TOOL_RESULT, WEATHER, main, prompt

client = ollama.Client(host=os.environ["OLLAMA_HOST"])
MODEL = "llama3.2"
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Current weather", "parameters": WEATHER}}
]


def user(case):
    return [{"role": "user", "content": prompt(case)}]


def asynchronous():
    return asyncio.run(ollama.AsyncClient(host=os.environ["OLLAMA_HOST"]).chat(MODEL, messages=user("asynchronous")))


def tools():
    messages, results = user("tools"), []
    while True:
        answer = client.chat(MODEL, messages=messages, tools=TOOLS)
        results.append(answer)
        if not answer.message.tool_calls:
            return results
        messages.append(answer.message)
        messages += [
            {"role": "tool", "tool_name": c.function.name, "content": TOOL_RESULT} for c in answer.message.tool_calls
        ]


main(
    {
        "plain": lambda: client.chat(MODEL, messages=user("plain"), options={"temperature": 0.5}),
        "stream": lambda: list(client.chat(MODEL, messages=user("stream"), stream=True)),
        "asynchronous": asynchronous,
        "tools": tools,
    }
)
