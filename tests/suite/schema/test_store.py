"""What a scenario says about the store."""

from __future__ import annotations

import pytest

from llmproxy.errors import SuiteError
from llmproxy.suite.reading.fragment import load_fragment
from llmproxy.suite.schema.store import PauseFor, WaitFor


def test_waiting_for_a_row_and_for_a_time() -> None:
    """Milliseconds, or a text with a unit; defaults are half a minute and a second."""
    row = load_fragment("step", "{wait: {entity: t, id: 5, until: {a: 1}, timeout: 3s}}").wait
    assert isinstance(row, WaitFor)
    assert (row.timeout, row.poll_interval, row.id) == (3000.0, 1000, 5)
    pauses = [load_fragment("step", text).wait for text in ("{wait: {seconds: 2}}", "{wait: {ms: 0}}")]
    assert all(isinstance(pause, PauseFor) for pause in pauses)
    assert [pause.milliseconds for pause in pauses] == [2000.0, 0.0]


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ("{verify: {entity: t}}", "`verify` selects nothing"),
        ("{verify: {entity: t, as: $x}}", "`verify` selects nothing"),
        ("{verify: {entity: t, exists: false, filters: {a: 1}, fields: {b: 2}}}", "leaves no row whose fields"),
        ("{verify: {count: 1}}", "`entity` is missing"),
        ("{verify: tasks}", "takes a mapping"),
        ("{wait: {entity: t}}", "`until` is missing"),
        ("{wait: {entity: t, until: {a: {gt: x}}}}", "takes a number or a date"),
        ("{wait: {seconds: 1, ms: 2}}", "either `seconds` or `ms`"),
        ("{wait: {seconds: 1, until: {a: 1}}}", "unknown key `until`"),
        ("{wait: 5}", "takes a mapping"),
        ("{setup: []}", "at least one item"),
        ("{setup: [{insert: t}]}", "`data` is missing"),
        ("{setup: [{insert: t, data: [1]}]}", "takes a mapping"),
        ("{setup: [{inserts: t, data: {}}]}", "did you mean `insert`?"),
    ],
)
def test_what_cannot_be_meant_is_refused(step: str, words: str) -> None:
    """Each with its reason."""
    with pytest.raises(SuiteError) as caught:
        load_fragment("step", step)
    assert words in str(caught.value)


def test_verify_takes_all_ways_to_select() -> None:
    """By id (also by reference), by filters, all rows by number, absence."""
    made = load_fragment(
        "step", "{verify: {entity: t, id: {ref: $x.id}, fields: {a: 1}, as: $y}}", declared=["x"]
    ).verify
    assert (made.id, made.fields, made.as_) == ({"ref": "$x.id"}, {"a": 1}, "y")
    assert load_fragment("step", "{verify: {entity: t, filters: {a: 1}}}").verify.count is None
    assert load_fragment("step", "{verify: {entity: t, count: 0}}").verify.count == 0
    assert load_fragment("step", "{verify: {entity: t, id: 1, exists: false}}").verify.exists is False
