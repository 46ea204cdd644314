"""The stages of a call: it arrives, its body is here, so it gets its key, is looked up, and is decided over.

They know no feature: at each border the interceptors of the call's session are asked (`core.sessions.interceptor`).
Where the head settled what becomes of a call (`dispatch.at_the_head`), nobody is asked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from llmproxy.core.engine.decide import at_the_head, count, describe_failure, judge, playable
from llmproxy.core.engine.identity import Keying, check_upstream
from llmproxy.core.engine.misses import Misses
from llmproxy.core.engine.state import State
from llmproxy.core.keys.changes import is_success
from llmproxy.core.keys.normalize import Canonical
from llmproxy.core.mcp import MICROSECONDS
from llmproxy.core.sessions.exchange import Exchange, Harmless, Progress, ReceivedRequest, RequestPlace
from llmproxy.core.sessions.interceptor import ClientEnds, Lookup, Playback
from llmproxy.core.sessions.journal import AnsweredQuestion
from llmproxy.core.store.reading import KeyedRecording
from llmproxy.core.traffic.interaction import Headers, Key, Response
from llmproxy.core.traffic.response_bytes import REDIRECTS, ClientHttp, OpenPlan, SendingPlan, leads_to, plan, plan_open
from llmproxy.protocol import Decision


class Stages:
    def __init__(self, state: State, keying: Keying, misses: Misses) -> None:
        self._state, self._keying, self._misses = state, keying, misses

    def begin(self, place: RequestPlace) -> Exchange:
        """Count the arrival of a request; `place` was read from its head, now or before, and holds.

        Raises as `Engine.arrive`.
        """
        state = self._state
        session = state.sessions.get(place.name)
        progress = Progress(session.calls.begin(), state.clock(), state.now())
        received, decision = ReceivedRequest(place.headers), at_the_head(place, session)
        exchange = Exchange(place, session, progress, received, decision=decision)
        check_upstream(exchange)
        return exchange

    def identify(self, exchange: Exchange, body: bytes) -> None:
        """Derive the key, count the arrival and, where the head did not settle it, decide."""
        self._identify(exchange, body)
        if exchange.change is not None:
            slot = exchange.slot
            fails = exchange.error is not None or (slot is not None and not is_success(slot.status))
            if fails or exchange.decision is Decision.FAULT or exchange.answer.withheld:
                exchange.change = None
            else:
                exchange.session.position.changes.begin(exchange.change)

    def _identify(self, exchange: Exchange, body: bytes) -> None:
        exchange.request.body = body
        if exchange.error is not None or (exchange.decision is Decision.PASS and exchange.route.not_llm):
            return
        undecided = exchange.decision is None
        for each in exchange.interceptors if undecided else ():
            body = each.before_key(exchange, body)
            if exchange.decision is not None:
                return
        seen = self._key(exchange, body)
        check_upstream(exchange)
        if exchange.decision is Decision.PASS or exchange.error is not None:
            return
        found = self._look_up(exchange, body, seen)
        for each in exchange.interceptors if undecided else ():
            found = each.on_lookup(exchange, found)
            if exchange.decision is not None:
                return
        count(exchange, found)
        if exchange.decision is not None:
            self._state.pending.reserve(exchange, found.recordings)
            return
        self._decide(exchange, found)

    def _key(self, exchange: Exchange, body: bytes) -> Canonical | None:
        """Give a call its key; returns its canonical form where that had to be made."""
        known, seen = self._keying.recognise(exchange, body)
        if exchange.session.position.changes.made and self._starts_again(exchange, known.key):
            exchange.session.restart()
        exchange.session.position.stateless = (exchange.party, known.key)
        known, seen = self._keying.add_state(exchange, body, known, seen)
        exchange.identity = known
        return seen

    def _look_up(self, exchange: Exchange, body: bytes, seen: Canonical | None) -> Lookup:
        """Return the recordings of a call's key; what is recorded anew asks for none."""
        session, store = exchange.session, self._state.stores.current
        if session.first is None and store:
            self._state.stores.make_ready(store, session.cassette, session.sample)
            self._state.sessions.find_first(session, store)
        key = exchange.key or Key("")
        slots: tuple[KeyedRecording, ...] = ()
        if store and not (exchange.decision is Decision.RECORD and session.policy.anew):
            slots = store.slots(session.cassette, session.sample, exchange.party, key)

        def canonical() -> Canonical:
            return seen or self._keying.canonical(exchange, body)

        return Lookup(key, slots, canonical)

    def _decide(self, exchange: Exchange, found: Lookup) -> None:
        slots = found.recordings
        verdict = judge(exchange, found, exchange.nth)
        for each in exchange.interceptors:
            verdict = each.on_decision(exchange, found, verdict)
        exchange.decision = verdict.decision
        if verdict.recording is not None:
            exchange.slot = verdict.recording
            exchange.note = exchange.note or describe_failure(verdict.recording)
            if found.key == exchange.key:
                self._account(exchange, verdict.recording)
        elif verdict.reason is not None and exchange.route.not_llm:
            exchange.error = Harmless("llmproxy: telemetry; taken, and sent to nobody")
        elif (why := verdict.reason) is not None:
            if not any(each.on_miss(exchange, why, len(slots)) for each in exchange.interceptors):
                exchange.error = self._misses.miss(exchange, why, len(slots))
        elif verdict.decision is not Decision.REFUSE:
            if not slots or not exchange.session.policy.writes:
                exchange.session.record(exchange.walker)
            check_upstream(exchange)
            self._state.pending.reserve(exchange, slots)

    def _starts_again(self, exchange: Exchange, key: Key) -> bool:
        """Return whether this is the first request of another run of the agent, which changed nothing yet."""
        session, store = exchange.session, self._state.stores.current
        walker = (exchange.party, key)
        if walker != session.first or store is None or session.position.stateless == walker:
            return False
        slots = store.slots(session.cassette, session.sample, *walker)
        return session.starts_again(walker, len(playable(session.policy, slots)))

    def _account(self, exchange: Exchange, slot: KeyedRecording) -> None:
        """Keep a question whose key had to be derived beside the recording that answers it.

        `llmproxy audit` compares the two.
        """
        store = self._state.stores.current
        redacted = exchange.request.redacted
        if self._state.journal.asks <= 0 or store is None or redacted is None or exchange.answer.made is not None:
            return
        request = redacted[1]
        same = store.has_request_body(slot.id, hashlib.sha256(request.body).digest())
        self._state.journal.record_question(AnsweredQuestion(exchange.progress.started_at, slot.id, request, same))


class Answering:
    def __init__(self, state: State) -> None:
        self._state = state

    def answer(self, exchange: Exchange) -> Response:
        """Return the recorded response that was chosen, and note it as served."""
        if exchange.slot is None and exchange.answer.made is not None:
            return exchange.answer.made
        if exchange.slot is None or self._state.stores.opened is None:
            msg = "answer() is for exchanges decided REPLAY"
            raise ValueError(msg)
        response = exchange.answer.made or self._state.stores.opened.response(exchange.slot.id)
        self._serve(exchange, exchange.slot)
        for each in reversed(exchange.interceptors):
            response = each.on_answer(exchange, response)
        return response

    def plan(self, exchange: Exchange, client: ClientHttp, *, extra: Headers = ()) -> SendingPlan:
        """Lay out the recorded response that was chosen for its client, in the session's time."""
        if (slot := exchange.slot) is None:
            if exchange.answer.made is None:
                raise ValueError("plan() is for exchanges decided REPLAY")
            return plan(exchange.answer.made, client, speed=0, now=self._state.now(), extra=extra)
        speed, now = exchange.session.settings.speed, self._state.now()
        extra = (*extra, *exchange.answer.told)
        looked_at = exchange.answer.made is not None or any(each.reads_answers for each in exchange.interceptors)
        if speed or looked_at or exchange.answer.held or slot.status in REDIRECTS:
            answer = self.answer(exchange)
            if (host := leads_to(answer.headers)) is not None:
                exchange.note = f"location left out: it leads to {host}, and in replay nothing leaves the machine"
            timed = exchange.answer.held and answer.chunked
            laid = plan(answer, client, speed=speed, now=now, extra=extra, prefix=exchange.place.prefix, timed=timed)
            return self._plan_in_turn(exchange, laid)
        if self._state.stores.opened is None:
            raise ValueError("a recording without a store")
        sent = self._state.plans.at_once(slot.id, client, now=now, extra=extra, read=self._state.stores.opened.response)
        self._serve(exchange, slot)
        return self._plan_in_turn(exchange, SendingPlan(((0, sent.data),), sent.close))

    @staticmethod
    def _plan_in_turn(exchange: Exchange, laid: SendingPlan) -> SendingPlan:
        for each in reversed(exchange.interceptors):
            laid = each.on_plan(exchange, laid)
        return laid

    def wait_before(
        self, exchange: Exchange, offset: int | None, ends: ClientEnds, has_read: Callable[[ClientEnds], bool]
    ) -> float:
        """Return in how many seconds to ask again whether a piece of a recorded answer may go out; 0 if it may now.

        `offset` is its place in the plan, microseconds; None for the answer's last piece. `ends` are the client's
        connection's, `has_read` as of `EndOrder`.
        """
        if not exchange.answer.held:
            return 0.0
        recorded = None if offset is None else offset * (exchange.session.settings.speed or 1) / MICROSECONDS
        waits = (each.wait_before(exchange, recorded, ends, has_read) for each in exchange.interceptors)
        return max(waits, default=0.0)

    @staticmethod
    def playback(exchange: Exchange) -> Playback | None:
        """Return what goes on when its client has done what the recorded one did; None for nearly all. After `plan`."""
        made = (each.playback(exchange) for each in exchange.interceptors)
        return next((each for each in made if each is not None and each.turns is not None), None)

    def plan_playback(
        self, exchange: Exchange, client: ClientHttp, *, extra: Headers = ()
    ) -> tuple[Playback, OpenPlan] | None:
        """Lay out how an answer begins that must wait for its client; None for every other. After `plan`."""
        playback = self.playback(exchange)
        if playback is None or client.method == "HEAD":
            return None
        extra = (*extra, *exchange.answer.told)
        return playback, plan_open(playback.response, client, now=self._state.now(), extra=extra)

    @staticmethod
    def on_sent(exchange: Exchange) -> list[Callable[[], None]]:
        """Hear that all of a replayed answer was sent; return what is to be done in the writer's thread."""
        return [job for each in exchange.interceptors if (job := each.on_sent(exchange)) is not None]

    def plan_made(self, exchange: Exchange, client: ClientHttp, *, extra: Headers = ()) -> SendingPlan:
        """Lay out, in its own time, what an interceptor made in place of the provider's answer; nothing of nothing."""
        laid, made = SendingPlan((), close=True), exchange.answer.made
        if made is not None:
            said = "fault" if exchange.decision is Decision.FAULT else "passed"
            more, now, prefix = (*exchange.answer.told, *extra), self._state.now(), exchange.place.prefix
            laid = plan(made, client, speed=1, now=now, extra=more, prefix=prefix, said=said)
        return self._plan_in_turn(exchange, laid)

    @staticmethod
    def _serve(exchange: Exchange, slot: KeyedRecording) -> None:
        exchange.session.served.add(slot.id)
        exchange.kept.interaction = slot.id
