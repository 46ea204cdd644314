"""Servers of known coding agents: found where the agents look, placed for one run, and no file of the user's written."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from llmproxy.client.tools.agent_mcp_servers import (
    FoundMcpServers,
    find_agent_mcp_servers,
    make_parsed_mcp_config,
    parse_mcp_config,
    replace_mcp_config_path_in_command,
    rewrite_mcp_config,
    write_mcp_config_copy,
)
from llmproxy.errors import SettingsError

A: dict[str, Any] = {"command": "npx", "args": ["a"], "env": {"K": "v"}}
B: dict[str, Any] = {"type": "http", "url": "https://b.example/mcp"}


def write(path: Path, value: object) -> None:
    """Write JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def placed(found: FoundMcpServers | None, folder: Path) -> tuple[tuple[str, ...], dict[str, Any], list[str]]:
    """Return the command, the configuration that it names, and what is said."""
    assert found is not None
    made, told = rewrite_mcp_config(found.config, "http://127.0.0.1:5", "s", ["llmproxy"])
    command = found.place(made, folder)
    copies = [json.loads(path.read_text()) for path in map(Path, command) if path.is_file()]
    return command, copies[0]["mcpServers"] if copies else {}, [*told, *found.notes]


def find(command: str, home: Path, cwd: Path, asked: str | None = None) -> FoundMcpServers | None:
    return find_agent_mcp_servers(asked, command.split(), {"HOME": str(home)}, cwd)


def test_claude_gets_a_copy_of_all_its_servers_and_no_other(tmp_path: Path) -> None:
    """The user's, the folder's that somebody approved, those of its option: by one option of ours in their place."""
    home, cwd = tmp_path / "home", tmp_path / "w"
    write(home / ".claude.json", {"mcpServers": {"mine": A}, "projects": {str(cwd): {"enabledMcpjsonServers": ["ok"]}}})
    write(cwd / ".mcp.json", {"mcpServers": {"ok": B, "strange": A}})
    write(cwd / "more.json", {"mcpServers": {"third": A}})
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    command, servers, told = placed(find("/bin/claude -p hi --mcp-config more.json --model m", home, cwd), tmp_path)
    assert command == (
        "/bin/claude", "--mcp-config", str(tmp_path / "mcp.json"), "--strict-mcp-config", "-p", "hi", "--model", "m",
    )  # fmt: skip
    assert set(servers) == {"mine", "ok", "third"}
    assert servers["mine"]["command"] == "llmproxy"
    assert servers["ok"]["url"] == "http://127.0.0.1:5/s/s/mcp.ok/mcp"
    assert [line for line in told if line.startswith("strange: LEFT OUT")]
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize(("settings", "names"), [
    ({}, set()),
    ({"enableAllProjectMcpServers": True}, {"a", "b"}),
    ({"enabledMcpjsonServers": ["b"]}, {"b"}),
    ({"enableAllProjectMcpServers": True, "disabledMcpjsonServers": ["a"]}, {"b"}),
])  # fmt: skip
def test_servers_of_a_repository_need_somebody_s_approval(tmp_path: Path, settings: object, names: set[str]) -> None:
    """A file that came with a clone starts nothing that claude itself would not have started."""
    write(tmp_path / ".mcp.json", {"mcpServers": {"a": A, "b": B}})
    write(tmp_path / ".claude" / "settings.local.json", settings)
    found = find("claude -p hi", tmp_path / "home", tmp_path)
    assert (set(found.config.servers) if found else set()) == names


def test_a_strict_claude_keeps_to_its_option(tmp_path: Path) -> None:
    """As a file, as text, by `=`; what stands behind two dashes is no option."""
    write(tmp_path / ".claude.json", {"mcpServers": {"mine": A}})
    write(tmp_path / "x.json", {"mcpServers": {"x": A}})
    text = json.dumps({"mcpServers": {"y": B}}).replace(" ", "")
    found = find(f"claude --strict-mcp-config --mcp-config x.json {text} -p -- --mcp-config z", tmp_path, tmp_path)
    command, servers, _ = placed(found, tmp_path)
    assert set(servers) == {"x", "y"}
    assert command[3:] == ("--strict-mcp-config", "-p", "--", "--mcp-config", "z")
    found = find("claude --mcp-config=x.json --strict-mcp-config", tmp_path, tmp_path)
    assert set(placed(found, tmp_path)[1]) == {"x"}


def test_codex_gets_overrides(tmp_path: Path) -> None:
    """Its file stays; what is off, or has a name that no override can say, is left."""
    config = tmp_path / ".codex" / "config.toml"
    config.parent.mkdir()
    config.write_text(
        '[mcp_servers.files]\ncommand = "npx"\nargs = ["-y", "a \\"b\\""]\n[mcp_servers.files.env]\nK = "v"\n'
        '[mcp_servers.docs]\nurl = "https://b.example/mcp"\nbearer_token_env_var = "T"\n'
        '[mcp_servers.off]\ncommand = "x"\nenabled = false\n[mcp_servers."a.b"]\ncommand = "x"\n'
    )
    before = config.read_bytes()
    command, _, told = placed(find("codex exec hi", tmp_path, tmp_path), tmp_path)
    assert (command[0], command[-2:]) == ("codex", ("exec", "hi"))
    said = tomllib.loads("\n".join(command[2:-2:2]))["mcp_servers"]
    assert set(command[1:-2:2]) == {"-c"}
    assert said["docs"] == {"url": "http://127.0.0.1:5/s/s/mcp.docs/mcp"}
    assert said["files"]["command"] == "llmproxy"
    assert said["files"]["args"][-4:] == ["--", "npx", "-y", 'a "b"']
    assert set(said) == {"docs", "files"}
    (left,) = (line for line in told if "LEFT AS IT IS" in line)
    assert left == "a.b: LEFT AS IT IS: a name that codex takes by no -c"
    assert config.read_bytes() == before


def test_an_agent_in_a_shell_s_words_gets_its_words_there(tmp_path: Path) -> None:
    """Behind its name, quoted, before its own; what the shell expands is left to the shell."""
    write(tmp_path / ".claude.json", {"mcpServers": {"mine": A}})
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex" / "config.toml").write_text('[mcp_servers.files]\ncommand = "npx"\n')

    def inside(*command: str) -> tuple[str, ...]:
        found = find_agent_mcp_servers(None, command, {"HOME": str(tmp_path)}, tmp_path)
        return placed(found, tmp_path)[0] if found is not None else ()

    text = 'exec codex exec -c base_url="$OPENAI_BASE_URL" "say \'hi\'"'
    *shell, made, name = inside("sh", "-c", text, "x")
    assert (shell, name) == (["sh", "-c"], "x")
    assert made.startswith("exec codex -c 'mcp_servers.files.command=\"llmproxy\"' -c ")
    assert made.endswith(text.removeprefix("exec codex"))
    assert inside("bash", "-lc", 'A=1 "claude" -p hi | tee x')[2].endswith(" --strict-mcp-config -p hi | tee x")
    for other in ("cd x && codex exec hi", "HOME=/x codex exec hi", "codex mcp list", "codex 'exec", "echo codex"):
        assert inside("sh", "-c", other) == ()
    typed = find_agent_mcp_servers(None, ("sh", "-c", "claude --mcp-config x.json"), {"HOME": str(tmp_path)}, tmp_path)
    assert placed(typed, tmp_path)[2] == [
        "claude: LEFT AS IT IS: --mcp-config in a shell's words; let `llmproxy run` start it without the shell"
    ]


@pytest.mark.parametrize(
    "command", ["claude mcp list", "codex mcp list", "python agent.py", "claude -p hi", "codex exec"]
)
def test_who_has_no_servers_is_left_alone(tmp_path: Path, command: str) -> None:
    """Other programs, commands that run no agent, agents without servers, files that nobody can read."""
    for name in (".claude.json", ".codex/config.toml"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("{" if "-p" in command or "exec" in command else '{"mcpServers": {"a": {"command": "x"}}}')
    assert find(command, tmp_path, tmp_path) is None


def test_what_nobody_can_read_is_left_to_the_agent(tmp_path: Path) -> None:
    """Approvals of another type approve nothing; a configuration that is none stays behind its option, for claude to say so."""
    projects = {str(tmp_path): {"enabledMcpjsonServers": True}}
    write(tmp_path / ".claude.json", {"mcpServers": {"mine": A}, "projects": projects})
    write(tmp_path / ".claude" / "settings.json", {"enabledMcpjsonServers": 5, "disabledMcpjsonServers": {"mine": 1}})
    write(tmp_path / ".mcp.json", {"mcpServers": {"theirs": A}})
    command, servers, _ = placed(find("claude -p hi --mcp-config none.json --debug", tmp_path, tmp_path), tmp_path)
    assert list(servers) == ["mine"]
    assert command[3:] == ("none.json", "--strict-mcp-config", "-p", "hi", "--debug")


def test_a_copy_holds_what_the_file_held(tmp_path: Path) -> None:
    """Also half a pair of a surrogate, which no UTF-8 can say."""
    made = {"mcpServers": {"\ud800 \u00e9": {"command": "x"}}}
    assert json.loads(Path(write_mcp_config_copy(made, tmp_path)).read_text(encoding="utf-8")) == made


def test_a_named_file_goes_before_and_none_leaves_all(tmp_path: Path) -> None:
    write(tmp_path / ".claude.json", {"mcpServers": {"mine": A}})
    write(tmp_path / "x.json", {"mcpServers": {"x": A}})
    assert set(placed(find("claude", tmp_path, tmp_path, "x.json"), tmp_path)[1]) == {"x"}
    assert find("claude", tmp_path, tmp_path, "none") is None
    with pytest.raises(SettingsError, match="cannot be read"):
        find("claude", tmp_path, tmp_path, "y.json")


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
    config = parse_mcp_config(before, "x.json")
    made, told = rewrite_mcp_config(config, "http://127.0.0.1:5/", "a b", ["python", "-m", "llmproxy"])
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
    config = parse_mcp_config(json.dumps({"mcpServers": servers}), "x.json")
    assert len(set(config.names.values())) == 5
    assert config.names["a-b"] == "mcp.a-b"
    made, _ = rewrite_mcp_config(config, "http://127.0.0.1:5", "s", ["llmproxy"])
    for name, each in servers.items():
        upstream = made["mcpServers"][name]["url"].split("/")[5]
        assert f"{config.upstreams[upstream]}/mcp" == each["url"]
    alone = [
        parse_mcp_config(json.dumps({"mcpServers": {name: {"command": "x"}}}), "x.json") for name in ("工具", "数据")
    ]
    assert alone[0].names["工具"] != alone[1].names["数据"]


@pytest.mark.parametrize(("server", "why"), [
    ({"command": "python", "args": "x"}, "`args` are no list of texts"),
    ({"command": 7}, "`command` is no text"),
    ({"type": "sse", "url": "http://h/sse"}, "type is 'sse'"),
    ({"url": "${X}/mcp"}, "no plain address"),
    ({}, "neither `command` nor `url`"),
    ([], "neither `command` nor `url`"),
])  # fmt: skip
def test_what_is_left_as_it_is_is_said_with_its_reason(server: object, why: str) -> None:
    """It runs for real in every replay: who reads that wants to know what to change."""
    config = parse_mcp_config(json.dumps({"mcpServers": {"a": server}}), "x.json")
    made, (told,) = rewrite_mcp_config(config, "http://127.0.0.1:5", "s", ["llmproxy"])
    assert (made["mcpServers"]["a"], told.startswith("a: LEFT AS IT IS"), why in told) == (server, True, True), told


def test_servers_of_either_table_are_found() -> None:
    """An empty one hides none of the other; of two full ones nobody knows which the agent reads."""
    server = {"command": "npx", "args": []}
    config = parse_mcp_config(json.dumps({"mcpServers": {}, "servers": {"a": server}}), "x.json")
    assert (config.table, list(config.servers)) == ("servers", ["a"])
    with pytest.raises(SettingsError, match="twice, in mcpServers and in servers"):
        parse_mcp_config(json.dumps({"mcpServers": {"a": server}, "servers": {"a": server}}), "x.json")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"mcpServers": []}'])
def test_what_is_no_configuration_is_said(text: str) -> None:
    """With its name, and what one looks like."""
    with pytest.raises(SettingsError, match=r"--mcp-config x\.json") as error:
        parse_mcp_config(text, "x.json")
    assert "mcpServers" in str(error.value)


@pytest.mark.parametrize(("command", "made"), [
    (["agent", "--mcp", "x.json"], ("agent", "--mcp", "/tmp/c")),
    (["agent", "--mcp=x.json"], ("agent", "--mcp=/tmp/c")),
    (["/bin/claude", "-p", "hi"], ("/bin/claude", "-p", "hi", "--mcp-config", "/tmp/c", "--strict-mcp-config")),
])  # fmt: skip
def test_the_command_gets_the_copy(command: list[str], made: tuple[str, ...]) -> None:
    """Where it named the file; Claude Code takes it by an option of its own."""
    assert replace_mcp_config_path_in_command(command, "x.json", "/tmp/c") == made


def test_a_command_that_does_not_name_the_file_is_refused() -> None:
    """Its servers would run for real, and nobody would know."""
    with pytest.raises(SettingsError, match="does not name this file"):
        replace_mcp_config_path_in_command(["agent"], "x.json", "/tmp/c")


def test_a_server_at_the_proxy_s_own_address_is_left() -> None:
    """It would be its own upstream, and refused; the agent would go on without it."""
    servers = {
        "old": {"type": "http", "url": "http://localhost:8080/everything/mcp"},
        "new": {"type": "http", "url": "http://127.0.0.1:9000/mcp"},
    }
    config = make_parsed_mcp_config(servers)
    made, told = rewrite_mcp_config(config, "http://127.0.0.1:8080", "x", ["llmproxy"])
    assert made["mcpServers"]["old"] == servers["old"]
    assert made["mcpServers"]["new"]["url"] == "http://127.0.0.1:8080/s/x/mcp.new/mcp"
    assert told[0].startswith("old: LEFT AS IT IS: its address is the proxy's own")
    assert config.list_upstreams("http://127.0.0.1:8080") == {"mcp.new": "http://127.0.0.1:9000"}
