"""An agent of Strands with a shell."""

import subprocess
import sys

from strands import Agent, tool
from strands.models.openai import OpenAIModel


@tool
def shell(command: str) -> str:
    """Run a shell command."""
    return subprocess.run(command, shell=True, capture_output=True, text=True).stdout


print(Agent(model=OpenAIModel(model_id="gpt-4o"), tools=[shell], callback_handler=None)(sys.argv[1]))
