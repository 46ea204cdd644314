"""The fast path: a request identical to an earlier one that is recorded is answered in few steps.

It serves sessions without interceptors, makes the checks of the full path with the same parts, and caches its findings
(`CachedRequest`) as long as their inputs are unchanged. Nothing is counted before the hit is certain: otherwise
`find_answer` returns None, and the request takes the full path as if nothing had happened.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from llmproxy.calls_and_totals import Call, Totals
from llmproxy.core.engine.engine_state import EngineState
from llmproxy.core.engine.recording_and_accounting import CallJournalAndUsageRecorder
from llmproxy.core.engine.request_stages import (
    choose_exhausted_rule,
    decide,
    decide_from_request_head,
    describe_recorded_failure,
    list_replayable_recordings,
)
from llmproxy.core.keys.normalize import CachedKeyEntry
from llmproxy.core.providers.provider_table import get_call_channel
from llmproxy.core.sessions.exchange import RoutedRequestHead
from llmproxy.core.sessions.session import PartyKey, Session, SessionSettings
from llmproxy.core.store.reader import RecordingHead
from llmproxy.core.store.store import Store
from llmproxy.core.traffic.response_plan import REDIRECTS, ClientFramingTraits
from llmproxy.core.traffic.websocket_frames import SWITCHING
from llmproxy.protocol import KEY_HEADER, Decision, Exhausted, ModePolicy, ReplayablePolicy

REMEMBERED = 8_192
"""Maximum cached requests, and answers to them; about half a kilobyte each."""


@dataclass(slots=True)
class FastPathHit:
    """An answer to send now; it is counted already."""

    data: bytes
    close: bool
    call: Call
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
    """A request with one head in one session, and the findings on it; `find_answer` compares the first fields."""

    place: RoutedRequestHead
    """Kept alive, so that no other object gets its id."""
    totals: Totals
    """Identifies the session without keeping it and its calls alive after its close."""
    settings: SessionSettings
    generation: tuple[int, int]
    learned: int
    """Number of credentials known when the findings were last valid."""
    known: CachedKeyEntry
    party_key: PartyKey
    slots: Sequence[RecordingHead]
    policy: ModePolicy
    repeats: Exhausted
    """Answer after all recordings were played."""
    last: int
    """Arrival, from 1, from which on all decisions are equal."""
    calls: dict[int, Call] = field(default_factory=dict)


class FastPath:
    def __init__(self, state: EngineState, accounting: CallJournalAndUsageRecorder) -> None:
        self._state, self._accounting = state, accounting
        self._asked: dict[tuple[int, bytes], CachedRequest] = {}
        self._kept = 0

    def clear_cache(self) -> None:
        self._asked.clear()
        self._kept = 0

    def find_answer(self, place: RoutedRequestHead, client: ClientFramingTraits, body: bytes) -> FastPathHit | None:
        """Return the recorded answer, counted; None, uncounted, if it needs the full path. Raises LLMProxyError."""
        state = self._state
        store, sessions = state.stores.opened, state.sessions
        arrived, learned, session = state.clock(), state.redactor.epoch, sessions.find_open(place.name)
        if (
            store is None
            or session is None
            or session.policy.plays is ReplayablePolicy.NOTHING
            or not session.is_plain_replay(place.channel)
            or place.upstreams != session.settings.upstreams
            or place.speaker != sessions.get_party_of_name(place.name)
        ):
            return None
        digest = state.memory.digest_unnormalized_request(place.counted, body)
        asked = self._asked.get((id(place), digest))
        if (
            asked is None
            or asked.totals is not session.calls.totals
            or asked.generation != store.generation
            or asked.settings is not session.settings
            or (asked.learned != learned.count and not learned.is_still_valid(asked.learned, noted=asked.known.noted))
        ) and (asked := self._build_cached_request(place, session, store, digest)) is None:
            return None
        asked.learned, party_key = learned.count, asked.party_key
        if party_key == session.first and session.is_new_run(
            party_key, len(list_replayable_recordings(asked.policy, asked.slots))
        ):
            return None
        turn = min(session.position.counts[party_key] + 1, asked.last)
        call = asked.calls.get(turn) or self._build_turn_record(asked, turn, session, store)
        if call is None or call.interaction is None or party_key in session.position.recorded_here:
            return None
        at, extra = state.now(), ((KEY_HEADER, asked.known.key),)
        laid = state.plans.get(call.interaction, client, now=at, extra=extra, read=store.response)
        # From here on nothing can fail.
        session.served.add(call.interaction)
        seq, nth = session.calls.begin(), session.count_request_arrival(party_key)
        return FastPathHit(laid.data, laid.close, call, session, seq, nth, arrived, at)

    def _build_cached_request(
        self, place: RoutedRequestHead, session: Session, store: Store, digest: bytes
    ) -> CachedRequest | None:
        state, learned = self._state, self._state.redactor.epoch
        if session.first is None or decide_from_request_head(place, session) is not None:
            return None
        if (known := state.memory.get_known(digest, learned)) is None:
            return None
        channel = place.channel if place.route.known else get_call_channel(place.route.provider.name, known.path)
        if not session.is_plain_replay(channel) or place.route.keeps:
            return None  # after a change, a server's object has another key
        if place.learned != learned.count and not learned.is_still_valid(place.learned, noted=known.noted):
            return None
        generation = store.generation  # read before the recordings: later writes count from the next request on
        slots = store.find_keyed(session.cassette, session.sample, place.party, known.key)
        repeats = choose_exhausted_rule(session.settings.exhausted, place.channel, place.method, changes=place.changes)
        self._clear_if_full()
        made = self._asked[id(place), digest] = CachedRequest(
            place=place, totals=session.calls.totals, settings=session.settings, generation=generation,
            learned=learned.count, known=known, party_key=(place.party, known.key), slots=slots, policy=session.policy,
            repeats=repeats, last=sys.maxsize if repeats is Exhausted.CYCLE else len(slots) + 1,
        )  # fmt: skip
        return made

    def _build_turn_record(self, asked: CachedRequest, turn: int, session: Session, store: Store) -> Call | None:
        slot = decide(asked.policy, asked.slots, turn, asked.repeats, recorded_here=False).recording
        if slot is None or slot.status == SWITCHING or slot.status in REDIRECTS or slot.was_left:
            return None
        self._clear_if_full()
        before = asked.calls.get(turn - 1)
        if before is not None and before.interaction == slot.id:  # the last recording, once more
            asked.calls[turn] = before
            return before
        place, known = asked.place, asked.known
        priced = self._accounting.prices.find(store, slot.id)
        call = asked.calls[turn] = Call(
            decision=Decision.REPLAY, method=place.method, target=self._accounting.redact_target(place.route.target),
            status=slot.status, session=session.name, party=place.party, provider=place.route.provider.name,
            operation=place.operation if place.route.known else known.path, model=known.model or priced.model,
            channel=place.channel, input=priced.input, output=priced.output, cost=priced.cost, key=known.key,
            interaction=slot.id, attempt=place.attempt, note=describe_recorded_failure(slot),
            failed=not slot.is_good_answer, asked=priced.asked, answered=priced.answered,
        )  # fmt: skip
        return call

    def _clear_if_full(self) -> None:
        """Drop everything above the limit; callers may continue to use entries that they hold."""
        self._kept += 1
        if self._kept > REMEMBERED:
            self.clear_cache()

    def record_hit(self, hit: FastPathHit) -> Call:
        ms = (self._state.clock() - hit.arrived) * 1000
        call = hit.call._replace(ms=ms, occurrence=hit.nth, at=hit.at, seq=hit.seq)
        self._accounting.record_call(hit.session, call)
        return call
