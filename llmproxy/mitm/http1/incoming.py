"""One request on its way in: admitted, placed, counted, identified, and its recorded answer laid out.

The one way of every request that is not asked in the same words as one before (those: `core.engine.hits`). It knows no
layer and no socket: who has the bytes drives it. That is the layer (`replay_layer`); and where a plain request arrives
whole, what stands before the connection's stream (`front`), which saves mitmproxy's steps and no question. What the
front cannot end it hands on as it is, and the layer goes on with it.

    open(...)  or  arrive(...)   the head is here
    identify(body)               the body is here: decided, once
    lay_out()                    decided REPLAY: what is sent, and when; counts as served, once
"""

from __future__ import annotations

import re

from mitmproxy.connection import Client

from llmproxy.core.providers.table import Family, parse_port
from llmproxy.core.sessions.exchange import Exchange, RequestPlace
from llmproxy.core.sessions.interceptor import Playback
from llmproxy.core.traffic.interaction import Headers, header
from llmproxy.core.traffic.origin_guard import SANDBOX, SeenHead, shows
from llmproxy.core.traffic.response_bytes import ClientHttp, OpenPlan, SendingPlan
from llmproxy.errors import CassetteError, LLMProxyError, RefusedError
from llmproxy.mitm.framing import FramingError, Head
from llmproxy.mitm.intercept import find_destination, proxy_user
from llmproxy.mitm.proxy_context import ProxyContext
from llmproxy.mitm.websocket_recorder import check_upgrade, subprotocol_key
from llmproxy.protocol import KEY_HEADER, Decision

Origin = tuple[str, str, int]
"""Scheme, host and port of the server that a client means."""
_PORT = re.compile(r":[^:\]]*$")


class Incoming:
    __slots__ = (
        "answering", "body", "client", "continued", "exchange", "family", "grants", "head", "laid", "preflight", "raw",
        "refusal", "shell",
    )  # fmt: skip

    def __init__(self, shell: ProxyContext) -> None:
        self.shell = shell
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

    def open(self, head: Head, client: Client, origin: Origin | None) -> None:
        """Find out where the request belongs; what speaks against it is its `refusal`.

        `origin` is the server that an intercepted client means. What has arrived already is looked at again, and not
        counted again.
        """
        self.head = head
        self.client = ClientHttp(head.method, http10=head.http10, keep_alive=head.keep_alive)
        shell = self.shell
        try:
            target, named = absolute(head)
            if self._admit(head, target, origin or named, "https" if client.tls_established else "http"):
                return
            check_servable(head)
            if self.exchange is None:
                host = origin or (named and find_destination(shell, client, named, head.headers))
                user = shell.users.get(client.id) or proxy_user(head.headers)
                place = shell.engine.place(head.method, target, host, head.headers, user)
                self.arrive(place)
            if head.upgrade == "websocket" and (key := subprotocol_key(head)):
                shell.engine.redactor.learn((("authorization", f"Bearer {key}"),), "")
        except LLMProxyError as error:
            self.refusal = error

    def arrive(self, place: RequestPlace) -> Exchange:
        """Count the request where it belongs. Raises LLMProxyError: its session cannot be."""
        self.exchange = exchange = self.shell.engine.begin(place)
        exchange.answer.grants = self.grants
        self.shell.begin(exchange)
        return exchange

    @property
    def streams(self) -> bool:
        """Whether its body may go upstream as it comes: decided at the head."""
        exchange = self.exchange
        if self.refusal is not None or exchange is None or exchange.request.body is not None:
            return False
        return exchange.decision in (Decision.RECORD, Decision.PASS)

    def _admit(self, head: Head, target: str, named: Origin | None, scheme: str) -> bool:
        """Tell web pages from clients, before anything is looked up or counted.

        True if this is a preflight, which we answer.

        Raises RefusedError: nobody allowed this page, or the request is for another name.
        """
        guard = self.shell.guard
        try:
            guard.check(SeenHead(head.headers, scheme, named))
        except RefusedError:
            self.family = self.shell.engine.family_of(head.method, target, named, head.headers)
            raise
        recorded_page = named is None and shows(head.headers)
        self.grants = guard.grants(head.headers) + (SANDBOX if recorded_page else ())
        self.preflight = guard.preflight(head.method, head.headers)
        return self.preflight is not None

    # --- the body is here ------------------------------------------------------------------------------------------

    def identify(self, body: bytes) -> Exchange:
        """Decide what becomes of the request, once; a store that turns out to be damaged is a refusal."""
        exchange = self.exchange
        if exchange is None:
            raise AssertionError("no request has arrived")
        if exchange.decision is None and exchange.error is None:
            try:
                self.shell.engine.identify(exchange, body)
            except CassetteError as error:
                exchange.decision, exchange.error = Decision.REFUSE, error
        elif exchange.request.body is None:
            self.shell.engine.identify(exchange, body)
        return exchange

    # --- decided REPLAY --------------------------------------------------------------------------------------------

    def lay_out(self) -> SendingPlan:
        """Lay out the recorded answer for its client; from here on it counts as served."""
        if self.exchange is None:
            raise AssertionError("no request has arrived")
        if self.laid is None:
            self.laid = self.shell.engine.plan(self.exchange, self.client, extra=self._extra(self.exchange))
        return self.laid

    def lay_out_playback(self) -> tuple[Playback, OpenPlan] | None:
        """Lay out how an answer begins that must wait for its client; None for every other. After `lay_out`."""
        if self.exchange is None:
            return None
        return self.shell.engine.plan_playback(self.exchange, self.client, extra=self._extra(self.exchange))

    def _extra(self, exchange: Exchange) -> Headers:
        return ((KEY_HEADER, exchange.key or ""), *self.grants)


def at_once(laid: SendingPlan) -> bytes | None:
    """Return an answer that is sent now and whole; None if it takes its time."""
    return laid.pieces[0][1] if len(laid.pieces) == 1 and laid.pieces[0][0] == 0 else None


def check_servable(head: Head) -> None:
    """Refuse what is not served, by name. Raises RefusedError: a tunnel, or what claims to be a WebSocket."""
    if head.method == "CONNECT":
        msg = f"llmproxy: this proxy does not tunnel to {head.target[:80]}; it is reached by base URL."
        raise RefusedError(msg, hint="Set OPENAI_BASE_URL=http://HOST:PORT/v1 (and so on) instead of HTTPS_PROXY.")
    if head.upgrade == "websocket":
        check_upgrade(head)


def absolute(head: Head) -> tuple[str, Origin | None]:
    """Split a request target in absolute form into (origin form, (scheme, host, port)); None for any other form.

    Raises FramingError: it names a port that is none.
    """
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


def opens_root(head: Head) -> bool:
    """Return whether a person opens the proxy's address in a browser."""
    asks = shows(head.headers) or "text/html" in (header(head.headers, "accept") or "")
    return head.target == "/" and head.method in ("GET", "HEAD") and asks
