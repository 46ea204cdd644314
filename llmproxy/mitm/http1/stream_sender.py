"""Sender of answers with delays: chunks at recorded times, MCP answers that wait for their client, injected faults.

Each method sends the bytes that are due and asks to be woken for the rest; it returns True when all of it is sent.
"""

from __future__ import annotations

from collections import deque

from llmproxy.core.mcp_answer_replay import LAST_CHUNK, SendCondition, frame_http_chunk
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.sessions.interceptor import Playback
from llmproxy.core.traffic.response_plan import HeadPlan, SendingPlan
from llmproxy.mitm.http1.request_handling import LOOK, ClientConnectionState, Ending, LayerState
from llmproxy.mitm.socket_resets_and_limits import is_client_idle_after_reading

MICROSECONDS = 1_000_000


class StreamSender:
    def __init__(self, here: ClientConnectionState) -> None:
        self._here = here
        self._pieces: deque[tuple[int, bytes]] = deque()
        self._opened: tuple[Playback, HeadPlan] | None = None
        self._began = 0.0
        self.crash_after = False

    @property
    def is_interactive(self) -> bool:
        """Whether the answer has no end of its own and lasts until the client closes it."""
        return self._opened is not None

    def drop_answer(self) -> None:
        self._pieces.clear()
        self._opened = None

    def send_recorded(self, laid: SendingPlan) -> Ending:
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

    def begin_interactive_answer(self, talk: Playback, opened: HeadPlan) -> Ending:
        """Begin an answer that continues when its client repeats the recorded client's steps."""
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

    def _begin_answer(self, laid: SendingPlan) -> Ending:
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
        return here.proxy.engine.answering.get_send_delay(exchange, offset, ends, is_client_idle_after_reading)

    def _continue_interactive_answer(self, talk: Playback, opened: HeadPlan) -> Ending:
        parts, wait = talk.take_ready_parts(lambda: self._get_seconds_until_turn(None))
        due = b"".join(frame_http_chunk(part, chunked=opened.chunked) for part in parts)
        if not talk.turns and opened.chunked:
            due += LAST_CHUNK
        if due:
            yield self._here.build_send_command(due)
        if not talk.turns:
            self._opened = None
            return True
        if wait or talk.turns[0].wait is not SendCondition.FOR_EVER:
            yield self._here.wake_after(wait or LOOK)
        return False
