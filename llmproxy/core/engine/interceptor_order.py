"""Features of an engine in the order in which their interceptors handle a request; answers pass them in reverse.

A session's options are checked in that order, too.
"""

from __future__ import annotations

from llmproxy.core.engine.abandoned_answer_replay import AbandonedFeature
from llmproxy.core.engine.auxiliary_call_stubs import StubFeature
from llmproxy.core.engine.bound_hits import BindingFeature
from llmproxy.core.engine.carried_answers import AcceptedChangesFeature
from llmproxy.core.engine.coalescing import CoalesceFeature
from llmproxy.core.engine.completion_order import OrderFeature
from llmproxy.core.engine.cost_limit import BudgetFeature
from llmproxy.core.engine.fault_injection import FaultFeature
from llmproxy.core.engine.feature import Feature
from llmproxy.core.engine.forking import ForkFeature
from llmproxy.core.engine.mcp_playback import PlaybackFeature
from llmproxy.core.engine.partly_live_sessions import LiveFeature
from llmproxy.core.engine.recording_replacement import ReplacementFeature
from llmproxy.core.engine.stale_recordings import StaleRecordingFeature

FEATURES: tuple[type[Feature], ...] = (
    StubFeature,  # before all others: they ignore auxiliary calls
    LiveFeature,  # before lookups, as live calls need no recording; last on answers, so it stores what the client got
    BindingFeature,  # finds bound hits; one whose answer cannot be rewritten is a miss
    AcceptedChangesFeature,  # only if neither the key nor bindings found a recording
    ReplacementFeature,  # sends what AcceptedChangesFeature found changed; chooses the cassette for all answers
    FaultFeature,  # after all hits are found, and before the arrival is counted
    ForkFeature,  # counts calls without a fault, and forks if no feature before it found a recording
    StaleRecordingFeature,  # checks the final hit
    BudgetFeature,  # limits the requests that are finally sent
    PlaybackFeature,  # goes by what was decided
    CoalesceFeature,  # goes by what was decided
    OrderFeature,  # delays the final answer
    AbandonedFeature,  # last: extends the end of the final answer
)
