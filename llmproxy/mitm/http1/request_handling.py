"""Handling of one incoming request: admission, routing, identification, and its recorded answer, planned and sent.

It knows no layer and no socket: the caller, `replay_layer` or the front (`http1.fast_path`), has the bytes. A request
that the front cannot finish is handed to the layer with its state.

    set_exchange_or_refusal(...)    the head is complete
    decide_request(body)            the body is complete: decided, once
    plan_recorded_answer()          decided REPLAY: bytes and their times; counts as served, once
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Protocol

from mitmproxy.connection import Client
from mitmproxy.proxy import commands, layer
from mitmproxy.proxy.context import Context

from llmproxy.core.mcp_answer_replay import LAST_CHUNK, MICROSECONDS, McpAnswerPrerequisiteKind, frame_http_chunk
from llmproxy.core.providers.provider_table import Family, parse_port_or_none
from llmproxy.core.sessions.call_interceptor import ClientDrivenAnswerPlayback
from llmproxy.core.sessions.exchange import Exchange, RoutedRequestHead
from llmproxy.core.traffic.interaction import Headers, header
from llmproxy.core.traffic.origin_guard import SANDBOX, HeadForOriginCheck, is_browser_document_request
from llmproxy.core.traffic.response_plan import AnswerSendingPlan, ClientFramingTraits, StreamedResponseHead
from llmproxy.errors import CassetteError, LLMProxyError, MachineError, RefusedError
from llmproxy.mitm.http1_parser import BadHttp1Request, Head, Http1RequestParser
from llmproxy.mitm.idle_connections_and_resets import is_client_process_idle
from llmproxy.mitm.interception import authorize_destination, read_proxy_credentials
from llmproxy.mitm.proxy_context import ProxyContext
from llmproxy.mitm.websockets import find_api_key_in_subprotocols, raise_if_invalid_upgrade_request
from llmproxy.protocol import KEY_HEADER, Decision

Origin = tuple[str, str, int]
_PORT = re.compile(r":[^:\]]*$")


@dataclass(slots=True, eq=False, repr=False)
class IncomingRequest:
    proxy: ProxyContext
    head: Head | None = None
    client: ClientFramingTraits = field(default_factory=ClientFramingTraits)
    exchange: Exchange | None = None
    raw: bytearray = field(default_factory=bytearray)
    """Received bytes of its body if it is chunked, else empty."""
    body: bytearray = field(default_factory=bytearray)
    """Received bytes of its body, decoded."""
    refusal: LLMProxyError | None = None
    """Refusal to send after the body was read, so that the connection can be reused."""
    family: Family = "openai"
    grants: Headers = ()
    preflight: Headers | None = None
    continued: bool = False
    answering: bool = False
    laid: AnswerSendingPlan | None = None

    def set_exchange_or_refusal(self, head: Head, client: Client, origin: Origin | None) -> None:
        """Find a request's place or `refusal`; `origin`: an intercepted client's server. May be called again."""
        self.head = head
        self.client = ClientFramingTraits(head.method, http10=head.http10, keep_alive=head.keep_alive)
        proxy = self.proxy
        try:
            target, named = split_absolute_target(head)
            scheme = "https" if client.tls_established else "http"
            if self._check_origin_and_preflight(head, target, origin or named, scheme):
                return
            raise_if_unsupported_request(head)
            if self.exchange is None:
                host = origin or (named and authorize_destination(proxy, client, named, head.headers))
                user = proxy.users.get(client.id) or read_proxy_credentials(head.headers).user
                place = proxy.engine.dispatcher.place_request(head.method, target, host, head.headers, user)
                self.begin_exchange(place).progress.connection = client.peername, client.sockname
            if head.upgrade == "websocket" and (key := find_api_key_in_subprotocols(head)):
                proxy.engine.redactor.learn_request((("authorization", f"Bearer {key}"),), "")
        except LLMProxyError as error:
            self.refusal = error

    def begin_exchange(self, place: RoutedRequestHead) -> Exchange:
        """Count the request in its session. Raises LLMProxyError: the session cannot be opened."""
        self.exchange = exchange = self.proxy.engine.stages.begin_exchange(place)
        exchange.answer.grants = self.grants
        self.proxy.record_begin(exchange)
        return exchange

    @property
    def may_stream_body(self) -> bool:
        exchange = self.exchange
        if self.refusal is not None or exchange is None or exchange.request.body is not None:
            return False
        return exchange.decision in (Decision.RECORD, Decision.PASS)

    def _check_origin_and_preflight(self, head: Head, target: str, named: Origin | None, scheme: str) -> bool:
        """Check requests of web pages, before any is counted; True for a preflight. Raises RefusedError."""
        guard = self.proxy.guard
        try:
            guard.require_admitted(HeadForOriginCheck(head.headers, scheme, named))
        except RefusedError:
            self.family = self.proxy.engine.dispatcher.find_family(head.method, target, named, head.headers)
            raise
        recorded_page = named is None and is_browser_document_request(head.headers)
        self.grants = guard.build_cors_fields(head.headers) + (SANDBOX if recorded_page else ())
        self.preflight = guard.build_preflight_fields(head.method, head.headers)
        return self.preflight is not None

    def decide_request(self, body: bytes) -> Exchange:
        if (exchange := self.exchange) is None:
            raise AssertionError("no request has arrived")
        if exchange.decision is None and exchange.error is None:
            try:
                self.proxy.engine.stages.identify_and_decide(exchange, body)
            except CassetteError as error:
                exchange.decision, exchange.error = Decision.REFUSE, error
        elif exchange.request.body is None:
            self.proxy.engine.stages.identify_and_decide(exchange, body)
        return exchange

    def plan_recorded_answer(
        self,
    ) -> tuple[AnswerSendingPlan, tuple[ClientDrivenAnswerPlayback, StreamedResponseHead] | None]:
        """Plan the recorded answer, served from here on, and the head of one that waits for its client."""
        if self.exchange is None:
            raise AssertionError("no request has arrived")
        answering, extra = self.proxy.engine.answering, ((KEY_HEADER, self.exchange.key or ""), *self.grants)
        if self.laid is None:
            self.laid = answering.plan_recorded(self.exchange, self.client, extra=extra)
        return self.laid, answering.plan_playback_head(self.exchange, self.client, extra=extra)


def get_planned_answer_if_undelayed(laid: AnswerSendingPlan) -> bytes | None:
    return laid.pieces[0][1] if len(laid.pieces) == 1 and laid.pieces[0][0] == 0 else None


def raise_if_unsupported_request(head: Head) -> None:
    """Refuse unsupported requests. Raises RefusedError: a tunnel, or an invalid WebSocket upgrade."""
    if head.method == "CONNECT":
        msg = f"llmproxy: this proxy does not tunnel to {head.target[:80]}; it is reached by base URL."
        raise RefusedError(msg, hint="Set OPENAI_BASE_URL=http://HOST:PORT/v1 (and so on) instead of HTTPS_PROXY.")
    if head.upgrade == "websocket":
        raise_if_invalid_upgrade_request(head)


def split_absolute_target(head: Head) -> tuple[str, Origin | None]:
    """Split an absolute target into (origin form, (scheme, host, port)), or None. Raises BadHttp1Request: no port."""
    scheme, mark, rest = head.target.partition("://")
    if not mark or scheme.lower() not in ("http", "https"):
        return head.target, None
    at = next((n for n, letter in enumerate(rest) if letter in "/?"), len(rest))
    authority, path = rest[:at].rpartition("@")[2], rest[at:]
    host, _, port = authority.rpartition(":") if _PORT.search(authority) else (authority, "", "")
    number = parse_port_or_none(port) if port else 443 if scheme.lower() == "https" else 80
    if number is None:
        raise BadHttp1Request(f"llmproxy: {port[:20]!r} is no port.", hint="A port is a number from 1 to 65535.")
    origin_form = path if path.startswith("/") else "/" + path
    return origin_form, (scheme.lower(), host.strip("[]").lower(), number)


def is_browser_request_for_root(head: Head) -> bool:
    asks = is_browser_document_request(head.headers) or "text/html" in (header(head.headers, "accept") or "")
    return head.target == "/" and head.method in ("GET", "HEAD") and asks


Commands = layer.CommandGenerator[None]


@dataclass
class AwaitCoroutineHook(commands.StartHook):  # type: ignore[no-untyped-call]
    """A layer waits for a job, while other connections are served (`RecordingAddon.await_coroutine`)."""

    job: Callable[[], Awaitable[object]]


Ending = layer.CommandGenerator[bool]
"""Commands, followed by whether the request is finished."""

LOOK = 0.01
"""Seconds between two polls of an awaited condition."""


async def _wait_for_store_server(proxy: ProxyContext, exchange: Exchange) -> None:
    """Wait on a thread for the store's server; if it stays unreachable, the request is refused."""
    try:
        await asyncio.to_thread(proxy.engine.wait_for_store_server)
    except LLMProxyError as error:
        exchange.decision, exchange.error = Decision.REFUSE, error


async def _wait_for_shared_answer(exchange: Exchange) -> None:
    """Wait until the call whose answer is shared has ended, or until it is this request's turn to be sent."""
    while exchange.answer.awaited:  # noqa: ASYNC110 - the writer's thread says it
        await asyncio.sleep(LOOK)


class LayerState(Enum):
    READING = auto()
    REPLAYING = auto()
    ASKED = auto()
    """A control request about a session waits for the session's open calls."""
    FORWARDING = auto()
    LINGERING = auto()
    """The answer is sent and nothing more is served, but the client's bytes are read, so that the answer reaches it."""
    CLOSED = auto()


@dataclass
class ClientConnectionState:
    context: Context
    proxy: ProxyContext
    incoming: IncomingRequest
    """The request being read, answered or forwarded; between two requests one without a head."""
    reader: Http1RequestParser = field(default_factory=Http1RequestParser)
    state: LayerState = LayerState.READING
    forwarded: bool = False
    close_after: bool = False
    limit: commands.RequestWakeup | None = None
    """Timer for an incomplete request, one at a time."""
    limited: tuple[int, int] = (0, 0)
    """Heads parsed and bytes received when the timer was set."""
    seen: int = 0
    wakeup: commands.RequestWakeup | None = None

    @property
    def client(self) -> Client:
        return self.context.client

    @property
    def is_forwarding(self) -> bool:
        return self.state is LayerState.FORWARDING

    def build_send_command(self, data: bytes) -> commands.SendData:
        return commands.SendData(self.context.client, data)

    def wake_after(self, seconds: float) -> commands.RequestWakeup:
        self.wakeup = commands.RequestWakeup(seconds)
        return self.wakeup

    def wait_for_decision(self, body: bytes) -> layer.CommandGenerator[Exchange]:
        """Have a complete request decided, after waiting for the store's server if needed. Raises LLMProxyError."""
        exchange = self.incoming.exchange
        if exchange is not None and self.proxy.engine.keying.is_slow_to_prepare(exchange, body):
            # A large body is redacted on a thread; `decide_request` follows.
            yield AwaitCoroutineHook(
                partial(asyncio.to_thread, self.proxy.engine.keying.redact_in_advance, exchange, body)
            )
        try:
            exchange = self.incoming.decide_request(body)
        except MachineError:  # for a while, as writing does; nothing was counted yet
            if self.incoming.exchange is None:
                raise
            self.incoming.exchange.request.body = None
            yield AwaitCoroutineHook(partial(_wait_for_store_server, self.proxy, self.incoming.exchange))
            exchange = self.incoming.decide_request(body)
        if exchange.answer.awaited:
            yield AwaitCoroutineHook(partial(_wait_for_shared_answer, exchange))
        return exchange

    def start_time_limit(self, seconds: float) -> Commands:
        """Set a timer for an incomplete request; a body's limit is replaced by a head's."""
        if self.limit is None or seconds < self.limit.delay:
            self.limit, self.limited = commands.RequestWakeup(seconds), (self.reader.heads, self.seen)
            yield self.limit


class ClientAnswerSenderProtocol(Protocol):
    def refuse(self, error: LLMProxyError, *, close: bool) -> Commands: ...

    def send_made_answer(self) -> Commands: ...

    def await_next_request(self) -> Commands: ...


class StreamSender:
    """Sends an answer with delays. Each method sends what is due, and returns True when all of it is sent."""

    def __init__(self, here: ClientConnectionState) -> None:
        self._here = here
        self._pieces: deque[tuple[int, bytes]] = deque()
        self._opened: tuple[ClientDrivenAnswerPlayback, StreamedResponseHead] | None = None
        self._began = 0.0
        self.crash_after = False

    @property
    def is_interactive(self) -> bool:
        return self._opened is not None

    def drop_answer(self) -> None:
        self._pieces.clear()
        self._opened = None

    def send_recorded(self, laid: AnswerSendingPlan) -> Ending:
        self._here.close_after = laid.close
        return (yield from self._begin_answer(laid))

    def send_made_answer(self, exchange: Exchange, *, withheld: bool) -> Ending:
        """Send an answer that an interceptor created; `withheld`: from an upstream's."""
        here, proxy = self._here, self._here.proxy
        incoming = here.incoming
        laid = proxy.engine.answering.plan_made_answer(exchange, incoming.client, extra=incoming.grants)
        here.close_after = laid.close or (withheld and here.close_after)
        self.crash_after = laid.crash
        if laid.shut and proxy.sockets is not None:
            proxy.sockets.close_listeners_for_seconds(laid.shut)
        return (yield from self._begin_answer(laid))

    def begin_interactive_answer(self, talk: ClientDrivenAnswerPlayback, opened: StreamedResponseHead) -> Ending:
        here = self._here
        here.state, self._opened, here.close_after = LayerState.REPLAYING, (talk, opened), opened.close
        yield here.build_send_command(opened.head)
        return (yield from self._continue_interactive_answer(talk, opened))

    def continue_sending(self) -> Ending:
        if self._opened is not None:
            return (yield from self._continue_interactive_answer(*self._opened))
        if self._here.state is LayerState.REPLAYING:
            return (yield from self._send_due())
        return False

    def _begin_answer(self, laid: AnswerSendingPlan) -> Ending:
        self._here.state = LayerState.REPLAYING
        self._pieces.extend(laid.pieces)
        self._began = self._here.proxy.engine.clock()
        return (yield from self._send_due())

    def _send_due(self) -> Ending:
        """Send due bytes in the order of concurrent answers, then sleep; delays count from the start."""
        passed, exchange = (self._here.proxy.engine.clock() - self._began) * MICROSECONDS, self._here.incoming.exchange
        # At full speed chunks have no times and only keep their order among answers.
        timed = exchange is None or not exchange.answer.held or exchange.session.settings.speed > 0
        due, wait = b"", 0.0
        while self._pieces:
            offset, data = self._pieces[0]
            wait = self._get_seconds_until_turn(None if len(self._pieces) == 1 else offset)
            if (timed or not data) and offset > passed:
                wait = max(wait, (offset - passed) / MICROSECONDS)
            if wait:
                break
            self._pieces.popleft()
            due += data
        if due:
            yield self._here.build_send_command(due)
        if self._pieces:
            yield self._here.wake_after(wait)
        return not self._pieces

    def _get_seconds_until_turn(self, offset: int | None) -> float:
        here, exchange = self._here, self._here.incoming.exchange
        if exchange is None or not exchange.answer.held:
            return 0.0
        ends = here.client.peername, here.client.sockname
        return here.proxy.engine.answering.get_send_delay(exchange, offset, ends, is_client_process_idle)

    def _continue_interactive_answer(self, talk: ClientDrivenAnswerPlayback, opened: StreamedResponseHead) -> Ending:
        parts, wait = talk.take_ready_parts(lambda: self._get_seconds_until_turn(None))
        due = b"".join(frame_http_chunk(part, chunked=opened.chunked) for part in parts)
        if not talk.turns and opened.chunked:
            due += LAST_CHUNK
        if due:
            yield self._here.build_send_command(due)
        if not talk.turns:
            self._opened = None
            return True
        if wait or talk.turns[0].wait is not McpAnswerPrerequisiteKind.FOR_EVER:
            yield self._here.wake_after(wait or LOOK)
        return False
