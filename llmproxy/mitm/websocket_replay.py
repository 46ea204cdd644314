"""Replay of a recorded WebSocket: the proxy acts as the server, and nothing goes upstream.

`core.ws_replay` decides which messages to send, and whether the client's match; this module sends them at their times.
A message that was never recorded closes the socket with 4404 and a reason; an exception of ours with 1011.
"""

from __future__ import annotations

import logging
from collections import deque

from mitmproxy.proxy import commands, events, layer
from mitmproxy.proxy.context import Context
from wsproto import ConnectionType, WSConnection
from wsproto.connection import ConnectionState
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Event, Ping, Request, TextMessage
from wsproto.extensions import PerMessageDeflate
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import RemoteProtocolError

from llmproxy.core.engine.engine import Engine
from llmproxy.core.engine.request_stages import build_initial_miss_context
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.sessions.journal import JournaledMiss
from llmproxy.core.traffic.interaction import Response, header
from llmproxy.core.traffic.response_plan import NOT_REPLAYED
from llmproxy.core.traffic.websocket_frames import CUT, SWITCHING, Frame, parse_recorded_frames
from llmproxy.core.ws_replay import (
    LONGEST_REASON,
    MISMATCH,
    Due,
    FrameCanon,
    FrameMismatch,
    FramePlayer,
    clip_reason,
    explain,
)
from llmproxy.errors import MissError
from llmproxy.mitm.http1_parser import Head
from llmproxy.mitm.proxy_context import ProxyContext
from llmproxy.mitm.websocket_recorder import join_message_parts, redact_message, split_into_frame_events
from llmproxy.protocol import CACHE_HEADER, KEY_HEADER, OUR_HEADERS_PREFIX, Decision

log = logging.getLogger(__name__)

MICROSECONDS = 1_000_000
GRACE = 5.0
"""Seconds that a client has to answer our close frame, before the connection ends (RFC 6455 section 7.1.1)."""
NO_CODE, TOO_BIG, FAILED = 1005, 1009, 1011
"""Close codes of RFC 6455 section 7.4.1."""
_NOT_SENT = NOT_REPLAYED | {"content-type"}
Commands = layer.CommandGenerator[None]


class ReplayedWebSocket:
    """One replayed WebSocket. Call `accept_upgrade`, then `handle_event` for each event, until `is_closed`."""

    def __init__(self, proxy: ProxyContext, context: Context, exchange: Exchange, head: Head) -> None:
        """Prepare the chosen recording; raises for a damaged recording, and for an invalid handshake."""
        store = proxy.engine.store
        if exchange.slot is None or store is None:
            raise ValueError("a Socket is for exchanges decided REPLAY")
        self._proxy, self._exchange, self._head, self._client = proxy, exchange, head, context.client
        self._response = store.response(exchange.slot.id)
        self._player = self._make_player(self._response)
        self._ws = WSConnection(ConnectionType.SERVER)
        self._hello = self._build_upgrade_answer()
        exchange.kept.interaction = exchange.slot.id
        self._due: deque[tuple[float, Frame]] = deque()
        self._wakeup: commands.RequestWakeup | None = None
        self._parts: list[str | bytes] = []
        self._size = 0
        self._ending: float | None = None
        self._deaf = False
        self.is_closed = False

    @property
    def _engine(self) -> Engine:
        return self._proxy.engine

    def _make_player(self, response: Response) -> FramePlayer:
        engine, exchange = self._engine, self._exchange
        session, store, route = exchange.session, engine.store, exchange.route

        def canon() -> FrameCanon:
            return FrameCanon(
                exchange.family,
                route.operation,
                engine.config.rules,
                lambda name: store.find_id_origin(session.cassette, session.sample, name) if store else None,
            )

        return FramePlayer(parse_recorded_frames(response.body), canon)

    # --- events ----------------------------------------------------------------------------------------------------

    def accept_upgrade(self, more: bytes) -> Commands:
        """Accept the upgrade and send the server's first messages; `more` are the bytes after the head."""
        yield commands.SendData(self._client, self._hello)
        try:
            if self._player.server_speaks_first:
                self._mark_recording_served()
            self._queue_due(self._player.take_server_frames(self._response.head_offset))
            yield from self._send_due()
            yield from self.receive_bytes(more)
        except Exception as why:  # noqa: BLE001 - said there
            yield from self._close_after_exception(why)

    def _build_upgrade_answer(self) -> bytes:
        self._ws.receive_data(self._head.raw)
        asked = next(iter(self._ws.events()))
        if not isinstance(asked, Request):
            raise TypeError("no upgrade")
        chosen = header(self._response.headers, "sec-websocket-protocol")
        fields = [
            (name.lower(), value)
            for name, value in self._response.headers
            if name.lower() not in _NOT_SENT and not name.lower().startswith(("sec-websocket-", OUR_HEADERS_PREFIX))
        ]
        fields += [(CACHE_HEADER, "hit"), (KEY_HEADER, self._exchange.key or "")]
        answer = AcceptConnection(
            subprotocol=chosen if chosen in asked.subprotocols else None,
            extensions=[PerMessageDeflate()],
            extra_headers=[(name.encode(), value.encode("latin-1", "replace")) for name, value in fields],
        )
        return self._ws.send(answer)

    def handle_event(self, event: events.Event) -> Commands:
        """Handle an event of the client's connection; raises nothing."""
        if self.is_closed:
            return
        try:
            if isinstance(event, events.DataReceived):
                yield from self.receive_bytes(event.data)
            elif isinstance(event, events.Wakeup) and event.command is self._wakeup:
                self._wakeup = None
                if self._ending is not None and self._engine.clock() >= self._ending:
                    yield from self._finish_exchange_and_disconnect()
                else:
                    yield from self._send_due()
            elif isinstance(event, events.ConnectionClosed):
                self._note_early_client_leave()
                yield from self._finish_exchange_and_disconnect()
        except Exception as why:  # noqa: BLE001 - said there
            yield from self._close_after_exception(why)

    def receive_bytes(self, data: bytes) -> Commands:
        try:
            self._ws.receive_data(data)
            for said in self._ws.events():
                yield from self._handle_client_event(said)
        except RemoteProtocolError as error:
            yield from self._close_with_reason(1002, str(error))

    def _handle_client_event(self, said: Event) -> Commands:
        if self.is_closed:
            return
        if isinstance(said, (TextMessage, BytesMessage)):
            yield from self._on_message_fragment(said)
        elif isinstance(said, Ping) and self._ws.state is ConnectionState.OPEN:
            yield commands.SendData(self._client, self._ws.send(said.response()))
        elif isinstance(said, CloseConnection):
            if self._ws.state is ConnectionState.REMOTE_CLOSING:
                yield commands.SendData(self._client, self._ws.send(said.response()))
            elif self._ws.state is ConnectionState.OPEN:  # wsproto's word for bytes that are no frame
                end = CloseConnection(said.code, clip_reason(said.reason or "", LONGEST_REASON))
                yield commands.SendData(self._client, self._ws.send(end))
                self._exchange.note = f"the client broke the protocol: {said.reason}"
            self._note_early_client_leave()
            yield from self._finish_exchange_and_disconnect()

    def _on_message_fragment(self, said: TextMessage | BytesMessage) -> Commands:
        if self._deaf:
            return
        self._parts.append(said.data if isinstance(said.data, str) else bytes(said.data))
        self._size += len(said.data)
        limit = self._engine.config.max_request
        if self._size > limit:
            why = f"llmproxy: a message is over {limit} bytes (--max-request)"
            yield from self._close_with_reason(TOO_BIG, why)
        elif said.message_finished:
            whole = join_message_parts(self._parts)
            self._parts, self._size = [], 0
            yield from self._on_message(whole)

    def _on_message(self, data: str | bytes) -> Commands:
        if any(frame.close is not None for _, frame in self._due):
            return  # the server had hung up before it could hear this
        engine, exchange = self._engine, self._exchange
        plain = redact_message(engine, exchange, data)
        said = self._player.on_message(plain)
        first = isinstance(said, FrameMismatch) and said.number == 1 and not self._player.server_speaks_first
        if first and self._take_other_recording(plain):
            said = self._player.on_message(plain)
        if isinstance(said, FrameMismatch):
            yield from self._close_missed(said)
        else:
            self._mark_recording_served()
            self._queue_due(said)
            yield from self._send_due()

    def _mark_recording_served(self) -> None:
        """Count the recording as used once the client has sent a message: until then another socket may need it."""
        if self._exchange.slot is not None:
            self._exchange.session.served.add(self._exchange.slot.id)

    def _take_other_recording(self, first: str | bytes) -> bool:
        """Switch to an unused recording that begins with this message: sockets may open in any order."""
        engine, exchange = self._engine, self._exchange
        session, store = exchange.session, engine.store
        if store is None or exchange.slot is None:
            return False
        for slot in store.find_keyed(session.cassette, session.sample, exchange.party, exchange.party_and_key[1]):
            if slot.status != SWITCHING or slot.id in session.served:
                continue
            response = store.response(slot.id)
            player = self._make_player(response)
            if not player.server_speaks_first and not isinstance(player.on_message(first), FrameMismatch):
                exchange.slot, exchange.kept.interaction = slot, slot.id
                self._player, self._response = self._make_player(response), response
                self._player.take_server_frames(response.head_offset)
                return True
        return False

    # --- what we say -----------------------------------------------------------------------------------------------

    def _queue_due(self, due: list[Due]) -> None:
        speed = self._exchange.session.settings.speed
        now = self._engine.clock()
        for after, frame in due:
            at = now + after / MICROSECONDS / speed if speed else now
            self._due.append((max(at, self._due[-1][0]) if self._due else at, frame))

    def _send_due(self) -> Commands:
        now, out = self._engine.clock(), b""
        while self._due and self._due[0][0] <= now and self._ws.state is ConnectionState.OPEN:
            _, frame = self._due.popleft()
            if frame.close == CUT:
                if out:
                    yield commands.SendData(self._client, out)
                yield from self._finish_exchange_and_disconnect()
                return
            if frame.close is not None:
                if frame.close == NO_CODE:
                    end = CloseConnection(CloseReason.NO_STATUS_RCVD)
                else:
                    end = CloseConnection(frame.close, str(frame.data) or None)
                yield commands.SendData(self._client, out + self._ws.send(end))
                yield from self._await_client_close_frame()
                return
            for piece in split_into_frame_events(frame.data):
                out += self._ws.send(piece)
        if out:
            yield commands.SendData(self._client, out)
        if self._due and self._wakeup is None:
            self._wakeup = commands.RequestWakeup(max(0.0, self._due[0][0] - now))
            yield self._wakeup

    def _close_missed(self, mismatch: FrameMismatch) -> Commands:
        engine, exchange = self._engine, self._exchange
        session = exchange.session
        records = session.policy.on_miss is Decision.RECORD
        context = build_initial_miss_context(exchange, engine.config)
        miss = explain(context, exchange.kept.interaction or 0, mismatch, records=records)
        exchange.error = error = MissError(engine.redactor.text(miss.text))
        error.nearest = exchange.kept.interaction
        exchange.decision = Decision.REFUSE
        exchange.note = f"message {mismatch.number} was not recorded"
        if records:
            session.keep_recording_key(
                exchange.party_and_key
            )  # this conversation has changed: the next one is recorded
        data = {**miss.data, "text": error.message}
        engine.journal.add_miss(JournaledMiss(engine.now(), error.message, data))
        yield from self._close_with_reason(MISMATCH, engine.redactor.text(miss.reason))

    def _close_with_reason(self, code: int, reason: str) -> Commands:
        """Begin the closing handshake; queued messages are dropped."""
        self._due.clear()
        if self._ws.state is ConnectionState.OPEN:
            end = CloseConnection(code, clip_reason(reason, LONGEST_REASON))
            yield commands.SendData(self._client, self._ws.send(end))
            yield from self._await_client_close_frame()
        else:
            yield from self._finish_exchange_and_disconnect()

    def _await_client_close_frame(self) -> Commands:
        self._deaf = True
        self._ending = self._engine.clock() + GRACE
        self._wakeup = commands.RequestWakeup(GRACE)
        self._finish_exchange()
        yield self._wakeup

    def _close_after_exception(self, why: Exception) -> Commands:
        log.error("llmproxy failed while replaying a WebSocket", exc_info=why)
        self._exchange.note = "llmproxy failed; see the log"
        try:
            text = "llmproxy: internal error while replaying; nothing was sent upstream"
            yield from self._close_with_reason(FAILED, text)
        except Exception:
            log.exception("llmproxy could not even say that it failed")
            yield from self._finish_exchange_and_disconnect()

    def _finish_exchange_and_disconnect(self) -> Commands:
        self.is_closed = True
        self._due.clear()
        self._finish_exchange()
        yield commands.CloseConnection(self._client)

    def _note_early_client_leave(self) -> None:
        if not self._deaf and not self._exchange.note and (self._due or not self._player.is_over):
            heard, count = self._player.heard, self._player.recorded_client_message_count
            self._exchange.note = f"client left after {heard} of {count} messages"

    def _finish_exchange(self) -> None:
        self._mark_recording_served()
        self._proxy.report_exchange_end(self._exchange, SWITCHING)
