"""`llmproxy mcp` before a proxy, real processes all: one of them is killed with -9 in the middle of a call."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.process import Process, clean_env, lives, until

LLMPROXY = (sys.executable, "-m", "llmproxy")
SERVER = """
import json, os, pathlib, sys, time
here = pathlib.Path(sys.argv[1])
for line in sys.stdin:
    asked = json.loads(line)
    if asked["params"]["name"] == "wait":
        here = here / asked["params"]["arguments"]["at"]
        (here / "pid").write_text(str(os.getpid()))
        while not (here / "go").exists():
            time.sleep(0.01)
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": {"content": [{"type": "text", "text": "done"}]}}), flush=True)
"""


class Client:
    """What starts the shim, and speaks to it by hand."""

    def __init__(self, folder: Path, *words: str) -> None:
        command = [*LLMPROXY, "mcp", "--name", "s", *words, "--", sys.executable, "-c", SERVER, str(folder)]
        self.shim = subprocess.Popen(
            command, cwd=folder, env=clean_env(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self._number = 0

    def say(self, tool: str, at: str = "") -> None:
        self._number += 1
        params = {"name": tool, "arguments": {"at": at}}
        said = {"jsonrpc": "2.0", "id": self._number, "method": "tools/call", "params": params}
        assert self.shim.stdin is not None
        self.shim.stdin.write(json.dumps(said).encode() + b"\n")
        self.shim.stdin.flush()

    def hear(self) -> Any:
        """Return the result of the call; None at the end."""
        assert self.shim.stdout is not None
        line = self.shim.stdout.readline()
        return json.loads(line)["result"] if line else None

    def end(self) -> tuple[int, str]:
        """Go away: exit code and stderr."""
        _, said = self.shim.communicate(timeout=120)
        return self.shim.returncode, said.decode()


@contextmanager
def proxy(folder: Path) -> Iterator[tuple[Process, str]]:
    """Run a proxy that records; its process and URL."""
    command = [*LLMPROXY, "start", "--mode", "record", "--port", "0", "--store", str(folder / "x.db")]
    process = Process(command, folder, "proxy", clean_env(), cwd=folder)
    try:
        process.wait_until(lambda: "\n" in process.stdout)
        yield process, process.stdout.split()[1]
    finally:
        process.end()


def kill(folder: Path, who: str, process: Process, url: str) -> None:
    """Kill one of a shim, its server and its proxy while a tool is called; see what the client hears, and that the server ends."""
    here = folder / who
    here.mkdir()
    client = Client(folder, "--proxy", url)
    client.say("quick", who)
    assert client.hear()["content"][0]["text"] == "done"
    client.say("wait", who)
    until(lambda: (here / "pid").exists() and (here / "pid").read_text())
    server = int((here / "pid").read_text())
    os.kill({"shim": client.shim.pid, "server": server, "proxy": process.popen.pid}[who], 9)
    if who == "proxy":
        process.popen.wait(120)
        (here / "go").touch()
    heard = client.hear()
    if who == "shim":
        assert heard is None
    else:
        why = "does not answer" if who == "proxy" else "the server ended (exit code -9)"
        assert (heard["isError"], why in heard["content"][0]["text"]) == (True, True), heard
    code, said = client.end()
    assert (code, "Traceback" in said) == ({"shim": -9, "server": 0, "proxy": 3}[who], False), said
    until(lambda: not lives(server))


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_killed_in_the_middle_of_a_call(tmp_path: Path) -> None:
    """Its client hears an error or the end, no process stays, and of the call nothing is served later; what was answered before is."""
    with proxy(tmp_path) as (process, url):
        for who in ("shim", "server", "proxy"):
            kill(tmp_path, who, process, url)
    later = Client(tmp_path, "--store", str(tmp_path / "x.db"))
    for who in ("shim", "server", "proxy"):
        for tool, failed in (("quick", None), ("wait", True)):
            later.say(tool, who)
            assert later.hear().get("isError") is failed
    assert later.end()[0] == 0
