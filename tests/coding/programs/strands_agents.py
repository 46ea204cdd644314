"""An agent of Strands with a shell.

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


def connect():
    return stdio_client(StdioServerParameters(command=sys.argv[2], args=sys.argv[3:], env=dict(os.environ)))


tools = [shell, *([MCPClient(connect)] if sys.argv[2:] else [])]
print(Agent(model=OpenAIModel(model_id="gpt-4o"), tools=tools, callback_handler=None)(sys.argv[1]))
