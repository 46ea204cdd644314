"""A client of the stateless era by the official SDK: `client.py PLAN URL` or `client.py PLAN -- COMMAND...`; prints JSON.

PLAN is JSON: {"calls": [[tool, arguments], ...], "consent": "accept"}. What is printed: {"era", "tools", "results"}.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from mcp import Client, StdioServerParameters, types

PLAN: dict[str, Any] = json.loads(sys.argv[1])


async def consent(context: object, params: object) -> types.ElicitResult:
    """Answer as planned."""
    del context, params
    action = PLAN.get("consent", "accept")
    return types.ElicitResult(action=action, content={"yes": True} if action == "accept" else None)


async def call(client: Client, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Call a tool."""
    heard: list[float] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        del total, message
        heard.append(done)

    got = await client.call_tool(tool, arguments, progress_callback=progress)
    text = "".join(getattr(each, "text", f"[{each.type}]") for each in got.content)
    return {"tool": tool, "error": bool(got.is_error), "text": text, "progress": heard}


async def main() -> None:
    """Do the plan."""
    where: Any = sys.argv[2]
    if where == "--":
        where = StdioServerParameters(command=sys.argv[3], args=sys.argv[4:], env=dict(os.environ))
    async with Client(where, elicitation_callback=consent) as client:
        tools = [each.name for each in (await client.list_tools()).tools]
        results = [await call(client, tool, arguments) for tool, arguments in PLAN["calls"]]
        print(json.dumps({"era": str(client.protocol_version), "tools": tools, "results": results}))


asyncio.run(main())
