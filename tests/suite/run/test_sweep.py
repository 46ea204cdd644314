"""A sweep over scenarios: their assertions say what a fault makes of the agent."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmproxy.client.sweep import Outcome, SweepFinding, asked_kinds
from llmproxy.suite.choose.options import Options
from llmproxy.suite.run.sweep import NoScenarioSweep, has_faults, sweep_case
from llmproxy.suite.run.world import World
from tests.provider import Provider, Reply, Script, Step
from tests.suite import rig
from tests.suite.run.acting.test_faults import AGENT
from tests.support import near

SUITE = """name: t
agent: {{command: [{python}, {agent}, "{tries}"]}}
scenarios:
  - id: one
    steps: [{{chat: hi, response: {{eq: {expected}}}}}]
  - id: own
    faults: reset
    steps: [{{chat: hi}}]
"""


@pytest.fixture(scope="module")
def tape(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """Return a folder with an agent and the URL of a proxy that replays it."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "agent.py").write_text(AGENT, encoding="utf-8")
    with (
        Provider(Script((Step(Reply("hello"), user="hi", times=None),))) as p,
        near("record", folder / "x.db", upstreams={"openai": p.url}) as px,
    ):
        assert rig.run(rig.cases_of(folder, suite(folder, 1))[:1], proxy=px.url).statuses == ["passed"]
    with near("replay", folder / "x.db") as px:
        yield folder, px.url


def suite(folder: Path, tries: int, expected: str = "hello") -> str:
    """Return the suite with an agent that tries so often."""
    agent = json.dumps(str(folder / "agent.py"))
    return SUITE.format(python=json.dumps(sys.executable), agent=agent, tries=tries, expected=expected)


def sweep(tape: tuple[Path, str], kinds: str, tries: int, expected: str = "hello") -> list[SweepFinding]:
    """Sweep the first scenario."""
    folder, url = tape
    found: list[SweepFinding] = []
    case = rig.cases_of(folder, suite(folder, tries, expected))[0]
    world = World(options=Options(mode="replay", runs=1), proxy=url)
    try:
        asyncio.run(sweep_case(world, case, asked_kinds(kinds), lambda _: None, found))
    finally:
        world.close()
    return found


def test_each_fault_is_told_by_what_became_of_the_scenario(tape: tuple[Path, str]) -> None:
    """It passes: recovered; its assertion fails: wrong but quiet; the agent crashes: gave up."""
    found = {each.trial.kind.name: each for each in sweep(tape, "sweep:http-500,length", tries=2)}
    assert (found["http-500"].outcome, found["http-500"].weak) == (Outcome.RECOVERED, False)
    assert (found["length"].outcome, found["length"].weak) == (Outcome.QUIET, True)
    assert "response.eq" in found["length"].detail
    (gave_up,) = sweep(tape, "sweep:http-500", tries=1)
    assert (gave_up.outcome, gave_up.weak) == (Outcome.GAVE_UP, True)


def test_a_scenario_that_does_not_pass_undisturbed_is_none_to_sweep(tape: tuple[Path, str]) -> None:
    """Said with what it fails of; and one with faults of its own is never undisturbed."""
    with pytest.raises(NoScenarioSweep, match=r"one: undisturbed it does not pass.*response\.eq"):
        sweep(tape, "sweep:http-500", tries=1, expected="goodbye")
    folder, _ = tape
    assert [has_faults(case) for case in rig.cases_of(folder, suite(folder, 1))] == [False, True]
