"""WebSockets: checks of upgrades, recording of messages relayed by mitmproxy, and replay with the proxy as the server.

mitmproxy relays each message at once and notifies us; the layer holds the end back until the conversation is stored.
`core.ws_replay` decides what a replay sends, and whether the client's messages match; this module sends at the times. A
message that was never recorded closes the socket with 4404 and a reason; an exception of ours with 1011.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from itertools import pairwise

from mitmproxy import http
from mitmproxy.proxy import commands, events, layer
from mitmproxy.proxy.context import Context
from wsproto import ConnectionType, WSConnection, events as ws_events
from wsproto.connection import ConnectionState
from wsproto.extensions import PerMessageDeflate
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import RemoteProtocolError

from llmproxy.core import ws_replay
from llmproxy.core.engine.engine import Engine
from llmproxy.core.engine.request_stages import build_initial_miss_context
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.sessions.journal import JournaledMiss
from llmproxy.core.traffic.interaction import Request, Response, header
from llmproxy.core.traffic.response_plan import NOT_REPLAYED
from llmproxy.core.traffic.websocket_frames import CUT, SWITCHING, WebSocketFrame, parse_recorded_websocket_frames
from llmproxy.errors import MissError, RefusedError
from llmproxy.mitm.http1_parser import Head
from llmproxy.mitm.proxy_context import ProxyContext
from llmproxy.protocol import CACHE_HEADER, KEY_HEADER, OUR_HEADERS_PREFIX, Decision

log = logging.getLogger(__name__)

PIECE = 1 << 20
"""Maximum bytes of a frame that we send; longer messages are fragmented, for clients with a limit on frames."""
_KEY_MARK = "openai-insecure-api-key."


class WebSocketUpgradeRequiredError(RefusedError):
    """A refused upgrade: at 426 clients such as Codex use HTTP at once; others cost seconds of reconnects."""

    code = "llmproxy_websocket"
    status = 426


class WebSocketUpgradeMiss(MissError):
    status = 426


def raise_if_invalid_upgrade_request(head: Head) -> None:
    """Check a WebSocket upgrade. Raises RefusedError: it is invalid."""
    version, key = header(head.headers, "sec-websocket-version"), header(head.headers, "sec-websocket-key")
    if head.method != "GET" or head.http10 or head.length != 0 or version != "13" or not key:
        msg = f"llmproxy: this is no upgrade to a WebSocket (RFC 6455 section 4.1): {head.method}, version {version}."
        raise RefusedError(msg)


def find_api_key_in_subprotocols(head: Head) -> str | None:
    """Return the API key that a browser client puts into the subprotocols, as it cannot set headers."""
    names = map(str.strip, (header(head.headers, "sec-websocket-protocol") or "").split(","))
    return next((name.removeprefix(_KEY_MARK) for name in names if name.startswith(_KEY_MARK)), None)


def redact_websocket_message(engine: Engine, exchange: Exchange, data: str | bytes) -> str | bytes:
    """Redact a client's message like a request's body: its own credential becomes the placeholder for any caller's."""
    plain, route = data.encode() if isinstance(data, str) else data, exchange.route
    request = Request("POST", route.target, exchange.request.headers, plain)
    body = engine.redactor.request(request, route.provider.credentials).body
    return body.decode() if isinstance(data, str) else body


def split_websocket_message(data: str | bytes) -> list[ws_events.Event]:
    """Split a message into frames of at most PIECE characters or bytes."""
    marks = [*range(0, len(data), PIECE), len(data)] if data else [0, 0]
    if isinstance(data, str):
        return [ws_events.TextMessage(data=data[a:b], message_finished=b == len(data)) for a, b in pairwise(marks)]
    return [ws_events.BytesMessage(data=data[a:b], message_finished=b == len(data)) for a, b in pairwise(marks)]


def join_websocket_message_parts(parts: list[str | bytes]) -> str | bytes:
    texts = [part for part in parts if isinstance(part, str)]
    return "".join(texts) if texts else b"".join(bytes(part) for part in parts if not isinstance(part, str))


_BAD_WINDOW = re.compile(r"_max_window_bits[^;=]*=(?!\s*(?:9|1[0-5])\s*(?:;|$))")
"""A window that wsproto cannot parse (a quoted one), or zlib cannot have (of 8 bits)."""


def is_websocket_upgrade(request: http.Request) -> bool:
    named = {token.strip().lower() for token in request.headers.get("connection", "").split(",")}
    return "upgrade" in named and bool(request.headers.get("upgrade", "").lower() == "websocket")


def limit_offered_extensions(request: http.Request) -> None:
    """Offer upstream only extensions that mitmproxy can decode: permessage-deflate, with a usable window."""
    offers = [each.strip() for each in request.headers.pop("sec-websocket-extensions", "").split(",")]
    deflating = (each for each in offers if each.partition(";")[0].strip().lower() == "permessage-deflate")
    if kept := [each for each in deflating if not _BAD_WINDOW.search(each)]:
        request.headers["sec-websocket-extensions"] = ", ".join(kept)


CARRIED = "llmproxy"
"""Key of the exchange in a flow's metadata."""


class WebSocketHooks:
    """The part of `RecordingAddon` for WebSockets, and helpers shared with its other part."""

    def __init__(self, proxy: ProxyContext) -> None:
        self._proxy = proxy

    def _find_exchange(self, flow: http.HTTPFlow) -> Exchange | None:
        """Return the exchange of this flow: its release may be withdrawn (the client left) before the last hook."""
        exchange: Exchange | None = flow.metadata.get(CARRIED)
        return exchange

    def _get_offset(self, exchange: Exchange) -> int:
        since = exchange.progress.released or exchange.progress.arrived
        return round((self._proxy.engine.clock() - since) * 1_000_000)

    async def _store_answer(self, exchange: Exchange, *, proper: bool) -> None:
        try:
            await self._proxy.store_answer_and_wait(exchange, proper=proper)
        except Exception as why:  # it would only be logged, and the answer go unrecorded and unmentioned
            log.exception("llmproxy failed in a hook; an answer is lost")
            self._proxy.report_unrecorded(exchange, f"{type(why).__name__}: {why}")

    def _on_switch(self, flow: http.HTTPFlow, exchange: Exchange) -> None:
        engine, socket = self._proxy.engine, flow.websocket
        if socket is None:
            flow.kill()  # type: ignore[no-untyped-call]
            return
        recording = ws_replay.FrameRecorder(
            lambda data: redact_websocket_message(engine, exchange, data), *exchange.recording.timed_head
        )
        recording.is_closing = lambda: socket.close_code is not None
        recording.is_breaking = lambda: socket.close_code == CUT
        exchange.recording = recording

    def websocket_message(self, flow: http.HTTPFlow) -> None:
        if (exchange := self._find_exchange(flow)) is None or flow.websocket is None:
            return
        try:
            message = flow.websocket.messages[-1]
            flow.websocket.messages.clear()  # mitmproxy would keep all of them, hours of audio
            if isinstance(exchange.recording, ws_replay.FrameRecorder):
                data = message.text if message.is_text else message.content
                exchange.recording.record_message(self._get_offset(exchange), data, client=message.from_client)
        except Exception:  # the message is the client's, come what may
            log.exception("a message of a WebSocket could not be noted")
            exchange.recording.damaged = True

    async def websocket_end(self, flow: http.HTTPFlow) -> None:
        exchange, socket = self._find_exchange(flow), flow.websocket
        recording = None if exchange is None else exchange.recording
        if exchange is None or socket is None or not isinstance(recording, ws_replay.FrameRecorder):
            return
        try:
            code, reason = socket.close_code or 0, socket.close_reason or ""
            recording.record_close(self._get_offset(exchange), int(code), reason, client=bool(socket.closed_by_client))
            await self._store_answer(exchange, proper=True)
        except Exception as why:
            log.exception("the end of a WebSocket could not be noted")
            self._proxy.report_unrecorded(exchange, f"{type(why).__name__}: {why}")
        finally:
            recording.is_stored = True


def is_unrequested_protocol_switch(request: http.Request, response: http.Response) -> bool:
    upgrade = response.headers.get("upgrade", "").lower()
    return response.status_code == SWITCHING and not (is_websocket_upgrade(request) and upgrade == "websocket")


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
        self._due: deque[tuple[float, WebSocketFrame]] = deque()
        self._wakeup: commands.RequestWakeup | None = None
        self._parts: list[str | bytes] = []
        self._size = 0
        self._ending: float | None = None
        self.is_closed = False

    @property
    def _engine(self) -> Engine:
        return self._proxy.engine

    def _make_player(self, response: Response) -> ws_replay.FramePlayer:
        engine, exchange = self._engine, self._exchange
        session, store, route = exchange.session, engine.store, exchange.route

        def canon() -> ws_replay.FrameCanonicalizer:
            return ws_replay.FrameCanonicalizer(
                exchange.family,
                route.operation,
                engine.config.rules,
                lambda name: store.find_id_origin(session.cassette, session.sample, name) if store else None,
            )

        return ws_replay.FramePlayer(parse_recorded_websocket_frames(response.body), canon)

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
        if not isinstance(asked := next(iter(self._ws.events())), ws_events.Request):
            raise TypeError("no upgrade")
        chosen = header(self._response.headers, "sec-websocket-protocol")
        fields = [
            (name.lower(), value)
            for name, value in self._response.headers
            if name.lower() not in _NOT_SENT and not name.lower().startswith(("sec-websocket-", OUR_HEADERS_PREFIX))
        ]
        fields += [(CACHE_HEADER, "hit"), (KEY_HEADER, self._exchange.key or "")]
        answer = ws_events.AcceptConnection(
            subprotocol=chosen if chosen in asked.subprotocols else None,
            extensions=[] if any(_BAD_WINDOW.search(str(each)) for each in asked.extensions) else [PerMessageDeflate()],
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

    def _handle_client_event(self, said: ws_events.Event) -> Commands:
        if self.is_closed:
            return
        if isinstance(said, (ws_events.TextMessage, ws_events.BytesMessage)):
            yield from self._on_message_fragment(said)
        elif isinstance(said, ws_events.Ping) and self._ws.state is ConnectionState.OPEN:
            yield commands.SendData(self._client, self._ws.send(said.response()))
        elif isinstance(said, ws_events.CloseConnection):
            if self._ws.state is ConnectionState.REMOTE_CLOSING:
                yield commands.SendData(self._client, self._ws.send(said.response()))
            elif self._ws.state is ConnectionState.OPEN:  # wsproto's word for bytes that are no frame
                end = ws_events.CloseConnection(
                    said.code, ws_replay.clip_close_reason(said.reason or "", ws_replay.LONGEST_REASON)
                )
                yield commands.SendData(self._client, self._ws.send(end))
                self._exchange.note = f"the client broke the protocol: {said.reason}"
            self._note_early_client_leave()
            yield from self._finish_exchange_and_disconnect()

    def _on_message_fragment(self, said: ws_events.TextMessage | ws_events.BytesMessage) -> Commands:
        if self._ending is not None:
            return
        self._parts.append(said.data if isinstance(said.data, str) else bytes(said.data))
        self._size += len(said.data)
        limit = self._engine.config.max_request
        if self._size > limit:
            yield from self._close_with_reason(TOO_BIG, f"llmproxy: a message is over {limit} bytes (--max-request)")
        elif said.message_finished:
            whole = join_websocket_message_parts(self._parts)
            self._parts, self._size = [], 0
            yield from self._on_message(whole)

    def _on_message(self, data: str | bytes) -> Commands:
        if any(frame.close is not None for _, frame in self._due):
            return  # the server had hung up before it could hear this
        engine, exchange = self._engine, self._exchange
        plain = redact_websocket_message(engine, exchange, data)
        said = self._player.on_message(plain)
        first = (
            isinstance(said, ws_replay.WebSocketMismatch) and said.number == 1 and not self._player.server_speaks_first
        )
        if first and self._take_other_recording(plain):
            said = self._player.on_message(plain)
        if isinstance(said, ws_replay.WebSocketMismatch):
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
            if not player.server_speaks_first and not isinstance(player.on_message(first), ws_replay.WebSocketMismatch):
                exchange.slot, exchange.kept.interaction = slot, slot.id
                self._player, self._response = self._make_player(response), response
                self._player.take_server_frames(response.head_offset)
                return True
        return False

    def _queue_due(self, due: list[ws_replay.Due]) -> None:
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
                    end = ws_events.CloseConnection(CloseReason.NO_STATUS_RCVD)
                else:
                    end = ws_events.CloseConnection(frame.close, str(frame.data) or None)
                yield commands.SendData(self._client, out + self._ws.send(end))
                yield from self._await_client_close_frame()
                return
            for piece in split_websocket_message(frame.data):
                out += self._ws.send(piece)
        if out:
            yield commands.SendData(self._client, out)
        if self._due and self._wakeup is None:
            self._wakeup = commands.RequestWakeup(max(0.0, self._due[0][0] - now))
            yield self._wakeup

    def _close_missed(self, mismatch: ws_replay.WebSocketMismatch) -> Commands:
        engine, exchange = self._engine, self._exchange
        session = exchange.session
        records = session.policy.on_miss is Decision.RECORD
        context = build_initial_miss_context(exchange, engine.config)
        miss = ws_replay.explain_frame_miss(context, exchange.kept.interaction or 0, mismatch, records=records)
        exchange.error = error = MissError(engine.redactor.text(miss.text))
        error.nearest = exchange.kept.interaction
        exchange.decision = Decision.REFUSE
        exchange.note = f"message {mismatch.number} was not recorded"
        if records:
            session.keep_recording_key(exchange.party_and_key)  # it has changed: the next one is recorded
        engine.journal.add_miss(JournaledMiss(engine.now(), error.message, {**miss.data, "text": error.message}))
        yield from self._close_with_reason(ws_replay.MISMATCH, engine.redactor.text(miss.reason))

    def _close_with_reason(self, code: int, reason: str) -> Commands:
        self._due.clear()
        if self._ws.state is ConnectionState.OPEN:
            end = ws_events.CloseConnection(code, ws_replay.clip_close_reason(reason, ws_replay.LONGEST_REASON))
            yield commands.SendData(self._client, self._ws.send(end))
            yield from self._await_client_close_frame()
        else:
            yield from self._finish_exchange_and_disconnect()

    def _await_client_close_frame(self) -> Commands:
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
        if self._ending is None and not self._exchange.note and (self._due or not self._player.is_over):
            heard, count = self._player.heard, self._player.recorded_client_message_count
            self._exchange.note = f"client left after {heard} of {count} messages"

    def _finish_exchange(self) -> None:
        self._mark_recording_served()
        self._proxy.report_exchange_end(self._exchange, SWITCHING)
