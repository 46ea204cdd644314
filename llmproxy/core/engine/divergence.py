"""Runs that fork, and results of tools and answers that are overridden; the state is `sessions.forking`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from llmproxy.calls import Call
from llmproxy.core.dialects.conversation import read_answer
from llmproxy.core.engine.decide import Decided, MissReason
from llmproxy.core.engine.interaction_builder import InteractionBuilder
from llmproxy.core.engine.keying import Keying
from llmproxy.core.engine.misses import Misses
from llmproxy.core.engine.state import State
from llmproxy.core.forks.overrides import UnknownArguments
from llmproxy.core.forks.swap_results import ResultPlace
from llmproxy.core.forks.table import make
from llmproxy.core.misses.explain import ExplainedMiss
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.sessions.forking import Forking
from llmproxy.core.sessions.session import Session
from llmproxy.core.store.reading import KeyedRecording
from llmproxy.core.store.store import Store
from llmproxy.core.traffic.encoding import decode
from llmproxy.core.traffic.interaction import Interaction, Usage, header
from llmproxy.errors import LLMProxyError, RefusedError
from llmproxy.protocol import AGENT, Decision, Mode

Told = Callable[[Session, Call], Interaction | None]
"""Gives what was said in a call that has ended."""


def override_results(forking: Forking, exchange: Exchange, body: bytes, *, limit: int, told: Told) -> bytes:
    """Return the body of a request with the results that are overridden; the very bytes that came where none is.

    Raises:
        RefusedError: results are mocked, and the agent is about to say them over a WebSocket, where nobody would swap
        them.

    """
    if forking.mocks and (header(exchange.headers, "upgrade") or "").lower() == "websocket":
        raise RefusedError(
            "llmproxy: this run mocks results of tools, which is done in requests;"
            " over a WebSocket they are not swapped.",
            hint="Let the agent ask its model over HTTP, or take `mock` out of the scenario.",
        )
    coding, plain = header(exchange.headers, "content-encoding"), body
    if coding and coding.strip().lower() != "identity":
        try:
            plain = decode(body, coding, limit)
        except ValueError:
            return body

    def find_place(call_id: str) -> ResultPlace | None:
        """Look for an id in the agent's answers since the last time that one was looked for."""
        calls = exchange.session.calls.after(forking.scanned)
        forking.scanned = exchange.session.calls.arrived
        for call in calls:
            if call.party == AGENT and (found := told(exchange.session, call)) is not None:
                kind = header(found.response.headers, "content-type") or ""
                forking.learn(read_answer(exchange.family, found.operation, kind, found.response.body))
        return forking.find_call(call_id)

    changed = forking.swap(exchange, plain, find_place)
    return changed if exchange.swapped else body


def part(
    forking: Forking,
    exchange: Exchange,
    miss: ExplainedMiss | None,
    *,
    store: Store,
    hide: Callable[[str], str],
    now: float,
) -> None:
    """Begin the child with what its parent and it share, and let the session record it.

    `hide` redacts, `now` is Unix time.

    It blocks for the length of two short transactions, once in a run.
    """
    session = exchange.session
    fork = forking.part(exchange, miss, now=now)
    session.superseded.update(session.counts)  # what is shared is not replaced when its key comes again
    session.served.update(make(store, replace(fork, overrides=forking.overrides.redact(hide)), forking.shared, now))
    for made in forking.made.values():
        session.served.add(store.add(replace(made, cassette=fork.cassette, sample=1), supersede=False))
    session.cassette, session.sample, session.mode = fork.cassette, 1, Mode.RECORD
    exchange.note = "; ".join(note for note in (exchange.note, f"fork: {fork.cassette}") if note)


class ForkHandler:
    """Swaps, and lets runs part, in the forking sessions of one engine."""

    def __init__(self, state: State, keying: Keying, builder: InteractionBuilder, misses: Misses) -> None:
        """Share the engine's state."""
        self._state, self._keying, self._builder, self._misses = state, keying, builder, misses

    def override_results(self, forking: Forking, exchange: Exchange, body: bytes) -> bytes | None:
        """Return the body with the results that are overridden.

        None refuses a request in which nobody can tell which ones are.
        """
        try:
            return override_results(
                forking, exchange, body, limit=self._state.config.max_request, told=self._builder.read_call
            )
        except (RefusedError, UnknownArguments) as error:
            exchange.decision, exchange.error, exchange.note = Decision.REFUSE, error, error.message
            return None

    def is_overridden(self, forking: Forking, exchange: Exchange) -> bool:
        """Count a request of the agent; tell whether its answer is overridden, and make it then."""
        number = forking.count(exchange)
        try:
            exchange.made = forking.answer(exchange, number)
        except LLMProxyError as error:
            exchange.decision, exchange.error, exchange.note = Decision.REFUSE, error, error.message
            return True
        if exchange.made is None:
            return False
        exchange.decision = Decision.REPLAY
        made = self._builder.interaction(exchange, exchange.made, Usage(input=0, output=0), redacted=False)
        forking.made[exchange.seq] = made
        if (
            forking.forked and self._state.stores.opened is not None
        ):  # by hand, so seldom: it need not wait for the writer's turn
            exchange.interaction = self._state.stores.opened.add(made, supersede=False)
            exchange.session.served.add(exchange.interaction)
        return True

    def part(
        self, forking: Forking, exchange: Exchange, why: MissReason | None, recordings: int
    ) -> Decided[KeyedRecording]:
        """Let the run fork with this request: from here on it is recorded in the child."""
        if (store := self._state.stores.opened) is None:
            raise AssertionError("a fork without a store")
        miss = (
            None
            if why is None
            else self._misses.explain_refusal(
                exchange, why, recordings, self._keying.canonical(exchange, exchange.body or b"")
            )
        )
        part(forking, exchange, miss, store=store, hide=self._state.redactor.text, now=self._state.now())
        return Decided(Decision.RECORD)
