"""Programs that ask three things at once and go by who answered first: recorded, and replayed as often as one likes. The long form: scripts/lab/parallel."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.coding.lab import DEAD, counted
from tests.support import needed
from tests.support.concurrent_runs import echo
from tests.support.forked import program
from tests.support.process import clean_env

from .environments import HERE, NODE, starter

pytestmark = pytest.mark.sdk
CLIENTS = [
    ("node", NODE / "parallel_race.mjs"),
    ("newest", HERE / "python/parallel_asyncio.py"),
    ("newest", HERE / "python/parallel_threads.py"),
]


@pytest.mark.parametrize(("environment", "client"), CLIENTS, ids=[client.stem for _, client in CLIENTS])
def test_a_program_that_goes_by_who_was_first_replays(
    environment: str, client: Path, environments: dict[str, str], tmp_path: Path
) -> None:
    """Four calls, four hits, three times: the answers end as they were recorded."""
    if environments[environment]:
        needed(environments[environment])
    with echo() as up:
        recorded = _run(environment, client, tmp_path, up.url, "--mode", "record")
    for _ in range(3):
        replayed = _run(environment, client, tmp_path, DEAD)
        assert replayed.stdout.split()[1] == recorded.stdout.split()[1], replayed.stderr
        assert (counted(replayed.stderr, "hit"), counted(replayed.stderr, "miss")) == (4, 0)


def _run(
    environment: str, client: Path, folder: Path, upstream: str, *options: str
) -> subprocess.CompletedProcess[str]:
    asked = ["--store", str(folder / "x.db"), "--upstream", f"openai={upstream}"]
    command = [*program("llmproxy"), "run", *options, *asked, "--", starter(environment), str(client)]
    env = clean_env({"GAP": "0.3"})
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=True)
