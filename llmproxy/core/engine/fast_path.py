"""The fast path of a hit: what was asked before in the same words, and is recorded, is answered in few steps.

It is for sessions without interceptors (`Session.is_plain_replay`) and asks what the long way asks, of the same parts
(session, memory of keys, store as it is now, `decide`), but makes no `Exchange`. What it learned of a request it
remembers (`CachedRequest`) as long as nothing has changed of which that depends: it is the same head, session, mode and
state of the store, and no credential was learned that changes anything. Of each request it asks only how often it came.
Nothing is counted before it is sure that this is a hit: `find_answer` returns None for everything else, and the request
then goes the long way as if nothing had happened.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from llmproxy.core.engine.decide import (
    choose_exhausted,
    decide,
    decide_from_head,
    describe_bad_answer,
    list_playable,
)
from llmproxy.core.engine.engine_state import EngineState
from llmproxy.core.engine.outcome_recorder import OutcomeRecorder
from llmproxy.core.keys.normalize import KnownRequest
from llmproxy.core.providers.provider_table import get_channel
from llmproxy.core.sessions.exchange import RequestHeadInfo
from llmproxy.core.sessions.session import PartyKey, Session, SessionSettings
from llmproxy.core.store.reader import KeyedRecording
from llmproxy.core.store.store import Store
from llmproxy.core.traffic.response_bytes import REDIRECTS, ClientHttp
from llmproxy.core.traffic.websocket_frames import SWITCHING
from llmproxy.protocol import KEY_HEADER, Decision, Exhausted, ModePolicy, PlayScope
from llmproxy.proxy_calls import Call, Totals

REMEMBERED = 8_192
"""Requests, and answers to them; about half a kilobyte each."""


@dataclass(slots=True)
class Hit:
    """An answer that is to be sent now; counted already."""

    data: bytes
    close: bool
    """Close the connection after it."""
    call: Call
    """Without its time and its numbers."""
    session: Session
    seq: int
    """Number of the call in its session."""
    nth: int
    arrived: float
    """Monotonic seconds."""
    at: float
    """Unix seconds."""


@dataclass(slots=True, eq=False)
class CachedRequest:
    """A request asked by one head in one session, and what holds of it; `find_answer` compares the first rows."""

    place: RequestHeadInfo
    """Kept, so that no other one gets its id."""
    totals: Totals
    """Stands for the session: that itself, and all its calls, end with its close."""
    settings: SessionSettings
    """As the session has them."""
    generation: tuple[int, int]
    """Of the store whose recordings these are."""
    learned: int
    """How many credentials were known when it was last true."""
    known: KnownRequest
    walker: PartyKey
    slots: Sequence[KeyedRecording]
    policy: ModePolicy
    repeats: Exhausted
    """What answers it when every recording was played."""
    last: int
    """The arrival, from 1, from which on all are decided alike."""
    calls: dict[int, Call] = field(default_factory=dict)
    """What becomes of it, by its arrival; without time and numbers."""


class FastPath:
    def __init__(self, state: EngineState, recorder: OutcomeRecorder) -> None:
        self._state, self._recorder = state, recorder
        self._asked: dict[tuple[int, bytes], CachedRequest] = {}
        self._kept = 0

    def clear_cache(self) -> None:
        """Forget everything; ids are another store's from now on."""
        self._asked.clear()
        self._kept = 0

    def find_answer(self, place: RequestHeadInfo, client: ClientHttp, body: bytes) -> Hit | None:
        """Return the recorded answer, counted; None, uncounted, if the long way must answer. Raises LLMProxyError."""
        state = self._state
        store, sessions = state.stores.opened, state.sessions
        arrived, learned, session = state.clock(), state.redactor.epoch, sessions.find_open(place.name)
        if (
            store is None
            or session is None
            or session.policy.plays is PlayScope.NOTHING
            or not session.is_plain_replay(place.channel)
            or place.upstreams != session.settings.upstreams
            or place.speaker != sessions.find_bound_party(place.name)
        ):
            return None
        digest = state.memory.digest_request(place.counted, body)
        asked = self._asked.get((id(place), digest))
        if (
            asked is None
            or asked.totals is not session.calls.totals
            or asked.generation != store.generation
            or asked.settings is not session.settings
            or (asked.learned != learned.count and not learned.is_still_valid(asked.learned, noted=asked.known.noted))
        ) and (asked := self._classify(place, session, store, digest)) is None:
            return None
        asked.learned, walker = learned.count, asked.walker
        if walker == session.first and session.is_new_run(walker, len(list_playable(asked.policy, asked.slots))):
            return None
        turn = min(session.position.counts[walker] + 1, asked.last)
        call = asked.calls.get(turn) or self._decide_turn(asked, turn, session, store)
        if call is None or call.interaction is None or walker in session.position.recorded_here:
            return None
        at, extra = state.now(), ((KEY_HEADER, asked.known.key),)
        laid = state.plans.get(call.interaction, client, now=at, extra=extra, read=store.response)
        # From here on nothing can fail.
        session.served.add(call.interaction)
        return Hit(laid.data, laid.close, call, session, session.calls.begin(), session.next_turn(walker), arrived, at)

    def _classify(self, place: RequestHeadInfo, session: Session, store: Store, digest: bytes) -> CachedRequest | None:
        """Find out what a request is; None if it is not for the fast path."""
        state, learned = self._state, self._state.redactor.epoch
        if session.first is None or decide_from_head(place, session) is not None:
            return None
        if (known := state.memory.get_known(digest, learned)) is None:
            return None
        channel = place.channel if place.route.known else get_channel(place.route.provider.name, known.path)
        if not session.is_plain_replay(channel) or place.route.keeps:
            return None  # what a server keeps is another question after a change
        if place.learned != learned.count and not learned.is_still_valid(place.learned, noted=known.noted):
            return None
        generation = (
            store.generation
        )  # before the recordings: what is written meanwhile counts from the next request on
        slots = store.find_keyed(session.cassette, session.sample, place.party, known.key)
        repeats = choose_exhausted(session.settings.exhausted, place.channel, place.method, changes=place.changes)
        self._clear_if_full()
        made = self._asked[id(place), digest] = CachedRequest(
            place=place, totals=session.calls.totals, settings=session.settings, generation=generation,
            learned=learned.count, known=known, walker=(place.party, known.key), slots=slots, policy=session.policy,
            repeats=repeats, last=sys.maxsize if repeats is Exhausted.CYCLE else len(slots) + 1,
        )  # fmt: skip
        return made

    def _decide_turn(self, asked: CachedRequest, turn: int, session: Session, store: Store) -> Call | None:
        """Return what becomes of a request at its turn; None if it is no hit."""
        slot = decide(asked.policy, asked.slots, turn, asked.repeats, recorded_here=False).recording
        if slot is None or slot.status == SWITCHING or slot.status in REDIRECTS or slot.was_left:
            return None
        self._clear_if_full()
        before = asked.calls.get(turn - 1)
        if before is not None and before.interaction == slot.id:  # the last recording, once more
            asked.calls[turn] = before
            return before
        place, known = asked.place, asked.known
        priced = self._recorder.prices.find(store, slot.id)
        call = asked.calls[turn] = Call(
            decision=Decision.REPLAY, method=place.method, target=self._recorder.redact_target(place.route.target),
            status=slot.status, session=session.name, party=place.party, provider=place.route.provider.name,
            operation=place.operation if place.route.known else known.path, model=known.model or priced.model,
            channel=place.channel, input=priced.input, output=priced.output, cost=priced.cost, key=known.key,
            interaction=slot.id, attempt=place.attempt, note=describe_bad_answer(slot),
            failed=not slot.is_good_answer, asked=priced.asked, answered=priced.answered,
        )  # fmt: skip
        return call

    def _clear_if_full(self) -> None:
        """Forget everything when it is too much; whoever works with a part of it may go on."""
        self._kept += 1
        if self._kept > REMEMBERED:
            self.clear_cache()

    def record_hit(self, hit: Hit) -> Call:
        """Sum up a hit that was sent, and write it into the journal."""
        ms = (self._state.clock() - hit.arrived) * 1000
        call = hit.call._replace(ms=ms, occurrence=hit.nth, at=hit.at, seq=hit.seq)
        self._recorder.record_call(hit.session, call)
        return call
