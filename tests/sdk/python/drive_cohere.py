"""Drive cohere's v2 client."""

from __future__ import annotations

import cohere

from driver import key, main, prompt

client = cohere.ClientV2(api_key=key("CO_API_KEY"))
MODEL = "command-a-03-2025"


def user(case):
    return [{"role": "user", "content": prompt(case)}]


main(
    {
        "plain": lambda: client.chat(model=MODEL, messages=user("plain")),
        "stream": lambda: list(client.chat_stream(model=MODEL, messages=user("stream"))),
    }
)
