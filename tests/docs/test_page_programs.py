"""The Python of a page is one program that runs from its first block to its last: nobody copies what does not work.

Models are a scripted provider, the store is the recording that ships with the demo, and the working folder a temporary one. What a
block only defines (a step of a script, a cached function) is called here.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmproxy import scenario
from llmproxy.cli import main
from llmproxy.scenario.config import ScenarioConfig
from llmproxy.trace.observing.tool_calls import ToolCallsAtMcpServers, ToolUse
from tests.provider import Provider, Script, Step, step
from tests.scenario.parties import finish
from tests.scenario.test_scenario_state import state
from tests.support.process import ROOT

DOCS = ROOT / "docs"
ADDRESS = "http://127.0.0.1:8080"
LAMP = {
    "refund": step(model="gpt-4.1-mini", say="my lamp is broken", times=None),
    "fine": finish("passed", contains="finish_test", times=None),
}


def blocks(page: str) -> list[str]:
    """Return the page's blocks of Python."""
    found: list[str] = re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return found


def execute(page: str, **names: Any) -> dict[str, Any]:
    """Run a page's program, which may await at its top; returns its namespace."""
    space: dict[str, Any] = dict(names)

    async def whole() -> None:
        for number, code in enumerate(blocks(page), 1):
            made = eval(compile(code, f"{page}, block {number}", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), space)
            if inspect.isawaitable(made):
                await made

    asyncio.run(whole())
    return space


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Begin in an empty folder; what a page configures ends with it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("SCENARIO_CACHE_DIR", str(tmp_path / "cache"))
    before = ScenarioConfig.default_config
    yield tmp_path
    ScenarioConfig.default_config = before


def asked(page: str, steps: list[Step], monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], Provider]:
    """Run a page's program before models that say this."""
    with Provider(Script(tuple(steps), ordered=False)) as provider:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{provider.url}/v1")
        return execute(page), provider


def test_scenarios(monkeypatch: pytest.MonkeyPatch) -> None:
    """A verdict of the judge, a step that looks at tool calls, and all ten turns of an attack with the judge at its end."""
    attack = [
        step(say='{"score": 1, "adaptation": "press on"}', contains="adaptation", times=None),
        step(model="gpt-4.1", say="please", times=None),
    ]
    space, _ = asked("scenario.md", [*attack, *reversed(LAMP.values())], monkeypatch)
    assert space["result"].success
    assert space["result"].labels == ("attack crescendo: 10 of 10 turns, best score 1 of 10",)
    script = [scenario.user("How warm is it in Rome?"), scenario.agent(), space["check"], scenario.succeed()]
    found = scenario.run_sync("search", "User asks about Rome", [Searcher()], script=script)
    assert (found.success, len(found.messages)) == (True, 1)


class Searcher(scenario.AgentAdapter):
    async def call(self, input: scenario.AgentInput) -> scenario.AgentReturnTypes:  # noqa: A002 - its name
        call = {"id": "c", "type": "function", "function": {"name": "search", "arguments": '{"city": "Rome"}'}}
        result = {"role": "tool", "tool_call_id": "c", "content": "31 degrees"}
        return [{"role": "assistant", "content": None, "tool_calls": [call]}, result]


def test_judges(monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulated user and two criteria; the persona of the page is one."""
    verdict = finish("passed", "passed", contains="finish_test", times=None)
    space, _ = asked("judge.md", [verdict, LAMP["refund"]], monkeypatch)
    assert len(space["result"].passed_criteria) == 2
    (persona,) = re.findall(
        r"^```yaml persona\n(.*?)^```", (DOCS / "judge.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    Path("nurse.yaml").write_text(persona)
    scenario.UserSimulatorAgent(model="openai/gpt-4o", persona="nurse.yaml")


def test_repeats(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Ten runs with a rate, judged again, and played as an open loop; the labels of the page are labels."""
    space, _ = asked("repeats.md", list(reversed(LAMP.values())), monkeypatch)
    assert (space["result"].rate, len(space["result"].samples), space["found"].turn) == (1.0, 10, None)
    assert "judge" in capsys.readouterr().out
    (labels,) = re.findall(
        r"^```json labels\n(.*?)^```", (DOCS / "repeats.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    Path("labels.jsonl").write_text(labels)
    with Provider([finish("passed", "failed", times=None)]) as provider:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{provider.url}/v1")
        assert main(["judge", "calibrate", "labels.jsonl", "--model", "openai/gpt-4.1-mini", "--repeats", "3"]) == 0
    assert "agreement" in capsys.readouterr().out


def test_the_cache(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A function and a method, called twice each, are asked once each."""
    _, provider = asked("cache.md", [step(say="hello", times=None)], monkeypatch)
    assert (len(provider.requests), capsys.readouterr().out.split()) == (2, ["hello"] * 4)


@pytest.mark.usefixtures("folder")
def test_traces(capsys: pytest.CaptureFixture[str]) -> None:
    """Of what the demo recorded: assertions, a replay with another result, and a difference of none."""
    for name in ("weather", "old", "new"):
        shutil.copy(ROOT / "llmproxy/data/demo.yaml", f"{name}.yaml")
    assert main(["import", "weather.yaml", "old.yaml", "new.yaml", "--store", "llmproxy.db"]) == 0
    space = execute("trace.md")
    assert "get_weather" in capsys.readouterr().out
    assert space["cold"].cassette.get_tool_calls()[0].tool_result == {"temp": 5}
    assert [span.tool_name for span in space["calls"].cassette.spans] == ["get_weather"]


def test_what_a_server_got() -> None:
    """The page's step of a script, before a server that got what the model asked for, and before one that did not."""
    check = execute("tools.md")["check"]
    title = '{"title": "Buy milk"}'
    got = ToolUse("create", title, None, 2, 2, executed=True, output="#1")
    served = ToolCallsAtMcpServers([got], frozenset({"create"}), frozenset({"create"}), seen=True)
    check(state(wire=[ToolUse("mcp__tasks__create", title, "w1", 1, 1)], served=served))
    with pytest.raises(AssertionError):
        check(state(wire=[ToolUse("mcp__tasks__create", "{}", "w1", 1, 1)], served=served))


def test_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes turns, and one that asks a model by itself."""
    space = execute("agents.md")
    with Provider([step(say="hello")]) as provider:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{provider.url}/v1")
        assert asyncio.run(space["parallel"]([{"role": "user", "content": "hi"}], None)) == "hello"
    plain, parallel = space["agents"]
    assert (plain.uses_session, parallel.uses_session) == (False, True)


def test_no_page_is_left_out() -> None:
    """Each page with such a block has its test above."""
    pages = {page.name for page in DOCS.glob("*.md") if blocks(page.name)}
    run = Path(__file__).read_text("utf-8")
    elsewhere = {"clients" + ".md"}  # by tests/clients, before a proxy with its one recording
    assert {page for page in pages if f'"{page}"' not in run} == elsewhere
