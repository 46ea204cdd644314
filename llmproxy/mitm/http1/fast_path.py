"""Fast path for hits, in front of a connection's stream: answered as soon as their bytes arrive.

mitmproxy would put the bytes into a stream, wake a task, take a lock and send an event through its layers, which costs
several times the work of the answer. Everything but a plain request that is a hit is handed over unchanged to the
stream and so to `RecordReplayLayer`, with the state of a request that has begun: nothing is decided twice. It
returns here when the layer is between two requests. After an exception here the layer reports the error, or serves.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from time import time
from typing import Any, cast

from mitmproxy import ctx
from mitmproxy.addons import proxyserver
from mitmproxy.connection import Connection, ConnectionState
from mitmproxy.proxy import events, layer, layers, mode_servers, mode_specs
from mitmproxy.proxy.context import Context

from llmproxy.core.engine.request_identification import WORTH_A_THREAD
from llmproxy.core.sessions.exchange import RoutedRequestHead
from llmproxy.core.traffic.interaction import header
from llmproxy.core.traffic.origin_guard import HeadForOriginCheck, OriginGuard
from llmproxy.core.traffic.response_plan import REDIRECTS, ClientFramingTraits
from llmproxy.core.traffic.websocket_frames import SWITCHING
from llmproxy.errors import LLMProxyError
from llmproxy.mitm.http1.request_handling import IncomingRequest, get_planned_answer_if_undelayed
from llmproxy.mitm.http1_parser import BadHttp1Request, Head, parse_head
from llmproxy.mitm.proxy_context import ProxyContext
from llmproxy.protocol import CONTROL_PREFIX, Decision

log = logging.getLogger(__name__)

MAX_HELD = 4 << 20
"""Maximum bytes of a request buffered here; a longer one goes to the layer."""
STREAMS = 256
"""Maximum connections to one upstream for one client: an HTTP/2 client has at most a hundred open streams."""
REMEMBERED_HEADS = 1024
LONGEST_HEAD = 4096
"""Maximum bytes of a cached head: at most 4 MiB in all."""
_LENGTH = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: *([0-9]{1,9})\r\n")
_CREDENTIAL = re.compile(
    rb"\r\n(?:[Aa]uthorization: [Bb]earer |[Xx]-[Aa]pi-[Kk]ey: |[Aa]pi-[Kk]ey: |[Xx]-[Gg]oog-[Aa]pi-[Kk]ey: )"
    rb"([A-Za-z0-9._~\-]{16,})\r\n"
)
"""Header that identifies the caller and not the request: some clients send another one each time."""


class FastPathAsyncioProtocol(asyncio.StreamReaderProtocol):
    incoming = IncomingRequest
    """Factory of incoming requests; a test passes a broken one."""

    def __init__(
        self, proxy: ProxyContext, heads: HeadCache,
        serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]], loop: asyncio.AbstractEventLoop,
    ) -> None:  # fmt: skip
        super().__init__(asyncio.StreamReader(loop=loop), serve, loop=loop)
        self._proxy, self._heads = proxy, heads
        self._held: list[bytes] = []
        self._wanted = 0
        """Least number of bytes missing from the buffered request."""
        self._incoming: IncomingRequest | None = None
        """The request that has begun here and is not finished."""
        self._last: ReceivedMessageHead | None = None
        self._handed = 0
        self._full = False
        self._look: asyncio.TimerHandle | None = None
        """Timer that checks whether buffered bytes still wait."""
        self.has_answered: Callable[[int], bool] | None = None
        """Set by the layer behind; None until something was handed over."""
        self._here = True
        self.heard = 0.0
        """Unix time of the last bytes: the layers do not see requests answered here."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._out = cast("asyncio.Transport", transport)
        self._place = (transport.get_extra_info("peername"), transport.get_extra_info("sockname"))
        sockets, descriptor = self._proxy.sockets, transport.get_extra_info("socket").fileno()
        if sockets is not None and descriptor >= sockets.room:
            sockets.make_room(self._proxy.fronts.values(), descriptor)
        self._proxy.fronts[self._place] = self
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._hand_over(b"".join(self._held))
        super().connection_lost(exc)
        self._proxy.fronts.pop(self._place, None)
        self.has_answered = None
        if self._look is not None:
            self._look.cancel()

    def eof_received(self) -> bool | None:
        self._hand_over(b"".join(self._held))
        return super().eof_received()

    @property
    def is_idle(self) -> bool:
        return not self._held and self._incoming is None and self._take_back_if_idle()

    def close(self) -> None:
        self._out.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._here:
            self._full = True
            self._out.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._full:
            self._full = False
            self._out.resume_reading()

    def data_received(self, data: bytes) -> None:
        self.heard = time()
        if not self._here and not self._take_back_if_idle():
            self._handed += len(data)
            super().data_received(data)
            return
        if self._held:
            self._held.append(data)
            if len(data) < self._wanted:  # a long body comes in many pieces: joined once
                self._wanted -= len(data)
                return
            data = b"".join(self._held)
        self._held = [data]
        try:
            self._serve_complete_requests(data)
        except LLMProxyError:  # the layer meets it too, and says it in its way
            self._hand_over(b"".join(self._held))
        except Exception:
            log.exception("llmproxy failed in front of a connection; the layer goes on")
            self._hand_over(b"".join(self._held))
        if self._held and self._look is None:
            self._start_hand_over_timer()

    def _start_hand_over_timer(self) -> None:
        self._look = asyncio.get_running_loop().call_later(
            self._proxy.held_for, self._hand_over_incomplete, self._held[0]
        )

    def _hand_over_incomplete(self, first: bytes) -> None:
        self._look = None
        if not self._held:
            return
        if self._held[0] is first:
            self._hand_over(b"".join(self._held))
        else:
            self._start_hand_over_timer()

    def _take_back_if_idle(self) -> bool:
        if self.has_answered is not None and self.has_answered(self._handed):
            self._here = True
        return self._here

    def _hand_over(self, data: bytes) -> None:
        self._held, self._here = [], False
        if self._incoming is not None:
            self._proxy.arrived[self._place] = self._incoming
            self._incoming = None
        if data:
            self._handed += len(data)
            super().data_received(data)

    def _serve_complete_requests(self, data: bytes) -> None:
        while data:
            self._wanted = 0
            last = self._last
            # A head is over at its first blank line, so bytes that begin with a whole head have that head.
            if last is None or not data.startswith(last.raw):
                end = data.find(b"\r\n\r\n", 0, LONGEST_HEAD) + 4
                self._last = last = self._heads.find_head(data[:end]) if end > 3 else None
            if last is None or self._proxy.draining:
                self._hand_over(data)
                return
            end, length = last.end, last.length
            if (
                self._incoming is None
                and len(data) >= end + length
                and self._send_fast_hit(last, data[end : end + length])
            ):
                data = self._take_bytes_after_answered(data, end + length)
                continue
            if last.credential != last.plain.credential:
                self._last = last = self._heads.parse_own_head(last)
            if self._incoming is None and not self._begin_request(last.plain):
                self._hand_over(data)
                return
            if len(data) < end + length:
                self._wanted = end + length - len(data)
                if length > MAX_HELD:
                    self._hand_over(data)
                return
            if not self._send_replay(data[end : end + length]):
                self._hand_over(data)
                return
            data = self._take_bytes_after_answered(data, end + length)

    def _take_bytes_after_answered(self, data: bytes, end: int) -> bytes:
        """Return the bytes after an answered request; empty if the connection is closing."""
        rest = data[end:] if end < len(data) and not self._out.is_closing() else b""
        self._held = [rest] if rest else []
        return rest

    def _send_fast_hit(self, last: ReceivedMessageHead, body: bytes) -> bool:
        """Send the recorded answer by the fast path. False, and nothing counted, if the slow path must answer."""
        plain, engine = last.plain, self._proxy.engine
        if plain.place is None:
            return False
        if last.credential != plain.credential:
            engine.redactor.learn_bearer(last.credential.decode("ascii"))
        if (hit := engine.fast_path.find_answer(plain.place, plain.client, body)) is None:
            return False
        self._out.write(hit.data)
        self._proxy.report_hit(hit)
        if hit.close:
            self._out.close()
        return True

    def _begin_request(self, plain: FastPathRequestHead) -> bool:
        """Begin a request with a complete head; False if its body is not to be awaited here."""
        engine, head = self._proxy.engine, plain.head
        incoming = self.incoming(self._proxy)
        incoming.head, incoming.client = head, plain.client
        try:
            if plain.place is None or not engine.dispatcher.is_still_valid(plain.place):
                plain.place = engine.dispatcher.place_request(head.method, head.target, None, head.headers)
            exchange = incoming.begin_exchange(plain.place)
            exchange.progress.connection = self._place
        except LLMProxyError:
            return False  # the layer says it, in its way
        self._incoming = incoming
        session = exchange.session
        return exchange.decision is None and not session.settings.speed and not session.needs_whole_requests

    def _send_replay(self, body: bytes) -> bool:
        """Send the recorded answer; False if there is none, or the layer must send it."""
        if (incoming := self._incoming) is None:
            raise AssertionError("no request has arrived")
        if incoming.head is None or len(incoming.head.raw) + len(body) >= WORTH_A_THREAD:
            return False  # the layer can wait for a thread
        exchange = incoming.decide_request(body)
        slot = exchange.slot
        if exchange.decision is not Decision.REPLAY or slot is None:
            return False
        if slot.status == SWITCHING or slot.status in REDIRECTS or exchange.answer.held:
            return False  # what waits, or leads on, is the layer's
        laid, opened = incoming.plan_recorded_answer()
        if opened is not None or (data := get_planned_answer_if_undelayed(laid)) is None:
            return False  # so is what waits
        self._incoming = None
        self._out.write(data)
        self._proxy.report_exchange_end(exchange, slot.status)
        if laid.close:
            self._out.close()
        return True


@dataclass(slots=True)
class FastPathRequestHead:
    head: Head
    client: ClientFramingTraits
    credential: bytes = b""
    """Credential of its first request; hits with other credentials may be served as well."""
    place: RoutedRequestHead | None = None


@dataclass(slots=True)
class ReceivedMessageHead:
    raw: bytes
    plain: FastPathRequestHead
    end: int
    length: int
    """Length of the body in bytes."""
    which: bytes
    """The head without its body's length and its credential."""
    credential: bytes
    """Empty without a common credential header."""


class HeadCache:
    def __init__(self, guard: OriginGuard, *, by_credential: bool = False) -> None:
        self._guard, self._by_credential = guard, by_credential
        self._known: dict[bytes, FastPathRequestHead] = {}

    def find_head(self, raw: bytes) -> ReceivedMessageHead | None:
        if b"\0" in raw or (found := _LENGTH.search(raw)) is None:
            return None
        start, end = found.span(1)
        held = None if self._by_credential else _CREDENTIAL.search(raw)
        if held is None:
            which, credential = b"%b\0%b" % (raw[:start], raw[end:]), b""  # NUL separates
        else:
            credential, (first, last) = held[1], held.span(1)
            if first > start:
                start, end, first, last = first, last, start, end
            which = b"%b\0%b\0%b" % (raw[:first], raw[last:start], raw[end:])
        plain = self._known.get(which)
        if plain is None and (plain := self._parse_and_cache_head(raw, which, credential)) is None:
            return None
        return ReceivedMessageHead(raw, plain, len(raw), int(found[1]), which, credential)

    def parse_own_head(self, known: ReceivedMessageHead) -> ReceivedMessageHead:
        """Parse the head's own bytes: the cached one may differ in its credential."""
        if (plain := self._parse_and_cache_head(known.raw, known.which, known.credential)) is None:
            raise AssertionError("a head that only its credential makes bad")
        return replace(known, plain=plain)

    def _parse_and_cache_head(self, raw: bytes, which: bytes, credential: bytes) -> FastPathRequestHead | None:
        try:
            head = parse_head(raw)
        except BadHttp1Request:
            return None
        if not is_request_fast_path_eligible(head) or not self._guard.is_admitted(HeadForOriginCheck(head.headers)):
            return None
        if len(self._known) >= REMEMBERED_HEADS:
            self._known.clear()
        client = ClientFramingTraits(head.method, keep_alive=head.keep_alive)
        plain = self._known[which] = FastPathRequestHead(head, client, credential)
        return plain


def is_request_fast_path_eligible(head: Head) -> bool:
    """Return whether a request is plain, in origin form, with a length; a web page's answer is the layer's."""
    return (
        head.length is not None
        and head.target.startswith("/")
        and not head.target.startswith(CONTROL_PREFIX)
        and not (head.expects or head.upgrade or head.http10)
        and head.method != "CONNECT"
        and header(head.headers, "proxy-authorization") is None
        and header(head.headers, "origin") is None
        and header(head.headers, "sec-fetch-dest") is None
        and sum(name.lower() == "content-length" for name, _ in head.headers) == 1
    )


class ClientLeaveWatchingHandler(mode_servers.ProxyConnectionHandler):
    """mitmproxy's handler of a client, which notices at once that it leaves, not at its next write."""

    proxy: ProxyContext | None = None

    async def handle_connection(self, connection: Connection) -> None:
        if connection is not self.client:
            await super().handle_connection(connection)
            return
        transport = self.transports[connection]
        if not isinstance(transport.writer, asyncio.StreamWriter) or transport.handler is None:
            raise AssertionError("a client without a socket")
        tap = asyncio.ensure_future(self._wait_until_client_leaves(transport.writer, transport.handler))
        try:
            await super().handle_connection(connection)
        finally:
            tap.cancel()

    async def _wait_until_client_leaves(self, writer: asyncio.StreamWriter, handler: asyncio.Task[None]) -> None:
        """Wait until the client's connection is lost; let the layers hear of it when they know all that it has sent."""
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        while self.client.state & ConnectionState.CAN_READ:  # noqa: ASYNC110 - nobody tells us
            await asyncio.sleep(0)
        if self.client.state is ConnectionState.CAN_WRITE:
            self.client.state = ConnectionState.CLOSED
            await self.server_event(events.ConnectionClosed(self.client))
        handler.cancel("client left")

    async def server_event(self, event: events.Event) -> None:
        """Let the layers hear of something, of a piece of a recorded answer in its turn."""
        if isinstance(event, events.DataReceived) and event.connection is not self.client and self.proxy is not None:
            exchange = self.proxy.released.get(self.proxy.streams.get(event.connection.id, self.client.id))
            if exchange is not None and exchange.recording.status != SWITCHING:
                try:
                    await self.proxy.turns.wait_for_turn(exchange)
                except asyncio.CancelledError as why:
                    # mitmproxy closes a connection only where a read or a write is cancelled: the next one is.
                    await super().server_event(event)
                    if (task := asyncio.current_task()) is not None:
                        task.cancel(*why.args)
                    return
        await super().server_event(event)

    async def on_timeout(self) -> None:
        """Close what is idle: what the front answers is not, though the layers hear nothing of it."""
        here = self.transports.get(self.client)
        writer = None if here is None else here.writer
        front = writer.transport.get_protocol() if isinstance(writer, asyncio.StreamWriter) else None
        watchdog = self.timeout_watchdog
        last = max(watchdog.last_activity, front.heard if isinstance(front, FastPathAsyncioProtocol) else 0.0)
        if last + watchdog.timeout > time():
            watchdog.last_activity = last
            await watchdog.watch()  # type: ignore[no-untyped-call]
        else:
            await super().on_timeout()


class FrontedMode(mode_specs.ProxyMode):  # type: ignore[no-untyped-call]
    """A regular proxy with the front before its streams: the mode that our own server listens in."""

    description = "llmproxy"
    transport_protocol = mode_specs.TCP

    def __post_init__(self) -> None: ...


class FastPathProxyserver(proxyserver.Proxyserver):
    def __init__(self, proxy: ProxyContext, front: type[FastPathAsyncioProtocol]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.proxy, self.front = proxy, front


class FastPathListener(mode_servers.AsyncioServerInstance[FrontedMode]):  # type: ignore[no-untyped-call]
    """A listener of that mode. Its manager is a `FastPathProxyserver`."""

    def make_top_layer(self, context: Context) -> layer.Layer:
        return layers.modes.HttpProxy(context)

    async def handle_stream(self, reader: Any, writer: Any = None) -> None:
        handler = ClientLeaveWatchingHandler(  # type: ignore[no-untyped-call]
            ctx.master, reader, writer, ctx.options, self.mode
        )
        handler.proxy = cast("FastPathProxyserver", self.manager).proxy
        handler.max_conns = defaultdict(lambda: asyncio.Semaphore(STREAMS))
        handler.layer = self.make_top_layer(handler.layer.context)
        with self.manager.register_connection(handler.client.id, handler):
            await handler.handle_client()

    async def listen(self, host: str, port: int) -> list[Any]:
        """Listen as every server of mitmproxy does, with the front before each stream. Raises OSError."""
        loop, manager = asyncio.get_running_loop(), cast("FastPathProxyserver", self.manager)
        heads = HeadCache(manager.proxy.guard, by_credential=manager.proxy.engine.config.match_credential)

        def front() -> FastPathAsyncioProtocol:
            return manager.front(manager.proxy, heads, self.handle_stream, loop)

        return [await loop.create_server(front, host, port)]

    async def stop(self) -> None:
        """Stop listening, in order: who was accepted a moment ago is served, or hears that we are ending."""
        # A connection gets its transport a step of the loop after it was accepted. asyncio attaches that to its server,
        # and prints a traceback from a destructor if the server is closed by then (Python 3.12 and 3.13): so first
        # nobody is accepted any more.
        loop = asyncio.get_running_loop()
        for listener in (each for server in cast("list[asyncio.Server]", self._servers) for each in server.sockets):
            with contextlib.suppress(NotImplementedError):  # Windows' loop: closing ends its accepting itself
                loop.remove_reader(listener)
        await asyncio.sleep(0)
        await super().stop()
