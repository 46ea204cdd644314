"""The coding agents' own environments: built from committed locks like those of the SDKs, one folder an agent.

A new agent is a row of `agents.py`: the first build makes `node/NAME/` with its package and lock, to be committed. No install script runs
but the one that a row names (Claude Code's puts the program of this platform in its place).

`python -m tests.coding.environments` builds all of them. To renew a lock: `npm install --package-lock-only
--omit-lockfile-registry-resolved` in its folder.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

from tests.sdk.environments import Environment, build

from .agents import AGENTS, Agent

HERE = Path(__file__).resolve().parent / "node"
_QUIET = ("--no-audit", "--no-fund", "--ignore-scripts", "--loglevel", "error")


def environment_of(agent: Agent, here: Path = HERE) -> Environment:
    """Return where an agent's packages lie, and how they come there."""
    folder = here / (agent.shares or agent.name)
    install = ("npm", "ci", *_QUIET, "--prefix", str(folder))
    after = ("node", str(folder / "node_modules" / agent.package / agent.installer)) if agent.installer else ()
    commands = (install, after) if after else (install,)
    return Environment(agent.name, folder / "node_modules", folder / "package-lock.json", "npm", commands)


@cache
def problem_of(agent: Agent, here: Path = HERE) -> str:
    """Build an agent's environment unless it is there; returns why it cannot be, empty if it is there. Once per process."""
    found = environment_of(agent, here)
    return (not found.lock.exists() and _lock(agent, found)) or build(found)


def _lock(agent: Agent, found: Environment) -> str:
    """Make the lock of a new agent: its newest version today, and no host."""
    folder = found.lock.parent
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "package.json").write_text(json.dumps({"name": f"llmproxy-coding-{agent.name}", "private": True}))
    wanted = ["--package-lock-only", "--save-exact", "--omit-lockfile-registry-resolved"]
    command = ["npm", "install", *_QUIET, *wanted, "--prefix", str(folder), agent.source or agent.package]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no lock could be made for {agent.name}: {error}"
    return f"no lock could be made for {agent.name}: {done.stderr.strip()[-500:]}" if done.returncode else ""


def programs_of(agent: Agent, here: Path = HERE) -> Path:
    """Return the folder of an agent's programs, for PATH."""
    return environment_of(agent, here).place / ".bin"


if __name__ == "__main__":
    problems = [problem for agent in AGENTS if (problem := problem_of(agent))]
    sys.stdout.write("".join(f"{problem}\n" for problem in problems))
    sys.exit(1 if problems else 0)
