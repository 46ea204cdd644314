"""The example files of the pages run as they stand: recorded once, replayed with the provider gone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.provider import Provider, Step, step
from tests.scenario.parties import finish
from tests.support.process import ROOT
from tests.support.pytest_run import at, run

_FILE = re.compile(r"^```\w+ example ([\w.]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PAGES = (*(ROOT / "docs").glob("*.md"), ROOT / "README.md")
PAGES = {page.stem: dict(_FILE.findall(page.read_text("utf-8"))) for page in _PAGES}
FILES = {name: text for files in PAGES.values() for name, text in files.items()}


def steps() -> list[Step]:
    """Return what models say: judges that are content, a user of few words."""
    return [
        finish("passed", "passed", contains='"c2"', times=None),
        finish("passed", contains="finish_test", times=None),
        step(model="gpt-4o-mini", say="Fry the rice. Take an umbrella: rain. Along the river, then left.", times=None),
        step(model="gpt-4.1-mini", say="and then?", times=None),
    ]


@pytest.mark.slow
def test_every_file_runs_and_replays(tmp_path: Path) -> None:
    """With nothing but pytest and an SDK."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, "utf-8")
    tests = 1 + sum(len(re.findall(r"^ *(?:async )?def test_", text, re.MULTILINE)) for text in FILES.values())
    with Provider(steps(), ordered=False) as provider:
        made = run(tmp_path, "--llmproxy-mode", "record", **at(provider))
    done = run(tmp_path, "--llmproxy-mode", "replay")
    recorded, replayed = made.stdout.str(), done.stdout.str()
    assert (made.ret, done.ret) == (0, 0), recorded + replayed
    assert re.search(rf"^{tests} tests: 0 hits, 0 misses, [0-9]+ recorded", recorded, re.MULTILINE)
    assert re.search(
        rf"^{tests} tests: [0-9]+ hits \(1 bound: order.id\), 0 misses, 0 recorded", replayed, re.MULTILINE
    )
    assert (f"{tests} passed" in recorded, f"{tests} passed" in replayed) == (True, True)


def test_no_file_takes_the_place_of_another() -> None:
    assert sum(map(len, PAGES.values())) == len(FILES) > 8


@pytest.mark.parametrize("text", PAGES["scenario-examples"].values(), ids=PAGES["scenario-examples"])
def test_only_the_import_tells_them_from_the_originals(text: str) -> None:
    assert [line for line in text.splitlines() if "llmproxy" in line] == ["from llmproxy import scenario"]
