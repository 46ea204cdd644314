"""What tests of simulators and judges need: models that say what they are told to say, behind real HTTP."""

# ruff: noqa: A002 (adapters as their users write them; JSON)

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from llmproxy import scenario
from llmproxy.scenario.config import ModelConfig, ScenarioConfig
from llmproxy.scenario.run_session import RunSession
from llmproxy.scenario.scenario_state import ScenarioState
from llmproxy.scenario.types import AgentInput, JudgmentRequest, Message
from tests.provider import Provider, Step, step

MODEL = "openai/gpt-4.1-mini"
TALK: list[Message] = [
    {"role": "user", "content": "Where is my lamp?"},
    {"role": "assistant", "content": "On its way."},
]


@contextmanager
def model(*steps: Step, **more: Any) -> Iterator[tuple[ModelConfig, Provider]]:
    """Run a provider that plays these steps in order, and give the model that asks it."""
    with Provider(steps, **more) as provider:
        yield served(provider), provider


def served(provider: Provider, name: str = MODEL, **more: Any) -> ModelConfig:
    return ModelConfig(model=name, api_key="k", api_base=f"{provider.url}/v1", **more)


@asynccontextmanager
async def run_session(url: str, **how: Any) -> AsyncIterator[RunSession]:
    """Open the session of a run, and close it whatever happens."""
    session = await RunSession.open(url, **how)
    try:
        yield session
    finally:
        await session.close()


def finish(*statuses: str, evidence: Sequence[str] = (), reasoning: str = "so it is", **more: Any) -> Step:
    """Return the step in which a judge gives its verdict, a status for each criterion."""
    quotes = [*evidence, *[""] * (len(statuses) - len(evidence))]
    findings = {
        f"c{number}": {"status": status, "evidence": quote, "reason": "seen"}
        for number, (status, quote) in enumerate(zip(statuses, quotes, strict=True), 1)
    }
    return step(call=[{"name": "finish_test", "arguments": {"criteria": findings, "reasoning": reasoning}}], **more)


def go_on(**more: Any) -> Step:
    """Return the step in which a judge wants to see more."""
    return step(call=[{"name": "continue_test", "arguments": {}}], **more)


def raw(message: dict[str, Any], **more: Any) -> Step:
    """Return a step with exactly this message of OpenAI's dialect."""
    choice = {"index": 0, "message": {"role": "assistant", "content": None, **message}, "finish_reason": "stop"}
    return step(json={"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}, **more)


def called(name: str, arguments: str) -> Step:
    """Return a step with one tool call whose arguments are this text."""
    call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}
    return raw({"tool_calls": [call]})


def refusal(text: str, status: int = 400) -> Step:
    return step(status=status, json={"error": {"message": text, "type": "invalid_request_error", "code": None}})


def shown(*messages: Message, forced: bool = False, turn: int = 0, context: str | None = None) -> AgentInput:
    """Return the input of somebody who sees this conversation, outside a run."""
    talk = list(messages or TALK)
    state = ScenarioState(
        description="Somebody misses a lamp.", messages=talk, thread_id="t", current_turn=turn, config=ScenarioConfig()
    )
    return AgentInput(
        thread_id="t",
        messages=talk,
        new_messages=[],
        judgment_request=JudgmentRequest(additional_context=context) if forced else None,
        scenario_state=state,
    )


def bodies(provider: Provider) -> list[dict[str, Any]]:
    return [seen.fields for seen in provider.requests]


def words(request: dict[str, Any]) -> str:
    return "\n".join(message["content"] for message in request["messages"])


class Echo(scenario.AgentAdapter):
    async def call(self, input: AgentInput) -> str:
        return f"I understand you said: {input.last_new_user_message_str()}"
