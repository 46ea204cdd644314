"""The replay layer: it stays in front of a client's connection for its whole life.

It sees the client's raw bytes, frames every request itself (`framing`), asks the engine and obeys:

    REPLAY          the recorded chunks are sent from here, in their time; no hook of mitmproxy runs
    REFUSE          an error in the provider's own envelope
    RECORD, PASS    the request's exact bytes are fed, one request at a time, to ONE persistent `HttpLayer`, whose commands pass
                    through; when that has no stream left the layer takes the connection back

So a hit after a miss on one keep-alive connection is still exact and fast. An exception anywhere ends here, with a 500 that no client
retries: mitmproxy would log it and leave the client hanging.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from concurrent.futures import Future
from enum import Enum, auto
from html import unescape

from mitmproxy.connection import Connection, ConnectionState
from mitmproxy.proxy import commands, events, layer, layers
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers.http import HTTPMode
from mitmproxy.proxy.layers.http._events import ResponseEndOfMessage

from llmproxy.core.control import table as control
from llmproxy.core.control.table import ControlAsked
from llmproxy.core.mcp.turns import LAST_CHUNK, AnswerPart, Wait, framed
from llmproxy.core.providers.channels import port_said
from llmproxy.core.providers.routing import Family
from llmproxy.core.sessions.exchange import Exchange, Talking
from llmproxy.core.traffic.differences import short
from llmproxy.core.traffic.frames import SWITCHING
from llmproxy.core.traffic.interaction import Headers, header
from llmproxy.core.traffic.redirects import prefix_of
from llmproxy.core.traffic.response_bytes import ClientHttp, OpenPlan
from llmproxy.core.traffic.strangers import SANDBOX, SeenHead, shows
from llmproxy.core.websocket.recording import FrameRecording
from llmproxy.errors import CassetteError, LLMProxyError, MissError, RefusedError
from llmproxy.mitm.faster.forwarder import Forwarder
from llmproxy.mitm.framing import BodyTooSlow, FramingError, Head, HeadTooSlow, RequestReader, rewritten
from llmproxy.mitm.http1.half_closed import has_gone
from llmproxy.mitm.http1.told_lines import MOST_TOLD, is_told
from llmproxy.mitm.https.intercept import is_loopback, meant, proxy_user
from llmproxy.mitm.shell import Ahead, Shell, whole_response
from llmproxy.mitm.websocket.replay import Socket
from llmproxy.mitm.websocket.upgrade import UpgradeMissed, UpgradeRefused, check_upgrade, subprotocol_key
from llmproxy.protocol import CONTROL_PREFIX, KEY_HEADER, UI_PREFIX, Channel, Decision
from llmproxy.ui.answers import PageAnswer, fields

log = logging.getLogger(__name__)

MAX_WAITING = 1 << 20
"""Bytes that a client may send ahead of the request being answered."""
PATIENCE = 2.0
"""Seconds that a question about a session waits for the session's open calls to end."""
LOOK = 0.01
"""Seconds between two looks at them."""
LINGER = 2.0
"""Seconds; closing with unread bytes would make the client's system throw away the answer (RST)."""
MICROSECONDS = 1_000_000

_TAGS = re.compile(rb"<[^>]*>")
_PORT = re.compile(r":[^:\]]*$")

Commands = layer.CommandGenerator[None]


class LayerState(Enum):
    """What the connection is doing."""

    READING = auto()
    REPLAYING = auto()
    ASKED = auto()
    """A question about a session waits until the session's open calls have ended."""
    FORWARDING = auto()
    LINGERING = auto()
    """The answer is sent and nothing more is served, but what the client still sends is read, so that the answer reaches it."""
    CLOSED = auto()


class NotPassedOn(RefusedError):
    """A head that we take and mitmproxy does not; nothing was sent."""

    code = "llmproxy_not_passed_on"


class TooLarge(RefusedError):
    """A request body over the limit cannot be matched against recordings."""

    code = "llmproxy_request_too_large"
    status = 413


class ReplayLayer(layer.Layer):
    """One client connection."""

    def __init__(
        self, context: Context, mode: HTTPMode, shell: Shell, origin: tuple[str, str, int] | None = None
    ) -> None:
        """Wait for the first request.

        `mode` is mitmproxy's for what is handed on, `origin` (scheme, host, port) the server that an intercepted client means.
        """
        super().__init__(context)
        self._mode, self._shell, self._origin = mode, shell, origin
        self._reader = RequestReader()
        self._state = LayerState.READING
        self._forwarder: layers.HttpLayer | None = None
        self._wakeup: commands.RequestWakeup | None = None
        self._limit: commands.RequestWakeup | None = None
        """Asked for when a request has begun and is not whole, one at a time."""
        self._limited = (0, 0)
        """Heads that were taken, and bytes that had come, when it was."""
        self._pieces: deque[tuple[int, bytes]] = deque()
        self._turns: deque[AnswerPart] = deque()
        self._opened: OpenPlan | None = None
        self._held: deque[commands.ConnectionCommand] = deque()
        self._socket: Socket | None = None
        self._spent: Connection | None = None
        self._front: Ahead | None = None
        self.seen = 0
        """Bytes of the client that have reached this layer."""
        self._close_after = False
        self._crash_after = False
        """End the connection with a reset instead."""
        self._ended = False
        """The client sends no more, and waits for its answer."""
        self._reset()

    def _reset(self) -> None:
        """Stand before the next request."""
        self._head: Head | None = None
        self._exchange: Exchange | None = None
        self._raw, self._body = bytearray(), bytearray()
        self._refusal: LLMProxyError | None = None
        self._family: Family = "openai"
        self._grants: Headers = ()
        self._preflight: Headers | None = None
        self._uploading = False
        self._overflow = False
        self._continued = False
        self._answering = False
        self._asked: float | None = None
        self._kept: tuple[list[asyncio.Task[None]], bytes] | None = None
        """What is being stored, and what is then answered."""
        self._viewed: Future[PageAnswer] | None = None
        """What our page in a browser is answered."""
        self._withheld = False
        """What comes from upstream is not for the client: a fault on purpose is done to it first."""

    def stand_behind(self, front: Ahead | None) -> None:
        """Serve what the front hands over."""
        self._front = front
        if front is not None:
            front.layer = self

    @property
    def between_requests(self) -> bool:
        """Whether everything that came is answered."""
        return (
            self._state is LayerState.READING
            and self._head is None
            and not self._reader.waiting
            and self._socket is None
        )

    # --- events ----------------------------------------------------------------------------------------------------

    def _handle_event(self, event: events.Event) -> Commands:
        try:
            try:
                yield from self._dispatch(event)
            except FramingError as error:
                yield from self._refuse(error, close=True)
        except Exception:
            log.exception("llmproxy failed while serving a request")
            yield from self._fail()

    def _dispatch(self, event: events.Event) -> Commands:
        client = self.context.client
        if self._socket is not None:
            yield from self._socket.handle(event)
        elif isinstance(event, events.DataReceived) and event.connection is client:
            yield from self._received(event.data)
        elif isinstance(event, events.Wakeup) and event.command is self._limit:
            yield from self._limit_over()
        elif isinstance(event, events.Wakeup) and event.command is self._wakeup:
            self._wakeup = None
            if self._state is LayerState.ASKED and self._head is not None:
                yield from self._control(self._head, bytes(self._body))
            elif self._state is LayerState.LINGERING:
                yield from self._close()
            elif self._opened is not None and self._exchange is not None and self._exchange.talk is not None:
                yield from self._talk_on(self._exchange.talk, self._opened)
            elif self._state is LayerState.REPLAYING:
                yield from self._send_due()
        elif isinstance(event, events.ConnectionClosed) and event.connection is client and self._is_awaited():
            self._ended = True
        elif isinstance(event, events.ConnectionClosed) and event.connection is client and not self._forwarding:
            yield from self._client_left()
        elif self._forwarder is not None:
            yield from self._to_forwarder(event)

    def _received(self, data: bytes) -> Commands:
        self.seen += len(data)
        if self._state in (LayerState.CLOSED, LayerState.LINGERING):
            return
        self._reader.feed(data)
        if self._forwarding and self._uploading:
            yield from self._upload()
        elif self._switched:
            yield from self._to_forwarder(events.DataReceived(self.context.client, self._reader.rest()))
        elif self._state is LayerState.READING:
            yield from self._read()
        elif self._reader.waiting > MAX_WAITING:
            log.warning("a client sent over %s bytes ahead of its answer; its connection is closed", MAX_WAITING)
            if self._forwarding:
                yield from self._close()  # what came of the answer is stored when its hooks come
            else:
                yield from self._client_left()

    @property
    def _forwarding(self) -> bool:
        return self._state is LayerState.FORWARDING

    @property
    def _switched(self) -> bool:
        """Whether a WebSocket goes through: the client has heard that the upstream switched protocols."""
        status = self._exchange.recording.status if self._exchange else 0
        return self._forwarding and self._answering and status == SWITCHING

    @property
    def _breaking(self) -> bool:
        """Whether a WebSocket goes through of which one side has gone without a word."""
        recording = self._exchange.recording if self._exchange else None
        return isinstance(recording, FrameRecording) and recording.is_breaking()

    def _is_awaited(self) -> bool:
        """Whether a client that sends no more still waits for the answer to what it has sent."""
        client = self.context.client
        if self._opened is not None:
            return False  # a stream without an end of its own: who closes it has gone
        asked = self._state in (LayerState.REPLAYING, LayerState.ASKED) or (
            self._forwarding and not self._uploading and not self._switched
        )
        here = client.state is ConnectionState.CAN_WRITE
        return asked and here and not has_gone(client.peername, client.sockname)

    def _client_left(self) -> Commands:
        """End a replay whose client is gone; the occurrence stays used."""
        status = self._exchange.replayed_status if self._exchange is not None else None
        if self._exchange is not None and self._exchange.struck is not None and self._state is LayerState.REPLAYING:
            self._exchange.note = "client left"
            self._shell.settle(self._exchange, status or 0)
        elif self._exchange is not None and self._state is LayerState.REPLAYING and status is not None:
            self._exchange.note = "client left"
            self._shell.settle(self._exchange, status)
        elif self._exchange is not None:
            self._exchange.note = "client left before its request was complete"
            self._shell.settle(self._exchange, 0)
        yield from self._close()

    def _close(self) -> Commands:
        """Close the client's connection. What is released stays so until its hooks came, or the client is disconnected."""
        self._state = LayerState.CLOSED
        self._pieces.clear()
        self._turns.clear()
        self._opened = None
        yield commands.CloseConnection(self.context.client)

    # --- reading a request -----------------------------------------------------------------------------------------

    def _read(self) -> Commands:
        """Serve what has arrived, request after request, until something has to be waited for."""
        while self._state is LayerState.READING:
            if self._head is None:
                if (head := self._reader.head()) is None:
                    if self._ended:
                        yield from self._close()
                    elif self._reader.waiting:
                        yield from self._limit_for(self._shell.head_patience)
                    return
                self._head = head
                yield from self._open(head)
                continue  # `_open` may have answered, or handed on
            raw, decoded, over = self._reader.body()
            if self._refusal is None:
                self._raw += raw if self._head.length is None else b""
                self._body += decoded
            if len(self._body) > self._most(self._head):
                yield from self._too_large()
            elif over:
                yield from self._complete(bytes(self._body))
            elif self._ended:
                yield from self._client_left()
            else:
                yield from self._continue(self._head)
                yield from self._limit_for(self._shell.body_patience)
                return

    def _limit_for(self, seconds: float) -> Commands:
        """A request has begun: look whether it still stands there when its time is over; a body's limit gives way to a head's."""
        if self._limit is None or seconds < self._limit.delay:
            self._limit, self._limited = commands.RequestWakeup(seconds), (self._reader.heads, self.seen)
            yield self._limit

    def _limit_over(self) -> Commands:
        """Refuse a head that has not ended, and a body of which nothing has come; what has begun since gets a limit of its own."""
        self._limit, (heads, seen) = None, self._limited
        if self._uploading if self._forwarding else self._state is LayerState.READING and self._head is not None:
            if seen == self.seen:
                raise BodyTooSlow(self._shell.body_patience)
            yield from self._limit_for(self._shell.body_patience)
        elif self._state is LayerState.READING and self._reader.waiting:
            if heads == self._reader.heads:
                raise HeadTooSlow(self._shell.head_patience)
            yield from self._limit_for(self._shell.head_patience)

    def _most(self, head: Head) -> int:
        """Return how many bytes a request may have: what a server of tools has answered comes to us as one."""
        peer, shell = self.context.client.peername[0], self._shell
        own = is_told(head.raw) and is_loopback(peer) and not shell.exposed
        return max(shell.engine.config.max_request, MOST_TOLD if own else 0)

    def _continue(self, head: Head) -> Commands:
        """Tell a client that waits for it to send the body; once."""
        if head.expects and not self._continued:
            self._continued = True
            yield commands.SendData(self.context.client, b"HTTP/1.1 100 Continue\r\n\r\n")

    def _open(self, head: Head) -> Commands:
        """The head is here: find out where the request belongs."""
        if self._shell.draining:
            error = LLMProxyError("llmproxy: the proxy is ending.")
            yield from self._refuse(error, close=True, told=not head.target.startswith(CONTROL_PREFIX))
            return
        if (head.target.startswith(CONTROL_PREFIX) or opens_root(head)) and self._origin is None:
            return
        try:
            target, named = absolute(head)
            if self._admit(head, target, self._origin or named):
                return
            check_servable(head)
            host = self._origin or (named and meant(self._shell, self.context.client, named, head.headers))
            user = self._shell.users.get(self.context.client.id) or proxy_user(head.headers)
            exchange = self._from_front() or self._shell.engine.arrive(head.method, target, host, head.headers, user)
            if head.upgrade == "websocket" and (key := subprotocol_key(head)):
                self._shell.engine.redactor.learn((("authorization", f"Bearer {key}"),), "")
        except LLMProxyError as error:
            self._refusal = error  # said when the body was read, so that the connection can go on
            return
        self._exchange = exchange
        exchange.grants = self._grants
        exchange.prefix = "" if host else prefix_of(target, exchange.route.target)
        self._shell.begin(exchange)
        if exchange.decision in (Decision.RECORD, Decision.PASS) and exchange.body is None:
            if not self._reader.waiting:
                yield from self._continue(head)
            yield from self._forward(head.raw, uploading=True)
            yield from self._upload()

    def _admit(self, head: Head, target: str, named: tuple[str, str, int] | None) -> bool:
        """Tell web pages from clients, before anything is looked up or counted; True if this is a preflight, which we answer.

        Raises:
            RefusedError: nobody allowed this page, or the request is for another name.

        """
        guard, scheme = self._shell.guard, "https" if self.context.client.tls_established else "http"
        try:
            guard.check(SeenHead(head.headers, scheme, named))
        except RefusedError:
            self._family = self._shell.engine.family_of(head.method, target, named, head.headers)
            raise
        recorded_page = named is None and shows(head.headers)
        self._grants = guard.grants(head.headers) + (SANDBOX if recorded_page else ())
        self._preflight = guard.preflight(head.method, head.headers)
        return self._preflight is not None

    def _from_front(self) -> Exchange | None:
        """Take over the exchange that the front has counted already, if the bytes that it handed over begin with one."""
        client = self.context.client
        return None if self._front is None else self._shell.arrived.pop((client.peername, client.sockname), None)

    def _complete(self, body: bytes) -> Commands:
        """The whole request is here: decide, and do it."""
        head, exchange = self._head, self._exchange
        if head is None:
            raise AssertionError("a body without a head")
        if self._refusal is not None:
            yield from self._refuse(self._refusal, close=not head.keep_alive)
            return
        if self._preflight is not None:
            whole = whole_response(200, self._preflight, b"", close=not head.keep_alive, method=head.method)
            yield from self._finish(whole, close=not head.keep_alive)
            return
        if exchange is None:
            yield from self._control(head, body)
            return
        if (
            exchange.decision is None and exchange.error is None
        ):  # or who stood before us could not: the store was damaged meanwhile
            try:
                self._shell.engine.identify(exchange, body)
            except CassetteError as error:
                exchange.decision, exchange.error = Decision.REFUSE, error
        elif exchange.body is None:
            self._shell.engine.identify(exchange, body)
        match exchange.decision:
            case Decision.REPLAY if exchange.slot is not None and exchange.slot.status == SWITCHING:
                yield from self._replay_socket(exchange, head)
            case Decision.REPLAY:
                yield from self._replay(exchange, head)
            case Decision.FAULT:
                yield from self._strike(exchange, head)
            case Decision.REFUSE if isinstance(exchange.error, MissError) and head.upgrade == "websocket":
                yield from self._refuse(UpgradeMissed(exchange.error.message, hint=exchange.error.hint), close=True)
            case Decision.REFUSE if exchange.error is not None:
                yield from self._refuse(exchange.error, close=not head.keep_alive)
            case Decision.RECORD | Decision.PASS:
                raw = rewritten(head, exchange.body or b"") if exchange.swapped else head.raw + (self._raw or body)
                yield from self._forward(raw, uploading=False)
            case _:
                raise AssertionError(f"no decision for {exchange.method} {exchange.route.operation}")

    def _too_large(self) -> Commands:
        """More than can be matched: `auto` lets it through unrecorded and says so, everything else refuses."""
        head, exchange = self._head, self._exchange
        limit = self._shell.engine.config.max_request
        if head is None or exchange is None or not self._shell.engine.may_pass(exchange):
            msg = f"llmproxy: the request's body is over {limit} bytes, so it cannot be matched against recordings."
            yield from self._refuse(TooLarge(msg, hint="Raise the limit with --max-request."), close=True)
            return
        exchange.decision, self._overflow = Decision.PASS, True
        exchange.note = f"body over {limit} bytes: not recorded"
        yield from self._forward(head.raw + (self._raw or self._body), uploading=True)
        yield from self._upload()

    # --- our own answers -------------------------------------------------------------------------------------------

    def _control(self, head: Head, body: bytes) -> Commands:
        peer = self.context.client.peername[0]
        shell = self._shell
        here = is_loopback(peer) and not shell.exposed
        scheme = "https" if self.context.client.tls_established else "http"
        asked = ControlAsked(
            head.method, head.target, head.headers, body, loopback=here, guard=shell.guard, scheme=scheme
        )
        if opens_root(head) or f"{head.target.partition('?')[0]}/".startswith(UI_PREFIX):
            yield from self._view(head, asked)
            return
        session, now = control.about(shell.engine, asked), shell.engine.clock()
        if self._kept is None and session is not None and shell.busy(session):
            self._asked = now if self._asked is None else self._asked
            if now - self._asked < PATIENCE:
                self._state, self._wakeup = LayerState.ASKED, commands.RequestWakeup(LOOK)
                yield self._wakeup
                return
        waited = self._state is LayerState.ASKED
        if self._kept is None:
            self._kept = self._ask_control(head, asked)
        kept, whole = self._kept
        if not all(each.done() for each in kept):
            self._state, self._wakeup = LayerState.ASKED, commands.RequestWakeup(LOOK)
            yield self._wakeup
            return
        waited = self._state is LayerState.ASKED
        yield from self._finish(whole, close=not head.keep_alive)
        if waited:
            yield from self._read()

    def _ask_control(self, head: Head, asked: ControlAsked) -> tuple[list[asyncio.Task[None]], bytes]:
        """Serve a call of the control API: what must be stored before it is answered, and the answer."""
        shell = self._shell
        status, data, kind = control.answer(
            shell.engine,
            asked,
            token=shell.token,
            page_token=shell.page_token,
            ca=shell.ca,
            ca_bundle=shell.ca_bundle,
            spans_of=shell.spans_of,
            stop=shell.stop,
            lines=shell.lines,
        )
        whole = whole_response(status, (("content-type", kind),), data, close=not head.keep_alive, method=head.method)
        return shell.take_kept(), whole

    def _view(self, head: Head, asked: ControlAsked) -> Commands:
        """Answer our page in a browser, when its thread has the answer."""
        waited = self._viewed is not None
        self._viewed = self._viewed or self._shell.view(asked)
        if not self._viewed.done():
            self._state, self._wakeup = LayerState.ASKED, commands.RequestWakeup(LOOK)
            yield self._wakeup
            return
        answer = self._viewed.result()
        close = not head.keep_alive
        yield from self._finish(
            whole_response(answer.status, fields(answer), answer.body, close=close, method=head.method), close=close
        )
        if waited:
            yield from self._read()

    def _refuse(self, error: LLMProxyError, *, close: bool, told: bool = True) -> Commands:
        """Answer an error; where it is not `told`, nobody counts it: whoever waits for our end asks us whether it has come."""
        exchange = self._exchange
        family: Family = exchange.family if exchange else self._family
        method = self._head.method if self._head else "POST"
        operation = exchange.operation if exchange else ""
        if exchange is not None and exchange.channel is Channel.MCP and exchange.body is not None:
            status, data = self._shell.refusal_of_mcp(error, exchange, close=close, method=method)
        else:
            status, data = self._shell.refusal(
                error, family, close=close, method=method, operation=operation, grants=self._grants
            )
        self._shell.released.pop(self.context.client.id, None)
        if exchange is not None:
            exchange.decision = Decision.REFUSE
            self._shell.settle(exchange, status)
        elif told:
            self._shell.say(self._shell.engine.refused(method, self._head.target if self._head else "", status, error))
        if self._answering:
            yield from self._close()
        else:
            yield from self._finish(data, close=close, lingering=close)

    def _fail(self) -> Commands:
        """Answer an exception of ours: 500 if nothing was sent yet; then the connection ends."""
        if self._state is LayerState.CLOSED:
            return
        if self._state is LayerState.LINGERING:  # it was said already, and nothing can be sent any more
            yield from self._close()
            return
        self._exchange = self._exchange or self._from_front()
        if self._exchange is not None:
            self._exchange.note = "llmproxy failed; see the log"
        error = LLMProxyError("llmproxy: internal error while serving this request; nothing more was sent upstream.")
        try:
            yield from self._refuse(error, close=True)
        except Exception:
            log.exception("llmproxy could not even say that it failed")
            self._shell.released.pop(self.context.client.id, None)
            yield from self._close()

    def _finish(self, data: bytes, *, close: bool, lingering: bool = False) -> Commands:
        """Send a whole answer and stand before the next request, or close; `lingering` for a client that may still send."""
        self._state = LayerState.READING
        self._reset()
        yield commands.SendData(self.context.client, data)
        if lingering:
            self._state = LayerState.LINGERING
            self._wakeup = commands.RequestWakeup(LINGER)
            yield commands.CloseTcpConnection(self.context.client, half_close=True)
            yield self._wakeup
        elif close:
            yield from self._close()

    # --- replay ----------------------------------------------------------------------------------------------------

    def _replay(self, exchange: Exchange, head: Head) -> Commands:
        engine = self._shell.engine
        client = ClientHttp(head.method, http10=head.http10, keep_alive=head.keep_alive)
        laid_out = engine.plan(exchange, client, extra=((KEY_HEADER, exchange.key or ""), *self._grants))
        self._answering = True
        if (
            opened := engine.plan_talk(exchange, client, extra=((KEY_HEADER, exchange.key or ""), *self._grants))
        ) is not None:
            yield from self._begin_talk(exchange, opened)
            return
        self._close_after = laid_out.close
        if len(laid_out.pieces) == 1 and laid_out.pieces[0][0] == 0:
            yield commands.SendData(self.context.client, laid_out.pieces[0][1])
            yield from self._replayed()
            return
        self._state = LayerState.REPLAYING
        self._pieces.extend(laid_out.pieces)
        self._began = engine.clock()
        yield from self._send_due()

    def _begin_talk(self, exchange: Exchange, opened: OpenPlan) -> Commands:
        """Begin an answer that goes on when its client has done what the recorded one did."""
        if exchange.talk is None or exchange.talk.turns is None:
            raise AssertionError("nothing to wait for")
        self._state, self._opened, self._close_after = LayerState.REPLAYING, opened, opened.close
        self._turns.extend(exchange.talk.turns)
        yield commands.SendData(self.context.client, opened.head)
        yield from self._talk_on(exchange.talk, opened)

    def _talk_on(self, talk: Talking, opened: OpenPlan) -> Commands:
        """Send what may be sent by now, and look again soon."""
        due = b""
        while self._turns and (ready := talk.ready(self._turns[0])):
            if isinstance(ready, str):
                self._turns.clear()
                due += framed(talk.refusal(ready), chunked=opened.chunked)
                break
            due += framed(self._turns.popleft().data, chunked=opened.chunked)
            if self._turns:
                talk.ask(self._turns[0])
        if not self._turns and opened.chunked:
            due += LAST_CHUNK
        if due:
            yield commands.SendData(self.context.client, due)
        if not self._turns:
            self._opened = None
            yield from self._replayed()
        elif self._turns[0].wait is not Wait.FOR_EVER:
            self._wakeup = commands.RequestWakeup(LOOK)
            yield self._wakeup

    def _strike(self, exchange: Exchange, head: Head) -> Commands:
        """Let the client see what a fault on purpose makes of its answer."""
        engine, broken = self._shell.engine, exchange.struck.broken if exchange.struck is not None else None
        client = ClientHttp(head.method, http10=head.http10, keep_alive=head.keep_alive)
        laid_out = engine.plan_broken(exchange, client, extra=self._grants)
        self._close_after = laid_out.close or (self._withheld and self._close_after)
        self._answering, self._state = True, LayerState.REPLAYING
        self._crash_after = broken is not None and broken.reset
        if broken is not None and broken.shut and self._shell.sockets is not None:
            self._shell.sockets.shut(broken.shut)
        self._pieces.extend(laid_out.pieces)
        self._began = engine.clock()
        yield from self._send_due()

    def _replay_socket(self, exchange: Exchange, head: Head) -> Commands:
        """Give the connection to a recorded WebSocket, for good."""
        if head.upgrade != "websocket":
            refused = UpgradeRefused("llmproxy: a WebSocket is recorded here, and this request is no upgrade.")
            yield from self._refuse(refused, close=True)
            return
        socket = Socket(self._shell, self.context, exchange, head)
        self._answering, self._state, self._socket = True, LayerState.REPLAYING, socket
        yield from socket.begin(self._reader.rest())

    def _send_due(self) -> Commands:
        """Send what is due by now, then sleep until the next piece; counted from the start, so that delays do not add up."""
        passed = (self._shell.engine.clock() - self._began) * MICROSECONDS
        due = b""
        while self._pieces and self._pieces[0][0] <= passed:
            due += self._pieces.popleft()[1]
        if due:
            yield commands.SendData(self.context.client, due)
        if self._pieces:
            self._wakeup = commands.RequestWakeup(max(0.0, (self._pieces[0][0] - passed) / MICROSECONDS))
            yield self._wakeup
        else:
            yield from self._replayed()

    def _replayed(self) -> Commands:
        exchange = self._exchange
        if exchange is not None and exchange.struck is not None:
            self._shell.settle(exchange, exchange.replayed_status or 0)
        elif exchange is not None and (status := exchange.replayed_status) is not None:
            self._shell.settle(exchange, status)
        self._reset()
        paced, self._state = self._state is LayerState.REPLAYING, LayerState.READING
        if self._crash_after and self._shell.sockets is not None:
            self._shell.sockets.reset(self.context.client)
        if self._close_after:
            yield from self._close()
        elif paced:
            yield from self._read()

    # --- handing on ------------------------------------------------------------------------------------------------

    def _forward(self, raw: bytes | bytearray, *, uploading: bool) -> Commands:
        """Release the exchange and feed these bytes to mitmproxy's HTTP layer."""
        if self._exchange is None:
            raise AssertionError("nothing to release")
        self._shell.released[self.context.client.id] = self._exchange
        self._state, self._uploading, self._answering = LayerState.FORWARDING, uploading, False
        self._withheld = self._exchange.struck is not None
        if self._forwarder is None:
            self._forwarder = Forwarder(self.context, self._mode)
            yield from self._forwarder.handle_event(events.Start())
        yield from self._to_forwarder(events.DataReceived(self.context.client, bytes(raw)))

    def _upload(self) -> Commands:
        """Pass the body on as it arrives; keep a copy for the key, up to the limit."""
        exchange = self._exchange
        raw, decoded, over = self._reader.body()
        if exchange is not None:
            if len(self._body) + len(decoded) <= self._shell.engine.config.max_request:
                self._body += decoded
            elif not self._overflow:
                self._overflow = True
                exchange.decision = Decision.PASS
                exchange.note = f"body over {self._shell.engine.config.max_request} bytes: not recorded"
            if over:
                self._uploading = False
                if not self._overflow:
                    self._shell.engine.identify(exchange, bytes(self._body))
        if not over:
            yield from self._limit_for(self._shell.body_patience)
        if raw and self._forwarding:
            yield from self._to_forwarder(events.DataReceived(self.context.client, raw))
        elif over:
            yield from self._taken_back()

    def _to_forwarder(self, event: events.Event) -> Commands:
        """Let mitmproxy work."""
        if self._forwarder is None:
            raise AssertionError("nothing to hand on to")
        try:
            yield from self._passed(self._forwarder.handle_event(event))
        except NotImplementedError:  # its answer to trailers of the upstream's, when the whole body has passed
            yield from self._passed(self._without_trailers(self._forwarder))
        if self._held and self._exchange is not None and not self._exchange.recording.whole:
            yield from self._let_go()
        yield from self._taken_back()

    def _without_trailers(self, forwarder: layers.HttpLayer) -> Commands:
        """End the answer where its body ended; that upstream connection cannot be used again."""
        for number, stream in list(forwarder.streams.items()):
            self._spent = stream.flow.server_conn
            yield from forwarder.event_to_child(stream, ResponseEndOfMessage(number))

    def _passed(self, made: Commands) -> Commands:
        """Pass mitmproxy's commands on; replace its own error page by ours."""
        for command in made:
            ours = isinstance(command, commands.ConnectionCommand) and command.connection is self.context.client
            if isinstance(command, commands.SendData) and self._breaking:
                continue  # mitmproxy would tell the other side that all is well: 1000
            if ours and self._forwarding:
                failed = self._failed_before_answer(command)
                if failed is not None:
                    yield from self._refuse(failed, close=True)
                    continue
                if self._withheld and isinstance(command, commands.SendData | commands.CloseConnection):
                    self._close_after = self._close_after or isinstance(command, commands.CloseConnection)
                    continue
                if isinstance(command, commands.SendData):
                    self._answering = True
                    if self._exchange is not None and self._exchange.recording.holds_end:
                        self._held.append(command)  # with a length its last bytes are its end: not before it is stored
                        continue
                elif isinstance(command, commands.CloseConnection):
                    if self._switched and self._exchange is not None and self._exchange.recording.whole:
                        self._held.append(command)  # the end of a WebSocket: not before it is stored
                        continue
                    yield from self._let_go()
                    self._state = LayerState.CLOSED
            elif ours and self._state in (LayerState.CLOSED, LayerState.LINGERING):
                continue
            yield command

    def _let_go(self) -> Commands:
        """Send what was held back."""
        while self._held:
            yield self._held.popleft()

    def _failed_before_answer(self, command: commands.Command) -> LLMProxyError | None:
        """Return why the forwarded request failed, if the client has not heard anything yet."""
        exchange = self._exchange
        if exchange is None or self._answering or exchange.error is not None:
            return None if exchange is None or self._answering else exchange.error
        if isinstance(command, commands.SendData) and not exchange.recording.started:
            # No upstream has answered: this is mitmproxy's own page about a head that it does not take.
            said = unescape(_TAGS.sub(b" ", command.data.partition(b"<body>")[2]).decode("latin-1"))
            failed = NotPassedOn(f"llmproxy: this request cannot be passed on: {short(' '.join(said.split()), 200)}")
            failed.status = 400 if command.data.startswith(b"HTTP/1.1 4") else 502
            exchange.error = failed
        return exchange.error

    def _taken_back(self) -> Commands:
        """When the forwarded request is over, stand before the next one."""
        if self._switched:
            yield from self._tunnelled()
            return
        if self._forwarding and not self._uploading and self._forwarder and not self._forwarder.streams:
            yield from self._let_go()
            if self._spent is not None:
                yield commands.CloseConnection(self._spent)
                self._spent = None
            exchange = self._shell.released.pop(self.context.client.id, None)
            if exchange is not None and not exchange.finished:
                if exchange.recording.started:
                    self._shell.lose(exchange, "its end was not noticed; see the log")
                else:
                    self._shell.abandon(exchange)
            if self._withheld and exchange is not None and self._head is not None:
                yield from self._strike(exchange, self._head)
                return
            self._state = LayerState.READING
            self._reset()
            yield from self._read()

    def _tunnelled(self) -> Commands:
        """A WebSocket goes through: pass on what the client sent meanwhile; when its end is stored, let the client hear it."""
        recording = self._exchange.recording if self._exchange else None
        if isinstance(recording, FrameRecording) and recording.is_stored:
            self._state, self._exchange = LayerState.CLOSED, None
            yield from self._let_go()
        elif self._reader.waiting:
            yield from self._to_forwarder(events.DataReceived(self.context.client, self._reader.rest()))


def check_servable(head: Head) -> None:
    """Refuse what this layer does not serve, by name.

    Raises:
        RefusedError: a tunnel, or what claims to be a WebSocket.

    """
    if head.method == "CONNECT":
        msg = f"llmproxy: this proxy does not tunnel to {head.target[:80]}; it is reached by base URL."
        raise RefusedError(msg, hint="Set OPENAI_BASE_URL=http://HOST:PORT/v1 (and so on) instead of HTTPS_PROXY.")
    if head.upgrade == "websocket":
        check_upgrade(head)


def opens_root(head: Head) -> bool:
    """Tell whether a person opens the proxy's address in a browser."""
    asks = shows(head.headers) or "text/html" in (header(head.headers, "accept") or "")
    return head.target == "/" and head.method in ("GET", "HEAD") and asks


def absolute(head: Head) -> tuple[str, tuple[str, str, int] | None]:
    """Split a request target in absolute form into (origin form, (scheme, host, port)); None for any other form.

    Raises:
        FramingError: it names a port that is none.

    """
    scheme, mark, rest = head.target.partition("://")
    if not mark or scheme.lower() not in ("http", "https"):
        return head.target, None
    at = next((n for n, letter in enumerate(rest) if letter in "/?"), len(rest))
    authority, path = rest[:at].rpartition("@")[2], rest[at:]
    host, _, port = authority.rpartition(":") if _PORT.search(authority) else (authority, "", "")
    number = port_said(port) if port else 443 if scheme.lower() == "https" else 80
    if number is None:
        raise FramingError(f"llmproxy: {port[:20]!r} is no port.", hint="A port is a number from 1 to 65535.")
    origin_form = path if path.startswith("/") else "/" + path
    return origin_form, (scheme.lower(), host.strip("[]").lower(), number)
