"""Features of one engine: state shared by its sessions, and the choice of sessions that get their interceptor.

`core.sessions.interceptor` describes how to write an interceptor. The rows are in `engine.interceptor_order`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NamedTuple, override

from llmproxy.core.engine.answer_storage import InteractionBuilder
from llmproxy.core.engine.engine_state import EngineState
from llmproxy.core.engine.outcome_recorder import OutcomeRecorder
from llmproxy.core.engine.request_identification import KeyDeriver
from llmproxy.core.engine.request_stages import MissExplainer
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.sessions.interceptor import Interceptor
from llmproxy.core.sessions.session import InterceptorFactory, Session
from llmproxy.core.store.store import Store
from llmproxy.protocol import Mode
from llmproxy.proxy_calls import Call


class EngineParts(NamedTuple):
    """Parts of the engine that features may use."""

    state: EngineState
    keying: KeyDeriver
    builder: InteractionBuilder
    misses: MissExplainer
    recorder: OutcomeRecorder


class Feature:
    """Adds an interceptor to the sessions that need it."""

    kind: ClassVar[type[Interceptor[Exchange]]]
    """Class of its interceptors."""

    def __init__(self, parts: EngineParts) -> None:
        self.parts = parts

    def check_options(self, mode: Mode, asked: Mapping[str, Any]) -> None:
        """Check a session's options before it is opened. Raises LLMProxyError if it cannot be opened."""

    def create_interceptor(self, session: Session, asked: Mapping[str, Any]) -> Interceptor[Exchange] | None:
        """Return the interceptor of a session that begins; mostly None. `asked`: the options of `open_session`."""

    def on_replay_begin(self, session: Session, store: Store) -> None:
        """Called when recordings of a replaying session were looked for: at its begin, or if it had none until now."""

    def on_tls_handshake(self, host: str, port: int, user: str | None) -> Call | None:
        """Return the record of a connection that gets no TLS; None: it does. `user`: session in the proxy URL."""

    def list_notes(self) -> Iterable[str]:
        """Return notes for the user at the end of the run."""
        return ()

    def clear_caches(self) -> None:
        """Drop everything cached by id; ids belong to another store from now on."""


class Features(InterceptorFactory):
    """All features of one engine, in the declared order."""

    def __init__(self, rows: Iterable[type[Feature]], parts: EngineParts) -> None:
        self._rows = tuple(row(parts) for row in rows)

    def get_feature[F: Feature](self, kind: type[F]) -> F:
        return next(each for each in self._rows if isinstance(each, kind))

    @override
    def check_options(self, mode: Mode, asked: Mapping[str, Any]) -> None:
        for row in reversed(self._rows):
            row.check_options(mode, asked)

    @override
    def add_interceptors(self, session: Session, asked: Mapping[str, Any]) -> None:
        for row in self._rows:
            if (made := row.create_interceptor(session, asked)) is not None:
                self.add_interceptor(session, made)

    @override
    def on_replay_begin(self, session: Session, store: Store) -> None:
        for row in self._rows:
            row.on_replay_begin(session, store)

    @override
    def add_interceptor(self, session: Session, made: Interceptor[Exchange]) -> None:
        for other in session.interceptors:
            other.on_interceptor_added(made)
        found = {type(each): each for each in (*session.interceptors, made)}
        session.interceptors = tuple(found[row.kind] for row in self._rows if row.kind in found)

    def on_tls_handshake(self, host: str, port: int, user: str | None) -> Call | None:
        """Return the record of a connection that gets no TLS; None: it does. Raises RefusedError, CassetteBusy."""
        return next((call for row in self._rows if (call := row.on_tls_handshake(host, port, user)) is not None), None)

    def clear_caches(self) -> None:
        for row in self._rows:
            row.clear_caches()

    def list_notes(self) -> list[str]:
        return [note for row in self._rows for note in row.list_notes()]
