"""An agent of the OpenAI Agents SDK with a shell."""

import subprocess
import sys

from agents import Agent, Runner, function_tool


@function_tool
def shell(command: str) -> str:
    """Run a shell command."""
    return subprocess.run(command, shell=True, capture_output=True, text=True).stdout


print(Runner.run_sync(Agent(name="notes", model="gpt-4o", tools=[shell]), sys.argv[1], max_turns=30).final_output)
