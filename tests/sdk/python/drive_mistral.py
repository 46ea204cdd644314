"""Drive mistralai."""

from __future__ import annotations

import os

from driver import TOOL_RESULT, WEATHER, key, main, prompt

try:
    from mistralai.client import Mistral
except ImportError:
    from mistralai import Mistral

client = Mistral(api_key=key("MISTRAL_API_KEY"), server_url=os.environ["MISTRAL_SERVER_URL"])
MODEL = "mistral-small-latest"
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Current weather", "parameters": WEATHER}}
]


def user(case):
    return [{"role": "user", "content": prompt(case)}]


def tools():
    messages, results = user("tools"), []
    while True:
        answer = client.chat.complete(model=MODEL, messages=messages, tools=TOOLS)
        results.append(answer)
        message = answer.choices[0].message
        if not message.tool_calls:
            return results
        messages.append(message)
        messages += [
            {"role": "tool", "name": c.function.name, "tool_call_id": c.id, "content": TOOL_RESULT}
            for c in message.tool_calls
        ]


main(
    {
        "plain": lambda: client.chat.complete(model=MODEL, messages=user("plain")),
        "stream": lambda: [event.data for event in client.chat.stream(model=MODEL, messages=user("stream"))],
        "tools": tools,
    }
)
