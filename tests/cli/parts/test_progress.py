"""What a terminal sees of long work."""

from __future__ import annotations

import io

from llmproxy.cli.parts.printing import LongTaskProgressLine
from tests.report.test_console import Terminal


def test_nothing_is_said_of_what_is_done_in_a_second() -> None:
    """Nor anything in a pipe, however long it takes."""
    now = [0.0]
    working = LongTaskProgressLine("verifying x.db", "interaction", stream=io.StringIO(), clock=lambda: now[0])
    assert working.format_line() == ""
    now[0] = 0.9
    assert working.format_line() == ""
    pipe = io.StringIO()
    with LongTaskProgressLine("verifying", stream=pipe) as silent:
        assert list(silent.iterate("ab")) == ["a", "b"]
    assert pipe.getvalue() == ""


def test_it_says_how_far_it_is_and_since_when() -> None:
    now = [0.0]
    working = LongTaskProgressLine("verifying x.db", "interaction", clock=lambda: now[0])
    for n, _ in enumerate(working.iterate(range(3), 1200)):
        now[0] = 12.0
        if n == 2:
            assert working.format_line() == "verifying x.db: 2 of 1,200 interactions, 12 s"
    for _ in working.iterate(["a"]):
        now[0] = 75.0
    assert working.format_line() == "verifying x.db: 1 interaction, 1 min 15 s"


def test_the_line_goes_away_when_the_work_is_done() -> None:
    """What is printed afterwards begins at the left of an empty line."""
    screen = Terminal()
    now = [0.0]
    with LongTaskProgressLine("exporting", stream=screen, clock=lambda: now[0]) as working:
        now[0] = 2.0
        working._overwrite_line(working.format_line())
    assert screen.getvalue().startswith("\rexporting, 2 s")
    assert screen.getvalue().endswith(" \r")
