"""An agent of deepagents with a shell, and a sub-agent.

A command behind the question is that of its server of tools.
"""

import asyncio
import os
import subprocess
import sys
from contextlib import AsyncExitStack

from deepagents import create_deep_agent
from langchain_core.tools import tool
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools

READER = {"name": "reader", "description": "Reads a file.", "system_prompt": "You read files."}


@tool
def shell(command: str) -> str:
    """Run a shell command."""
    return subprocess.run(command, shell=True, capture_output=True, text=True).stdout


async def main() -> str:
    words = {"command": sys.argv[2:3], "args": sys.argv[3:], "env": dict(os.environ), "transport": "stdio"}
    async with AsyncExitStack() as stack:
        tools = [shell]
        for command in words.pop("command"):
            client = MultiServerMCPClient({"tools": {"command": command, **words}})
            tools += await load_mcp_tools(await stack.enter_async_context(client.session("tools")))
        agent = create_deep_agent(model="openai:gpt-4o", tools=tools, subagents=[READER])
        asked = {"messages": [{"role": "user", "content": sys.argv[1]}]}
        return (await agent.ainvoke(asked, {"recursion_limit": 200}))["messages"][-1].text


print(asyncio.run(main()))
