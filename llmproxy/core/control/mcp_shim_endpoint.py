"""The proxy's side of a tool server over stdio: lines of its client in, actions for each out.

The shim between client and server (`client.tools.mcp_shim`) has no store and decides nothing: it sends each line of the
client and obeys the `McpStdioLineOutcome`. A message is stored as a request to ``http://stdio.invalid/``, its answers
as lines; unsolicited messages of a server are stored as one stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol
from urllib.parse import quote

from llmproxy.core.control.parsing import BadControlRequest, Json
from llmproxy.core.engine.engine import Engine
from llmproxy.core.mcp_answer_replay import MICROSECONDS, McpAnswerPrerequisiteKind, build_mcp_refusal_response
from llmproxy.core.sessions.call_interceptor import ClientDrivenAnswerPlayback
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.traffic.interaction import Headers
from llmproxy.errors import LLMProxyError
from llmproxy.protocol import STDIO_PREFIX, Decision, McpStdioLineOutcome

LINES = "application/x-ndjson"
_ASKED: Headers = (("content-type", "application/json"), ("accept", "application/json, text/event-stream"))
_STREAM: Headers = (("accept", "text/event-stream"), ("mcp-protocol-version", "stdio"))
UNKNOWN = (
    "llmproxy: this proxy was started after the server of tools was; what was said before that it does not know. "
    "Start the server's client again."
)
MOST_OPEN = 10_000
"""Maximum pending messages of one client."""


class StdioExchangeRecorder(Protocol):
    def record_begin(self, exchange: Exchange) -> None: ...

    def report_exchange_end(self, exchange: Exchange, status: int) -> None: ...

    def store_later(self, exchange: Exchange, *, proper: bool = True) -> None:
        """Store the answer of an exchange, soon, and report it; one that is not `proper` is incomplete."""


@dataclass(slots=True)
class _PendingPlayback:
    exchange: Exchange
    playback: ClientDrivenAnswerPlayback | None
    body: bytes


@dataclass(slots=True)
class ProxySideStdioSession:
    engine: Engine
    proxy: StdioExchangeRecorder
    session: str
    server: str
    held: str = ""
    """Connection that the client keeps open and ends with; empty: it may leave without notice."""
    _open: dict[int, Exchange] = field(default_factory=dict)
    _begun: dict[int, float] = field(default_factory=dict)
    """Unix seconds of each forwarded message: an unsolicited message of the server follows one of them."""
    _waiting: list[_PendingPlayback] = field(default_factory=list)
    _stream: Exchange | None = None
    _number: int = 0

    @property
    def _request_path(self) -> str:
        return f"/s/{quote(self.session, safe='')}/{STDIO_PREFIX}{quote(self.server, safe='')}/"

    def on_line(self, line: bytes) -> McpStdioLineOutcome:
        """Return the outcome of a client's line; an empty one requests ready lines. Raises LLMProxyError."""
        if not line:
            out, again = self._take_ready_answer_lines()
            return McpStdioLineOutcome(out, again=again)
        if self._number == 0:
            self._begin_unasked_exchange()
        self._number += 1
        exchange = self.engine.begin_exchange("POST", self._request_path, None, _ASKED)
        self.proxy.record_begin(exchange)
        try:
            self.engine.stages.identify_and_decide(exchange, line)
            if exchange.decision is Decision.FAULT:
                made = exchange.answer.made
                self.proxy.report_exchange_end(exchange, 0 if made is None else made.status)
                if made is None:
                    return McpStdioLineOutcome(gone=True)
                return McpStdioLineOutcome(made.body + b"\n", late=made.head_offset / MICROSECONDS)
            out, forward = self._execute_decision(exchange, line)
        except Exception:
            self.proxy.report_exchange_end(exchange, 0)
            raise
        told, again = self._take_ready_answer_lines()
        return McpStdioLineOutcome(out + told, forward, again=again)

    def _execute_decision(self, exchange: Exchange, line: bytes) -> tuple[bytes, int | None]:
        if exchange.decision is Decision.REPLAY:
            return self._play_recording(exchange), None
        if exchange.decision in (Decision.RECORD, Decision.PASS):
            if len(self._open) >= MOST_OPEN:
                raise LLMProxyError(f"llmproxy: {MOST_OPEN} messages wait for an answer of {self.server}.")
            exchange.progress.released = self.engine.clock()
            self._open[self._number], self._begun[self._number] = exchange, exchange.progress.started_at
            return b"", self._number
        exchange.decision = Decision.REFUSE
        text = self.engine.redactor.text(str(exchange.error or "llmproxy: refused"))
        status, _, body = build_mcp_refusal_response(exchange.operation, line, text)
        self.proxy.report_exchange_end(exchange, status)
        return body + b"\n" if body else b"", None

    def _play_recording(self, exchange: Exchange) -> bytes:
        response = self.engine.answering.serve_recorded(exchange)
        playback = self.engine.answering.get_playback(exchange)
        body = response.body + (b"" if response.body[-1:] in (b"", b"\n") else b"\n")
        if playback is None and not (response.body and exchange.answer.held):
            self.proxy.report_exchange_end(exchange, response.status)
            return body
        self._waiting.append(_PendingPlayback(exchange, playback, body))
        return b""

    def _begin_unasked_exchange(self) -> None:
        exchange = self.engine.begin_exchange("GET", self._request_path, None, _STREAM)
        self.engine.stages.identify_and_decide(exchange, b"")
        if exchange.decision is Decision.REPLAY:
            self.proxy.record_begin(exchange)
            self._play_recording(exchange)
        elif exchange.decision is Decision.RECORD:
            self._stream = exchange

    def _take_ready_answer_lines(self) -> tuple[bytes, float]:
        """Return the lines of pending answers that are ready, and the seconds until the next check."""
        out, again = b"", 0.0
        for each in list(self._waiting):
            get_wait = partial(self.engine.answering.get_send_delay, each.exchange, None, None, bool)
            if each.playback is None:
                wait, left = get_wait(), None
                parts = [] if wait else [each.body]
            else:
                (parts, wait), left = each.playback.take_ready_parts(get_wait), each.playback.turns
            out += b"".join(parts)
            again = min(again or wait, wait) if wait else again
            is_endless = left and left[0].wait is McpAnswerPrerequisiteKind.FOR_EVER and each.exchange.method == "GET"
            if is_endless or not (wait or left):
                self._waiting.remove(each)
                self.proxy.report_exchange_end(each.exchange, each.exchange.replayed_status or 0)
        return out, again

    def on_server_answer(self, number: int, lines: Sequence[tuple[int, bytes]], *, left: bool = False) -> None:
        """Handle the server's answer to a forwarded message: (microseconds, line), in order; empty if none was due.

        `left`: the client has cancelled it, and these are the lines that it received until then. Raises LLMProxyError:
        it cannot be stored.
        """
        if (exchange := self._open.pop(number, None)) is None:
            raise BadControlRequest(
                f"llmproxy: nothing of {self.server} waits for an answer under the number {number}."
            )
        exchange.recording.left = left
        status, reason, headers = (200, "OK", (("content-type", LINES),)) if lines or left else (202, "Accepted", ())
        exchange.recording.on_head(0, status, reason, headers)
        for offset, line in lines:
            exchange.recording.on_data(offset, line + b"\n")
        if exchange.progress.released is not None:  # the shim's clock started later, by the duration of its call
            elapsed = self.engine.clock() - exchange.progress.released
            exchange.recording.postpone_last_offset(round(elapsed * MICROSECONDS))
        self.proxy.store_later(exchange, proper=not left)

    def on_server_loss(self, number: int, why: str) -> None:
        if (exchange := self._open.pop(number, None)) is not None:
            exchange.note = f"NOT RECORDED: {why}"
            self.proxy.report_exchange_end(exchange, 0)

    def on_client_end(self, unasked: Sequence[tuple[int, bytes]] = ()) -> None:
        """Handle a client's end; `unasked` are unsolicited messages of the server: (message followed or 0, line)."""
        for number in list(self._open):
            self.on_server_loss(number, "the client left before the server answered")
        for each in self._waiting:
            each.exchange.note = "client left"
            self.proxy.report_exchange_end(each.exchange, each.exchange.replayed_status or 0)
        self._waiting.clear()
        stream, self._stream = self._stream, None
        if stream is None or not unasked:
            return
        self.proxy.record_begin(stream)
        stream.progress.released = self.engine.clock()
        stream.recording.on_head(0, 200, "OK", (("content-type", LINES),))
        for after, line in unasked:
            since = max(0.0, self._begun.get(after, stream.progress.started_at) - stream.progress.started_at)
            stream.recording.on_data(int(since * MICROSECONDS) + 1, line + b"\n")
        self.proxy.store_later(stream)


class StdioShimSessions:
    def __init__(self, proxy: StdioExchangeRecorder) -> None:
        self._proxy = proxy
        self._lines: dict[tuple[str, str], ProxySideStdioSession] = {}

    def on_connection_end(self, connection: str) -> None:
        """Handle the end of a connection: a shim that ends without notice (killed) loses its pending answers."""
        for which in [which for which, each in self._lines.items() if each.held == connection]:
            self._lines.pop(which).on_client_end()

    def serve(self, engine: Engine, session: str, body: Mapping[str, Json], connection: str = "") -> dict[str, Json]:
        """Serve one request of a shim: a client's line, a server's answer, the end. Raises BadControlRequest."""
        which = session, require_text_member(body, "connection")
        if "line" in body:
            if (line := self._lines.get(which)) is None:
                if body.get("known") is True:
                    raise BadControlRequest(UNKNOWN)
                server = require_text_member(body, "server")
                line = self._lines[which] = ProxySideStdioSession(engine, self._proxy, session, server)
            if body.get("held") is True:
                line.held = connection
            for each in body.get("secrets") or ():
                if isinstance(each, str) and each:
                    engine.redactor.learn_declared_secret(each)
            said = require_text_member(body, "line") if body["line"] != "" else ""
            heard = line.on_line(said.encode("utf-8", "surrogatepass"))
            told = {"out": heard.out.decode("utf-8", "surrogatepass"), "forward": heard.forward}
            rare = {"late": heard.late, "gone": heard.gone, "again": heard.again}
            return told | {name: value for name, value in rare.items() if value}
        number, why = body.get("number"), body.get("lost")
        if (known := self._lines.get(which)) is None:
            if isinstance(number, int) and why is None:
                raise BadControlRequest(UNKNOWN)
            return {}
        if body.get("end") is True:
            del self._lines[which]
            known.on_client_end(parse_lines_sent_by_stdio_shim(body))
        elif isinstance(number, int) and isinstance(why, str):
            known.on_server_loss(number, why)
        elif isinstance(number, int):
            known.on_server_answer(number, parse_lines_sent_by_stdio_shim(body), left=body.get("left") is True)
        else:
            raise BadControlRequest("llmproxy: say `line`, or `number` and `lines`, or `end`.")
        return {}


def require_text_member(body: Mapping[str, Json], name: str) -> str:
    """Return a member that must be a text. Raises BadControlRequest."""
    if not isinstance(value := body.get(name), str) or not value:
        raise BadControlRequest(f"llmproxy: {name} must be a text.")
    return value


def parse_lines_sent_by_stdio_shim(body: Mapping[str, Json]) -> list[tuple[int, bytes]]:
    """Return lines, [[number, text], ...]. Raises BadControlRequest."""
    found = body.get("lines") or []
    for each in found if isinstance(found, list) else [found]:
        if not (isinstance(each, list) and len(each) == 2 and isinstance(each[0], int) and isinstance(each[1], str)):
            raise BadControlRequest("llmproxy: lines must be pairs of a number and a text.")
    return [(number, text.encode("utf-8", "surrogatepass")) for number, text in found]
