"""A rule that met no call says why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llmproxy.core.engine.fault_injection import explain_idle
from llmproxy.core.faults import load_faults, read_faults
from tests.core.faults.cases import answer, call

RECORDED = [
    call(key="a", recording=1, answer=lambda: answer(b"{}"), tools=lambda: ("get_weather",)),
    call(key="b", recording=2, model="o3", answer=lambda: answer(b"{}")),
]


@pytest.mark.parametrize(("rule", "said"), [
    ({"model": "gpt-5"}, "no recording has model gpt-5; there is gpt-4o, o3"),
    ({"tool": "send"}, "no recording has tool send; there is get_weather"),
    ({"provider": "anthropic"}, "no recording has provider anthropic; there is openai"),
    ({"transport": "websocket"}, "no recording has transport websocket; there is http"),
    ({"channel": "http"}, "no recording has channel http; there is llm"),
    ({"recording": 9}, "there is no recording #9 in this cassette"),
    ({"model": "o3", "tool": "get_weather"}, "no recording is chosen by all of its words together"),
    ({"call": 7}, "no call came that is its number 7"),
    ({"probability": 0.1}, "a probability of 0.1 spared every call that came"),
    ({}, "none of the calls that it chooses came"),
])  # fmt: skip
def test_why_it_struck_nothing(rule: dict[str, Any], said: str) -> None:
    """The first word that chooses nothing is named, with what there is."""
    text = explain_idle(read_faults([{"kind": "reset", **rule}]), {}, RECORDED, came=2)[1]
    assert text.startswith("fault reset (rule 1) met no call: ")
    assert said in text


def test_what_struck_is_not_told() -> None:
    """Only rules that did nothing are; without a call, or a recording, that is why."""
    faults = read_faults(["reset", "http-500"])
    assert len(explain_idle(faults, {1: 3}, RECORDED, came=3)) == 1
    assert "no call came" in explain_idle(faults, {}, RECORDED, came=0)[1]
    assert (
        "nothing is recorded to compare it with; hosts that are no model provider's"
        in explain_idle(faults, {}, [], came=1)[1]
    )


def test_of_a_preset_only_what_the_recording_could_have_met_is_told() -> None:
    """Nobody chose its rule for servers of tools, where none is recorded."""
    faults = load_faults("flaky-network", Path())
    told = explain_idle(faults, {}, RECORDED, came=2)
    assert len(told) == len(faults.rules) - 1
    assert not [line for line in told.values() if "mcp" in line]
