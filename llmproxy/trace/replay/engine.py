"""Evalcraft's import path of the replay engine."""

from llmproxy.trace.replaying.engine import ReplayDiff, ReplayEngine, replay

__all__ = ["ReplayDiff", "ReplayEngine", "replay"]
