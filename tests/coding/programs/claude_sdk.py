"""An agent of the Claude Agent SDK, whose shell is a tool of this process, and a sub-agent.

A server's command may stand behind the question.
"""

import asyncio
import subprocess
import sys

from claude_agent_sdk import AgentDefinition, ClaudeAgentOptions, ResultMessage, create_sdk_mcp_server, query, tool


@tool("shell", "Run a shell command.", {"command": str})
async def shell(arguments):
    done = subprocess.run(arguments["command"], shell=True, capture_output=True, text=True)
    return {"content": [{"type": "text", "text": done.stdout}]}


async def main():
    server = create_sdk_mcp_server("lab", tools=[shell])
    servers = {"lab": server}
    if sys.argv[2:]:
        servers["tools"] = {"command": sys.argv[2], "args": sys.argv[3:]}
    allowed = ["mcp__lab__shell", "mcp__tools__echo", "Agent"]
    agents = {"reader": AgentDefinition(description="Reads a file.", prompt="You read files.")}
    options = ClaudeAgentOptions(mcp_servers=servers, allowed_tools=allowed, agents=agents, max_turns=30)
    async for message in query(prompt=sys.argv[1], options=options):
        if isinstance(message, ResultMessage):
            print(message.result)
            return message.is_error
    return True


sys.exit(asyncio.run(main()))
