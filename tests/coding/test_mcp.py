"""Coding agents with an MCP server of their own configuration: found by `llmproxy run`, recorded, and dead in replay."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import needed

from .agents import Agent
from .environments import problem_of
from .with_tools import CLAUDE, CODEX, SAID, AgentWithTools

pytestmark = pytest.mark.sdk


@pytest.mark.parametrize("agent", [CLAUDE, CODEX], ids=lambda agent: str(agent.name))
def test_an_agent_s_own_servers_are_recorded_and_never_started_again(agent: Agent, tmp_path: Path) -> None:
    """Approved in the folder's settings, or in `config.toml`; the model calls its tool, and in replay both are dead."""
    if problem := problem_of(agent):
        needed(problem)
    lab = AgentWithTools(agent, tmp_path, "stdio")
    recorded = lab.record()
    assert "mcp: tools: over stdio, behind `llmproxy mcp`" in recorded.stderr
    assert (recorded.stdout.strip(), lab.ran) == (SAID, ["echo hello"]), recorded.stderr
    replayed = lab.replay()
    assert (replayed.stdout, lab.ran) == (recorded.stdout, ["echo hello"]), replayed.stderr
    assert ", 0 misses" in replayed.stderr, replayed.stderr


def test_codex_begins_anew_at_a_server_that_forgot_it(tmp_path: Path) -> None:
    """Over HTTP, in a shell's words; what it writes into a result differs each time. After a 404 on purpose its call gets the recorded result."""
    if problem := problem_of(CODEX):
        needed(problem)
    lab = AgentWithTools(CODEX, tmp_path, "http")
    recorded = lab.record()
    assert "mcp: tools: over HTTP, behind the proxy" in recorded.stderr
    assert (recorded.stdout.strip(), lab.ran) == (SAID, ["echo hello"]), recorded.stderr
    replayed = lab.replay("--faults", "mcp-gone@1")
    assert (replayed.stdout, lab.ran) == (recorded.stdout, ["echo hello"]), replayed.stderr
    assert "(1 bound: tool_wall_time), 0 misses" in replayed.stderr, replayed.stderr
    assert "1 injected fault" in replayed.stderr, replayed.stderr
