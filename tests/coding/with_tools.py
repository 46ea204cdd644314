"""A coding agent with a server of tools in its own configuration, under `llmproxy run`, which is told nothing of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.provider import Provider, load
from tests.support.forked import program
from tests.support.process import clean_env
from tests.support.tools import SERVER, http_server

from .agents import AGENTS, ASK, COMMON, Agent
from .environments import HERE, programs_of
from .lab import DEAD, PROGRAMS

ASKED, SAID = "Say hello.", "It says hello."
CLAUDE, CODEX = (next(each for each in AGENTS if each.name == name) for name in ("claude", "codex"))
_WAITS = {"MCP_CONNECTION_NONBLOCKING": "0", "MCP_CONNECT_TIMEOUT_MS": "200000", "MCP_TIMEOUT": "200000"}
"""Else Claude Code asks its model before a slow server has answered; `_REQUIRED` says the same to Codex."""
_REQUIRED = {"required": True, "startup_timeout_sec": 200}


@dataclass(frozen=True, slots=True)
class Place:
    """Where an agent whose servers a run does not find has them; a user writes `llmproxy mcp --` there."""

    file: str
    """Of its home."""
    table: str
    tool: str
    """What its model calls the tool."""
    more: Mapping[str, object] = field(default_factory=dict)
    """What the server's entry has beside its command."""
    beside: Mapping[str, object] = field(default_factory=dict)
    """What the file holds beside the servers."""
    joined: bool = False
    """Whether the command is one list of words."""


_COPILOT = Place(".copilot/mcp-config.json", "mcpServers", "tools-echo", {"type": "local", "tools": ["*"]})
_MCP = "mcp__tools__echo"
PLACES = {
    "copilot": _COPILOT,
    "copilot-responses": _COPILOT,
    "copilot-anthropic": _COPILOT,
    "gemini": Place(
        ".gemini/settings.json", "mcpServers", "mcp_tools_echo",
        # The order in which it lists its skills differed between two runs.
        beside={"security": {"auth": {"selectedType": "gemini-api-key"}}, "skills": {"enabled": False}},
    ),
    "qwen": Place(".qwen/settings.json", "mcpServers", _MCP),
    "opencode": Place(
        ".config/opencode/opencode.json", "mcp", "tools_echo", {"type": "local", "enabled": True}, joined=True
    ),
}  # fmt: skip
WITHOUT = ("pi", "mini-swe-agent", "aider")
"""Agents that have no servers of tools."""
IN_PROGRAM = {
    "claude-sdk-py": _MCP, "claude-sdk-node": _MCP, "openai-agents": "echo", "deepagents": "echo", "strands": "echo", "adk": "echo",
}  # fmt: skip
"""Agents that are programs of ours take the server's command behind the question; what their models call the tool."""


@dataclass(frozen=True, slots=True)
class AgentWithTools:
    """One agent; everything of it lies in `base`."""

    agent: Agent
    base: Path
    over: str
    """``stdio`` or ``http``."""
    packages: Path = HERE
    """Where its packages lie."""

    @property
    def tool(self) -> str:
        """What its model calls the tool."""
        name = self.agent.name
        return PLACES[name].tool if name in PLACES else IN_PROGRAM.get(name, _MCP)

    @property
    def shimmed(self) -> list[str]:
        """The server's command, as a user writes it for an agent whose servers a run does not find."""
        return ["llmproxy", "mcp", "--", *SERVER, "stdio", str(self.base / "log")]

    @property
    def ran(self) -> list[str]:
        """What the real server did."""
        log = self.base / "log"
        return log.read_text().splitlines() if log.exists() else []

    @contextmanager
    def configured(self) -> Iterator[None]:
        """Write the agent's configuration; for the block the server can be reached over HTTP, if it is one."""
        log, work = self.base / "log", self.base / "w"
        work.mkdir(parents=True, exist_ok=True)
        command, *args = [*SERVER, "stdio", str(log)]
        if self.over == "stdio":
            self._write({"command": command, "args": args})
            yield
            return
        with http_server(log, self.base) as origin:
            self._write({"url": f"{origin}/mcp"})
            yield

    def _write(self, server: Mapping[str, object]) -> None:
        if self.agent.name in IN_PROGRAM:
            return
        if place := PLACES.get(self.agent.name):
            words = self.shimmed
            said = {"command": words} if place.joined else {"command": words[0], "args": words[1:]}
            file = self.base / place.file
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps({**place.beside, place.table: {"tools": {**said, **place.more}}}))
            return
        if self.agent is CODEX:
            lines = [f"{name} = {json.dumps(value)}" for name, value in {**server, **_REQUIRED}.items()]
            (self.base / "config.toml").write_text("\n".join(["[mcp_servers.tools]", *lines, ""]))
            return
        work = self.base / "w"
        (work / ".claude").mkdir(exist_ok=True)
        (work / ".claude" / "settings.local.json").write_text('{"enabledMcpjsonServers": ["tools"]}')
        kind = {"type": "http"} if "url" in server else {}
        (work / ".mcp.json").write_text(json.dumps({"mcpServers": {"tools": {**kind, **server}}}))

    def record(self) -> subprocess.CompletedProcess[str]:
        steps = [{"times": None, **aside} for aside in self.agent.aside]
        call = {"name": self.tool, "arguments": {"text": "hello"}}
        steps += [{"results": 0, "stream": self.agent.stream, "call": [call]}]
        steps += [{"results": 1, "stream": self.agent.stream, "say": SAID}]
        with self.configured(), Provider(load({"ordered": False, "steps": steps}), check=False) as up:
            return self.run(up.url, "--mode", "record")

    def replay(self, *options: str) -> subprocess.CompletedProcess[str]:
        """Replay it: provider and server are dead."""
        return self.run(DEAD, "--mode", "replay", *options)

    def run(self, upstream: str, *options: str) -> subprocess.CompletedProcess[str]:
        own = {name: value.replace("{home}", str(self.base)) for name, value in self.agent.variables.items()}
        own["PACKAGES"] = str(self.packages / self.agent.name)
        own |= {"HOME": str(self.base), "XDG_DATA_HOME": str(self.base), "PWD": str(self.base / "w"), **_WAITS}
        ours = str(Path(sys.executable).parent)
        own["PATH"] = os.pathsep.join((str(programs_of(self.agent, self.packages)), ours, os.environ["PATH"]))
        given = ["--store", str(self.base / "x.db")]
        given += [f"--upstream={name}={upstream}" for name in ("anthropic", "openai", "gemini")]
        return subprocess.run(
            [*program("llmproxy"), "run", *given, *options, "--", *self._command()],
            cwd=self.base / "w",
            env=clean_env({**COMMON, **own}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    def _command(self) -> list[str]:
        if self.agent is CLAUDE:
            return ["claude", "-p", ASKED, "--allowedTools", self.tool, "--dangerously-skip-permissions"]
        words = [*self.agent.command, *(self.shimmed if self.agent.name in IN_PROGRAM else ())]
        text = " ".join(f'"{word}"' for word in words)
        return ["sh", "-c", text.replace(ASK, ASKED).replace("{programs}", str(PROGRAMS))]
