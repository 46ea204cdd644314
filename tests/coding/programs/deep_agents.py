"""An agent of deepagents with a shell."""

import subprocess
import sys

from deepagents import create_deep_agent
from langchain_core.tools import tool


@tool
def shell(command: str) -> str:
    """Run a shell command."""
    return subprocess.run(command, shell=True, capture_output=True, text=True).stdout


agent = create_deep_agent(model="openai:gpt-4o", tools=[shell])
said = agent.invoke({"messages": [{"role": "user", "content": sys.argv[1]}]}, {"recursion_limit": 200})
print(said["messages"][-1].text)
