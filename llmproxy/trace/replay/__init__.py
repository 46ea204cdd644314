"""Evalcraft's import path: ``from evalcraft.replay.engine import ReplayEngine`` works with our name in front.

`trace.replay` is also a function. Importing this package replaces the function, so it is callable: it means the same
before and after the import.
"""

from __future__ import annotations

import sys
from types import ModuleType

from llmproxy.trace.comparing.diff import ReplayDiff
from llmproxy.trace.replay.engine import ReplayEngine, replay

__all__ = ["ReplayDiff", "ReplayEngine", "replay"]


class _CallableModule(ModuleType):
    __call__ = staticmethod(replay)


sys.modules[__name__].__class__ = _CallableModule
