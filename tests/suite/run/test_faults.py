"""Injected faults in a suite: of a scenario, of a step; a pass without them proves nothing, and is an error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmproxy.yaml_reader import SuiteProblemsError
from tests.provider import Provider, Reply, Script, Step
from tests.suite import rig
from tests.support import near
from tests.support.asking import ASK
from tests.support.process import python

AGENT = (
    f"{ASK}\n"
    """
def insist(text, tries):
    while True:
        try:
            return ask(text)["content"]
        except OSError:
            tries -= 1
            if not tries:
                raise

for line in sys.stdin:
    print(json.dumps({"text": insist(json.loads(line)["message"], int(sys.argv[1]))}), flush=True)
"""
)
STEPS = (Step(Reply("hello"), user="hi", times=None), Step(Reply("bye"), user="more", times=None))


@pytest.fixture(scope="module")
def tape(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """Return a folder with the agent, and a replay proxy over what its two messages recorded."""
    folder = tmp_path_factory.mktemp("faults")
    (folder / "agent.py").write_text(AGENT, encoding="utf-8")
    with (
        Provider(Script(STEPS, ordered=False)) as p,
        near("record", folder / "x.db", upstreams={"openai": p.url}) as px,
    ):
        assert play(folder, px.url, tries=1).statuses == ["passed"]
    with near("replay", folder / "x.db") as px:
        yield folder, px.url


def play(folder: Path, url: str, *, tries: int, scenario: object = None, step: object = None) -> rig.Result:
    """Run two messages with faults of the scenario, and of the second step."""
    whole = "" if scenario is None else f"    faults: {json.dumps(scenario)}\n"
    own = "" if step is None else f", faults: {json.dumps(step)}"
    agent = json.dumps({"command": [python(), str(folder / "agent.py"), str(tries)]})
    text = (
        f"name: t\nagent: {agent}\nscenarios:\n  - id: one\n{whole}    steps:\n"
        f"      - {{chat: hi, response: {{eq: hello}}}}\n      - {{chat: more, response: {{eq: bye}}{own}}}\n"
    )
    return rig.run(rig.cases_of(folder, text), proxy=url)


def met(found: rig.Result) -> list[str]:
    assert found.statuses == ["passed"], found.why
    return [label for label in found.told.finished[0].labels if "met fault" in label]


def test_an_agent_that_tries_again_passes(tape: tuple[Path, str]) -> None:
    """With faults at every call; each is told beside the result."""
    assert met(play(*tape, tries=2, scenario="http-503")) == [
        "step 1: call 1 met fault http-503 (rule 1)",
        "step 2: call 3 met fault http-503 (rule 1)",
    ]


def test_one_that_does_not_fails(tape: tuple[Path, str]) -> None:
    """The fault counts against the agent, not against its surroundings."""
    found = play(*tape, tries=1, scenario=[{"kind": "http-500", "call": 1}])
    assert found.statuses == ["agent_error"], found.why


def test_faults_of_a_step_are_of_that_step(tape: tuple[Path, str]) -> None:
    """The first message is let alone, the second meets them; a file of them lies beside the suite."""
    folder, url = tape
    (folder / "bad.yaml").write_text("[reset]")
    assert met(play(folder, url, tries=2, step="bad.yaml")) == ["step 2: call 2 met fault reset (rule 1)"]


def test_faults_of_a_scenario_go_on_behind_those_of_a_step(tape: tuple[Path, str], tmp_path: Path) -> None:
    """What struck before the step has struck, and its calls are counted while the step meets others; JUnit names each."""
    folder, url = tape
    assert met(play(folder, url, tries=2, scenario=[{"kind": "http-429", "call": 1}], step="http-500")) == [
        "step 1: call 1 met fault http-429 (rule 1)",
        "step 2: call 3 met fault http-500 (rule 1)",
    ]
    agent = json.dumps({"command": [python(), str(folder / "agent.py"), "2"]})
    text = (
        f"name: t\nagent: {agent}\nscenarios:\n  - id: one\n    faults: ['http-503@3']\n    steps:\n"
        "      - {chat: hi}\n      - {chat: more, faults: [reset]}\n      - {chat: hi}\n"
    )
    assert met(rig.run(rig.cases_of(folder, text), proxy=url)) == [
        "step 2: call 2 met fault reset (rule 1)",
        "step 3: call 4 met fault http-503 (rule 1)",
    ]


def test_a_pass_without_the_fault_is_an_error(tape: tuple[Path, str]) -> None:
    """Nothing was proved: of the scenario, and of a step; what chance may spare is no error."""
    found = play(*tape, tries=2, scenario="http-500@7")
    assert found.statuses == ["environment_error"]
    assert "met no call: no call came that is its number 7" in found.why
    found = play(*tape, tries=2, step=[{"kind": "http-500", "model": "o3"}])
    assert (found.statuses, "no recording has model o3; there is gpt-4o" in found.why) == (["environment_error"], True)
    assert play(*tape, tries=2, scenario=[{"kind": "http-500", "probability": 0.0001}]).statuses == ["passed"]


@pytest.mark.parametrize(("given", "said"), [
    ('faults: "http-50"', "there is no kind 'http-50' of fault"),
    ('faults: "flaky"', "there is no kind 'flaky' of fault"),
    ("faults: [{kind: reset, cal: 2}]", "unknown member 'cal'; did you mean 'call'"),
    ("faults: refused", "closes the proxy's port to everybody"),
    ("faults: 3", "no list of `faults`, but 3"),
    ("mock: [1]", "takes tools and what they return"),
    ("mock: {t: [1, 2]}", "of t: 1 is no rule"),
    ("mock: {t: $late.x}", "used before it is captured"),
    ("mock: {t: $nobody.x}", "nothing is called $nobody"),
])  # fmt: skip
def test_what_cannot_be_meant_is_a_problem_with_its_place(tmp_path: Path, given: str, said: str) -> None:
    """Of faults and of mocks, said before anything runs, with line and column."""
    steps = "steps: [{chat: x, created: [{entity: tasks, as: $late}]}]"
    text = f"name: t\nagent: {{python: a.py:b}}\nscenarios:\n  - id: one\n    {given}\n    {steps}\n"
    with pytest.raises(SuiteProblemsError) as caught:
        rig.cases_of(tmp_path, text)
    assert said in str(caught.value)
    assert "t.suite.yaml:5:" in str(caught.value)


@pytest.mark.parametrize("given", ["faults: reset", "mock: {t: 1}"])
def test_without_a_proxy_nothing_can_be_broken_or_mocked(tmp_path: Path, given: str) -> None:
    """An error, not a pass: with none, and for an agent whose traffic does not pass it."""
    agent = rig.echo(tmp_path)
    text = f"name: t\nagent: {agent}\nscenarios:\n  - id: one\n    {given}\n    steps: [{{chat: x}}]\n"
    found = rig.run(rig.cases_of(tmp_path, text))
    assert found.statuses == ["environment_error"]
    assert "has no proxy" in found.why
