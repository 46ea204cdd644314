"""Coding agents with an MCP server of their own configuration: found by `llmproxy run`, recorded, and dead in replay."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import needed

from .agents import Agent
from .environments import problem_of
from .with_tools import CLAUDE, CODEX, SAID, AgentWithTools

pytestmark = pytest.mark.sdk


STDIO = ("stdio", "over stdio, behind `llmproxy mcp`", (), (", 0 misses",))
FORGOTTEN = ("--faults", "mcp-gone@1"), ("(1 bound: tool_wall_time), 0 misses", "1 injected fault")


@pytest.mark.parametrize(
    ("agent", "over", "behind", "options", "told"),
    [(CLAUDE, *STDIO), (CODEX, *STDIO), (CODEX, "http", "over HTTP, behind the proxy", *FORGOTTEN)],
    ids=[CLAUDE.name, CODEX.name, "codex begins anew at a server that forgot it"],
)
def test_an_agent_s_own_servers_are_recorded_and_never_started_again(
    agent: Agent, over: str, behind: str, options: tuple[str, ...], told: tuple[str, ...], tmp_path: Path
) -> None:
    """Approved in the folder's settings, or in `config.toml`; in replay model and tool are dead. After a 404 on purpose the recorded result comes."""
    if problem := problem_of(agent):
        needed(problem)
    lab = AgentWithTools(agent, tmp_path, over)
    recorded = lab.record()
    assert f"mcp: tools: {behind}" in recorded.stderr
    assert (recorded.stdout.strip(), lab.ran) == (SAID, ["echo hello"]), recorded.stderr
    replayed = lab.replay(*options)
    assert (replayed.stdout, lab.ran) == (recorded.stdout, ["echo hello"]), replayed.stderr
    assert [each for each in told if each not in replayed.stderr] == [], replayed.stderr
