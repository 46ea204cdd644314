"""An agent with a tool loop, over plain HTTP: chat completions, streamed if told so. Its tool really runs (it counts its runs in a file)."""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

Json = Any
"""A value of JSON."""

os.environ.setdefault("SSL_CERT_FILE", os.devnull)  # urlopen reads all authorities first, for 25 ms
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]


def ask(messages: list[Json], *, stream: bool) -> Json:
    """Ask the model for the next message."""
    body = {"model": "gpt-4o", "messages": messages, "tools": TOOLS, **({"stream": True} if stream else {})}
    sent = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json", "authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"},
    )
    with urllib.request.urlopen(sent, timeout=30) as answer:
        data = answer.read().decode()
    if not stream:
        return json.loads(data)["choices"][0]["message"]
    text = ""
    calls: dict[int, Json] = {}
    for line in data.splitlines():
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        for choice in json.loads(line[6:])["choices"]:
            delta = choice["delta"]
            text += delta.get("content") or ""
            for piece in delta.get("tool_calls") or ():
                call = calls.setdefault(piece["index"], {"id": "", "name": "", "arguments": ""})
                call["id"] = call["id"] or piece.get("id", "")
                call["name"] = call["name"] or piece["function"].get("name", "")
                call["arguments"] += piece["function"].get("arguments") or ""
    made = [
        {"id": each["id"], "type": "function", "function": {"name": each["name"], "arguments": each["arguments"]}}
        for each in calls.values()
    ]
    return {"role": "assistant", "content": text or None, **({"tool_calls": made} if made else {})}


def get_weather(city: str) -> str:
    """Return the weather; the run is counted."""
    with Path(os.environ["RUNS"]).open("a", encoding="utf-8") as runs:
        runs.write(city + "\n")
    return json.dumps({"city": city, "temp": 21})


def main() -> None:
    """Ask, use tools, say the answer; then the next question of the same conversation."""
    stream = "--stream" in sys.argv
    messages: list[Json] = []
    for question in [word for word in sys.argv[1:] if word != "--stream"]:
        messages.append({"role": "user", "content": question})
        while True:
            try:
                message = ask(messages, stream=stream)
            except urllib.error.HTTPError as error:
                sys.exit(f"HTTP {error.code}: {error.read().decode()}")
            messages.append(message)
            if not message.get("tool_calls"):
                print(message["content"], flush=True)
                break
            for call in message["tool_calls"]:
                result = get_weather(**json.loads(call["function"]["arguments"]))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


main()
