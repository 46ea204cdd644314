"""What --report can be."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from llmproxy.errors import Exit, SettingsError
from llmproxy.report.report_kinds import KINDS, WholeFileReportWriter, create_report_event_handler
from tests.report import samples


def test_an_old_report_does_not_outlive_a_run_that_died(tmp_path: Path) -> None:
    """From the start of a run its file is that of a test that did not end, so nobody takes the last run's for this one's."""
    out = tmp_path / "report.txt"
    out.write_text("all passed")
    out.chmod(0o640)
    handler = WholeFileReportWriter(
        out, lambda story: f"{len(story.runs)} runs, {'over' if story.completed else 'not over'}, half \ud800"
    )
    assert out.read_text("utf-8") == "0 runs, not over, half \\ud800"
    samples.feed(handler)
    assert out.read_text("utf-8") == "10 runs, over, half \\ud800"
    assert out.stat().st_mode & 0o777 == 0o640
    assert [each.name for each in tmp_path.iterdir()] == ["report.txt"]


@pytest.mark.parametrize("kind", ["junit", "html", "json"])
def test_a_report_is_a_whole_document_from_its_beginning(tmp_path: Path, kind: str) -> None:
    """Nothing selected, or killed: what reads it can, and reads no success."""
    out = tmp_path / "report"
    create_report_event_handler(f"{kind}={out}")
    said = out.read_text("utf-8")
    assert {"junit": "<error", "html": "did not end", "json": '"exit_code": null'}[kind] in said
    if kind == "junit":
        assert ET.fromstring(said).get("errors") == "1"


@pytest.mark.parametrize(
    ("text", "said"), [("xml=a", "there is no 'xml'"), ("junit", "junit=report.xml"), ("html=", "needs a file")]
)
def test_what_cannot_be_is_refused_with_what_can(text: str, said: str) -> None:
    """The error names the choice and what to type."""
    with pytest.raises(SettingsError, match=said) as caught:
        create_report_event_handler(text)
    assert caught.value.exit_code is Exit.USAGE


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_cannot_be_written_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="cannot write"):
        create_report_event_handler(f"{kind}={tmp_path / 'file' / 'x'}")
