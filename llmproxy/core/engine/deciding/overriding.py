"""Runs that fork, and results of tools and answers that are swapped: what of a request's way is different then. The state is `sessions.forking`."""

from __future__ import annotations

from llmproxy.core.engine.deciding.decide import Decided, MissReason
from llmproxy.core.engine.deciding.keying import Keying
from llmproxy.core.engine.deciding.refusing import Misses
from llmproxy.core.engine.state import State
from llmproxy.core.engine.storing.keeping import Keeping
from llmproxy.core.forks.overrides import UnknownArguments
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.sessions.forking import Forking
from llmproxy.core.sessions.parting import override_results, part
from llmproxy.core.store.reading import RecordingSlot
from llmproxy.core.traffic.interaction import Usage
from llmproxy.errors import LLMProxyError, RefusedError
from llmproxy.protocol import Decision


class Overriding:
    """Swaps, and lets runs part, in the forking sessions of one engine."""

    def __init__(self, state: State, keying: Keying, keeping: Keeping, misses: Misses) -> None:
        """Share the engine's state."""
        self._state, self._keying, self._keeping, self._misses = state, keying, keeping, misses

    def override_results(self, forking: Forking, exchange: Exchange, body: bytes) -> bytes | None:
        """Return the body with the results that are overridden; None refuses a request in which nobody can tell which ones are."""
        try:
            return override_results(
                forking, exchange, body, limit=self._state.config.max_request, told=self._keeping.read_call
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
        made = self._keeping.interaction(exchange, exchange.made, Usage(input=0, output=0), redacted=False)
        forking.made[exchange.seq] = made
        if (
            forking.forked and self._state.stores.opened is not None
        ):  # by hand, so seldom: it need not wait for the writer's turn
            exchange.interaction = self._state.stores.opened.add(made, supersede=False)
            exchange.session.served.add(exchange.interaction)
        return True

    def part(
        self, forking: Forking, exchange: Exchange, why: MissReason | None, recordings: int
    ) -> Decided[RecordingSlot]:
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
