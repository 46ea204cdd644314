"""Files of human labels: what they may say, and what is wrong with them, line by line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llmproxy.errors import SettingsError
from llmproxy.scenario.lab.labels import read_labels

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
    """In the order of the file; empty lines and comments are skipped."""
    other = {"transcript": MESSAGES, "criteria": {"grüßt": True, "lies": False, "知道": "Inconclusive"}}
    first, second = read_labels(write(tmp_path, "# people", GOOD, "", other))
    assert (first.transcript.id, first.transcript.description, first.transcript.messages) == ("a", "d", MESSAGES)
    assert first.labels == {"greets": "passed", "is brief": None}
    assert second.transcript.id == "line-4"
    assert second.labels == {"grüßt": "passed", "lies": "failed", "知道": "inconclusive"}


def test_a_transcript_may_be_text(tmp_path: Path) -> None:
    """Lines with speakers; a line without one belongs to the one before."""
    text = "User: hi\nthere\nAgent: hello\nassistant:again"
    (found,) = read_labels(write(tmp_path, {"transcript": text, "criteria": {"c": "fail"}}))
    assert found.transcript.messages == [
        {"role": "user", "content": "hi\nthere"},
        {"role": "assistant", "content": "hello"},
        {"role": "assistant", "content": "again"},
    ]
    assert found.labels == {"c": "failed"}


def test_a_byte_order_mark_is_no_matter(tmp_path: Path) -> None:
    """As some editors write it."""
    path = write(tmp_path, GOOD)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert len(read_labels(path)) == 1


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
    """With its number and an example."""
    with pytest.raises(SettingsError) as caught:
        read_labels(write(tmp_path, {**GOOD, "id": "first"}, line))
    assert f"{tmp_path / 'labels.jsonl'}:2: " in str(caught.value)
    assert says in str(caught.value)
    assert '"label": "passed"' in str(caught.value)


def test_ids_are_not_shared(tmp_path: Path) -> None:
    """What is recorded of them would be mixed up."""
    with pytest.raises(SettingsError, match="'a' is taken"):
        read_labels(write(tmp_path, GOOD, GOOD))


def test_nothing_to_compare_is_refused(tmp_path: Path) -> None:
    """No file, no line, no label."""
    with pytest.raises(SettingsError, match="cannot be read"):
        read_labels(tmp_path / "nowhere")
    with pytest.raises(SettingsError, match="are empty"):
        read_labels(write(tmp_path, "# nothing"))
    with pytest.raises(SettingsError, match="has a label"):
        read_labels(write(tmp_path, {**GOOD, "criteria": {"c": None}}))
