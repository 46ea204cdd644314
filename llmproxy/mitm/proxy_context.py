"""State of one proxy, shared by the layer (requests, replay) and the recorder (upstream, recording).

Only the layer decides; it *releases* an exchange under its client connection's id, and only a released exchange may go
upstream. The recorder finds it by that id and never decides again. All outcomes and losses are reported here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

from llmproxy.calls_and_totals import Call, RecentProxyCallLog
from llmproxy.core.control.endpoints import ControlApiContext, SpansOf
from llmproxy.core.control.mcp_shim_endpoint import StdioShimSessions
from llmproxy.core.dialects.dialect_table import ERROR_HEADER, build_dialect_error_response, get_miss_status
from llmproxy.core.dialects.stream_events import classify_response_ending
from llmproxy.core.engine.concurrent_answer_order import ALL_PAUSES, LONGEST_PAUSE, LOOK
from llmproxy.core.engine.engine import Engine
from llmproxy.core.engine.fast_path import FastPathHit
from llmproxy.core.mcp_answer_replay import build_mcp_refusal_response
from llmproxy.core.providers.provider_table import Family
from llmproxy.core.sessions.call_interceptor import ClientEnds
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.sessions.journal import get_decision_journal_path
from llmproxy.core.traffic import grpc
from llmproxy.core.traffic.interaction import Ending, Headers, Interaction, Usage, is_grpc
from llmproxy.core.traffic.origin_guard import OriginGuard
from llmproxy.core.traffic.response_plan import serialize_response_head
from llmproxy.errors import LLMProxyError, MissError
from llmproxy.mitm.idle_connections_and_resets import (
    IdleTrackingClientConnection,
    LowDescriptorConnectionCloser,
    is_client_process_idle,
)
from llmproxy.protocol import CACHE_HEADER, LAST_REPORT, Channel, Decision

if TYPE_CHECKING:
    from llmproxy.core.control.endpoints import ControlRequest
    from llmproxy.ui.mount_in_proxy import ProxyViewerRequestHandler
    from llmproxy.ui.page import ViewerResponse

log = logging.getLogger(__name__)

COMMIT_PATIENCE = 5.0
"""Seconds that a client waits for its answer's end while the answer is being stored."""

_MISS_FIELDS: Headers = ((CACHE_HEADER, "miss"),)
TOGETHER = 16
"""Maximum answers stored in one transaction: the first of them waits for the last."""


def interactions_to_span_json(made: Sequence[Interaction]) -> list[dict[str, object]]:
    from llmproxy.trace.reading.span_builder import build_spans

    return [span.to_dict() for span in build_spans(made)]


class AnswerAwaitingStorage(NamedTuple):
    exchange: Exchange
    proper: bool
    over: asyncio.Future[str]
    """Future of the storing: None, the error, or a timeout of the client's wait."""


def _give_up_waiting_for_commit(over: asyncio.Future[str]) -> None:
    if not over.done():
        log.error("storing an answer takes over %s seconds; its client does not wait any longer", COMMIT_PATIENCE)
        over.set_result("")


class BegunRequest(Protocol):
    exchange: Exchange | None


class FastPathConnection(IdleTrackingClientConnection, Protocol):
    has_answered: Callable[[int], bool] | None
    """Returns whether the layer behind has got so many bytes, answered everything, and waits for a request."""


LONGEST_TURN = 1.0
"""Maximum seconds that other answers wait for a client to read an end, and for an end to be stored."""


@dataclass(slots=True)
class _SessionAnswerTurns:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Keeps waiting pieces in order of arrival."""
    waiting: deque[float] = field(default_factory=deque)
    """Monotonic seconds since when each waiting piece waits, the oldest first."""
    coming: deque[int] = field(default_factory=deque)
    """Answers whose ends arrived but were not sent yet, by `seq`."""
    seq: int = 0
    """The answer whose end was sent last."""
    at: float = -math.inf
    """Monotonic seconds when it was sent, or was last seen unread by its client."""
    until: float = 0.0
    client: ClientEnds = None


@dataclass(slots=True)
class ConcurrentAnswerEndSpacer:
    """Delays pieces of other answers until a sent end was read, plus a pause: clients observe the recorded order."""

    clock: Callable[[], float]
    released: Mapping[str, Exchange]
    _ends: dict[str, _SessionAnswerTurns] = field(default_factory=dict)

    async def wait_for_turn(self, exchange: Exchange) -> None:
        """Wait until a piece of an answer may be sent; an MCP server's own messages (its GET stream) do not wait."""
        ends = self._ends.get(exchange.session.name)
        if ends is None or (exchange.channel is Channel.MCP and exchange.method == "GET"):
            return
        # Later calls that end faster than a pause would keep a piece for ever.
        overdue = bool(ends.waiting) and self.clock() > ends.waiting[0] + ALL_PAUSES
        if exchange.progress.seq in ends.coming:
            await self._sleep_until_turn(exchange, ends)
        elif overdue or self._get_seconds_until_turn_check(exchange, ends):
            since = self.clock()
            ends.waiting.append(since)
            try:
                async with ends.lock:
                    await self._sleep_until_turn(exchange, ends)
            finally:
                ends.waiting.remove(since)

    async def _sleep_until_turn(self, exchange: Exchange, ends: _SessionAnswerTurns) -> None:
        while wait := self._get_seconds_until_turn_check(exchange, ends):  # noqa: ASYNC110 - the kernel tells nobody
            await asyncio.sleep(wait)

    def _get_seconds_until_turn_check(self, exchange: Exchange, ends: _SessionAnswerTurns) -> float:
        """Return the seconds until the next check; 0 if it is its turn."""
        now, own = self.clock(), exchange.progress.seq
        if ends.coming and ends.coming[0] != own:
            if now < ends.until:
                return LOOK * (ends.coming.index(own) if own in ends.coming else len(ends.coming))
            ends.coming.popleft()  # its client has left, or the store is slow
            ends.until = now + LONGEST_TURN
            return self._get_seconds_until_turn_check(exchange, ends)
        if ends.at <= exchange.progress.arrived or ends.seq == own:
            return 0.0
        if ends.client is not None and now < ends.until:
            ends.client, ends.at = (None, ends.at) if is_client_process_idle(ends.client) else (ends.client, now)
        left = max(0.0, ends.at + min(LONGEST_PAUSE, ALL_PAUSES / max(1, self._count_open_calls(exchange))) - now)
        return left if ends.client is None else min(left, LOOK)

    def announce_end_if_last_piece(self, exchange: Exchange, data: bytes) -> None:
        """Note a sent piece of a stream: the mark of the last piece comes before HTTP's end."""
        if data and exchange.decision is Decision.RECORD and self._count_open_calls(exchange) > 1:
            came, how = exchange.recording, (exchange.operation, exchange.identity.stream)
            if classify_response_ending(*how, came.status, came.mime_type, data, http_ended=False) is Ending.COMPLETE:
                self._record_coming_end(exchange)

    async def wait_to_send_end(self, exchange: Exchange) -> None:
        """Wait until an answer's end may be recorded and sent; until it is sent all others wait."""
        self._record_coming_end(exchange)
        await self.wait_for_turn(exchange)

    def _record_coming_end(self, exchange: Exchange) -> None:
        ends = self._ends.setdefault(exchange.session.name, _SessionAnswerTurns())
        if exchange.progress.seq not in ends.coming:
            if not ends.coming:
                ends.until = max(ends.until, self.clock() + LONGEST_TURN)
            ends.coming.append(exchange.progress.seq)

    def on_answer_end(self, exchange: Exchange, client: ClientEnds) -> None:
        if (ends := self._ends.get(exchange.session.name)) is not None and exchange.progress.seq in ends.coming:
            now = self.clock()
            ends.coming.remove(exchange.progress.seq)
            ends.seq, ends.at, ends.until, ends.client = exchange.progress.seq, now, now + LONGEST_TURN, client

    def _count_open_calls(self, exchange: Exchange) -> int:
        return sum(each.session is exchange.session for each in self.released.values())


@dataclass(slots=True)
class ProxyContext(ControlApiContext):
    head_patience: ClassVar[float] = 60.0
    """Seconds from the first byte of a head, or of a TLS handshake, to its end. Clients write a head at once."""
    held_for: ClassVar[float] = 2.0
    """Seconds after which an incomplete request goes to the layer, which limits the wait for the rest."""
    body_patience: ClassVar[float] = 300.0
    """Maximum seconds without a byte of a body. Even a slow connection delivers a byte in that time."""

    engine: Engine
    on_call: Callable[[Call], None]
    """Gets each ended call; must not raise."""
    released: dict[str, Exchange] = field(default_factory=dict)
    """By client connection id: the one exchange that may go upstream over it."""
    open: dict[int, Exchange] = field(default_factory=dict)
    """Exchanges that have begun and not ended, by `id`."""
    losses: int = 0
    fronts: dict[tuple[object, object], FastPathConnection] = field(default_factory=dict)
    """By both addresses of a client's connection: the front of its stream."""
    arrived: dict[tuple[object, object], BegunRequest] = field(default_factory=dict)
    """By the same: the request, already counted, at the beginning of the handed-over bytes."""
    users: dict[str, str] = field(default_factory=dict)
    """By client connection id: the session in the proxy's URL, `HTTPS_PROXY=http://<session>@...`."""
    without_tls: set[str] = field(default_factory=set)
    """Ids of client connections whose TLS handshake an injected fault fails."""
    resets: dict[str, int] = field(default_factory=dict)
    """By client: the code with which its upstream has just cut its answer."""
    streams: dict[str, str] = field(default_factory=dict)
    """By upstream connection id: the client id of the HTTP/2 stream for which it is opened."""
    tunnels: dict[str, tuple[str, int]] = field(default_factory=dict)
    """By client connection id: the out-of-scope host to which a raw tunnel was permitted."""
    exposed: bool = False
    """Whether it listens beyond loopback: the control API then requires the token from every client."""
    guard: OriginGuard = field(default_factory=OriginGuard)
    forward: bool = False
    """Whether clients may use the proxy for hosts out of scope."""
    page_token: str = field(default_factory=partial(secrets.token_urlsafe, 18), kw_only=True)
    spans_of: SpansOf | None = field(default=interactions_to_span_json, kw_only=True)
    watch: RecentProxyCallLog = field(default_factory=RecentProxyCallLog)
    pace: Callable[[Exchange], Awaitable[float]] | None = None
    """Counts a call to a provider, and returns the seconds to wait; None without rates."""
    sockets: LowDescriptorConnectionCloser | None = None
    draining: bool = False
    """Whether the proxy is ending: open requests may finish, no new ones begin."""
    _writer: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "llmproxy-writer"))
    _commits: deque[Future[None]] = field(default_factory=deque)
    _kept: asyncio.Future[str] | None = None
    """Answers whose storing began since the last query."""
    _ended: deque[AnswerAwaitingStorage] = field(default_factory=deque)
    _viewer: ProxyViewerRequestHandler | None = None
    turns: ConcurrentAnswerEndSpacer = field(init=False)
    _called: bool = False
    """Whether the writer was scheduled for ended answers, and has not run yet."""

    def __post_init__(self) -> None:
        self.lines = StdioShimSessions(self)
        self.turns = ConcurrentAnswerEndSpacer(self.engine.clock, self.released)

    def build_refusal(
        self, error: LLMProxyError, family: Family, *, close: bool, method: str = "POST", operation: str = "",
        grants: Headers = (), asked: Headers = (), mcp: bytes | None = None,
    ) -> tuple[int, bytes]:  # fmt: skip
        """Return an error in the form of gRPC, MCP or the provider: (status, whole response).

        `grants` are CORS fields, `asked` the request's fields, `mcp` is the body of a request to an MCP server.
        """
        text, missed, status = self.engine.redactor.text(str(error)), isinstance(error, MissError), error.status
        if mcp is not None:
            status, headers, body = build_mcp_refusal_response(operation, mcp, text)
            headers = (*headers, (ERROR_HEADER, error.code))
        elif is_grpc(asked):
            headers = grpc.build_grpc_refusal_headers(status, error.code, text, miss=missed)
            return status, build_own_response(200, headers, b"", close=False)
        else:
            if missed and status == MissError.status:
                status = self.engine.config.miss_status or get_miss_status(family, operation, asked)
            if status == 204:
                return status, serialize_response_head(204, "No Content", (("connection", "close"),) if close else ())
            headers, body = build_dialect_error_response(family, status, error.code, text)
        extra = (*grants, *_MISS_FIELDS) if missed else grants
        if status == 426:
            extra += (("upgrade", "HTTP/1.1"),)
        return status, build_own_response(status, (*headers, *extra), body, close=close, method=method)

    def answer_viewer(self, asked: ControlRequest) -> Future[ViewerResponse]:
        if self._viewer is None:
            # Late: a start must not wait for what may never be opened.
            from llmproxy.report.live_report_reader import make_report_query_handler
            from llmproxy.ui.mount_in_proxy import ProxyViewerRequestHandler

            engine, token, store = self.engine, self.token, self.engine.config.store
            tests = make_report_query_handler(Path.cwd() / LAST_REPORT, get_decision_journal_path(store))
            self._viewer = ProxyViewerRequestHandler(
                engine, self.watch, lambda: list(self.open.values()), token, self.page_token, tests
            )
        return self._viewer.answer_request(asked)

    def forget_connection_state(self, client: str) -> None:
        self.users.pop(client, None)
        self.resets.pop(client, None)
        self.tunnels.pop(client, None)
        self.without_tls.discard(client)

    def record_begin(self, exchange: Exchange) -> None:
        self.open[id(exchange)] = exchange

    def report_exchange_end(
        self, exchange: Exchange, status: int, *, usage: Usage | None = None, lost: bool = False
    ) -> None:
        if id(exchange) not in self.open:
            return
        del self.open[id(exchange)]
        self.losses += lost
        try:
            self.on_call(self.engine.accounting.record_end(exchange, status, usage=usage, lost=lost))
        except Exception:  # what we say about an answer must never become part of it
            log.exception("could not report an exchange")

    def on_sent(self, exchange: Exchange) -> None:
        """Handle that a replayed answer was sent completely to a connected client."""
        for job in self.engine.answering.list_jobs_after_sending(exchange):
            asyncio.get_running_loop().run_in_executor(self._writer, job)

    def report_hit(self, hit: FastPathHit) -> None:
        try:
            self.on_call(self.engine.fast_path.record_hit(hit))
        except Exception:
            log.exception("could not report a hit")

    def report_unrecorded(self, exchange: Exchange, why: str) -> None:
        exchange.progress.finished = True
        exchange.note = f"NOT RECORDED: {why}"
        self.report_exchange_end(exchange, exchange.recording.status, lost=exchange.decision is Decision.RECORD)

    def report_abandoned(self, exchange: Exchange) -> None:
        """Report an exchange whose connection ended before any byte of an answer: nothing is lost."""
        exchange.note = f"{'the proxy ended' if self.draining else 'client left'} before an answer came"
        self.report_exchange_end(exchange, 0)

    async def store_answer_and_wait(self, exchange: Exchange, *, proper: bool) -> None:
        """Store and report an answer; returns then, or after COMMIT_PATIENCE seconds: a later failure still counts."""
        if exchange.progress.finished:
            return
        exchange.progress.finished = True
        loop = asyncio.get_running_loop()
        over = loop.create_future()
        late = loop.call_later(COMMIT_PATIENCE, _give_up_waiting_for_commit, over)
        self._ended.append(AnswerAwaitingStorage(exchange, proper, over))
        self._schedule_writer()
        try:
            await over
        finally:
            late.cancel()

    def _schedule_writer(self) -> None:
        if self._ended and not self._called:
            self._called = True
            self._commits.append(self._writer.submit(self._write_ended, asyncio.get_running_loop()))

    def _write_ended(self, loop: asyncio.AbstractEventLoop) -> None:
        stored = self._store_ended()
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits
            loop.call_soon_threadsafe(self._report_stored_answers, stored)

    def _store_ended(self) -> list[tuple[AnswerAwaitingStorage, Usage | Exception]]:
        """Store ended answers in the writer's thread, in one transaction or one by one. Never raises."""
        self._called = False
        ended = [self._ended.popleft() for _ in range(min(len(self._ended), TOGETHER))]
        if len(ended) > 1 and all(each.exchange.decision is Decision.RECORD for each in ended):
            try:
                stored = self.engine.writer.store_answers([(each.exchange, each.proper) for each in ended])
                return list(zip(ended, stored, strict=True))
            except Exception as error:  # noqa: BLE001 - nothing was stored; whose fault it is comes out below
                log.debug("answers could not be stored together: %s", error)
        return [(each, self._store_answer(each)) for each in ended]

    def _store_answer(self, ended: AnswerAwaitingStorage) -> Usage | Exception:
        try:
            return self._store_or_read_usage(ended.exchange, ended.proper)
        except Exception as error:  # noqa: BLE001 - told where it is settled
            return error

    def _store_or_read_usage(self, exchange: Exchange, proper: bool) -> Usage:  # noqa: FBT001 - two facts, nothing else
        if exchange.decision is Decision.RECORD:
            return self.engine.writer.store_answer(exchange, proper=proper)
        return self.engine.writer.read_usage(exchange, proper=proper)

    def _report_stored_answers(self, stored: Sequence[tuple[AnswerAwaitingStorage, Usage | Exception]]) -> None:
        self._commits.popleft()
        for ended, found in stored:
            why, exchange = _describe_unstored_answer(found), ended.exchange
            exchange.note = why or exchange.note
            usage = None if isinstance(found, Exception) else found
            self.report_exchange_end(exchange, exchange.recording.status, usage=usage, lost=usage is None)
            if not ended.over.done():
                ended.over.set_result(why)
        self._schedule_writer()

    def store_later(self, exchange: Exchange, *, proper: bool = True) -> None:
        exchange.progress.finished = True
        self._kept = asyncio.get_running_loop().create_future()
        self._ended.append(AnswerAwaitingStorage(exchange, proper, self._kept))
        self._schedule_writer()

    def take_storage_future(self) -> asyncio.Future[str] | None:
        """Return the storing begun since the last call, as `AnswerAwaitingStorage.over`, for a client that waits."""
        kept, self._kept = self._kept, None
        return kept

    async def run_in_writer_ignoring_errors(self, job: Callable[[], None]) -> None:
        """Run a function on the store in the writer's thread, ignoring errors: the commits report what matters."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._writer, job)
        except LLMProxyError as error:
            log.warning("%s", error)

    async def wait_until_idle(self, patience: float) -> None:
        """Wait until nothing is open, at most `patience` seconds."""
        loop = asyncio.get_running_loop()
        until = loop.time() + patience
        while self.open and loop.time() < until:  # noqa: ASYNC110 - nobody tells us
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        """Store open answers as cut, wait for the last commits, then end all sessions and close the store."""
        for exchange in list(self.open.values()):
            if exchange.recording.has_head:
                await self.store_answer_and_wait(exchange, proper=False)
            else:
                exchange.note = exchange.note or "the proxy ended"
                self.report_exchange_end(exchange, 0)
        while self._commits:
            _, late = await asyncio.wait([asyncio.wrap_future(self._commits[-1])], timeout=30)
            if late:
                break
        try:
            await asyncio.get_running_loop().run_in_executor(self._writer, self.engine.close)
        except LLMProxyError as error:
            self.losses += 1
            log.error("the store could not be closed as it should be: %s", error)  # noqa: TRY400 - its text says it all
        self._writer.shutdown(wait=False)
        if self._viewer is not None:
            self._viewer.close()


def _describe_unstored_answer(found: Usage | Exception) -> str:
    if isinstance(found, LLMProxyError):
        return f"NOT RECORDED: {found.message}"
    if isinstance(found, Exception):
        log.error("an answer could not be stored", exc_info=found)
        return f"NOT RECORDED: {type(found).__name__}: {found}"
    return ""


def decode_header_fields(fields: Iterable[tuple[bytes, bytes]]) -> Headers:
    return tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in fields)


def build_own_response(status: int, headers: Headers, body: bytes, *, close: bool, method: str = "POST") -> bytes:
    framing: Headers = (("content-length", str(len(body))), *((("connection", "close"),) if close else ()))
    head = serialize_response_head(status, REASONS.get(status, ""), (*headers, *framing))
    return head if method == "HEAD" else head + body


REASONS = {
    100: "Continue", 200: "OK", 201: "Created", 202: "Accepted", 204: "No Content", 302: "Found", 400: "Bad Request",
    403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed", 409: "Conflict", 413: "Content Too Large",
    426: "Upgrade Required", 431: "Request Header Fields Too Large", 500: "Internal Server Error",
    501: "Not Implemented", 502: "Bad Gateway", 503: "Service Unavailable",
}  # fmt: skip
