"""What LangWatch Scenario has and we have not: refused where its absence would let a test pass unchecked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from llmproxy import scenario
from llmproxy.errors import SettingsError
from tests.scenario.people import Agent


@pytest.mark.parametrize(("given", "why"), [
    ({"evaluators": [object()]}, "LangWatch's servers"),
    ({"on_audio_chunk": print}, "voice"),
    ({"audio_playback": True}, "voice"),
    ({"trace_wait_timeout": 3.0}, "LangWatch's servers"),
])  # fmt: skip
def test_a_run_that_asks_for_it_is_refused(given: dict[str, Any], why: str) -> None:
    agent = Agent()
    with pytest.raises(SettingsError, match=why):
        asyncio.run(scenario.run(name="n", description="d", agents=[agent], **given))
    assert agent.inputs == []


def test_defaults_written_out_ask_for_nothing() -> None:
    """Programs that spell out what is off run."""
    off: Any = {"evaluators": None, "audio_playback": False, "fetch_remote_traces": None}
    script = [scenario.succeed()]
    assert scenario.run_sync("n", "d", [Agent()], script=script, verbose=False, **off).success


def test_agents_refuse_slips_and_voice() -> None:
    """Keywords are litellm's, unless they are nearly ours."""
    with pytest.raises(TypeError, match="did you mean 'criteria'"):
        scenario.JudgeAgent(model="openai/x", critera=["polite"])
    with pytest.raises(SettingsError, match="voice"):
        scenario.UserSimulatorAgent(model="openai/x", voice="alloy")
    judge = scenario.JudgeAgent(model="openai/x", api_base="http://h/v1", timeout=3, headers={"a": "b"})
    assert (judge.models[0].api_base, judge.models[0].extra_parameters) == (
        "http://h/v1",
        {"timeout": 3, "headers": {"a": "b"}},
    )


def test_a_name_of_theirs_is_no_name_here() -> None:
    """So that `hasattr` works, and an import fails as usual."""
    with pytest.raises(ImportError, match="cannot import name 'OpenAIRealtimeAgentAdapter'"):
        exec("from llmproxy.scenario import OpenAIRealtimeAgentAdapter")
    assert not hasattr(scenario, "evaluator")
