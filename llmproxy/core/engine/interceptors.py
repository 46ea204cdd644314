"""The features of an engine, a row each, in the order in which their interceptors are asked on the way in.

Reasons for the order: a fault strikes what a hit would be, so what chooses the hit stands before it.
"""

from __future__ import annotations

from llmproxy.core.engine.binding import BindingFeature
from llmproxy.core.engine.end_order import OrderFeature
from llmproxy.core.engine.fault_injection import FaultFeature
from llmproxy.core.engine.feature import Feature
from llmproxy.core.engine.forking import ForkFeature
from llmproxy.core.engine.live_exchanges import LiveFeature
from llmproxy.core.engine.mcp_playback import PlaybackFeature

FEATURES: tuple[type[Feature], ...] = (
    LiveFeature, BindingFeature, FaultFeature, ForkFeature, PlaybackFeature, OrderFeature,
)  # fmt: skip
