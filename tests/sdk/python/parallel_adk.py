"""Google's ParallelAgent: the agent after it reads what the others said, in the order in which they ended."""

import asyncio
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
from google.adk.agents import LlmAgent, ParallelAgent, SequentialAgent
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types

from parallel import QUESTIONS, URL, repeat


def model() -> LiteLlm:
    return LiteLlm(model="openai/m", api_base=URL, api_key="x", num_retries=0)


async def main() -> str:
    at_once = [LlmAgent(name=f"q{n}", model=model(), instruction=text) for n, text in enumerate(QUESTIONS)]
    join = LlmAgent(name="join", model=model(), instruction="join")
    root = SequentialAgent(name="root", sub_agents=[ParallelAgent(name="at_once", sub_agents=at_once), join])
    played = InMemoryRunner(agent=root, app_name="app")
    await played.session_service.create_session(app_name="app", user_id="u", session_id="s")
    said = "nothing"
    go = types.Content(role="user", parts=[types.Part(text="go")])
    async for event in played.run_async(user_id="u", session_id="s", new_message=go):
        said = event.content.parts[0].text if event.content and event.content.parts else said
    return said


with asyncio.Runner() as runner:
    repeat(lambda: runner.run(main()))
