"""What looks like it changes by itself, and what does not."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from llmproxy.core.traffic.differences import common_prefix, differences, is_one, volatile

VOLATILE = [
    ("Today is 2026-11-19.", "Today is 2026-11-20.", "date/time"),
    ("at 2026-11-19T10:00:00Z sharp", "at 2026-11-19T10:00:07Z sharp", "date/time"),
    ("It is Thursday, November 19, 2026.", "It is Friday, November 20, 2026.", "date/time"),
    ("now 9:05 PM", "now 10:05 PM", "date/time"),
    ("id 123e4567-e89b-12d3-a456-426614174000", "id 9b2e4567-e89b-12d3-a456-426614174111", "uuid"),
    ("in /tmp/pytest-1/a", "in /tmp/pytest-22/a", "temporary path"),
    ("cwd: /home/ann/work", "cwd: /home/bob/work", "home or working folder"),
    ("http://localhost:41231/x", "http://localhost:50112/x", "port"),
    ("at http://127.0.0.1:29627/mcp", "at http://127.0.0.1:38112/mcp", "port"),
    ("took until 12:41:07.25 today", "took until 12:41:09.5 today", "date/time"),
    ("ts=1763550000", "ts=1763550001", "unix timestamp"),
    ("call_Ab12Cd34", "call_Zz98Yy76", "tool-call id"),
    ("see resp_68aa0011bb22", "see resp_77cc0011bb22", "object id"),
    ("commit 3f9a2b1c", "commit a81b4d2e", "random hex"),
    ("run k3J9x0aQ77Lm2", "run p0Z1b8Rw45Ty9", "random id"),
    ("attempt 9 of it", "attempt 10 of it", "counter"),
    ("step 1", "step 12", "counter"),
    (1763550000, 1763550042, "unix timestamp"),
    (1763550000.25, 1763550042.5, "unix timestamp"),
]
REAL = [
    ("Write a poem.", "Write a novel."), (0.2, 0.7), (100, 200), (True, False), ("a", None), ({"a": 1}, {"a": 2}),
    ("keep 3 apples", "keep 4 pears"), ("today is 2026-11-19", "today is nice"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "kind"), VOLATILE)
def test_kinds(old: object, new: object, kind: str) -> None:
    """What changes from run to run by nature is recognised, in both directions."""
    assert volatile(old, new) == kind
    assert volatile(new, old) == kind


@pytest.mark.parametrize(("old", "new"), REAL)
def test_real_changes(old: object, new: object) -> None:
    """A real change of the request is never called volatile."""
    assert volatile(old, new) is None


def test_place_in_a_long_text() -> None:
    """The value is found wherever it stands in a long text."""
    text = "lorem ipsum " * 2000
    assert volatile(f"{text}on 2026-11-19 {text}", f"{text}on 2026-11-20 {text}") == "date/time"


def test_model_names_are_choices() -> None:
    """A date in a model's name is a choice, not the time of day."""
    assert differences({"model": "gpt-4o-2024-08-06"}, {"model": "gpt-4o-2024-11-20"})[0].looks is None


def test_is_one() -> None:
    """A value is told from a text that merely contains one."""
    assert is_one("123e4567-e89b-12d3-a456-426614174000")
    assert not is_one("the id 123e4567-e89b-12d3-a456-426614174000")
    assert not is_one("7")


@given(st.text(), st.text(), st.text())
def test_common_prefix(start: str, left: str, right: str) -> None:
    """The common prefix is common, and one character more is not."""
    a, b = start + left, start + right
    n = common_prefix(a, b)
    assert a[:n] == b[:n]
    assert n == min(len(a), len(b)) or a[n] != b[n]
