"""Evalcraft's import path of the replay engine."""

from llmproxy.trace.comparing.diff import ReplayDiff
from llmproxy.trace.replaying.engine import ReplayEngine, replay

__all__ = ["ReplayDiff", "ReplayEngine", "replay"]
