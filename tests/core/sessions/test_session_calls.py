"""The kept calls of a session: numbered at arrival, told in that order, bounded, never with a gap."""

from __future__ import annotations

import pytest

from llmproxy.calls import Call
from llmproxy.core.sessions.session import KEPT_CALLS, KEPT_TEXTS, NOT_KEPT, Calls, CallsGone
from llmproxy.protocol import Decision


def ended(seq: int, *, miss: bool = False, note: str = "") -> Call:
    """Return a call that is over."""
    decision = Decision.REFUSE if miss else Decision.REPLAY
    return Call(decision=decision, method="POST", target="/", status=200, seq=seq, miss=miss, note=note)


def test_calls_are_told_in_the_order_of_their_arrival() -> None:
    """The second may be answered before the first; one that is open is not told, and counted as open."""
    calls = Calls()
    assert [calls.begin() for _ in range(3)] == [1, 2, 3]
    calls.add(ended(2))
    calls.add(ended(1))
    assert [each.seq for each in calls.after(0)] == [1, 2]
    assert [each.seq for each in calls.after(1)] == [2]
    assert (calls.arrived, calls.open, calls.after(2)) == (3, 1, [])


def test_more_than_is_kept_is_an_error_and_no_gap() -> None:
    """Whoever asks from the start learns that the start is gone; from where it is kept, all of it is there."""
    calls = Calls()
    for _ in range(KEPT_CALLS + 5):
        calls.add(ended(calls.begin()))
    with pytest.raises(CallsGone) as error:
        calls.after(4)
    assert (error.value.status, "after 5" in error.value.hint) == (410, True)
    assert len(calls.after(5)) == KEPT_CALLS


def test_a_refused_call_says_what_its_client_was_told() -> None:
    """The text of a miss, else the note; beyond the bound it says where the text is."""
    calls = Calls()
    calls.add(ended(calls.begin(), miss=True, note="-"), "the nearest is ...")
    calls.add(ended(calls.begin(), note="client left"))
    first, second = calls.after(0)
    assert (calls.text(first), calls.text(second)) == ("the nearest is ...", "client left")
    for _ in range(KEPT_TEXTS):
        calls.add(ended(calls.begin(), miss=True), "text")
    assert calls.text(calls.after(0)[-1]) == NOT_KEPT.format(KEPT_TEXTS)
