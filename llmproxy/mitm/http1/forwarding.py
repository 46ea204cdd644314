"""Forwarding of requests to be recorded or passed through.

The request's exact bytes are fed to one persistent HTTP layer of mitmproxy's. The end of an answer is held back until
it is stored, which tells the client that its answer is complete; mitmproxy's error page is replaced by an error of
ours.
"""

from __future__ import annotations

import re
from collections import deque
from html import unescape

from mitmproxy.connection import Connection
from mitmproxy.proxy import commands, events, layers
from mitmproxy.proxy.layers.http import HTTPMode
from mitmproxy.proxy.layers.http._events import ResponseEndOfMessage

from llmproxy.core.secrets.redact import may_hold_redaction
from llmproxy.core.traffic.json_diff import clip
from llmproxy.core.traffic.websocket_frames import SWITCHING
from llmproxy.core.ws_replay import FrameRecorder
from llmproxy.errors import LLMProxyError, RefusedError
from llmproxy.mitm.http1.request_handling import ClientAnswerSenderProtocol, ClientConnectionState, Commands, LayerState
from llmproxy.protocol import Decision

LONGEST_MARK = 64
"""Maximum bytes of a placeholder that two pieces of a body may share."""
_TAGS = re.compile(rb"<[^>]*>")


class MitmproxyRejectedHeadError(RefusedError):
    """mitmproxy rejects a head that we accept; nothing was sent."""

    code = "llmproxy_not_passed_on"


class RequestForwarder:
    def __init__(self, here: ClientConnectionState, layer: ClientAnswerSenderProtocol) -> None:
        self._here, self._layer = here, layer
        self._forwarder: layers.HttpLayer | None = None
        self._held: deque[commands.ConnectionCommand] = deque()
        self._spent: Connection | None = None
        self.prepare_for_next()

    def prepare_for_next(self) -> None:
        self.uploading = False
        self._overflow = False
        self._kept = bytearray()
        """Body bytes since a possible placeholder: held back until the whole was checked."""
        self.withheld = False

    @property
    def has_switched(self) -> bool:
        """Whether a WebSocket is open: the client has got the 101 answer."""
        exchange = self._here.incoming.exchange
        status = exchange.recording.status if exchange else 0
        return self._here.is_forwarding and self._here.incoming.answering and status == SWITCHING

    def stream_request_upstream(self, raw: bytes | bytearray, *, overflow: bool = False) -> Commands:
        self._overflow = overflow
        yield from self.forward(raw, uploading=True)
        yield from self.forward_body()

    def forward(self, raw: bytes | bytearray, *, uploading: bool = False) -> Commands:
        """Release the exchange and forward a complete request; `uploading`: the first part of its body."""
        here, exchange = self._here, self._here.incoming.exchange
        if exchange is None:
            raise AssertionError("nothing to release")
        here.proxy.released[here.client.id] = exchange
        here.state, self.uploading, here.incoming.answering = LayerState.FORWARDING, uploading, False
        here.forwarded = True
        self.withheld = exchange.answer.withheld
        if self._forwarder is None:
            self._forwarder = layers.HttpLayer(here.context, HTTPMode.regular)
            yield from self._forwarder.handle_event(events.Start())
        yield from self.on_event(events.DataReceived(here.client, bytes(raw)))

    def forward_body(self) -> Commands:
        """Forward body bytes as they arrive; keep a copy for the key, up to the limit."""
        here, incoming = self._here, self._here.incoming
        most = here.proxy.engine.config.max_request
        raw, decoded, over = here.reader.take_received_body_part()
        if raw and not self._overflow and (self._kept or may_hold_redaction(incoming.body[-LONGEST_MARK:] + decoded)):
            self._kept += raw
            raw = b""
        if (exchange := incoming.exchange) is not None:
            if len(incoming.body) + len(decoded) <= most:
                incoming.body += decoded
            elif not self._overflow:
                self._overflow = True
                if self._kept:
                    raise MitmproxyRejectedHeadError(
                        f"llmproxy: a body over {most} bytes seems to hold a placeholder of a recording."
                    )
                exchange.decision = Decision.PASS
                exchange.note = f"body over {most} bytes: not recorded"
            if over:
                self.uploading = False
                if not self._overflow:
                    decided = yield from here.wait_for_decision(bytes(incoming.body))
                    if decided.decision is Decision.REFUSE and decided.error is not None:
                        raise decided.error
        if not over:
            yield from here.start_time_limit(here.proxy.body_patience)
        if over and self._kept:
            raw, self._kept = bytes(self._kept) + raw, bytearray()
        if raw and here.is_forwarding:
            yield from self.on_event(events.DataReceived(here.client, raw))
        elif over:
            yield from self._end_forwarding()

    def on_event(self, event: events.Event) -> Commands:
        if self._forwarder is None:
            raise AssertionError("nothing to hand on to")
        try:
            yield from self._filter_commands_to_client(self._forwarder.handle_event(event))
        except NotImplementedError:  # its answer to trailers of the upstream's, when the whole body has passed
            yield from self._filter_commands_to_client(self._end_dropping_trailers(self._forwarder))
        exchange = self._here.incoming.exchange
        if self._held and exchange is not None and not exchange.recording.is_whole:
            yield from self._send_commands_held_for_store()
        yield from self._end_forwarding()

    def _end_dropping_trailers(self, forwarder: layers.HttpLayer) -> Commands:
        """End the answer at the end of its body; that upstream connection is not reusable."""
        for number, stream in list(forwarder.streams.items()):
            self._spent = stream.flow.server_conn
            yield from forwarder.event_to_child(stream, ResponseEndOfMessage(number))

    def _filter_commands_to_client(self, made: Commands) -> Commands:
        here = self._here
        for command in made:
            ours = isinstance(command, commands.ConnectionCommand) and command.connection is here.client
            sent = here.incoming.exchange if isinstance(command, commands.SendData) else None
            if sent is not None and isinstance(sent.recording, FrameRecorder) and sent.recording.is_breaking():
                continue  # one side was lost without a close frame: mitmproxy would tell the other one 1000
            if ours and here.is_forwarding:
                if (failed := self._find_failure_before_answer(command)) is not None:
                    yield from self._layer.refuse(failed, close=True)
                    continue
                if self.withheld and isinstance(command, commands.SendData | commands.CloseConnection):
                    here.close_after = here.close_after or isinstance(command, commands.CloseConnection)
                    continue
                exchange = here.incoming.exchange
                if isinstance(command, commands.SendData):
                    here.incoming.answering = True
                    if exchange is not None and exchange.recording.next_piece_may_be_last:
                        self._held.append(command)  # with a length its last bytes are its end: not before it is stored
                        continue
                elif isinstance(command, commands.CloseConnection):
                    if self.has_switched and exchange is not None and exchange.recording.is_whole:
                        self._held.append(command)  # the end of a WebSocket: not before it is stored
                        continue
                    yield from self._send_commands_held_for_store()
                    here.state = LayerState.CLOSED
            elif ours and here.state in (LayerState.CLOSED, LayerState.LINGERING):
                continue
            yield command

    def _send_commands_held_for_store(self) -> Commands:
        while self._held:
            yield self._held.popleft()

    def _find_failure_before_answer(self, command: commands.Command) -> LLMProxyError | None:
        """Return why the request failed, if the client has not got any bytes yet."""
        if (exchange := self._here.incoming.exchange) is None or self._here.incoming.answering:
            return None
        if exchange.error is None and isinstance(command, commands.SendData) and not exchange.recording.has_head:
            # No upstream has answered: this is mitmproxy's own page about a head that it does not take.
            said = unescape(_TAGS.sub(b" ", command.data.partition(b"<body>")[2]).decode("latin-1"))
            failed = MitmproxyRejectedHeadError(
                f"llmproxy: this request cannot be passed on: {clip(' '.join(said.split()), 200)}"
            )
            failed.status = 400 if command.data.startswith(b"HTTP/1.1 4") else 502
            exchange.error = failed
        return exchange.error

    def _end_forwarding(self) -> Commands:
        here = self._here
        if self.has_switched:
            yield from self._pass_early_websocket_bytes()
            return
        if not here.is_forwarding or self.uploading or self._forwarder is None or self._forwarder.streams:
            return
        yield from self._send_commands_held_for_store()
        if self._spent is not None:
            yield commands.CloseConnection(self._spent)
            self._spent = None
        exchange = here.proxy.released.pop(here.client.id, None)
        if exchange is not None and not exchange.progress.finished:
            if exchange.recording.has_head:
                here.proxy.report_unrecorded(exchange, "its end was not noticed; see the log")
            else:
                here.proxy.report_abandoned(exchange)
        if self.withheld and exchange is not None and here.incoming.head is not None:
            yield from self._layer.send_made_answer()
            return
        yield from self._layer.await_next_request()

    def _pass_early_websocket_bytes(self) -> Commands:
        """Pass on bytes sent while the WebSocket opened; its end is passed on once it is stored."""
        here = self._here
        recording = here.incoming.exchange.recording if here.incoming.exchange else None
        if isinstance(recording, FrameRecorder) and recording.is_stored:
            here.state, here.incoming.exchange = LayerState.CLOSED, None
            yield from self._send_commands_held_for_store()
        elif here.reader.waiting_byte_count:
            yield from self.on_event(events.DataReceived(here.client, here.reader.take_rest()))
