"""`llmproxy mcp serve` as a real process, asked by the SDK's own client over stdio."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from llmproxy.cli.mcp import choose_store_for_llmproxy_mcp
from llmproxy.client.tools.mcp_server import (
    LONGEST,
    TOOLS,
    LlmproxyMcpServerTool,
    McpServeOptions,
    build_llmproxy_arguments,
    list_own_mcp_tools,
    shorten_output,
)
from llmproxy.core.store.file.connect import build_missing_store_file_hint
from llmproxy.errors import SettingsError
from tests.support.forked import program
from tests.support.process import clean_env
from tests.support.recordings import filled

READS = ["list", "show", "why", "diff", "learn"]


def ask(
    cwd: Path, words: Sequence[str], *calls: tuple[str, dict[str, Any]]
) -> tuple[list[str], list[tuple[bool, str]]]:
    """Start it, and call tools: their names, and (failed, text) of each call."""
    from mcp import ClientSession, StdioServerParameters, types
    from mcp.client.stdio import stdio_client

    async def use() -> tuple[list[str], list[tuple[bool, str]]]:
        command, *args = program("llmproxy")
        server = StdioServerParameters(command=command, args=[*args, "mcp", "serve", *words], env=clean_env(), cwd=cwd)
        with open(os.devnull, "w", encoding="utf-8") as err:  # noqa: ASYNC230, PTH123 - a sink
            async with stdio_client(server, errlog=err) as pipes, ClientSession(*pipes) as client:
                await client.initialize()
                names = [each.name for each in (await client.list_tools()).tools]
                got = []
                for name, arguments in calls:
                    answer = await client.call_tool(name, arguments)
                    text = "".join(each.text for each in answer.content if isinstance(each, types.TextContent))
                    got.append((answer.isError, text))
                return names, got

    return asyncio.run(use())


def test_recordings_are_read_by_a_coding_agent_and_changed_by_none(tmp_path: Path) -> None:
    """What the commands say is what the tools say; what cannot be done is a tool error with our text; the store stays as it is."""
    filled(tmp_path / "x.db")
    before = (tmp_path / "x.db").read_bytes()
    names, got = ask(
        tmp_path, ["x.db"],
        ("list", {}), ("show", {"what": "2"}), ("diff", {"old": "1", "new": "2"}), ("why", {}),
        ("show", {"what": "99"}), ("show", {"what": "--raw"}), ("diff", {"old": "1"}), ("list", {"colour": "red"}),
        ("show", {"what": "9" * 19}), ("learn", {"cassette": "none"}), ("list", {"limit": 10**30}),
        ("nothing", {}), ("replay", {}), ("fork", {"cassette": "default"}),
    )  # fmt: skip
    assert names == READS
    assert [failed for failed, _ in got] == [False] * 4 + [True] * 10
    texts = [text for _, text in got]
    assert "chat.completions" in texts[0]
    assert "answer 1" in texts[1]
    assert all(text.startswith("llmproxy: ") for text in texts[4:])
    assert "99" in texts[4]
    assert "no name of a cassette" in texts[5]
    assert f"There is no interaction {'9' * 19}" in texts[8]
    assert "there is no cassette none" in texts[9]
    assert "limit of list cannot be 1000000" in texts[10]
    assert texts[11] == f"llmproxy: there is no tool 'nothing'. There is: {', '.join(READS)}."
    assert "llmproxy mcp serve ... -- AGENT" in texts[12]
    assert "llmproxy mcp serve ... --write" in texts[13]
    assert (tmp_path / "x.db").read_bytes() == before


def test_with_write_and_an_agent_it_forks_and_replays(tmp_path: Path) -> None:
    """The agent's command is the user's, and what it leaves behind is not waited for. Where nothing is recorded, that is said; names are checked."""
    filled(tmp_path / "x.db")
    leaves = "import subprocess, sys; left = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(900)'])"
    names, (forked, replayed, nothing, unnamed, option) = ask(
        tmp_path,
        ["default", "--store", "x.db", "--write", "--", sys.executable, "-c", f"{leaves}; print('I ran', left.pid)"],
        ("fork", {"at": 2, "name": "shorter"}), ("replay", {}), ("replay", {"cassette": "none"}),
        ("fork", {"name": "\n"}), ("fork", {"name": "-x"}),
    )  # fmt: skip
    assert set(names) == {each.name for each in TOOLS}
    assert forked == (False, forked[1])
    assert "shorter: 2 interactions" in forked[1]
    found = re.search(r"I ran (\d+)", replayed[1])
    assert found, replayed
    os.kill(int(found[1]), signal.SIGKILL)
    assert [unnamed, option] == [
        (True, "llmproxy: '\\n' is not a cassette name: printable text without '#'."),
        (True, "llmproxy: '-x' is no name of a cassette, and no number.\nThe tool `list` has both."),
    ]
    assert nothing[0]
    assert "nothing is recorded in cassette 'none'" in nothing[1]


@pytest.mark.parametrize(("name", "asked", "words"), [
    ("list", {"channel": "mcp", "limit": 3}, ["ls", "--store=x.db", "c", "--limit=3", "--channel=mcp"]),
    ("show", {}, ["show", "--store=x.db", "c"]),
    ("why", {"number": 2}, ["why", "--store=x.db", "-n", "2"]),
    ("learn", {"cassette": "d"}, ["learn", "--store=x.db", "d"]),
    ("learn_accept", {"take": ["a"]}, ["learn", "--store=x.db", "c", "--take=a"]),
    ("learn_accept", {}, ["learn", "--store=x.db", "c", "--accept"]),
    ("fork", {"at": 2}, ["fork", "--store=x.db", "c", "--at=2"]),
    ("replay", {"tool_results": {"t#2": "-x"}, "answers": {"0": "y"}},
     ["replay", "--store=x.db", "--cassette=c", "--override-tool=t#2=-x", "--override-llm=0=y", "--", "a", "-b"]),
])  # fmt: skip
def test_each_tool_is_a_command(name: str, asked: dict[str, Any], words: list[str]) -> None:
    """The cassette that was typed is meant where none is named."""
    serving = McpServeOptions("x.db", "c", write=True, agent=("a", "-b"))
    (tool,) = (each for each in list_own_mcp_tools(serving) if each.name == name)
    assert build_llmproxy_arguments(tool, asked, serving) == words


@pytest.mark.parametrize(("there", "found"), [
    ((), ("", "")),
    (("llmproxy.db",), ("", "")),
    ((".llmproxy/llmproxy.db",), (".llmproxy/llmproxy.db", "")),
    (("llmproxy.db", ".llmproxy/llmproxy.db"), ("", ".llmproxy/llmproxy.db")),
    (("pyproject.toml", ".llmproxy/llmproxy.db"), ("", "")),
])  # fmt: skip
def test_a_suite_s_recordings_are_found_where_they_are_alone(
    there: Sequence[str], found: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who set a store has said which; two stores are told of. Commands that find none at its place name the suites' too."""
    monkeypatch.chdir(tmp_path)
    for name in there:
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text('[tool.llmproxy]\nstore = "mine.db"\n' if name.endswith(".toml") else "")
    assert choose_store_for_llmproxy_mcp(tmp_path) == found
    advised = build_missing_store_file_hint(tmp_path / "llmproxy.db")
    assert advised.endswith(" --store .llmproxy/llmproxy.db") == (".llmproxy/llmproxy.db" in there), advised


def test_an_agent_s_servers_are_left_out_of_its_replays() -> None:
    """By the configuration that was typed beside it."""
    serving = McpServeOptions(agent=("a",), options=(("--mcp-config", "tools.json"),))
    (tool,) = (each for each in list_own_mcp_tools(serving) if each.runs_agent)
    assert build_llmproxy_arguments(tool, {}, serving) == ["replay", "--mcp-config=tools.json", "--", "a"]


def test_no_argument_becomes_an_option() -> None:
    """A model may have read it in a recording."""
    serving = McpServeOptions(write=True, agent=("a",))
    for tool in list_own_mcp_tools(serving):
        for each in set(tool.properties) & {"cassette", "what", "old"}:
            with pytest.raises(SettingsError, match="no name of a cassette"):
                build_llmproxy_arguments(tool, {**dict.fromkeys(tool.required, "1"), each: "--store=/etc/x"}, serving)


ODD: list[Any] = [
    True, -1, 10**30, 10**5000, 1.5, float("inf"), "a\0b", "\ud800", "x" * 200_000, [], {}, [[]], {"a": None}, ["a\0"], {"a\0": "b"}, {"x": 5},
    {"x": "y" * 200_000}, {"x": "\ud800"},
]  # fmt: skip
SOUND: dict[str, list[Any]] = {"string": [], "integer": [], "object": [{}], "array": [[]]}


@pytest.mark.parametrize("tool", TOOLS, ids=lambda each: each.name)
def test_what_is_no_argument_is_refused_in_words(tool: LlmproxyMcpServerTool) -> None:
    """Whatever a client sends for an argument: it is of the schema's type and can be a word of a command, or no command is run."""
    serving = McpServeOptions("s.db", "given", write=True, agent=("agent",))
    whole: dict[str, Any] = dict.fromkeys(tool.required, "c")
    for name, schema in tool.properties.items():
        for odd in ODD:
            if odd not in SOUND[schema["type"]]:
                with pytest.raises(SettingsError, match=f"{name} of {tool.name} cannot be"):
                    build_llmproxy_arguments(tool, {**whole, name: odd}, serving)
        sound = SOUND[schema["type"]]
        plain = build_llmproxy_arguments(tool, whole, serving)
        assert [build_llmproxy_arguments(tool, {**whole, name: each}, serving) for each in sound] == [plain] * len(
            sound
        )
    with pytest.raises(SettingsError, match="not 'zzz'"):
        build_llmproxy_arguments(tool, {**whole, "zzz": 1}, serving)
    for name in tool.required:
        with pytest.raises(SettingsError, match=f"{name} is missing"):
            build_llmproxy_arguments(tool, {**whole, name: None}, serving)


def test_what_is_too_long_for_a_model_is_cut_in_the_middle() -> None:
    assert shorten_output("x" * LONGEST, "show") == "x" * LONGEST
    cut = shorten_output("a" * LONGEST + "b" * 1234, "show")
    assert "1,234 characters left out" in cut
    assert (cut[0], cut[-1], len(cut) < LONGEST + 200) == ("a", "b", True)
