"""Which scenarios run: everything that is asked for must hold, and what is misspelt is said."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from llmproxy.errors import SuiteError
from llmproxy.suite.choose.selection import Wanted, expression, select, until
from llmproxy.suite.reading.load import SuiteCase
from tests.suite import rig

TEXT = """
name: t
scenarios:
  - {id: a, name: First thing, tags: [smoke, fast], steps: [{chat: x, label: one}, {chat: y, label: two}]}
  - {id: b, description: About milk, tags: [smoke, slow], steps: [{chat: x}]}
  - {id: c, tags: [tasks], parametrize: [{n: 1}, {n: 2}], steps: [{chat: x}]}
"""


@pytest.fixture
def cases(tmp_path: Path) -> Sequence[SuiteCase]:
    """Return four cases."""
    return rig.cases_of(tmp_path, TEXT)


@pytest.mark.parametrize(
    ("wanted", "ids"),
    [
        (Wanted(), ["a", "b", "c[1]", "c[2]"]),
        (Wanted(tags="smoke and not slow"), ["a"]),
        (Wanted(tags="slow or tasks"), ["b", "c[1]", "c[2]"]),
        (Wanted(tags="smoke and (slow or fast) and not tasks"), ["a", "b"]),
        (Wanted(tag=("smoke", "slow")), ["b"]),
        (Wanted(ids=("b",)), ["b"]),
        (Wanted(ids=("c",)), ["c[1]", "c[2]"]),
        (Wanted(ids=("c[2]", "a")), ["a", "c[2]"]),
        (Wanted(grep="MILK"), ["b"]),
        (Wanted(grep="first"), ["a"]),
        (Wanted(grep="first", tag=("slow",)), []),
        (Wanted(only={"c[1]", "gone"}), ["c[1]"]),
        (Wanted(label="two"), ["a"]),
    ],
)
def test_what_is_selected(cases: Sequence[SuiteCase], wanted: Wanted, ids: list[str]) -> None:
    """In the order of the files."""
    assert [case.id for case in select(cases, wanted)] == ids


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (Wanted(tags="smok"), "did you mean 'smoke'"),
        (Wanted(tag=("nope",)), "There are fast, slow, smoke, tasks"),
        (Wanted(ids=("x",)), "no such scenario"),
        (Wanted(label="three"), "no selected scenario has a step"),
        (Wanted(tags="smoke and"), "a tag is missing at the end"),
        (Wanted(tags="(smoke"), "not closed"),
        (Wanted(tags="smoke slow"), "does not belong here"),
        (Wanted(tags="or smoke"), "missing before 'or'"),
    ],
)
def test_what_cannot_be_meant_is_refused(cases: Sequence[SuiteCase], wanted: Wanted, message: str) -> None:
    """A misspelt tag would select nothing, or with `not` everything."""
    with pytest.raises(SuiteError, match=message.replace("(", r"\(")):
        select(cases, wanted)


@given(st.sets(st.sampled_from("abc")))
def test_and_binds_more_than_or(tags: set[str]) -> None:
    """And `not` binds most; a double negation is none."""
    assert expression("a or b and not c")(tags) == ("a" in tags or ("b" in tags and "c" not in tags))
    assert expression("not not a")(tags) == ("a" in tags)
    assert expression("not (a or b)")(tags) == expression("not a and not b")(tags)


def test_steps_up_to_a_label(cases: Sequence[SuiteCase]) -> None:
    """All of them without one; a label that is not there is an error."""
    assert [len(until(cases[0], label)) for label in ("", "one", "two")] == [2, 1, 2]
    with pytest.raises(SuiteError, match="no step with the label"):
        until(cases[0], "three")
