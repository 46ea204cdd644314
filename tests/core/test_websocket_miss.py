"""What a client and its developer read when a WebSocket message was never recorded."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from llmproxy.core.keys.scrub import Rules
from llmproxy.core.misses.context import MissContext
from llmproxy.core.traffic.frames import Frame
from llmproxy.core.websocket import LONGEST_REASON, FrameCanon, FrameMismatch, FramePlayer, cut, explain

CONTEXT = MissContext(
    mode="replay", cassette="it's mine", session="s", key="v1:" + "0" * 64, method="GET", provider="openai",
    operation="realtime", store="x.db",
)  # fmt: skip


def missed(recorded: list[object], *said: object) -> FrameMismatch:
    """Say these to a recording; the last must be missed."""
    frames = [Frame(n, client=True, data=json.dumps(each)) for n, each in enumerate(recorded)]
    player = FramePlayer(frames, lambda: FrameCanon("openai", "realtime", Rules(), lambda _: None))
    *_, last = [player.on_message(json.dumps(each)) for each in said]
    assert isinstance(last, FrameMismatch)
    return last


@pytest.mark.parametrize(("mismatch", "reason", "text"), [
    (missed([{"a": 1}], {"a": 2}), "llmproxy: message 1 is not in recording #7; nearest 1 of 1 differs at $.a; see llmproxy why", "differs at $.a"),
    (missed([{"a": 1}, {"b": 1}], {"b": 1}), "llmproxy: message 1 is not in recording #7; equals its message 2 of 2; see llmproxy why", "has it as message 2"),
    (missed([], {"b": 1}), "llmproxy: message 1 is not in recording #7, which has none; see llmproxy why", "said nothing"),
    (missed([{"a": 1}], {"a": 1}, {"a": 2}), "llmproxy: message 2 is not in recording #7; nearest 1 of 1 differs at $.a; see llmproxy why", "has no more"),
])  # fmt: skip
def test_the_reason_is_short_and_the_text_tells_all(mismatch: FrameMismatch, reason: str, text: str) -> None:
    """The close frame names recording, nearest message and path; the journal what to type."""
    miss = explain(CONTEXT, 7, mismatch)
    assert miss.reason == reason
    assert text in miss.text
    assert "llmproxy start --mode record --cassette 'it'\"'\"'s mine' --store x.db" in miss.text
    assert "llmproxy show 7 --store x.db" in miss.text
    assert miss.data["text"] == miss.text
    assert isinstance(nearest := miss.data["nearest"], dict)
    assert nearest["id"] == 7
    json.dumps(miss.data)


def test_auto_says_that_the_next_socket_is_recorded() -> None:
    """There a miss is no dead end."""
    from dataclasses import replace

    text = explain(replace(CONTEXT, mode="auto"), 7, missed([{"a": 1}], {"a": 2}), records=True).text
    assert "connect again" in text


@given(st.dictionaries(st.text(min_size=1), st.integers(0, 1), min_size=1))
def test_a_reason_always_fits_its_frame(old: dict[str, int]) -> None:
    """123 bytes of UTF-8, whatever members are called, and it prints on one line."""
    reason = explain(CONTEXT, 1 << 40, missed([old], old | {next(iter(old)): 7})).reason
    assert len(reason.encode()) <= LONGEST_REASON
    assert reason.isprintable()


@given(st.text(), st.integers(3, 200))
def test_a_text_is_cut_at_a_character(text: str, size: int) -> None:
    """Never in the middle of one."""
    try:
        short = len(text.encode()) <= size
    except UnicodeEncodeError:
        return
    assert len(cut(text, size).encode()) <= size
    assert (cut(text, size) == text) is short
