"""The short way of a hit: what was asked before in the same words, and is recorded, is answered in as few steps as a right answer takes.

It asks all that the long way asks, in the same order and of the same parts (session, memory of keys, store as it is now, `decide`), but
makes no `Exchange`, and puts together once what is said of hits that are alike. Nothing is counted before it is sure that this is a hit:
`answer` returns None for everything else, and whoever asked then goes the long way as if nothing had happened.
"""

from __future__ import annotations

from typing import NamedTuple

from llmproxy.core.engine.deciding.decide import Situation, decide, describe_failure, exhausted_of, playable
from llmproxy.core.engine.placing import at_the_head
from llmproxy.core.engine.state import State
from llmproxy.core.engine.telling import Telling
from llmproxy.core.keys.memory import Known
from llmproxy.core.providers.channels import MCP_PREFIX
from llmproxy.core.sessions.exchange import Place
from llmproxy.core.sessions.outcomes.alike import Alike
from llmproxy.core.sessions.outcomes.outcome import Outcome
from llmproxy.core.sessions.session import Session
from llmproxy.core.store.store import RecordingSlot, Store
from llmproxy.core.traffic.frames import SWITCHING
from llmproxy.core.traffic.redirects import REDIRECTS
from llmproxy.core.traffic.response_bytes import ClientHttp
from llmproxy.protocol import KEY_HEADER, Decision

REMEMBERED_KINDS = 4_096
"""Kinds of hits; about a kilobyte each."""


class Hit(NamedTuple):
    """An answer that is to be sent now; counted already."""

    data: bytes
    close: bool
    """Close the connection after it."""
    alike: Alike
    session: Session
    seq: int
    """Number of the call in its session."""
    nth: int
    arrived: float
    """Monotonic seconds."""
    at: float
    """Unix seconds."""


class Hits:
    """The short way through one engine."""

    def __init__(self, state: State, telling: Telling) -> None:
        """Share what the long way remembers."""
        self._state, self._telling = state, telling
        self._kinds: dict[tuple[int, bytes, int | None], Alike] = {}

    def forget(self) -> None:
        """Forget everything; ids are another store's from now on."""
        self._kinds.clear()

    def answer(self, place: Place, client: ClientHttp, body: bytes) -> Hit | None:
        """Return the recorded answer to a whole request, counted; None, and nothing counted, if the long way must say what it is.

        Raises LLMProxyError if the store is damaged; nothing is counted then.
        """
        state = self._state
        store = state.stores.opened
        arrived, learned, session = state.clock(), state.redactor.learned, state.sessions.find_open(place.name)
        if (
            store is None
            or session is None
            or session.forking is not None
            or session.faulting is not None
            or session.living is not None
            or session.speed
            or session.first is None
        ):
            return None
        if place.upstreams != session.upstreams or place.speaker != state.sessions.speaker(place.name):
            return None
        if at_the_head(place, session) is not None:
            return None
        known = state.memory.get(state.memory.digest(place.counted, body), learned)
        # An answer of MCP holds ids of its asker.
        if (
            known is None
            or known.path.startswith(MCP_PREFIX)
            or not learned.changes_nothing(place.learned, noted=known.noted)
        ):
            return None
        derived = store.derived.get((session.cassette, session.sample))
        if derived is not None and derived.before:
            return None  # recordings of an older version come before those of this key
        walker = (place.party, known.key)
        slots = store.slots(session.cassette, session.sample, place.party, known.key)
        if walker == session.first and session.starts_again(walker, len(playable(session.policy, slots))):
            return None
        slot = decide(
            Situation(
                session.policy,
                slots,
                session.counts.of(walker) + 1,
                exhausted_of(session.exhausted, place.channel, place.method),
                walker in session.recorded_here,
            )
        ).recording
        if slot is None or slot.status == SWITCHING or slot.status in REDIRECTS:
            return None
        if session.bound is not None and slot.id not in session.bound.untouched:
            return None  # its answer may name a folder of the recorded run
        alike = self._kinds.get((slot.id, place.counted, place.attempt))
        if alike is None or alike.tally is not session.tally or alike.said.key != known.key:
            alike = self._kind(place, session, known, slot, store)
        elif alike.learned != learned.count:
            if not learned.changes_nothing(alike.learned, noted=known.noted):
                alike = self._kind(place, session, known, slot, store)
            alike.learned = learned.count
        at = state.now()
        laid = state.plans.at_once(slot.id, client, now=at, extra=alike.extra, read=store.response)
        # From here on nothing can fail.
        session.served.add(slot.id)
        return Hit(laid.data, laid.close, alike, session, session.calls.begin(), session.count(walker), arrived, at)

    def _kind(self, place: Place, session: Session, known: Known, slot: RecordingSlot, store: Store) -> Alike:
        """Put together what is said of such hits."""
        priced = self._state.prices.of(store, slot.id)
        said = Outcome(
            decision=Decision.REPLAY,
            method=place.method,
            target=self._telling.show_target(place.route.target),
            status=slot.status,
            session=session.name,
            party=place.party,
            provider=place.route.provider.name,
            operation=place.operation if place.route.known else known.path,
            model=known.model or priced.model,
            usage=priced.usage,
            cost=priced.cost,
            key=known.key,
            interaction=slot.id,
            attempt=place.attempt,
            note=describe_failure(slot),
            asked=priced.asked,
            answered=priced.answered,
        )
        made = Alike(
            said, tally=session.tally, learned=self._state.redactor.learned.count, extra=((KEY_HEADER, known.key),)
        )
        if len(self._kinds) >= REMEMBERED_KINDS:
            self._kinds.clear()
        self._kinds[slot.id, place.counted, place.attempt] = made
        return made

    def ended(self, hit: Hit) -> Outcome:
        """Sum up a hit that was sent, and write it into the journal."""
        state, alike, session = self._state, hit.alike, hit.session
        ms = (state.clock() - hit.arrived) * 1000
        outcome = alike.outcome(ms=ms, occurrence=hit.nth, at=hit.at, seq=hit.seq)
        session.tally.hit(alike)
        session.calls.hit(hit.seq, hit.at, ms, hit.nth, alike.told)
        state.journal.hit(alike.noted, hit.at, ms, hit.nth)
        return outcome
