"""All sessions of one proxy: opened by name, by the control API or by the first request; bound, reset, closed.

A session that was *opened* (control API, `llmproxy run`, the pytest plugin) has its own mode, speed, exhausted rule and
upstreams, and ends with `close`. One that nobody opened has the proxy's. A *binding* sends what arrives under one name
to another session: a process whose base URL names `worker` can so walk a cassette of its own in each test. Bindings are
looked up once, never in a chain.

One cassette and sample has one session: ``x`` and ``x~1`` are the same. Of a session that ended only the ids of what it
served are kept, for the summary of the run.
"""

from __future__ import annotations

import logging
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import starmap
from typing import NamedTuple, Protocol
from urllib.parse import quote

from llmproxy.core.bindings import RunVariable
from llmproxy.core.bindings.volatile_fields import list_shipped
from llmproxy.core.faults.injection import Faulting
from llmproxy.core.faults.values import Faults
from llmproxy.core.forks.overrides import Overrides
from llmproxy.core.forks.table import LIVE, Fork, drop, fork_of, put, reserve
from llmproxy.core.live_channels import LiveChannels, LiveSession
from llmproxy.core.sessions.bound import Bound, LearningTrial
from llmproxy.core.sessions.end_order import EndOrder, RecordedCall, find_concurrent
from llmproxy.core.sessions.forking import Forking
from llmproxy.core.sessions.session import Session, split_name
from llmproxy.core.store.queries import list_times, volatile_fields_of
from llmproxy.core.store.reading import KeyedRecording, Rekeying
from llmproxy.core.store.store import Store
from llmproxy.errors import LLMProxyError, RefusedError
from llmproxy.protocol import AGENT, CONTROL_PREFIX, OFFLINE, Exhausted, Mode, Plays, Scope

log = logging.getLogger(__name__)

MOST_ASIDE = 3
"""Sets of faults, besides the last one, that a session remembers."""
_SHOWN_NAMES = 10
_LATE = "llmproxy, late"
"""A holder that never holds a lease: what comes after the end only marks the cassette as complete."""


class SessionBusy(LLMProxyError):
    """The session is open or bound already."""

    code = "llmproxy_session_busy"
    status = 409
    bound_to: str = ""
    """The session that the name is bound to; empty where it is busy otherwise."""


class SessionUnknown(LLMProxyError):
    """No session of this name is open."""

    code = "llmproxy_session_unknown"
    status = 404


class NothingToServe(RefusedError):
    """Some channels are to be live, and nothing is recorded of the others."""

    code = "llmproxy_nothing_to_serve"
    status = 404


class LiveForbidden(RefusedError):
    """A replay proxy was asked for a session that may reach the network."""

    code = "llmproxy_live_forbidden"
    status = 403


@dataclass(frozen=True, slots=True)
class SessionDefaults:
    """What a session is like unless it says otherwise."""

    mode: Mode
    speed: float
    exhausted: Exhausted
    allow_live: bool = False
    bind: Scope = Scope.ALL
    faults: Faults | None = None
    """Injected faults."""
    live: LiveChannels | None = None
    """What goes live."""
    order_wait: float = 0.0
    """As of `Config`."""


class Walked(Protocol):
    """What a session, open or ended, says for the summary of the run."""

    @property
    def cassette(self) -> str: ...

    @property
    def sample(self) -> int:
        """Its recorded trial."""

    @property
    def served(self) -> Collection[int]:
        """Ids of the interactions that it played or made."""


class SessionEnded(NamedTuple):
    """What is left of all sessions of one cassette and sample that have ended."""

    cassette: str
    sample: int
    served: Collection[int]
    """Ids of the interactions that they played or made."""


def canonical(name: str) -> str:
    """Return the one name of a session: its cassette, with ``~sample`` from the second on.

    Raises RefusedError for a name that cannot be.
    """
    if name and "~" not in name:  # nearly always; what else may be wrong with it is said when the session begins
        return name
    cassette, sample = split_name(name)
    return cassette if sample == 1 and split_name(cassette) == (cassette, 1) else f"{cassette}~{sample}"


@dataclass(slots=True)
class Sessions:
    defaults: SessionDefaults
    store: Callable[[Mode], Store | None]
    """Returns the store, ready for what the mode does with it; None where there is none yet."""
    holder: str
    on_run_end: Callable[[Session], None] = lambda _session: None
    """Hears of a session that recorded and has ended, its store at rest. May raise LLMProxyError."""
    hear_begin: Callable[[Store, str, int], None] = lambda _store, _cassette, _sample: None
    """Makes a cassette (and sample) of the store ready, before a session looks into it."""
    keep: Callable[[LiveSession], None] = lambda _living: None
    """Stores what waits of a session with live channels, before its end."""
    now: Callable[[], float] = lambda: 0.0
    """Unix seconds, of what is noted about a session."""
    walks: dict[str, Session] = field(default_factory=dict)
    bindings: dict[str, str] = field(default_factory=dict)
    speakers: dict[str, str] = field(default_factory=dict)
    """Names that are bound for another party than the agent."""
    """name in the request -> session that it belongs to."""
    injected: Counter[int] = field(default_factory=Counter)
    """How often each rule of the proxy's faults struck, over all sessions."""
    _served: dict[tuple[str, int], array[int]] = field(default_factory=dict)
    """By cassette and sample: what its ended sessions played or made. 8 bytes an id, since a proxy may see 100,000
    sessions.
    """

    @property
    def closed(self) -> list[Walked]:
        """What the sessions that have ended come to, for the summary of the run."""
        return [SessionEnded(*place, served) for place, served in self._served.items()]

    def get(self, name: str) -> Session:
        """Return the session that a request under `name` belongs to, opened now if need be."""
        name = canonical(name)
        name = self.bindings.get(name, name)
        defaults = self.defaults
        return self.walks.get(name) or self._begin(
            name, defaults.mode, defaults.speed, defaults.exhausted, defaults.live
        )

    def find_open(self, name: str) -> Session | None:
        """Return the session that a request under `name` would belong to, if it is open. Raises RefusedError."""
        if not name or "~" in name:
            name = canonical(name)
        return self.walks.get(self.bindings.get(name, name))

    def open(
        self,
        name: str,
        *,
        mode: Mode | None = None,
        speed: float | None = None,
        exhausted: Exhausted | None = None,
        upstreams: Mapping[str, str] | None = None,
        forking: Forking | None = None,
        child: str | None = None,
        run_variables: Iterable[RunVariable] = (),
        bind: Scope | None = None,
        faults: Faults | None = None,
        live: LiveChannels | None = None,
    ) -> Session:
        """Open a session with properties of its own; what is None is the proxy's.

        A session of this name that nobody opened ends; what is bound to it stays bound. `forking` says what is
        overridden, and whether what parts from the recording goes on live; then `child` is the name of its cassette,
        None for one that we find. `run_variables` are declared of the run, `bind` says what of them counts. `live` are
        the channels that are not served from the recording; none is nothing.

        Raises:
            SessionBusy: it is open already.
            RefusedError: the name cannot be.
            LiveForbidden: a replay proxy was asked for a mode with a network, or for live channels.
            NothingToServe: channels are to be live, and nothing is recorded of the others.
            CassetteBusy: another session records this cassette.
            CassetteExists: there is a `child` already.

        """
        name = canonical(name)
        known = self.walks.get(name)
        if known is not None and known.opened:
            hint = f"Close it first: POST {CONTROL_PREFIX}sessions/{quote(name, safe='')}/close"
            raise SessionBusy(f"llmproxy: session {name!r} is open already.", hint=hint)
        mode = mode or self.defaults.mode
        self._refuse_network(mode, forking)
        live = self._may_be_live(live, mode, forking, faults)
        if known is not None:
            self._leave(known)
        session = self._begin(
            name, mode, self.defaults.speed if speed is None else speed, exhausted or self.defaults.exhausted, live
        )
        session.opened = True
        if forking is not None:
            try:
                self._may_fork(session, forking, child)
            except BaseException:
                del self.walks[session.name]
                raise
        session.upstreams = dict(upstreams or {})
        session.bound = self._build_bound(session, self.defaults.bind if bind is None else bind)
        self._declare(session, run_variables)
        self.set_faults(session, self.defaults.faults if faults is None else faults)
        return session

    def _refuse_network(self, mode: Mode, forking: Forking | None) -> None:
        """Refuse overrides of what is not replayed, and a network that this proxy was not allowed.

        Raises RefusedError, LiveForbidden.
        """
        forks = forking is not None and forking.live
        if forking is not None and not forking.mocks and mode not in OFFLINE:
            msg = f"llmproxy: overrides and forks are for sessions in mode replay; this one is in {mode}."
            raise RefusedError(msg, hint="What differs from the recording can go on live, recorded in a fork.")
        if (mode not in OFFLINE or forks) and self.defaults.mode in OFFLINE and not self.defaults.allow_live:
            which = "that forks" if forks else f"in mode {mode}"
            msg = f"llmproxy: this proxy was started in replay; a session {which} may reach the network."
            raise LiveForbidden(msg, hint="Start the proxy with --allow-live to permit it.")

    def _may_be_live(
        self, live: LiveChannels | None, mode: Mode, forking: Forking | None, faults: Faults | None
    ) -> LiveChannels | None:
        """Return the channels of a session that are live; its own, else the proxy's.

        Raises RefusedError, LiveForbidden.
        """
        chosen = live if live is not None else self.defaults.live if mode in OFFLINE else None
        if chosen is None or not chosen.channels:
            return None
        named = f"live channels ({', '.join(sorted(chosen.channels))})"
        if mode not in OFFLINE:
            msg = f"llmproxy: {named} are for sessions in mode replay; this one is in {mode}."
            raise RefusedError(msg, hint="What is not live is served from the recording.")
        if forking is not None and not forking.mocks:
            msg = f"llmproxy: {named} and overrides or forks exclude each other."
            raise RefusedError(msg, hint="Give the session either.")
        met = self.defaults.faults if faults is None else faults
        if met is not None and met.rules:
            raise RefusedError(f"llmproxy: {named} and injected faults exclude each other.", hint="Give either.")
        if chosen != self.defaults.live and self.defaults.mode in OFFLINE and not self.defaults.allow_live:
            msg = f"llmproxy: this proxy was started in replay; a session with {named} reaches the network."
            raise LiveForbidden(msg, hint="Start the proxy with --allow-live, or with --live itself, to permit it.")
        return chosen

    def set_faults(self, session: Session, faults: Faults | None, *, again: bool = False) -> None:
        """Let a session meet other faults from its next call on; none if there are no rules.

        They count anew; `again`: a set that it met before others (a scenario's, after those of a step) goes on where it
        stood.
        """
        if session.faulting is not None:
            session.aside = [*session.aside[-MOST_ASIDE:], session.faulting]
        if session.live is not None and faults is not None and faults.rules:
            msg = "llmproxy: live channels and injected faults exclude each other."
            raise RefusedError(msg, hint="Give either.")
        before = next((each for each in session.aside[::-1] if again and each.faults == faults), None)
        if faults is None or not faults.rules:
            session.faulting = None
        elif before is not None:
            session.aside = [each for each in session.aside if each is not before]
            session.faulting = before
        elif faults is self.defaults.faults:
            session.faulting = Faulting(faults, total=self.injected)
        else:
            session.faulting = Faulting(faults)

    def declare(self, name: str, run_variables: Iterable[RunVariable]) -> Session:
        """Declare run variables of an open session's run, which count from the next request on.

        Raises SessionUnknown.
        """
        session = self.get_session(name)
        self._declare(session, run_variables)
        return session

    def _declare(self, session: Session, run_variables: Iterable[RunVariable]) -> None:
        found = tuple(run_variables)
        if found and session.bound is None:
            store = self.store(session.mode)
            slots = volatile_fields_of(store, session.cassette) if store else ()
            session.bound = Bound(self.defaults.bind, slots=(*slots, *list_shipped()))
        if found and session.bound is not None:
            session.bound.declare(found)

    def _build_bound(self, session: Session, scope: Scope) -> Bound | None:
        """Return what a session binds before anything is declared.

        None where its cassette has no slots and the scope is the proxy's.
        """
        store = self.store(session.mode)
        slots = volatile_fields_of(store, session.cassette) if store is not None and scope is Scope.ALL else ()
        return Bound(scope, slots=(*slots, *list_shipped())) if slots or scope is not self.defaults.bind else None

    def try_out(self, session: Session) -> None:
        """Let a session's misses teach what varies. Raises RefusedError where it does not replay, or binds no slots."""
        if session.mode not in OFFLINE:
            raise RefusedError("llmproxy: only a replay can be tried: nothing is learned from answers that are new.")
        if session.bound is None:
            store = self.store(session.mode)
            slots = volatile_fields_of(store, session.cassette) if store else ()
            session.bound = Bound(self.defaults.bind, slots=(*slots, *list_shipped()))
        if session.bound.scope is not Scope.ALL:
            raise RefusedError("llmproxy: what varies can be learned only with --bind all.")
        session.bound.trial = LearningTrial()

    def _may_fork(self, session: Session, forking: Forking, child: str | None) -> None:
        """Give a session its overrides, above those that its cassette has; reserve the child."""
        inherited = session.forking.overrides if session.forking is not None else Overrides()
        forking.overrides, forking.asked_for = forking.given.over(inherited), not forking.mocks
        forking.parent = session.cassette, session.sample
        if forking.live and (store := self.store(Mode.RECORD)) is not None:
            taken = [place[0] for each in self.walks.values() if (place := each.leased) is not None]
            forking.child = reserve(store, session.cassette, child, self.holder, taken)
        session.forking = forking

    def _live(self, name: str, live: LiveChannels) -> LiveSession:
        """Begin the cassette in which a session with live channels is kept. Raises NothingToServe."""
        cassette, sample = split_name(name)
        store = self.store(Mode.REPLAY)
        places = [(cassette, each) for each in dict.fromkeys((sample, 1))]
        parent = next((place for place in places if store is not None and store.has(*place)), None)
        if parent is None:
            msg = (
                f"llmproxy: nothing is recorded in cassette {cassette!r},"
                " so there is nothing to serve beside live channels."
            )
            raise NothingToServe(msg, hint="Record it first, with its tools.")
        living = LiveSession(live, parent, "")
        self._new_child(living)
        return living

    def _new_child(self, living: LiveSession) -> None:
        if (store := self.store(Mode.RECORD)) is None:
            raise AssertionError("a live run without a store")
        taken = [place[0] for each in self.walks.values() if (place := each.leased) is not None]
        living.child = reserve(store, living.parent[0], None, self.holder, taken, kind="live")
        fork = Fork(living.child, living.parent[0], 1, why=f"{LIVE}{', '.join(sorted(living.asked.channels))}")
        put(store, replace(fork, parent_sample=living.parent[1], created_at=self.now()))
        living.again = living.begun = False

    def renew(self, session: Session) -> None:
        """Begin to keep something: in another child than before if the session started again.

        That blocks for a few short transactions.
        """
        if session.live is not None and session.live.again:
            self._end(session)
            self._new_child(session.live)
        if session.live is not None:
            session.live.begun = True

    def find_first(self, session: Session, store: Store) -> None:
        """Read with which request the cassette begins, and the order in which its concurrent calls ended."""
        session.first = store.first_key(session.cassette, session.sample)
        if self.defaults.order_wait and session.policy.plays is not Plays.NOTHING:
            groups = find_concurrent(starmap(RecordedCall, list_times(store, session.cassette, session.sample)))
            session.order = EndOrder(groups, self.defaults.order_wait) if groups else None

    def _begin(
        self, name: str, mode: Mode, speed: float, exhausted: Exhausted, live: LiveChannels | None = None
    ) -> Session:
        living = None if live is None else self._live(name, live)
        cassette, sample = split_name(name) if living is None else living.parent
        session = Session(name, cassette, sample, mode, speed, exhausted, live=living)
        if (store := self.store(mode)) is not None:
            self.hear_begin(store, cassette, sample)
            self.find_first(session, store)
            if (fork := fork_of(store, cassette, sample)) is not None and fork.overrides.tools:
                kept = Overrides(fork.overrides.tools)  # answers made by hand are recorded in it
                session.forking = Forking(kept, parent=(cassette, sample))
            if mode.policy.complete is not None and store.has(cassette, sample):
                session.complete = store.closed_cleanly(cassette, sample)
                if not session.complete:
                    log.warning(
                        "cassette %s is open (its recording did not come to a good end):"
                        " what is whole is replayed, the rest recorded",
                        name,
                    )
            session.bound = self._build_bound(session, self.defaults.bind)
            if session.policy.writes:
                store.begin(
                    cassette, sample, exclusive=session.policy.alone, holder=self.holder, anew=session.policy.anew
                )
        self.set_faults(session, self.defaults.faults)
        self.walks[name] = session
        return session

    def get_session(self, name: str) -> Session:
        """Return an open session. Raises SessionUnknown."""
        if name and (session := self.walks.get(canonical(name))) is not None:
            return session
        names = [f"{each[:40]!r}" for each in sorted(self.walks)[:_SHOWN_NAMES]]
        more = ", ..." if len(self.walks) > _SHOWN_NAMES else ""
        raise SessionUnknown(
            f"llmproxy: no session {name[:100]!r} is open.", hint=f"Open now: {', '.join(names) or 'none'}{more}"
        )

    def reset(self, name: str) -> Session:
        """Let a session walk from the start again; what it counted stays. What it recorded so far is to be replaced."""
        session = self.get_session(name)
        if session.forking is not None and session.forking.forked:
            raise SessionBusy(f"llmproxy: session {name!r} has forked, so it cannot start again.", hint="Close it.")
        session.restart()
        session.superseded.clear()
        return session

    def close(self, name: str, *, complete: bool | None = None) -> Session:
        """End a session: give its lease back, mark its cassette as complete or leave it open, unbind it.

        `complete` None: complete unless an answer in it is cut, or failed and no good one came after it.

        Raises SessionUnknown; CassetteBusy if the store is held by another program for seconds: then the session is
        still open.
        """
        session = self.get_session(name)
        session.sealed = complete
        self._leave(session)
        self.bindings = {source: target for source, target in self.bindings.items() if target != session.name}
        self.speakers = {source: party for source, party in self.speakers.items() if source in self.bindings}
        return session

    def _leave(self, session: Session) -> None:
        self._end(session)
        del self.walks[session.name]
        self._keep(session)

    def _keep(self, session: Session) -> None:
        place = (session.cassette, session.sample)
        self._served[place] = array("q", {*self._served.get(place, ()), *session.served})

    def _end(self, session: Session) -> None:
        place = session.leased or ((session.cassette, session.sample) if session.policy.writes else None)
        if place is not None and (store := self.store(Mode.RECORD)) is not None:
            if session.live is not None:
                self.keep(session.live)
                if not store.has(*place):
                    drop(store, *place)
            store.end(*place, self.holder, clean=session.sealed)
            if session.policy.writes:
                self.on_run_end(session)

    def reopen(self, session: Session, left: KeyedRecording) -> Callable[[], None]:
        """Return what makes an answer that its client left count as left once, so that it is asked live once more: who
        asks today reads on. It blocks.
        """
        store, place = self.store(session.mode), (session.cassette, session.sample)
        rows = store.list_keys(*place) if store is not None else []
        mine = next((each for each in rows if each.id == left.id), None)

        def write() -> None:
            if store is None or mine is None:
                return
            alike = [each.occurrence for each in rows if (each.party, each.key) == (mine.party, mine.key)]
            turn = sorted(alike).index(mine.occurrence) + 1
            try:
                store.begin(*place, exclusive=True, holder=_LATE, anew=False)
                try:
                    store.rekey([Rekeying(mine.id, mine.key, mine.key, turn, mine.rules)])
                finally:
                    store.end(*place, _LATE, clean=False)
            except LLMProxyError as why:
                log.warning("recording #%s will not be asked live again: %s", mine.id, why.message)

        return write

    def on_recording_stored(self, session: Session) -> None:
        """Hear that a recording of `session` was stored, maybe after its end.

        Then its cassette is as complete as it was left. Blocks.
        """
        if self.walks.get(session.name) is session:
            return
        self._keep(session)
        try:
            if (store := self.store(session.mode)) is not None:
                place = (session.cassette, session.sample) if session.live is None else (session.live.child, 1)
                store.end(*place, _LATE, clean=session.sealed)
                if session.live is None:
                    self.on_run_end(session)
        except Exception as error:  # noqa: BLE001 - the answer itself is stored: who hears otherwise stores it twice
            # Another close can say again that it is the last.
            why = error.message if isinstance(error, LLMProxyError) else f"{type(error).__name__}: {error}"
            log.warning("cassette %s could not be marked as complete: %s", session.name, why)

    def bind(self, name: str, session: str, party: str = AGENT) -> None:
        """Send what arrives under `name` to `session`, as calls of `party` where a request names none.

        Raises:
            SessionUnknown: there is no such session.
            SessionBusy: the name is bound already.
            RefusedError: the name cannot be, or is the session's own.

        """
        target = self.get_session(session).name
        split_name(name)
        name = canonical(name)
        if name == target:
            raise RefusedError(f"llmproxy: what arrives under {name!r} belongs to that session anyway.")
        if name in self.bindings:
            msg = f"llmproxy: {name!r} is bound to session {self.bindings[name]!r} already."
            busy = SessionBusy(msg, hint="Unbind or close that first.")
            busy.bound_to = self.bindings[name]
            raise busy
        self.bindings[name] = target
        if party != AGENT:
            self.speakers[name] = party

    def unbind(self, name: str) -> None:
        """Let what arrives under `name` be its own session again. Raises SessionUnknown."""
        if not name or self.bindings.pop(canonical(name), None) is None:
            raise SessionUnknown(f"llmproxy: {name[:100]!r} is not bound.")
        self.speakers.pop(canonical(name), None)

    def speaker(self, name: str) -> str:
        """Return the party that what arrives under `name` belongs to, unless the request says so itself."""
        return self.speakers.get(canonical(name), AGENT) if self.speakers and name else AGENT

    def heartbeat(self) -> None:
        """Keep the leases of recording sessions."""
        for session in list(self.walks.values()):
            if (place := session.leased) is not None and (store := self.store(Mode.RECORD)) is not None:
                store.heartbeat(*place, self.holder)

    def close_all(self) -> None:
        """End every session, the last thing before the store is closed.

        One that cannot be ended does not keep the others.
        """
        failure: LLMProxyError | None = None
        for session in list(self.walks.values()):
            try:
                self._end(session)
            except LLMProxyError as error:
                failure = failure or error
        if failure is not None:
            raise failure
