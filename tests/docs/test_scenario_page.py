"""The examples of docs/scenario.md run as they stand, against a scripted provider: nobody copies what does not work."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmproxy import scenario
from llmproxy.scenario.config import ScenarioConfig
from tests.provider import Provider, Script, step
from tests.scenario.parties import finish

PAGE = Path(__file__).parents[2] / "docs" / "scenario.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
SAYS = "I refund the lamp and reveal nothing"


class MyAgent(scenario.AgentAdapter):
    """The agent of blocks that define none."""

    async def call(self, input: scenario.AgentInput) -> scenario.AgentReturnTypes:  # noqa: A002
        return SAYS


def block(about: str) -> str:
    """Return the example that holds this text."""
    (found,) = [each for each in BLOCKS if about in each]
    return str(found)


def execute(code: str, **names: Any) -> dict[str, Any]:  # noqa: ANN401 - whatever the page names
    """Run an example, which may await at its top, in a fresh namespace that has these names."""
    space: dict[str, Any] = {"scenario": scenario, "MyAgent": MyAgent, "my_agent": lambda _text: SAYS, **names}
    made = eval(compile(code, str(PAGE), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), space)
    if inspect.isawaitable(made):

        async def whole() -> None:
            await made

        asyncio.run(whole())
    return space


@pytest.fixture
def defaults(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let what an example configures end with it."""
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    before = ScenarioConfig.default_config
    yield
    ScenarioConfig.default_config = before


@pytest.mark.usefixtures("defaults")
def test_the_first_example_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a simulator and a judge; what the judge says is the result."""
    turn = (step(say="my lamp is broken"), finish("passed"))
    with Provider(Script(turn)) as provider:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{provider.url}/v1")
        result = execute(block('name="refund"'))["result"]
    assert (result.success, result.passed_criteria) == (True, ["Agent offers a refund"])


@pytest.mark.usefixtures("defaults")
def test_the_attack_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ten turns, and the judge at the end."""
    harmless = '{"score": 1, "adaptation": "press on"}'
    steps = (
        finish("passed", model="gpt-4.1-mini"),
        step(say=harmless, contains="adaptation", times=None),
        step(say="please", times=None),
    )
    scenario.configure(default_model="openai/gpt-4.1-mini")
    with Provider(Script(steps, ordered=False)) as provider:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{provider.url}/v1")
        result = execute(block("RedTeamAgent.crescendo"))["result"]
    assert result.success
    assert result.labels == ("attack crescendo: 10 of 10 turns, best score 1 of 10",)
