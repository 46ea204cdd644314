"""Answers to concurrent requests end in the order in which they were recorded."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path

import pytest

from llmproxy.core.engine.concurrent_answer_order import (
    LEAST_PAUSE,
    LONGEST_PAUSE,
    MOST_BYTES_READ,
    EndOrderEnforcer,
    RecordedCallBeginAndEnd,
    build_finder_of_answer_in_request,
    find_order_dependent_recordings,
    group_concurrent,
    infer_answer_read_times,
)
from llmproxy.core.store.file.store import SqliteCassetteStore
from llmproxy.core.store.store import InteractionToStore
from llmproxy.core.traffic.interaction import Chunk, Request, Response
from tests.support.concurrent_runs import make_program, record, replay
from tests.support.recordings import interaction

A, B, C, LATER = (
    RecordedCallBeginAndEnd(1, 0, 10),
    RecordedCallBeginAndEnd(2, 1, 5),
    RecordedCallBeginAndEnd(3, 6, 8),
    RecordedCallBeginAndEnd(4, 11, 12),
)
"""A is under way while B ends, and while C, which follows B, begins and ends."""


def begin(*calls: RecordedCallBeginAndEnd, patience: float = 3) -> EndOrderEnforcer:
    """Return an order in which these calls were asked for at second 0."""
    order = EndOrderEnforcer(group_concurrent([A, B, C, LATER]), patience)
    assert all(order.on_call_begin(each.id, 0) for each in calls)
    return order


@pytest.mark.parametrize("seed", range(60))
def test_random_program_asks_again_what_it_asked_when_it_was_recorded(seed: int) -> None:
    """A program that goes by the order in which it heard hears the same order in replay."""
    rng = random.Random(seed)
    program = make_program(rng)
    made, heard = record(program, rng)
    again = replay(program, made, rng)
    assert again.heard == heard
    assert again.expired == 0


def test_calls_that_overlap_nothing_have_no_place_in_the_order() -> None:
    """A sequential run is not ordered at all."""
    assert group_concurrent([C, LATER, B]) == []
    assert group_concurrent([LATER, C, B, A]) == [[A, B, C], [LATER]]
    assert not begin().on_call_begin(LATER.id, 0)


def test_end_waits_for_the_ends_and_begins_that_were_recorded_before_it() -> None:
    """A's end waits for B's end, for C to be asked, and for C's end; each end for the least pause behind another."""
    order = begin(A, B)
    assert order.get_send_delay(A.id, None, 0) > 0
    assert order.get_send_delay(B.id, None, 0) == 0
    order.on_call_end(B.id, 1)
    assert order.get_send_delay(A.id, None, 1.5) > 0
    order.on_call_begin(C.id, 2)
    assert order.get_send_delay(A.id, None, 2) > 0
    assert order.get_send_delay(C.id, None, 2) == 0
    order.on_call_end(C.id, 2)
    assert order.get_send_delay(A.id, None, 2) == pytest.approx(LONGEST_PAUSE)
    assert order.get_send_delay(A.id, None, 2 + LONGEST_PAUSE) == 0


def test_pieces_of_a_stream_go_out_as_far_as_the_order_lets_them() -> None:
    """What A said before B ended comes at once, what it said later waits."""
    order = begin(A, B)
    assert order.get_send_delay(A.id, 4.9, 0) == 0
    assert order.get_send_delay(A.id, 5.1, 0) > 0


def test_call_that_never_comes_is_waited_for_once() -> None:
    """After the patience, and the time that the recorded program took, the others go on."""
    order = begin(A, B, patience=2)
    order.on_call_end(B.id, 1)
    lead = C.began - B.ended
    assert order.get_send_delay(A.id, None, 2.9 + lead) > 0
    assert order.get_send_delay(A.id, None, 3.1 + lead) == 0
    assert order.expired == 1
    assert order.on_call_begin(C.id, 9)
    assert order.get_send_delay(C.id, None, 9) == 0


def test_call_that_another_one_stands_for_is_not_waited_for() -> None:
    """Whoever asks something else in its stead does not hold up the others."""
    order = begin(A, B)
    order.on_call_end(B.id, 1)
    order.stop_waiting_for(C.id)
    assert order.get_send_delay(A.id, None, 1 + LONGEST_PAUSE) == 0
    assert order.expired == 0


def test_recording_that_is_played_once_more_waits_for_nothing() -> None:
    """Only the first time has its place; a restart begins anew."""
    order = begin(B)
    order.on_call_end(B.id, 1)
    assert not order.on_call_begin(B.id, 2)
    order.restart()
    assert order.on_call_begin(B.id, 3)


def test_recording_that_is_asked_for_twice_at_once_waits_for_the_same() -> None:
    """More requests than recordings share the last one: none of them hears it before its place."""
    order = begin(A, B)
    assert order.on_call_begin(A.id, 0)
    assert order.get_send_delay(A.id, None, 0) > 0


def test_equal_questions_at_once_with_other_answers_are_dealt() -> None:
    """What overlapped, was asked the same by the same party and was answered otherwise; nothing else."""
    one, two = RecordedCallBeginAndEnd(1, 0, 5, "agent", "k", 7), RecordedCallBeginAndEnd(2, 1, 6, "agent", "k", 8)
    assert find_order_dependent_recordings([[one, two]]) == {1, 2}
    for other in ({"answer": 7}, {"party": "judge"}, {"key": "l"}, {"began": 5.5}):
        assert find_order_dependent_recordings([[one, two._replace(**other)]]) == frozenset()


def test_call_that_overlapped_nothing_waits_for_what_should_be_over() -> None:
    """It is asked while an answer that ended before it is still held back."""
    order = begin(A)
    assert order.on_call_begin(LATER.id, 0)
    assert order.get_send_delay(LATER.id, None, 0) > 0
    order.on_call_end(A.id, 1)
    assert order.get_send_delay(LATER.id, None, 1 + LONGEST_PAUSE) == 0


X, Y = RecordedCallBeginAndEnd(5, 10.2, 11), RecordedCallBeginAndEnd(6, 12, 13)
SOON, CLOSE_BY = RecordedCallBeginAndEnd(1, 0, 10), RecordedCallBeginAndEnd(2, 1, 10.05)


def infer(calls: list[RecordedCallBeginAndEnd], cited: dict[int, list[int]]) -> list[RecordedCallBeginAndEnd]:
    """Return the calls as they were heard, where each request cites these answers in this order."""
    return infer_answer_read_times(
        calls, lambda asked, answered: cited[asked].index(answered) if answered in cited.get(asked, []) else -1
    )


@pytest.mark.parametrize(("cited", "heard"), [
    ({5: [1, 2]}, {1: 10, 2: 10.05}), ({5: [2, 1]}, {1: 10.05, 2: 10}), ({5: [1], 6: [1, 2]}, {1: 10, 2: 10.2}),
    ({5: [2], 6: [2, 1]}, {1: 10.2, 2: 10.05}), ({5: [1], 6: [2]}, {1: 10, 2: 10.05}),
    ({5: [1]}, {1: 10, 2: 10.05}), ({}, {1: 10, 2: 10.05}),
])  # fmt: skip
def test_ends_are_where_the_next_requests_show_that_they_were_heard(
    cited: dict[int, list[int]], heard: dict[int, float]
) -> None:
    """Cited in another order: swapped; cited only by what goes on from a request: heard after that was asked."""
    found = infer([SOON, CLOSE_BY, X, Y], cited)
    assert {each.id: pytest.approx(each.ended, abs=1e-3) for each in found if each.id < 3} == heard


EARLIER, REST = RecordedCallBeginAndEnd(1, 0, 10), RecordedCallBeginAndEnd(3, 0, 12)
BATCH, NEXT = RecordedCallBeginAndEnd(5, 10.2, 11), RecordedCallBeginAndEnd(6, 12.1, 13)


@pytest.mark.parametrize(("cited", "batch", "marked"), [
    ({5: [1, 2], 6: [1, 2, 3]}, BATCH, {2}),
    ({5: [1, 2], 6: [1, 2, 3]}, BATCH._replace(began=10.07), set()),
    ({5: [1, 2], 6: [3]}, BATCH, set()),
    ({5: [1, 2]}, BATCH, set()),
])  # fmt: skip
def test_ends_that_a_slow_client_took_together_lie_close(
    cited: dict[int, list[int]], batch: RecordedCallBeginAndEnd, marked: set[int]
) -> None:
    """Only of a client that asks before all are there, and was slower than they lay apart; a pause is short then."""
    found = infer([EARLIER, CLOSE_BY, REST, batch, NEXT], cited)
    assert {each.id for each in found if each.together} == marked
    order = EndOrderEnforcer(group_concurrent(found), 3)
    assert all(order.on_call_begin(each, 0) for each in (1, 2, 3))
    order.on_call_end(1, 1)
    assert order.get_send_delay(2, None, 1) == pytest.approx(LEAST_PAUSE if marked else LONGEST_PAUSE)


def test_end_that_was_heard_later_waits_a_short_while_for_what_was_asked_before() -> None:
    """And goes on without a word where that does not come; after two of them none waits any more."""
    order = EndOrderEnforcer(group_concurrent([SOON, CLOSE_BY._replace(ended=10.2 + 1e-6, grace=0.5, late=True), X]), 3)
    assert order.on_call_begin(1, 0)
    assert order.on_call_begin(2, 0)
    order.on_call_end(1, 1)
    assert order.get_send_delay(2, 1, 1.4) > 0
    assert order.get_send_delay(2, None, 1.6) == 0
    assert (order.guessed, order.expired) == (1, 0)
    order.restart()
    assert order.on_call_begin(1, 0)
    assert order.on_call_begin(2, 0)
    order.on_call_end(1, 1)
    assert order.on_call_begin(5, 1.1)
    assert order.get_send_delay(2, None, 1.2) == 0
    assert order.guessed == 0


@pytest.mark.parametrize(("asked", "at"), [("q1 and q12", 0), ("q12 and q1", 8), ("q12", -1), ("nothing", -1)])
def test_an_answer_is_cited_by_its_words_and_not_by_longer_ones(tmp_path: Path, asked: str, at: int) -> None:
    """The last place where a request holds the first line of an answer."""
    said = json.dumps({"choices": [{"index": 0, "message": {"role": "assistant", "content": "q1\nmore"}}]}).encode()
    json_type = (("content-type", "application/json"),)
    with SqliteCassetteStore.open(tmp_path / "x.db", writable=True, now=lambda: 0) as store:
        base = interaction(request=Request("POST", "/v1/chat/completions", (), json.dumps([asked]).encode()))
        stored = store.add_interaction(
            dataclasses.replace(base, response=Response(200, "OK", json_type, (Chunk(0, said),))), supersede=False
        )
        assert build_finder_of_answer_in_request(store)(stored, stored) == (at if at < 0 else at + 2)


def test_nothing_is_corrected_where_the_requests_are_too_long(tmp_path: Path) -> None:
    """What a run begins with does not wait for megabytes of histories."""
    with SqliteCassetteStore.open(tmp_path / "x.db", writable=True, now=lambda: 0) as store:
        long = b"x" * (MOST_BYTES_READ // 2)
        made = [
            dataclasses.replace(interaction(request=Request("POST", "/v1/chat/completions", (), long)), occurrence=n)
            for n in (1, 2, 3, 4)
        ]
        ids = store.add_interactions(list(map(InteractionToStore, made)))
        calls = [each._replace(id=id_) for each, id_ in zip((SOON, CLOSE_BY, X, Y), ids, strict=True)]
        assert infer_answer_read_times(calls, build_finder_of_answer_in_request(store)) == calls
