"""The agent of `llmproxy demo`: three turns with an OpenAI client, one plain, one with a tool, one streamed.

It knows nothing of llmproxy. `scripts/make-demo` records it against a scripted provider; the demo replays that recording to it. Its
prompts are part of the recording's keys: after changing one, make the recording anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

MODEL = "gpt-4o-mini"
PLAIN = "What is the capital of Norway? One word."
WEATHER = "Do I need an umbrella there today?"
STREAMED = "Why should the tests of an agent replay recorded answers? Two sentences."
TOOLS: list[ChatCompletionToolParam] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city, now.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]

Say = Callable[[str], None]
Create = Callable[..., Any]


def get_weather(city: str) -> str:
    """Return what the tool knows."""
    return json.dumps({"city": city, "sky": "rain", "celsius": 7})


def talk(create: Create, say: Say, *, plain: str = PLAIN) -> None:
    """Hold the whole conversation; `create` is `client.chat.completions.create`, `say` gets text as it arrives."""
    history: list[ChatCompletionMessageParam] = [{"role": "user", "content": plain}]
    say(f"\nuser       {plain}\n")
    answer = create(model=MODEL, messages=history).choices[0].message.content or ""
    say(f"assistant  {answer}\n")
    history += [{"role": "assistant", "content": answer}, {"role": "user", "content": WEATHER}]
    say(f"\nuser       {WEATHER}\n")
    _with_tool(create, history, say)
    history.append({"role": "user", "content": STREAMED})
    say(f"\nuser       {STREAMED}\nassistant  ")
    stream = create(model=MODEL, messages=history, stream=True, stream_options={"include_usage": True})
    for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            say(chunk.choices[0].delta.content)
    say("\n")


def _with_tool(create: Create, history: list[ChatCompletionMessageParam], say: Say) -> None:
    """Let the model call the tool, run it, and let the model answer."""
    asked = create(model=MODEL, messages=history, tools=TOOLS).choices[0].message
    for call in asked.tool_calls or ():
        if call.type != "function":
            continue
        result = get_weather(**json.loads(call.function.arguments))
        say(f"assistant  calls {call.function.name}({call.function.arguments})\ntool       {result}\n")
        history += [
            {
                "role": "assistant",
                "tool_calls": [
                    {
                        "id": call.id,
                        "type": "function",
                        "function": {"name": call.function.name, "arguments": call.function.arguments},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": call.id, "content": result},
        ]
    answer = create(model=MODEL, messages=history, tools=TOOLS).choices[0].message.content or ""
    say(f"assistant  {answer}\n")
    history.append({"role": "assistant", "content": answer})
