"""The body is here: which key is it, and what becomes of the exchange? All questions in their order.

Each is answered elsewhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from llmproxy.core.bindings import Mismatch
from llmproxy.core.engine.binding import FoundRecording
from llmproxy.core.engine.decide import Decided, MissReason, Situation, decide, describe_failure, exhausted_of, playable
from llmproxy.core.engine.dispatch import check_upstream
from llmproxy.core.engine.divergence import ForkHandler
from llmproxy.core.engine.fault_injection import inject_fault
from llmproxy.core.engine.interaction_builder import InteractionBuilder
from llmproxy.core.engine.keying import Keying
from llmproxy.core.engine.live_exchanges import LiveHandler, choose_recorded, goes_live
from llmproxy.core.engine.mcp_playback import find_harmless, record_reply
from llmproxy.core.engine.misses import Misses
from llmproxy.core.engine.state import State
from llmproxy.core.faults.injection import Faulting
from llmproxy.core.forks.table import Copy
from llmproxy.core.keys.changes import is_success
from llmproxy.core.keys.normalize import Canonical
from llmproxy.core.providers.routing import changes_something
from llmproxy.core.sessions.exchange import Exchange, Harmless
from llmproxy.core.sessions.journal import AnsweredQuestion
from llmproxy.core.store.reading import KeyedRecording
from llmproxy.core.store.store import Store
from llmproxy.core.traffic.frames import SWITCHING
from llmproxy.core.traffic.interaction import Key, Response
from llmproxy.protocol import AGENT, Channel, Decision


class Identifying:
    """Decides the exchanges of one engine."""

    def __init__(
        self,
        state: State,
        keying: Keying,
        builder: InteractionBuilder,
        misses: Misses,
        forks: ForkHandler,
        live: LiveHandler,
    ) -> None:
        """Share the engine's state."""
        self._state, self._keying, self._builder = state, keying, builder
        self._misses, self._forks, self._live = misses, forks, live

    def identify(self, exchange: Exchange, body: bytes) -> None:
        """Derive the key, count the arrival and, where the head did not settle it, decide."""
        self._identify(exchange, body)
        if exchange.change is not None:
            slot = exchange.slot
            fails = exchange.error is not None or (slot is not None and not is_success(slot.status))
            if fails or exchange.injected is not None:
                exchange.change = None
            else:
                exchange.session.changes.begin(exchange.change)

    def _identify(self, exchange: Exchange, body: bytes) -> None:
        exchange.body = body
        if exchange.error is not None:
            return
        if exchange.decision is Decision.PASS and exchange.route.not_llm:
            return
        forking = exchange.session.forking if exchange.party == AGENT and not exchange.route.not_llm else None
        if forking is not None and exchange.decision is None:
            changed = self._forks.override_results(forking, exchange, body)
            if changed is None:
                return
            body = changed
        known, seen = self._keying.recognise(exchange, body)
        if exchange.session.changes and self._starts_again(exchange, known.key):
            exchange.session.restart()
        exchange.session.stateless = (exchange.party, known.key)
        known, seen = self._keying.add_state(exchange, body, known, seen)
        exchange.key, exchange.model, exchange.stream, exchange.refs = known.key, known.model, known.stream, known.refs
        if not exchange.route.known:
            exchange.operation = known.path
        if exchange.channel is not Channel.LLM:
            forking = None  # what is overridden, and where runs part, is told by the requests to the model
        if exchange.decision is Decision.PASS:
            return
        session, store = exchange.session, self._state.stores.current
        if session.live is not None and exchange.decision is None and goes_live(exchange, session.live, body):
            self._live.send_live(exchange, session.live)
            return
        if session.first is None and store:
            self._state.stores.make_ready(store, session.cassette, session.sample)
            self._state.sessions.find_first(session, store)
        key, found = known.key, None
        slots: tuple[KeyedRecording, ...] = ()
        if store and not (
            exchange.decision is Decision.RECORD and session.policy.anew
        ):  # what is recorded anew asks for none
            slots = store.slots(session.cassette, session.sample, exchange.party, known.key)

        def canonical() -> Canonical:
            return seen or self._keying.canonical(exchange, body)

        if not slots and store and exchange.decision is None and session.bound is not None:
            found = self._state.binder.find(exchange, store, canonical)
            key, slots = (found.key, found.slots) if found is not None else (key, slots)
        walker = (exchange.party, key)
        if session.faulting is not None and self._meets_fault(
            exchange, session.faulting, slots, store, found, canonical
        ):
            return
        exchange.nth = session.arrive(walker, len(playable(session.policy, slots)))
        if exchange.decision is not None or (forking is not None and self._forks.is_overridden(forking, exchange)):
            self._state.pending.reserve(exchange, slots)
            return
        verdict = (
            choose_recorded(exchange, session.live, slots, store, key) if session.live is not None and store else None
        ) or decide(
            Situation(
                policy=session.policy,
                recordings=slots,
                nth=exchange.nth,
                exhausted=exhausted_of(
                    session.exhausted,
                    exchange.channel,
                    exchange.method,
                    exchange.operation,
                    changes=changes_something(exchange.route, exchange.method),
                ),
                recorded_here=walker in session.recorded_here,
            )
        )
        if store and verdict.recording is not None and session.bound is not None:
            verdict = self._bind(exchange, store, verdict, found, canonical)
        if forking is not None and forking.parts(exchange, hit=verdict.recording is not None):
            verdict = self._forks.part(forking, exchange, verdict.reason, len(slots))
        elif session.forking is not None and session.forking.live and verdict.recording is not None:
            session.forking.shared.append(Copy(verdict.recording.id, exchange.nth, exchange.started_at))
        self._obey(exchange, verdict, slots, store)
        record_reply(exchange, key)

    def _starts_again(self, exchange: Exchange, key: Key) -> bool:
        """Return whether this is the first request of another run of the agent, which changed nothing yet."""
        session, store = exchange.session, self._state.stores.current
        walker = (exchange.party, key)
        if walker != session.first or store is None or session.stateless == walker:
            return False
        slots = store.slots(session.cassette, session.sample, *walker)
        return session.starts_again(walker, len(playable(session.policy, slots)))

    def _obey(
        self, exchange: Exchange, verdict: Decided[KeyedRecording], slots: Sequence[KeyedRecording], store: Store | None
    ) -> None:
        """Do to an exchange what was decided; `slots` are the recordings of its key."""
        exchange.decision = verdict.decision
        if verdict.recording is not None:
            exchange.slot = verdict.recording
            if (order := exchange.session.order) is not None and verdict.recording.status != SWITCHING:
                exchange.ordered = order.on_begin(verdict.recording.id, exchange.arrived)
            exchange.note = exchange.note or describe_failure(verdict.recording)
            self._account(store, exchange, verdict.recording)
        elif verdict.reason is not None and (harmless := find_harmless(exchange)):
            exchange.error = Harmless(harmless)
        elif verdict.reason is not None and exchange.session.live is not None:
            self._live.refuse(exchange, exchange.session.live, verdict.reason, len(slots))
        elif verdict.reason is not None:
            exchange.error = self._misses.miss(exchange, verdict.reason, len(slots))
        else:
            if not slots:
                exchange.session.record(exchange.walker)
            check_upstream(exchange)
            self._state.pending.reserve(exchange, slots)

    def _bind(
        self,
        exchange: Exchange,
        store: Store,
        verdict: Decided[KeyedRecording],
        found: FoundRecording | None,
        canonical: Callable[[], Canonical],
    ) -> Decided[KeyedRecording]:
        """Return a hit its answer in this run's words; where that cannot be written it is a miss."""
        slot = verdict.recording
        if slot is None:
            return verdict
        if found is None:
            result = self._state.binder.exact(exchange, store, slot, canonical)
            if not isinstance(result, Mismatch):
                exchange.bound = result
                return verdict
            exchange.unbound = f"the answer of recording #{slot.id}: {result}"
        elif (answer := self._state.binder.answer(exchange, store, found, slot)) is not None:
            exchange.bound = answer
            return verdict
        if exchange.session.policy.writes:
            return Decided(Decision.RECORD)
        return Decided(Decision.REFUSE, reason=MissReason.UNBOUND)

    def _meets_fault(
        self,
        exchange: Exchange,
        faulting: Faulting,
        slots: Sequence[KeyedRecording],
        store: Store | None,
        found: FoundRecording | None,
        canonical: Callable[[], Canonical],
    ) -> bool:
        """Return whether an injected fault strikes this call; then it is decided, and was not counted."""
        if exchange.decision is not None:
            return False

        def read(slot: KeyedRecording) -> Response | None:
            """Return the answer that a hit would get, in this run's words; None where it would be a miss."""
            if store is None:
                return None
            if exchange.session.bound is not None:
                hit = Decided(Decision.REPLAY, slot)
                if self._bind(exchange, store, hit, found, canonical) is not hit:
                    return None
            return exchange.bound.response if exchange.bound is not None else store.response(slot.id)

        key = found.key if found is not None else exchange.key or Key("")
        if not inject_fault(exchange, faulting, (exchange.party, key), slots, read, now=self._state.now()):
            return False
        check_upstream(exchange)
        self._builder.keep_injected(exchange)
        return True

    def _account(self, store: Store | None, exchange: Exchange, slot: KeyedRecording) -> None:
        """Keep a question whose key had to be derived beside the recording that answers it.

        `llmproxy audit` compares the two.
        """
        if self._state.journal.asks <= 0 or store is None or exchange.redacted is None or exchange.bound is not None:
            return
        request = exchange.redacted[1]
        same = store.has_request_body(slot.id, hashlib.sha256(request.body).digest())
        self._state.journal.record_question(AnsweredQuestion(exchange.started_at, slot.id, request, same))
