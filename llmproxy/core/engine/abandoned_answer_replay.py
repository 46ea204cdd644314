"""Recorded answers that their client abandoned, in sessions that may write.

Leaving once may be an interrupt or a timeout; twice is the agent's habit (`core.store.reader.was_left_twice`). So it is
served as far as it was recorded, and its client gets `LEAVING` microseconds to leave as well. A client that stays needs
the whole answer: the recording then counts as left once again, so that the next run requests it live. A part is never
repeated: a request beyond the recorded occurrences goes live, even if the cassette was complete.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import override

from llmproxy.core.engine.feature import EngineParts, Feature
from llmproxy.core.sessions.exchange import Exchange
from llmproxy.core.sessions.interceptor import Decided, Interceptor, Lookup
from llmproxy.core.sessions.session import Session
from llmproxy.core.store.queries import has_answers_left_by_client
from llmproxy.core.store.reader import KeyChange
from llmproxy.core.store.store import Store
from llmproxy.core.traffic.response_plan import SendingPlan
from llmproxy.errors import LLMProxyError
from llmproxy.protocol import Channel, Decision, Exhausted

log = logging.getLogger(__name__)

LEAVING = 1_000_000
"""Microseconds that a client has to leave where the recorded one left, before the connection breaks."""
_HOLDER = "llmproxy, late"


class AbandonedAnswerInterceptor(Interceptor[Exchange]):
    def __init__(self, parts: EngineParts) -> None:
        self._sessions = parts.state.sessions

    def on_send_plan(self, call: Exchange, laid: SendingPlan) -> SendingPlan:
        if not _is_abandoned(call):
            return laid
        last = laid.pieces[-1][0] if call.session.settings.speed or not call.answer.held else 0
        return laid._replace(pieces=(*laid.pieces, (last + LEAVING, b"")))

    def on_decision(self, call: Exchange, found: Lookup, decided: Decided) -> Decided:
        left = decided.recording is not None and decided.recording.was_left and call.channel is not Channel.MCP
        repeated = call.nth > len(found.recordings) and call.session.settings.exhausted is Exhausted.LAST
        return Decided(Decision.RECORD) if left and repeated else decided

    def on_sent(self, call: Exchange) -> Callable[[], None] | None:
        if call.slot is None or not _is_abandoned(call):
            return None
        call.note = "its client reads on where the recorded one left: the next time it is asked live"
        return self._build_mark_abandoned_job(call.session, call.slot.id)

    def _build_mark_abandoned_job(self, session: Session, recording: int) -> Callable[[], None]:
        store, place = self._sessions.store(session.settings.mode), (session.cassette, session.sample)
        rows = store.list_keys(*place) if store is not None else []
        mine = next((each for each in rows if each.id == recording), None)

        def write() -> None:
            if store is None or mine is None:
                return
            alike = [each.occurrence for each in rows if (each.party, each.key) == (mine.party, mine.key)]
            turn = sorted(alike).index(mine.occurrence) + 1
            try:
                store.begin_writing(*place, exclusive=True, holder=_HOLDER, anew=False)
                try:
                    store.rekey_recordings([KeyChange(mine.id, mine.key, mine.key, turn, mine.rules)])
                finally:
                    store.end_writing(*place, _HOLDER, clean=False)
            except LLMProxyError as why:
                log.warning("recording #%s will not be asked live again: %s", mine.id, why.message)

        return write


def _is_abandoned(call: Exchange) -> bool:
    return call.slot is not None and call.slot.was_left and call.channel is not Channel.MCP


class AbandonedFeature(Feature):
    kind = AbandonedAnswerInterceptor

    @override
    def on_replay_begin(self, session: Session, store: Store) -> None:
        if session.settings.mode.policy.writes and has_answers_left_by_client(store, session.cassette, session.sample):
            self.parts.state.sessions.add_interceptor_to_session(session, AbandonedAnswerInterceptor(self.parts))
