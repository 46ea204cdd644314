"""The recorder: an ordinary addon on mitmproxy's HTTP path, for exchanges released by the layer.

It forwards every piece of an answer as it arrives and records a copy; the end reaches the client only after it was
stored. Nothing goes upstream without a release: each hook fails closed, and `server_connect` denies by default.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Awaitable, Callable
from functools import lru_cache
from http import HTTPStatus
from urllib.parse import urlsplit

from mitmproxy import connection, http
from mitmproxy.net.http import status_codes
from mitmproxy.proxy import commands, events, layer
from mitmproxy.proxy.layers import http as http_layers
from mitmproxy.proxy.layers.http._base import HttpEvent
from mitmproxy.proxy.layers.http._events import ResponseHeaders, ResponseTrailers
from mitmproxy.proxy.layers.http._http1 import Http1Client, Http1Server
from mitmproxy.proxy.server_hooks import ServerConnectionHookData

from llmproxy.core.mcp_answer_replay import LAST_CHUNK
from llmproxy.core.providers.upstreams_and_rate_limits import get_port_or_default, provider_of_host
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.traffic import response_plan
from llmproxy.core.traffic.interaction import Headers, header, is_grpc, overwrite_existing_header
from llmproxy.core.traffic.websocket_frames import SWITCHING
from llmproxy.errors import LLMProxyError, UpstreamError, remove_program_prefix
from llmproxy.mitm.client_layers import ALPN, GoawayDrainingHttp2Client, read_reset_code_from_error
from llmproxy.mitm.interception import is_permitted_tunnel
from llmproxy.mitm.proxy_context import ProxyContext, decode_header_fields
from llmproxy.mitm.websockets import (
    CARRIED,
    WebSocketHooks,
    is_unrequested_protocol_switch,
    is_websocket_upgrade,
    limit_offered_extensions,
)
from llmproxy.protocol import CACHE_HEADER, OUR_HEADERS_PREFIX, Decision

MOST = 64 << 10
"""Maximum bytes of interim heads before an answer; an upstream that sends more will not answer."""
_INTERIM = re.compile(rb"HTTP/1\.[01] 1(?!01)[0-9][0-9][ \r]")
_SHORTEST = len(b"HTTP/1.1 100 ")


class InterimSkippingClient(Http1Client):
    """mitmproxy's reader of upstream answers, without interim ones; accepts repeated equal content-lengths."""

    _passed = 0

    def read_headers(self, event: events.ConnectionEvent) -> layer.CommandGenerator[None]:
        while isinstance(event, events.DataReceived) and self.request:
            held = bytes(self.buf)
            if len(held) < _SHORTEST and b"\n" not in held:
                return  # not enough to tell
            if self._passed > MOST or not _INTERIM.match(held):
                break
            if (end := held.find(b"\r\n\r\n") + 4) < 4:
                self._passed += len(event.data)
                return
            self._passed += end
            self.buf = type(self.buf)()
            self.buf += held[end:]
            if end == len(held):
                return
        self._passed = 0
        if isinstance(event, events.DataReceived):
            held = bytes(self.buf)
            if (one := merge_equal_content_lengths(held)) is not held:
                self.buf = type(self.buf)()
                self.buf += one
        yield from super().read_headers(event)


class TrailerWritingHttp1Layer(Http1Server):
    """mitmproxy's writer of HTTP/1 answers, with the trailers of an answer that came over HTTP/2."""

    _trailers = b""

    def send(self, event: HttpEvent) -> layer.CommandGenerator[None]:
        if isinstance(event, ResponseTrailers):
            self._trailers = b"".join(b"%b: %b\r\n" % field for field in event.trailers.fields)
            return
        if isinstance(event, ResponseHeaders):  # of the answer before, if its length left them no place
            self._trailers = b""
        for command in super().send(event):
            if self._trailers and isinstance(command, commands.SendData) and command.data == LAST_CHUNK:
                command.data, self._trailers = b"0\r\n" + self._trailers + b"\r\n", b""
            yield command


def merge_equal_content_lengths(data: bytes) -> bytes:
    """Return a head with repeated equal content-lengths merged (RFC 9112 6.3); different ones are refused."""
    end = data.find(b"\r\n\r\n")
    first, *fields = data[: max(end, 0)].split(b"\r\n")
    lengths = [each for each in fields if each.lower().startswith(b"content-length:")]
    values = [value.strip() for each in lengths for value in each.partition(b":")[2].split(b",")]
    if len(values) < 2 or len(set(values)) != 1:
        return data
    kept = [each for each in fields if each not in lengths]
    return b"\r\n".join([first, *kept, b"content-length: " + values[0]]) + data[end:]


log = logging.getLogger(__name__)

DENIED = "llmproxy: this connection was not released"

CLIENT_LEFT = "Client disconnected"

NOT_FORWARDED = frozenset(
    {b"proxy-authorization", b"proxy-connection", b"http2-settings", b"upgrade", b"expect", b"te"}
)
"""Fields not forwarded: those for us (`Expect` is answered), unsupported offers (Java's `Upgrade: h2c`, trailers)."""

_ERRNO = re.compile(r"\[Errno (\d+|-\d+)\] ([^(,]+?) *(?=[(,]|$)")

Fields = tuple[tuple[bytes, bytes], ...]
"""Header fields, names and values as received."""

HTTP1_ALPN = b"http/1.1"
CACHE_NAME = CACHE_HEADER.encode()
OUR_PREFIX = OUR_HEADERS_PREFIX.encode()


def deny_server_connection(data: ServerConnectionHookData) -> None:
    """Deny a connection; cannot raise."""
    if not data.server.error:
        data.server.error = DENIED


class RecordingAddon(WebSocketHooks):
    def __init__(self, proxy: ProxyContext) -> None:
        # Readers and writers of new connections; their names there are private only to type checkers.
        http_layers.Http1Client = InterimSkippingClient  # type: ignore[attr-defined]
        http_layers.Http1Server = TrailerWritingHttp1Layer  # type: ignore[attr-defined]
        http_layers.Http2Client = GoawayDrainingHttp2Client  # type: ignore[attr-defined]
        super().__init__(proxy)

    def _kill_flow_on_error(self, flow: http.HTTPFlow, why: Exception) -> None:
        # What we say ourselves is told to the client, and in the line of the request.
        if not isinstance(why, LLMProxyError):
            log.error("llmproxy failed in a hook; the request was not sent", exc_info=why)
        if (exchange := self._proxy.released.get(flow.client_conn.id)) is not None:
            exchange.decision = Decision.REFUSE
            internal = LLMProxyError("llmproxy: internal error; this request was not served.")
            exchange.error = exchange.error or (why if isinstance(why, LLMProxyError) else internal)
        if flow.killable:
            flow.kill()  # type: ignore[no-untyped-call]

    def requestheaders(self, flow: http.HTTPFlow) -> Awaitable[None] | None:
        """Redirect the request to its upstream, before a streamed body: `request` would run after the connect."""
        try:
            if (exchange := self._proxy.released.get(flow.client_conn.id)) is None:
                flow.kill()  # type: ignore[no-untyped-call]
                return None
            flow.metadata[CARRIED] = exchange
            takes_trailers = flow.client_conn.alpn_offers == (ALPN,) and flow.request.headers.get("te") == "trailers"
            self._address_upstream(flow.request, exchange)
            if takes_trailers:
                flow.request.headers["te"] = "trailers"
            if is_grpc(exchange.request.headers):
                flow.request.headers["grpc-accept-encoding"] = "identity"  # its messages would hide from redaction
            flow.request.stream = True
            exchange.progress.released = self._proxy.engine.clock()
            return self._wait_for_rate(flow, exchange) if self._proxy.pace is not None else None
        except Exception as why:  # noqa: BLE001 - what leaves a hook lets the request go on to the provider
            self._kill_flow_on_error(flow, why)
            return None

    async def _wait_for_rate(self, flow: http.HTTPFlow, exchange: Exchange) -> None:
        """Wait for the provider's rate limit; an exchange whose release was withdrawn meanwhile is not sent."""
        try:
            seconds = await self._proxy.pace(exchange) if self._proxy.pace is not None else 0.0
            if seconds > 0:
                await asyncio.sleep(seconds)
            left = not flow.client_conn.state & connection.ConnectionState.CAN_READ
            if left or self._proxy.released.get(flow.client_conn.id) is not exchange:
                flow.kill()  # type: ignore[no-untyped-call]
            exchange.progress.released = self._proxy.engine.clock()
        except Exception as why:  # noqa: BLE001 - as above
            self._kill_flow_on_error(flow, why)

    def _address_upstream(self, request: http.Request, exchange: Exchange) -> None:
        upstream, data = exchange.route.upstream, request.data  # its setters look for the host's header again and again
        scheme, (data.host, data.port) = get_scheme_and_address(upstream)
        data.scheme, data.authority = scheme.encode(), b""
        data.path = exchange.route.upstream_target.encode("utf-8", "surrogateescape")
        host = upstream.partition("://")[2].rpartition("@")[2].encode()
        if socket := is_websocket_upgrade(request):
            limit_offered_extensions(request)
        request.headers = http.Headers(build_upstream_headers(request.headers.fields, host, socket=socket))

    def server_connect(self, data: ServerConnectionHookData) -> None:
        """Allow only the connection of a released exchange to its upstream. Cannot raise."""
        allowed = False
        try:
            stream = self._proxy.streams.get(data.server.id)
            exchange = self._proxy.released.get(stream or data.client.id)
            if exchange is not None and exchange.decision in (Decision.RECORD, Decision.PASS):
                allowed = data.server.address == get_scheme_and_address(exchange.route.upstream)[1]
                set_alpn_offers(data, is_rpc=is_grpc(exchange.request.headers), is_stream=stream is not None)
            allowed = allowed or is_permitted_tunnel(self._proxy, data)
        finally:
            if not allowed:
                deny_server_connection(data)

    async def responseheaders(self, flow: http.HTTPFlow) -> None:
        try:
            exchange, response = self._find_exchange(flow), flow.response
            if exchange is None or response is None:
                flow.kill()  # type: ignore[no-untyped-call]
                return
            if response.status_code < HTTPStatus.OK and response.status_code != SWITCHING:
                # mitmproxy takes it for the answer itself; recorded, every client would wait for the real one
                cause = f"it sent an interim {response.status_code}, which mitmproxy cannot pass on"
                raise self._build_unreachable_error(exchange, cause)  # noqa: TRY301 - one way out
            if is_unrequested_protocol_switch(flow.request, response):
                cause = "it switched to a protocol that nobody asked for"
                raise self._build_unreachable_error(exchange, cause)  # noqa: TRY301 - one way out
            if response.is_http2 and is_grpc(decode_header_fields(response.headers.fields)):
                response.headers.pop("content-length", None)  # what has one ends without trailers, in HTTP/1
            kept, led = rewrite_redirect_location(decode_header_fields(response.headers.fields), exchange)
            reason = response.reason or status_codes.RESPONSES.get(response.status_code, "")
            exchange.recording.on_head(self._get_offset(exchange), response.status_code, reason, kept)
            said = b"recorded" if exchange.decision is Decision.RECORD else b"passed"
            grants = ((name.encode(), value.encode()) for name, value in exchange.answer.grants)
            ours = ((CACHE_NAME, said), *led, *grants)
            replaced = {name for name, _ in ours}
            others = (field for field in response.headers.fields if field[0].lower() not in replaced)
            response.headers = http.Headers((*others, *ours))
            bodiless = flow.request.method == "HEAD" or response.status_code in response_plan.BODILESS
            if response.is_http2 and not bodiless and "content-length" not in response.headers:
                response.headers["transfer-encoding"] = "chunked"  # as the layer's client, HTTP/1, has to hear it
            if response.status_code != SWITCHING:
                response.stream = self._build_stream_recorder(exchange)
                await self._proxy.turns.wait_for_turn(exchange)  # an end may have gone out since the head came
        except Exception as why:  # noqa: BLE001 - as above
            self._kill_flow_on_error(flow, why)

    def _build_stream_recorder(self, exchange: Exchange) -> Callable[[bytes], bytes]:
        recording, offset = exchange.recording, self._get_offset

        def tap(data: bytes) -> bytes:
            try:
                if data:
                    recording.on_data(offset(exchange), data)
                if not recording.next_piece_may_be_last:
                    self._proxy.turns.announce_end_if_last_piece(exchange, data)
            except Exception:  # an exception that leaves a tap makes the client hang; the answer is its, come what may
                log.exception("a piece of an answer could not be noted")
                recording.damaged = True
            return data

        return tap

    async def response(self, flow: http.HTTPFlow) -> None:
        """Store the answer; its end reaches the client when this returns."""
        if (exchange := self._find_exchange(flow)) is not None and flow.websocket is not None:
            self._on_switch(flow, exchange)
        elif exchange is not None:
            if flow.response is not None and flow.response.trailers:
                exchange.recording.trailers = decode_header_fields(flow.response.trailers.fields)
            if exchange.decision is Decision.RECORD:
                await self._proxy.turns.wait_to_send_end(exchange)
                if exchange.recording.next_piece_may_be_last:
                    exchange.recording.postpone_last_offset(self._get_offset(exchange))
            await self._store_answer(exchange, proper=True)
            self._proxy.turns.on_answer_end(exchange, (flow.client_conn.peername, flow.client_conn.sockname))

    async def error(self, flow: http.HTTPFlow) -> None:
        if (exchange := self._find_exchange(flow)) is None:
            return
        if exchange.recording.has_head:
            why = flow.error.msg if flow.error else ""
            exchange.recording.left = why.startswith(CLIENT_LEFT) and not self._proxy.draining
            if (code := read_reset_code_from_error(why)) is not None:
                self._proxy.resets[flow.client_conn.id] = code
                exchange.recording.record_reset_code(code)
            await self._store_answer(exchange, proper=False)
        elif exchange.error is None:
            cause, connected = flow.error.msg if flow.error else "unknown error", flow.server_conn.timestamp_tcp_setup
            exchange.error = self._build_unreachable_error(exchange, cause, connected=bool(connected))
            exchange.note = remove_program_prefix(exchange.error.message.partition("\n")[0])

    async def client_disconnected(self, client: connection.Client) -> None:
        """End what is still released, or was never taken over: every exchange ends exactly once."""
        self._proxy.forget_connection_state(client.id)
        begun = self._proxy.arrived.pop((client.peername, client.sockname), None)
        if begun is not None and begun.exchange is not None:
            begun.exchange.note = begun.exchange.note or "the connection ended before it was served"
            self._proxy.report_exchange_end(begun.exchange, 0)
        if (exchange := self._proxy.released.pop(client.id, None)) is not None:
            self._proxy.turns.on_answer_end(exchange, None)
        if exchange is None or exchange.progress.finished:
            return
        if exchange.recording.has_head:
            exchange.recording.left = not self._proxy.draining
            await self._store_answer(exchange, proper=False)
        else:
            self._proxy.report_abandoned(exchange)

    http2_stream_ended = client_disconnected

    async def await_coroutine(self, job: Callable[[], Awaitable[object]]) -> None:
        await job()

    def _build_unreachable_error(self, exchange: Exchange, cause: str, *, connected: bool = True) -> UpstreamError:
        what = "did not answer" if connected else "could not be reached"
        why = simplify_connection_error(cause)
        msg = f"llmproxy: {exchange.route.provider.name} at {exchange.route.upstream} {what}: {why}"
        hint = f"Nothing was recorded. Another address: --upstream {exchange.route.provider.name}=URL"
        return UpstreamError(self._proxy.engine.redactor.text(msg), hint=hint)


def set_alpn_offers(data: ServerConnectionHookData, *, is_rpc: bool, is_stream: bool) -> None:
    """Offer an upstream the client's protocol; gRPC is always HTTP/2, also without TLS."""
    server = data.server
    if is_stream and server.tls:
        server.alpn_offers = (ALPN,) if is_rpc else (ALPN, HTTP1_ALPN)
    elif is_stream and is_rpc:
        server.alpn = ALPN
    elif data.client.alpn_offers:
        server.alpn_offers = (HTTP1_ALPN,)


def simplify_connection_error(cause: str) -> str:
    """Return why a connection failed, without ``[Errno 111] Connect call failed ('::1', 1)`` around it."""
    if (found := _ERRNO.search(cause)) is None:
        return cause
    return os.strerror(int(found[1])) if found[2] == "Connect call failed" else found[2].strip()


def build_upstream_headers(fields: Fields, host: bytes, *, socket: bool) -> Fields:
    ours = {b"host": host}
    if not any(name.lower() == b"authorization" and value.startswith(b"AWS4-") for name, value in fields):
        ours[b"accept-encoding"] = b"identity"  # SigV4 may have signed it
    sent: list[tuple[bytes, bytes]] = []
    dropped = (NOT_FORWARDED - {b"upgrade"} if socket else NOT_FORWARDED) | set(ours)
    for name, value in fields:
        if (low := name.lower()) in ours:
            sent.append((name, ours.pop(low)))
        elif low not in dropped and not low.startswith(OUR_PREFIX):
            sent.append((name, value))
    return (*sent, *ours.items())


def rewrite_redirect_location(headers: Headers, exchange: Exchange) -> tuple[Headers, Fields]:
    if (location := header(headers, "location")) is None:
        return headers, ()
    where = exchange.route
    kept = response_plan.rewrite_location_for_storage(
        location, sent_to=where.upstream, target=where.upstream_target, at_provider=where.target,
        is_public=lambda host: provider_of_host(host, None) is where.provider,
    )  # fmt: skip
    fields = overwrite_existing_header(headers, "location", kept)
    if (back := response_plan.rewrite_location_to_proxy(kept, exchange.place.prefix)) is None:
        there = response_plan.find_redirect_host_past_proxy(fields)
        exchange.note = f"leads to {there}, past this proxy: what follows is not recorded"
        return fields, ()
    return fields, ((b"location", back.encode("latin-1", "replace")),)


@lru_cache(64)
def get_scheme_and_address(upstream: str) -> tuple[str, tuple[str, int]]:
    """Split ``https://host[:port]`` into scheme and (host, port)."""
    url = urlsplit(upstream)
    return url.scheme, (url.hostname or "", get_port_or_default(url.scheme, url.port))
