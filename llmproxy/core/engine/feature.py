"""A feature of one engine: what its sessions have in common, and which of them have its interceptor.

What an interceptor is, and how one is written: `core.sessions.interceptor`. Their rows: `engine.interceptor_order`.
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
    """What features may use of their engine."""

    state: EngineState
    keying: KeyDeriver
    builder: InteractionBuilder
    misses: MissExplainer
    recorder: OutcomeRecorder


class Feature:
    """Plugs an interceptor into the sessions that ask for one."""

    kind: ClassVar[type[Interceptor[Exchange]]]
    """Its interceptors."""

    def __init__(self, parts: EngineParts) -> None:
        self.parts = parts

    def check_options(self, mode: Mode, asked: Mapping[str, Any]) -> None:
        """Look at what a session asks for before it is opened. Raises LLMProxyError: it cannot be."""

    def create_interceptor(self, session: Session, asked: Mapping[str, Any]) -> Interceptor[Exchange] | None:
        """Return what a session that begins gets of it; None for most. `asked`: what `open_session` was told."""

    def on_replay_begin(self, session: Session, store: Store) -> None:
        """Called when recordings of a session that plays some were looked for: it begins, or had none until now."""

    def on_tls_handshake(self, host: str, port: int, user: str | None) -> Call | None:
        """Return what became of a connection that gets no TLS; None: it does. `user`: the session in the proxy URL."""

    def list_notes(self) -> Iterable[str]:
        """Return what a user should know at the end of the run."""
        return ()

    def clear_caches(self) -> None:
        """Forget what was remembered by id; ids are another store's from now on."""


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
        """Return what became of a connection that gets no TLS; None: it does. Raises RefusedError, CassetteBusy."""
        return next((call for row in self._rows if (call := row.on_tls_handshake(host, port, user)) is not None), None)

    def clear_caches(self) -> None:
        for row in self._rows:
            row.clear_caches()

    def list_notes(self) -> list[str]:
        return [note for row in self._rows for note in row.list_notes()]
