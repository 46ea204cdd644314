"""What the original has and we have not: named where it is asked for, and only there."""

# ruff: noqa: ANN401

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from llmproxy import scenario
from llmproxy.errors import SettingsError
from llmproxy.scenario.base.elsewhere import NAMES_ELSEWHERE
from tests.scenario.people import Agent


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"evaluators": [object()]}, "LangWatch's servers"),
        ({"on_audio_chunk": print}, "voice"),
        ({"audio_playback": True}, "voice"),
        ({"trace_wait_timeout": 3.0}, "LangWatch's servers"),
    ],
)
def test_a_run_that_asks_for_it_is_refused(given: dict[str, Any], why: str) -> None:
    """Before anything happens, with the reason."""
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
    assert (judge.models[0].api_base, dict(judge.models[0].extra)) == (
        "http://h/v1",
        {"timeout": 3, "headers": {"a": "b"}},
    )


def test_a_state_says_why_it_has_no_spans() -> None:
    """An AttributeError, so that hasattr works."""
    seen: list[str] = []

    def look(state: Any) -> None:
        with pytest.raises(AttributeError, match=r"state.tool_calls\(\) reads the wire"):
            _ = state.spans
        seen.append("looked")
        assert not hasattr(state, "nothing_at_all")

    assert scenario.run_sync("n", "d", [Agent()], script=[look, scenario.succeed()], verbose=False).success
    assert seen == ["looked"]


@pytest.mark.parametrize(
    ("name", "why"),
    [("OpenAIRealtimeAgentAdapter", "voice"), ("evaluator", "LangWatch's servers")],
)
def test_a_name_of_theirs_says_why_it_is_not_here(name: str, why: str) -> None:
    """Still an AttributeError; any other name is one as usual."""
    with pytest.raises(AttributeError, match=why):
        getattr(scenario, name)
    with pytest.raises(AttributeError, match="has no attribute 'judgee'"):
        _ = scenario.judgee


@pytest.mark.parametrize("name", sorted(NAMES_ELSEWHERE))
def test_a_name_that_is_imported_says_why_too(name: str) -> None:
    """`from ... import` makes "cannot import name" of an AttributeError; whoever only looks whether it is there still may."""
    with pytest.raises(
        ImportError, match=rf"^scenario\.{name} (is part of voice|needs LangWatch|belongs to|reads OpenTelemetry)"
    ):
        exec(f"from llmproxy.scenario import {name}")
    assert not hasattr(scenario, name)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("from llmproxy.scenario.voice import TwilioAgentAdapter", "voice is part of voice"),
        ("from llmproxy.scenario.voice.adapters.twilio import TwilioAgentAdapter", "voice is part of voice"),
        ("import llmproxy.scenario.voice", "voice is part of voice"),
        ("from llmproxy.scenario.evaluators import evaluator", "needs LangWatch's servers"),
        ("from llmproxy.scenario import judgee", "cannot import name 'judgee'"),
    ],
)
def test_a_module_of_theirs_says_why_it_is_not_here(line: str, why: str) -> None:
    """As published files import it, with only the package's name changed."""
    with pytest.raises(ImportError, match=why):
        exec(line)


@pytest.mark.parametrize(
    ("word", "given"),
    [
        (scenario.agent, {"wait": False}),
        (scenario.user, {"voice_style": "sad"}),
        (scenario.user, {"audio_effects": [lambda data: data]}),
    ],
)
def test_words_of_a_script_refuse_voice(word: Any, given: dict[str, Any]) -> None:
    """By name, where the script is written."""
    with pytest.raises(SettingsError, match=f"{next(iter(given))}=.*voice"):
        word("hi", **given)


def test_modules_of_agents_are_names_of_the_package() -> None:
    """As they are there, before anything of them was asked for."""
    found = [scenario.__getattr__(name) for name in ("judge_agent", "red_team_agent", "user_simulator_agent")]
    assert [vars(each)["__name__"].rpartition(".")[2] for each in found] == [
        "judge_agent",
        "red_team_agent",
        "user_simulator_agent",
    ]
