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
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote

from llmproxy.core.forks.table import reserve
from llmproxy.core.sessions.interceptor import Interceptor
from llmproxy.core.sessions.session import Session, SessionSettings, split_name
from llmproxy.core.store.store import Store
from llmproxy.errors import LLMProxyError, RefusedError
from llmproxy.protocol import AGENT, CONTROL_PREFIX, OFFLINE, Exhausted, Mode, Plays

log = logging.getLogger(__name__)

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


class LiveForbidden(RefusedError):
    """A replay proxy was asked for a session that may reach the network."""

    code = "llmproxy_live_forbidden"
    status = 403


@dataclass(frozen=True, slots=True)
class SessionDefaults(SessionSettings):
    """What a session is like unless it says otherwise."""

    allow_live: bool = False
    """A replay proxy may open sessions in modes that reach the network."""


class SessionEnded(NamedTuple):
    """What is left of all sessions of one cassette and sample that have ended."""

    cassette: str
    sample: int
    served: Collection[int]
    """Ids of the interactions that they played or made."""


class SessionFeatures:
    """Gives sessions their interceptors; this one gives none."""

    def check(self, mode: Mode, asked: Mapping[str, Any]) -> None:
        """Look at what a session asks for before it is opened. Raises LLMProxyError: it cannot be."""

    def plug(self, session: Session, asked: Mapping[str, Any]) -> None:
        """Give a session that begins what it asks for. Raises LLMProxyError: it cannot be."""

    def on_first(self, session: Session, store: Store) -> None:
        """Hear that recordings of a session that plays some were looked for: it begins, or had none until now."""

    def put(self, session: Session, made: Interceptor[Any]) -> None:
        """Add an interceptor to a session, or put it in the place of one of its kind. Raises RefusedError."""


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
    now: Callable[[], float] = lambda: 0.0
    """Unix seconds, of what is noted about a session."""
    walks: dict[str, Session] = field(default_factory=dict)
    bindings: dict[str, str] = field(default_factory=dict)
    speakers: dict[str, str] = field(default_factory=dict)
    """Names that are bound for another party than the agent."""
    """name in the request -> session that it belongs to."""
    features: SessionFeatures = field(default_factory=SessionFeatures)
    """Gives sessions their interceptors."""
    _served: dict[tuple[str, int], array[int]] = field(default_factory=dict)
    """By cassette and sample: what its ended sessions played or made. 8 bytes an id, since a proxy may see 100,000
    sessions.
    """

    @property
    def closed(self) -> list[SessionEnded]:
        """What the sessions that have ended come to, for the summary of the run."""
        return [SessionEnded(*place, served) for place, served in self._served.items()]

    def get(self, name: str) -> Session:
        """Return the session that a request under `name` belongs to, opened now if need be."""
        name = canonical(name)
        name = self.bindings.get(name, name)
        return self.walks.get(name) or self._begin(name, self.defaults, {})

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
        **asked: Any,  # noqa: ANN401 - each feature knows what is asked of it
    ) -> Session:
        """Open a session with properties of its own; what is None is the proxy's.

        A session of this name that nobody opened ends; what is bound to it stays bound.

        `asked` is
        what is asked of the other features, by their names.

        Raises SessionBusy: it is open already; RefusedError: the name cannot be; LiveForbidden: a replay proxy was
        asked for a session with a network; CassetteBusy: another session records this cassette; CassetteExists: there
        is a `child` already.
        """
        name = canonical(name)
        known = self.walks.get(name)
        if known is not None and known.settings.opened:
            hint = f"Close it first: POST {CONTROL_PREFIX}sessions/{quote(name, safe='')}/close"
            raise SessionBusy(f"llmproxy: session {name!r} is open already.", hint=hint)
        mode = mode or self.defaults.mode
        if mode not in OFFLINE:
            self.refuse_network(f"in mode {mode}")
        self.features.check(mode, asked)
        if known is not None:
            self._leave(known)
        ours = self.defaults
        speed, exhausted = ours.speed if speed is None else speed, exhausted or ours.exhausted
        settings = SessionSettings(mode, speed, exhausted, opened=True, upstreams=dict(upstreams or {}))
        return self._begin(name, settings, asked)

    def refuse_network(self, which: str) -> None:
        """Refuse a session with a network that this proxy was not allowed. Raises LiveForbidden."""
        if self.defaults.mode in OFFLINE and not self.defaults.allow_live:
            msg = f"llmproxy: this proxy was started in replay; a session {which} may reach the network."
            raise LiveForbidden(msg, hint="Start the proxy with --allow-live to permit it.")

    def reserve(self, parent: str, child: str | None, *, kind: str = "fork") -> tuple[Store, str]:
        """Lease a cassette that begins as a child of another one: the store, and its name.

        Raises CassetteExists: there is a `child` already.
        """
        if (store := self.store(Mode.RECORD)) is None:
            raise AssertionError("a child without a store")
        taken = [place[0] for each in self.walks.values() if (place := each.leased) is not None]
        return store, reserve(store, parent, child, self.holder, taken, kind=kind)

    def find_first(self, session: Session, store: Store) -> None:
        """Read with which request the cassette begins."""
        session.first = store.first_key(session.cassette, session.sample)
        if session.policy.plays is not Plays.NOTHING:
            self.features.on_first(session, store)

    def _begin(self, name: str, settings: SessionSettings, asked: Mapping[str, Any]) -> Session:
        session, mode = Session(name, *split_name(name), settings), settings.mode
        if (store := self.store(mode)) is not None:
            self.hear_begin(store, session.cassette, session.sample)
        self.features.plug(session, asked)
        cassette, sample = session.cassette, session.sample
        if (store := self.store(mode)) is not None:  # maybe another one: a feature may have it opened for writing
            self.find_first(session, store)
            if mode.policy.complete is not None and store.has(cassette, sample):
                session.complete = store.closed_cleanly(cassette, sample)
                if not session.complete:
                    log.warning(
                        "cassette %s is open (its recording did not come to a good end):"
                        " what is whole is replayed, the rest recorded",
                        name,
                    )
            if session.policy.writes:
                place, alone = session.kept_in, session.policy.alone
                store.begin(*place, exclusive=alone, holder=self.holder, anew=session.policy.anew)
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
        for each in session.interceptors:
            each.before_reset()
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
        session.sealed, session.is_over = complete, True
        self._leave(session)
        self.bindings = {source: target for source, target in self.bindings.items() if target != session.name}
        self.speakers = {source: party for source, party in self.speakers.items() if source in self.bindings}
        return session

    def _leave(self, session: Session) -> None:
        self.end(session)
        del self.walks[session.name]
        self._keep(session)

    def _keep(self, session: Session) -> None:
        place = (session.cassette, session.sample)
        self._served[place] = array("q", {*self._served.get(place, ()), *session.served})

    def end(self, session: Session) -> None:
        """Give a session's lease back, and mark its cassette. Raises as `close`."""
        writes = (
            session.policy.writes or session.position.recorded_here
        )  # a left answer is asked live even where it is complete
        place = session.leased or (session.kept_in if writes else None)
        if place is not None and (store := self.store(Mode.RECORD)) is not None:
            for each in session.interceptors:
                each.on_close()
            store.end(*place, self.holder, clean=session.sealed)
            if writes:
                self.on_run_end(session)

    def on_recording_stored(self, session: Session) -> None:
        """Hear that a recording of `session` was stored, maybe after its end.

        Then its cassette is as complete as it was left. Blocks.
        """
        if self.walks.get(session.name) is session:
            return
        self._keep(session)
        try:
            if (store := self.store(session.settings.mode)) is not None:
                store.end(*session.leased or session.kept_in, _LATE, clean=session.sealed)
                if session.policy.writes:
                    self.on_run_end(session)
        except Exception as error:  # noqa: BLE001 - the answer itself is stored: who hears otherwise stores it twice
            # Another close can say again that it is the last.
            why = error.message if isinstance(error, LLMProxyError) else f"{type(error).__name__}: {error}"
            log.warning("cassette %s could not be marked as complete: %s", session.name, why)

    def bind(self, name: str, session: str, party: str = AGENT) -> None:
        """Send what arrives under `name` to `session`, as calls of `party` where a request names none.

        Raises SessionUnknown: there is no such session; SessionBusy: the name is bound already; RefusedError: the name
        cannot be, or is the session's own.
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
                self.end(session)
            except LLMProxyError as error:
                failure = failure or error
        if failure is not None:
            raise failure
