"""The stream as JSON lines, and as one document."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmproxy.report.json_report import FORMAT, JsonLinesReport, read_report_runs, render_json_report
from llmproxy.report.report_kinds import WholeFileReportWriter
from tests.report import samples


def test_lines_are_there_as_soon_as_they_happen(tmp_path: Path) -> None:
    """A reader sees each event before the next one comes: nothing waits in a buffer."""
    out = tmp_path / "deep" / "events.jsonl"
    handler = JsonLinesReport(out)
    for number, event in enumerate(samples.events(), start=1):
        handler.handle(event)
        assert len(out.read_text("utf-8").splitlines()) == number
    handler.close()
    first = json.loads(out.read_text("utf-8").splitlines()[0])
    assert (first["event"], first["title"], first["scenarios"]) == ("selected", "Tasks & more", 5)


def test_the_document_holds_every_run_and_part(tmp_path: Path) -> None:
    """Nothing that happened is left out of the document."""
    out = tmp_path / "report.json"
    handler = WholeFileReportWriter(out, render_json_report)
    for event in samples.events():
        handler.handle(event)
    assert json.loads(out.read_text("utf-8"))["scenarios"] == []
    handler.close()
    told = json.loads(out.read_text("utf-8"))
    assert (told["format"], told["exit_code"], told["seconds"]) == (FORMAT, 1, 12.5)
    runs = {run["started"]["run_id"]: run for scenario in told["scenarios"] for run in scenario["runs"]}
    assert len(runs) == 10
    assert [part["event"] for part in runs["wrong-1"]["parts"]] == ["message", "message", "step", "verdict"]
    assert runs["cut-1"]["finished"] is None


def test_the_runs_of_both_forms_are_read_alike(tmp_path: Path) -> None:
    """A line an event, or a document; one that did not end has no end; other files are none."""
    started, message = (
        {"event": "started", "run_id": "r", "scenario": "s"},
        {"event": "message", "run_id": "r", "message": {}},
    )
    (tmp_path / "x.jsonl").write_text(
        "".join(json.dumps(each) + "\n" for each in ({"event": "selected"}, started, message))
    )
    runs = [{"started": started, "parts": [message], "finished": None}]
    (tmp_path / "x.json").write_text(json.dumps({"scenarios": [{"runs": runs}]}, indent=2))
    assert (
        read_report_runs(tmp_path / "x.jsonl") == read_report_runs(tmp_path / "x.json") == [(started, [message], None)]
    )
    (tmp_path / "y").write_text("[]")
    with pytest.raises((ValueError, KeyError, TypeError)):
        read_report_runs(tmp_path / "y")
