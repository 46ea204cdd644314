"""A sweep over scenarios: their assertions say what a fault makes of the agent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmproxy.client.fault_sweep_judging import FaultTrialFinding, FaultTrialOutcome, parse_fault_sweep_kinds
from llmproxy.suite.reading.project_settings import SuiteCommandOptions
from llmproxy.suite.run.run_context import SuiteRunContext
from llmproxy.suite.run.runner import SweepNotPossible, has_case_or_step_faults, sweep_faults_of_case
from tests.mitm.test_mcp_faults import tools
from tests.provider import Call, Provider, Reply, Script, Step
from tests.suite import rig
from tests.suite.run.test_faults import AGENT
from tests.support import near
from tests.support.process import python

SUITE = """name: t
agent: {{command: [{python}, {agent}, "{tries}"]}}
scenarios:
  - id: one
    steps: [{{chat: hi, response: {{eq: {expected}}}}}]
  - id: own
    faults: reset
    steps: [{{chat: hi}}]
"""


WITH_TOOL = """
import json, os, urllib.error, urllib.request

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))

def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with OPENER.open(request, timeout=60) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            raise OSError(error.code) from None

def use(base, params):
    for _ in range(TIMES):
        try:
            got = post(base.removesuffix("/v1") + "/tools/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        except OSError as error:
            said = str(error)
            continue
        said = got["result"]["content"][0]["text"] if "result" in got else got["error"]["message"]
        if "result" in got and not got["result"].get("isError"):
            break
    return said

def answer(message):
    base, messages = os.environ["OPENAI_BASE_URL"], [{"role": "user", "content": message}]
    while True:
        said = post(base + "/chat/completions", {"model": "gpt-4o", "messages": messages})["choices"][0]["message"]
        messages.append(said)
        if not said.get("tool_calls"):
            return said["content"]
        for call in said["tool_calls"]:
            result = use(base, {"name": call["function"]["name"], "arguments": json.loads(call["function"]["arguments"])})
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
"""
TURNS = (
    Step(Reply(call=(Call("echo", {"text": "milk"}),)), user="buy milk", times=None),
    Step(Reply("noted"), user="buy milk", tool_result="milk 1", times=None),
)
TOOL_SUITE = """name: t
agent: {{python: "{agent}.py:answer"}}
scenarios:
  - id: one
    steps: [{{chat: buy milk, response: {{eq: noted}}, serverTools: {{echo: 1}}}}]
"""


@pytest.fixture(scope="module")
def tape(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """Return a folder with agents and the URL of a proxy that replays them; provider and server of tools are dead."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "agent.py").write_text(AGENT, encoding="utf-8")
    for name, times in (("sound", "3"), ("hasty", "1")):
        (folder / f"{name}.py").write_text(WITH_TOOL.replace("TIMES", times), encoding="utf-8")
    with (
        tools() as server,
        Provider(Script((Step(Reply("hello"), user="hi", times=None), *TURNS), ordered=False)) as p,
        near("record", folder / "x.db", upstreams={"openai": p.url, "tools": server.url}) as px,
    ):
        assert rig.run(rig.cases_of(folder, suite(folder, 1))[:1], proxy=px.url).statuses == ["passed"]
        assert rig.run(rig.cases_of(folder, TOOL_SUITE.format(agent="sound")), proxy=px.url).statuses == ["passed"]
    with near("replay", folder / "x.db", upstreams={"tools": "http://127.0.0.1:9"}) as px:
        yield folder, px.url


def suite(folder: Path, tries: int, expected: str = "hello") -> str:
    """Return the suite with an agent that tries so often."""
    agent = json.dumps(str(folder / "agent.py"))
    return SUITE.format(python=json.dumps(python()), agent=agent, tries=tries, expected=expected)


def sweep(tape: tuple[Path, str], kinds: str, text: str) -> list[FaultTrialFinding]:
    folder, url = tape
    found: list[FaultTrialFinding] = []
    world = SuiteRunContext(options=SuiteCommandOptions(mode="replay", runs=1), proxy=url)
    try:
        asyncio.run(
            sweep_faults_of_case(
                world, rig.cases_of(folder, text)[0], parse_fault_sweep_kinds(kinds), lambda _: None, found
            )
        )
    finally:
        world.close()
    return found


def test_each_fault_is_told_by_what_became_of_the_scenario(tape: tuple[Path, str]) -> None:
    """It passes: recovered; its assertion fails: wrong but quiet; the agent crashes: gave up."""
    found = {each.trial.kind.name: each for each in sweep(tape, "sweep:http-500,length", suite(tape[0], 2))}
    assert (found["http-500"].outcome, found["http-500"].weak) == (FaultTrialOutcome.RECOVERED, False)
    assert (found["length"].outcome, found["length"].weak) == (FaultTrialOutcome.QUIET, True)
    assert "response.eq" in found["length"].detail
    (gave_up,) = sweep(tape, "sweep:http-500", suite(tape[0], 1))
    assert (gave_up.outcome, gave_up.weak) == (FaultTrialOutcome.GAVE_UP, True)
    assert gave_up.detail == "urllib.error.HTTPError: HTTP Error 500: Internal Server Error"


def test_a_command_that_crashes_breaks_where_giving_up_is_sound(tape: tuple[Path, str]) -> None:
    """Half of an answer leads it to an error that nobody catches: that is not an agent which says that it was filtered."""
    folder = tape[0] / "crashes"
    folder.mkdir()
    (folder / "agent.py").write_text(AGENT.replace('ask(text)["content"]', '{"hello": "hello"}[ask(text)["content"]]'))
    (found,) = sweep(tape, "sweep:content-filter", suite(folder, 1))
    assert (found.outcome, found.detail, found.weak) == (FaultTrialOutcome.GAVE_UP, "KeyError: 'hel'", True)


def test_calls_of_tools_are_swept_too(tape: tuple[Path, str]) -> None:
    """Each fault of a server's at the call of a tool: who asks again recovers; where a model is told the error instead, nobody knows."""
    kinds = "sweep:mcp-error,mcp-tool-error,mcp-gone"
    for agent, outcome in (("sound", FaultTrialOutcome.RECOVERED), ("hasty", FaultTrialOutcome.WENT_ON)):
        found = sweep(tape, kinds, TOOL_SUITE.format(agent=agent))
        kinds_again = ["mcp-error@1", "mcp-tool-error@1", "mcp-gone@1"]
        assert [(each.trial.label, each.outcome) for each in found] == [(each, outcome) for each in kinds_again]


def test_a_scenario_that_does_not_pass_undisturbed_is_none_to_sweep(tape: tuple[Path, str]) -> None:
    """Said with what it fails of; and one with faults of its own is never undisturbed."""
    with pytest.raises(SweepNotPossible, match=r"one: undisturbed it does not pass.*response\.eq"):
        sweep(tape, "sweep:http-500", suite(tape[0], 1, "goodbye"))
    folder, _ = tape
    assert [has_case_or_step_faults(case) for case in rig.cases_of(folder, suite(folder, 1))] == [False, True]
