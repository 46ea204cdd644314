"""The line of spans: in order, as early as can be, bounded."""

from __future__ import annotations

from llmproxy.trace import Span
from llmproxy.trace.reading.spans import HELD_BYTES, HELD_SPANS, Line


def named(line: Line) -> list[str]:
    """Take what is complete."""
    return [span.name for span in line.take()]


def test_nothing_overtakes_what_is_not_complete() -> None:
    """What follows an open span waits with it."""
    line = Line()
    line.put(Span(name="a"))
    open_one = line.put(Span(name="b"), ready=False)
    line.put(Span(name="c"))
    assert named(line) == ["a"]
    open_one.ready = True
    assert named(line) == ["b", "c"]


def test_the_line_is_bounded() -> None:
    """By number and by size; the oldest is let go as it is."""
    line = Line()
    line.put(Span(name="open"), ready=False)
    for _ in range(HELD_SPANS):
        line.put(Span(name="x"))
    assert len(named(line)) == HELD_SPANS + 1
    line.put(Span(name="open"), ready=False)
    line.put(Span(name="huge"), size=HELD_BYTES + 1)
    assert named(line) == ["open", "huge"]


def test_the_rest() -> None:
    """At the end everything goes."""
    line = Line()
    line.put(Span(name="open"), ready=False)
    assert [span.name for span in line.rest()] == ["open"]
    assert list(line.rest()) == []
