"""The coding agents' own environments: built from committed locks like those of the SDKs, one folder an agent.

A new agent is a row of `agents.py`: the first build makes `node/NAME/` with its package and lock, to be committed. No install script runs
but the one that a row names (Claude Code's puts the program of this platform in its place).

`python -m tests.coding.environments` builds all of them. To renew a lock: `npm install --package-lock-only
--omit-lockfile-registry-resolved` in its folder.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
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
    if agent.python:
        place, wanted = folder / ".venv", folder / "requirements.txt"
        create: tuple[str, ...] = ("uv", "venv", "--quiet", "--allow-existing", "--python", agent.python, str(place))
        install: tuple[str, ...] = ("uv", "pip", "install", "--quiet", "--python", str(place), "-r", str(wanted))
        return Environment(agent.name, place, wanted, "uv", (create, install))
    # A lock made today may lack what is for other systems; `ci` takes committed ones only.
    install = ("npm", "ci" if here == HERE else "install", *_QUIET, "--prefix", str(folder))
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
    if agent.python:
        found.lock.write_text((agent.source or agent.package).replace(" ", "\n"))
        return ""
    (folder / "package.json").write_text(json.dumps({"name": f"llmproxy-coding-{agent.name}", "private": True}))
    wanted = ["--package-lock-only", "--save-exact", "--omit-lockfile-registry-resolved"]
    command = ["npm", "install", *_QUIET, *wanted, "--prefix", str(folder), *(agent.source or agent.package).split()]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no lock could be made for {agent.name}: {error}"
    return f"no lock could be made for {agent.name}: {done.stderr.strip()[-500:]}" if done.returncode else ""


def install_version(agent: Agent, version: str, kept: Path) -> Path:
    """Return the folder `kept/NAME-VERSION` of a version's packages, for `programs_of`; from npm unless it is there."""
    packages = kept / f"{agent.name}-{version}"
    home = packages / agent.name
    if not (home / "node_modules").exists():
        home.mkdir(parents=True)
        (home / "package.json").write_text('{"name": "x", "private": true}')
        subprocess.run(
            ("npm", "install", *_QUIET, f"{agent.package}@{version}"), cwd=home, check=True, stdout=subprocess.DEVNULL
        )
        if agent.installer:
            subprocess.run(("node", home / "node_modules" / agent.package / agent.installer), check=True)
    return packages


def programs_of(agent: Agent, here: Path = HERE) -> Path:
    """Return the folder of an agent's programs, for PATH."""
    return environment_of(agent, here).place / ("bin" if agent.python else ".bin")


NODE = 22
"""What the newest agents need."""


def add_node(here: Path) -> None:
    """Put a Node that the newest agents take on PATH, where this machine's is older and npm has one for it."""
    program = shutil.which("node")
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout if program else ""
    if (match := re.match(r"v(\d+)", said)) and int(match[1]) >= NODE:
        return
    name = f"node-{platform.system().lower()}-{'arm64' if platform.machine() in ('arm64', 'aarch64') else 'x64'}"
    here.mkdir(parents=True, exist_ok=True)
    subprocess.run(["npm", "install", *_QUIET, "--prefix", str(here / "node"), f"{name}@24"], check=True)
    os.environ["PATH"] = f"{here / 'node' / 'node_modules' / name / 'bin'}{os.pathsep}{os.environ['PATH']}"


def version_of(agent: Agent, here: Path) -> str:
    place, package = environment_of(agent, here).place, agent.package.partition(" ")[0].partition("[")[0]
    if not agent.python:
        return str(json.loads((place / package / "package.json").read_text("utf-8"))["version"])
    named = f"{package.replace('-', '_')}-*.dist-info"
    return next(place.glob(f"lib/python*/site-packages/{named}")).name.split("-")[1].removesuffix(".dist")


if __name__ == "__main__":
    problems = [problem for agent in AGENTS if (problem := problem_of(agent))]
    sys.stdout.write("".join(f"{problem}\n" for problem in problems))
    sys.exit(1 if problems else 0)
