"""Real servers of tools under real clients: recorded once in A, then replayed in B with every server dead, and compared.

Servers: `server-everything` (over stdio and HTTP) and `server-filesystem` of npm, one by the SDK for Python. Clients: the SDKs of Python and Node.
A server notes that it was started, so that a replay can be held against that: none may be.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.sdk.environments import Environment, build
from tests.support.forked import program
from tests.support.process import clean_env, free_port, serving
from tests.support.tools import HERE as SUPPORT, SERVER as PYTHON_SERVER

from .environments import HERE

LLMPROXY = program("llmproxy")
FOLDER = HERE / "servers"
SECONDS = 240
SECRET = "a-token-of-ours-4711"
Call = list[Any]


@cache
def problem() -> str:
    quiet = ("--no-audit", "--no-fund", "--ignore-scripts", "--loglevel", "error")
    install = ("npm", "ci", *quiet, "--prefix", str(FOLDER))
    return build(Environment("servers", FOLDER / "node_modules", FOLDER / "package-lock.json", "npm", (install,)))


def _node(name: str) -> tuple[str, ...]:
    return ("node", str(FOLDER / "node_modules" / ".bin" / name))


CLIENTS: Mapping[str, tuple[str, ...]] = {
    "python": (*program("python"), str(SUPPORT / "mcp_client.py")),
    "node": ("node", str(FOLDER / "client.mjs")),
}


@dataclass(frozen=True, slots=True)
class ToolServer:
    """A server, and what is asked of it."""

    name: str
    command: Callable[[Path], Sequence[str]]
    """Takes the folder that it serves."""
    calls: Sequence[Call]
    """Of tools by their names, or of a method, which has a slash."""
    alone: Sequence[Call] = ()
    """Calls that are not made beside others."""


EVERYTHING = ToolServer(
    "everything",
    lambda _: (*_node("mcp-server-everything"), "stdio"),
    [
        ["echo", {"message": "a"}],
        ["echo", {"message": "b"}],
        ["get-sum", {"a": 1, "b": 2}],
        ["get-tiny-image", {}],
        ["get-structured-content", {"location": "New York"}],
        ["get-annotated-message", {"messageType": "error", "includeImage": True}],
        ["get-resource-links", {"count": 2}],
        ["trigger-long-running-operation", {"duration": 0.3, "steps": 3}],
        ["get-env", {}],
        ["resources/list", {}],
        ["resources/read", {"uri": "demo://resource/dynamic/text/1"}],
        ["resources/read", {"uri": "demo://resource/dynamic/blob/1"}],
        ["prompts/list", {}],
        ["prompts/get", {"name": "args-prompt", "arguments": {"city": "Rome"}}],
    ],
    [
        ["trigger-sampling-request", {"prompt": "hi", "maxTokens": 10}],
        ["trigger-elicitation-request", {}],
        ["trigger-long-running-operation", {"duration": 2, "steps": 20}, "cancel"],
    ],
)
FILESYSTEM = ToolServer(
    "filesystem",
    lambda folder: (*_node("mcp-server-filesystem"), str(folder)),
    [
        ["list_allowed_directories", {}],
        ["read_text_file", {"path": "$CWD/notes.txt"}],
        ["list_directory", {"path": "$CWD"}],
        ["search_files", {"path": "$CWD", "pattern": "*.txt"}],
        ["read_text_file", {"path": "$CWD/none.txt"}],
    ],
)
PYTHON = ToolServer(
    "python",
    lambda folder: (*PYTHON_SERVER, "stdio", str(folder.parent / "ran")),
    [["echo", {"text": "a"}], ["count", {}], ["count", {}], ["steps", {"number": 3}], ["where", {}], ["fail", {}]],
    [["delete_all", {}], ["poem", {"about": "rain"}]],
)


@dataclass(slots=True)
class ToolLab:
    """One server under one client; everything of it lies in `base`."""

    base: Path
    server: ToolServer
    client: str
    name: str = "a"
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def started(self) -> int:
        """How often the real server was started."""
        note = self.base / "started"
        return len(note.read_text().splitlines()) if note.exists() else 0

    def place(self, name: str) -> Path:
        folder = self.base / name
        folder.mkdir(exist_ok=True)
        (folder / "notes.txt").write_text("buy milk\n")
        return folder

    def stdio(self, cwd: Path) -> list[str]:
        """Return the server's command, which notes that it was started."""
        note = f'echo started >> "{self.base}/started"; exec "$0" "$@"'
        return ["sh", "-c", note, *self.server.command(cwd)]

    def run(self, mode: str, cwd: Path, **plan: Any) -> tuple[list[Any], str]:
        """Let the client do a plan in a run of ours, over stdio; the results of each run, and what llmproxy said."""
        text = json.dumps(plan).replace("$CWD", str(cwd))
        shim = [*LLMPROXY, "mcp", "--name", self.server.name, "--", *self.stdio(cwd)]
        command = [*LLMPROXY, "run", "--mode", mode, "--store", str(self.base / "x.db"), "--"]
        return _do([*command, *CLIENTS[self.client], text, "--", *shim], cwd, self._env())

    def _env(self) -> dict[str, str]:
        return clean_env({"XDG_DATA_HOME": str(self.base), "DEPLOY_TOKEN": SECRET, **self.env})

    def run_http(self, mode: str, cwd: Path, origin: str, **plan: Any) -> tuple[list[Any], str]:
        """Do it over HTTP, to a server at `origin`, by a configuration."""
        config = self.base / "http.json"
        config.write_text(json.dumps({"mcpServers": {"far": {"type": "http", "url": f"{origin}/mcp"}}}))
        agent = (
            "import json, subprocess, sys\n"
            "url = json.load(open(sys.argv[1]))['mcpServers']['far']['url']\n"
            "sys.exit(subprocess.run([*sys.argv[2:], url]).returncode)\n"
        )
        command = [*LLMPROXY, "run", "--mcp-config", str(config), "--mode", mode, "--store", str(self.base / "h.db")]
        words = [sys.executable, "-c", agent, str(config), *CLIENTS[self.client], json.dumps(plan)]
        return _do([*command, "--", *words], cwd, self._env())


def _do(command: Sequence[str], cwd: Path, env: Mapping[str, str]) -> tuple[list[Any], str]:
    done = subprocess.run(command, cwd=cwd, env=dict(env), capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode or not done.stdout.strip():
        raise AssertionError(f"exit code {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@contextmanager
def everything_over_http(base: Path) -> Iterator[str]:
    """Run `server-everything` over HTTP for the block; its origin."""
    port = free_port()
    command, env = (*_node("mcp-server-everything"), "streamableHttp"), {"PORT": str(port), "PATH": os.environ["PATH"]}
    with serving(command, port, base / "everything.out", cwd=base, **env) as origin:
        yield origin


def differences(recorded: Sequence[Any], replayed: Sequence[Any], was: Path, now: Path) -> list[str]:
    """Return where a replay told something else than the recording, its folder in place of the recorded one."""
    wanted = json.loads(json.dumps(recorded).replace(str(was), str(now)))
    return [
        f"{one['tool']}: {str(other)[:300]} instead of {str(one)[:300]}"
        for one, other in zip(wanted, replayed, strict=True)
        if one != other and SECRET not in json.dumps(one)
    ]
