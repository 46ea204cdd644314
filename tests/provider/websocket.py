"""A scripted WebSocket upstream, and a plain client: both on wsproto, both able to misbehave.

    async def talk(peer: Peer) -> None:
        await peer.say({"type": "session.created"})
        heard = await peer.hear()
        ...

    with Upstream(talk) as up:
        with Client(up.port, "/v1/realtime") as c:
            c.say({"type": "response.create"}); c.hear()

The upstream runs an event loop in a thread; `up.heard` is everything that all clients said, `up.upgrades` the handshakes. What `talk` returns
from ends with a closing handshake (1000). `refuse` answers upgrades with an HTTP status instead.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from wsproto import ConnectionType, WSConnection
from wsproto.connection import ConnectionState
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Ping,
    Pong,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)
from wsproto.extensions import PerMessageDeflate

Data = str | bytes


class Gone(Exception):
    """The other side has left; `code` says how."""

    def __init__(self, code: int, reason: str = "") -> None:
        super().__init__(code, reason)
        self.code, self.reason = code, reason


def as_data(said: object) -> Data:
    """Return text and bytes as they are, anything else as JSON."""
    return said if isinstance(said, (str, bytes)) else json.dumps(said)


def frames_of(data: Data, pieces: int = 1) -> list[TextMessage | BytesMessage]:
    size = max(1, -(-len(data) // pieces))
    marks = list(range(0, len(data), size)) or [0]
    kind: Any = TextMessage if isinstance(data, str) else BytesMessage
    return [kind(data=data[at : at + size], message_finished=at == marks[-1]) for at in marks]


class Peer:
    """The upstream's end of one socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, owner: Upstream) -> None:
        self._reader, self._writer, self._owner = reader, writer, owner
        self.ws = WSConnection(ConnectionType.SERVER)
        self.request: Request | None = None
        self._parts: list[Any] = []
        self._inbox: deque[Data | Gone] = deque()
        self.pings = 0

    async def accept(self) -> bool:
        """Take the upgrade, or refuse it as the upstream is told to."""
        while self.request is None:
            data = await self._reader.read(1 << 16)
            if not data:
                return False
            self.ws.receive_data(data)
            self.request = next((each for each in self.ws.events() if isinstance(each, Request)), None)
        owner = self._owner
        owner.upgrades.append(self.request)
        if owner.refuse:
            status, body = owner.refuse
            head = [(b"content-length", str(len(body)).encode()), (b"content-type", b"application/json")]
            out = self.ws.send(RejectConnection(status_code=status, headers=head, has_body=True))
            await self.raw(out + self.ws.send(RejectData(data=body)))
            return False
        chosen = next((name for name in self.request.subprotocols if name == owner.subprotocol), None)
        extensions: list[Any] = [PerMessageDeflate()] if owner.deflate else []
        extra = [(b"x-request-id", b"req-1"), (b"set-cookie", b"s=1")]
        await self.raw(self.ws.send(AcceptConnection(subprotocol=chosen, extensions=extensions, extra_headers=extra)))
        return True

    async def raw(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def say(self, said: object, pieces: int = 1) -> None:
        """Send a message, in so many frames; raises Gone."""
        for frame in frames_of(as_data(said), pieces):
            if self.ws.state is not ConnectionState.OPEN:
                raise Gone(1006)
            await self.raw(self.ws.send(frame))

    async def ping(self) -> None:
        await self.raw(self.ws.send(Ping(payload=b"up")))

    async def hear(self) -> Any:
        """Return the next message, JSON parsed; raises Gone."""
        said = await self.hear_raw()
        try:
            return json.loads(said)
        except ValueError:
            return said

    async def hear_raw(self) -> Data:
        """Return the next message as it came; raises Gone."""
        while not self._inbox:
            try:
                data = await self._reader.read(1 << 16)
            except ConnectionError:
                data = b""
            if not data:
                raise Gone(1006)
            self.ws.receive_data(data)
            for event in self.ws.events():
                if isinstance(event, (TextMessage, BytesMessage)):
                    self._parts.append(event.data)
                    if event.message_finished:
                        whole = ("" if isinstance(event, TextMessage) else b"").join(self._parts)
                        self._parts = []
                        self._inbox.append(whole)
                elif isinstance(event, Ping):
                    await self.raw(self.ws.send(event.response()))
                elif isinstance(event, Pong):
                    self.pings += 1
                elif isinstance(event, CloseConnection):
                    if self.ws.state is ConnectionState.REMOTE_CLOSING:
                        await self.raw(self.ws.send(event.response()))
                    self._inbox.append(Gone(int(event.code), event.reason or ""))
        first = self._inbox.popleft()
        if isinstance(first, Gone):
            raise first
        self._owner.heard.append(first)
        return first

    async def close(self, code: int = 1000, reason: str = "") -> None:
        if self.ws.state is ConnectionState.OPEN:
            await self.raw(self.ws.send(CloseConnection(code, reason or None)))
            try:
                while True:
                    await self.hear()
            except Gone:
                pass

    def cut(self) -> None:
        self._writer.transport.abort()


Talk = Callable[[Peer], Awaitable[None]]


class Upstream:
    """A WebSocket server that does with each client what `talk` says."""

    def __init__(
        self,
        talk: Talk,
        *,
        deflate: bool = True,
        subprotocol: str = "realtime",
        refuse: tuple[int, bytes] | None = None,
        tls: bool = False,
    ) -> None:
        self.talk, self.deflate, self.subprotocol, self.refuse = talk, deflate, subprotocol, refuse
        self.upgrades: list[Request] = []
        self.heard: list[Data] = []
        self.ended: list[Gone] = []
        self.failures: list[BaseException] = []
        self.connections = 0
        self.ca_pem: Path | None = None
        self.port = 0
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="websocket upstream")
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        context: ssl.SSLContext | None = None
        if self._tls:
            from .tls import server_context

            context, self.ca_pem = server_context()
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(context), self._loop).result(10)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
        if kind is None and self.failures:
            raise self.failures[0]

    async def _listen(self, context: ssl.SSLContext | None) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=context, backlog=512)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        peer = Peer(reader, writer, self)
        try:
            if await peer.accept():
                await self.talk(peer)
                await peer.close()
        except Gone as gone:
            self.ended.append(gone)
        except (ConnectionError, asyncio.CancelledError):
            pass
        except BaseException as failure:  # noqa: BLE001 - raised in the test's thread
            self.failures.append(failure)
        finally:
            self._tasks.discard(task)
            writer.close()


class Client:
    def __init__(
        self,
        port: int,
        target: str = "/v1/realtime?model=gpt-realtime",
        *,
        headers: dict[str, str] | None = None,
        deflate: bool = True,
        subprotocols: tuple[str, ...] = (),
        timeout: float = 10,
        sock: socket.socket | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        self.sock = sock or socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.ws = WSConnection(ConnectionType.CLIENT)
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.code: int | None = None
        self.reason = ""
        self.pongs = 0
        self.extensions: list[Any] = []
        self.subprotocol: str | None = None
        self._inbox: deque[Data] = deque()
        self._parts: list[Any] = []
        self._over = False
        sent = headers or {"authorization": "Bearer sk-test-1234567890"}
        extra = [(name.encode(), value.encode()) for name, value in sent.items()]
        offered: list[Any] = [PerMessageDeflate()] if deflate else []
        request = Request(
            host=host, target=target, extra_headers=extra, extensions=offered, subprotocols=list(subprotocols)
        )
        self.sock.sendall(self.ws.send(request))
        while (not self.status or self.status != 101) and not self._over:
            self._more()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is None:
            self.close()
        self.sock.close()

    def _more(self) -> None:
        try:
            data = self.sock.recv(1 << 16)
        except ConnectionError:
            data = b""
        if not data:
            self._over = True
            if self.code is None:
                self.code = 1006
            return
        self.ws.receive_data(data)
        for event in self.ws.events():
            if isinstance(event, AcceptConnection):
                self.status, self.headers = 101, _fields(event.extra_headers)
                self.extensions, self.subprotocol = event.extensions, event.subprotocol
            elif isinstance(event, RejectConnection):
                self.status, self.headers = event.status_code, _fields(event.headers)
            elif isinstance(event, RejectData):
                self.body += event.data
                self._over = self._over or event.body_finished
            elif isinstance(event, (TextMessage, BytesMessage)):
                self._parts.append(event.data)
                if event.message_finished:
                    self._inbox.append(("" if isinstance(event, TextMessage) else b"").join(self._parts))
                    self._parts = []
            elif isinstance(event, Ping):
                self.sock.sendall(self.ws.send(event.response()))
            elif isinstance(event, Pong):
                self.pongs += 1
            elif isinstance(event, CloseConnection):
                self.code, self.reason = int(event.code), event.reason or ""
                if self.ws.state is ConnectionState.REMOTE_CLOSING:
                    self.sock.sendall(self.ws.send(event.response()))

    def say(self, said: object, pieces: int = 1) -> Self:
        for frame in frames_of(as_data(said), pieces):
            self.sock.sendall(self.ws.send(frame))
        return self

    def ping(self) -> None:
        self.sock.sendall(self.ws.send(Ping(payload=b"down")))
        before = self.pongs
        while self.pongs == before and not self._over:
            self._more()

    def next(self) -> Data:
        """Return the next message as it came; raises Gone at the end."""
        while not self._inbox:
            if self._over or self.code is not None:
                raise Gone(self.code or 1006, self.reason)
            self._more()
        return self._inbox.popleft()

    def hear(self) -> Any:
        return json.loads(self.next())

    def end(self) -> Gone:
        """Read to the end; returns how it ended. AssertionError for a message."""
        try:
            message = self.next()
        except Gone as gone:
            return gone
        raise AssertionError(f"the end was expected, not {message!r}")

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Close properly, and read to the end of the connection."""
        if self.ws.state is ConnectionState.OPEN:
            self.sock.sendall(self.ws.send(CloseConnection(code, reason or None)))
        while not self._over:
            self._more()

    def cut(self) -> None:
        self.sock.close()


def _fields(headers: Any) -> dict[str, str]:
    return {name.decode().lower(): value.decode() for name, value in headers}
