"""Claude Code with an MCP server of its own configuration: found by `llmproxy run`, recorded, and dead in replay."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.provider import Provider, load
from tests.support import needed
from tests.support.process import clean_env
from tests.support.tools import SERVER

from .agents import AGENTS, COMMON
from .environments import problem_of, programs_of

pytestmark = pytest.mark.sdk
DEAD = "http://127.0.0.1:9"
CLAUDE = next(each for each in AGENTS if each.name == "claude")
COMMAND = ("claude", "-p", "Say hello.", "--allowedTools", "mcp__tools__echo", "--dangerously-skip-permissions")


def run(base: Path, cwd: Path, upstream: str, mode: str) -> subprocess.CompletedProcess[str]:
    """Run it under `llmproxy run`, which is told nothing of MCP."""
    path = os.pathsep.join((str(programs_of(CLAUDE)), os.environ["PATH"]))
    own = {"HOME": str(base), "PATH": path, "XDG_DATA_HOME": str(base), "PWD": str(cwd)}
    own |= {"MCP_CONNECTION_NONBLOCKING": "0"}  # else it asks its model before a slow server has answered
    options = ["--mode", mode, "--store", str(base / "x.db"), "--upstream", f"anthropic={upstream}"]
    command = [sys.executable, "-m", "llmproxy", "run", *options, "--", *COMMAND]
    env = clean_env({**COMMON, **CLAUDE.variables, **own})
    return subprocess.run(
        command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200, check=False
    )


def test_claude_s_own_servers_are_recorded_and_never_started_again(tmp_path: Path) -> None:
    """It is approved in the folder's settings; the model calls its tool, and in replay both are dead."""
    if problem := problem_of(CLAUDE):
        needed(problem)
    cwd, log = tmp_path / "w", tmp_path / "log"
    (cwd / ".claude").mkdir(parents=True)
    (cwd / ".claude" / "settings.local.json").write_text('{"enabledMcpjsonServers": ["tools"]}')
    command, *args = [*SERVER, "stdio", str(log)]
    (cwd / ".mcp.json").write_text(json.dumps({"mcpServers": {"tools": {"command": command, "args": args}}}))
    call = {"name": "mcp__tools__echo", "arguments": {"text": "hello"}}
    steps = [{"times": None, **aside} for aside in CLAUDE.aside]
    steps += [{"results": 0, "stream": True, "call": [call]}, {"results": 1, "stream": True, "say": "It says hello."}]
    with Provider(load({"ordered": False, "steps": steps}), check=False) as up:
        recorded = run(tmp_path, cwd, up.url, "record")
    assert "mcp: tools: over stdio, behind `llmproxy mcp`" in recorded.stderr
    assert (recorded.stdout.strip(), log.read_text()) == ("It says hello.", "echo hello\n"), recorded.stderr
    replayed = run(tmp_path, cwd, DEAD, "replay")
    assert (replayed.stdout, log.read_text()) == (recorded.stdout, "echo hello\n"), replayed.stderr
    assert ", 0 misses" in replayed.stderr, replayed.stderr
