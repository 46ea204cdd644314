"""A retry is only what the wire shows to be one."""

from __future__ import annotations

import pytest

from llmproxy.calls_and_totals import Call
from llmproxy.protocol import Decision
from llmproxy.trace.observing.agent_activity import mark_calls_replaced_by_retries
from llmproxy.trace.observing.tool_calls import SeenModelCall
from tests.support.messages import asks, call, result, said, user
from tests.trace.observing.chats import Chats

CHARGE = call("charge", {"eur": 5})


def retried(text: str) -> set[int]:
    """Read ``a0+ a- ?+``: question, how often it was sent before if its client says so, ``+`` a whole answer, ``-`` none."""
    seen = []
    for number, each in enumerate(text.split(), 1):
        key, attempt = each[0].strip("?") or None, int(each[1]) if each[1].isdecimal() else None
        made = Call(Decision.RECORD, seq=number, key=key, attempt=attempt, status=200 if each[-1] == "+" else 500)
        seen.append(SeenModelCall(made, None))
    mark_calls_replaced_by_retries(seen)
    return {found.call.seq for found in seen if found.replaced}


@pytest.mark.parametrize(("told", "replaced"), [
    ("a+ a+ a+", set()),  # a card charged three times was charged three times
    ("a- a+", {1}),  # the first answer did not arrive
    ("a- a- a+", {1, 2}),
    ("a+ a- a+", {2}),  # the whole one stays
    ("a- b+", set()),
    ("a0+ a1+", {1}),  # whole for us, too late for its client, which says so
    ("a0+ a0+", set()),
    ("a0+ a1+ a2+", {1, 2}),
    ("a0+ a0- a1+", {2}),  # it repeats the one that failed
    ("a0+ a0+ a1+", {2}),  # of two whole ones one
    ("a0- a0+", {1}),  # an agent that asks again by itself
    ("a0- a1+ a0+", {1}),
    ("a0- a0+ a1- a2+", {1, 3}),  # two clients at once: the whole one is the other's
    ("a+ a1+", set()),  # the first says nothing: it is another client's
    ("a1+", set()),  # what it repeats never came here
    ("?- ?+", set()),  # what has no key is compared with nothing
])  # fmt: skip
def test_a_retry_repeats_what_came_to_nothing_or_says_so(told: str, replaced: set[int]) -> None:
    """The answer to the last of them counts; equal requests with whole answers all count."""
    assert retried(told) == replaced


def test_of_several_alike_nothing_tells_which_was_repeated() -> None:
    """Two clients at once, both answered, and one asks again: what differs in the answers is not known."""
    chats = Chats()
    for n, attempt in enumerate((0, 0, 1)):
        chats.chat([user("pay")], asks(call("charge", {"eur": n}, f"c{n}")) if n == 0 else said("no"), attempt=attempt)
    unread = chats.wire.build_step(0).unreadable
    assert [(each.call.seq, "nothing tells which" in each.unread_reason) for each in unread] == [(1, True), (2, True)]


def test_a_recorded_retry_that_was_served_to_a_first_request_is_none() -> None:
    """What a client says now counts, not what another one said when it was recorded."""
    chats = Chats()
    for _ in range(2):
        chats.chat([user("pay")], asks(CHARGE), headers={"x-stainless-retry-count": "1"}, attempt=0)
    assert len(chats.wire.build_step(0).tools) == 2


def test_an_answer_that_was_cut_off_and_asked_again_counts_once() -> None:
    """The first did not arrive whole; what it asked for was not run."""
    chats = Chats()
    chats.chat([user("pay")], asks(CHARGE), ending="cut")
    chats.chat([user("pay")], asks(CHARGE))
    chats.chat([user("pay"), asks(CHARGE), result("ok")], said("done"))
    step = chats.wire.build_step(0)
    assert [(use.seq, use.executed) for use in step.tools] == [(2, True)]
    assert ([each.call.seq for each in step.seen if each.replaced], step.unreadable) == ([1], ())


def test_a_client_that_left_at_the_tool_call_and_ran_it_has_called_it() -> None:
    """It read as much as it needed; its next request brings the result."""
    chats = Chats()
    chats.chat([user("pay")], asks(CHARGE), ending="cut")
    chats.chat([user("pay"), asks(CHARGE), result("ok")], said("done"))
    chats.chat([user("pay")], asks(CHARGE), ending="cut")  # once more, in another conversation
    chats.chat([user("pay"), asks(CHARGE), result("ok too")], said("done"))
    step = chats.wire.build_step(0)
    assert [(use.seq, use.output) for use in step.tools] == [(1, "ok"), (3, "ok too")]
    assert step.unreadable == ()


def test_a_call_in_an_answer_that_was_cut_off_is_not_known() -> None:
    """Nobody can tell whether it was run: neither counted nor passed over."""
    chats = Chats()
    chats.chat([user("pay")], asks(CHARGE), ending="cut")
    step = chats.wire.build_step(0)
    found = (step.tools, [each.unread_reason for each in step.unreadable])
    assert found == ((), ["was cut off while it asked for charge"])
