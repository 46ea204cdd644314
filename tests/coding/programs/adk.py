"""An agent of Google's ADK with a shell, and a sub-agent.

A command behind the question is that of its server of tools.
"""

import asyncio
import os
import subprocess
import sys

from google.adk.agents import LlmAgent
from google.adk.runners import InMemoryRunner
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.mcp_tool import McpToolset, StdioConnectionParams
from google.genai import types
from mcp import StdioServerParameters

MODEL = "gemini-2.5-flash"


def shell(command: str) -> str:
    """Run a shell command."""
    return subprocess.run(command, shell=True, capture_output=True, text=True).stdout


def connect(command: str) -> McpToolset:
    server = StdioServerParameters(command=command, args=sys.argv[3:], env=dict(os.environ))
    return McpToolset(connection_params=StdioConnectionParams(server_params=server, timeout=200))


async def main() -> str:
    reader = LlmAgent(name="reader", model=MODEL, instruction="You read files.", tools=[shell])
    tools = [shell, AgentTool(agent=reader), *map(connect, sys.argv[2:3])]
    runner = InMemoryRunner(agent=LlmAgent(name="notes", model=MODEL, tools=tools), app_name="app")
    await runner.session_service.create_session(app_name="app", user_id="u", session_id="s")
    said = ""
    asked = types.Content(role="user", parts=[types.Part(text=sys.argv[1])])
    async for event in runner.run_async(user_id="u", session_id="s", new_message=asked):
        said = event.content.parts[0].text or said if event.content and event.content.parts else said
    await runner.close()
    return said


print(asyncio.run(main()))
