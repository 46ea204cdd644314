"""The recorded answer that was chosen, laid out for its client."""

from __future__ import annotations

from collections.abc import Callable

from llmproxy.core.engine.fault_injection import lay_out
from llmproxy.core.engine.live_exchanges import LiveHandler
from llmproxy.core.engine.mcp_playback import RecordedPlayback
from llmproxy.core.engine.state import State
from llmproxy.core.mcp import MICROSECONDS
from llmproxy.core.sessions.end_order import ClientEnds
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.store.reading import KeyedRecording
from llmproxy.core.traffic.interaction import Headers, Response
from llmproxy.core.traffic.response_bytes import (
    REDIRECTS,
    ClientHttp,
    OpenPlan,
    SendingPlan,
    elsewhere,
    plan,
    plan_open,
)
from llmproxy.protocol import BOUND_HEADER, Channel


class Answering:
    """Lays out the answers of one engine."""

    def __init__(self, state: State, live: LiveHandler) -> None:
        """Share the engine's state."""
        self._state, self._live = state, live

    def answer(self, exchange: Exchange) -> Response:
        """Return the recorded response that was chosen, and note it as served."""
        if exchange.made is not None:
            return exchange.made
        if exchange.slot is None or self._state.stores.opened is None:
            msg = "answer() is for exchanges decided REPLAY"
            raise ValueError(msg)
        response = (
            exchange.bound.response
            if exchange.bound is not None
            else self._state.stores.opened.response(exchange.slot.id)
        )
        if exchange.channel is Channel.MCP:
            exchange.playback = RecordedPlayback(self._state.stores.opened, exchange, response)
            response = exchange.playback.response
        self._serve(exchange, exchange.slot)
        self._live.keep_answer(exchange, response)
        return response

    def plan(self, exchange: Exchange, client: ClientHttp, *, extra: Headers = ()) -> SendingPlan:
        """Lay out the recorded response that was chosen for its client, in the session's time."""
        if exchange.made is not None:
            return plan(exchange.made, client, speed=0, now=self._state.now(), extra=extra)
        if (slot := exchange.slot) is None:
            raise ValueError("plan() is for exchanges decided REPLAY")
        speed, now = exchange.session.speed, self._state.now()
        if exchange.bound is not None:
            extra = (*extra, (BOUND_HEADER, ", ".join(exchange.bound.names)))
        looked_at = exchange.bound is not None or exchange.session.live is not None
        if speed or looked_at or exchange.ordered or slot.status in REDIRECTS or exchange.channel is Channel.MCP:
            answer = self.answer(exchange)
            if (host := elsewhere(answer.headers)) is not None:
                exchange.note = f"location left out: it leads to {host}, and in replay nothing leaves the machine"
            timed = exchange.ordered and answer.chunked
            return plan(answer, client, speed=speed, now=now, extra=extra, prefix=exchange.prefix, timed=timed)
        if self._state.stores.opened is None:
            raise ValueError("a recording without a store")
        laid = self._state.plans.at_once(slot.id, client, now=now, extra=extra, read=self._state.stores.opened.response)
        self._serve(exchange, slot)
        return SendingPlan(((0, laid.data),), laid.close)

    def wait_before(self, exchange: Exchange, offset: int | None, has_read: Callable[[ClientEnds], bool]) -> float:
        """Return in how many seconds to ask again whether a piece of a recorded answer may go out; 0 if it may now.

        `offset` is its place in the plan, microseconds; None for the answer's last piece. `has_read` as of `EndOrder`.
        """
        order, slot = exchange.session.order, exchange.slot
        if not exchange.ordered or order is None or slot is None:
            return 0.0
        recorded = None if offset is None else offset * (exchange.session.speed or 1) / MICROSECONDS
        expired, seconds = order.expired, order.wait_before(slot.id, recorded, self._state.clock(), has_read)
        if order.expired > expired:
            exchange.note = (
                f"went on after {order.patience:g} s: what was recorded before this answer's end did not come"
            )
        return seconds

    def plan_playback(self, exchange: Exchange, client: ClientHttp, *, extra: Headers = ()) -> OpenPlan | None:
        """Lay out how an answer of MCP begins that must wait for its client; None for every other. After `plan`."""
        talk = exchange.playback
        if talk is None or talk.turns is None or client.method == "HEAD":
            return None
        if exchange.bound is not None:
            extra = (*extra, (BOUND_HEADER, ", ".join(exchange.bound.names)))
        return plan_open(talk.response, client, now=self._state.now(), extra=extra)

    def plan_broken(self, exchange: Exchange, client: ClientHttp, *, extra: Headers = ()) -> SendingPlan:
        """Lay out what the client sees of a call that met a fault: decided FAULT, or passed and over."""
        return lay_out(exchange, client, now=self._state.now(), extra=extra)

    @staticmethod
    def _serve(exchange: Exchange, slot: KeyedRecording) -> None:
        exchange.session.served.add(slot.id)
        exchange.interaction = slot.id
        if exchange.bound is not None and exchange.session.bound is not None:
            exchange.session.bound.learn(exchange.bound.identities, exchange.bound.below)
