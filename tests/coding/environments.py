"""The coding agents' own environments: built from committed locks like those of the SDKs, one folder an agent.

No install script runs but the one that a row names (Claude Code's puts the program of this platform in its place).

`python -m tests.coding.environments` builds all of them. To renew a lock: `npm install --package-lock-only
--omit-lockfile-registry-resolved` in its folder.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

from tests.sdk.environments import Environment, build

from .agents import AGENTS

HERE = Path(__file__).resolve().parent / "node"


def environment_of(name: str) -> Environment:
    """Return where an agent's packages lie, and how they come there."""
    folder = HERE / name
    install = (
        "npm",
        "ci",
        "--no-audit",
        "--no-fund",
        "--ignore-scripts",
        "--loglevel",
        "error",
        "--prefix",
        str(folder),
    )
    agent = next(agent for agent in AGENTS if agent.name == name)
    after = ("node", str(folder / "node_modules" / agent.package / agent.installer)) if agent.installer else ()
    commands = (install, after) if after else (install,)
    return Environment(name, folder / "node_modules", folder / "package-lock.json", "npm", commands)


@cache
def problem_of(name: str) -> str:
    """Build an agent's environment unless it is there; returns why it cannot be, empty if it is there. Once per process."""
    return build(environment_of(name))


def programs_of(name: str) -> Path:
    """Return the folder of an agent's programs, for PATH."""
    return environment_of(name).place / ".bin"


if __name__ == "__main__":
    problems = [problem for agent in AGENTS if (problem := problem_of(agent.name))]
    sys.stdout.write("".join(f"{problem}\n" for problem in problems))
    sys.exit(1 if problems else 0)
