"""Stale recordings, older than `--max-age` or than their cassette's file allows.

A replay serves and reports them: age proves nothing. If the mode may write, a stale hit is sent live, and a good answer
replaces the recording. A request that changes an object at a server is not sent again: that would change it twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, override

from llmproxy.amount_formatting import format_count
from llmproxy.core.engine.feature import EngineParts, Feature
from llmproxy.core.providers.routing import changes_server_state
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.sessions.interceptor import Decided, Interceptor, Lookup
from llmproxy.core.sessions.session import Session
from llmproxy.core.store.queries import choose_max_age, read_interaction_summary
from llmproxy.core.store.reader import KeyedRecording
from llmproxy.core.traffic.interaction import Ending, Interaction
from llmproxy.protocol import Channel, Decision, ReplayScope
from llmproxy.proxy_calls import Call

_DAY = 86_400


class StaleHit(NamedTuple):
    recording: KeyedRecording
    days: int | None
    """Age in days; None if the time of recording is unknown."""


class StaleRecordingInterceptor(Interceptor[Exchange]):
    def __init__(self, parts: EngineParts, most: float) -> None:
        """`most` is the age in seconds above which a recording is stale."""
        self._state, self._most = parts.state, most

    @override
    def on_decision(self, call: Exchange, found: Lookup, decided: Decided) -> Decided:
        store = self._state.stores.current
        if store is None or decided.recording is None or decided.decision is not Decision.REPLAY:
            return decided
        recorded = read_interaction_summary(store, decided.recording.id).recorded_at
        age = self._state.now() - recorded
        if -_DAY <= age <= self._most:
            return decided
        call.state.put(StaleHit(decided.recording, int(age // _DAY) if recorded and age > 0 else None))
        asks = call.session.settings.mode.policy.writes and call.channel is Channel.LLM
        return Decided(Decision.RECORD) if asks and not changes_server_state(call.route, call.method) else decided

    @override
    def on_interaction(self, call: Exchange, made: Interaction) -> Interaction:
        stale = call.state.get(StaleHit)
        good = made.response.status in range(200, 300) and made.response.ending is Ending.COMPLETE
        here = call.kept.into is None  # a staged answer takes no place yet
        call.kept.instead = stale.recording.id if stale is not None and good and here else None
        return made

    @override
    def on_end(self, call: Exchange, record: Call) -> Call:
        stale = call.state.get(StaleHit)
        if stale is None:
            return record
        age = "recorded on a day that nobody knows"
        if stale.days is not None:
            age = f"recorded {format_count(stale.days, 'day')} ago"
        return record._replace(stale=record.decision is Decision.REPLAY, note=record.note or age)


class StaleRecordingFeature(Feature):
    kind = StaleRecordingInterceptor

    @override
    def create_interceptor(self, session: Session, asked: Mapping[str, Any]) -> StaleRecordingInterceptor | None:
        store, most = self.parts.state.sessions.store(session.settings.mode), self.parts.state.config.max_age
        if store is not None and session.policy.plays is not ReplayScope.NOTHING:
            most = choose_max_age(store, session.cassette, most)
        return None if most is None else StaleRecordingInterceptor(self.parts, most)
