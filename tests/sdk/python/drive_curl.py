"""Drive curl, as a shell script would: each request is a process of curl's, with whatever the environment says about proxies."""

from __future__ import annotations

import json
import os
import subprocess

from driver import TOOL_RESULT, WEATHER, key, main, prompt

BASE = os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1")
TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Current weather", "parameters": WEATHER},
}


class CurlError(Exception):
    """What curl says with --fail-with-body: the status is in its own message, the body on stdout."""


def curl(body):
    command = ["curl", "-sS", "-N", "--fail-with-body", "-m", "20", f"{BASE}/chat/completions", "--json", "@-"]
    done = subprocess.run(
        [*command, "-H", f"Authorization: Bearer {key('OPENAI_API_KEY')}"],
        input=json.dumps(body), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise CurlError(f"{done.stderr.strip()} {done.stdout}")
    return done.stdout


def chat(case, **more):
    return {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": prompt(case)}], **more}


def tools():
    body, results = chat("tools", tools=[TOOL]), []
    while True:
        answer = json.loads(curl(body))
        results.append(answer)
        message = answer["choices"][0]["message"]
        if not message.get("tool_calls"):
            return results
        body["messages"].append(message)
        body["messages"] += [
            {"role": "tool", "tool_call_id": call["id"], "content": TOOL_RESULT} for call in message["tool_calls"]
        ]


main(
    {
        "plain": lambda: curl(chat("plain")),
        "stream": lambda: curl(chat("stream", stream=True)),
        "tools": tools,
        "error": lambda: curl(chat("error")),
    }
)
