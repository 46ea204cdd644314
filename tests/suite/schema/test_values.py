"""Values say what they take."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from llmproxy.suite.schema.assertions import (
    Capture,
    Count,
    Flag,
    Milliseconds,
    Pause,
    PauseFor,
    Reason,
    Share,
    Text,
    Texts,
    Times,
    WaitForRows,
)
from tests.suite.fragment import load_fragment

TAKEN: list[tuple[Any, object, object]] = [
    (Milliseconds, 30000, 30000.0),
    (Milliseconds, "30s", 30000.0),
    (Milliseconds, "500ms", 500.0),
    (Milliseconds, "1.5 m", 90000.0),
    (Milliseconds, "1h", 3600000.0),
    (Pause, 0, 0.0),
    (Texts, "a", ("a",)),
    (Texts, ["a", "b"], ("a", "b")),
    (Times, 3, 3),
    (Share, 1, 1.0),
    (Capture, "$task", "task"),
    (Capture, "task", "task"),
    (Reason, True, True),
    (Reason, "because", "because"),
    (Count, {"gte": 1}, {"gte": 1}),
    (Flag, False, False),
]
REFUSED: list[tuple[Any, object, str]] = [
    (Milliseconds, 0, "more than 0"),
    (Milliseconds, "30", 'a text such as "30s"'),
    (Milliseconds, "30 sec", 'a text such as "30s"'),
    (Milliseconds, True, "not a boolean true"),
    (Milliseconds, "100h", "takes milliseconds"),
    (Pause, -1, "0 or more"),
    (Text, "", "not empty"),
    (Text, "  ", "not empty"),
    (Text, None, "takes a text, not null"),
    (Times, 0, "a whole number from 1"),
    (Times, "5", "a whole number from 1"),
    (Times, True, "a whole number from 1"),
    (Times, 1.5, "a whole number from 1"),
    (Share, 1.1, "above 0, up to 1"),
    (Share, "1", "above 0, up to 1"),
    (Capture, "$a.b", "takes a name such as $task"),
    (Capture, "ä", "takes a name such as $task"),
    (Capture, "$userId", "is built in"),
    (Flag, "no", "takes true or false"),
    (Flag, 1, "takes true or false"),
    (Reason, "yes", "takes true, false or a reason"),
    (Count, {"min": 1}, "unknown key `min`"),
]


@pytest.mark.parametrize(("kind", "value", "made"), TAKEN, ids=lambda value: repr(value)[:40])
def test_values_are_read(kind: type, value: object, made: object) -> None:
    """Durations in milliseconds or with a unit, one text or several, names with or without a dollar sign."""
    assert TypeAdapter(kind).validate_python(value) == made


@pytest.mark.parametrize(("kind", "value", "words"), REFUSED, ids=lambda value: repr(value)[:40])
def test_values_of_another_kind_are_refused(kind: type, value: object, words: str) -> None:
    """Nothing is converted: the text "5" is not the number 5."""
    with pytest.raises(ValidationError, match=re.escape(words)):
        TypeAdapter(kind).validate_python(value)


def test_waiting_for_a_row_and_for_a_time() -> None:
    """Milliseconds, or a text with a unit; defaults are half a minute and a second."""
    row = load_fragment("step", "{wait: {entity: t, id: 5, until: {a: 1}, timeout: 3s}}").wait
    assert isinstance(row, WaitForRows)
    assert (row.timeout, row.poll_interval, row.id) == (3000.0, 1000, 5)
    pauses = [load_fragment("step", text).wait for text in ("{wait: {seconds: 2}}", "{wait: {ms: 0}}")]
    assert all(isinstance(pause, PauseFor) for pause in pauses)
    assert [pause.milliseconds for pause in pauses] == [2000.0, 0.0]


def test_verify_takes_all_ways_to_select() -> None:
    """By id (also by reference), by filters, all rows by number, absence."""
    made = load_fragment(
        "step", "{verify: {entity: t, id: {ref: $x.id}, fields: {a: 1}, as: $y}}", declared=["x"]
    ).verify
    assert (made.id, made.fields, made.as_) == ({"ref": "$x.id"}, {"a": 1}, "y")
    assert load_fragment("step", "{verify: {entity: t, filters: {a: 1}}}").verify.count is None
    assert load_fragment("step", "{verify: {entity: t, count: 0}}").verify.count == 0
    assert load_fragment("step", "{verify: {entity: t, id: 1, exists: false}}").verify.exists is False
