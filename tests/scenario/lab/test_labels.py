"""Files of human labels: what they may say, and what is wrong with them, line by line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llmproxy.errors import SettingsError
from llmproxy.scenario.lab.human_labels import (
    add_or_replace_label,
    list_labelable_conversations,
    read_human_labels,
    read_labelled_conversation_ids,
)

MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
GOOD: dict[str, Any] = {
    "id": "a",
    "description": "d",
    "messages": MESSAGES,
    "criteria": [{"text": "greets", "label": "passed"}, {"text": "is brief", "label": None, "comment": "?"}],
}


def write(folder: Path, *lines: object) -> Path:
    """Write lines, objects as JSON."""
    path = folder / "labels.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n", "utf-8")
    return path


def test_a_line_is_a_conversation_with_labels(tmp_path: Path) -> None:
    """In the order of the file, without empty lines and comments; text is lines with speakers; a byte order mark is no matter."""
    other = {"transcript": MESSAGES, "criteria": {"grüßt": True, "lies": False, "知道": "Inconclusive"}}
    first, second = read_human_labels(write(tmp_path, "# people", GOOD, "", other))
    assert (first.transcript.id, first.transcript.description, first.transcript.messages) == ("a", "d", MESSAGES)
    assert first.labels == {"greets": "passed", "is brief": None}
    assert second.transcript.id == "line-4"
    assert second.labels == {"grüßt": "passed", "lies": "failed", "知道": "inconclusive"}
    text = "User: hi\nthere\nAgent: hello\nassistant:again"
    (found,) = read_human_labels(write(tmp_path, {"transcript": text, "criteria": {"c": "fail"}}))
    lines = (("user", "hi\nthere"), ("assistant", "hello"), ("assistant", "again"))
    assert found.transcript.messages == [{"role": role, "content": text} for role, text in lines]
    assert found.labels == {"c": "failed"}
    path = write(tmp_path, GOOD)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert len(read_human_labels(path)) == 1


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "this is not JSON"),
        ('{"id": "a", "id": "b"}', "'id' stands twice in one object"),
        ("[1]", "no JSON object"),
        ({**GOOD, "mesages": []}, "unknown member mesages"),
        ({**GOOD, "transcript": MESSAGES}, "one of them"),
        ({"id": "a", "criteria": {"c": True}}, "one of them"),
        ({**GOOD, "messages": [{"content": "x"}]}, "each with a role"),
        ({**GOOD, "messages": []}, "no messages"),
        ({**GOOD, "id": ""}, "needs an id"),
        ({"transcript": "hello", "criteria": {"c": True}}, "begins its lines with"),
        ({**GOOD, "criteria": "greets"}, "'criteria' takes"),
        ({**GOOD, "criteria": []}, "no criteria"),
        ({**GOOD, "criteria": [{"text": "c", "lable": "passed"}]}, "no lable"),
        ({**GOOD, "criteria": [{"label": "passed"}]}, "takes a text"),
        ({**GOOD, "criteria": [{"text": "c"}, {"text": "c"}]}, "there twice"),
        ({**GOOD, "criteria": {"c": "maybe"}}, "'maybe' is no label"),
        ({**GOOD, "criteria": {"c": 1}}, "1 is no label"),
        ({**GOOD, "criteria": {"c": ["passed"]}}, "is no label"),
    ],
    ids=str,
)
def test_a_wrong_line_is_named(tmp_path: Path, line: object, says: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_human_labels(write(tmp_path, {**GOOD, "id": "first"}, line))
    assert f"{tmp_path / 'labels.jsonl'}:2: " in str(caught.value)
    assert says in str(caught.value)
    assert '"label": "passed"' in str(caught.value)


def test_nothing_to_compare_is_refused(tmp_path: Path) -> None:
    """No file, no line, no label; what is recorded under an id that is there twice would be mixed up."""
    with pytest.raises(SettingsError, match="cannot be read"):
        read_human_labels(tmp_path / "nowhere")
    with pytest.raises(SettingsError, match="are empty"):
        read_human_labels(write(tmp_path, "# nothing"))
    with pytest.raises(SettingsError, match="has a label"):
        read_human_labels(write(tmp_path, {**GOOD, "criteria": {"c": None}}))
    with pytest.raises(SettingsError, match="'a' is taken"):
        read_human_labels(write(tmp_path, GOOD, GOOD))


# -- What of a report can be labelled, and the line that comes of it


SAID = {"event": "message", "message": {"role": "user", "content": "hi"}}
STARTED = {"run_id": "run_12345678", "scenario": "refund", "sample": 2, "description": "a lamp", "criteria": ["polite"]}


def report(folder: Path, **changes: Any) -> Path:
    judged = {"event": "verdict", "criteria": [{"text": "fast", "status": "passed"}]}
    run = {"started": STARTED, "parts": [SAID, judged], "finished": {"criteria": []}}
    path = folder / "report.json"
    path.write_text(json.dumps({"scenarios": [{"runs": [run | changes]}]}), encoding="utf-8")
    return path


def test_a_line_is_one_that_calibrate_reads(tmp_path: Path) -> None:
    """The criteria are the judge's, then those that it never spoke of."""
    (found,) = list_labelable_conversations(report(tmp_path))
    assert (found.id, found.criteria) == ("refund~2 12345678", ("fast", "polite"))
    labels = tmp_path / "labels.jsonl"
    labels.write_text(found.format_jsonl_line(["failed", None]) + "\n", encoding="utf-8")
    (read,) = read_human_labels(labels)
    assert (read.transcript.description, dict(read.labels)) == ("a lamp", {"fast": "failed", "polite": None})
    assert read_labelled_conversation_ids(labels) == {"refund~2 12345678"}


def test_what_cannot_be_labelled_is_said(tmp_path: Path) -> None:
    """No such file, no report, no such run, nothing said, nothing judged."""
    with pytest.raises(SettingsError, match="cannot be read"):
        list_labelable_conversations(tmp_path / "none.json")
    (tmp_path / "x.json").write_text("[]")
    with pytest.raises(SettingsError, match="no JSON report") as caught:
        list_labelable_conversations(tmp_path / "x.json")
    assert "--report json=FILE" in (caught.value.hint or "")
    with pytest.raises(SettingsError, match="begins with 'other'"):
        list_labelable_conversations(report(tmp_path), "other")
    with pytest.raises(SettingsError, match="has a conversation"):
        list_labelable_conversations(report(tmp_path, parts=[]))
    bare = {"run_id": "r", "scenario": "s"}
    unjudged = report(tmp_path, started=bare, parts=[SAID])
    with pytest.raises(SettingsError, match="was judged by criteria"):
        list_labelable_conversations(unjudged)
    assert list_labelable_conversations(unjudged, criteria=["kind"])[0].criteria == ("kind",)
    with pytest.raises(SettingsError, match="no file of labels"):
        read_labelled_conversation_ids(report(tmp_path))


def test_labels_are_put_one_by_one_beside_others(tmp_path: Path) -> None:
    """A line a conversation: a second label of it joins the first, and a changed mind takes its place."""
    started = STARTED | {"criteria": ["polite", "brief"]}
    labels, path = tmp_path / "labels.jsonl", report(tmp_path, started=started, parts=[SAID], finished=None)
    labels.write_text('# by hand\n{"id": "x", "messages": [], "criteria": {"a": "passed"}}\n', "utf-8")
    for criterion, label in (("polite", "passed"), ("brief", "failed"), ("polite", "inconclusive")):
        add_or_replace_label(labels, path, "run_12345678", criterion, label)
    first, second, third = labels.read_text("utf-8").splitlines()
    assert (first, json.loads(second)["id"]) == ("# by hand", "x")
    found = {each["text"]: each["label"] for each in json.loads(third)["criteria"]}
    assert found == {"polite": "inconclusive", "brief": "failed"}
    for wrong in (
        ("no", "polite", "passed"),
        ("", "polite", "passed"),
        ("run", "rude", "passed"),
        ("run", "polite", "x"),
    ):
        with pytest.raises(SettingsError):
            add_or_replace_label(labels, path, *wrong)


@pytest.mark.parametrize("data", [b"\xff\xfe\x80", "{}".encode("utf-16"), b"[" * 100_000, b"5", b"\0"])
def test_a_file_that_is_none_of_labels_is_refused_in_words(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_bytes(data)
    with pytest.raises(SettingsError, match="is no file of labels"):
        read_labelled_conversation_ids(path)
    assert path.read_bytes() == data
