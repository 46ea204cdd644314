"""Drive google-genai (newest and the major before)."""

from __future__ import annotations

import asyncio

from google import genai
from google.genai import types

from driver import SCHEMA, TOOL_RESULT, WEATHER, key, main, prompt

client = genai.Client(api_key=key("GEMINI_API_KEY"))
MODEL = "gemini-2.5-flash"
BRIEF = types.GenerateContentConfig(system_instruction="You are brief.", temperature=0.5)
FUNCTION = types.FunctionDeclaration(
    name="get_weather",
    description="Current weather",
    parameters_json_schema={k: v for k, v in WEATHER.items() if k != "additionalProperties"},
)
WITH_TOOLS = types.GenerateContentConfig(tools=[types.Tool(function_declarations=[FUNCTION])])
AS_JSON = types.GenerateContentConfig(
    response_mime_type="application/json",
    response_json_schema={k: v for k, v in SCHEMA.items() if k != "additionalProperties"},
)


def asynchronous():
    async def run():
        return await client.aio.models.generate_content(model=MODEL, contents=prompt("asynchronous"))

    return asyncio.run(run())


def tools():
    contents = [types.Content(role="user", parts=[types.Part(text=prompt("tools"))])]
    results = []
    while True:
        answer = client.models.generate_content(model=MODEL, contents=contents, config=WITH_TOOLS)
        results.append(answer)
        if not answer.function_calls:
            return results
        contents.append(answer.candidates[0].content)
        told = [
            types.Part.from_function_response(name=c.name, response={"result": TOOL_RESULT})
            for c in answer.function_calls
        ]
        contents.append(types.Content(role="user", parts=told))


main(
    {
        "plain": lambda: client.models.generate_content(model=MODEL, contents=prompt("plain"), config=BRIEF),
        "stream": lambda: list(
            client.models.generate_content_stream(model=MODEL, contents=prompt("stream"), config=BRIEF)
        ),
        "asynchronous": asynchronous,
        "error": lambda: client.models.generate_content(model=MODEL, contents=prompt("error"), config=BRIEF),
        "tools": tools,
        "structured": lambda: client.models.generate_content(
            model=MODEL, contents=prompt("structured"), config=AS_JSON
        ),
    }
)
