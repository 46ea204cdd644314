"""What of a report can be labelled, and the line that comes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llmproxy.errors import SettingsError
from llmproxy.scenario.lab.labelling import known_ids, put_label, runs_of
from llmproxy.scenario.lab.labels import read_labels


def report(folder: Path, **changes: Any) -> Path:  # noqa: ANN401
    """Write a report of one run."""
    run = {
        "started": {"run_id": "run_12345678", "scenario": "refund", "sample": 2, "description": "a lamp", "criteria": ["polite"]},
        "parts": [
            {"event": "message", "message": {"role": "user", "content": "hi"}},
            {"event": "verdict", "criteria": [{"text": "fast", "status": "passed"}]},
        ],
        "finished": {"criteria": []},
    }  # fmt: skip
    path = folder / "report.json"
    path.write_text(json.dumps({"scenarios": [{"runs": [run | changes]}]}), encoding="utf-8")
    return path


def test_a_line_is_one_that_calibrate_reads(tmp_path: Path) -> None:
    """The criteria are the judge's, then those that it never spoke of."""
    (found,) = runs_of(report(tmp_path))
    assert (found.id, found.criteria) == ("refund~2 12345678", ("fast", "polite"))
    labels = tmp_path / "labels.jsonl"
    labels.write_text(found.line(["failed", None]) + "\n", encoding="utf-8")
    (read,) = read_labels(labels)
    assert (read.transcript.description, dict(read.labels)) == ("a lamp", {"fast": "failed", "polite": None})
    assert known_ids(labels) == {"refund~2 12345678"}


def test_what_cannot_be_labelled_is_said(tmp_path: Path) -> None:
    """No such file, no report, no such run, nothing said, nothing judged."""
    with pytest.raises(SettingsError, match="cannot be read"):
        runs_of(tmp_path / "none.json")
    (tmp_path / "x.json").write_text("[]")
    with pytest.raises(SettingsError, match="no JSON report") as caught:
        runs_of(tmp_path / "x.json")
    assert "--report json=FILE" in (caught.value.hint or "")
    with pytest.raises(SettingsError, match="begins with 'other'"):
        runs_of(report(tmp_path), "other")
    with pytest.raises(SettingsError, match="has a conversation"):
        runs_of(report(tmp_path, parts=[]))
    bare = {"run_id": "r", "scenario": "s"}
    said = [{"event": "message", "message": {"role": "user", "content": "hi"}}]
    with pytest.raises(SettingsError, match="was judged by criteria"):
        runs_of(report(tmp_path, started=bare, parts=said))
    assert runs_of(report(tmp_path, started=bare, parts=said), criteria=["kind"])[0].criteria == ("kind",)
    with pytest.raises(SettingsError, match="no file of labels"):
        known_ids(report(tmp_path))


def test_labels_are_put_one_by_one_beside_others(tmp_path: Path) -> None:
    """A line a conversation: a second label of it joins the first, and a changed mind takes its place."""
    report, labels = tmp_path / "report.json", tmp_path / "labels.jsonl"
    said = {
        "started": {"scenario": "s", "sample": 1, "run_id": "run-12345678", "criteria": ["polite", "brief"]},
        "parts": [{"event": "message", "message": {"role": "user", "content": "hi"}}],
        "finished": None,
    }
    report.write_text(json.dumps({"scenarios": [{"runs": [said]}]}), "utf-8")
    labels.write_text('# by hand\n{"id": "x", "messages": [], "criteria": {"a": "passed"}}\n', "utf-8")
    for criterion, label in (("polite", "passed"), ("brief", "failed"), ("polite", "inconclusive")):
        put_label(labels, report, "run-12345678", criterion, label)
    first, second, third = labels.read_text("utf-8").splitlines()
    assert (first, json.loads(second)["id"]) == ("# by hand", "x")
    found = {each["text"]: each["label"] for each in json.loads(third)["criteria"]}
    assert found == {"polite": "inconclusive", "brief": "failed"}
    for run, criterion, label in (
        ("no", "polite", "passed"),
        ("", "polite", "passed"),
        ("run", "rude", "passed"),
        ("run", "polite", "x"),
    ):
        with pytest.raises(SettingsError):
            put_label(labels, report, run, criterion, label)


@pytest.mark.parametrize("data", [b"\xff\xfe\x80", "{}".encode("utf-16"), b"[" * 100_000, b"5", b"\0"])
def test_a_file_that_is_none_of_labels_is_refused_in_words(tmp_path: Path, data: bytes) -> None:
    """Nothing is added to it."""
    path = tmp_path / "labels.jsonl"
    path.write_bytes(data)
    with pytest.raises(SettingsError, match="is no file of labels"):
        known_ids(path)
    assert path.read_bytes() == data
