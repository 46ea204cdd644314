"""Where a recorded answer must wait before it goes on.

A server may ask while it answers (sampling, elicitation, roots): what follows depends on what the client says, so it goes out only after the
client answered as recorded. What a server says unasked (a GET stream) goes out after the message that it followed while recording.

    recorded answer -> `AnswerPart`s: bytes of the body, then what must have happened before the next ones
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple

from llmproxy.core.mcp.answers import messages_of
from llmproxy.core.traffic.interaction import Response

MICROSECONDS = 1_000_000
LAST_CHUNK = b"0\r\n\r\n"


class Wait(Enum):
    NOTHING = auto()
    ANSWER = auto()
    """The client's answer to the request of the server's whose id is `Turn.what`."""
    SERVED = auto()
    """The interaction `Turn.what` was served in this run."""
    FOR_EVER = auto()
    """The recorded client left it open."""
    BROKEN = auto()
    """The server broke off: nothing that could come is an answer."""


class AnswerPart(NamedTuple):
    wait: Wait
    """Before the data."""
    what: object
    data: bytes


def asks(response: Response) -> list[tuple[int, object]]:
    """Return the requests of the server's in an answer: where each ends in the body, and its id."""
    return [(part.end, part.value["id"]) for part in messages_of(response) if _is_request(part.value)]


def _is_request(message: object) -> bool:
    return isinstance(message, dict) and "method" in message and "id" in message


def turns_of_call(response: Response) -> list[AnswerPart] | None:
    """Return an answer in turns; None for one that waits for nobody."""
    asked = asks(response)
    if not asked:
        return None
    body = response.body
    turns, begin, wait, what = [], 0, Wait.NOTHING, None
    for said, id_ in asked:
        end = _event_end(body, said)
        turns.append(AnswerPart(wait, what, body[begin:end]))
        begin, wait, what = end, Wait.ANSWER, id_
    return [*turns, AnswerPart(wait, what, body[begin:])]


def turns_of_stream(
    response: Response, started_at: float, messages: Sequence[tuple[float, int]], *, ended: bool
) -> list[AnswerPart]:
    """Return an unasked stream in turns.

    `messages` are the client's, (Unix seconds, interaction), in order; `ended` says that the server ended the stream, not the client.
    """
    times = [at for at, _ in messages]
    turns = []
    for chunk in response.chunks:
        before = bisect_right(times, started_at + chunk.offset / MICROSECONDS)
        wait, what = (Wait.SERVED, messages[before - 1][1]) if before else (Wait.NOTHING, None)
        turns.append(AnswerPart(wait, what, chunk.data))
    return turns if ended else [*turns, AnswerPart(Wait.FOR_EVER, None, b"")]


def _event_end(body: bytes, at: int) -> int:
    """Return where the event ends in which a message ends: an empty line, or the line's end in other framings."""
    for mark in (b"\r\n\r\n", b"\n\n", b"\n"):
        if (found := body.find(mark, at)) >= 0:
            return found + len(mark)
    return len(body)


def event(message: dict[str, object]) -> bytes:
    """Write a message of ours as a server-sent event."""
    return b"event: message\ndata: " + json.dumps(message).encode() + b"\n\n"


def frame_chunk(data: bytes, *, chunked: bool) -> bytes:
    """Return a part of a body as an HTTP chunk, where the client takes such."""
    return b"%x\r\n%b\r\n" % (len(data), data) if chunked and data else data
