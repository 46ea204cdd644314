"""Agents from what a file says."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from llmproxy.errors import SuiteError
from llmproxy.scenario.agent_adapter import AgentAdapter
from llmproxy.scenario.agents import (
    CommandAgent,
    FunctionAgent,
    HttpAgent,
    OpenAIAgent,
    ServiceAgent,
    build_agent,
)
from llmproxy.scenario.agents.config import KEYS
from llmproxy.scenario.agents.function import ARGUMENTS
from llmproxy.scenario.agents.http import NAMES
from tests.scenario.agents_fixtures import given

URL = "http://127.0.0.1:8000/v1"


@pytest.mark.parametrize(
    ("mapping", "kind"),
    [
        ({"http": URL}, OpenAIAgent),
        ({"http": {"url": URL, "model": "mine", "stream": True}}, OpenAIAgent),
        ({"http": {"url": URL, "body": {"q": "$message"}, "reply": "$.a"}}, HttpAgent),
        ({"http": {"url": URL, "reply": "$.a", "timeout": 3, "headers": {"a": "b"}}}, HttpAgent),
        ({"url": URL}, ServiceAgent),
        ({"url": URL, "session": "mine", "propagates": "x-run", "body": {}}, ServiceAgent),
        ({"command": "node agent.mjs"}, CommandAgent),
        ({"command": ["node", "agent.mjs"]}, CommandAgent),
        ({"command": {"run": ["node", "agent.mjs"], "env": {"A": "b"}, "lines": False, "process": "conversation"}}, CommandAgent),
        ({"python": "module:agent"}, FunctionAgent),
        ({"python": {"call": "module:agent", "timeout": 1.5}}, FunctionAgent),
    ],
)  # fmt: skip
def test_a_kind_makes_its_agent(mapping: dict[str, Any], kind: type[AgentAdapter], tmp_path: Path) -> None:
    """In its short form and in its long one."""
    assert type(build_agent(mapping, tmp_path)) is kind


@pytest.mark.parametrize(
    ("mapping", "said"),
    [
        ({}, "none of the kinds"),
        ({"htpp": URL}, "none of the kinds of agents; did you mean 'http'"),
        ({"http": URL, "command": "x"}, "http and command are two agents"),
        ({"http": {"url": URL, "modle": "x"}}, "agent.http: there is no key 'modle'; did you mean 'model'"),
        ({"http": {"model": "x"}}, "agent.http: `url` is missing"),
        ({"http": {"url": URL, "session": "x"}}, "no key 'session'"),
        ({"http": {"url": URL, "timeout": "5"}}, "agent.http.timeout is '5'; it must be a number"),
        ({"http": {"url": URL, "timeout": True}}, "must be a number"),
        ({"http": {"url": URL, "timeout": 0}}, "must be a number"),
        ({"http": {"url": URL, "stream": "yes"}}, "must be true or false"),
        ({"http": {"url": URL, "headers": {"a": 1}}}, "must be a table of texts"),
        ({"http": {"url": URL, "model": "x", "reply": "$.a"}}, "'model' belongs to an OpenAI-compatible endpoint, 'reply'"),
        ({"http": 5}, "agent.http.url is 5"),
        ({"url": {"url": URL}}, "agent.url is a table; it must be a text.\nAn agent is one of"),
        ({"http": "127.0.0.1"}, "no address"),
        ({"url": URL, "sesion": "x"}, "agent: there is no key 'sesion'; did you mean 'session'"),
        ({"command": []}, "a text or a list of words"),
        ({"command": ["node", 5]}, "a text or a list of words"),
        ({"command": {"run": "x", "process": "for ever"}}, "process: 'for ever'"),
        ({"command": {"run": "x"}, "cwd": "y"}, "agent: there is no key 'cwd'"),
        ({"python": "module"}, "module:agent"),
        ("http://127.0.0.1", "no table"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused(mapping: Any, said: str, tmp_path: Path) -> None:
    """A suite's error, which names the key and what it may be."""
    with pytest.raises(SuiteError, match=said.replace("$", r"\$")):
        build_agent(mapping, tmp_path)


def test_any_text_takes_variables_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address, too; one that is not set is named, and so is how a variable is written."""
    monkeypatch.setenv("AGENT_URL", "http://127.0.0.1:7")
    monkeypatch.delenv("NO_SUCH_URL", raising=False)
    made = build_agent({"http": {"url": "${env:AGENT_URL}/v1", "headers": {"x-a": "${env:AGENT_URL}"}}}, tmp_path)
    assert str(getattr(made, "url", "")).startswith("http://127.0.0.1:7/v1")
    ran = build_agent({"command": {"run": ["sh", "${env:AGENT_URL}"], "env": {"A": "x${env:AGENT_URL}"}}}, tmp_path)
    assert "http://127.0.0.1:7" in str(vars(ran))
    with pytest.raises(SuiteError, match=r"agent.http.url: the environment has no variable NO_SUCH_URL"):
        build_agent({"http": "${env:NO_SUCH_URL}/v1"}, tmp_path)
    with pytest.raises(SuiteError, match=r"is written \$\{env:NAME\}"):
        build_agent({"http": "$AGENT_URL/v1"}, tmp_path)


def test_a_command_runs_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    script = "import os, sys, json\nfor _ in sys.stdin: print(json.dumps({'text': os.getcwd()}), flush=True)"

    async def where(mapping: dict[str, Any]) -> object:
        agent = build_agent({"command": {"run": [sys.executable, "-c", script], **mapping}}, tmp_path)
        try:
            return await agent.call(given())
        finally:
            await agent.close()

    assert asyncio.run(where({})) == str(tmp_path)
    assert asyncio.run(where({"cwd": "sub"})) == str(tmp_path / "sub")


async def test_a_callable_is_found_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "bot.py").write_text("def answer(message): return message[::-1]", "utf-8")

    assert (await build_agent({"python": "bot.py:answer"}, tmp_path).call(given("abc"))) == "cba"


def test_the_mapping_is_left_as_it_was(tmp_path: Path) -> None:
    """Two workers make their agents from one; a schema that editors check with knows every kind."""
    mapping = {"url": URL, "session": "x", "headers": {"a": "b"}}
    command = {"command": {"run": "x", "cwd": "y"}}
    for _ in range(2):
        build_agent(mapping, tmp_path)
        build_agent(command, tmp_path)
    assert mapping == {"url": URL, "session": "x", "headers": {"a": "b"}}
    assert set(KEYS) == {"http", "url", "command", "python"}
    assert all(KEYS.values())


def test_what_the_documentation_shows_is_understood(tmp_path: Path) -> None:
    """Every YAML block of docs/agents.md makes an agent, and every key and name is in it."""
    text = (Path(__file__).parents[3] / "docs" / "agents.md").read_text("utf-8")
    blocks = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 5
    for block in blocks:
        build_agent(yaml.safe_load(block)["agent"], tmp_path)
    keys = {key for table in KEYS.values() for key in table} - {"call"}
    assert [key for key in keys if key not in text] == []
    assert [name for name in NAMES if f"${name}" not in text] == []
    assert [name for name in ARGUMENTS if f"`{name}`" not in text] == []
