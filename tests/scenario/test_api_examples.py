"""Every distinct way in which the pages of LangWatch Scenario call it: their examples run as they are, with the import changed.

The model is a scripted provider behind the proxy: the simulator always says "hi there", the judge finishes with success on every
criterion. Each case is run twice: recorded, then replayed by a second proxy with nothing behind it.
"""

# ruff: noqa: A002

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from llmproxy import scenario
from llmproxy.scenario.agent_adapter import AgentAdapter
from llmproxy.scenario.config import ScenarioConfig
from llmproxy.scenario.scenario_state import ScenarioState
from llmproxy.scenario.types import AgentInput, AgentReturnTypes, ScenarioResult, ScriptStep
from tests.provider import Provider, step
from tests.scenario.parties import finish
from tests.support import Listening, free_port, near

SEARCH = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
PARIS = SEARCH | {"id": "call_123", "function": {"name": "get_weather", "arguments": '{"location": "Paris"}'}}
IMAGE = [
    {"type": "text", "text": "What's in this image?"},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
]


class MyAgent(scenario.AgentAdapter):
    """A text; async; the default role."""

    async def call(self, input: scenario.AgentInput) -> scenario.AgentReturnTypes:
        return "I understand you said: " + input.last_new_user_message_str()


class Stateful(AgentAdapter):
    """A constructor of its own, history and thread id, a list of messages."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def call(self, input: AgentInput) -> AgentReturnTypes:
        self.seen.append((input.thread_id, len(input.messages), input.judgment_request))
        return [
            {"role": "assistant", "content": "Let me search for that information..."},
            {"role": "assistant", "content": "Here's what I found: ..."},
        ]


class WithTool(AgentAdapter):
    async def call(self, input: AgentInput) -> AgentReturnTypes:
        if any(message["role"] == "tool" for message in input.messages):
            return {"role": "assistant", "content": "It is 75°F."}
        return {"role": "assistant", "content": None, "tool_calls": [PARIS]}


def has_tool(state: scenario.ScenarioState) -> None:
    assert state.has_tool_call("get_weather")
    assert not state.has_tool_call("delete_data")


def args_ok(state: ScenarioState) -> None:
    call = state.last_tool_call("get_weather")
    assert call is not None
    assert json.loads(call["function"]["arguments"])["location"] == "Paris"


def hurry(state: ScenarioState) -> None:
    state.add_message({"role": "system", "content": "The user is now in a hurry"})


async def evaluation(state: ScenarioState) -> ScenarioResult:
    return ScenarioResult(success=False, messages=state.messages, reasoning="Custom evaluation failed")


TURNS: list[int] = []
STEPS: list[int] = []
START: list[ScriptStep] = [scenario.user("a"), scenario.agent()]
TOOL_RESULT = scenario.message({"role": "tool", "tool_call_id": "call_123", "content": "{}"})
CALLBACKS = scenario.proceed(
    turns=3, on_turn=lambda s: TURNS.append(s.current_turn), on_step=lambda s: STEPS.append(len(s.messages))
)

CASES: list[tuple[str, list[Any] | None, dict[str, Any], bool, int | None, str]] = [
    ("auto", None, {}, True, 2, ""),
    ("set id", None, {"set_id": "customer-support-tests"}, True, 2, ""),
    ("text, agent, succeed", [*START, scenario.succeed("All requirements met")], {}, True, 2, "All requirements met"),
    ("agent text", [*START, scenario.agent("I'm currently unavailable"), scenario.user(), scenario.succeed()], {}, True, 4, "marked as successful"),
    ("fail", [*START, scenario.fail("Agent failed to meet safety requirements")], {}, False, 2, "safety"),
    ("tools", [scenario.user("Weather?"), scenario.agent(), has_tool, args_ok, TOOL_RESULT, scenario.agent(), scenario.succeed()], {"agent": WithTool}, True, 4, ""),
    ("assistant dict", [scenario.user("Hi"), scenario.message({"role": "assistant", "content": "x", "tool_calls": [SEARCH]}), has_tool, scenario.succeed()], {}, True, 2, ""),
    ("multimodal", [scenario.message({"role": "user", "content": IMAGE}), scenario.succeed()], {}, True, 1, ""),
    ("proceed with callbacks", [*START, CALLBACKS, scenario.judge()], {}, True, None, ""),
    ("system message", [*START, hurry, scenario.user(), scenario.succeed()], {}, True, 4, ""),
    ("async evaluation", [*START, evaluation, scenario.succeed()], {}, False, 2, "Custom evaluation failed"),
    ("several messages", [*START, scenario.succeed()], {"agent": Stateful}, True, 3, ""),
    ("end of script", [scenario.user("a")], {}, False, 1, "Reached end of script without conclusion"),
    ("fail()()", [*START, lambda _state: scenario.fail("Agent produced harmful content")()], {}, False, 2, "harmful"),
    ("succeed()()", [*START, lambda _state: scenario.succeed("Agent provided a solution")()], {}, True, 2, "solution"),
]  # fmt: skip


@contextmanager
def configured(url: str) -> Iterator[None]:
    before = ScenarioConfig.default_config, ScenarioConfig.defaults
    scenario.configure(
        default_model="openai/gpt-4.1-mini", max_turns=15, verbose=False, debug=False, cache_key=None, proxy=url
    )
    try:
        yield
    finally:
        ScenarioConfig.default_config, ScenarioConfig.defaults = before


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Listening, dict[str, ScenarioResult]]]:
    """Run every case through a recording proxy; give the proxy that replays it, and the results."""
    store = tmp_path_factory.mktemp("examples") / "x.db"
    steps = [finish("passed", "passed", contains="finish_test", times=None), step(say="hi there", times=None)]
    results: dict[str, ScenarioResult] = {}
    with Provider(steps, ordered=False) as provider:
        with near("record", store, upstreams={"openai": provider.url}) as px, configured(px.url):
            for case in CASES:
                results[case[0]] = run(case)
        made = len(provider.requests)
        assert made > 0
    with near("replay", store, upstreams={"openai": f"http://127.0.0.1:{free_port()}"}) as px:
        yield px, results


def run(case: tuple[Any, ...]) -> ScenarioResult:
    name, script, given, *_ = case
    given = dict(given)
    judge = scenario.JudgeAgent(criteria=["c one", "c two"], api_key="k")
    people = [given.pop("agent", MyAgent)(), scenario.UserSimulatorAgent(api_key="k"), judge]
    return asyncio.run(scenario.run(name=name, description="d", agents=people, script=script, **given))


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_every_example_runs_and_replays(
    case: tuple[Any, ...], recorded: tuple[Listening, dict[str, ScenarioResult]]
) -> None:
    """Verdict, number of messages and reason; offline the same conversation, from another proxy."""
    px, results = recorded
    name, _, _, success, count, reason = case
    first = results[name]
    assert (first.success, reason in str(first.reasoning)) == (success, True)
    assert count is None or len(first.messages) == count
    STEPS.clear()
    with configured(px.url):
        second = run(case)
    assert (second.messages, second.success, second.reasoning) == (first.messages, first.success, first.reasoning)
    assert second.replayed is bool(second.usage)
    if name == "proceed with callbacks":
        assert (TURNS, STEPS) == ([], [2]), "the judge of turn 0 already ends it"


def test_public_names() -> None:
    """All that the pages name; `cache` is a function and a submodule."""
    names = (
        "run configure default_config cache message proceed succeed fail judge agent user ScenarioResult AgentInput AgentRole "
        "ScenarioConfig AgentReturnTypes ScenarioState AgentAdapter UserSimulatorAgent JudgeAgent"
    )
    assert set(names.split()) <= set(scenario.__all__)
    assert dir(scenario) == sorted(scenario.__all__)
    assert all(hasattr(scenario, each) for each in scenario.__all__)
    assert callable(scenario.cache)
    assert scenario.__version__
    code = (
        "from llmproxy import scenario; import llmproxy.scenario.cache; from llmproxy.scenario.cache import scenario_cache\n"
        "import llmproxy.scenario; assert scenario.cache is scenario_cache is llmproxy.scenario.cache, scenario.cache"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_importing_opens_nothing_and_needs_no_llm_library() -> None:
    """Row 33: what a scenario without a model needs, and no more."""
    code = (
        "import sys\n"
        "def watch(event, given):\n"
        "    if event.startswith('socket.'):\n"
        "        raise SystemExit(f'{event} {given}')\n"
        "sys.addaudithook(watch)\n"
        "from llmproxy import scenario; import llmproxy.scenario.agents.config, llmproxy.scenario.agents.http\n"
        "print(*sys.modules)\n"
        "from llmproxy.scenario import UserSimulatorAgent, JudgeAgent; assert 'litellm' not in sys.modules"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    heavy = {
        "litellm", "openai", "httpx", "sqlalchemy", "sqlite_utils", "mitmproxy", "rich", "vcr", "requests",
    }  # fmt: skip
    assert not heavy & {name.partition(".")[0] for name in told.split()}
