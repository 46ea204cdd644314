"""A response as it is written down."""

from __future__ import annotations

import gzip
import json

import pytest

from llmproxy.core.sessions.exchange import Recording
from llmproxy.core.traffic.interaction import Ending, Headers

JSON: Headers = (("Content-Type", "application/json"),)
SSE: Headers = (("content-type", "text/event-stream"),)


def recorded(headers: Headers, *pieces: bytes, status: int = 200) -> Recording:
    """Return a recording of these pieces, 10 microseconds apart."""
    made = Recording()
    assert not made.started
    made.head(5, status, "OK", headers)
    for n, piece in enumerate(pieces, 1):
        made.data(n * 10, piece)
    return made


def end(made: Recording, *, stream: bool = True, proper: bool = True) -> Ending:
    """Return how it ended, as a chat completion."""
    return made.end("openai", "chat.completions", stream=stream, proper=proper).ending


def test_borders_and_times_are_kept() -> None:
    """Each piece is a chunk of its own; empty ones are none."""
    response = recorded(SSE, b"da", b"", b"ta: 1\n\n").end("openai", "x", stream=True, proper=True)
    assert [(chunk.offset, chunk.data) for chunk in response.chunks] == [(10, b"da"), (30, b"ta: 1\n\n")]
    assert (response.head_offset, response.chunked, response.body) == (5, True, b"data: 1\n\n")


@pytest.mark.parametrize(("pieces", "proper", "ending"), [
    ((b"data: {}\n\n", b"data: [DONE]\n\n"), True, Ending.COMPLETE),
    ((b"data: {}\n\n", b"data: [DONE]\n\n"), False, Ending.COMPLETE),
    ((b"data: {}\n\n",), True, Ending.UNTERMINATED),
    ((b"data: {}\n\n",), False, Ending.CUT),
    ((), False, Ending.CUT),
])  # fmt: skip
def test_a_stream_is_complete_when_its_terminator_was_seen(
    pieces: tuple[bytes, ...], proper: bool, ending: Ending
) -> None:
    """Whatever the connection did after that."""
    assert end(recorded(SSE, *pieces), proper=proper) is ending


def test_a_body_with_a_length_is_complete_by_its_length() -> None:
    """A client that closes after the last byte has it all."""
    body = json.dumps({"choices": []}).encode()
    headers = (*JSON, ("content-length", str(len(body))))
    whole, part = recorded(headers, body[:5], body[5:]), recorded(headers, body[:5])
    assert (whole.whole, part.whole) == (True, False)
    assert end(whole, stream=False, proper=False) is Ending.COMPLETE
    assert end(part, stream=False, proper=False) is Ending.CUT
    assert not whole.end("openai", "x", stream=False, proper=True).chunked
    assert not recorded(JSON, body).whole, "without a length nobody knows"


def test_compression_is_undone_piece_by_piece() -> None:
    """Borders and times stay; the header goes with it."""
    packed = gzip.compress(b"data: {}\n\n" * 100)
    made = recorded((*SSE, ("content-encoding", "gzip")), packed[:20], packed[20:])
    response = made.end("openai", "x", stream=True, proper=True)
    assert response.body == b"data: {}\n\n" * 100
    assert "content-encoding" not in dict(response.headers)


def test_what_does_not_decode_stays_as_it_came() -> None:
    """Nothing is lost for a header that lies."""
    assert (
        recorded((*JSON, ("content-encoding", "gzip")), b"{}").end("openai", "x", stream=False, proper=True).body
        == b"{}"
    )


def test_the_first_byte_is_timed() -> None:
    """The head's time stands in where there is no body."""
    assert recorded(SSE, b"x").first_offset == 10
    assert recorded(SSE).first_offset == 5
    assert Recording().first_offset is None
