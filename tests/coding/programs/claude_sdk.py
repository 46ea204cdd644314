"""An agent of the Claude Agent SDK, whose shell is a tool of this process."""

import asyncio
import subprocess
import sys

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, create_sdk_mcp_server, query, tool


@tool("shell", "Run a shell command.", {"command": str})
async def shell(arguments):
    done = subprocess.run(arguments["command"], shell=True, capture_output=True, text=True)
    return {"content": [{"type": "text", "text": done.stdout}]}


async def main():
    server = create_sdk_mcp_server("lab", tools=[shell])
    options = ClaudeAgentOptions(mcp_servers={"lab": server}, allowed_tools=["mcp__lab__shell"], max_turns=30)
    async for message in query(prompt=sys.argv[1], options=options):
        if isinstance(message, ResultMessage):
            print(message.result)
            return message.is_error
    return True


sys.exit(asyncio.run(main()))
