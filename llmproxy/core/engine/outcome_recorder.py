"""What is said of an exchange that is over, and of a request that belongs nowhere."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import NamedTuple

from llmproxy.calls import Call
from llmproxy.core.engine.accounts import call_of
from llmproxy.core.engine.misses import REPEATED
from llmproxy.core.engine.state import State
from llmproxy.core.keys.changes import is_success
from llmproxy.core.providers.hosts import provider_of_host
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.sessions.session import Session
from llmproxy.core.traffic.interaction import Usage
from llmproxy.errors import LLMProxyError, unsign_text
from llmproxy.protocol import Decision

SHOWN_TARGETS = 1000
"""Targets whose redacted form is remembered."""
STRAYS, LONGEST_STRAY = 200, 200
"""How many refused requests are remembered, and how many characters of each target."""


class Stray(NamedTuple):
    """A request that was refused before it belonged to a session."""

    at: float
    """Unix seconds."""
    method: str
    target: str
    """Redacted and shortened, as all of it."""
    status: int
    text: str
    """Why, and what would allow it."""


class OutcomeRecorder:
    """Sums up the requests of one engine: for its journal, its sessions and who asks."""

    def __init__(self, state: State) -> None:
        """Nothing is told yet."""
        self._state = state
        self._targets: dict[str, tuple[str, int, bool]] = {}
        self.strays: deque[Stray] = deque(maxlen=STRAYS)
        """The last requests that were refused before they belonged to a session."""

    def outcome(self, exchange: Exchange, status: int, *, usage: Usage | None = None, lost: bool = False) -> Call:
        """Sum up an exchange that is over, and write it into the journal."""
        replayed = exchange.decision is Decision.REPLAY and exchange.interaction is not None
        call = call_of(
            exchange,
            status,
            target=self.show_target(exchange.route.target),
            seconds=self._state.clock() - exchange.arrived,
            priced=self._state.prices.of(self._state.stores.opened, exchange.interaction or 0) if replayed else None,
            usage=usage,
            lost=lost,
        )
        said = REPEATED if exchange.repeats else exchange.error.message if exchange.error is not None else ""
        self._state.pending.on_call_end(exchange)
        if exchange.ordered and exchange.slot is not None and exchange.session.order is not None:
            exchange.session.order.on_end(exchange.slot.id, self._state.clock(), exchange.client_ends)
        if exchange.change is not None and not is_success(status):
            exchange.session.changes.undo(exchange.change)
        if exchange.session.forking is not None:
            exchange.session.forking.on_call_end(exchange, status)
        self.record(exchange.session, call, said)
        return call

    def record(self, session: Session, call: Call, said: str = "") -> None:
        """Count what became of a call, and keep it; `said` is what a refused client was told."""
        session.totals.add(call, said if call.miss else "")
        session.calls.add(call, said)
        self._state.journal.record(call)

    def show_target(self, target: str) -> str:
        """Return a request's target, redacted; the same few come all the time."""
        learned, known = self._state.redactor.epoch, self._targets
        if (seen := known.get(target)) is not None and learned.changes_nothing(seen[1], noted=seen[2]):
            return seen[0]
        if len(known) > SHOWN_TARGETS:
            known.clear()
        text, noted = self._state.redactor.run_noting(
            partial(self._state.redactor.line, target), target.encode("utf-8", "replace")
        )
        known[target] = text, learned.count, noted
        return text

    def sum_up_refusal(self, method: str, target: str, status: int, error: LLMProxyError) -> Call:
        """Sum up a request that belongs nowhere."""
        call = Call(
            decision=Decision.REFUSE, method=method, target=self._state.redactor.line(target), status=status,
            note=self._state.redactor.text(error.message), at=self._state.now(),
        )  # fmt: skip
        self._state.journal.record(call)
        said = unsign_text(self._state.redactor.text(str(error))).replace("\n", " ")
        self.strays.append(
            Stray(call.at, method[:LONGEST_STRAY], call.target[:LONGEST_STRAY], status, said[: 2 * LONGEST_STRAY])
        )
        return call

    def meet_handshake(self, host: str, port: int, user: str | None) -> Call | None:
        """Return what became of an intercepted connection whose handshake an injected fault strikes.

        None if none does.

        `user` is the session that the client's proxy URL named. Raises RefusedError, CassetteBusy: there cannot be such
        a session.
        """
        name = user or self._state.config.cassette
        session = self._state.sessions.find_open(name)
        if session is None and self._state.config.faults is not None:
            session = self._state.sessions.get(name)
        if session is None or session.faulting is None:
            return None
        provider = provider_of_host(host, port)
        named = "" if provider is None else provider.name
        if (injected := session.faulting.inject_handshake(session.name, named, f"{host}:{port}")) is None:
            return None
        call = Call(
            decision=Decision.FAULT,
            method="CONNECT",
            target=self._state.redactor.line(f"{host}:{port}"),
            status=0,
            session=session.name,
            provider=named,
            note=str(injected.fault),
            fault=injected.fault.kind.name,
            at=self._state.now(),
            seq=session.calls.begin(),
        )
        self.record(session, call)
        return call
