"""Recorded sockets: what is written down, what is played, and what a miss of one says."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from llmproxy.core.keys.user_rules import Rules, TextScrub
from llmproxy.core.misses.explain import MissContext
from llmproxy.core.providers.provider_table import Family
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.traffic.interaction import Ending, Request, Response, header
from llmproxy.core.traffic.websocket_frames import CONTENT_TYPE, CUT, WebSocketFrame, parse_recorded_websocket_frames
from llmproxy.core.ws_replay import (
    LONGEST_REASON,
    FrameCanonicalizer,
    FramePlayer,
    FrameRecorder,
    WebSocketMismatch,
    classify_websocket_ending,
    clip_close_reason,
    explain_frame_miss,
)
from tests.support.narrowing import narrow


def canon(operation: str = "realtime", rules: Rules | None = None, family: Family = "openai") -> FrameCanonicalizer:
    """Make one for a conversation whose cassette made no ids."""
    return FrameCanonicalizer(family, operation, rules or Rules(), lambda _: None)


def player(*frames: WebSocketFrame) -> FramePlayer:
    return FramePlayer(frames, canon)


def client(at: int, data: str | bytes, close: int | None = None) -> WebSocketFrame:
    """A frame of the client's."""
    return WebSocketFrame(at, client=True, data=data, close=close)


def server(at: int, data: str | bytes = "", close: int | None = None) -> WebSocketFrame:
    """A frame of the server's."""
    return WebSocketFrame(at, client=False, data=data, close=close)


def test_what_the_server_said_is_due_after_what_it_answered() -> None:
    """Delays are those of the recording, counted from the client's message before; never negative."""
    tape = [
        server(900, "hello"), client(1000, "a"), server(1500, "b"), server(3000, "c"), client(4000, "d"),
        server(4100, close=1000),
    ]  # fmt: skip
    play = player(*tape)
    assert (play.recorded_client_message_count, play.server_speaks_first, play.is_over) == (2, True, False)
    assert [(after, frame.data) for after, frame in play.take_server_frames(950)] == [(0, "hello")]
    assert play.on_message("a") == [(500, tape[2]), (2000, tape[3])]
    assert play.on_message("d") == [(100, tape[5])]
    assert (play.heard, play.is_over) == (2, True)


def test_a_conversation_without_messages() -> None:
    """Opened and left: nothing is due, and anything said is one too many."""
    play = player(client(5, "", 1000))
    assert play.take_server_frames(0) == []
    assert (play.is_over, play.server_speaks_first, play.recorded_client_message_count) == (True, False, 0)
    missed = narrow(WebSocketMismatch, play.on_message("x"))
    assert (missed.number, missed.expected, missed.nearest, missed.differences) == (1, 0, None, ())


def said(value: object, operation: str = "realtime", **how: Any) -> bytes:
    return canon(operation, **how)(value if isinstance(value, (str, bytes)) else json.dumps(value)).body


SAME = [
    ('{"type": "a", "x": 1.0}', '{"x":1,"type":"\\u0061"}', "realtime"),
    ({"type": "a", "event_id": "event_1"}, {"type": "a"}, "realtime"),
    ({"item": {"id": "item_x", "type": "message"}}, {"item": {"id": "item_y", "type": "message"}}, "realtime"),
    ({"type": "response.create", "event_id": "1", "metadata": {"run": 1}, "input": "a"},
     {"type": "response.create", "input": "a"}, "responses"),
    (b'{"setup": {"model": "m"}}', b'{"setup":{"model":"m"}}', "/ws/live"),
]  # fmt: skip
"""How JSON is written, ids that SDKs make up, and what does not count in the same request over HTTP."""
OTHERS = [
    ({"type": "a", "event_id": "event_1"}, {"type": "a"}, "/ws/live"),
    ({"type": "a", "inner": {"event_id": "1"}}, {"type": "a", "inner": {"event_id": "2"}}, "realtime"),
    ({"type": "response.create", "input": "a"}, {"type": "response.create", "input": "b"}, "responses"),
    ({"type": "response.create"}, {"type": "response.cancel"}, "responses"),
    ({"item_id": "item_1"}, {"item_id": "item_2"}, "realtime"),
    ("text", "texts", "realtime"),
    (b"\x00\x01", b"\x00\x02", "realtime"),
    (b"\xfftext", "text", "realtime"),
    ("\0\xfftext", "\xfftext".encode(), "realtime"),
    ("\0abc", b"abc", "realtime"),
    ('{"setup": {}}', b'{"setup": {}}', "/ws/live"),
    ([1, 2], [2, 1], "realtime"),
    ("", "{}", "realtime"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("same", "one", "other", "operation"),
    [(same, *each) for same, table in ((True, SAME), (False, OTHERS)) for each in table],
)
def test_what_counts(same: bool, one: object, other: object, operation: str) -> None:
    """A wrong hit is worse than a miss."""
    assert (said(one, operation) == said(other, operation)) is same


def test_random_names_of_items_keep_their_meaning_over_messages() -> None:
    """A client names its items at random and refers to them later: which one it means counts, the name does not."""

    def forms(a: str, b: str, means: str) -> list[bytes]:
        names = canon()
        create = [{"type": "conversation.item.create", "item": {"id": name}} for name in (a, b)]
        delete = {"type": "conversation.item.delete", "item_id": means}
        return [names(json.dumps(each)).body for each in (*create, delete)]

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
    missed = narrow(WebSocketMismatch, play.on_message(json.dumps({"type": "say", "text": "three"})))
    assert (missed.number, missed.expected, missed.nearest) == (2, 3, 2)
    assert [(each.path, each.old, each.new) for each in missed.differences] == [("$.text", '"one"', '"three"')]


def test_bytes_are_described_not_shown() -> None:
    (difference,) = narrow(WebSocketMismatch, player(client(1, b"\x00\x01")).on_message(b"\x00\x02\x03")).differences
    assert "2 bytes" in difference.old
    assert "3 bytes" in difference.new


CONTEXT = MissContext(
    mode="replay", cassette="it's mine", session="s", key="v1:" + "0" * 64, method="GET", provider="openai",
    operation="realtime", store="x.db",
)  # fmt: skip


def missed(recorded: list[object], *said: object) -> WebSocketMismatch:
    """Say these to a recording; the last must be missed."""
    play = player(*(client(n, json.dumps(each)) for n, each in enumerate(recorded)))
    *_, last = [play.on_message(json.dumps(each)) for each in said]
    return narrow(WebSocketMismatch, last)


@pytest.mark.parametrize(("mismatch", "reason", "text"), [
    (missed([{"a": 1}], {"a": 2}), "llmproxy: message 1 is not in recording #7; nearest 1 of 1 differs at $.a; see llmproxy why", "differs at $.a"),
    (missed([{"a": 1}, {"b": 1}], {"b": 1}), "llmproxy: message 1 is not in recording #7; equals its message 2 of 2; see llmproxy why", "has it as message 2"),
    (missed([], {"b": 1}), "llmproxy: message 1 is not in recording #7, which has none; see llmproxy why", "said nothing"),
    (missed([{"a": 1}], {"a": 1}, {"a": 2}), "llmproxy: message 2 is not in recording #7; nearest 1 of 1 differs at $.a; see llmproxy why", "has no more"),
])  # fmt: skip
def test_the_reason_is_short_and_the_text_tells_all(mismatch: WebSocketMismatch, reason: str, text: str) -> None:
    """The close frame names recording, nearest message and path; the journal what to type."""
    miss = explain_frame_miss(CONTEXT, 7, mismatch)
    assert miss.reason == reason
    assert text in miss.text
    assert "llmproxy start --mode record --cassette 'it'\"'\"'s mine' --store x.db" in miss.text
    assert "llmproxy show 7 --store x.db" in miss.text
    assert miss.data["text"] == miss.text
    assert isinstance(nearest := miss.data["nearest"], dict)
    assert nearest["id"] == 7
    json.dumps(miss.data)


def test_auto_says_that_the_next_socket_is_recorded() -> None:
    text = explain_frame_miss(replace(CONTEXT, mode="auto"), 7, missed([{"a": 1}], {"a": 2}), records=True).text
    assert "connect again" in text


@given(st.dictionaries(st.text(min_size=1), st.integers(0, 1), min_size=1))
def test_a_reason_always_fits_its_frame(old: dict[str, int]) -> None:
    """123 bytes of UTF-8, whatever members are called, and it prints on one line."""
    reason = explain_frame_miss(CONTEXT, 1 << 40, missed([old], old | {next(iter(old)): 7})).reason
    assert len(reason.encode()) <= LONGEST_REASON
    assert reason.isprintable()


@given(st.text(), st.integers(3, 200))
def test_a_text_is_cut_at_a_character(text: str, size: int) -> None:
    try:
        short = len(text.encode()) <= size
    except UnicodeEncodeError:
        return
    assert len(clip_close_reason(text, size).encode()) <= size
    assert (clip_close_reason(text, size) == text) is short


HEADERS = (("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Accept", "x"), ("Sec-WebSocket-Extensions", "permessage-deflate"),
           ("Sec-WebSocket-Protocol", "realtime"), ("x-request-id", "req-1"), ("content-length", "0"))  # fmt: skip


def redact(data: str | bytes) -> str | bytes:
    plain = data.encode() if isinstance(data, str) else data
    body = Redactor().request(Request("POST", "/v1/realtime", (), plain)).body
    return body.decode() if isinstance(data, str) else body


def end(recording: FrameRecorder) -> Response:
    return recording.build_response("realtime", stream=False, proper=True)


def test_a_conversation_becomes_a_response() -> None:
    """101, the upgrade's own headers without those of the connection, a chunk a message."""
    recording = FrameRecorder(redact, 500, HEADERS)
    assert (recording.has_head, recording.is_whole, recording.first_byte_offset) == (True, False, 500)
    recording.record_message(700, "hi", client=True)
    recording.record_message(900, b"\x00", client=False)
    assert recording.first_byte_offset == 900
    recording.record_close(1000, 1000, "bye", client=False)
    response = end(recording)
    assert (response.status, response.ending, response.head_offset) == (101, Ending.COMPLETE, 500)
    assert dict(response.headers) == {
        "Sec-WebSocket-Protocol": "realtime", "x-request-id": "req-1", "content-type": CONTENT_TYPE,
    }  # fmt: skip
    assert [chunk.offset for chunk in response.chunks] == [700, 900, 1000]
    assert not recording.overwritten
    assert [frame.data for frame in parse_recorded_websocket_frames(response.body)] == ["hi", b"\x00", "bye"]


def test_secrets_of_the_client_are_taken_out_of_both_sides() -> None:
    """A server that says the session's settings again does not give them away; its message keeps its length."""
    tool = {"type": "mcp", "authorization": "Bearer hunter2/9-hunter2-hunter2", "server_url": "https://x"}
    update, echo = json.dumps({"session": {"tools": [tool]}}), json.dumps({"echo": [tool]}, ensure_ascii=False)
    recording = FrameRecorder(redact, 0, ())
    recording.record_message(1, update, client=True)
    recording.record_message(2, echo, client=False)
    recording.record_message(3, echo.encode(), client=False)
    recording.record_message(4, "nothing in it", client=False)
    response = end(recording)
    assert recording.overwritten
    assert b"hunter2" not in response.body
    said = [frame.data for frame in parse_recorded_websocket_frames(response.body)]
    assert "[REDACTED-1x" in str(said[0])
    assert len(str(said[1]).encode()) == len(echo.encode())
    assert json.loads(said[1])["echo"][0]["authorization"].startswith("REDACTED")
    assert said[2] == str(said[1]).encode()
    assert said[3] == "nothing in it"


DONE = WebSocketFrame(2, client=False, data='{"type": "response.done"}')


@pytest.mark.parametrize(("frames", "expected"), [
    ([], Ending.CUT),
    ([DONE], Ending.CUT),
    ([DONE, WebSocketFrame(3, client=True, close=1000)], Ending.COMPLETE),
    ([WebSocketFrame(3, client=False, close=1011)], Ending.COMPLETE),
    ([WebSocketFrame(3, client=False, close=1005)], Ending.COMPLETE),
    ([DONE, WebSocketFrame(3, client=True, close=CUT)], Ending.COMPLETE),
    ([server(1, b'{"serverContent": {"turnComplete": true}}'), client(3, "", CUT)], Ending.COMPLETE),
    ([DONE, WebSocketFrame(3, client=False, close=CUT)], Ending.CUT),
    ([DONE, WebSocketFrame(3, client=True, data="more"), WebSocketFrame(4, client=True, close=CUT)], Ending.CUT),
    ([WebSocketFrame(2, client=False, data='{"type": "response.created"}'), WebSocketFrame(3, client=True, close=CUT)], Ending.CUT),
    ([WebSocketFrame(3, client=True, close=CUT)], Ending.CUT),
    ([WebSocketFrame(2, client=False, data="[1]"), WebSocketFrame(3, client=True, close=CUT)], Ending.CUT),
])  # fmt: skip
def test_what_counts_as_whole(frames: list[WebSocketFrame], expected: Ending) -> None:
    """Closed properly, or left by a client to which the server owed nothing (as with HTTP, where clients hang up after the terminator)."""
    assert classify_websocket_ending(frames) is expected


def test_it_tells_when_the_end_has_begun() -> None:
    """From then on what reaches the client is the end, whatever length a header named."""
    recording = FrameRecorder(redact, 0, HEADERS)
    before = recording.is_whole
    recording.is_closing = lambda: True
    assert (before, recording.is_whole) == (False, True)
    assert header(end(recording).headers, "content-length") is None
