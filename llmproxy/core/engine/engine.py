"""The engine: bytes in -> request -> redact -> normalize -> key -> decide -> (recording out | upstream -> recording in).

It composes the pure parts and owns the state between requests: sessions, occurrences, what was served, a memory of keys. It does no
network I/O and reads no clock but the ones handed in. The shell (`mitm/`) asks it three questions for each request and obeys:

    arrive(...)      the head is here: where does it belong, and may the body stream through at once?
    identify(...)    the body is here: which key is it, and what becomes of it?
    stored(...)      the answer of the provider is here: put it into the store (slow: from a writer's thread)

The memory maps a digest of what arrived to the *key*, never to an answer; recordings are looked up every time.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from llmproxy.core.bindings import Circumstance, Mismatch
from llmproxy.core.dialects.conversation import made_ids
from llmproxy.core.dialects.usage import model_of, usage_of
from llmproxy.core.engine.accounts import TEXT, Prices, outcome_of
from llmproxy.core.engine.deciding.binding import Binder, FoundRecording
from llmproxy.core.engine.deciding.breaking import break_passed, lay_out, recorded_calls, strike
from llmproxy.core.engine.deciding.decide import (
    Decided,
    MissReason,
    Situation,
    decide,
    describe_failure,
    exhausted_of,
    playable,
)
from llmproxy.core.engine.deciding.going_live import (
    announce,
    changes_something,
    choose_recorded,
    goes_live,
    refusal_of,
    told_unknown,
)
from llmproxy.core.engine.deciding.talking import RecordedTalk, as_kept, hear_reply, say_harmless
from llmproxy.core.engine.hits import Hits
from llmproxy.core.engine.placing import Placing, at_the_head, check_upstream
from llmproxy.core.faults.idle import explain_idle
from llmproxy.core.faults.walk import Faulting
from llmproxy.core.forks.overrides import UnknownArguments
from llmproxy.core.forks.table import Copy
from llmproxy.core.keys import v1
from llmproxy.core.keys.key import key_of
from llmproxy.core.keys.memory import Known, Memory, named_model
from llmproxy.core.keys.normalize import Canonical, Origin, canonicalize, new_ids
from llmproxy.core.living.living import Living
from llmproxy.core.misses.explain import ExplainedMiss
from llmproxy.core.providers.hosts import provider_of_host
from llmproxy.core.providers.routing import Family
from llmproxy.core.secrets.redact import Redactor
from llmproxy.core.sessions.calls import CallEnded
from llmproxy.core.sessions.compact import Ids
from llmproxy.core.sessions.exchange import Config, Exchange, Harmless, Place
from llmproxy.core.sessions.forking import Forking
from llmproxy.core.sessions.journal import Asked, Journal
from llmproxy.core.sessions.outcome import Outcome
from llmproxy.core.sessions.parting import part, swapped
from llmproxy.core.sessions.session import Session, split_name
from llmproxy.core.sessions.sessions import SessionDefaults, Sessions
from llmproxy.core.store.contents.rows import RowSummary, describe
from llmproxy.core.store.opening import open_store
from llmproxy.core.store.questions import count_unused
from llmproxy.core.store.rederive import derive
from llmproxy.core.store.store import Addition, RecordingSlot, Store
from llmproxy.core.traffic.encoding import decode
from llmproxy.core.traffic.interaction import Headers, Interaction, Key, Request, Response, Usage, header, without
from llmproxy.core.traffic.redirects import REDIRECTS, elsewhere
from llmproxy.core.traffic.response_bytes import ClientHttp, OpenPlan, Plans, SendingPlan, plan, plan_open
from llmproxy.errors import CassetteNotFound, LLMProxyError, MissError, RecordingError, RefusedError, unsigned
from llmproxy.protocol import AGENT, BOUND_HEADER, OFFLINE, Channel, Decision, Mode, Plays, UnknownTool
from llmproxy.store_server import is_there

__all__ = ["Config", "Engine", "Exchange", "Harmless"]

REPEATED = "asked again without a stream: the miss before"
"""Note of a request that is no second miss: Claude Code asks so when its first question failed."""
SHOWN_TARGETS = 1000
"""Targets whose redacted form is remembered."""
ROTATING = 8
"""Credentials from which on it is worth knowing what more of them cannot change."""
STRAYS, LONGEST_STRAY = 200, 200
"""How many refused requests are remembered, and how many characters of each target."""
STALE = (
    "not recorded: the provider refused an id that came from a recording; record the cassette anew with --mode record"
)


def own_length(headers: Headers, length: int) -> Headers:
    """Return header fields with a request's own content-length: what is known of a head is shared by all that differ in it alone."""
    return tuple((name, str(length) if name.lower() == "content-length" else value) for name, value in headers)


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


class Engine:
    """All sessions of one proxy over one store."""

    def __init__(
        self,
        config: Config,
        *,
        redactor: Redactor,
        journal: Journal,
        now: Callable[[], float],
        clock: Callable[[], float],
        holder: str = "llmproxy",
    ) -> None:
        """Open (or, to record, create) the store; `now` is Unix time, `clock` a monotonic one, `holder` names us in leases."""
        self.config = config
        self.redactor = redactor
        self.journal = journal
        self.now, self.clock = now, clock
        self.sessions = Sessions(
            SessionDefaults(
                config.mode, config.speed, config.exhausted, config.allow_live, config.bind, config.faults, config.live
            ),
            self._store_for,
            holder,
            self._keep_file,
            self._make_ready,
            self._keep_waiting,
            now,
        )
        self._placing = Placing(config, redactor, self.sessions)
        self._prices = Prices()
        self._memory = Memory()
        self._plans = Plans()
        self.binder = Binder(config)
        self.hits = Hits(self, self._memory, self._plans, self._prices)
        """The short way, for whole requests."""
        self._under_way: dict[tuple[str, int], dict[int, Exchange]] = {}
        """By cassette and sample: exchanges that are to be recorded and are not yet over, by `id`."""
        self._targets: dict[str, tuple[str, int, bool]] = {}
        self.strays: deque[Stray] = deque(maxlen=STRAYS)
        """The last requests that were refused before they belonged to a session."""
        self._store: Store | None = None
        if config.mode.policy.writes:
            self._store = self._open(writable=True)
        self.store  # noqa: B018 - a damaged store is said at the start, not at the first request

    @property
    def opened(self) -> Store | None:
        """The store if it is open already."""
        return self._store

    @property
    def store(self) -> Store | None:
        """The store; where nothing is written it may appear later, as when a recording is made beside us."""
        policy = self.config.mode.policy
        if (
            self._store is None
            and policy.plays is not Plays.NOTHING
            and not policy.writes
            and is_there(self.config.store)
        ):
            self._store = self._open(writable=False)
        return self._store

    def _open(self, *, writable: bool) -> Store:
        store = open_store(self.config.store, writable=writable, now=self.now, whole=False)
        store.reopened = self._forget

        def make_ready(places: Sequence[tuple[str, int]]) -> None:
            for place in places:
                self._make_ready(store, *place)

        store.replaced = make_ready
        return store

    def _store_for(self, mode: Mode) -> Store | None:
        """Return the store, open for writing where a session of this mode writes; a replay proxy opens it so only when asked to."""
        store = self.store
        if not mode.policy.writes or (store is not None and store.writable):
            return store
        opened: list[tuple[str, int]] = []
        if store is not None:
            opened = list(store.derived)
            store.close()
            self._store = None
            self._forget()
        self._store = self._open(writable=True)
        for place in opened:
            self._make_ready(self._store, *place)
        return self._store

    def _make_ready(self, store: Store, cassette: str, sample: int) -> None:
        """See what others recorded in a cassette; give what an older version did its keys of today."""
        store.refresh(cassette)
        derive(store, cassette, sample, self.config.rules, self.config.upstreams)

    def _forget(self) -> None:
        """Forget what was remembered by id: under the store's name there may be another file meanwhile, whose ids mean other recordings."""
        for each in (self._plans, self._prices, self.hits, self.binder):
            each.forget()

    def _keep_file(self, session: Session) -> None:
        """Write the cassette's file, where such are kept; from any thread, so over a connection of its own."""
        if self.config.cassette_dir is not None:
            from llmproxy.core.cassettes.folder import CassetteDir

            with open_store(self.config.store, writable=False, now=self.now) as store:
                kept, writer = CassetteDir(self.config.cassette_dir, now=self.now), self._store
                if writer is not None and writer.writable:
                    kept.save(store, session.cassette, remember=writer.remember_file)
                else:
                    kept.save(store, session.cassette)

    # --- the head is here ------------------------------------------------------------------------------------------

    def arrive(
        self, method: str, target: str, host: tuple[str, str, int] | None, headers: Headers, user: str | None = None
    ) -> Exchange:
        """Find provider and session of a request.

        `host` is (scheme, host, port) where the client named one itself, `user` the session that its proxy URL named.

        Raises:
            RefusedError: nobody knows where it should go, or its session or party cannot be.
            CassetteBusy: another session records this cassette.

        """
        return self.begin(self.place(method, target, host, headers, user))

    def place(
        self, method: str, target: str, host: tuple[str, str, int] | None, headers: Headers, user: str | None = None
    ) -> Place:
        """Read from a head where its request belongs; `holds` says how long that is true. Raises RefusedError; parameters as of `arrive`."""
        return self._placing.place(method, target, host, headers, user)

    def holds(self, place: Place) -> bool:
        """Tell whether the same head would be placed there again: nothing was learned since, and its session's upstreams are the same."""
        return self._placing.holds(place)

    def family_of(self, method: str, target: str, host: tuple[str, str, int] | None, headers: Headers) -> Family:
        """Return the dialect in which a request is refused that must leave no trace."""
        return self._placing.family_of(method, target, host, headers)

    def in_scope(self, host: str, port: int) -> bool:
        """Tell whether a host is a provider's, or one that --upstream or --record-host names (whatever path of it is meant: that is inside)."""
        return self._placing.in_scope(host, port)

    def mode_of(self, name: str | None) -> Mode:
        """Return the mode of what arrives under a session's name, or under none; opens nothing. Raises RefusedError."""
        return self._placing.mode_of(name)

    def begin(self, place: Place) -> Exchange:
        """Count the arrival of a request; `place` was read from its head, now or before, and holds. Raises as `arrive`."""
        session = self.sessions.get(place.name)
        exchange = Exchange(
            route=place.route,
            session=session,
            party=place.party,
            method=place.method,
            headers=place.headers,
            operation=place.operation,
            arrived=self.clock(),
            started_at=self.now(),
            counted=place.counted,
            seq=session.calls.begin(),
            decision=at_the_head(place, session),
        )
        check_upstream(exchange)
        return exchange

    def may_pass(self, exchange: Exchange) -> bool:
        """Tell whether a request that cannot be matched may go upstream unrecorded."""
        session, policy = exchange.session, exchange.session.policy
        return policy.writes and not policy.alone and session.forking is None and bool(exchange.route.upstream)

    # --- the body is here ------------------------------------------------------------------------------------------

    def identify(self, exchange: Exchange, body: bytes) -> None:
        """Derive the key, count the arrival and, where the head did not settle it, decide."""
        exchange.body = body
        if exchange.error is not None:
            return
        if exchange.decision is Decision.PASS and exchange.route.not_llm:
            return
        forking = exchange.session.forking if exchange.party == AGENT and not exchange.route.not_llm else None
        if forking is not None and exchange.decision is None:
            changed = self._swapped(forking, exchange, body)
            if changed is None:
                return
            body = changed
        known, seen = self._known(exchange, body)
        exchange.key, exchange.model, exchange.stream, exchange.refs = known.key, known.model, known.stream, known.refs
        if not exchange.route.known:
            exchange.operation = known.path
        if exchange.channel is not Channel.LLM:
            forking = None  # what is overridden, and where runs part, is told by the requests to the model
        if exchange.decision is Decision.PASS:
            return
        session, store = exchange.session, self.store
        if session.living is not None and exchange.decision is None and goes_live(exchange, session.living, body):
            self._let_live(exchange, session.living)
            return
        if session.first is None and store:
            self._make_ready(store, session.cassette, session.sample)
            session.first = store.first_key(session.cassette, session.sample)
        key, found = known.key, None
        slots = self._recordings(store, exchange, known.key, body) if store else ()

        def canonical() -> Canonical:
            return seen or self._canonical(exchange, body)

        if not slots and store and exchange.decision is None and session.bound is not None:
            found = self.binder.find(exchange, store, canonical)
            key, slots = (found.key, found.slots) if found is not None else (key, slots)
        walker = (exchange.party, key)
        if session.faulting is not None and self._struck(exchange, session.faulting, slots, store, found, canonical):
            return
        exchange.nth = session.arrive(walker, len(playable(session.policy, slots)))
        if exchange.decision is not None or (forking is not None and self._overridden(forking, exchange)):
            self._reserve(exchange, slots)
            return
        verdict = (
            choose_recorded(exchange, session.living, slots, store, key)
            if session.living is not None and store
            else None
        ) or decide(
            Situation(
                policy=session.policy,
                recordings=slots,
                nth=exchange.nth,
                exhausted=exhausted_of(session.exhausted, exchange.channel, exchange.method, exchange.operation),
                recorded_here=walker in session.recorded_here,
            )
        )
        if store and verdict.recording is not None and session.bound is not None:
            verdict = self._bind(exchange, store, verdict, found, canonical)
        if forking is not None and forking.parts(exchange, hit=verdict.recording is not None):
            verdict = self._part(forking, exchange, verdict.reason, len(slots))
        elif session.forking is not None and session.forking.live and verdict.recording is not None:
            session.forking.shared.append(Copy(verdict.recording.id, exchange.nth, exchange.started_at))
        self._obey(exchange, verdict, slots, store)
        hear_reply(exchange, key)

    def _obey(
        self,
        exchange: Exchange,
        verdict: Decided[RecordingSlot],
        slots: Sequence[RecordingSlot],
        store: Store | None,
    ) -> None:
        """Do to an exchange what was decided; `slots` are the recordings of its key."""
        exchange.decision = verdict.decision
        if verdict.recording is not None:
            exchange.slot = verdict.recording
            exchange.note = exchange.note or describe_failure(verdict.recording)
            self._account(store, exchange, verdict.recording)
        elif verdict.reason is not None and (harmless := say_harmless(exchange)):
            exchange.error = Harmless(harmless)
        elif verdict.reason is not None and exchange.session.living is not None:
            self._refuse_beside_live(exchange, exchange.session.living, verdict.reason, len(slots))
        elif verdict.reason is not None:
            exchange.error = self._miss(exchange, verdict.reason, len(slots))
        else:
            if not slots:
                exchange.session.record(exchange.walker)
            check_upstream(exchange)
            self._reserve(exchange, slots)

    def _let_live(self, exchange: Exchange, living: Living) -> None:
        """Send a request to its real provider or tool, and keep the answer in the session's child."""
        session = exchange.session
        exchange.nth = session.arrive(exchange.walker, 1)
        self.sessions.renew(session)
        session.record(exchange.walker)
        exchange.into, exchange.decision = (living.child, 1), Decision.RECORD
        check_upstream(exchange)
        self._reserve(exchange, ())

    def _refuse_beside_live(self, exchange: Exchange, living: Living, why: MissReason, recordings: int) -> None:
        """Refuse what no recording answers beside live channels; a tool's call as its user wanted."""
        if exchange.channel is Channel.LLM:
            exchange.error = self._miss(exchange, why, recordings)
            return
        name = told_unknown(exchange, living)
        if living.asked.unknown is UnknownTool.LIVE:
            living.parted = living.parted or (name if changes_something(exchange, living) else "")
            self._let_live(exchange, living)
            return
        exchange.expected = living.asked.unknown is UnknownTool.ERROR
        exchange.error = self._miss(exchange, why, recordings)
        exchange.note = exchange.note or f"no recording of {name} holds here"
        self.sessions.renew(exchange.session)
        exchange.into = living.child, 1
        response = refusal_of(exchange, str(exchange.error), self.config.miss_status)
        made = self._interaction(exchange, response, Usage(), redacted=False)
        living.made[exchange.seq] = made
        living.waiting.append(made)

    def _keep_answer(self, exchange: Exchange, response: Response) -> None:
        """Put an answer that was served beside live channels into the session's child, soon."""
        if (living := exchange.session.living) is None or exchange.slot is None or self._store is None:
            return
        self.sessions.renew(exchange.session)
        exchange.into = living.child, 1
        recorded = self._store.load(exchange.slot.id)
        living.served += 1
        living.waiting.append(self._interaction(exchange, response, recorded.usage, redacted=recorded.redacted))
        announce(exchange, living, response)

    def _keep_waiting(self, living: Living) -> None:
        """Store what waits of a run with live channels. Raises as `stored`."""
        if self._store is not None and (waiting := living.take()):
            self._store.add_all([Addition(each) for each in waiting])

    def _reserve(self, exchange: Exchange, slots: Sequence[RecordingSlot]) -> None:
        """Give an answer that will be recorded its occurrence now: ids in it may come back in a request before it is stored."""
        if exchange.decision is not Decision.RECORD:
            return
        session = exchange.session
        beside = self._under_way.setdefault(exchange.place, {})
        taken = [each.occurrence for each in beside.values() if each.walker == exchange.walker]
        if not session.policy.anew:
            taken += [slot.occurrence for slot in slots]
        exchange.occurrence = exchange.nth if exchange.nth not in taken else max(taken) + 1
        beside[id(exchange)] = exchange

    def _bind(
        self,
        exchange: Exchange,
        store: Store,
        verdict: Decided[RecordingSlot],
        found: FoundRecording | None,
        canonical: Callable[[], Canonical],
    ) -> Decided[RecordingSlot]:
        """Give a hit its answer in this run's words; where that cannot be written it is a miss."""
        slot = verdict.recording
        if slot is None:
            return verdict
        if found is None:
            result = self.binder.exact(exchange, store, slot, canonical)
            if not isinstance(result, Mismatch):
                exchange.bound = result
                return verdict
            exchange.unbound = f"the answer of recording #{slot.id}: {result}"
        elif (answer := self.binder.answer(exchange, store, found, slot)) is not None:
            exchange.bound = answer
            return verdict
        if exchange.session.policy.writes:
            return Decided(Decision.RECORD)
        return Decided(Decision.REFUSE, reason=MissReason.UNBOUND)

    def _struck(
        self,
        exchange: Exchange,
        faulting: Faulting,
        slots: Sequence[RecordingSlot],
        store: Store | None,
        found: FoundRecording | None,
        canonical: Callable[[], Canonical],
    ) -> bool:
        """Tell whether a fault on purpose strikes this call; then it is decided, and was not counted."""
        if exchange.decision is not None:
            return False

        def read(slot: RecordingSlot) -> Response | None:
            """Return the answer that a hit would get, in this run's words; None where it would be a miss."""
            if store is None:
                return None
            if exchange.session.bound is not None:
                hit = Decided(Decision.REPLAY, slot)
                if self._bind(exchange, store, hit, found, canonical) is not hit:
                    return None
            return exchange.bound.response if exchange.bound is not None else store.response(slot.id)

        key = found.key if found is not None else exchange.key or Key("")
        if not strike(exchange, faulting, (exchange.party, key), slots, read, now=self.now()):
            return False
        check_upstream(exchange)
        self._keep_struck(exchange)
        return True

    def _keep_struck(self, exchange: Exchange) -> None:
        """Let the walk tell what the client of a struck call got; nothing of it is stored."""
        faulting, struck, response = exchange.session.faulting, exchange.struck, exchange.made
        if faulting is not None and struck is not None and response is not None:
            response, redacted = self.redactor.response(response)
            made = self._interaction(exchange, response, Usage(input=0, output=0), redacted=redacted)
            faulting.keep(exchange.seq, replace(made, occurrence=struck.call.nth))

    def _account(self, store: Store | None, exchange: Exchange, slot: RecordingSlot) -> None:
        """Keep a question whose key had to be derived beside the recording that answers it: `llmproxy audit` compares the two."""
        if self.journal.asks <= 0 or store is None or exchange.redacted is None or exchange.bound is not None:
            return
        request = exchange.redacted[1]
        same = store.has_request_body(slot.id, hashlib.sha256(request.body).digest())
        self.journal.asked(Asked(exchange.started_at, slot.id, request, same))

    def _recordings(self, store: Store, exchange: Exchange, key: Key, body: bytes) -> tuple[RecordingSlot, ...]:
        """Return the live recordings of a request: those of its key, after those that only the key of an older version finds."""
        session = exchange.session
        place = (session.cassette, session.sample)
        slots = store.slots(*place, exchange.party, key)
        if (derived := store.derived.get(place)) is None or not derived.before:
            return slots
        request = self._request(exchange, body)
        exchange.older = v1.key_of(request, exchange.route, self.config.rules, self._made_by(session))
        if session.first == (exchange.party, exchange.older):
            session.first = (exchange.party, key)
        return (*store.slots_before(*place, exchange.party, exchange.older), *slots)

    def _swapped(self, forking: Forking, exchange: Exchange, body: bytes) -> bytes | None:
        """Return the body with the results that are overridden; None refuses a request in which nobody can tell which ones are."""
        try:
            return swapped(forking, exchange, body, limit=self.config.max_request, told=self.told)
        except (RefusedError, UnknownArguments) as error:
            exchange.decision, exchange.error, exchange.note = Decision.REFUSE, error, error.message
            return None

    def _overridden(self, forking: Forking, exchange: Exchange) -> bool:
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
        made = self._interaction(exchange, exchange.made, Usage(input=0, output=0), redacted=False)
        forking.made[exchange.seq] = made
        if forking.forked and self._store is not None:  # by hand, so seldom: it need not wait for the writer's turn
            exchange.interaction = self._store.add(made, supersede=False)
            exchange.session.served.add(exchange.interaction)
        return True

    def _part(
        self, forking: Forking, exchange: Exchange, why: MissReason | None, recordings: int
    ) -> Decided[RecordingSlot]:
        """Let the run fork with this request: from here on it is recorded in the child."""
        if (store := self._store) is None:
            raise AssertionError("a fork without a store")
        miss = (
            None
            if why is None
            else self._explained(exchange, why, recordings, self._canonical(exchange, exchange.body or b""))
        )
        part(forking, exchange, miss, store=store, hide=self.redactor.text, now=self.now())
        return Decided(Decision.RECORD)

    def told(self, session: Session, call: CallEnded) -> Interaction | None:
        """Return what was said in a call that has ended; None where nothing is recorded of it."""
        for each in (session.forking, session.living, session.faulting, *session.aside):
            if each is not None and (made := each.made.get(call.seq)) is not None:
                return made
        return self.recorded(call.interaction)

    def _known(self, exchange: Exchange, body: bytes) -> tuple[Known, Canonical | None]:
        """Return what is known of a request, and its canonical form where that had to be made."""
        digest = self._memory.digest(exchange.counted, body)
        learned = self.redactor.learned
        if (known := self._memory.get(digest, learned)) is not None:
            return known, None
        if learned.count > ROTATING and exchange.redacted is None:
            derive = partial(self._canonical, exchange, body)
            canonical, noted = self.redactor.noted(derive, exchange.counted)
        else:
            canonical, noted = self._canonical(exchange, body), False
        model = canonical.model or named_model(canonical)
        known = Known(key_of(canonical), model, canonical.stream, canonical.refs, canonical.operation, noted)
        self._memory.put(digest, known, learned)
        return known, canonical

    def _request(self, exchange: Exchange, body: bytes) -> Request:
        """Return the request as it may be kept: content-encoding undone, secrets gone. Made once, unless more is learned."""
        learned, headers = self.redactor.learned.count, own_length(exchange.headers, len(exchange.body or b""))
        if exchange.redacted is not None and exchange.redacted[0] == learned and body is exchange.body:
            return exchange.redacted[1]
        coding = header(headers, "content-encoding")
        if coding and coding.strip().lower() != "identity":
            try:
                body, headers = decode(body, coding, self.config.max_request), without(headers, "content-encoding")
            except ValueError as why:
                exchange.note = f"request body is not {coding}: {why}"
        where = exchange.route
        request = self.redactor.request(
            Request(exchange.method, where.target, headers, body), where.provider.credentials
        )
        exchange.redacted = (learned, request)
        return request

    def _canonical(self, exchange: Exchange, body: bytes) -> Canonical:
        return canonicalize(
            self._request(exchange, body), exchange.route, self.config.rules, self._made_by(exchange.session)
        )

    def _made_by(self, session: Session) -> Callable[[str], Origin | None]:
        living = session.living
        live = living is not None and living.is_live(Channel.LLM)
        store, place = self.store, (living.child, 1) if living and live else (session.cassette, session.sample)

        def made_by(name: str) -> Origin | None:
            found = store.made_by(*place, name) if store else None
            return found or self._made_under_way(place, name)

        return made_by

    def _made_under_way(self, place: tuple[str, int], name: str) -> Origin | None:
        """Return which answer that is not stored yet made an id: a client may use what came in the first chunk before the last one came."""
        for each in self._under_way.get(place, {}).values():
            so_far = each.recording.so_far if each.key is not None else b""
            if name.encode("utf-8", "surrogatepass") not in so_far:
                continue
            made = new_ids(made_ids(each.family, each.operation, each.recording.kind, so_far), each.refs)
            if each.key is not None and name in made:
                return Origin(each.key, each.occurrence, made.index(name))
        return None

    def _miss(self, exchange: Exchange, why: MissReason, recordings: int) -> MissError:
        """Explain a miss: to the client in the error, and in the journal for `llmproxy why`."""
        wanted = self._canonical(exchange, exchange.body or b"")
        miss = self._explained(exchange, why, recordings, wanted)
        exchange.nearest = miss.nearest.id if miss.nearest else None
        exchange.asked = self.redactor.text(miss.context.last_user[:TEXT])
        if exchange.session.misses_again(wanted):
            exchange.repeats, exchange.note = True, REPEATED
            return MissError(self.redactor.text(miss.text))
        places = miss.nearest.places if miss.nearest else ()
        self.journal.miss(miss.to_dict(), at=exchange.started_at, places=places, steps=miss.steps)
        forking = exchange.session.forking
        more = forking.stopped(exchange, miss) if forking is not None and forking.asked_for and exchange.number else ""
        return MissError(self.redactor.text(miss.text + more))

    def _explained(self, exchange: Exchange, why: MissReason, recordings: int, wanted: Canonical) -> ExplainedMiss:
        from llmproxy.core.engine.deciding.missing import explain_miss

        return explain_miss(
            exchange,
            why,
            recordings,
            request=self._request(exchange, exchange.body or b""),
            wanted=wanted,
            config=self.config,
            store=self.store,
        )

    # --- the answer ------------------------------------------------------------------------------------------------

    def answer(self, exchange: Exchange) -> Response:
        """Return the recorded response that was chosen, and note it as served."""
        if exchange.made is not None:
            return exchange.made
        if exchange.slot is None or self._store is None:
            msg = "answer() is for exchanges decided REPLAY"
            raise ValueError(msg)
        response = exchange.bound.response if exchange.bound is not None else self._store.response(exchange.slot.id)
        if exchange.channel is Channel.MCP:
            exchange.talk = RecordedTalk(self._store, exchange, response)
            response = exchange.talk.response
        self._serve(exchange, exchange.slot)
        self._keep_answer(exchange, response)
        return response

    def plan(self, exchange: Exchange, client: ClientHttp, *, extra: Headers = ()) -> SendingPlan:
        """Lay out the recorded response that was chosen for its client, in the session's time."""
        if exchange.made is not None:
            return plan(exchange.made, client, speed=0, now=self.now(), extra=extra)
        if (slot := exchange.slot) is None:
            raise ValueError("plan() is for exchanges decided REPLAY")
        speed, now = exchange.session.speed, self.now()
        if exchange.bound is not None:
            extra = (*extra, (BOUND_HEADER, ", ".join(exchange.bound.names)))
        looked_at = exchange.bound is not None or exchange.session.living is not None
        if speed or looked_at or slot.status in REDIRECTS or exchange.channel is Channel.MCP:
            answer = self.answer(exchange)
            if (host := elsewhere(answer.headers)) is not None:
                exchange.note = f"location left out: it leads to {host}, and in replay nothing leaves the machine"
            return plan(answer, client, speed=speed, now=now, extra=extra, prefix=exchange.prefix)
        if self._store is None:
            raise ValueError("a recording without a store")
        laid = self._plans.at_once(slot.id, client, now=now, extra=extra, read=self._store.response)
        self._serve(exchange, slot)
        return SendingPlan(((0, laid.data),), laid.close)

    def plan_talk(self, exchange: Exchange, client: ClientHttp, *, extra: Headers = ()) -> OpenPlan | None:
        """Lay out how an answer of MCP begins that must wait for its client; None for every other. After `plan`."""
        talk = exchange.talk
        if talk is None or talk.turns is None or client.method == "HEAD":
            return None
        if exchange.bound is not None:
            extra = (*extra, (BOUND_HEADER, ", ".join(exchange.bound.names)))
        return plan_open(talk.response, client, now=self.now(), extra=extra)

    def plan_broken(self, exchange: Exchange, client: ClientHttp, *, extra: Headers = ()) -> SendingPlan:
        """Lay out what the client sees of a call that a fault struck: decided FAULT, or passed and over."""
        return lay_out(exchange, client, now=self.now(), extra=extra)

    @staticmethod
    def _serve(exchange: Exchange, slot: RecordingSlot) -> None:
        exchange.session.served.add(slot.id)
        exchange.interaction = slot.id
        if exchange.bound is not None and exchange.session.bound is not None:
            exchange.session.bound.learn(exchange.bound.identities)

    def stored(self, exchange: Exchange, *, proper: bool) -> Usage:
        """Put the provider's answer into the store and return what it used. Blocks: call it from the writer's thread.

        Raises:
            RecordingError: the store could not take it.
            CassetteError: the store cannot be written.

        """
        return self.stored_together([(exchange, proper)])[0]

    def stored_together(self, ended: Sequence[tuple[Exchange, bool]]) -> list[Usage]:
        """Put several answers into the store in one transaction: all or, if this raises, none of them. Else as `stored`."""
        made = [self._made(exchange, proper=proper) for exchange, proper in ended]
        kept = [(exchange, one) for (exchange, _), one in zip(ended, made, strict=True) if one is not None]
        first = [exchange.session.supersedes(exchange.walker) for exchange, _ in kept]
        if (store := self._store) is not None and kept:
            livings = {id(each): each for exchange, _ in kept if (each := exchange.session.living) is not None}
            waiting = [one for each in livings.values() for one in each.take()]
            try:
                ids = store.add_all(
                    [
                        *map(Addition, waiting),
                        *(
                            Addition(one, supersede=supersede, healing=exchange.session.failed)
                            for (exchange, one), supersede in zip(kept, first, strict=True)
                        ),
                    ]
                )
            except BaseException:
                for one in waiting:
                    next(each for each in livings.values() if each.child == one.cassette).waiting.append(one)
                for (exchange, _), supersede in zip(kept, first, strict=True):
                    if supersede:
                        exchange.session.superseded.discard(exchange.walker)
                raise
            for (exchange, one), stored in zip(kept, ids[len(waiting) :], strict=True):
                self._noted(exchange, one, stored)
        return [Usage() if one is None else one.usage for one in made]

    def _made(self, exchange: Exchange, *, proper: bool) -> Interaction | None:
        """Return what is to be stored of an exchange, None if nothing is. Raises RecordingError."""
        if self._store is None or exchange.key is None or exchange.body is None:
            raise RecordingError("the request's body never came to its end")
        if exchange.recording.damaged:
            raise RecordingError("a piece of the answer was lost")
        response = exchange.recording.end(exchange.family, exchange.operation, stream=exchange.stream, proper=proper)
        if 400 <= response.status < 500 and self._stale(exchange):
            exchange.decision = Decision.PASS
            exchange.note = STALE
            return None
        response, redacted = self.redactor.response(as_kept(exchange, response))
        kind, body = header(response.headers, "content-type") or "", response.body
        usage = usage_of(exchange.family, exchange.operation, kind, body, response.headers)
        return self._interaction(exchange, response, usage, redacted=redacted or exchange.recording.overwritten)

    def _noted(self, exchange: Exchange, made: Interaction, stored: int) -> None:
        """Note that an exchange is stored, as interaction `stored`."""
        exchange.interaction, exchange.model = stored, made.model
        if exchange.session.living is not None:
            announce(exchange, exchange.session.living, made.response)
        exchange.session.served.add(stored)
        if not RecordingSlot(stored, 0, made.response.status, made.response.ending).good:
            exchange.session.failed.add(stored)
        # Not from the store: reading it belongs to the event loop, and this is the writer's thread.
        said, replied, _ = describe(made)
        exchange.asked, exchange.answered = (said or "")[:TEXT], (replied or "")[:TEXT]
        self.sessions.stored(exchange.session)
        how = made.response.ending
        exchange.note = exchange.note or ("" if how == "complete" else f"incomplete ({how})")

    def _interaction(self, exchange: Exchange, response: Response, usage: Usage, *, redacted: bool) -> Interaction:
        """Return an exchange as it is stored; the response is redacted already."""
        kind, body = header(response.headers, "content-type") or "", response.body
        return Interaction(
            provider=exchange.route.provider.name,
            operation=exchange.operation,
            key=exchange.key or Key(""),
            request=_sent_to(exchange.route.upstream, self._request(exchange, exchange.body or b"")),
            response=response,
            started_at=exchange.started_at,
            cassette=exchange.place[0],
            sample=exchange.place[1],
            party=exchange.party,
            occurrence=exchange.occurrence or exchange.nth,
            model=self._model(exchange, kind, body),
            stream=exchange.stream,
            upstream=exchange.route.upstream,
            usage=usage,
            redacted=redacted,
            rules=self.config.rules.digest,
            circumstances=self._declared(exchange.session),
            made_ids=new_ids(made_ids(exchange.family, exchange.operation, kind, body), exchange.refs),
            older=exchange.older,
        )

    def _declared(self, session: Session) -> str:
        """Return the circumstances under which a session records, without what is secret."""
        return "" if session.bound is None else self.redactor.text(session.bound.said)

    def _stale(self, exchange: Exchange) -> bool:
        """Tell whether a request names an id that was served from a recording: the provider may have forgotten it by now."""
        if exchange.session.policy.plays is Plays.NOTHING or not exchange.refs:
            return False
        origins = map(self._made_by(exchange.session), exchange.refs)
        return any(origin is not None and not exchange.session.records(origin.key) for origin in origins)

    def passed(self, exchange: Exchange, *, proper: bool) -> Usage:
        """Read what an answer used that is not stored."""
        where = exchange.route
        if where.not_llm:
            return Usage()
        response = exchange.recording.end(exchange.family, exchange.operation, stream=exchange.stream, proper=proper)
        if exchange.struck is not None:
            break_passed(exchange, exchange.struck, response)
            self._keep_struck(exchange)
        kind = header(response.headers, "content-type") or ""
        return usage_of(exchange.family, exchange.operation, kind, response.body, response.headers)

    @staticmethod
    def _model(exchange: Exchange, kind: str, body: bytes) -> str | None:
        """Return the model's name; Azure's path names a deployment, and only the answer the model behind it (and so its price)."""
        named = exchange.model
        if named is not None and exchange.route.provider.name != "azure":
            return named
        return model_of(exchange.family, exchange.operation, kind, body) or named

    # --- what is said about it -------------------------------------------------------------------------------------

    def outcome(self, exchange: Exchange, status: int, *, usage: Usage | None = None, lost: bool = False) -> Outcome:
        """Sum up an exchange that is over, and write it into the journal."""
        replayed = exchange.decision is Decision.REPLAY and exchange.interaction is not None
        outcome = outcome_of(
            exchange,
            status,
            target=self.shown(exchange.route.target),
            seconds=self.clock() - exchange.arrived,
            priced=self._prices.of(self._store, exchange.interaction or 0) if replayed else None,
            usage=usage,
            lost=lost,
        )
        said = REPEATED if exchange.repeats else exchange.error.message if exchange.error is not None else ""
        self._under_way.get(exchange.place, {}).pop(id(exchange), None)
        exchange.session.tally.add(outcome, said if outcome.miss else "")
        exchange.session.calls.add(outcome, said)
        if exchange.session.forking is not None:
            exchange.session.forking.ended(exchange, status)
        self.journal.decision(outcome)
        return outcome

    def shown(self, target: str) -> str:
        """Return a request's target, redacted; the same few come all the time."""
        learned, known = self.redactor.learned, self._targets
        if (seen := known.get(target)) is not None and learned.changes_nothing(seen[1], noted=seen[2]):
            return seen[0]
        if len(known) > SHOWN_TARGETS:
            known.clear()
        text, noted = self.redactor.noted(partial(self.redactor.line, target), target.encode("utf-8", "replace"))
        known[target] = text, learned.count, noted
        return text

    def refused(self, method: str, target: str, status: int, error: LLMProxyError) -> Outcome:
        """Sum up a request that belongs nowhere."""
        outcome = Outcome(
            decision=Decision.REFUSE,
            method=method,
            target=self.redactor.line(target),
            status=status,
            note=self.redactor.text(error.message),
            at=self.now(),
        )
        self.journal.decision(outcome)
        said = unsigned(self.redactor.text(str(error))).replace("\n", " ")
        self.strays.append(
            Stray(outcome.at, method[:LONGEST_STRAY], outcome.target[:LONGEST_STRAY], status, said[: 2 * LONGEST_STRAY])
        )
        return outcome

    def meet_handshake(self, host: str, port: int, user: str | None) -> Outcome | None:
        """Return what became of an intercepted connection whose handshake a fault on purpose strikes; None if none does.

        `user` is the session that the client's proxy URL named. Raises RefusedError, CassetteBusy: there cannot be such a session.
        """
        name = user or self.config.cassette
        session = self.sessions.known(name)
        if session is None and self.config.faults is not None:
            session = self.sessions.get(name)
        if session is None or session.faulting is None:
            return None
        provider = provider_of_host(host, port)
        named = "" if provider is None else provider.name
        if (struck := session.faulting.strike_handshake(session.name, named, f"{host}:{port}")) is None:
            return None
        outcome = Outcome(
            decision=Decision.FAULT,
            method="CONNECT",
            target=self.redactor.line(f"{host}:{port}"),
            status=0,
            session=session.name,
            provider=named,
            note=str(struck.fault),
            fault=struck.fault.kind.name,
            at=self.now(),
            seq=session.calls.begin(),
        )
        session.tally.add(outcome)
        session.calls.add(outcome)
        self.journal.decision(outcome)
        return outcome

    def listen_on(self, port: int) -> None:
        """Hear which port was free, where any would do: who is told to start the proxy again has clients that know this one."""
        again = self.config.again
        if ("port", "0") in again.options:
            options = tuple((name, str(port) if name == "port" else value) for name, value in again.options)
            self.config = replace(self.config, again=replace(again, options=options))

    def notes(self) -> list[str]:
        """Return what a user should know before the first request."""
        store, cassette = self.store, self.config.cassette
        if self.config.mode not in OFFLINE:
            return []
        shown = self.config.store_words
        if store is None:
            record = self.config.again.command("record", store=shown)
            return [f"there is no store {shown} yet, so every request will be a miss. Record first: {record}"]
        self._make_ready(store, cassette, 1)
        if not store.has(cassette, 1) and (others := store.names(10)):
            return [f"cassette {cassette} is empty; {shown} has: {', '.join(others)}"]
        if "coding-agents" in self.config.rules.packs:
            return [
                f"the pack coding-agents stays as it is; `{self.config.learn_command(cassette)}` does more, and needs no rule"
            ]
        return []

    # --- the end ---------------------------------------------------------------------------------------------------

    def unused(self) -> int | None:
        """Count the live recordings of the sessions' cassettes that no session played or made."""
        if self._store is None:
            return None
        served: dict[tuple[str, int], Ids] = {}
        for session in [*self.sessions.walks.values(), *self.sessions.closed]:
            served.setdefault((session.cassette, session.sample), Ids()).update(session.served)
        live = self.config.live.channels if self.config.live is not None else ()
        return sum(count_unused(self._store, *place, ids, live) for place, ids in served.items())

    def declare(self, name: str, circumstances: Sequence[Circumstance]) -> Session:
        """Declare circumstances of an open session's run; what was captured after a tool made it is kept as a slot. Raises SessionUnknown."""
        session = self.sessions.declare(name, circumstances)
        if session.policy.writes and session.served and self._store is not None:
            self.binder.note_captured(session, self._store, circumstances)
        return session

    def unused_of(self, session: Session) -> list[RowSummary] | None:
        """Return the live recordings of a session's cassette that it neither played nor made; None where nothing is recorded."""
        store, living = self.store, session.living
        unused = store.unused(session.cassette, session.sample, session.served) if store else None
        if unused is None or living is None:
            return unused
        return [row for row in unused if not living.is_live(row.channel)]

    def idle_faults(self, session: Session | None = None) -> list[str]:
        """Say of each rule that struck nothing why: of a session's faults, or of the proxy's over all its sessions."""
        faulting = None if session is None else session.faulting
        faults, strikes = self.config.faults, self.sessions.struck
        if session is not None:
            faults, strikes = (None, strikes) if faulting is None else (faulting.faults, faulting.strikes)
        if faults is None or all(strikes.get(number) for number in range(1, len(faults.rules) + 1)):
            return []
        walks = list(self.sessions.walks.values()) if session is None else [session]
        came = sum(each.calls.arrived for each in walks) + sum(strikes.values())
        places = {(each.cassette, each.sample) for each in (*walks, *(self.sessions.closed if session is None else ()))}
        store = self.store
        calls = [] if store is None else [call for place in sorted(places) for call in recorded_calls(store, *place)]
        return explain_idle(faults, strikes, calls, came=came + len(self.sessions.closed))

    def listed(self, name: str | None, limit: int) -> list[RowSummary]:
        """Return the last live interactions, of one session's cassette where that is named."""
        store = self.store
        if store is None:
            return []
        cassette, sample = split_name(name) if name is not None else (None, None)
        return store.summaries(cassette, sample, limit=limit)

    def recorded(self, interaction: int | None) -> Interaction | None:
        """Return a recording; None where there is none, or it is gone from the store meanwhile. Raises CassetteCorrupt."""
        store = self.store
        if store is None or interaction is None:
            return None
        try:
            return store.load(interaction)
        except CassetteNotFound:
            return None

    def close(self) -> None:
        """End all sessions cleanly and close the store."""
        if self._store is None:
            return
        try:
            self.sessions.close_all()
        finally:
            self._store.close()


def _sent_to(upstream: str, request: Request) -> Request:
    """Return a request with the host that it was sent to: the client's names our own port, which is another one in each run."""
    host = upstream.partition("://")[2].partition("/")[0].rpartition("@")[2]
    if not host or header(request.headers, "host") in (None, host):
        return request
    headers = tuple((name, host if name.lower() == "host" else value) for name, value in request.headers)
    return replace(request, headers=headers)
