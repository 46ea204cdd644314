"""gRPC over HTTP/2: messages in a body, and how an error of ours is said in it.

    body      messages, each behind a flag (is it compressed?) and its length in four bytes
    status    in trailers: `grpc-status`, `grpc-message`; in the head where the answer has nothing else

Source: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md, and statuscodes.md beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

from llmproxy.core.traffic.interaction import Headers
from llmproxy.protocol import CACHE_HEADER

MEDIA = "application/grpc"
PREFIX = 5
"""Bytes before a message."""
LONGEST = 6000
"""Characters of an error's text: clients take heads of 8 KiB."""
FAILED_PRECONDITION, UNIMPLEMENTED, INTERNAL, UNAVAILABLE = 9, 12, 13, 14
_PLAIN = " !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"
_STATUS = {501: UNIMPLEMENTED, 502: UNAVAILABLE, 503: UNAVAILABLE, 500: INTERNAL}
"""By our HTTP status; all else is a request that will fail until something is changed, and no client repeats it."""


def is_grpc(content_type: str) -> bool:
    """Return whether a body of this type holds messages of gRPC; gRPC-Web is HTTP as any other."""
    return content_type == MEDIA or content_type.startswith((f"{MEDIA}+", f"{MEDIA};"))


def split_messages(body: bytes | bytearray) -> Iterator[tuple[bool, bytes]]:
    """Yield (whether it is compressed, bytes) of each whole message."""
    at = 0
    while at + PREFIX <= len(body):
        end = at + PREFIX + int.from_bytes(body[at + 1 : at + PREFIX])
        if end > len(body):
            return
        yield bool(body[at]), bytes(body[at + PREFIX : end])
        at = end


def count_messages(body: bytes | bytearray) -> int:
    """Return 0 until the first message is whole, 1 where it is the only one, 2 where another has begun."""
    end = PREFIX + int.from_bytes(body[1:PREFIX])
    return (len(body) >= end) + (len(body) > end)


def refusal(status: int, code: str, text: str, *, miss: bool = False) -> Headers:
    """Return the head of an answer that is nothing but an error of ours."""
    while len(said := quote(text, safe=_PLAIN)) > LONGEST:
        text = f"{text[: len(text) * 3 // 4]} ..."
    ours = (("x-llmproxy-error", code), *(((CACHE_HEADER, "miss"),) if miss else ()))
    number = str(_STATUS.get(status, FAILED_PRECONDITION))
    return (("content-type", MEDIA), ("grpc-status", number), ("grpc-message", said), *ours)
