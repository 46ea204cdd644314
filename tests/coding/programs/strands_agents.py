"""An agent of Strands with a shell, and a sub-agent.

A command behind the question is that of its server of tools.
"""

import os
import subprocess
import sys

from mcp import StdioServerParameters, stdio_client
from strands import Agent, tool
from strands.models.openai import OpenAIModel
from strands.tools.mcp import MCPClient


@tool
def shell(command: str) -> str:
    """Run a shell command."""
    return subprocess.run(command, shell=True, capture_output=True, text=True).stdout


@tool
def reader(request: str) -> str:
    """Read a file, as an agent does."""
    return str(make_agent([shell], system_prompt="You read files.")(request))


def make_agent(tools: list, **more: str) -> Agent:
    return Agent(model=OpenAIModel(model_id="gpt-4o"), tools=tools, callback_handler=None, **more)


def connect():
    return stdio_client(StdioServerParameters(command=sys.argv[2], args=sys.argv[3:], env=dict(os.environ)))


print(make_agent([shell, reader, *([MCPClient(connect)] if sys.argv[2:] else [])])(sys.argv[1]))
