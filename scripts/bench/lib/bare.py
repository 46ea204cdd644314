"""A server that does nothing, as quickly as Python can: asyncio and httptools. It is also the upstream that peers record from.

    python bare.py '{"port": 8080}'                         the same answer to everything
    python bare.py '{"port": 8080, "numbered": true}'       the answer belongs to the number in the request
    python bare.py '{"port": 8080, "chunks": 50, "every": 0.02}'    a request for a stream gets so many chunks

A chunk carries the moment it was sent (`t=` and monotonic nanoseconds), so that whoever receives it can tell its delay.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from functools import lru_cache
from pathlib import Path
from typing import cast

import httptools

sys.path.insert(0, str(Path(__file__).parents[1]))

from lib import traffic

NUMBER = re.compile(traffic.MARK + rb"(\d{6})")
JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-request-id: req_bench\r\n"
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
WAIT = 1_000_000_000


def whole(number: int) -> bytes:
    """Return the whole response to request `number`."""
    content = traffic.answer(number)
    return JSON_HEAD + b"content-length: %d\r\n\r\n" % len(content) + content


def chunk(data: bytes) -> bytes:
    """Frame bytes as an HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Bare(asyncio.Protocol):
    """One connection."""

    answer = whole(0)
    numbered = False
    chunks = 0
    every = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way out."""
        self.transport = cast("asyncio.Transport", transport)
        self.parser = httptools.HttpRequestParser(self)
        self.pieces: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        """Parse."""
        self.parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        """Keep the body only where it is looked at."""
        if self.numbered or self.chunks:
            self.pieces.append(data)

    def on_message_complete(self) -> None:
        """Answer."""
        if not self.pieces:
            self.transport.write(self.answer)
            return
        content = b"".join(self.pieces)
        self.pieces.clear()
        found = NUMBER.findall(content)
        number = int(found[-1]) if found else 0
        if self.chunks and b'"stream": true' in content:
            self.transport.write(STREAM_HEAD)
            self.send(number, 0, time.perf_counter())
        else:
            self.transport.write(numbered(number) if self.numbered else self.answer)

    def send(self, number: int, index: int, began: float) -> None:
        """Send what is due of a stream."""
        while index < self.chunks:
            due = began + index * self.every - time.perf_counter()
            if self.every and due > 0:
                asyncio.get_running_loop().call_later(due, self.send, number, index, began)
                return
            stamp = f"t={time.monotonic_ns():020d} " if self.every else f"answer {number:06d} word {index:04d} "
            self.transport.write(chunk(traffic.event(number, index, stamp)))
            index += 1
        self.transport.write(chunk(traffic.event(number, -1, "")) + chunk(traffic.DONE) + b"0\r\n\r\n")


@lru_cache(maxsize=2_000)
def numbered(number: int) -> bytes:
    """Remember responses."""
    return whole(number)


async def main(port: int, *, numbered: bool = False, chunks: int = 0, every: float = 0.0) -> None:
    """Serve until killed."""
    Bare.numbered, Bare.chunks, Bare.every = numbered, chunks, every
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Bare, "127.0.0.1", port, backlog=512)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(**json.loads(sys.argv[1])))
