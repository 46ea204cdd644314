"""A coding agent with a server of tools in its own configuration, under `llmproxy run`, which is told nothing of it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.provider import Provider, load
from tests.support.forked import program
from tests.support.process import clean_env
from tests.support.tools import SERVER, http_server

from .agents import AGENTS, COMMON, Agent
from .environments import HERE, programs_of

DEAD = "http://127.0.0.1:9"
ASKED, SAID = "Say hello.", "It says hello."
CALL = {"name": "mcp__tools__echo", "arguments": {"text": "hello"}}
CLAUDE, CODEX = (next(each for each in AGENTS if each.name == name) for name in ("claude", "codex"))
_WAITS = {"MCP_CONNECTION_NONBLOCKING": "0", "MCP_CONNECT_TIMEOUT_MS": "200000", "MCP_TIMEOUT": "200000"}
"""Else Claude Code asks its model before a slow server has answered; `_REQUIRED` says the same to Codex."""
_REQUIRED = {"required": True, "startup_timeout_sec": 200}


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
        """Record it; the model calls the tool, and says what came."""
        steps = [{"times": None, **aside} for aside in self.agent.aside]
        steps += [{"results": 0, "stream": True, "call": [CALL]}, {"results": 1, "stream": True, "say": SAID}]
        with self.configured(), Provider(load({"ordered": False, "steps": steps}), check=False) as up:
            return self.run(up.url, "--mode", "record")

    def replay(self, *options: str) -> subprocess.CompletedProcess[str]:
        """Replay it: provider and server are dead."""
        return self.run(DEAD, "--mode", "replay", *options)

    def run(self, upstream: str, *options: str) -> subprocess.CompletedProcess[str]:
        """Run it."""
        own = {name: value.replace("{home}", str(self.base)) for name, value in self.agent.variables.items()}
        own |= {"HOME": str(self.base), "XDG_DATA_HOME": str(self.base), "PWD": str(self.base / "w"), **_WAITS}
        own["PATH"] = os.pathsep.join((str(programs_of(self.agent, self.packages)), os.environ["PATH"]))
        given = ["--store", str(self.base / "x.db")]
        given += [f"--upstream={name}={upstream}" for name in ("anthropic", "openai")]
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
            return ["claude", "-p", ASKED, "--allowedTools", CALL["name"], "--dangerously-skip-permissions"]  # type: ignore[list-item]
        return ["sh", "-c", " ".join(f'"{word}"' for word in (*self.agent.command[:-1], ASKED))]
