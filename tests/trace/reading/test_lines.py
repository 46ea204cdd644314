"""The line of spans: in order, as early as can be, bounded."""

from __future__ import annotations

from llmproxy.trace import Span
from llmproxy.trace.reading.span_builder import HELD_BYTES, HELD_SPANS, IncompleteSpanQueue


def named(line: IncompleteSpanQueue) -> list[str]:
    return [span.name for span in line.take_ready()]


def test_nothing_overtakes_what_is_not_complete() -> None:
    """What follows an open span waits with it."""
    line = IncompleteSpanQueue()
    line.add_span(Span(name="a"))
    open_one = line.add_span(Span(name="b"), ready=False)
    line.add_span(Span(name="c"))
    assert named(line) == ["a"]
    open_one.ready = True
    assert named(line) == ["b", "c"]


def test_the_line_is_bounded() -> None:
    """By number and by size; the oldest is let go as it is."""
    line = IncompleteSpanQueue()
    line.add_span(Span(name="open"), ready=False)
    for _ in range(HELD_SPANS):
        line.add_span(Span(name="x"))
    assert len(named(line)) == HELD_SPANS + 1
    line.add_span(Span(name="open"), ready=False)
    line.add_span(Span(name="huge"), size=HELD_BYTES + 1)
    assert named(line) == ["open", "huge"]
