"""Sessions: one client's run through one cassette with its calls, and all sessions of one proxy.

A session counts the arrivals of each key, so that the n-th request gets the n-th recording. A session that was not
opened explicitly is created by a request with its name. It *restarts* by itself when the cassette's first request
arrives again although its recordings are used up and another key was served since: that is the second run of the same
agent against one running proxy, and it gets the same answers.
"""

from __future__ import annotations

import logging
import re
from array import array
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar
from urllib.parse import quote

from llmproxy.calls_and_totals import Call, Totals
from llmproxy.core.forks.fork_rows import lease_cassette_name
from llmproxy.core.keys.normalize import Canonical, build_key
from llmproxy.core.keys.server_state_in_keys import ServerObjectChangeLog
from llmproxy.core.sessions.call_interceptor import SessionCallInterceptor
from llmproxy.core.store.store import Store
from llmproxy.core.traffic.interaction import Key
from llmproxy.errors import LLMProxyError, RefusedError
from llmproxy.protocol import AGENT, CONTROL_PREFIX, OFFLINE, Channel, Exhausted, Mode, ModePolicy, ReplayablePolicy

KEPT_CALLS = 20_000
"""Maximum kept calls of one session; about 400 bytes each."""
KEPT_TEXTS = 1_000
"""Maximum refusals of one session whose texts are kept; a miss has some thousand characters."""
NOT_KEPT = (
    "llmproxy: refused; the words of the first {} refusals of a session are kept, and all of them in the journal."
)


class CallsNoLongerKeptError(RefusedError):
    code = "llmproxy_calls_gone"
    status = 410


@dataclass(slots=True)
class EndedCallLog:
    arrived: int = 0
    totals: Totals = field(default_factory=Totals)
    _ended: deque[Call] = field(default_factory=lambda: deque(maxlen=KEPT_CALLS))
    _count: int = 0
    _texts: dict[int, str] = field(default_factory=dict)

    def begin(self) -> int:
        self.arrived += 1
        return self.arrived

    def add_ended_call(self, call: Call, text: str = "") -> None:
        """Keep a call that has ended; `text` is the text that a refused client got."""
        self.totals.add(call, text if call.miss else "")
        self._ended.append(call)
        self._count += 1
        if text and len(self._texts) < KEPT_TEXTS:
            self._texts[call.seq] = text

    def list_calls_after(self, number: int) -> list[Call]:
        """Return calls that arrived after the `number`-th, in order. Raises CallsNoLongerKeptError if some are gone."""
        dropped = self._count - len(self._ended)
        if dropped > number:
            msg = f"llmproxy: of the {self._count} calls of this session only the last {len(self._ended)} are kept."
            raise CallsNoLongerKeptError(
                msg, hint=f"Ask for those after {dropped}, ask more often, or close the session."
            )
        return sorted((each for each in self._ended if each.seq > number), key=lambda each: each.seq)

    def get_call_note(self, call: Call) -> str:
        return self._texts.get(call.seq) or (NOT_KEPT.format(KEPT_TEXTS) if call.miss else call.note)

    @property
    def open_count(self) -> int:
        return self.arrived - self._count


LONGEST_NAME = 300
PartyKey = tuple[str, Key]
"""Party and key of a request: occurrences are counted for each."""

_SAMPLE = re.compile(r"(?P<cassette>.+)~(?P<sample>[0-9]{1,6})", re.DOTALL)
_PARTY = re.compile(r"agent|(user|judge)(\.[0-9]{1,4})?")


def split_cassette_and_sample(name: str) -> tuple[str, int]:
    """Return cassette and sample of a session's name: ``weather~3`` is the third sample of ``weather``."""
    if not name or len(name) > LONGEST_NAME or any(ord(letter) < 32 for letter in name):
        msg = f"llmproxy: a session's name has 1 to {LONGEST_NAME} printable characters; this one has {len(name)}."
        raise RefusedError(msg, hint="Name it in the URL: http://HOST:PORT/s/<name>/v1")
    if (match := _SAMPLE.fullmatch(name)) and int(match["sample"]) > 0:
        return match["cassette"], int(match["sample"])
    return name, 1


def parse_party_header(value: str | None) -> str:
    """Return the party named in a header, by default the agent. Any other value is refused, never guessed."""
    if value is None:
        return AGENT
    if not _PARTY.fullmatch(value):
        raise RefusedError(
            f"llmproxy: x-llmproxy-party is {value[:40]!r}; it can be agent, user, judge, or judge.2 for a second vote."
        )
    return value


@dataclass(frozen=True, slots=True)
class SessionSettings:
    mode: Mode
    speed: float = 0.0
    exhausted: Exhausted = Exhausted.LAST
    opened: bool = False
    """Whether the control API opened it: it ends with close or reset, and never restarts by itself."""
    upstreams: Mapping[str, str] = field(default_factory=dict)


Question = tuple[object, ...]
"""Identity of a request whose client repeats it with fewer options: equal for all attempts, and unique to it."""
_ATTEMPT_SECONDS = 60.0


@dataclass(slots=True)
class MissedCallForRetryDetection:
    """A miss, kept to distinguish its client's further attempts from new requests."""

    wanted: Canonical
    question: Question | None
    """None for a client that never drops options when it repeats."""
    at: float
    """Time of its last attempt, in seconds of the proxy's clock."""
    error: LLMProxyError | None = None

    def is_retry_of(self, first: MissedCallForRetryDetection) -> bool:
        """Return whether this repeats `first` without a stream or with fewer options; an identical one is a new one."""
        mine, theirs = self.wanted, first.wanted
        if build_key(mine) == build_key(theirs):
            return False
        if self.question is not None:
            return self.at - first.at < _ATTEMPT_SECONDS
        plain = [build_key(replace(each, stream=True, headers=())) for each in (mine, theirs)]
        return theirs.stream and not mine.stream and plain[0] == plain[1]


@dataclass(slots=True)
class ReplayPosition:
    counts: Counter[PartyKey] = field(default_factory=Counter)
    recorded_here: set[PartyKey] = field(default_factory=set)
    """Keys that the session records, each with its party and with an empty one."""
    failed: set[int] = field(default_factory=set)
    """Recorded failures of this session: a good answer after one is a retry."""
    changes: ServerObjectChangeLog = field(default_factory=ServerObjectChangeLog)
    last: PartyKey | None = None
    stateless: PartyKey | None = None
    """The same with the key before any server state is added (`keys.server_state_in_keys`)."""
    missed: dict[Question | None, MissedCallForRetryDetection] = field(default_factory=dict)
    """Last miss by question, for clients that repeat with fewer options; the last one of all others."""
    threads: dict[object, Key] = field(default_factory=dict)

    def swap_last_key_of_thread(self, thread: object, key: Key) -> str:
        if len(self.threads) > KEPT_CALLS:
            self.threads.clear()
        before, self.threads[thread] = self.threads.get(thread, ""), key
        return before

    def restart(self) -> None:
        """Return to the start; `stateless` and `missed` are kept."""
        self.counts.clear()
        self.recorded_here.clear()
        self.failed.clear()
        self.changes.clear_changes()
        self.threads.clear()
        self.last = None


@dataclass(slots=True)
class Session:
    name: str
    cassette: str
    sample: int
    settings: SessionSettings
    complete: bool = False
    """`once`: the cassette was complete when this session opened."""
    sealed: bool | None = None
    """State of its cassette given at its close: complete, or open; None: complete if no recording failed or is cut."""
    is_over: bool = False
    """Whether its opener has closed it, and the run in it ended by itself; False: its proxy ends it."""
    first: PartyKey | None = None
    """Party and key of the cassette's first recording; None while nothing is recorded."""
    position: ReplayPosition = field(default_factory=ReplayPosition)
    superseded: set[PartyKey] = field(default_factory=set)
    """`record`: keys whose older recordings this session has replaced by a good one."""
    served: set[int] = field(default_factory=set)
    """Interactions that were replayed or recorded, over all restarts; any thread adds."""
    calls: EndedCallLog = field(default_factory=EndedCallLog)
    interceptors: tuple[SessionCallInterceptor[Any], ...] = ()
    _along: dict[tuple[Channel, bool], tuple[object, tuple[SessionCallInterceptor[Any], ...]]] = field(
        default_factory=dict
    )

    @property
    def policy(self) -> ModePolicy:
        """Policy of its mode, given the state of the cassette when this session opened."""
        policy = self.settings.mode.policy
        return policy.complete if self.complete and policy.complete is not None else policy

    def list_interceptors(
        self, channel: Channel, *, auxiliary: bool = False
    ) -> tuple[SessionCallInterceptor[Any], ...]:
        which, known = self._along.get((channel, auxiliary), (None, ()))
        if which is not self.interceptors:
            asked = (each for each in self.interceptors if auxiliary or not each.auxiliary)
            known = tuple(each for each in asked if each.channel in {None, channel})
            self._along[channel, auxiliary] = self.interceptors, known
        return known

    def is_plain_replay(self, channel: Channel) -> bool:
        """Return whether a channel's calls are served as recorded and at once: no interceptors, no pacing."""
        return not (self.settings.speed or self.list_interceptors(channel))

    @property
    def needs_whole_requests(self) -> bool:
        return any(each.sees_whole for each in self.interceptors)

    def find_interceptor[I: SessionCallInterceptor[Any]](self, kind: type[I]) -> I | None:
        return next((each for each in self.interceptors if isinstance(each, kind)), None)

    def find_or_record_first_attempt(self, missed: MissedCallForRetryDetection) -> MissedCallForRetryDetection | None:
        """Record a missed request, and return the earlier one of which it is only the next attempt."""
        if (first := self.position.missed.get(missed.question)) is None or not missed.is_retry_of(first):
            self.position.missed[missed.question] = missed
            return None
        if missed.question is None:
            del self.position.missed[None]
        first.at = missed.at
        return first

    def count_arrival(self, party_key: PartyKey, recordings: int) -> int:
        """Count one arrival and return its number, from 1; `recordings` is the number of the key's recordings."""
        if self.is_new_run(party_key, recordings):
            self.restart()
        return self.count_request_arrival(party_key)

    @property
    def is_clean(self) -> bool | None:
        """Whether its cassette is complete: not after a lost answer; None if its recordings decide."""
        return False if self.calls.totals.failed else self.sealed

    def is_new_run(self, party_key: PartyKey, recordings: int) -> bool:
        """Return whether this arrival begins another run of the agent; `recordings` counts those of its key."""
        return (
            party_key == self.first
            and self.position.last is not None
            and self.position.last != party_key
            and not self.settings.opened
            and self.policy.plays is not ReplayablePolicy.NOTHING
            and 0 < recordings <= self.position.counts[party_key]
        )

    def count_request_arrival(self, party_key: PartyKey) -> int:
        """Count one arrival that does not restart the session, and return its number, from 1."""
        position = self.position
        position.last = party_key
        position.counts[party_key] += 1
        return position.counts[party_key]

    def get_last_key_if_of_party(self, party: str) -> Key | None:
        """Return the key of a party's last request; None if the last request was another party's, or there was none."""
        last = self.position.last
        return last[1] if last is not None and last[0] == party else None

    def restart(self) -> None:
        self.position.restart()
        for each in self.interceptors:
            each.on_restart()

    def keep_recording_key(self, party_key: PartyKey) -> None:
        """Record that this session records requests of this key and does not serve them."""
        self.position.recorded_here.update((party_key, ("", party_key[1])))

    def is_key_newly_recorded(self, key: Key) -> bool:
        """Return whether this session records a key, for any party. Thread-safe."""
        return ("", key) in self.position.recorded_here

    def claim_superseding(self, party_key: PartyKey, *, good: bool) -> bool:
        """Return whether the recording about to be stored may replace older ones: up to the key's first `good` one."""
        if not self.policy.anew or party_key in self.superseded:
            return False
        if good:
            self.superseded.add(party_key)
        return True

    @property
    def id_source(self) -> tuple[str, int]:
        """Cassette and sample whose answers created the ids in its requests."""
        return next((each.id_source for each in self.interceptors if each.id_source), (self.cassette, self.sample))

    @property
    def save_target(self) -> tuple[str, int]:
        """Cassette and sample in which its answers are stored, unless a call has its own."""
        return next((each.save_target for each in self.interceptors if each.save_target), (self.cassette, self.sample))

    @property
    def leased_cassette(self) -> tuple[str, int] | None:
        """Cassette and sample that only it may record: its own, or the child that it records or may fork to."""
        if self.policy.alone:
            return self.save_target
        return next((each.leased_cassette for each in self.interceptors if each.leased_cassette is not None), None)


log = logging.getLogger(__name__)

_SHOWN_NAMES = 10
_LATE = "llmproxy, late"
"""A holder without a lease: a recording stored after the end only marks the cassette as complete."""


class SessionInUse(LLMProxyError):
    code = "llmproxy_session_busy"
    status = 409
    bound_to: str = ""
    """Session to which the name is bound; empty if it is in use otherwise."""


class SessionUnknown(LLMProxyError):
    code = "llmproxy_session_unknown"
    status = 404


class LiveSessionForbidden(RefusedError):
    """A session that may reach the network was requested of a replay proxy."""

    code = "llmproxy_live_forbidden"
    status = 403


class SessionCallInterceptorFactory:
    kind: ClassVar[type[SessionCallInterceptor[Any]]]

    def check_options(self, mode: Mode, asked: Mapping[str, Any]) -> None:
        """Check a session's options before it is opened. Raises LLMProxyError if it cannot be opened."""

    def create_interceptor(self, session: Session, asked: Mapping[str, Any]) -> SessionCallInterceptor[Any] | None:
        """Return the interceptor of a session that begins; mostly None. `asked`: the options of `open_session`."""

    def on_replay_begin(self, session: Session, store: Store) -> None:
        """Called when recordings of a replaying session were looked for: at its begin, or if it had none until now."""


def remove_redundant_sample_suffix(name: str) -> str:
    """Return a session's canonical name: its cassette, ``~sample`` from the second on. Raises RefusedError."""
    if name and "~" not in name:  # the usual case; other errors are raised when the session begins
        return name
    cassette, sample = split_cassette_and_sample(name)
    return cassette if sample == 1 and split_cassette_and_sample(cassette) == (cassette, 1) else f"{cassette}~{sample}"


@dataclass(slots=True)
class Sessions:
    defaults: SessionSettings
    store: Callable[[Mode], Store | None]
    """Returns the store, opened as the mode requires; None if there is none yet."""
    holder: str
    on_run_end: Callable[[Session], None] = lambda _session: None
    """Handles the end of a recording session, after its last write. May raise LLMProxyError."""
    prepare_cassette: Callable[[Store, str, int], None] = lambda _store, _cassette, _sample: None
    """Prepares a cassette (and sample) of the store, before a session reads it."""
    now: Callable[[], float] = lambda: 0.0
    """Unix seconds, for records about a session."""
    allow_live: bool = False
    open_sessions: dict[str, Session] = field(default_factory=dict)
    bindings: dict[str, str] = field(default_factory=dict)
    """Session by name in the request."""
    speakers: dict[str, str] = field(default_factory=dict)
    """Party by bound name, if it is not the agent."""
    features: Sequence[SessionCallInterceptorFactory] = ()
    served_before: dict[tuple[str, int], array[int]] = field(default_factory=dict)
    """By cassette and sample: what ended sessions played or made, 8 bytes an id: a proxy may see 100,000 sessions."""

    def get_or_open(self, name: str) -> Session:
        name = remove_redundant_sample_suffix(name)
        name = self.bindings.get(name, name)
        return self.open_sessions.get(name) or self._begin_session(name, self.defaults, {})

    def find_open(self, name: str) -> Session | None:
        """Return the session for requests under `name`, if it is open. Raises RefusedError."""
        name = remove_redundant_sample_suffix(name)
        return self.open_sessions.get(self.bindings.get(name, name))

    def open_session(
        self, name: str, *, cassette: str | None = None, mode: Mode | None = None, speed: float | None = None,
        exhausted: Exhausted | None = None, upstreams: Mapping[str, str] | None = None, **asked: Any,
    ) -> Session:  # fmt: skip
        """Open a session with its own settings; those of None are the proxy's.

        A session of this name that was not opened explicitly ends; names bound to it stay bound. `cassette`: another
        one than its name's is for replay only. `asked` are options of other features, by name.

        Raises SessionInUse: it is open already, or its name is bound; RefusedError: the name is invalid;
        LiveSessionForbidden; CassetteBusy: another session records it; CassetteNameTaken: there is a `child` already.
        """
        name = remove_redundant_sample_suffix(name)
        if (known := self.open_sessions.get(name)) is not None and known.settings.opened:
            hint = f"Close it first: POST {CONTROL_PREFIX}sessions/{quote(name, safe='')}/close"
            raise SessionInUse(f"llmproxy: session {name!r} is open already.", hint=hint)
        self._require_unbound(name)
        mode = mode or self.defaults.mode
        if mode not in OFFLINE:
            self.require_live_sessions_allowed(f"in mode {mode}")
            if cassette is not None:
                raise RefusedError(f"llmproxy: a session that names its cassette is for replay, not for {mode}.")
        for each in reversed(self.features):
            each.check_options(mode, asked)
        if known is not None:
            self._remove_session(known)
        ours = self.defaults
        speed, exhausted = ours.speed if speed is None else speed, exhausted or ours.exhausted
        settings = SessionSettings(mode, speed, exhausted, opened=True, upstreams=dict(upstreams or {}))
        return self._begin_session(name, settings, asked, cassette)

    def require_live_sessions_allowed(self, which: str) -> None:
        """Raise LiveSessionForbidden if this proxy may not open a session with a network."""
        if self.defaults.mode in OFFLINE and not self.allow_live:
            msg = f"llmproxy: this proxy was started in replay; a session {which} may reach the network."
            raise LiveSessionForbidden(msg, hint="Start the proxy with --allow-live to permit it.")

    def lease_child_cassette(self, parent: str, child: str | None, *, kind: str = "fork") -> tuple[Store, str]:
        """Lease a child's cassette; returns the store and its name. Raises CassetteNameTaken: `child` exists."""
        if (store := self.store(Mode.RECORD)) is None:
            raise AssertionError("a child without a store")
        taken = [place[0] for each in self.open_sessions.values() if (place := each.leased_cassette) is not None]
        return store, lease_cassette_name(store, parent, child, self.holder, taken, kind=kind)

    def load_first_request_key(self, session: Session, store: Store) -> None:
        session.first = store.find_first_key(session.cassette, session.sample)
        if session.policy.plays is not ReplayablePolicy.NOTHING:
            for each in self.features:
                each.on_replay_begin(session, store)

    def add_interceptor_to_session(self, session: Session, made: SessionCallInterceptor[Any]) -> None:
        """Add an interceptor to a session, or replace one of its kind. Raises RefusedError."""
        for other in session.interceptors:
            other.on_interceptor_added(made)
        found = {type(each): each for each in (*session.interceptors, made)}.values()
        session.interceptors = tuple(one for each in self.features for one in found if isinstance(one, each.kind))

    def _begin_session(
        self, name: str, settings: SessionSettings, asked: Mapping[str, Any], cassette: str | None = None
    ) -> Session:
        place = split_cassette_and_sample(name if cassette is None else cassette)
        session, mode = Session(name, *place, settings), settings.mode
        if (store := self.store(mode)) is not None:
            self.prepare_cassette(store, session.cassette, session.sample)
        for each in self.features:
            if (made := each.create_interceptor(session, asked)) is not None:
                self.add_interceptor_to_session(session, made)
        if (store := self.store(mode)) is not None:  # may be another object: a feature may have reopened it for writing
            self.load_first_request_key(session, store)
            if mode.policy.complete is not None and store.has_recordings(session.cassette, session.sample):
                session.complete = store.last_session_ended_cleanly(session.cassette, session.sample)
                if not session.complete:
                    log.warning(
                        "cassette %s is open (its recording did not come to a good end):"
                        " what is whole is replayed, the rest recorded",
                        name,
                    )
            if session.policy.writes:
                anew, alone = session.policy.anew, session.policy.alone
                store.begin_writing(*session.save_target, exclusive=alone, holder=self.holder, anew=anew)
        self.open_sessions[name] = session
        return session

    def get_session(self, name: str) -> Session:
        """Return an open session. Raises SessionUnknown."""
        if name and (session := self.open_sessions.get(remove_redundant_sample_suffix(name))) is not None:
            return session
        names = [f"{each[:40]!r}" for each in sorted(self.open_sessions)[:_SHOWN_NAMES]]
        more = ", ..." if len(self.open_sessions) > _SHOWN_NAMES else ""
        raise SessionUnknown(
            f"llmproxy: no session {name[:100]!r} is open.", hint=f"Open now: {', '.join(names) or 'none'}{more}"
        )

    def reset_session(self, name: str) -> Session:
        """Restart a session; its counts stay. Its recordings so far will be replaced."""
        session = self.get_session(name)
        for each in session.interceptors:
            each.before_reset()
        session.restart()
        session.superseded.clear()
        return session

    def close_session(self, name: str, *, complete: bool | None = None, interrupted: bool = False) -> Session:
        """End a session: release its lease, mark its cassette as complete or leave it open, unbind it.

        `complete` None: complete unless an answer in it is cut, or failed without a later good one. `interrupted`: its
        run was ended from outside. Raises SessionUnknown; CassetteBusy (it is still open): another program holds the
        store.
        """
        session = self.get_session(name)
        session.sealed, session.is_over = complete, not interrupted
        self._remove_session(session)
        self.bindings = {source: target for source, target in self.bindings.items() if target != session.name}
        self.speakers = {source: party for source, party in self.speakers.items() if source in self.bindings}
        return session

    def _remove_session(self, session: Session) -> None:
        self.release_recording_lease(session)
        del self.open_sessions[session.name]
        self._remember_served_recordings(session)

    def _remember_served_recordings(self, session: Session) -> None:
        place = (session.cassette, session.sample)
        self.served_before[place] = array("q", {*self.served_before.get(place, ()), *session.served})

    def release_recording_lease(self, session: Session) -> None:
        """Release a session's lease, and mark its cassette. Raises as `close_session`."""
        # An abandoned answer goes live even in a complete cassette.
        writes = session.policy.writes or session.position.recorded_here
        place = session.leased_cassette or (session.save_target if writes else None)
        if place is not None and (store := self.store(Mode.RECORD)) is not None:
            for each in session.interceptors:
                each.on_session_end()
            store.end_writing(*place, self.holder, clean=session.is_clean)
            if writes:
                self.on_run_end(session)

    def mark_complete_after_late_recording(self, session: Session) -> None:
        """Handle a stored recording of `session`; after its end, mark the cassette again. Blocks."""
        if self.open_sessions.get(session.name) is session:
            return
        self._remember_served_recordings(session)
        try:
            if (store := self.store(session.settings.mode)) is not None:
                store.end_writing(*session.leased_cassette or session.save_target, _LATE, clean=session.is_clean)
                if session.policy.writes:
                    self.on_run_end(session)
        except Exception as error:  # noqa: BLE001 - the answer itself is stored: who hears otherwise stores it twice
            # A later close can mark it as complete.
            why = error.message if isinstance(error, LLMProxyError) else f"{type(error).__name__}: {error}"
            log.warning("cassette %s could not be marked as complete: %s", session.name, why)

    def bind_name(self, name: str, session: str, party: str = AGENT) -> None:
        """Route requests under `name` to `session`, by default as `party`'s. Raises SessionUnknown, SessionInUse."""
        target = self.get_session(session).name
        split_cassette_and_sample(name)
        name = remove_redundant_sample_suffix(name)
        if name == target:
            raise RefusedError(f"llmproxy: what arrives under {name!r} belongs to that session anyway.")
        self._require_unbound(name)
        self.bindings[name] = target
        if party != AGENT:
            self.speakers[name] = party

    def _require_unbound(self, name: str) -> None:
        if name in self.bindings:
            msg = f"llmproxy: {name!r} is bound to session {self.bindings[name]!r} already."
            busy = SessionInUse(msg, hint="Unbind or close that first.")
            busy.bound_to = self.bindings[name]
            raise busy

    def unbind_name(self, name: str) -> None:
        """Route requests under `name` to their own session again. Raises SessionUnknown."""
        if not name or self.bindings.pop(remove_redundant_sample_suffix(name), None) is None:
            raise SessionUnknown(f"llmproxy: {name[:100]!r} is not bound.")
        self.speakers.pop(remove_redundant_sample_suffix(name), None)

    def get_party_of_name(self, name: str) -> str:
        return self.speakers.get(remove_redundant_sample_suffix(name), AGENT) if self.speakers and name else AGENT

    def renew_recording_leases(self) -> None:
        for session in list(self.open_sessions.values()):
            if (place := session.leased_cassette) is not None and (store := self.store(Mode.RECORD)) is not None:
                store.renew_lease(*place, self.holder)

    def close_sessions(self) -> None:
        """End every session; what its opener did not close is incomplete. One that fails does not block the others."""
        failure: LLMProxyError | None = None
        for session in list(self.open_sessions.values()):
            if session.settings.opened and session.sealed is None:
                session.sealed = False
            try:
                self.release_recording_lease(session)
            except LLMProxyError as error:
                failure = failure or error
        if failure is not None:
            raise failure
