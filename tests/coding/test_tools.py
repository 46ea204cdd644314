"""Real servers of tools from npm and by the SDK for Python, under real clients: recorded in A, dead in B."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import needed

from .tools import EVERYTHING, FILESYSTEM, SECRET, ToolLab, differences, everything_over_http, problem

pytestmark = pytest.mark.sdk


@pytest.fixture(autouse=True)
def built() -> None:
    if said := problem():
        needed(said)


def test_everything_is_replayed_without_it(tmp_path: Path) -> None:
    """Images, resources, prompts, structured content, progress, sampling, elicitation: as recorded, alone and in any order; the environment's secret is not kept."""
    lab = ToolLab(tmp_path, EVERYTHING, "node")
    a, b = lab.place("a"), lab.place("another-one")
    calls = [*EVERYTHING.calls, *EVERYTHING.alone]
    (recorded,), _ = lab.run("record", a, calls=calls)
    assert [each["tool"] for each in recorded if each.get("error")] == []
    assert recorded[7]["progress"] == [1, 2, 3]
    assert [
        '"type":"image"' in recorded[3]["text"],
        '"blob":"' in recorded[11]["text"],
        "Rome" in recorded[13]["text"],
    ] == [True] * 3
    (replayed,), said = lab.run("replay", b, calls=calls)
    assert differences(recorded, replayed, a, b) == []
    assert ", 0 misses" in said
    assert (lab.started, SECRET in json.dumps(recorded), SECRET in json.dumps(replayed)) == (1, True, False)
    changed: list[Any] = [["echo", {"message": "another"}]]
    ((missed,),), _ = lab.run("replay", b, calls=changed)
    assert missed["error"]
    assert '$.params.arguments.message: "a" -> "another"' in missed["text"] or '-> "another"' in missed["text"]


def test_another_folder_s_files_have_its_names(tmp_path: Path) -> None:
    """`server-filesystem`, recorded in A, names B's folder in B; parallel calls in random order."""
    lab = ToolLab(tmp_path, FILESYSTEM, "python")
    a, b = lab.place("a"), lab.place("another-one")
    (recorded,), _ = lab.run("record", a, calls=FILESYSTEM.calls)
    (replayed,), said = lab.run("replay", b, calls=FILESYSTEM.calls, together=True, shuffle=5)
    assert differences(recorded, replayed, a, b) == []
    assert (lab.started, ", 0 misses" in said) == (1, True), said


def test_everything_over_http_may_be_dead(tmp_path: Path) -> None:
    """Recorded by the client for Node; then nobody listens there."""
    lab = ToolLab(tmp_path, EVERYTHING, "node")
    calls = [*EVERYTHING.calls, *EVERYTHING.alone]
    with everything_over_http(tmp_path) as origin:
        (recorded,), _ = lab.run_http("record", lab.place("a"), origin, calls=calls)
    (replayed,), said = lab.run_http("replay", lab.place("a"), origin, calls=calls)
    assert differences(recorded, replayed, tmp_path, tmp_path) == []
    assert ", 0 misses" in said
