"""Where a recorded answer waits."""

from __future__ import annotations

from llmproxy.core.mcp.turns import AnswerPart, Wait, frame_chunk, turns_of_call, turns_of_stream
from llmproxy.core.traffic.interaction import Chunk, Response

PROGRESS = b'event: message\ndata: {"jsonrpc":"2.0","method":"notifications/progress","params":{}}\n\n'
QUESTION = b'event: message\ndata: {"jsonrpc":"2.0","id":0,"method":"elicitation/create","params":{}}\n\n'
RESULT = b'event: message\ndata: {"jsonrpc":"2.0","id":3,"result":{}}\n\n'


def stream(*chunks: bytes, every: int = 1_000_000) -> Response:
    """Make a stream of events, one a second."""
    made = tuple(Chunk(n * every, data) for n, data in enumerate(chunks))
    return Response(200, "OK", (("content-type", "text/event-stream"),), made)


def test_a_question_parts_an_answer() -> None:
    """All up to the question goes out at once; the rest only when it was answered."""
    assert turns_of_call(stream(PROGRESS, QUESTION[:20], QUESTION[20:] + RESULT)) == [
        AnswerPart(Wait.NOTHING, None, PROGRESS + QUESTION),
        AnswerPart(Wait.ANSWER, 0, RESULT),
    ]
    assert turns_of_call(stream(PROGRESS, RESULT)) is None


def test_what_is_said_unasked_follows_what_it_followed() -> None:
    """Each piece of a stream waits for the last message that the client had sent before it; then the client may leave."""
    messages = [(99.5, 4), (100.5, 5)]
    assert turns_of_stream(stream(b"a", b"b"), 100.0, messages, ended=False) == [
        AnswerPart(Wait.SERVED, 4, b"a"),
        AnswerPart(Wait.SERVED, 5, b"b"),
        AnswerPart(Wait.FOR_EVER, None, b""),
    ]
    assert turns_of_stream(stream(b"a"), 100.0, [], ended=True) == [AnswerPart(Wait.NOTHING, None, b"a")]


def test_parts_are_http_chunks_where_the_client_takes_such() -> None:
    """An empty chunk would end the answer."""
    assert frame_chunk(b"abc", chunked=True) == b"3\r\nabc\r\n"
    assert (frame_chunk(b"", chunked=True), frame_chunk(b"abc", chunked=False)) == (b"", b"abc")
