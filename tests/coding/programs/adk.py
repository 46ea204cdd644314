"""An agent of Google's ADK with a shell."""

import asyncio
import subprocess
import sys

from google.adk.agents import LlmAgent
from google.adk.runners import InMemoryRunner
from google.genai import types


def shell(command: str) -> str:
    """Run a shell command."""
    return subprocess.run(command, shell=True, capture_output=True, text=True).stdout


async def main() -> str:
    runner = InMemoryRunner(agent=LlmAgent(name="notes", model="gemini-2.5-flash", tools=[shell]), app_name="app")
    await runner.session_service.create_session(app_name="app", user_id="u", session_id="s")
    said = ""
    asked = types.Content(role="user", parts=[types.Part(text=sys.argv[1])])
    async for event in runner.run_async(user_id="u", session_id="s", new_message=asked):
        said = event.content.parts[0].text or said if event.content and event.content.parts else said
    return said


print(asyncio.run(main()))
