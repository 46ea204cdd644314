"""A recorded conversation answers a live client."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmproxy.core.keys.scrub import Rules, TextScrub
from llmproxy.core.providers.table import Family
from llmproxy.core.traffic.frames import Frame
from llmproxy.core.websocket import FrameCanon, FrameMismatch, FramePlayer
from tests.support.narrowing import narrow


def canon(operation: str = "realtime", rules: Rules | None = None, family: Family = "openai") -> FrameCanon:
    """Make one for a conversation whose cassette made no ids."""
    return FrameCanon(family, operation, rules or Rules(), lambda _: None)


def player(*frames: Frame) -> FramePlayer:
    """Play these."""
    return FramePlayer(frames, canon)


def client(at: int, data: str | bytes, close: int | None = None) -> Frame:
    """A frame of the client's."""
    return Frame(at, client=True, data=data, close=close)


def server(at: int, data: str | bytes = "", close: int | None = None) -> Frame:
    """A frame of the server's."""
    return Frame(at, client=False, data=data, close=close)


def test_what_the_server_said_is_due_after_what_it_answered() -> None:
    """Delays are those of the recording, counted from the client's message before; never negative."""
    tape = [
        server(900, "hello"), client(1000, "a"), server(1500, "b"), server(3000, "c"), client(4000, "d"),
        server(4100, close=1000),
    ]  # fmt: skip
    play = player(*tape)
    assert (play.total, play.speaks_first, play.is_over) == (2, True, False)
    assert [(after, frame.data) for after, frame in play.opening(950)] == [(0, "hello")]
    assert play.on_message("a") == [(500, tape[2]), (2000, tape[3])]
    assert play.on_message("d") == [(100, tape[5])]
    assert (play.heard, play.is_over) == (2, True)


def test_a_conversation_without_messages() -> None:
    """Opened and left: nothing is due, and anything said is one too many."""
    play = player(client(5, "", 1000))
    assert play.opening(0) == []
    assert (play.is_over, play.speaks_first, play.total) == (True, False, 0)
    missed = narrow(FrameMismatch, play.on_message("x"))
    assert (missed.number, missed.expected, missed.nearest, missed.differences) == (1, 0, None, ())


def said(value: object, operation: str = "realtime", **how: Any) -> bytes:  # noqa: ANN401
    """Return the canonical form of one message."""
    return canon(operation, **how)(value if isinstance(value, (str, bytes)) else json.dumps(value)).body


@pytest.mark.parametrize(("one", "other", "operation"), [
    ('{"type": "a", "x": 1.0}', '{"x":1,"type":"\\u0061"}', "realtime"),
    ({"type": "a", "event_id": "event_1"}, {"type": "a"}, "realtime"),
    ({"item": {"id": "item_x", "type": "message"}}, {"item": {"id": "item_y", "type": "message"}}, "realtime"),
    ({"type": "response.create", "event_id": "1", "metadata": {"run": 1}, "input": "a"},
     {"type": "response.create", "input": "a"}, "responses"),
    ('{"setup": {"model": "m"}}', b'{"setup":{"model":"m"}}', "/ws/live"),
])  # fmt: skip
def test_what_does_not_count(one: object, other: object, operation: str) -> None:
    """How JSON is written, ids that SDKs make up, and what does not count in the same request over HTTP."""
    assert said(one, operation) == said(other, operation)


@pytest.mark.parametrize(("one", "other", "operation"), [
    ({"type": "a", "event_id": "event_1"}, {"type": "a"}, "/ws/live"),
    ({"type": "a", "inner": {"event_id": "1"}}, {"type": "a", "inner": {"event_id": "2"}}, "realtime"),
    ({"type": "response.create", "input": "a"}, {"type": "response.create", "input": "b"}, "responses"),
    ({"type": "response.create"}, {"type": "response.cancel"}, "responses"),
    ({"item_id": "item_1"}, {"item_id": "item_2"}, "realtime"),
    ("text", "texts", "realtime"),
    (b"\x00\x01", b"\x00\x02", "realtime"),
    (b"\xfftext", "text", "realtime"),
    ([1, 2], [2, 1], "realtime"),
    ("", "{}", "realtime"),
])  # fmt: skip
def test_what_counts(one: object, other: object, operation: str) -> None:
    """Everything else: a wrong hit is worse than a miss."""
    assert said(one, operation) != said(other, operation)


def test_random_names_of_items_keep_their_meaning_over_messages() -> None:
    """A client names its items at random and refers to them later: which one it means counts, the name does not."""

    def forms(a: str, b: str, means: str) -> list[bytes]:
        names = canon()
        create = [{"type": "conversation.item.create", "item": {"id": name}} for name in (a, b)]
        return [
            names(json.dumps(each)).body for each in (*create, {"type": "conversation.item.delete", "item_id": means})
        ]

    assert forms("x", "y", "x") == forms("p", "q", "p")
    assert forms("x", "y", "x") != forms("p", "q", "q")


def test_the_users_rules_hold_for_messages() -> None:
    """`ignore` and `scrub` as for any request."""
    rules = Rules(ignore=("$.session.trace",), scrub=(TextScrub(r"\d{4}-\d\d-\d\d", "DATE"),))
    one, other = ({"session": {"trace": n, "text": f"today is 2026-01-0{n}"}} for n in (1, 2))
    assert said(one, rules=rules) == said(other, rules=rules)
    assert said(one) != said(other)


def test_a_mismatch_names_the_nearest_message_and_where_it_differs() -> None:
    """Of equals the one in this place; a message of the same type is nearer than one of another."""
    tape = [client(n, json.dumps(each)) for n, each in enumerate((
        {"type": "session.update", "x": 1}, {"type": "say", "text": "one"}, {"type": "say", "text": "two"}))]  # fmt: skip
    play = player(*tape)
    assert play.on_message(json.dumps({"type": "session.update", "x": 1})) == []
    missed = narrow(FrameMismatch, play.on_message(json.dumps({"type": "say", "text": "three"})))
    assert (missed.number, missed.expected, missed.nearest) == (2, 3, 2)
    assert [(each.path, each.old, each.new) for each in missed.differences] == [("$.text", '"one"', '"three"')]


def test_a_message_recorded_elsewhere_is_found() -> None:
    """Said too early: the message that it equals is named, without differences."""
    missed = narrow(FrameMismatch, player(client(1, '{"a": 1}'), client(2, '{"b": 2}')).on_message('{"b": 2}'))
    assert (missed.nearest, missed.differences) == (2, ())


def test_bytes_are_described_not_shown() -> None:
    """Their size and digest differ."""
    (difference,) = narrow(FrameMismatch, player(client(1, b"\x00\x01")).on_message(b"\x00\x02\x03")).differences
    assert "2 bytes" in difference.old
    assert "3 bytes" in difference.new
