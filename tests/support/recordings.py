"""Small interactions and real stores for tests, and processes that use them."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import textwrap
from pathlib import Path

from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.core.store.store import Store
from llmproxy.core.traffic.interaction import Chunk, Ending, Interaction, Key, Request, Response

NOW = 1_800_000_000.0


def key(n: int) -> Key:
    return Key(f"v1:{n:064x}")


def interaction(n: int = 1, **changes: object) -> Interaction:
    made = Interaction(
        provider="openai",
        operation="chat.completions",
        key=key(n),
        request=Request("POST", "/v1/chat/completions", (("accept", "*/*"),), b'{"n": %d}' % n),
        response=Response(200, "OK", (("content-type", "application/json"),), (Chunk(100, b"answer %d" % n),)),
        started_at=NOW + n,
    )
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def status(n: int, code: int, ending: Ending = Ending.COMPLETE) -> Interaction:
    made = interaction(n)
    return dataclasses.replace(made, response=dataclasses.replace(made.response, status=code, ending=ending))


def reopened(path: Path, *, writable: bool = False) -> Store:
    """Open what is at `path`, the clock standing still."""
    return SqliteCassetteStore.open(path, writable=writable, now=lambda: NOW)


def look(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in sorted(folder.iterdir())}


def filled(path: Path, number: int = 3) -> None:
    with reopened(path, writable=True) as store:
        for n in range(number):
            store.add_interaction(interaction(n), supersede=False)


def read_everything(path: Path) -> int:
    """Use every reading method of a store opened for replay, and return how many interactions it gives."""
    with reopened(path) as store:
        _ = (
            store.generation, store.cassettes(), store.find_first_key("default", 1),
            store.find_keyed("default", 1, "agent", key(1)),
        )  # fmt: skip
        return len(list(store.iter_interactions("default")))


PRELUDE = f"""
import os, sys, signal, resource, time
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.support.recordings import interaction, key, NOW
from llmproxy.core.traffic.interaction import *
from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.errors import *
path = sys.argv[1]
store = SqliteCassetteStore.open(path, writable=True, now=lambda: NOW)
"""


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own."""
    code = textwrap.dedent(script)
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def start(script: str, *arguments: str) -> subprocess.Popen[str]:
    """Start Python code after the prelude in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(script), *arguments], stdout=subprocess.PIPE, text=True
    )
