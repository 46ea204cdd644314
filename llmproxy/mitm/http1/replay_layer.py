"""The replay layer, in front of a client's connection for its whole life: the order of steps by its `LayerState`.

It frames every request itself (`http1_parser`), has it decided (`request_handling`), and sends the recorded chunks, an
error, or the request's exact bytes upstream (`forwarding`), one at a time. So a hit after a miss on one connection is
still exact. Any exception becomes a 500 that no client retries: mitmproxy would leave it hanging.
"""

from __future__ import annotations

import asyncio
import logging
import re
from concurrent.futures import Future
from functools import cached_property, partial

from mitmproxy.connection import ConnectionState
from mitmproxy.proxy import commands, events, layer
from mitmproxy.proxy.context import Context

from llmproxy.core.control import endpoints as control
from llmproxy.core.control.endpoints import ControlRequest, build_control_error_response
from llmproxy.core.secrets.redact import may_hold_redaction
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.traffic.interaction import Headers
from llmproxy.core.traffic.websocket_frames import SWITCHING
from llmproxy.errors import LLMProxyError, MissError, RecordingError, RefusedError
from llmproxy.mitm.http1 import request_handling
from llmproxy.mitm.http1.forwarding import RequestForwarder
from llmproxy.mitm.http1.request_handling import Commands, IncomingRequest, LayerState, StreamSender
from llmproxy.mitm.http1_parser import BodyTooSlow, Head, HeadTooSlow, replace_body
from llmproxy.mitm.idle_connections_and_resets import is_peer_process_gone
from llmproxy.mitm.interception import is_loopback_ip
from llmproxy.mitm.proxy_context import FastPathConnection, ProxyContext, build_own_response
from llmproxy.mitm.websockets import ReplayedWebSocket, WebSocketUpgradeMiss, WebSocketUpgradeRequiredError
from llmproxy.protocol import CONTROL_PREFIX, UI_PREFIX, Channel, Decision
from llmproxy.ui.page import ViewerResponse, build_viewer_response_headers

log = logging.getLogger(__name__)

MAX_WAITING = 1 << 20
"""Maximum bytes that a client may send ahead of the request being answered."""
LINGER = 2.0
"""Seconds; closing with unread bytes would make the client's system discard the answer (RST)."""


PATIENCE = 2.0
"""Seconds that a control request about a session waits for the session's open calls."""
LONGEST_TOOL_CALL = 1 << 30
"""Maximum bytes of a shim's call: the longest line that it passes on (`client.tools.mcp_shim`), as JSON."""
_TOOL_CALL = re.compile(re.escape(CONTROL_PREFIX) + r"sessions/[^/?]+/tools")


class ControlAndViewerAnswerer:
    def __init__(self, here: request_handling.ClientConnectionState, layer: RecordReplayLayer) -> None:
        self._here, self._layer = here, layer
        self.prepare_for_next()

    def prepare_for_next(self) -> None:
        self._asked: float | None = None
        self._viewed: Future[ViewerResponse] | None = None

    def answer_request(self, head: Head, body: bytes) -> Commands:
        here, proxy = self._here, self._here.proxy
        local = is_loopback_ip(here.client.peername[0]) and not proxy.exposed
        scheme = "https" if here.client.tls_established else "http"
        asked = ControlRequest(
            head.method, head.target, head.headers, body, loopback=local, guard=proxy.guard, scheme=scheme,
            connection=here.client.id,
        )  # fmt: skip
        if request_handling.is_browser_request_for_root(head) or f"{head.target.partition('?')[0]}/".startswith(
            UI_PREFIX
        ):
            yield from self._answer_viewer(head, asked)
            return
        session, now = control.find_open_session_for_totals(proxy.engine, asked), proxy.engine.clock()
        if session is not None and any(each.session is session for each in proxy.open.values()):
            self._asked = now if self._asked is None else self._asked
            if now - self._asked < PATIENCE:
                yield from self._retry_answer_later()
                return
        status, data, kind = control.answer_control_request(proxy.engine, asked, proxy)
        if (stored := proxy.take_storage_future()) is not None:
            yield request_handling.AwaitCoroutineHook(partial(asyncio.wait, [stored]))
            if why := stored.result():
                status, data, kind = build_control_error_response(RecordingError(why), proxy.engine.redactor.text)
        yield from self._send_answer(head, status, (("content-type", kind),), data)

    def _send_answer(self, head: Head, status: int, headers: Headers, body: bytes) -> Commands:
        waited, close = self._here.state is LayerState.ASKED, not head.keep_alive
        whole = build_own_response(status, headers, body, close=close, method=head.method)
        yield from self._layer.send_whole_answer(whole, close=close)
        if waited:
            yield from self._layer.serve_received_requests()

    def _retry_answer_later(self) -> Commands:
        self._here.state = LayerState.ASKED
        yield self._here.wake_after(request_handling.LOOK)

    def on_shim_connection_end(self) -> None:
        """Handle the end of a shim's connection; if we closed an idle one, its shim reconnects."""
        here = self._here
        if here.client.state is ConnectionState.CAN_WRITE and here.proxy.lines is not None:
            here.proxy.lines.on_connection_end(here.client.id)

    def _answer_viewer(self, head: Head, asked: ControlRequest) -> Commands:
        self._viewed = self._viewed or self._here.proxy.answer_viewer(asked)
        if self._viewed.done():
            answer = self._viewed.result()
            yield from self._send_answer(head, answer.status, build_viewer_response_headers(answer), answer.body)
        else:
            yield from self._retry_answer_later()


class BodyTooLarge(RefusedError):
    code = "llmproxy_request_too_large"
    status = 413


class RecordReplayLayer(layer.Layer):
    incoming = IncomingRequest
    sender = StreamSender
    own_answers = ControlAndViewerAnswerer
    forwarding = RequestForwarder
    """Classes of its parts; a test passes a broken one."""

    def __init__(self, context: Context, proxy: ProxyContext, origin: request_handling.Origin | None = None) -> None:
        """Wait for the first request; `origin` (scheme, host, port): intercepted."""
        super().__init__(context)
        self._proxy, self._origin = proxy, origin
        self._here = here = request_handling.ClientConnectionState(context, proxy, self.incoming(proxy))
        self._own = self.own_answers(here, self)
        self._socket: ReplayedWebSocket | None = None
        self._front: FastPathConnection | None = None
        self._ended = False

    @cached_property
    def _sender(self) -> StreamSender:
        return self.sender(self._here)

    @cached_property
    def _request_forwarder(self) -> RequestForwarder:
        return self.forwarding(self._here, self)

    def _reset_for_request(self) -> None:
        self._here.incoming = self.incoming(self._proxy)
        self._own.prepare_for_next()
        if self._here.forwarded:
            self._request_forwarder.prepare_for_next()

    def attach_to_front(self, front: FastPathConnection | None) -> None:
        self._front = front
        if front is not None:
            front.has_answered = lambda count: self._here.seen == count and self.is_between_requests

    @property
    def is_between_requests(self) -> bool:
        here = self._here
        reading = here.state is LayerState.READING and here.incoming.head is None
        return reading and not here.reader.waiting_byte_count and self._socket is None

    # --- events ----------------------------------------------------------------------------------------------------

    def _handle_event(self, event: events.Event) -> Commands:
        try:
            try:
                yield from self._dispatch_event(event)
            except LLMProxyError as error:
                if self._here.state in (LayerState.CLOSED, LayerState.LINGERING):
                    raise
                yield from self.refuse(error, close=True)
        except Exception:
            log.exception("llmproxy failed while serving a request")
            yield from self._answer_exception()

    def _dispatch_event(self, event: events.Event) -> Commands:
        here, client = self._here, self.context.client
        left = isinstance(event, events.ConnectionClosed) and event.connection is client
        if left:
            self._own.on_shim_connection_end()
        if self._socket is not None:
            yield from self._socket.handle_event(event)
        elif isinstance(event, events.DataReceived) and event.connection is client:
            yield from self._receive_data(event.data)
        elif isinstance(event, events.Wakeup) and event.command is here.limit:
            yield from self._on_time_limit()
        elif isinstance(event, events.Wakeup) and event.command is here.wakeup:
            here.wakeup = None
            if here.state is LayerState.ASKED and here.incoming.head is not None:
                yield from self._own.answer_request(here.incoming.head, bytes(here.incoming.body))
            elif here.state is LayerState.LINGERING:
                yield from self._close_client()
            else:
                yield from self._send_due(self._sender.continue_sending())
        elif left and self._is_client_waiting():
            self._ended = True
        elif left and not here.is_forwarding:
            yield from self._on_client_left()
        elif here.forwarded:
            yield from self._request_forwarder.on_event(event)

    def _receive_data(self, data: bytes) -> Commands:
        here = self._here
        here.seen += len(data)
        if here.state in (LayerState.CLOSED, LayerState.LINGERING):
            return
        here.reader.add_bytes(data)
        if here.is_forwarding and self._request_forwarder.uploading:
            yield from self._request_forwarder.forward_body()
        elif here.is_forwarding and self._request_forwarder.has_switched:
            yield from self._request_forwarder.on_event(
                events.DataReceived(self.context.client, here.reader.take_rest())
            )
        elif here.state is LayerState.READING:
            yield from self.serve_received_requests()
        elif here.reader.waiting_byte_count > MAX_WAITING:
            log.warning("a client sent over %s bytes ahead of its answer; its connection is closed", MAX_WAITING)
            if here.is_forwarding:
                yield from self._close_client()  # what came of the answer is stored when its hooks come
            else:
                yield from self._on_client_left()

    def _is_client_waiting(self) -> bool:
        client, here = self.context.client, self._here
        if here.state is LayerState.REPLAYING and self._sender.is_interactive:
            return False  # a stream without an end of its own: who closes it has gone
        asked = here.state in (LayerState.REPLAYING, LayerState.ASKED) or (
            here.is_forwarding and not self._request_forwarder.uploading and not self._request_forwarder.has_switched
        )
        is_there = client.state is ConnectionState.CAN_WRITE
        return asked and is_there and not is_peer_process_gone(client.peername, client.sockname)

    def _on_client_left(self) -> Commands:
        """End the replay of a disconnected client; the occurrence stays used."""
        if (exchange := self._here.incoming.exchange) is not None:
            answered = self._here.state is LayerState.REPLAYING
            exchange.note = "client left" if answered else "client left before its request was complete"
            self._proxy.report_exchange_end(exchange, (exchange.replayed_status or 0) if answered else 0)
        yield from self._close_client()

    def _close_client(self) -> Commands:
        """Close the client's connection; a release lasts until its hooks have run, or the disconnection."""
        self._here.state = LayerState.CLOSED
        self._sender.drop_answer()
        yield commands.CloseConnection(self.context.client)

    # --- reading a request -----------------------------------------------------------------------------------------

    def serve_received_requests(self) -> Commands:
        here = self._here
        while here.state is LayerState.READING:
            if here.incoming.head is None:
                if (head := here.reader.take_head()) is None:
                    if self._ended:
                        yield from self._close_client()
                    elif here.reader.waiting_byte_count:
                        yield from here.start_time_limit(self._proxy.head_patience)
                    return
                yield from self._on_head(head)
                continue  # `_open` may have answered, or handed on
            incoming, head = here.incoming, here.incoming.head
            raw, decoded, over = here.reader.take_received_body_part()
            if incoming.refusal is None:
                incoming.raw += raw if head.length is None else b""
                incoming.body += decoded
            if len(incoming.body) > self._get_body_limit(head):
                yield from self._refuse_or_pass_too_large()
            elif over:
                yield from self._on_whole_request(head, bytes(incoming.body))
            elif self._ended:
                yield from self._on_client_left()
            else:
                yield from self._send_continue(head)
                yield from here.start_time_limit(self._proxy.body_patience)
                return

    def _on_time_limit(self) -> Commands:
        """Refuse an incomplete head, or a stalled body; a request begun since has a limit of its own."""
        here = self._here
        here.limit, (heads, seen) = None, here.limited
        reading = here.state is LayerState.READING
        if self._request_forwarder.uploading if here.is_forwarding else reading and here.incoming.head is not None:
            if seen == here.seen:
                raise BodyTooSlow(self._proxy.body_patience)
            yield from here.start_time_limit(self._proxy.body_patience)
        elif reading and here.reader.waiting_byte_count:
            if heads == here.reader.heads:
                raise HeadTooSlow(self._proxy.head_patience)
            yield from here.start_time_limit(self._proxy.head_patience)

    def _get_body_limit(self, head: Head) -> int:
        """Return the maximum bytes of a request; a shim's may hold a whole answer of an MCP server."""
        peer, proxy = self.context.client.peername[0], self._proxy
        shim_call = head.method == "POST" and _TOOL_CALL.fullmatch(head.target) is not None
        own = shim_call and is_loopback_ip(peer) and not proxy.exposed
        return max(proxy.engine.config.max_request, LONGEST_TOOL_CALL if own else 0)

    def _send_continue(self, head: Head) -> Commands:
        if head.expects and not self._here.incoming.continued:
            self._here.incoming.continued = True
            yield self._here.build_send_command(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _on_head(self, head: Head) -> Commands:
        here = self._here
        here.incoming.head = head
        if self._proxy.draining:
            error = LLMProxyError("llmproxy: the proxy is ending.")
            yield from self.refuse(error, close=True, told=not head.target.startswith(CONTROL_PREFIX))
            return
        if (
            head.target.startswith(CONTROL_PREFIX) or request_handling.is_browser_request_for_root(head)
        ) and self._origin is None:
            return
        self._take_over_front_request()
        here.incoming.set_exchange_or_refusal(head, self.context.client, self._origin)
        if here.incoming.may_stream_body:
            if not here.reader.waiting_byte_count:
                yield from self._send_continue(head)
            yield from self._request_forwarder.stream_request_upstream(head.raw)

    def _take_over_front_request(self) -> None:
        client = self.context.client
        begun = None if self._front is None else self._proxy.arrived.pop((client.peername, client.sockname), None)
        if isinstance(begun, IncomingRequest):
            self._here.incoming = begun

    def _on_whole_request(self, head: Head, body: bytes) -> Commands:
        incoming = self._here.incoming
        if incoming.refusal is not None:
            yield from self.refuse(incoming.refusal, close=not head.keep_alive)
            return
        if incoming.preflight is not None:
            close = not head.keep_alive
            whole = build_own_response(200, incoming.preflight, b"", close=close, method=head.method)
            yield from self.send_whole_answer(whole, close=close)
            return
        if incoming.exchange is None:
            yield from self._own.answer_request(head, body)
            return
        exchange = yield from self._here.wait_for_decision(body)
        match exchange.decision:
            case Decision.REPLAY if exchange.slot is not None and exchange.slot.status == SWITCHING:
                yield from self._replay_socket(exchange, head)
            case Decision.REPLAY:
                yield from self._replay_answer(exchange)
            case Decision.FAULT:
                yield from self.send_made_answer()
            case Decision.REFUSE if isinstance(exchange.error, MissError) and head.upgrade == "websocket":
                yield from self.refuse(
                    WebSocketUpgradeMiss(exchange.error.message, hint=exchange.error.hint), close=True
                )
            case Decision.REFUSE if exchange.error is not None:
                yield from self.refuse(exchange.error, close=not head.keep_alive)
            case Decision.RECORD | Decision.PASS:
                changed = exchange.request.rewritten
                raw = replace_body(head, exchange.request.data) if changed else head.raw + (incoming.raw or body)
                yield from self._request_forwarder.forward(raw)
            case _:
                raise AssertionError(f"no decision for {exchange.method} {exchange.route.operation}")

    def _refuse_or_pass_too_large(self) -> Commands:
        """Handle a body too large to match: `auto` passes it through unrecorded with a note, others refuse."""
        incoming, limit = self._here.incoming, self._proxy.engine.config.max_request
        head, exchange = incoming.head, incoming.exchange
        doubtful = may_hold_redaction(incoming.body)
        if head is None or exchange is None or doubtful or not self._proxy.engine.may_pass_unrecorded(exchange):
            msg = f"llmproxy: the request's body is over {limit} bytes, so it cannot be matched against recordings."
            yield from self.refuse(BodyTooLarge(msg, hint="Raise the limit with --max-request."), close=True)
            return
        exchange.decision = Decision.PASS
        exchange.note = f"body over {limit} bytes: not recorded"
        yield from self._request_forwarder.stream_request_upstream(
            head.raw + (incoming.raw or incoming.body), overflow=True
        )

    # --- answers ---------------------------------------------------------------------------------------------------

    def _replay_answer(self, exchange: Exchange) -> Commands:
        incoming = self._here.incoming
        laid, opened = incoming.plan_recorded_answer()
        incoming.answering = True
        if opened is not None:
            yield from self._send_due(self._sender.begin_interactive_answer(*opened))
        elif not exchange.answer.held and (data := request_handling.get_planned_answer_if_undelayed(laid)) is not None:
            self._here.close_after = laid.close
            yield self._here.build_send_command(data)
            yield from self._end_replay()
        else:
            yield from self._send_due(self._sender.send_recorded(laid))

    def send_made_answer(self) -> Commands:
        incoming = self._here.incoming
        if incoming.exchange is None:
            raise AssertionError("nothing was made")
        incoming.answering = True
        yield from self._send_due(
            self._sender.send_made_answer(incoming.exchange, withheld=self._request_forwarder.withheld)
        )

    def _replay_socket(self, exchange: Exchange, head: Head) -> Commands:
        if head.upgrade != "websocket":
            refused = WebSocketUpgradeRequiredError(
                "llmproxy: a WebSocket is recorded here, and this request is no upgrade."
            )
            yield from self.refuse(refused, close=True)
            return
        socket = ReplayedWebSocket(self._proxy, self.context, exchange, head)
        self._here.incoming.answering, self._here.state, self._socket = True, LayerState.REPLAYING, socket
        yield from socket.accept_upgrade(self._here.reader.take_rest())

    def _send_due(self, sending: request_handling.Ending) -> Commands:
        if (yield from sending):
            yield from self._end_replay()

    def _end_replay(self) -> Commands:
        here, exchange = self._here, self._here.incoming.exchange
        if exchange is not None:
            self._proxy.on_sent(exchange)
            self._proxy.report_exchange_end(exchange, exchange.replayed_status or 0)
        self._reset_for_request()
        paced, here.state = here.state is LayerState.REPLAYING, LayerState.READING
        if self._sender.crash_after and self._proxy.sockets is not None:
            self._proxy.sockets.reset_connection(self.context.client)
        if here.close_after:
            yield from self._close_client()
        elif paced:
            yield from self.serve_received_requests()

    def refuse(self, error: LLMProxyError, *, close: bool, told: bool = True) -> Commands:
        """Answer with an error in the provider's envelope, or close a begun answer; not `told`: uncounted."""
        incoming, proxy = self._here.incoming, self._proxy
        exchange = incoming.exchange
        method, asked = (incoming.head.method, incoming.head.headers) if incoming.head else ("POST", ())
        family, operation, mcp = incoming.family, "", None
        if exchange is not None:
            family, operation = exchange.family, exchange.operation
            if exchange.channel is Channel.MCP and exchange.request.body is not None:
                mcp = exchange.request.data
        status, data = proxy.build_refusal(
            error, family, close=close, method=method, operation=operation, grants=incoming.grants, asked=asked, mcp=mcp
        )
        proxy.released.pop(self.context.client.id, None)
        proxy.losses += isinstance(error, RecordingError)
        if exchange is not None:
            exchange.decision = Decision.REFUSE
            proxy.report_exchange_end(exchange, status)
        elif told:
            target = incoming.head.target if incoming.head else ""
            proxy.on_call(proxy.engine.accounting.record_sessionless_refusal(method, target, status, error))
        if incoming.answering:
            yield from self._close_client()
        else:
            yield from self.send_whole_answer(data, close=close, lingering=close)

    def _answer_exception(self) -> Commands:
        """Answer an exception of ours: 500 if nothing was sent yet; then close."""
        if self._here.state is LayerState.CLOSED:
            return
        if self._here.state is LayerState.LINGERING:  # it was said already, and nothing can be sent any more
            yield from self._close_client()
            return
        if self._here.incoming.exchange is None:
            self._take_over_front_request()
        if (exchange := self._here.incoming.exchange) is not None:
            exchange.note = "llmproxy failed; see the log"
        error = LLMProxyError("llmproxy: internal error while serving this request; nothing more was sent upstream.")
        try:
            yield from self.refuse(error, close=True)
        except Exception:
            log.exception("llmproxy could not even say that it failed")
            self._proxy.released.pop(self.context.client.id, None)
            yield from self._close_client()

    def send_whole_answer(self, data: bytes, *, close: bool, lingering: bool = False) -> Commands:
        """Send a complete answer and await the next request, or close; `lingering`: the client may still send."""
        here = self._here
        here.state = LayerState.READING
        self._reset_for_request()
        yield here.build_send_command(data)
        if lingering:
            here.state = LayerState.LINGERING
            linger = here.wake_after(LINGER)
            yield commands.CloseTcpConnection(self.context.client, half_close=True)
            yield linger
        elif close:
            yield from self._close_client()

    def await_next_request(self) -> Commands:
        self._here.state = LayerState.READING
        self._reset_for_request()
        yield from self.serve_received_requests()
