"""A proxy without a socket: what `mitm` asks of the engine, in its order, with an upstream that is a function.

with InProcess(store, "replay") as proxy:
    proxy.open(name="p", overrides={...})                    # the control API, as JSON
    proxy.ask("first", "/s/p/v1/chat/completions", body, upstream)
    proxy.control("GET", "calls?session=p")

Everything that knows an exchange's inside stands in this file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from mitmproxy import connection
from mitmproxy.options import Options
from mitmproxy.proxy import commands, events
from mitmproxy.proxy.context import Context
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, RejectConnection, Request, TextMessage

from llmproxy.core.control import endpoints as control
from llmproxy.core.control.endpoints import ControlApiContext, ControlRequest
from llmproxy.core.engine.engine import Engine
from llmproxy.core.mcp_answer_replay import McpAnswerPrerequisiteKind
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.sessions.exchange import EngineConfig, Exchange, RoutedRequestHead
from llmproxy.core.sessions.journal import CallDecisionJournalWriter
from llmproxy.core.traffic.interaction import Headers, Response
from llmproxy.core.traffic.response_plan import AnswerSendingPlan, ClientFramingTraits
from llmproxy.core.traffic.websocket_frames import SWITCHING
from llmproxy.core.ws_replay import FrameRecorder
from llmproxy.errors import LLMProxyError, MissError
from llmproxy.mitm.http1_parser import parse_head
from llmproxy.mitm.proxy_context import ProxyContext
from llmproxy.mitm.websockets import ReplayedWebSocket, WebSocketUpgradeMiss, redact_websocket_message
from llmproxy.protocol import CONTROL_PREFIX, KEY_HEADER, Channel, Decision, Mode

Json = dict[str, Any]
Upstream = Callable[[bytes], Response]
"""Answers the body that reaches it."""
Reply = Callable[[bytes], None]
"""Hears what a server of tools has said so far, and answers its question."""
NOW = 1_800_000_000.0
STEP = 10.0
"""Seconds from one request to the next."""
MICROSECONDS = 1_000_000


class Answer(NamedTuple):
    status: int
    """0: nothing came."""
    data: bytes
    """All of it: head, framing, body; of a WebSocket the messages that it heard."""
    body: bytes


class InProcess:
    """One engine with its session's client and its upstream; time goes on by `STEP` with each request, and its clock is ahead by `jump`."""

    def __init__(self, store: Path, mode: str, engine: type[Engine] = Engine, **config: Any) -> None:
        self.time, self.jump = NOW, 0.0
        self._journal = CallDecisionJournalWriter.open(Path("/dev/null/journal"), lambda: self.time)
        self.engine = engine(
            EngineConfig(mode=Mode[mode.upper()], store=store, **config),
            redactor=Redactor(),
            journal=self._journal,
            now=lambda: self.time + self.jump,
            clock=lambda: self.time - NOW,
        )
        self.proxy = ProxyContext(self.engine, lambda _: None)
        self._places: dict[tuple[object, ...], RoutedRequestHead] = {}
        self.labels: list[str] = []
        """Of the requests that found their session, in the order of their arrival."""
        self.sent: list[tuple[str, bytes]] = []
        """What reached an upstream, by label."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.engine.close()
        self._journal.close()

    def control(self, method: str, path: str, **body: object) -> tuple[int, Json]:
        said = json.dumps(body).encode() if body else b""
        asked = ControlRequest(method, CONTROL_PREFIX + path, (), said, loopback=True)
        status, data, _ = control.answer_control_request(self.engine, asked, ControlApiContext())
        return status, json.loads(data)

    def ask(
        self,
        label: str,
        target: str,
        body: bytes,
        upstream: Upstream,
        headers: Headers = (),
        reply: Reply = lambda _: None,
    ) -> Answer:
        self.time += STEP
        engine, client, which = self.engine, ClientFramingTraits("POST"), (target, headers)
        place = self._places.get(which)
        if place is None or not engine.dispatcher.is_still_valid(place):
            place = self._places[which] = engine.dispatcher.place_request("POST", target, None, headers)
        if (hit := engine.fast_path.find_answer(place, client, body)) is not None:
            self.labels.append(f"{label}'")
            self.proxy.report_hit(hit)
            return _read(hit.data)
        self.labels.append(label)
        exchange = engine.stages.begin_exchange(place)
        self.proxy.record_begin(exchange)
        engine.stages.identify_and_decide(exchange, body)
        match exchange.decision:
            case Decision.REPLAY:
                return self._replay(exchange, client, reply)
            case Decision.FAULT:
                return self._inject(exchange, client)
            case Decision.RECORD | Decision.PASS:
                return self._forward(exchange, upstream, client, label, reply)
        return self._refuse(exchange, exchange.error or LLMProxyError("refused"))

    def _replay(self, exchange: Exchange, client: ClientFramingTraits, reply: Reply) -> Answer:
        extra: Headers = ((KEY_HEADER, exchange.key or ""),)
        laid = self.engine.answering.plan_recorded(exchange, client, extra=extra)
        opened = self.engine.answering.plan_playback_head(exchange, client, extra=extra)
        status = exchange.replayed_status or 0
        if opened is None:
            answer = _join(laid)
        else:
            talk, plan = opened
            body = b"".join(talk.take_ready_parts(float)[0])
            while talk.turns and talk.turns[0].wait is not McpAnswerPrerequisiteKind.FOR_EVER:
                reply(body)
                if not (more := talk.take_ready_parts(float)[0]):
                    break
                body += b"".join(more)
            answer = Answer(status, plan.head + body, body)
        self.proxy.report_exchange_end(exchange, status)
        return answer

    def _inject(self, exchange: Exchange, client: ClientFramingTraits) -> Answer:
        answer = _join(self.engine.answering.plan_made_answer(exchange, client))
        self.proxy.report_exchange_end(exchange, exchange.replayed_status or 0)
        return answer

    def _refuse(self, exchange: Exchange, error: LLMProxyError) -> Answer:
        exchange.decision = Decision.REFUSE
        operation, mcp = exchange.operation, exchange.request.data if exchange.channel is Channel.MCP else None
        status, data = self.proxy.build_refusal(error, exchange.family, close=False, operation=operation, mcp=mcp)
        self.proxy.report_exchange_end(exchange, status)
        return _read(data)

    def _forward(
        self, exchange: Exchange, upstream: Upstream, client: ClientFramingTraits, label: str, reply: Reply
    ) -> Answer:
        withheld = exchange.answer.withheld
        sent = exchange.request.data
        self.sent.append((label, sent))
        made, begun = upstream(sent), self.time
        exchange.recording.on_head(10, made.status, made.reason, made.headers)
        for number, chunk in enumerate(made.chunks):
            exchange.recording.on_data(20 + number + round((self.time - begun) * MICROSECONDS), chunk.data)
            if not number:
                reply(chunk.data)
        writer = self.engine.writer
        keep = writer.store_answer if exchange.decision is Decision.RECORD else writer.read_usage
        usage = keep(exchange, proper=True)
        self.proxy.report_exchange_end(exchange, made.status, usage=usage)
        if withheld:
            return self._inject(exchange, client)
        return Answer(made.status, made.body, made.body)

    # --- WebSockets ------------------------------------------------------------------------------------------------

    def talk(self, label: str, target: str, says: list[str], upstream: Callable[[str], list[str]]) -> Answer:
        """Open a WebSocket, say these and close; `upstream` answers a message, and greets when it hears an empty one."""
        self.time += STEP
        client = WSConnection(ConnectionType.CLIENT)
        raw = client.send(Request(host="localhost", target=target))
        head = parse_head(raw)
        place = self.engine.dispatcher.place_request(head.method, target, None, head.headers)
        self.labels.append(label)
        exchange = self.engine.stages.begin_exchange(place)
        self.proxy.record_begin(exchange)
        self.engine.stages.identify_and_decide(exchange, b"")
        match exchange.decision:
            case Decision.REPLAY:
                return self._replay_socket(exchange, client, raw, says)
            case Decision.FAULT:
                return self._inject(exchange, ClientFramingTraits("GET"))
            case Decision.RECORD | Decision.PASS:
                return self._record_socket(exchange, label, says, upstream)
        error = exchange.error or LLMProxyError("refused")
        missed = WebSocketUpgradeMiss(error.message, hint=error.hint) if isinstance(error, MissError) else error
        return self._refuse(exchange, missed)

    def _record_socket(
        self, exchange: Exchange, label: str, says: list[str], upstream: Callable[[str], list[str]]
    ) -> Answer:
        exchange.recording.on_head(10, SWITCHING, "Switching Protocols", (("x-request-id", "r"),))
        recording = FrameRecorder(
            lambda data: redact_websocket_message(self.engine, exchange, data), *exchange.recording.timed_head
        )
        exchange.recording, at, heard = recording, 20, []
        for each in ("", *says):
            if each:
                self.sent.append((label, each.encode()))
                recording.record_message(at, each, client=True)
            for answer in upstream(each):
                at += 10
                recording.record_message(at, answer, client=False)
                heard.append(answer)
        recording.record_close(at + 10, 1000, "", client=True)
        writer = self.engine.writer
        keep = writer.store_answer if exchange.decision is Decision.RECORD else writer.read_usage
        self.proxy.report_exchange_end(exchange, SWITCHING, usage=keep(exchange, proper=True))
        return Answer(SWITCHING, "\n".join(heard).encode(), b"")

    def _replay_socket(self, exchange: Exchange, client: WSConnection, raw: bytes, says: list[str]) -> Answer:
        peer = connection.Client(peername=("127.0.0.1", 1), sockname=("127.0.0.1", 2), timestamp_start=0)
        socket = ReplayedWebSocket(self.proxy, Context(peer, Options()), exchange, parse_head(raw))
        heard: list[str] = []

        def take(made: Iterator[object]) -> None:
            """Send what the socket sends to the client, which answers a close."""
            for command in made:
                if not isinstance(command, commands.SendData):
                    continue
                client.receive_data(command.data)
                for event in client.events():
                    if isinstance(event, CloseConnection):
                        heard.append(f"closed {event.code} {event.reason or ''}")
                    elif isinstance(event, TextMessage):
                        heard.append(event.data)
                    elif isinstance(event, AcceptConnection | RejectConnection):
                        heard.append(type(event).__name__)

        take(socket.accept_upgrade(b""))
        for each in [TextMessage(data=say) for say in says] + [CloseConnection(1000)]:
            if heard[-1].startswith("closed"):
                break
            take(socket.handle_event(events.DataReceived(peer, client.send(each))))
        take(socket.handle_event(events.ConnectionClosed(peer)))
        return Answer(SWITCHING, "\n".join(heard).encode(), b"")


def _join(laid: AnswerSendingPlan) -> Answer:
    return _read(b"".join(data for _, data in laid.pieces))


def _read(data: bytes) -> Answer:
    """Take an answer apart; of a chunked body the framing goes."""
    head, _, body = data.partition(b"\r\n\r\n")
    if not head:
        return Answer(0, data, b"")
    if b"transfer-encoding: chunked" in head.lower():
        rest, body = body, b""
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            length = int(size or b"0", 16)
            body, rest = body + rest[:length], rest[length + 2 :]
    return Answer(int(head.split(b" ")[1]), data, body)
