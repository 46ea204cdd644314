"""The choice of the layer that serves a connection: one listener serves base URLs, absolute form and https directly.

mitmproxy's own `NextLayer` would choose an HTTP layer, or a TLS and an HTTP layer together, without a second choice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from mitmproxy.net.http.url import parse_authority
from mitmproxy.proxy import commands, events, layer, layers
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers.http import HTTPMode

from llmproxy.mitm.http1.replay_layer import ReplayLayer
from llmproxy.mitm.http1_parser import FramingError, HeadTooSlow, RequestReader
from llmproxy.mitm.http2_layer import ALPN, PREFACE, Http2Layer
from llmproxy.mitm.intercept import is_own_listener
from llmproxy.mitm.proxy_context import ProxyContext, build_response_bytes

log = logging.getLogger(__name__)

TLS_HANDSHAKE = 0x16
"""First byte of a client's first TLS record; no HTTP method starts with it (RFC 8446 5.1)."""
CONNECT = b"CONNECT "


class ClosingLayer(layer.Layer):
    """Closes the connection; without any layer mitmproxy's own choice would apply."""

    def _handle_event(self, _event: events.Event) -> layer.CommandGenerator[None]:
        yield commands.CloseConnection(self.context.client)


ALERT = b"\x15\x03\x01\x00\x02\x02\x28"
"""A TLS record: alert, fatal, handshake failure (RFC 8446 6)."""


class InjectedHandshakeFailure(layer.Layer):
    def _handle_event(self, event: events.Event) -> layer.CommandGenerator[None]:
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

    def _handle_event(self, event: events.Event) -> layer.CommandGenerator[None]:
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
                if not has_whole_connect(self._held):
                    return
            except FramingError as why:
                yield from self._refuse_connect(why)
            else:
                yield from self._hand_over_to_layer(layers.HttpLayer(self.context, HTTPMode.regular))
        elif isinstance(event, events.ConnectionClosed):
            yield commands.CloseConnection(self.context.client)

    def _hand_over_to_layer(self, behind: layer.Layer) -> layer.CommandGenerator[None]:
        self._behind, held, self._held = behind, self._held, b""
        yield from behind.handle_event(events.Start())
        yield from behind.handle_event(events.DataReceived(self.context.client, held))

    def _refuse_connect(self, why: FramingError) -> layer.CommandGenerator[None]:
        fields = (("content-type", "text/plain; charset=utf-8"),)
        client = self.context.client
        yield commands.SendData(client, build_response_bytes(why.status, fields, f"{why}\n".encode(), close=True))
        yield commands.CloseConnection(client)
        self._behind = ClosingLayer(self.context)


class TimeLimitedTlsLayer(layers.ClientTLSLayer):
    def __init__(self, context: Context, patience: float) -> None:
        super().__init__(context)
        self._limit, self._begun = commands.RequestWakeup(patience), False

    def _handle_event(self, event: events.Event) -> layer.CommandGenerator[None]:
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


def has_whole_connect(data: bytes) -> bool:
    """Return whether a CONNECT's head is complete. Raises FramingError: invalid, or without host and port."""
    reader = RequestReader()
    reader.add_bytes(data)
    if (head := reader.take_head()) is None:
        return False
    try:
        port = parse_authority(head.target.encode("latin-1"), check=True)[1] if head.method == "CONNECT" else None
    except ValueError:
        port = None
    if not port:
        raise FramingError("llmproxy: a CONNECT names a host and a port, like api.openai.com:443.")
    return True


class NextLayerChoice:
    def __init__(
        self, proxy: ProxyContext, layer_class: type[ReplayLayer] = ReplayLayer, *, http2: bool = True
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
            nextlayer.layer = InjectedHandshakeFailure(context)
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

        def make(context: Context) -> ReplayLayer:
            return self._layer_class(context, self._proxy, origin)

        if self._http2 and (context.client.alpn == ALPN or data.startswith(PREFACE)):
            return Http2Layer(context, self._proxy, make)
        behind = make(context)
        if front:
            behind.attach_to_front(self._proxy.fronts.get((context.client.peername, context.client.sockname)))
        return behind
