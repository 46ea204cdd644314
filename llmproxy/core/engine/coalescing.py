"""Coalescing of equal concurrent requests to models: they share one answer while it is recorded (`--coalesce`).

Each keeps a recording of its own, so that a replay that sends them one after the other has one for each. An answer that
failed, was cut or left is not shared: the next request is then sent. Neither tools nor uploads are shared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from threading import Lock
from typing import Any, override

from llmproxy.core.engine.feature import EngineParts, Feature
from llmproxy.core.providers.routing import changes_server_state
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.sessions.interceptor import Decided, Interceptor, Lookup
from llmproxy.core.sessions.session import PartyKey, Session
from llmproxy.core.store.reader import KeyedRecording, is_good_response
from llmproxy.core.store.store import Addition
from llmproxy.core.traffic.interaction import Interaction
from llmproxy.protocol import Channel, Decision
from llmproxy.proxy_calls import Call


class CoalesceInterceptor(Interceptor[Exchange]):
    channel = Channel.LLM
    sees_whole = True

    def __init__(self, parts: EngineParts) -> None:
        self._state = parts.state
        self._open: dict[PartyKey, list[Exchange]] = {}
        """The open request and those that wait for its answer; the writer's thread ends it, too."""
        self._lock = Lock()

    @override
    def on_decision(self, call: Exchange, found: Lookup, decided: Decided) -> Decided:
        if (
            decided.decision is Decision.RECORD
            and call.method == "POST"
            and not changes_server_state(call.route, "POST")
        ):
            with self._lock:
                crowd = self._open.setdefault(call.party_and_key, [])
                crowd.append(call)
                call.answer.awaited = crowd[0] is not call
        return decided

    @override
    def on_stored(self, call: Exchange, made: Interaction) -> None:
        store, got = self._state.stores.opened, made.response
        if store is None or not is_good_response(got):
            return
        with self._lock:
            crowd = self._open.get(call.party_and_key, [])
            others = self._open.pop(call.party_and_key)[1:] if crowd and crowd[0] is call else []
        copies = [Addition(replace(made, occurrence=each.kept.occurrence)) for each in others]
        try:
            for other, stored in zip(others, store.add_interactions(copies) if copies else (), strict=True):
                other.slot = KeyedRecording(stored, other.kept.occurrence, got.status, got.ending)
                other.decision, other.note = Decision.REPLAY, "shares the answer to the same request at the same time"
        finally:  # if it could not be stored, each waiter sends its own request
            for other in others:
                other.answer.awaited = False

    @override
    def on_end(self, call: Exchange, record: Call) -> Call:
        with self._lock:
            crowd = [each for each in self._open.pop(call.party_and_key, []) if each is not call]
            if crowd:
                self._open[call.party_and_key] = crowd
                crowd[0].answer.awaited = False
        return record


class CoalesceFeature(Feature):
    kind = CoalesceInterceptor

    @override
    def create_interceptor(self, session: Session, asked: Mapping[str, Any]) -> CoalesceInterceptor | None:
        shares = self.parts.state.config.coalesce and session.settings.mode.policy.alone
        return CoalesceInterceptor(self.parts) if shares else None
