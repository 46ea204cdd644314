"""One request on its way in: admitted, placed, counted, identified, and its recorded answer laid out.

The one way of every request that is not asked in the same words as one before (those: `core.engine.fast_path`). It
knows no layer and no socket: who has the bytes drives it. That is the layer (`replay_layer`); and where a plain
request arrives whole, what stands before the stream (`http1.fast_path`), which saves mitmproxy's steps and no question.
What the front cannot end it hands on as it is, and the layer goes on with it.

    check_and_place_request(...)    the head is here
    decide_request(body)            the body is here: decided, once
    plan_answer()                   decided REPLAY: what is sent, and when; counts as served, once
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol

from mitmproxy.connection import Client
from mitmproxy.proxy import commands, layer
from mitmproxy.proxy.context import Context

from llmproxy.core.providers.provider_table import Family, parse_port
from llmproxy.core.sessions.exchange import Exchange, RequestHeadInfo
from llmproxy.core.sessions.interceptor import Playback
from llmproxy.core.traffic.interaction import Headers, header
from llmproxy.core.traffic.origin_guard import SANDBOX, SeenHead, is_shown_as_page
from llmproxy.core.traffic.response_bytes import ClientHttp, HeadPlan, SendingPlan
from llmproxy.errors import CassetteError, LLMProxyError, MachineError, RefusedError
from llmproxy.mitm.http1_parser import FramingError, Head, RequestReader
from llmproxy.mitm.intercept import find_destination, read_proxy_credentials
from llmproxy.mitm.proxy_context import ProxyContext
from llmproxy.mitm.websocket_recorder import check_upgrade, find_subprotocol_key
from llmproxy.protocol import KEY_HEADER, Decision

Origin = tuple[str, str, int]
"""Scheme, host and port of the server that a client means."""
_PORT = re.compile(r":[^:\]]*$")


class IncomingRequest:
    __slots__ = (
        "answering", "body", "client", "continued", "exchange", "family", "grants", "head", "laid", "preflight",
        "proxy", "raw", "refusal",
    )  # fmt: skip

    def __init__(self, proxy: ProxyContext) -> None:
        self.proxy = proxy
        self.head: Head | None = None
        self.client = ClientHttp()
        """What its client can take."""
        self.exchange: Exchange | None = None
        self.raw, self.body = bytearray(), bytearray()
        """What came of its body: as it came where it is chunked (else empty), and decoded."""
        self.refusal: LLMProxyError | None = None
        """Said when the body was read, so that the connection can go on."""
        self.family: Family = "openai"
        self.grants: Headers = ()
        self.preflight: Headers | None = None
        """What a web page's question whether it may ask is answered; None for every other request."""
        self.continued = False
        """Its client was told to send the body."""
        self.answering = False
        """Its client has heard something of the answer."""
        self.laid: SendingPlan | None = None

    # --- the head is here ------------------------------------------------------------------------------------------

    def check_and_place_request(self, head: Head, client: Client, origin: Origin | None) -> None:
        """Find a request's place or `refusal`; `origin`: an intercepted client's server. Again: uncounted."""
        self.head = head
        self.client = ClientHttp(head.method, http10=head.http10, keep_alive=head.keep_alive)
        proxy = self.proxy
        try:
            target, named = split_absolute_target(head)
            if self._check_origin(head, target, origin or named, "https" if client.tls_established else "http"):
                return
            check_servable(head)
            if self.exchange is None:
                host = origin or (named and find_destination(proxy, client, named, head.headers))
                user = proxy.users.get(client.id) or read_proxy_credentials(head.headers).user
                place = proxy.engine.place(head.method, target, host, head.headers, user)
                self.begin_exchange(place).progress.connection = client.peername, client.sockname
            if head.upgrade == "websocket" and (key := find_subprotocol_key(head)):
                proxy.engine.redactor.learn_request((("authorization", f"Bearer {key}"),), "")
        except LLMProxyError as error:
            self.refusal = error

    def begin_exchange(self, place: RequestHeadInfo) -> Exchange:
        """Count the request where it belongs. Raises LLMProxyError: its session cannot be."""
        self.exchange = exchange = self.proxy.engine.begin(place)
        exchange.answer.grants = self.grants
        self.proxy.record_begin(exchange)
        return exchange

    @property
    def may_stream_body(self) -> bool:
        """Whether its body may go upstream as it comes: decided at the head."""
        exchange = self.exchange
        if self.refusal is not None or exchange is None or exchange.request.body is not None:
            return False
        return exchange.decision in (Decision.RECORD, Decision.PASS)

    def _check_origin(self, head: Head, target: str, named: Origin | None, scheme: str) -> bool:
        """Distinguish web pages from clients, before anything is looked up or counted.

        True if this is a preflight, which we answer.

        Raises RefusedError: nobody allowed this page, or the request is for another name.
        """
        guard = self.proxy.guard
        try:
            guard.check_origin(SeenHead(head.headers, scheme, named))
        except RefusedError:
            self.family = self.proxy.engine.family_of(head.method, target, named, head.headers)
            raise
        recorded_page = named is None and is_shown_as_page(head.headers)
        self.grants = guard.build_cors_fields(head.headers) + (SANDBOX if recorded_page else ())
        self.preflight = guard.answer_preflight(head.method, head.headers)
        return self.preflight is not None

    # --- the body is here ------------------------------------------------------------------------------------------

    def decide_request(self, body: bytes) -> Exchange:
        """Decide what becomes of the request, once; a store that turns out to be damaged is a refusal."""
        exchange = self.exchange
        if exchange is None:
            raise AssertionError("no request has arrived")
        if exchange.decision is None and exchange.error is None:
            try:
                self.proxy.engine.identify(exchange, body)
            except CassetteError as error:
                exchange.decision, exchange.error = Decision.REFUSE, error
        elif exchange.request.body is None:
            self.proxy.engine.identify(exchange, body)
        return exchange

    # --- decided REPLAY --------------------------------------------------------------------------------------------

    def plan_recorded_answer(self) -> SendingPlan:
        """Lay out the recorded answer for its client; from here on it counts as served."""
        if self.exchange is None:
            raise AssertionError("no request has arrived")
        if self.laid is None:
            self.laid = self.proxy.engine.plan(self.exchange, self.client, extra=self._extra_headers(self.exchange))
        return self.laid

    def plan_interactive_answer(self) -> tuple[Playback, HeadPlan] | None:
        """Lay out how an answer begins that must wait for its client; None for every other. After `plan_answer`."""
        if self.exchange is None:
            return None
        return self.proxy.engine.plan_playback(self.exchange, self.client, extra=self._extra_headers(self.exchange))

    def _extra_headers(self, exchange: Exchange) -> Headers:
        return ((KEY_HEADER, exchange.key or ""), *self.grants)


def get_undelayed_answer(laid: SendingPlan) -> bytes | None:
    """Return an answer that is sent now and whole; None if it takes its time."""
    return laid.pieces[0][1] if len(laid.pieces) == 1 and laid.pieces[0][0] == 0 else None


def check_servable(head: Head) -> None:
    """Refuse what is not served, by name. Raises RefusedError: a tunnel, or what claims to be a WebSocket."""
    if head.method == "CONNECT":
        msg = f"llmproxy: this proxy does not tunnel to {head.target[:80]}; it is reached by base URL."
        raise RefusedError(msg, hint="Set OPENAI_BASE_URL=http://HOST:PORT/v1 (and so on) instead of HTTPS_PROXY.")
    if head.upgrade == "websocket":
        check_upgrade(head)


def split_absolute_target(head: Head) -> tuple[str, Origin | None]:
    """Split an absolute target into (origin form, (scheme, host, port)), or None. Raises FramingError: no port."""
    scheme, mark, rest = head.target.partition("://")
    if not mark or scheme.lower() not in ("http", "https"):
        return head.target, None
    at = next((n for n, letter in enumerate(rest) if letter in "/?"), len(rest))
    authority, path = rest[:at].rpartition("@")[2], rest[at:]
    host, _, port = authority.rpartition(":") if _PORT.search(authority) else (authority, "", "")
    number = parse_port(port) if port else 443 if scheme.lower() == "https" else 80
    if number is None:
        raise FramingError(f"llmproxy: {port[:20]!r} is no port.", hint="A port is a number from 1 to 65535.")
    origin_form = path if path.startswith("/") else "/" + path
    return origin_form, (scheme.lower(), host.strip("[]").lower(), number)


def is_page_request(head: Head) -> bool:
    """Return whether a person opens the proxy's address in a browser."""
    asks = is_shown_as_page(head.headers) or "text/html" in (header(head.headers, "accept") or "")
    return head.target == "/" and head.method in ("GET", "HEAD") and asks


Commands = layer.CommandGenerator[None]


@dataclass
class RequestPreparedHook(commands.StartHook):  # type: ignore[no-untyped-call]
    """The secrets of a large body are taken out on a thread, and the request waits (`Recorder.request_prepared`)."""

    asked: tuple[Exchange, bytes]
    """With its body."""


@dataclass
class StoreServerAwaitedHook(commands.StartHook):  # type: ignore[no-untyped-call]
    """The store's server is away, and the request waits for it (`Recorder.store_server_awaited`)."""

    exchange: Exchange


@dataclass
class SharedAnswerAwaitedHook(commands.StartHook):  # type: ignore[no-untyped-call]
    """The answer to another request is this one's, too, and it waits for that (`Recorder.shared_answer_awaited`)."""

    exchange: Exchange


Ending = layer.CommandGenerator[bool]
"""Commands, and then whether what was begun is over."""

LOOK = 0.01
"""Seconds between two looks at what has to be waited for."""


class LayerState(Enum):
    """What the connection is doing."""

    READING = auto()
    REPLAYING = auto()
    ASKED = auto()
    """A question about a session waits until the session's open calls have ended."""
    FORWARDING = auto()
    LINGERING = auto()
    """The answer is sent and nothing more is served, but what the client still sends is read, so that the answer
    reaches it.
    """
    CLOSED = auto()


@dataclass
class ClientConnectionState:
    context: Context
    proxy: ProxyContext
    incoming: IncomingRequest
    """The request that is being read, answered or passed on; between two of them one without a head."""
    reader: RequestReader = field(default_factory=RequestReader)
    state: LayerState = LayerState.READING
    forwarded: bool = False
    """Something was handed on over this connection."""
    close_after: bool = False
    """Close the connection when the answer is sent."""
    limit: commands.RequestWakeup | None = None
    """Asked for when a request has begun and is not whole, one at a time."""
    limited: tuple[int, int] = (0, 0)
    """Heads that were taken, and bytes that had come, when it was."""
    seen: int = 0
    """Bytes of the client that have reached the layer."""
    wakeup: commands.RequestWakeup | None = None
    """What is waited for, in the state that it stands in."""

    @property
    def client(self) -> Client:
        """The client's end."""
        return self.context.client

    @property
    def is_forwarding(self) -> bool:
        """Whether a request is on its way to its provider."""
        return self.state is LayerState.FORWARDING

    def build_send_command(self, data: bytes) -> commands.SendData:
        return commands.SendData(self.context.client, data)

    def wake_after(self, seconds: float) -> commands.RequestWakeup:
        """Schedule that this state goes on in so many seconds."""
        self.wakeup = commands.RequestWakeup(seconds)
        return self.wakeup

    def wait_for_redaction(self, body: bytes) -> Commands:
        """Wait until a large body is redacted on a thread; `IncomingRequest.decide_request` follows."""
        exchange = self.incoming.exchange
        if exchange is not None and self.proxy.engine.is_long(exchange, body):
            yield RequestPreparedHook((exchange, body))

    def wait_for_decision(self, body: bytes) -> layer.CommandGenerator[Exchange]:
        """Have a request decided whose body is here; what the store's server must say is waited for.

        Raises LLMProxyError: why it cannot be decided.
        """
        yield from self.wait_for_redaction(body)
        try:
            exchange = self.incoming.decide_request(body)
        except MachineError:  # for a while, as writing does; nothing was counted yet
            if self.incoming.exchange is None:
                raise
            self.incoming.exchange.request.body = None
            yield StoreServerAwaitedHook(self.incoming.exchange)
            exchange = self.incoming.decide_request(body)
        if exchange.answer.awaited:
            yield SharedAnswerAwaitedHook(exchange)
        return exchange

    def start_time_limit(self, seconds: float) -> Commands:
        """Look at a begun request when its time is over; a body's limit gives way to a head's."""
        if self.limit is None or seconds < self.limit.delay:
            self.limit, self.limited = commands.RequestWakeup(seconds), (self.reader.heads, self.seen)
            yield self.limit


class AnsweringLayer(Protocol):
    """The layer, as what goes upstream sees it."""

    def refuse(self, error: LLMProxyError, *, close: bool) -> Commands:
        """Answer the request with an error in its provider's envelope."""

    def send_made_answer(self) -> Commands:
        """Let the client see what an interceptor made in place of its answer."""

    def await_next_request(self) -> Commands:
        """Stand before the next request, and serve what has arrived of it."""
