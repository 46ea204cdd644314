"""Reports that are one document."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmproxy.report.at_end import AtEnd
from tests.report import samples


def test_an_old_report_does_not_outlive_a_run_that_died(tmp_path: Path) -> None:
    """From the start of a run its file is empty, so nobody takes the last run's for this one's."""
    out = tmp_path / "report.txt"
    out.write_text("all passed")
    handler = AtEnd(out, lambda story: f"{len(story.runs)} runs, half \ud800")
    assert out.read_bytes() == b""
    for event in samples.events():
        handler.handle(event)
    handler.close()
    assert out.read_text("utf-8") == "10 runs, half \\ud800"


def test_a_place_that_cannot_be_written_to_is_refused_at_once(tmp_path: Path) -> None:
    """Not after an hour of tests."""
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        AtEnd(tmp_path / "file" / "x.html", lambda _story: "")
