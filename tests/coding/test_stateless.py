"""Client and server of MCP's stateless era (2026-07-28), by the SDK for Python: recorded, dead in replay, and dead under a live model."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.mitm.rig import Rig
from tests.sdk.environments import build, python_environment
from tests.support import needed
from tests.support.forked import forking, program
from tests.support.process import clean_env, free_port, serving

pytestmark = pytest.mark.sdk

HERE = Path(__file__).resolve().parent / "stateless"
ERA = "2026-07-28"
BUILT = python_environment("stateless", HERE / "requirements.txt")
PYTHON = str(BUILT.place / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))
DEAD = {"tools": "http://127.0.0.1:9"}
LOOK, COUNT, STEPS, DELETE = ["look", {}], ["count", {}], ["steps", {"number": 3}], ["delete_all", {}]
CALLS = [LOOK, COUNT, LOOK, STEPS, DELETE, COUNT]
TEXTS = ["counted 0", "1", "counted 1", "3 steps", "everything is deleted", "2"]


@pytest.fixture(autouse=True)
def built() -> None:
    """Have the SDK."""
    if said := build(BUILT):
        needed(said)


@contextmanager
def server(log: Path) -> Iterator[str]:
    """Run the server over HTTP for the block; its origin."""
    port = free_port()
    command = [forking(PYTHON), str(HERE / "server.py"), "http", str(port), str(log)]
    with serving(command, port, log.parent / "server.out", cwd=log.parent) as origin:
        yield origin


def use(where: Sequence[str], cwd: Path, calls: Sequence[Any], **plan: Any) -> list[Any]:
    """Let the client make calls at a URL, or with a command; their results."""
    place = list(where) if len(where) == 1 else ["--", *where]
    command = [forking(PYTHON), str(HERE / "client.py"), json.dumps({"calls": calls, **plan}), *place]
    done = subprocess.run(command, cwd=cwd, env=clean_env(), capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout)
    assert (told["era"], told["tools"]) == (ERA, ["count", "look", "steps", "delete_all"])
    results: list[Any] = told["results"]
    return results


@pytest.mark.parametrize("over", ["http", "stdio"])
def test_the_stateless_era_is_recorded_replayed_and_held_against_a_live_model(over: str, tmp_path: Path) -> None:
    """Progress, consent given and declined; under a live model each call only in its state, what only reads as often as wanted; the server is dead."""
    store, log = tmp_path / "x.db", tmp_path / "log"

    def where(rig: Rig) -> list[str]:
        if over == "http":
            return [f"{rig.url}/s/x/tools/mcp"]
        shim = [*program("llmproxy"), "mcp", "--proxy", rig.url, "--session", "x", "--name", "t", "--"]
        return [*shim, forking(PYTHON), str(HERE / "server.py"), "stdio", str(log)]

    with server(log) as origin, Rig("record", store, {"tools": origin}) as rig:
        recorded = use(where(rig), tmp_path, CALLS)
        rig.wait_idle()
    assert [each["text"] for each in recorded] == TEXTS
    assert (recorded[3]["progress"], [each["error"] for each in recorded]) == ([1, 2, 3], [False] * 6)
    ran = log.read_text()
    with Rig("replay", store, DEAD) as rig:
        assert use(where(rig), tmp_path, CALLS) == recorded
        (declined,) = use(where(rig), tmp_path, [DELETE], consent="decline")
    assert declined["error"], declined
    assert "llmproxy" in declined["text"]
    with Rig("replay", store, DEAD, live=["llm"]) as rig:
        assert use(where(rig), tmp_path, CALLS) == recorded
        rig.wait_idle()
    with Rig("replay", store, DEAD, live=["llm"]) as rig:
        other = use(where(rig), tmp_path, [LOOK, LOOK, STEPS, COUNT, LOOK, COUNT, LOOK])
    found = [None if each["error"] else each["text"] for each in other]
    assert found == [*("counted 0", "counted 0", None), *("1", "counted 1", None, "counted 1")]
    assert "it was recorded after" in other[2]["text"]
    assert log.read_text() == ran
