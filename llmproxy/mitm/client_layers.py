"""The layers of a client's connection: their choice, a CONNECT's check, TLS, and HTTP/2 with a replay layer per stream.

One listener serves base URLs, absolute form and https directly: mitmproxy's own `NextLayer` allows no second choice. An
HTTP/2 stream gets a `Client` of its own and is presented to its layer as HTTP/1; when it has ended, its layer serves
another one and reuses its upstream connection. A gRPC request is forwarded only when complete, so that a bidirectional
stream is refused before any of it is sent.
"""

from __future__ import annotations

import copy
import logging
import re
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import h11
from h2.errors import ErrorCodes
from h2.events import Event
from hyperframe.frame import Frame, GoAwayFrame
from mitmproxy import http
from mitmproxy.connection import Client, Connection, ConnectionState
from mitmproxy.net.http.url import parse_authority
from mitmproxy.proxy import commands, events, layer, layers
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers.http import HTTPMode, _events as http_events
from mitmproxy.proxy.layers.http._base import HttpEvent, ReceiveHttp
from mitmproxy.proxy.layers.http._http2 import Http2Client, Http2Server
from mitmproxy.proxy.layers.http._http_h2 import BufferedH2Connection

from llmproxy.core.traffic import grpc
from llmproxy.core.traffic.interaction import RESET, is_grpc
from llmproxy.errors import RefusedError
from llmproxy.mitm.http1.replay_layer import RecordReplayLayer
from llmproxy.mitm.http1_parser import BadHttp1Request, HeadTooSlow, Http1RequestParser
from llmproxy.mitm.interception import is_own_listener
from llmproxy.mitm.proxy_context import ProxyContext, build_own_response

log = logging.getLogger(__name__)

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""First bytes of an HTTP/2 client (RFC 9113 3.4)."""
ALPN = b"h2"
LONGEST_HEAD = 1 << 20
"""Maximum bytes of a recorded answer's head."""
ONE_CONNECTION = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade", b"trailer"}
)
"""Connection-specific fields that HTTP/2 forbids (RFC 9113 8.2.2)."""
LOOK = 1.0
"""Seconds after which an incomplete gRPC request is checked."""

_RESET_BY_SERVER = re.compile(r"stream reset by \w+ \((\w+)\)")

Commands = layer.CommandGenerator[None]


class UnsupportedGrpc(RefusedError):
    code = "llmproxy_grpc_streams"
    status = 501


@dataclass
class Http2StreamEndedHook(commands.StartHook):  # type: ignore[no-untyped-call]
    """A stream has ended (`RecordingAddon.http2_stream_ended`)."""

    client: Client
    blocking = False


class GoawayTolerantConnection(BufferedH2Connection):
    """mitmproxy's connection, but streams begun before a GOAWAY (a server's, AWS's SDK for JavaScript's) continue."""

    leaving = False

    def _receive_goaway_frame(self, frame: GoAwayFrame) -> tuple[list[Frame], list[Event]]:
        lost = frame.last_stream_id < self.highest_outbound_stream_id
        if lost or frame.error_code != ErrorCodes.NO_ERROR:
            return super()._receive_goaway_frame(frame)
        self.leaving = True
        return [], []


class GoawayDrainingHttp2Client(Http2Client):
    """mitmproxy's client, which closes a connection after the answer if the server has left it."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._patient = GoawayTolerantConnection(self.h2_conf)
        self._patient.local_settings.enable_push = 0
        self._patient.local_settings.acknowledge()
        self.h2_conn = self._patient

    def _handle_event(self, event: events.Event) -> Commands:
        yield from super()._handle_event(event)
        if self._patient.leaving and not self._patient.open_outbound_streams:
            yield from self.close_connection("the server left")


class ClientHttp2ValidatingLayer(Http2Server):
    """mitmproxy's server, which rejects invalid HTTP/2; mitmproxy checks upstream heads less strictly."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.h2_conf.validate_inbound_headers = True
        self.h2_conn = GoawayTolerantConnection(self.h2_conf)


class Http2Stream:
    def __init__(self, context: Context, make: Callable[[Context], RecordReplayLayer], *, rpc: bool) -> None:
        """Start before the first request; `rpc`: only gRPC calls are served."""
        self.client = copy.copy(context.client)
        self.client.id, self.client.alpn, self.client.alpn_offers = str(uuid.uuid4()), None, (ALPN,)
        inner = context.fork()
        inner.client = self.client
        self.layer, self.rpc = make(inner), rpc
        self.gone = False
        self.prepare_for_request(0)

    def prepare_for_request(self, number: int) -> None:
        self.number = number
        self.request: http.Request | None = None
        """Head of a gRPC request until it is complete."""
        self.held = bytearray()
        self.since = time.monotonic()
        self.head: http.Response | None = None
        """Head of the answer until it is sent."""
        self.answered = self.closed = False
        self.code: int = ErrorCodes.INTERNAL_ERROR
        """Error code with which a cut answer ends."""
        self.h1 = h11.Connection(h11.CLIENT, max_incomplete_event_size=LONGEST_HEAD)

    @property
    def is_layer_reusable(self) -> bool:
        over = self.answered and not self.closed and self.h1.states[h11.CLIENT] is h11.DONE
        return over and self.layer.is_between_requests


class Http2ClientConnectionLayer(layer.Layer):
    def __init__(self, context: Context, proxy: ProxyContext, make: Callable[[Context], RecordReplayLayer]) -> None:
        super().__init__(context)
        self._proxy, self._make = proxy, make
        self._server = ClientHttp2ValidatingLayer(context.fork())
        self._streams: dict[int, Http2Stream] = {}
        self._free: dict[bool, list[Http2Stream]] = {True: [], False: []}
        self._waiting: dict[commands.Command, Http2Stream] = {}
        """By command: the stream that waits for its completion."""
        self._looks: dict[commands.Command, int] = {}
        self._upstream: dict[Connection, Http2Stream] = {}
        self._late_resets: dict[int, int] = {}
        """Error codes by stream whose client's flow-control window does not yet admit the rest of its cut answer."""

    # --- events ----------------------------------------------------------------------------------------------------

    def _handle_event(self, event: events.Event) -> Commands:
        if isinstance(event, events.CommandCompleted):
            if (number := self._looks.pop(event.command, None)) is not None:
                yield from self._refuse_unfinished_grpc(number)
            elif (stream := self._waiting.pop(event.command, None)) is not None:
                yield from self._pass_event_to_layer(stream, event)
        elif isinstance(event, events.ConnectionEvent) and event.connection is not self.context.client:
            if (stream := self._upstream.get(event.connection)) is not None:
                yield from self._pass_event_to_layer(stream, event)
        else:
            yield from self._handle_client_http2_event(event)
            if isinstance(event, events.ConnectionClosed):
                for stream in [*self._streams.values(), *self._free[True], *self._free[False]]:
                    yield from self._disconnect_stream(stream)

    def _handle_client_http2_event(self, event: events.Event) -> Commands:
        for command in self._server.handle_event(event):
            if isinstance(command, ReceiveHttp):
                try:
                    yield from self._on_request_event(command.event)
                except h11.LocalProtocolError as why:  # no HTTP/1 can say this request
                    log.info("a request over HTTP/2 is refused: %s", why)
                    yield from self._reset_stream(command.event.stream_id)
            else:
                yield command
        due, self._late_resets = self._late_resets, {}
        for number, code in due.items():
            yield from self._reset_stream(number, code)

    def _on_request_event(self, event: HttpEvent) -> Commands:
        if isinstance(event, http_events.RequestHeaders):
            yield from self._open_stream(event)
        elif (stream := self._streams.get(event.stream_id)) is None:
            return
        elif isinstance(event, http_events.RequestProtocolError):
            yield from self._disconnect_stream(stream)
        elif isinstance(event, http_events.RequestData):
            yield from self._receive_body(stream, event.data)
        elif isinstance(event, http_events.RequestEndOfMessage):
            if (held := stream.request) is not None:
                head = convert_http2_request_to_http1(held, whole=False, length=len(stream.held))
                yield from self._pass_held_request(stream, head)
            yield from self._feed_layer(stream, stream.h1.send(h11.EndOfMessage()))

    # --- requests --------------------------------------------------------------------------------------------------

    def _open_stream(self, event: http_events.RequestHeaders) -> Commands:
        request, rpc = event.request, is_grpc((("content-type", event.request.headers.get("content-type", "")),))
        free = self._free[rpc]
        stream = free.pop() if free else Http2Stream(self.context, self._make, rpc=rpc)
        stream.prepare_for_request(event.stream_id)
        self._streams[event.stream_id] = stream
        if (user := self._proxy.users.get(self.context.client.id)) is not None:
            self._proxy.users[stream.client.id] = user
        if rpc and not event.end_stream:
            stream.request = request
            yield from self._schedule_unfinished_grpc_check(stream)
        else:
            head = convert_http2_request_to_http1(request, whole=event.end_stream)
            yield from self._feed_layer(stream, stream.h1.send(head))

    def _receive_body(self, stream: Http2Stream, data: bytes) -> Commands:
        if stream.request is None:
            yield from self._feed_layer(stream, stream.h1.send(h11.Data(data=data)))
            return
        stream.held += data
        if grpc.count_grpc_messages_capped(stream.held) > 1:
            yield from self._refuse_grpc_client_streaming(stream)
        elif len(stream.held) > self._proxy.engine.config.max_request:  # the layer says so, or lets it through
            yield from self._pass_held_request(stream, convert_http2_request_to_http1(stream.request, whole=False))

    def _pass_held_request(self, stream: Http2Stream, head: h11.Request) -> Commands:
        stream.request, body = None, h11.Data(data=bytes(stream.held))
        stream.held.clear()
        yield from self._feed_layer(stream, (stream.h1.send(head) or b"") + (stream.h1.send(body) or b""))

    def _schedule_unfinished_grpc_check(self, stream: Http2Stream) -> Commands:
        look = commands.RequestWakeup(LOOK)
        self._looks[look] = stream.number
        yield look

    def _refuse_unfinished_grpc(self, number: int) -> Commands:
        if (stream := self._streams.get(number)) is None or stream.request is None:
            return
        if grpc.count_grpc_messages_capped(stream.held) or time.monotonic() - stream.since > self._proxy.body_patience:
            yield from self._refuse_grpc_client_streaming(stream)
        else:
            yield from self._schedule_unfinished_grpc_check(stream)

    def _refuse_grpc_client_streaming(self, stream: Http2Stream) -> Commands:
        request, stream.request = stream.request, None
        if request is None:
            return
        error = UnsupportedGrpc(
            "llmproxy: a gRPC call whose client sends more than one message, or none to the end of its call,"
            " is not served; nothing was sent upstream.",
            hint="Unary calls and server streaming work: docs/interception.md, What is not supported.",
        )
        status = UnsupportedGrpc.status
        accounting = self._proxy.engine.accounting
        self._proxy.on_call(accounting.record_sessionless_refusal(request.method, request.path, status, error))
        fields = grpc.build_grpc_refusal_headers(status, error.code, str(error))
        stream.head = build_http2_response_head(200, [(name.encode(), value.encode()) for name, value in fields])
        yield from self._send_head(stream, last=True)
        yield from self._reset_stream(stream.number, ErrorCodes.NO_ERROR)

    # --- answers ---------------------------------------------------------------------------------------------------

    def _feed_layer(self, stream: Http2Stream, data: bytes | None) -> Commands:
        if data and not stream.gone:
            yield from self._pass_event_to_layer(stream, events.DataReceived(stream.client, data))

    def _pass_event_to_layer(self, stream: Http2Stream, event: events.Event) -> Commands:
        for command in stream.layer.handle_event(event):
            if command.blocking or isinstance(command, commands.RequestWakeup):
                self._waiting[command] = stream
            if isinstance(command, commands.OpenConnection):
                self._upstream[command.connection] = stream
                self._proxy.streams[command.connection.id] = stream.client.id
            if not isinstance(command, commands.ConnectionCommand) or command.connection is not stream.client:
                yield command
            elif isinstance(command, commands.SendData):
                yield from self._convert_layer_bytes(stream, command.data)
            elif isinstance(command, commands.CloseConnection):
                yield from self._convert_layer_bytes(stream, b"")
        if isinstance(event, events.ConnectionClosed) and event.connection is not stream.client:
            self._forget_upstream(event.connection)
        if stream.gone or not stream.number:
            return
        if stream.is_layer_reusable:
            del self._streams[stream.number]
            stream.number = 0
            self._free[stream.rpc].append(stream)
        elif stream.closed:  # answered in the middle of its body, or cut
            code = self._proxy.resets.pop(stream.client.id, stream.code)
            yield from self._reset_stream(stream.number, ErrorCodes.NO_ERROR if stream.answered else code)

    def _convert_layer_bytes(self, stream: Http2Stream, data: bytes) -> Commands:
        if stream.gone or stream.closed:
            return
        stream.closed = not data
        if stream.answered:
            return
        stream.h1.receive_data(data)
        try:
            while (event := stream.h1.next_event()) is not h11.NEED_DATA:
                yield from self._send_as_http2(stream, event)
                if isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
                    break
        except h11.RemoteProtocolError as why:  # an answer that was cut ends so
            log.debug("an answer ends before its end: %s", why)
            stream.closed = True

    def _send_as_http2(self, stream: Http2Stream, event: object) -> Commands:
        number = stream.number
        if isinstance(event, h11.Response):
            kept = [field for field in event.headers if field[0] not in ONE_CONNECTION]
            codes = (int(value) for name, value in kept if name == RESET.encode() and value.isdigit())
            stream.code = next(codes, stream.code)
            stream.head = build_http2_response_head(event.status_code, kept)
            if not any(name == b"grpc-status" for name, _ in kept):  # else its head is its end
                yield from self._send_head(stream)
        elif isinstance(event, h11.Data) and event.data:
            yield from self._send_head(stream)
            yield from self._server.handle_event(http_events.ResponseData(number, bytes(event.data)))
        elif isinstance(event, h11.EndOfMessage):
            yield from self._send_head(stream, last=not event.headers)
            if event.headers:
                trailers = http.Headers(list(event.headers))
                yield from self._server.handle_event(http_events.ResponseTrailers(number, trailers))
            stream.answered = True
            yield from self._server.handle_event(http_events.ResponseEndOfMessage(number))

    def _send_head(self, stream: Http2Stream, *, last: bool = False) -> Commands:
        head, stream.head = stream.head, None
        if head is not None:
            yield from self._server.handle_event(http_events.ResponseHeaders(stream.number, head, end_stream=last))

    # --- ends ------------------------------------------------------------------------------------------------------

    def _reset_stream(self, number: int, code: int = ErrorCodes.INTERNAL_ERROR) -> Commands:
        if self._server.h2_conn.stream_buffers.get(number):  # a reset would drop it
            self._late_resets[number] = code
        elif not self._server.is_closed(number):
            self._server.h2_conn.reset_stream(number, code)
            yield commands.SendData(self.context.client, self._server.h2_conn.data_to_send())
        if (stream := self._streams.get(number)) is not None:
            yield from self._disconnect_stream(stream)

    def _disconnect_stream(self, stream: Http2Stream) -> Commands:
        if stream.gone:
            return
        stream.gone, stream.client.state = True, ConnectionState.CLOSED
        self._streams.pop(stream.number, None)
        if stream in self._free[stream.rpc]:
            self._free[stream.rpc].remove(stream)
        yield from self._pass_event_to_layer(stream, events.ConnectionClosed(stream.client))
        for connection in [each for each, owner in self._upstream.items() if owner is stream]:
            yield commands.CloseConnection(connection)
            self._forget_upstream(connection)
        yield Http2StreamEndedHook(stream.client)

    def _forget_upstream(self, connection: Connection) -> None:
        self._upstream.pop(connection, None)
        self._proxy.streams.pop(connection.id, None)


def read_reset_code_from_error(error: str) -> int | None:
    if (found := _RESET_BY_SERVER.search(error)) is None:
        return None
    return int(found[1]) if found[1].isdecimal() else ErrorCodes.__members__.get(found[1])


def convert_http2_request_to_http1(request: http.Request, *, whole: bool, length: int | None = None) -> h11.Request:
    """Return a head as HTTP/1; `whole`: no body, `length`: its length. Raises h11.LocalProtocolError: impossible."""
    fields = [field for field in request.headers.fields if field[0] not in (b"cookie", b"host")]
    if cookies := request.headers.get_all("cookie"):
        fields.append((b"cookie", "; ".join(cookies).encode("utf-8", "surrogateescape")))
    host = request.data.authority or request.headers.get("host", "").encode("utf-8", "surrogateescape")
    if "content-length" not in request.headers:
        if length is not None:
            fields.append((b"content-length", b"%d" % length))
        elif not whole:
            fields.append((b"transfer-encoding", b"chunked"))
    return h11.Request(method=request.data.method, target=request.data.path, headers=[(b"host", host), *fields])


def build_http2_response_head(status: int, fields: Iterable[tuple[bytes, bytes]]) -> http.Response:
    return http.Response(b"HTTP/2.0", status, b"", http.Headers(list(fields)), None, None, time.time(), None)


TLS_HANDSHAKE = 0x16
"""First byte of a client's first TLS record; no HTTP method starts with it (RFC 8446 5.1)."""
CONNECT = b"CONNECT "


class ClosingLayer(layer.Layer):
    """Closes the connection; without any layer mitmproxy's own choice would apply."""

    def _handle_event(self, _event: events.Event) -> Commands:
        yield commands.CloseConnection(self.context.client)


ALERT = b"\x15\x03\x01\x00\x02\x02\x28"
"""A TLS record: alert, fatal, handshake failure (RFC 8446 6)."""


class TlsAlertFaultLayer(layer.Layer):
    def _handle_event(self, event: events.Event) -> Commands:
        if isinstance(event, events.DataReceived):
            yield commands.SendData(self.context.client, ALERT)
            yield commands.CloseConnection(self.context.client)


class ConnectHeadCheckLayer(layer.Layer):
    """Checks a CONNECT's head before mitmproxy, which answers a bad one with a page and waits for its end."""

    def __init__(self, context: Context, patience: float, choose: Callable[[bytes], layer.Layer]) -> None:
        """Start empty, for at most `patience` seconds; `choose` selects the layer for anything but CONNECT."""
        super().__init__(context)
        self._held = b""
        self._limit, self._choose = commands.RequestWakeup(patience), choose
        self._behind: layer.Layer | None = None

    def _handle_event(self, event: events.Event) -> Commands:
        if isinstance(event, events.Wakeup) and event.command is self._limit:
            if self._behind is None:
                yield from self._refuse_connect(HeadTooSlow(self._limit.delay))
        elif self._behind is not None:
            yield from self._behind.handle_event(event)
        elif isinstance(event, events.DataReceived):
            if not self._held:
                yield self._limit
            self._held += event.data
            if len(self._held) < len(PREFACE) and PREFACE.startswith(self._held):
                return
            if not may_be_connect(self._held):
                yield from self._hand_over_to_layer(self._choose(self._held))
                return
            try:
                if not is_connect_head_complete(self._held):
                    return
            except BadHttp1Request as why:
                yield from self._refuse_connect(why)
            else:
                yield from self._hand_over_to_layer(layers.HttpLayer(self.context, HTTPMode.regular))
        elif isinstance(event, events.ConnectionClosed):
            yield commands.CloseConnection(self.context.client)

    def _hand_over_to_layer(self, behind: layer.Layer) -> Commands:
        self._behind, held, self._held = behind, self._held, b""
        yield from behind.handle_event(events.Start())
        yield from behind.handle_event(events.DataReceived(self.context.client, held))

    def _refuse_connect(self, why: BadHttp1Request) -> Commands:
        fields = (("content-type", "text/plain; charset=utf-8"),)
        client = self.context.client
        yield commands.SendData(client, build_own_response(why.status, fields, f"{why}\n".encode(), close=True))
        yield commands.CloseConnection(client)
        self._behind = ClosingLayer(self.context)


class TimeLimitedTlsLayer(layers.ClientTLSLayer):
    def __init__(self, context: Context, patience: float) -> None:
        """Wait for `patience` seconds from the first byte on."""
        super().__init__(context)
        self._limit, self._begun = commands.RequestWakeup(patience), False

    def _handle_event(self, event: events.Event) -> Commands:
        if isinstance(event, events.Wakeup) and event.command is self._limit:
            if not self.context.client.tls_established:
                yield commands.CloseConnection(self.context.client)
            return
        if isinstance(event, events.DataReceived) and not self._begun:
            self._begun = True
            yield self._limit
        yield from super()._handle_event(event)


def may_be_connect(data: bytes) -> bool:
    return CONNECT.startswith(data[: len(CONNECT)].upper())


def is_connect_head_complete(data: bytes) -> bool:
    """Return whether a CONNECT's head is complete. Raises BadHttp1Request: invalid, or without host and port."""
    reader = Http1RequestParser()
    reader.add_bytes(data)
    if (head := reader.take_head()) is None:
        return False
    try:
        port = parse_authority(head.target.encode("latin-1"), check=True)[1] if head.method == "CONNECT" else None
    except ValueError:
        port = None
    if not port:
        raise BadHttp1Request("llmproxy: a CONNECT names a host and a port, like api.openai.com:443.")
    return True


class NextLayerChooser:
    def __init__(
        self, proxy: ProxyContext, layer_class: type[RecordReplayLayer] = RecordReplayLayer, *, http2: bool = True
    ) -> None:
        """Use a `layer_class` for each client; `http2`: for each of its streams too."""
        self._proxy, self._layer_class, self._http2 = proxy, layer_class, http2

    def next_layer(self, nextlayer: layer.NextLayer) -> None:
        try:
            self._set_chosen_layer(nextlayer)
        except Exception:
            log.exception("llmproxy could not choose a layer; the connection is closed")
            nextlayer.layer = ClosingLayer(nextlayer.context)

    def _set_chosen_layer(self, nextlayer: layer.NextLayer) -> None:
        data = nextlayer.data_client()  # type: ignore[no-untyped-call]
        if not data:
            return
        context = nextlayer.context
        tunnel = next((at for at, each in enumerate(context.layers) if isinstance(each, layers.HttpLayer)), -1)
        inside = tunnel >= 0
        # The way to us may be encrypted too (HTTPS_PROXY=https://...): only what was put on since the CONNECT counts.
        encrypted = any(isinstance(each, layers.ClientTLSLayer) for each in context.layers[tunnel + 1 :])
        if inside and context.client.id in self._proxy.tunnels:
            nextlayer.layer = layers.TCPLayer(context, ignore=True)  # else it keeps all that passes, to show it
        elif inside and not encrypted and context.client.id in self._proxy.without_tls:
            nextlayer.layer = TlsAlertFaultLayer(context)
        elif data[0] == TLS_HANDSHAKE and not encrypted:
            nextlayer.layer = TimeLimitedTlsLayer(context, self._proxy.head_patience)
        elif inside:
            host, port = (context.server.address or ("", 0))[:2]
            host = host.lower().rstrip(".")
            own, scheme = is_own_listener(context.client, host, port), "https" if encrypted else "http"
            nextlayer.layer = self._serve(context, data, None if own else (scheme, host, port))
        elif may_be_connect(data) or PREFACE.startswith(data):
            serve = partial(self._serve, context, front=not encrypted)
            nextlayer.layer = ConnectHeadCheckLayer(context, self._proxy.head_patience, serve)
        else:
            nextlayer.layer = self._serve(context, data, front=not encrypted)

    def _serve(
        self, context: Context, data: bytes, origin: tuple[str, str, int] | None = None, *, front: bool = False
    ) -> layer.Layer:
        def make(context: Context) -> RecordReplayLayer:
            return self._layer_class(context, self._proxy, origin)

        if self._http2 and (context.client.alpn == ALPN or data.startswith(PREFACE)):
            return Http2ClientConnectionLayer(context, self._proxy, make)
        behind = make(context)
        if front:
            behind.attach_to_front(self._proxy.fronts.get((context.client.peername, context.client.sockname)))
        return behind
