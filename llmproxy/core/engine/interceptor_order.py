"""The features of an engine, a row each, in the order in which their interceptors are asked on the way in.

On the way back they are asked in reverse order, so that who changed a request first changes its answer last. What a
session may ask for is looked at in that order, too.
"""

from __future__ import annotations

from llmproxy.core.engine.abandoned_answers import AbandonedFeature
from llmproxy.core.engine.auxiliary_call_stubs import StubFeature
from llmproxy.core.engine.bound_hits import BindingFeature
from llmproxy.core.engine.carried_answers import CarryFeature
from llmproxy.core.engine.coalescing import CoalesceFeature
from llmproxy.core.engine.completion_order import OrderFeature
from llmproxy.core.engine.cost_limit import BudgetFeature
from llmproxy.core.engine.fault_injection import FaultFeature
from llmproxy.core.engine.feature import Feature
from llmproxy.core.engine.forking import ForkFeature
from llmproxy.core.engine.mcp_playback import PlaybackFeature
from llmproxy.core.engine.partly_live_sessions import LiveFeature
from llmproxy.core.engine.recording_replacement import ReaskFeature, ReplacementFeature
from llmproxy.core.engine.stale_answers import StaleFeature

FEATURES: tuple[type[Feature], ...] = (
    StubFeature,  # before all others: an auxiliary call is none of theirs
    LiveFeature,  # first of them: what goes live looks for no recording; what is served is kept as the client got it
    BindingFeature,  # finds the hits of another run, and turns one that cannot be told into a miss
    CarryFeature,  # asks only where neither the key nor what is bound found a recording
    ReaskFeature,  # asks what the one before found changed
    FaultFeature,  # is done to what would be a hit by then, and before it is counted
    ForkFeature,  # counts only what met no fault, and forks where everything before it found nothing
    StaleFeature,  # looks at what would be a hit in the end
    BudgetFeature,  # keeps what would be asked in the end within its limit
    PlaybackFeature,  # goes by what was decided
    CoalesceFeature,  # goes by what was decided
    ReplacementFeature,  # says where answers are kept, whatever led to them
    OrderFeature,  # holds back what is played in the end
    AbandonedFeature,  # last: adds to the end of what is played
)
