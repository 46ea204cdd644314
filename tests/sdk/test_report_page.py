"""The HTML report in a real browser: on a phone and on a desk, everything can be read, nothing overflows, nothing is loaded."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from llmproxy.report.html import page
from tests.report import samples

from .environments import NODE, interpreter

WIDTHS = (375, 1280)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory, environments: dict[str, str]) -> dict[int, dict[str, Any]]:
    """What the browser says of the sample's page, by width."""
    if problem := environments["node"]:
        pytest.skip(problem)
    folder = tmp_path_factory.mktemp("page")
    (folder / "report.html").write_text(page(samples.story()), "utf-8")
    command = [
        interpreter("node"),
        "look_at_page.mjs",
        str(folder / "report.html"),
        ",".join(map(str, WIDTHS)),
        str(folder),
    ]
    done = subprocess.run(command, cwd=NODE, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return {line["width"]: line for line in map(json.loads, done.stdout.splitlines())}


@pytest.mark.sdk
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_overflows(seen: dict[int, dict[str, Any]], width: int) -> None:
    """A word of 444 letters wraps; no box reaches beyond the screen, none is squeezed to nothing."""
    assert (seen[width]["overflow"], seen[width]["wide"], seen[width]["invisible"]) == (0, [], [])


@pytest.mark.sdk
@pytest.mark.parametrize("width", WIDTHS)
def test_every_message_and_criterion_is_in_the_text(seen: dict[int, dict[str, Any]], width: int) -> None:
    """What a browser shows holds every message, criterion, reason and check."""
    text = seen[width]["text"]
    for run in samples.story().runs.values():
        for message in run.messages:
            assert message.message["content"].partition("\x00")[0] in text
        for criterion in run.criteria:
            assert criterion.text in text
    assert "the new task is called 'Review PRs', not 'Review PR'" in text


@pytest.mark.sdk
@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_asks_for_nothing_and_runs_nothing(seen: dict[int, dict[str, Any]], width: int) -> None:
    """One request, the page itself; no dialog from an answer that holds a script, nothing on the console."""
    assert (seen[width]["asked"], seen[width]["problems"]) == (1, [])
