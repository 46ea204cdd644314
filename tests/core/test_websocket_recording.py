"""A WebSocket conversation, written down as it passes."""

from __future__ import annotations

import json

import pytest

from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.traffic.frames import CONTENT_TYPE, CUT, Frame, decode
from llmproxy.core.traffic.interaction import Ending, Request, Response, header
from llmproxy.core.websocket import FrameRecording, ending

HEADERS = (("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Accept", "x"), ("Sec-WebSocket-Extensions", "permessage-deflate"),
           ("Sec-WebSocket-Protocol", "realtime"), ("x-request-id", "req-1"), ("content-length", "0"))  # fmt: skip


def redact(data: str | bytes) -> str | bytes:
    """Redact as the shell does."""
    plain = data.encode() if isinstance(data, str) else data
    body = Redactor().request(Request("POST", "/v1/realtime", (), plain)).body
    return body.decode() if isinstance(data, str) else body


def end(recording: FrameRecording) -> Response:
    """Close a recording."""
    return recording.end("openai", "realtime", stream=False, proper=True)


def test_a_conversation_becomes_a_response() -> None:
    """101, the upgrade's own headers without those of the connection, a chunk a message."""
    recording = FrameRecording(redact, 500, HEADERS)
    assert (recording.started, recording.whole, recording.first_offset) == (True, False, 500)
    recording.message(700, "hi", client=True)
    recording.message(900, b"\x00", client=False)
    assert recording.first_offset == 900
    recording.record_close(1000, 1000, "bye", client=False)
    response = end(recording)
    assert (response.status, response.ending, response.head_offset) == (101, Ending.COMPLETE, 500)
    assert dict(response.headers) == {
        "Sec-WebSocket-Protocol": "realtime", "x-request-id": "req-1", "content-type": CONTENT_TYPE,
    }  # fmt: skip
    assert [chunk.offset for chunk in response.chunks] == [700, 900, 1000]
    assert [frame.data for frame in decode(response.body)] == ["hi", b"\x00", "bye"]


def test_secrets_of_the_client_are_taken_out_of_both_sides() -> None:
    """A server that says the session's settings again does not give them away; its message keeps its length."""
    tool = {"type": "mcp", "authorization": "Bearer hunter2/9-hunter2-hunter2", "server_url": "https://x"}
    update, echo = json.dumps({"session": {"tools": [tool]}}), json.dumps({"echo": [tool]}, ensure_ascii=False)
    recording = FrameRecording(redact, 0, ())
    recording.message(1, update, client=True)
    recording.message(2, echo, client=False)
    recording.message(3, echo.encode(), client=False)
    recording.message(4, "nothing in it", client=False)
    response = end(recording)
    assert recording.overwritten
    assert b"hunter2" not in response.body
    said = [frame.data for frame in decode(response.body)]
    assert "[REDACTED-1:credential]" in str(said[0])
    assert len(str(said[1]).encode()) == len(echo.encode())
    assert json.loads(said[1])["echo"][0]["authorization"].startswith("REDACTED**")
    assert said[2] == str(said[1]).encode()
    assert said[3] == "nothing in it"


def test_without_secrets_nothing_is_overwritten() -> None:
    """The flag is for recordings that are not exact."""
    recording = FrameRecording(redact, 0, ())
    recording.message(1, '{"type": "a"}', client=True)
    recording.message(2, '{"type": "b"}', client=False)
    end(recording)
    assert not recording.overwritten


DONE = Frame(2, client=False, data='{"type": "response.done"}')


@pytest.mark.parametrize(("frames", "expected"), [
    ([], Ending.CUT),
    ([DONE], Ending.CUT),
    ([DONE, Frame(3, client=True, close=1000)], Ending.COMPLETE),
    ([Frame(3, client=False, close=1011)], Ending.COMPLETE),
    ([Frame(3, client=False, close=1005)], Ending.COMPLETE),
    ([DONE, Frame(3, client=True, close=CUT)], Ending.COMPLETE),
    (
        [Frame(1, client=False, data=b'{"serverContent": {"turnComplete": true}}'), Frame(3, client=True, close=CUT)],
        Ending.COMPLETE,
    ),
    ([DONE, Frame(3, client=False, close=CUT)], Ending.CUT),
    ([DONE, Frame(3, client=True, data="more"), Frame(4, client=True, close=CUT)], Ending.CUT),
    ([Frame(2, client=False, data='{"type": "response.created"}'), Frame(3, client=True, close=CUT)], Ending.CUT),
    ([Frame(3, client=True, close=CUT)], Ending.CUT),
    ([Frame(2, client=False, data="[1]"), Frame(3, client=True, close=CUT)], Ending.CUT),
])  # fmt: skip
def test_what_counts_as_whole(frames: list[Frame], expected: Ending) -> None:
    """Closed properly, or left by a client to which the server owed nothing (as with HTTP, where clients hang up after the terminator)."""
    assert ending(frames) is expected


def test_it_tells_when_the_end_has_begun() -> None:
    """From then on what reaches the client is the end, whatever length a header named."""
    recording = FrameRecording(redact, 0, HEADERS)
    before = recording.whole
    recording.is_closing = lambda: True
    assert (before, recording.whole) == (False, True)
    assert header(end(recording).headers, "content-length") is None
