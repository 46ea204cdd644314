"""Drive langchain-openai."""

from __future__ import annotations

import os

os.environ["LANGCHAIN_TRACING_V2"] = os.environ["LANGSMITH_TRACING"] = "false"

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI

from driver import TOOL_RESULT, WEATHER, key, main, prompt

model = ChatOpenAI(model="gpt-4o-mini", temperature=0.5, api_key=key("OPENAI_API_KEY"), stream_usage=True)
TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Current weather", "parameters": WEATHER},
}


def plain(case):
    return said(model.invoke([HumanMessage(prompt(case))]))


def said(message):
    """Keep what the provider said; langchain makes run ids up."""
    dumped = message.model_dump(mode="json")
    return {name: dumped.get(name) for name in ("content", "tool_calls", "usage_metadata", "response_metadata")}


def tools():
    messages, results, bound = [HumanMessage(prompt("tools"))], [], model.bind_tools([TOOL])
    while True:
        answer = bound.invoke(messages)
        results.append(said(answer))
        if not answer.tool_calls:
            return results
        messages.append(answer)
        messages += [ToolMessage(TOOL_RESULT, tool_call_id=call["id"]) for call in answer.tool_calls]


main(
    {
        "plain": lambda: plain("plain"),
        "stream": lambda: [said(part) for part in model.stream([HumanMessage(prompt("stream"))])],
        "tools": tools,
        "error": lambda: plain("error"),
    }
)
