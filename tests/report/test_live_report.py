"""A test is followed while it runs: what is new since the last question, and whether it goes on."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from llmproxy.errors import SettingsError
from llmproxy.report.events import Completed, Event, Finished, Message, Selected, Started, Status
from llmproxy.report.json_report import (
    JsonLinesReport,
    is_live_report_being_written,
    read_report_runs,
    render_json_report,
)
from llmproxy.report.live_report_reader import GrowingReportReader, make_report_query_handler, read_finished_report
from tests.report import samples

BEGIN = Selected(title="tasks", scenarios=2, runs=3, at=60.0)


def begun(name: str, sample: int = 1, runs: int = 1) -> Event:
    return Started(run_id=f"{name}-{sample}", scenario=name, name=name, sample=sample, runs=runs)


def ended(name: str, status: Status = Status.PASSED, sample: int = 1) -> Event:
    return Finished(run_id=f"{name}-{sample}", scenario=name, status=status)


def said(name: str) -> Event:
    return Message(run_id=f"{name}-1", message={"role": "user", "content": "hi"})


def write(writer: JsonLinesReport, *events: Event) -> None:
    for event in events:
        writer.handle(event)


def test_scenarios_are_told_as_they_begin_and_end(tmp_path: Path) -> None:
    """Each with its state; asked again, only those in which something happened, whole."""
    path = tmp_path / "last.jsonl"
    followed = GrowingReportReader(path)
    assert (followed.read_state("", 0)["running"], followed.read_state("", 0)["scenarios"]) == (False, [])
    writer = JsonLinesReport(path)
    write(writer, BEGIN, begun("one"), said("one"))
    first = followed.read_state("", 0)
    assert (first["running"], first["title"], first["wanted"]) == (True, "tasks", {"scenarios": 2, "runs": 3})
    assert [(each["n"], each["status"], each["runs"][0]["status"]) for each in first["scenarios"]] == [
        (0, "running", "running")
    ]
    write(writer, ended("one", Status.FAILED), begun("two", 1, 2))
    second = followed.read_state(first["test"], first["count"])
    found = [(each["n"], each["id"], each["status"]) for each in second["scenarios"]]
    assert found == [(0, "one", "failed"), (1, "two", "running")]
    write(writer, ended("two"))
    third = followed.read_state(second["test"], second["count"])
    assert [(each["id"], each["status"]) for each in third["scenarios"]] == [("two", "running")]  # its second run comes
    assert followed.read_state(third["test"], third["count"])["scenarios"] == []
    row = {"scenario": "one", "status": "passed"}
    write(
        writer, begun("two", 2, 2), ended("two", Status.PASSED, 2), Completed(exit_code=1, seconds=2.0, scenarios=[row])
    )
    over = followed.read_state(third["test"], third["count"])
    assert (over["running"], over["exit_code"]) == (False, 1)
    told = [each["status"] for each in over["scenarios"]]
    assert told == ["passed", "passed"]  # all of them: the end may say otherwise
    writer.close()
    assert followed.read_state(over["test"], over["count"])["scenarios"] == []


def test_who_was_killed_runs_no_more(tmp_path: Path) -> None:
    """Its file looks like that of a test that runs; nobody holds it."""
    path = tmp_path / "last.jsonl"
    writer, followed = JsonLinesReport(path), GrowingReportReader(path)
    write(writer, BEGIN, begun("one"))
    told = followed.read_state("", 0)
    assert (told["running"], is_live_report_being_written(path)) == (True, True)
    writer.close()
    now = followed.read_state(told["test"], told["count"])
    assert (now["running"], is_live_report_being_written(path)) == (False, False)
    assert [(each["status"], each["runs"][0]["why"]) for each in now["scenarios"]] == [
        ("environment_error", "it did not end: the tests were interrupted")
    ]


def test_the_next_test_is_told_from_its_beginning(tmp_path: Path) -> None:
    """Whoever follows knows the name of another one, however long that has become meanwhile."""
    path = tmp_path / "last.jsonl"
    followed = GrowingReportReader(path)
    for at, names in ((1.0, ("one",)), (2.0, ("one", "two", "three"))):
        writer = JsonLinesReport(path)
        write(writer, Selected(title="t", scenarios=1, runs=1, at=at), *map(begun, names))
        told = followed.read_state("1", 1)
        assert [each["id"] for each in told["scenarios"]] == list(names)
        writer.close()


def test_half_a_line_waits_for_its_other_half(tmp_path: Path) -> None:
    """What is being written is neither told nor an error; for labels of a killed test neither."""
    path = tmp_path / "last.jsonl"
    writer = JsonLinesReport(path)
    write(writer, BEGIN, begun("one"))
    writer.close()
    with path.open("a") as out:
        out.write('{"event": "fini')
    followed = GrowingReportReader(path)
    assert followed.read_state("", 0)["count"] == 2
    assert [entry[2] for entry in read_report_runs(path)] == [None]
    with path.open("a") as out:
        out.write('shed", "run_id": "one-1", "scenario": "one", "status": "passed"}\n')
    assert followed.read_state("", 0)["scenarios"][0]["runs"][0]["status"] == "passed"


def test_two_tests_write_one_file_one_after_the_other(tmp_path: Path) -> None:
    """The second is told; what the first writes stays whole."""
    path = tmp_path / "last.jsonl"
    first = JsonLinesReport(path)
    write(first, BEGIN)
    with pytest.raises(BlockingIOError, match="another test that runs writes it"):
        JsonLinesReport(path)
    write(first, begun("one"))
    assert len(path.read_text().splitlines()) == 2
    first.close()
    JsonLinesReport(path).close()
    assert path.read_text() == ""


@pytest.mark.parametrize("line", ['{"event": "begun"}', '{"event": "selected", "new": 1}', "[]", "\x00"])
def test_what_cannot_be_read_is_said(tmp_path: Path, line: str) -> None:
    """By a path and a way out: a line of another version, or no line of a report."""
    path = tmp_path / "last.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(SettingsError, match="is no report that this version reads"):
        GrowingReportReader(path).read_state("", 0)


def test_a_document_is_sent_once(tmp_path: Path) -> None:
    """And again when the file is another one; of another version it is refused."""
    path = tmp_path / "report.json"
    path.write_text(render_json_report(samples.story()), "utf-8")
    told = make_report_query_handler(path, tmp_path / "state.db")
    first = told({})
    assert (len(first["scenarios"]), first["trend"]) == (6, [])
    assert told({"test": first["test"]})["scenarios"] == []
    os.utime(path, ns=(1, 1))
    assert len(told({"test": first["test"]})["scenarios"]) == 6
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), "format": 7}))
    with pytest.raises(SettingsError, match="a report of format 7; this version reads 1"):
        read_finished_report(path)
    path.write_text("{}")
    with pytest.raises(SettingsError, match="is no JSON report of tests"):
        read_finished_report(path)
