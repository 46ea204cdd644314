"""Contract of a feature of one engine: an interceptor for some sessions, and the state that they share.

`core.sessions.interceptor` describes how to write an interceptor. The rows are in `engine.interceptor_order`.
"""

from __future__ import annotations

from typing import NamedTuple

from llmproxy.core.engine.answer_storage import InteractionBuilder
from llmproxy.core.engine.call_accounting import CallAccounting
from llmproxy.core.engine.engine_state import EngineState
from llmproxy.core.engine.request_identification import KeyDeriver
from llmproxy.core.engine.request_stages import MissExplainer
from llmproxy.core.sessions.session import SessionFeature


class EngineParts(NamedTuple):
    """Parts of the engine that features may use."""

    state: EngineState
    keying: KeyDeriver
    builder: InteractionBuilder
    misses: MissExplainer
    accounting: CallAccounting


class Feature(SessionFeature):
    """A feature of one engine, with the state that its sessions share."""

    def __init__(self, parts: EngineParts) -> None:
        self.parts = parts
