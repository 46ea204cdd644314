"""Each program of the frameworks' pages is run as it stands there: recorded, and replayed with the provider dead; so is the agent of docs/agents.md."""

from __future__ import annotations

import asyncio
import re
import subprocess
from pathlib import Path

import pytest

from llmproxy import scenario
from llmproxy.scenario.agents import CommandAgent
from tests.coding.lab import DEAD, counted
from tests.provider import Provider, load, step
from tests.support import needed
from tests.support.forked import program
from tests.support.process import ROOT, clean_env

from .environments import ENVIRONMENTS, NODE, interpreter, starter

pytestmark = pytest.mark.sdk
PAGES = sorted(page for page in (ROOT / "docs").glob("*.md") if page.name != "agents.md")
PROGRAMS = [
    pytest.param(environment, program, id=f"{page.stem} ({environment})")
    for page in PAGES
    for environment, program in re.findall(
        r"^```(?:python|js) (\w+)\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    if environment in ENVIRONMENTS
]
ANSWER = "Yes: it rains in Oslo."
DIALOGUE = {
    "ordered": True,
    "steps": [
        {"user": "Do I need an umbrella in Oslo?", "results": 0}
        | {"call": [{"name": "get_weather", "arguments": {"city": "Oslo"}}]},
        {"results": 1, "tool_result": "rain, 7 degrees", "say": ANSWER},
    ],
}


@pytest.mark.parametrize(("environment", "program"), PROGRAMS)
def test_a_program_of_the_page_replays(
    environment: str, program: str, environments: dict[str, str], tmp_path: Path
) -> None:
    """Two calls recorded, two hits, the same answer; the provider is asked twice."""
    if environments[environment]:
        needed(environments[environment])
    file = tmp_path / ("agent.mjs" if environment == "node" else "agent.py")
    file.write_text(program, "utf-8")
    if environment == "node":
        (tmp_path / "node_modules").symlink_to(NODE / "node_modules")
    with Provider(load(DIALOGUE)) as up:
        recorded = _run(environment, file, up.url, "--mode", "record")
        assert (recorded.returncode, len(up.requests)) == (0, 2), recorded.stderr
    replayed = _run(environment, file, DEAD)
    assert replayed.returncode == 0, replayed.stderr
    assert (recorded.stdout.strip(), replayed.stdout.strip()) == (ANSWER, ANSWER)
    assert (counted(replayed.stderr, "hit"), counted(replayed.stderr, "miss")) == (2, 0)


def test_an_agent_in_node_answers_a_scenario(environments: dict[str, str], tmp_path: Path) -> None:
    """What docs/agents.md calls a whole agent is one."""
    if environments["node"]:
        needed(environments["node"])
    page = (ROOT / "docs/agents.md").read_text("utf-8")
    (agent,) = re.findall(r"^```js node\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "agent.mjs").write_text(agent, "utf-8")
    (tmp_path / "node_modules").symlink_to(NODE / "node_modules")
    with Provider([step(user="hi", say="hello")]) as up:
        env = {"OPENAI_BASE_URL": f"{up.url}/v1", "OPENAI_API_KEY": "sk-test"}
        command = CommandAgent([interpreter("node"), "agent.mjs"], cwd=tmp_path, env=env)
        script = [scenario.user("hi"), scenario.agent(), scenario.succeed()]
        ended = asyncio.run(scenario.run(name="node", description="", agents=[command], script=script))
    assert ended.messages[-1]["content"] == "hello"


def _run(environment: str, file: Path, upstream: str, *options: str) -> subprocess.CompletedProcess[str]:
    asked = [word for name in ("openai", "anthropic") for word in ("--upstream", f"{name}={upstream}")]
    keys = {"OPENAI_API_KEY": "sk-test", "ANTHROPIC_API_KEY": "sk-ant-test"} if options else {}
    command = [*program("llmproxy"), "run", *options, *asked, "--", starter(environment), str(file)]
    env = clean_env({"PYTHONPATH": str(ROOT), **keys})
    return subprocess.run(
        command, cwd=file.parent, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
