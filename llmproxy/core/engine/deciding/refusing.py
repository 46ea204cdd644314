"""A request that nothing answers is refused: with the whole explanation, once."""

from __future__ import annotations

from llmproxy.core.engine.accounts import TEXT
from llmproxy.core.engine.deciding.decide import MissReason
from llmproxy.core.engine.deciding.keying import Keying
from llmproxy.core.engine.state import State
from llmproxy.core.keys.normalize import Canonical
from llmproxy.core.misses.explain import ExplainedMiss
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.errors import MissError

REPEATED = "asked again without a stream: the miss before"
"""Note of a request that is no second miss: Claude Code asks so when its first question failed."""


class Misses:
    def __init__(self, state: State, keying: Keying) -> None:
        """Share the engine's state."""
        self._state, self._keying = state, keying

    def miss(self, exchange: Exchange, why: MissReason, recordings: int) -> MissError:
        """Explain a miss: to the client in the error, and in the journal for `llmproxy why`."""
        wanted = self._keying.canonical(exchange, exchange.body or b"")
        miss = self.explain_refusal(exchange, why, recordings, wanted)
        exchange.nearest = miss.nearest.id if miss.nearest else None
        exchange.asked = self._state.redactor.text(miss.context.last_user[:TEXT])
        if exchange.session.misses_again(wanted):
            exchange.repeats, exchange.note = True, REPEATED
            return MissError(self._state.redactor.text(miss.text))
        places = miss.nearest.places if miss.nearest else ()
        self._state.journal.miss(miss.to_dict(), at=exchange.started_at, places=places, steps=miss.steps)
        forking = exchange.session.forking
        more = (
            forking.note_stop(exchange, miss) if forking is not None and forking.asked_for and exchange.number else ""
        )
        return MissError(self._state.redactor.text(miss.text + more))

    def explain_refusal(self, exchange: Exchange, why: MissReason, recordings: int, wanted: Canonical) -> ExplainedMiss:
        """Explain why an exchange is refused; `recordings` of its key exist."""
        from llmproxy.core.engine.deciding.missing import explain_miss

        request = self._keying.request(exchange, exchange.body or b"")
        return explain_miss(
            exchange,
            why,
            recordings,
            request=request,
            wanted=wanted,
            config=self._state.config,
            store=self._state.stores.current,
            known=self._state.binder.find_canonical,
        )
