"""`scripts/lab/compatibility`: where an agent became worse than its page says is found by names, not by places."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.provider import Reply, Seen, Step
from tests.provider.script import Play
from tests.support.process import ROOT

from .agents import AGENTS, ASK
from .sub_agents import PROMPTS, list_silent, script

PAGE = """# Agents

<!-- agents: scripts/lab/compatibility --write -->

On 2026-11-28:

|agent|version|in place|recorded|requests per miss|MCP|sub-agents|
|---|---|---|---|---|---|---|
|Codex|0.171.0|3,10|3,10|2, text hidden|-|-|
|Claude Code|2.1.332|3,10|no|1|yes|yes|

<!-- /agents -->
"""


@pytest.fixture(scope="module")
def lab() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts/lab/compatibility"))


@pytest.mark.parametrize(("name", "changed", "worse"), [
    ("Claude Code", {}, []),
    ("Claude Code", {"version": "3", "recorded": "3", "in place": "10,3"}, []),
    ("Claude Code", {"in place": "3,10 clock"}, []),
    ("Claude Code", {"in place": "3"}, ["Claude Code: in place: 3,10 -> 3"]),
    (
        "Claude Code",
        {"in place": "no", "MCP": "-"},
        ["Claude Code: in place: 3,10 -> no", "Claude Code: MCP: yes -> -"],
    ),
    ("Claude Code", {"sub-agents": "no"}, ["Claude Code: sub-agents: yes -> no"]),
    ("Claude Code", {"requests per miss": "2"}, ["Claude Code: requests per miss: 1 -> 2"]),
    (
        "Claude Code",
        {"requests per miss": "1, text hidden"},
        ["Claude Code: requests per miss: 1 -> 1, text hidden"],
    ),
    ("Claude Code", {"requests per miss": "-"}, ["Claude Code: requests per miss: 1 -> -"]),
    ("Codex", {"requests per miss": "1", "MCP": "no", "elsewhere": "no"}, []),
    (
        "Codex",
        {"requests per miss": "10, text hidden"},
        ["Codex: requests per miss: 2, text hidden -> 10, text hidden"],
    ),
    ("Qwen Code", {"recorded": "no"}, []),
])  # fmt: skip
def test_a_row_is_compared_with_the_same_agent_and_column(
    lab: dict[str, Any], name: str, changed: dict[str, str], worse: list[str]
) -> None:
    """Whatever the order of rows and columns is, and for what both have."""
    before = lab["read_page"](PAGE)
    assert sorted(lab["list_worse"](before, {name: {**before.get(name, {}), **changed}})) == sorted(worse)


@pytest.mark.parametrize("first", [0, 1])
def test_sub_agents_are_told_from_their_parent(first: int) -> None:
    """Whichever of them asks first; one that never asks itself is named, whatever its parent's history holds."""
    codex, play = AGENTS[1], Play(script(AGENTS[1], "/notes", 2))
    told = [*PROMPTS][:: -1 if first else 1]
    spawned = [{"type": "function_call_output", "output": f'{{"agent_id": "{name}"}}'} for name in "ab"]
    parents = [(ASK, ()), *((f"{ASK} {told}", [*spawned, *({},) * number]) for number in range(3))]
    below: list[tuple[str, Sequence[Mapping[str, str]]]] = [(text, ({},) * n) for n in range(2) for text in told]
    seen = [ask(text, results) for text, results in (*parents[:2], *below, *parents[2:])]
    replies = [play.next(each) for each in seen]
    calls = [
        json.dumps([call.arguments for call in each.answer.call])
        for each in replies if isinstance(each, Step) and isinstance(each.answer, Reply)
    ]  # fmt: skip
    assert [codex.name, len(calls), not play.unplayed()] == ["codex", 8, True]
    assert [told[0] in calls[0], '["a"]' in calls[1], PROMPTS[told[0]] in calls[2], '["b"]' in calls[6]] == [True] * 4
    assert list_silent(seen) == []
    assert list_silent([each for each in seen if told[0].encode() in each.body]) == told[1:]


def ask(text: str, results: Sequence[Mapping[str, str]]) -> Seen:
    given = [{"type": "function_call_output", "output": "", **each} for each in results]
    body = {"input": [{"role": "user", "content": text}, *given]}
    return Seen("POST", "/v1/responses", (), json.dumps(body).encode(), 1)


def test_the_clock_of_another_day_moves_the_day_and_names_who_asked(lab: dict[str, Any], tmp_path: Path) -> None:
    """Two days later for a program that loads it; waits stay as long as they are."""
    clock = lab["build_clock"](tmp_path)
    if clock is None or sys.platform != "linux":
        pytest.skip("no compiler, or no clock to load")
    told = {"LD_PRELOAD": str(clock), "LAB_CLOCK_SECONDS": "172800", "LAB_CLOCK_LOG": str(tmp_path / "log")}
    code = "import time, threading; a = time.time(); threading.Event().wait(0.01); print(a, time.time())"
    done = subprocess.run(
        [sys.executable, "-c", code], env=told, capture_output=True, text=True, check=True, timeout=60
    )
    first, last = map(float, done.stdout.split())
    assert 172_700 < first - time.time() < 172_900
    assert 0.009 < last - first < 30
    assert code in (tmp_path / "log").read_text()


def test_a_column_that_is_gone_is_worse_and_a_new_one_is_filled(lab: dict[str, Any]) -> None:
    """The page is written with the columns of today."""
    before = lab["read_page"](PAGE)
    assert lab["list_worse"](before, {"Codex": {"recorded": "3,10", "in place": "3,10"}}) == [
        "Codex: requests per miss: 2, text hidden -> -"
    ]
    after = lab["read_page"](lab["write_page"](PAGE, before, "2026-11-28"))
    assert list(after) == ["Claude Code", "Codex"]
    assert after["Codex"]["elsewhere"] == "-"
    assert after["Codex"] | before["Codex"] == after["Codex"]
    assert lab["list_worse"](before, after) == lab["list_worse"](after, before) == []
