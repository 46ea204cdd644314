"""A client of tools by the official SDK: `python mcp_client.py PLAN URL` or `python mcp_client.py PLAN -- COMMAND...`; prints JSON.

PLAN is JSON: {"calls": [[tool, arguments], ...], "together": false, "runs": 1, "consent": "accept", "shuffle": null}. What is printed has for
each run the results, {"tool", "arguments", "error", "text", "progress"}, in the order of the plan.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mcp import ClientSession, McpError, StdioServerParameters, types
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamablehttp_client

PLAN: dict[str, Any] = json.loads(sys.argv[1])


async def consent(context: object, params: types.ElicitRequestParams) -> types.ElicitResult:
    del context, params
    action = PLAN.get("consent", "accept")
    return types.ElicitResult(action=action, content={"yes": True} if action == "accept" else None)


async def write(context: object, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
    del context, params
    content = types.TextContent(type="text", text=PLAN.get("poem", "roses"))
    return types.CreateMessageResult(role="assistant", model="m", content=content)


@asynccontextmanager
async def session() -> AsyncIterator[ClientSession]:
    if sys.argv[2] == "--":
        server = StdioServerParameters(command=sys.argv[3], args=sys.argv[4:], env=dict(os.environ))
        async with (
            stdio_client(server) as (read, sent),
            ClientSession(read, sent, elicitation_callback=consent, sampling_callback=write) as made,
        ):
            yield made
        return
    async with (
        streamablehttp_client(sys.argv[2]) as (read, sent, _),
        ClientSession(read, sent, elicitation_callback=consent, sampling_callback=write) as made,
    ):
        yield made


async def call(client: ClientSession, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    heard: list[float] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        del total, message
        heard.append(progress)

    told: dict[str, Any] = {"tool": tool, "arguments": arguments}
    try:
        got = await client.call_tool(tool, arguments, progress_callback=hear)
    except McpError as error:
        return told | {"error": True, "text": error.error.message, "progress": heard}
    text = "".join(part.text for part in got.content if isinstance(part, types.TextContent))
    return told | {"error": got.isError, "text": text, "progress": heard}


async def run(number: int) -> list[dict[str, Any]]:
    calls = list(enumerate(PLAN["calls"]))
    if PLAN.get("shuffle") is not None:
        random.Random(PLAN["shuffle"] + number).shuffle(calls)
    async with session() as client:
        await client.initialize()
        await client.list_tools()
        if PLAN.get("together"):
            done = await asyncio.gather(*(call(client, *each) for _, each in calls))
        else:
            done = [await call(client, *each) for _, each in calls]
    return [told for _, told in sorted(zip((n for n, _ in calls), done, strict=True), key=lambda pair: pair[0])]


async def main() -> None:
    print(json.dumps([await run(number) for number in range(PLAN.get("runs", 1))]))


if __name__ == "__main__":
    asyncio.run(main())
