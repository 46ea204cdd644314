"""Node is intercepted, whatever its version: a later one has a proxy of its own, an earlier one our preload (llmproxy/data/node_proxy.cjs)."""

from __future__ import annotations

import json
import shutil
import subprocess
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.coding.lab import DEAD, counted
from tests.provider import Provider, load
from tests.support import needed
from tests.support.forked import program
from tests.support.process import clean_env
from tests.support.services import QuietHandler, serving

from .environments import NODE

pytestmark = pytest.mark.sdk
DIALOGUE = {"ordered": False, "steps": [{"user": "hi", "say": "hello", "times": None}]}
ASKED = ("fetch", "again", "https", "agent", "http")


class Here(QuietHandler):
    """A service that NO_PROXY exempts."""

    def do_POST(self) -> None:  # noqa: N802 - as the library names it
        self.answer(f"as {self.path}".encode(), "text/plain")


def test_every_way_of_asking_goes_through_the_proxy(tmp_path: Path) -> None:
    """Fetch, node:https with and without an agent of its own, node:http: recorded, replayed; what NO_PROXY exempts is asked itself."""
    if (node := shutil.which("node")) is None:
        needed("Node")
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Here)) as here:
        exempt = f"{here}/mine"
        with Provider(load(DIALOGUE)) as up:
            recorded = _run(str(node), tmp_path, exempt, up.url, "--mode", "record")
            assert len(up.requests) == len(ASKED), recorded
        replayed = _run(str(node), tmp_path, exempt, DEAD)
        # Here loopback is no exception, so that the preload must not send what it asks the proxy itself through the proxy.
        everything = _run(str(node), tmp_path, exempt, DEAD, "--no-base-urls")
    for name in ASKED:
        assert (replayed[name]["status"], "hello" in replayed[name]["text"]) == (200, True), replayed
        assert replayed[name] == recorded[name] == everything[name]
    assert "api.openai.com" not in str(replayed["stranger"])
    assert "stranger.example" in replayed["stranger"].get("error", "") + replayed["stranger"].get("text", "")
    assert replayed["exempt"] == {"name": "exempt", "status": 200, "text": "as /mine"}


def _run(node: str, folder: Path, exempt: str, upstream: str, *options: str) -> dict[str, dict[str, Any]]:
    asked = ["--intercept", "--store", str(folder / "x.db"), "--upstream", f"openai={upstream}"]
    command = [*program("llmproxy"), "run", *options, *asked, "--", node, str(NODE / "ask_everywhere.mjs")]
    env = clean_env({"EXEMPT": exempt, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"})
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    if upstream == DEAD:
        assert (counted(done.stderr, "hit"), counted(done.stderr, "miss")) == (len(ASKED), 0), done.stderr
    return {line["name"]: line for line in map(json.loads, done.stdout.splitlines())}
