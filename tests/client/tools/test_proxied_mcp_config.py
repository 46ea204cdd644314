"""MCP configurations for the time of a run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmproxy.client.tools.agent_mcp_servers import (
    build_config_from_servers,
    insert_config,
    parse_tools_config,
    rewrite,
)
from llmproxy.errors import SettingsError

CONFIG: dict[str, Any] = {
    "mcpServers": {
        "files": {"command": "npx", "args": ["-y", "some-server", "."], "env": {"A": "b"}},
        "Docs Site": {"type": "http", "url": "https://docs.example.com/mcp?x=1", "headers": {"Authorization": "t"}},
        "old": {"type": "sse", "url": "https://old.example.com/sse"},
        "secret": {"url": "https://${HOST}/mcp"},
        "ours": {"command": "llmproxy", "args": ["mcp", "--", "x"]},
    },
    "other": 1,
}


def test_each_server_gets_what_stands_before_it() -> None:
    """Names, environments and headers stay; what cannot be placed stays as it is, and is said; the original is not touched."""
    before = json.dumps(CONFIG)
    config = parse_tools_config(before, "x.json")
    made, told = rewrite(config, "http://127.0.0.1:5/", "a b", ["python", "-m", "llmproxy"])
    assert config.upstreams == {"mcp.docs-site": "https://docs.example.com"}
    shim = ["-m", "llmproxy", "mcp", "--proxy", "http://127.0.0.1:5", "--session"]
    assert made["mcpServers"] == {
        **CONFIG["mcpServers"],
        "files": {
            "command": "python", "env": {"A": "b"},
            "args": [*shim, "a b", "--name", "mcp.files", "--", "npx", "-y", "some-server", "."],
        },
        "Docs Site": {
            **CONFIG["mcpServers"]["Docs Site"], "url": "http://127.0.0.1:5/s/a%20b/mcp.docs-site/mcp?x=1",
        },
    }  # fmt: skip
    assert (made["other"], json.dumps(config.values)) == (1, before)
    assert [line for line in told if "LEFT AS IT IS" in line] == [told[2], told[3]]


def test_no_two_servers_are_recorded_under_one_name() -> None:
    """Names that differ by case, by marks or by letters of other scripts: who shared a name would get the other's answers, or its requests."""
    names = ("a b", "a-b", "A-B", "工具", "数据")
    servers = {name: {"url": f"https://{n}.example.com/mcp"} for n, name in enumerate(names)}
    config = parse_tools_config(json.dumps({"mcpServers": servers}), "x.json")
    assert len(set(config.names.values())) == 5
    assert config.names["a-b"] == "mcp.a-b"
    made, _ = rewrite(config, "http://127.0.0.1:5", "s", ["llmproxy"])
    for name, each in servers.items():
        upstream = made["mcpServers"][name]["url"].split("/")[5]
        assert f"{config.upstreams[upstream]}/mcp" == each["url"]
    alone = [
        parse_tools_config(json.dumps({"mcpServers": {name: {"command": "x"}}}), "x.json") for name in ("工具", "数据")
    ]
    assert alone[0].names["工具"] != alone[1].names["数据"]


@pytest.mark.parametrize(
    ("server", "why"),
    [
        ({"command": "python", "args": "x"}, "`args` are no list of texts"),
        ({"command": 7}, "`command` is no text"),
        ({"type": "sse", "url": "http://h/sse"}, "type is 'sse'"),
        ({"url": "${X}/mcp"}, "no plain address"),
        ({}, "neither `command` nor `url`"),
        ([], "neither `command` nor `url`"),
    ],
)
def test_what_is_left_as_it_is_is_said_with_its_reason(server: object, why: str) -> None:
    """It runs for real in every replay: who reads that wants to know what to change."""
    config = parse_tools_config(json.dumps({"mcpServers": {"a": server}}), "x.json")
    made, (told,) = rewrite(config, "http://127.0.0.1:5", "s", ["llmproxy"])
    assert (made["mcpServers"]["a"], told.startswith("a: LEFT AS IT IS"), why in told) == (server, True, True), told


def test_servers_of_either_table_are_found() -> None:
    """An empty one hides none of the other; of two full ones nobody knows which the agent reads."""
    server = {"command": "npx", "args": []}
    config = parse_tools_config(json.dumps({"mcpServers": {}, "servers": {"a": server}}), "x.json")
    assert (config.table, list(config.servers)) == ("servers", ["a"])
    with pytest.raises(SettingsError, match="twice, in mcpServers and in servers"):
        parse_tools_config(json.dumps({"mcpServers": {"a": server}, "servers": {"a": server}}), "x.json")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"mcpServers": []}'])
def test_what_is_no_configuration_is_said(text: str) -> None:
    """With its name, and what one looks like."""
    with pytest.raises(SettingsError, match=r"--mcp-config x\.json") as error:
        parse_tools_config(text, "x.json")
    assert "mcpServers" in str(error.value)


@pytest.mark.parametrize(
    ("command", "made"),
    [
        (["agent", "--mcp", "x.json"], ("agent", "--mcp", "/tmp/c")),
        (["agent", "--mcp=x.json"], ("agent", "--mcp=/tmp/c")),
        (["/bin/claude", "-p", "hi"], ("/bin/claude", "-p", "hi", "--mcp-config", "/tmp/c", "--strict-mcp-config")),
    ],
)
def test_the_command_gets_the_copy(command: list[str], made: tuple[str, ...]) -> None:
    """Where it named the file; Claude Code takes it by an option of its own."""
    assert insert_config(command, "x.json", "/tmp/c") == made


def test_a_command_that_does_not_name_the_file_is_refused() -> None:
    """Its servers would run for real, and nobody would know."""
    with pytest.raises(SettingsError, match="does not name this file"):
        insert_config(["agent"], "x.json", "/tmp/c")


def test_a_server_at_the_proxy_s_own_address_is_left() -> None:
    """It would be its own upstream, and refused; the agent would go on without it."""
    servers = {
        "old": {"type": "http", "url": "http://localhost:8080/everything/mcp"},
        "new": {"type": "http", "url": "http://127.0.0.1:9000/mcp"},
    }
    config = build_config_from_servers(servers)
    made, told = rewrite(config, "http://127.0.0.1:8080", "x", ["llmproxy"])
    assert made["mcpServers"]["old"] == servers["old"]
    assert made["mcpServers"]["new"]["url"] == "http://127.0.0.1:8080/s/x/mcp.new/mcp"
    assert told[0].startswith("old: LEFT AS IT IS: its address is the proxy's own")
    assert config.list_upstreams("http://127.0.0.1:8080") == {"mcp.new": "http://127.0.0.1:9000"}
