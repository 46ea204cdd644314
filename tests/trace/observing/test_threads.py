"""Two histories are compared message by message, as they survive a client's hands."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from llmproxy.core.dialects.messages import Message, ToolCall
from llmproxy.trace.observing.expected_vs_sent_history import (
    HistoryItem,
    SentHistoryDeviation,
    compare_expected_and_sent_history,
    count_common_head_and_tail,
    join_system_text,
    list_history_items_without_system,
)

USER, SAID = Message("user", "Buy milk"), Message("assistant", "Created.")
CALL = Message("assistant", "", (ToolCall("c1", "create", '{"a": 1, "b": 2}'),))
RESULT = Message("tool", "a long result", tool_call_id="c1")
NEXT = Message("user", "What is left?")


def items(*messages: Message) -> list[HistoryItem]:
    return list_history_items_without_system(messages)


def keys(*messages: Message) -> list[object]:
    return [item.key for item in items(*messages)]


def compare(expected: Sequence[Message], *sent: Message) -> SentHistoryDeviation:
    return compare_expected_and_sent_history(items(*expected), items(*sent))


def test_layout_does_not_count() -> None:
    """White space, and the order of arguments, are the same message."""
    other = Message("assistant", "", (ToolCall("other-id", "create", '{"b":2,"a":1}'),))
    assert keys(USER, CALL) == keys(Message("user", " Buy  milk "), other)


def test_an_answer_in_pieces_is_one() -> None:
    """A text and its calls may be sent as two messages; system prompts are no history."""
    pieces = [Message("system", "Be brief."), Message("assistant", "I will."), CALL]
    assert keys(*pieces) == keys(Message("assistant", "I will.", CALL.tool_calls))
    assert join_system_text(pieces) == "Be brief."


def test_shared_ends_are_counted() -> None:
    """From the beginning, and from the end, no message twice."""
    one = items(USER, SAID, NEXT)
    assert [count_common_head_and_tail(one, other) for other in (one, one[1:], [])] == [(3, 0), (0, 2), (0, 0)]


def test_nothing_changed() -> None:
    """What was expected is there; the rest is new."""
    change = compare([USER, SAID], USER, SAID, NEXT)
    assert (change.gaps, change.pruned, change.expected) == ((), 0, 3)


def test_a_gap_knows_what_stands_in_it() -> None:
    """Missing messages, the text in their place, and what was kept after them."""
    summary = Message("user", "Summary: milk was bought.")
    (gap,) = compare([USER, SAID, NEXT, SAID], summary, NEXT, SAID, Message("user", "And now?")).gaps
    assert ([item.text for item in gap.missing], [item.text for item in gap.inserted], gap.kept) == (
        ["Buy milk", "Created."], ["Summary: milk was bought."], 2,
    )  # fmt: skip


SPOKEN, SHORT = Message("assistant", "I will.", CALL.tool_calls), Message("tool", "[gone]", tool_call_id="c1")
THOUGHT = Message("assistant", "Created.", reasoning="hm")


@pytest.mark.parametrize(("expected", "sent", "pruned"), [
    pytest.param([USER, CALL, RESULT, SAID], [USER, CALL, SHORT, SAID, NEXT], 1, id="a result that became shorter"),
    pytest.param([USER, SPOKEN, SAID], [USER, Message("assistant", "I will.Created."), NEXT], 1, id="calls beside words"),
    pytest.param([USER, THOUGHT], [USER, SAID, NEXT], 1, id="thoughts that were sent before"),
    pytest.param([USER, SAID], [USER, SAID, NEXT], 0, id="thoughts that were never sent"),
])  # fmt: skip
def test_parts_that_are_gone_are_counted(expected: list[Message], sent: list[Message], pruned: int) -> None:
    """What a client left out of a message that it sent before."""
    assert compare(expected, *sent).pruned == pruned


def test_what_was_added_to_a_system_prompt_is_told() -> None:
    """The lines that are new, and whether they say more than what time it is."""
    cases = [
        ("Be brief.", "Be brief.\nSummary: milk.", "Summary: milk.", True),
        ("It is 10:31.", "It is 10:32.", "It is 10:32.", False),
        ("Today: Monday, 1 May 2026", "Today: Tuesday, 12 June 2026", "Today: Tuesday, 12 June 2026", False),
        ("Summary 1: milk.", "Summary 2: bread.", "Summary 2: bread.", True),
        ("Be brief.", "Be brief.", "", False),
        ("Be brief.\nSummary: milk.", "Be brief.", "", False),
    ]
    for before, after, grown, other in cases:
        change = compare_expected_and_sent_history([], [], before=before, after=after)
        assert (change.grown, change.other) == (grown, other)


def test_equal_messages_are_aligned_from_both_ends() -> None:
    """A summary stands for the oldest, not before them."""
    summary = Message("user", "Earlier: they spoke of milk.")
    (gap,) = compare([USER, SAID, USER, SAID], summary, USER, SAID, USER).gaps
    assert (len(gap.missing), [item.text for item in gap.inserted], gap.kept) == (2, [summary.text], 2)


def test_answers_that_stand_side_by_side_are_the_ones_between_which_calls_were_left_out() -> None:
    """Dialects whose answers come in pieces read them as one; that is no summary."""
    spoken = Message("assistant", "I will.", tool_calls=CALL.tool_calls)
    change = compare([USER, spoken, RESULT, SAID], USER, Message("assistant", "I will."), SAID, NEXT)
    assert (change.pruned, change.gaps) == (2, ())
