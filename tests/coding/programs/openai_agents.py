"""An agent of the OpenAI Agents SDK with a shell, and a sub-agent.

A command behind the question is that of its server of tools.
"""

import asyncio
import os
import subprocess
import sys

from agents import Agent, Runner, function_tool
from agents.mcp import MCPServerManager, MCPServerStdio


@function_tool
def shell(command: str) -> str:
    """Run a shell command."""
    return subprocess.run(command, shell=True, capture_output=True, text=True).stdout


async def main() -> str:
    server = [{"command": word, "args": sys.argv[3:], "env": dict(os.environ)} for word in sys.argv[2:3]]
    async with MCPServerManager([MCPServerStdio(each, client_session_timeout_seconds=200) for each in server]) as mcp:
        reader = Agent(name="reader", model="gpt-4o", instructions="You read files.", tools=[shell])
        tools = [shell, reader.as_tool(tool_name="reader", tool_description="Reads a file.")]
        agent = Agent(name="notes", model="gpt-4o", tools=tools, mcp_servers=mcp.active_servers)
        return (await Runner.run(agent, sys.argv[1], max_turns=30)).final_output


print(asyncio.run(main()))
