"""Every bench still runs: tiny, without other people's programs. What they find is no test's business: the machine is shared."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

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
        command = [sys.executable, str(BENCH / name), "--help"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=True)
        assert "--rounds" in done.stdout
        assert f"scripts/bench/{name}" in done.stdout


RESULTS = {
    "machine": "some",
    "rows": [
        {"what": "throughput, bare server, 1 recordings", "values": [20_000, 10_000, 15_000]},
        {"what": "throughput, llmproxy, 1 recordings", "values": [6_000]},
        {"what": "throughput, llmproxy, 1,000 recordings", "values": [5_800]},
        {"what": "throughput, llmproxy, 100,000 recordings", "values": [5_500]},
        {"what": "throughput, A & B, 1 recordings", "values": [510]},
        {"what": "throughput, A & B, 1,000 recordings", "values": [30]},
        {"what": "throughput, C, 1,000 recordings", "values": [31]},
        {"what": "throughput, llmproxy / A & B", "values": [11.8]},
    ],
}


def test_the_figure_is_drawn_from_a_results_file(tmp_path: Path) -> None:
    """One line and one name a server, text as text, colours for light and dark; names that end together stand apart."""
    results, picture = tmp_path / "replay.json", tmp_path / "speed.svg"
    results.write_text(json.dumps(RESULTS))
    command = [sys.executable, str(BENCH / "replay"), "--draw", "--json", str(results), "--picture", str(picture)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=60)
    drawn = ET.parse(picture).getroot()
    inside = "{http://www.w3.org/2000/svg}"
    kinds: dict[str, list[ET.Element]] = {}
    for each in drawn.iter():
        kinds.setdefault(each.get("class", "").partition(" ")[0], []).append(each)
    assert sorted(str(each.text) for each in kinds["name"]) == ["A & B", "C", "bare server", "llmproxy"]
    assert (len(kinds["line"]), len(kinds["dot"])) == (4, 3 + 3 + 2 + 1)  # the bare server is the same everywhere
    heights = {str(each.text): float(each.get("y", "")) for each in kinds["name"]}
    assert heights["bare server"] < heights["llmproxy"] < heights["C"] <= heights["A & B"] - 12
    assert {"1", "1,000", "100,000", "recordings"} <= {each.text for each in drawn.iter(f"{inside}text")}
    assert "prefers-color-scheme: dark" in str(drawn.findtext(f"{inside}style"))
    assert "15,000 at 100,000" in str(drawn.findtext(f"{inside}desc"))


def test_a_results_file_without_throughput_draws_nothing(tmp_path: Path) -> None:
    """It says so, and leaves the picture that is there."""
    results, picture = tmp_path / "replay.json", tmp_path / "speed.svg"
    results.write_text(json.dumps({"rows": []}))
    picture.write_text("as it was")
    command = [sys.executable, str(BENCH / "replay"), "--draw", "--json", str(results), "--picture", str(picture)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "no throughput" in done.stderr
    assert picture.read_text() == "as it was"
