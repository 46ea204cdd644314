"""Drive litellm on its openai, anthropic and gemini routes.

Where the provider gives no id or time, litellm makes one of its own up on every run (also in replay), so those are numbered.
"""

from __future__ import annotations

import gc
import os
import re
from copy import deepcopy

os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS="True")

import litellm
import openai.resources  # noqa: F401 - which it would import in each run

from driver import TOOL_RESULT, WEATHER, key, main, plain, prompt

litellm.suppress_debug_info = True
# litellm leaves its streams to the garbage collector. Seen once: the collector closed one while httpcore 1.0 waited for or held its
# pool's lock, which the closing wants too, and the program hung in there. A short program needs no collector.
gc.disable()
MODELS = {
    "openai": {"model": "openai/gpt-4o-mini", "api_key": key("OPENAI_API_KEY")},
    "anthropic": {"model": "anthropic/claude-haiku-4-5", "api_key": key("ANTHROPIC_API_KEY")},
    "gemini": {"model": "gemini/gemini-2.5-flash", "api_key": key("GEMINI_API_KEY")},
}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Current weather", "parameters": WEATHER}}
]


def numbered(value):
    """Replace made-up ids and times by their number of first appearance."""
    seen = {}

    def walk(v):
        if isinstance(v, dict):
            return {k: 0 if k == "created" else walk(x) for k, x in v.items()}
        if isinstance(v, list):
            return [walk(x) for x in v]
        if isinstance(v, str) and re.fullmatch(r"(chatcmpl-|call_)?[0-9a-f-]{28,36}", v):
            return f"id#{seen.setdefault(v, len(seen))}"
        return v

    return walk(plain(value))


def complete(route, case, **more):
    return litellm.completion(**MODELS[route], messages=[{"role": "user", "content": prompt(case)}], **more)


def tools(route):
    messages, results = [{"role": "user", "content": prompt("tools")}], []
    while True:
        answer = litellm.completion(
            **MODELS[route], messages=messages, tools=deepcopy(TOOLS)
        )  # litellm changes what it is given
        results.append(answer)
        message = answer.choices[0].message
        if not message.tool_calls:
            return numbered(results)
        messages.append(message)
        messages += [{"role": "tool", "tool_call_id": c.id, "content": TOOL_RESULT} for c in message.tool_calls]


def cases(route):
    return {
        f"{route}_plain": lambda: numbered(complete(route, "plain", temperature=0.5)),
        f"{route}_stream": lambda: numbered(list(complete(route, "stream", stream=True))),
        f"{route}_stream_usage": lambda: numbered(
            list(complete(route, "stream_usage", stream=True, stream_options={"include_usage": True}))
        ),
        f"{route}_tools": lambda: tools(route),
        f"{route}_error": lambda: complete(route, "error"),
    }


main({**cases("openai"), **cases("anthropic"), **cases("gemini")})
