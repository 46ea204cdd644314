"""Contract of a feature: interceptor for some sessions (`core.sessions.call_interceptor`), and the state they share."""

from __future__ import annotations

from typing import NamedTuple

from llmproxy.core.engine.engine_state import EngineState
from llmproxy.core.engine.recording_and_accounting import CallJournalAndUsageRecorder, InteractionFromExchangeBuilder
from llmproxy.core.engine.request_identification import KeyDeriver
from llmproxy.core.engine.request_stages import MissExplainer
from llmproxy.core.sessions.session import SessionCallInterceptorFactory


class EngineParts(NamedTuple):
    state: EngineState
    keying: KeyDeriver
    builder: InteractionFromExchangeBuilder
    misses: MissExplainer
    accounting: CallJournalAndUsageRecorder


class Feature(SessionCallInterceptorFactory):
    def __init__(self, parts: EngineParts) -> None:
        self.parts = parts
