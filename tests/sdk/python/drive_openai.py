"""Drive openai-python (newest and the major before)."""

from __future__ import annotations

import asyncio

import openai.resources  # which a client would import in each run
from pydantic import BaseModel

from driver import TOOL_RESULT, WEATHER, key, main, prompt

client = openai.OpenAI(api_key=key("OPENAI_API_KEY"))
MODEL = "gpt-4o-mini"
TOOL = {"name": "get_weather", "description": "Current weather", "parameters": WEATHER, "strict": True}


class Capital(BaseModel):
    """Structured answer."""

    city: str
    country: str


def user(case, turn=0):
    return [{"role": "system", "content": "You are brief."}, {"role": "user", "content": prompt(case, turn)}]


def chat(case, **more):
    return client.chat.completions.create(model=MODEL, messages=user(case), temperature=0.5, **more)


def stream(case, **more):
    return list(chat(case, stream=True, **more))


def asynchronous():
    async def run():
        async with openai.AsyncOpenAI(api_key=key("OPENAI_API_KEY")) as other:
            return await other.chat.completions.create(model=MODEL, messages=user("asynchronous"))

    return asyncio.run(run())


def tools():
    messages, results = user("tools"), []
    while True:
        answer = client.chat.completions.create(
            model=MODEL, messages=messages, tools=[{"type": "function", "function": TOOL}]
        )
        results.append(answer)
        message = answer.choices[0].message
        if not message.tool_calls:
            return results
        messages.append(message)
        messages += [{"role": "tool", "tool_call_id": c.id, "content": TOOL_RESULT} for c in message.tool_calls]


def tools_stream():
    messages, results = user("tools_stream"), []
    while True:
        with client.chat.completions.stream(
            model=MODEL, messages=messages, tools=[{"type": "function", "function": TOOL}]
        ) as events:
            names = [event.type for event in events]
            answer = events.get_final_completion()
        results.append([names, answer])
        calls = answer.choices[0].message.tool_calls
        if not calls:
            return results
        sent = [
            {"id": c.id, "type": "function", "function": {"name": c.function.name, "arguments": c.function.arguments}}
            for c in calls
        ]
        messages.append({"role": "assistant", "content": None, "tool_calls": sent})
        messages += [{"role": "tool", "tool_call_id": c.id, "content": TOOL_RESULT} for c in calls]


def structured():
    answer = client.chat.completions.parse(model=MODEL, messages=user("structured"), response_format=Capital)
    return [answer.choices[0].message.parsed, answer]


def respond(case, turn=0, **more):
    return client.responses.create(model=MODEL, instructions="Be brief.", input=prompt(case, turn), **more)


def responses_chain():
    first = respond("responses_chain")
    return [first, respond("responses_chain", 1, previous_response_id=first.id)]


def responses_tools():
    asked, results = [{"role": "user", "content": prompt("responses_tools")}], []
    while True:
        answer = client.responses.create(model=MODEL, input=asked, tools=[{"type": "function", **TOOL}])
        results.append(answer)
        calls = [item for item in answer.output if item.type == "function_call"]
        if not calls:
            return results
        asked += answer.output
        asked += [{"type": "function_call_output", "call_id": c.call_id, "output": TOOL_RESULT} for c in calls]


def audio():
    sound = b"RIFF$\x00\x00\x00WAVEfmt " + bytes(range(256)) * 40
    return client.audio.transcriptions.create(model="whisper-1", file=("harbour.wav", sound), language="en")


main(
    {
        "plain": lambda: chat("plain"), "stream": lambda: stream("stream"),
        "stream_usage": lambda: stream("stream_usage", stream_options={"include_usage": True}),
        "asynchronous": asynchronous, "tools": tools, "tools_stream": tools_stream, "structured": structured,
        "responses": lambda: respond("responses"),
        "responses_stream": lambda: list(respond("responses_stream", stream=True)),
        "responses_chain": responses_chain, "responses_tools": responses_tools,
        "embeddings": lambda: client.embeddings.create(model="text-embedding-3-small", input=prompt("embeddings")),
        "audio": audio, "models": lambda: list(client.models.list()), "retry": lambda: chat("retry"),
        "error": lambda: chat("error"),
    }
)  # fmt: skip
