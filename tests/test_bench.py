"""Every bench still runs: tiny, without other people's programs. What they find is no test's business: the machine is shared."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.process import needed

ROOT = Path(__file__).resolve().parents[1]
BENCH = ROOT / "scripts" / "bench"
OURS = ("replay", "record", "growth", "startup", "suite", "scenario")
NEEDS_BARE = {"replay", "record"}
"""They measure against the bare server, which needs httptools in an environment that they make."""


def run(name: str, result: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a bench as a user would, and return what it said."""
    command = [sys.executable, str(BENCH / name), "--quick", "--json", str(result), *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("name", OURS)
def test_a_bench_runs(name: str, tmp_path: Path) -> None:
    """It measures something, prints a table and writes the same figures as JSON; a missed target is not an error here."""
    if importlib.util.find_spec("mitmproxy") is None:
        needed("mitmproxy, the extra `proxy`")
    options = ("--only", "throughput,stream") if name == "replay" else ()
    done = run(name, tmp_path / "found.json", *options)
    if name in NEEDS_BARE and "httptools" in done.stderr and "Failed" in done.stderr:
        needed(f"httptools for the bare server: {done.stderr.strip().splitlines()[-1][:200]}")
    assert done.returncode in (0, 1), done.stderr[-3000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["machine"]
    assert found["rows"]
    for row in found["rows"]:
        assert row["values"], row
        assert row["verdict"] in ("", "met", "MISSED")
        assert row["what"] in done.stdout


def test_the_help_names_every_part() -> None:
    """`--help` of each bench says what it does, and starts nothing."""
    for name in OURS:
        done = subprocess.run(
            [sys.executable, str(BENCH / name), "--help"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        assert "--rounds" in done.stdout
        assert f"scripts/bench/{name}" in done.stdout
