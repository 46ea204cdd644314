"""Which scenario is running here: a context variable, so that a decorated function knows whose cache key is in effect.

Outside a scenario, and in threads that an agent starts by itself, it is None, and nothing may fail because of that.
"""

from __future__ import annotations

from contextvars import ContextVar

from llmproxy.scenario.values.executor import Executor

context_scenario: ContextVar[Executor | None] = ContextVar("scenario", default=None)
"""The executor whose agents, steps and callbacks run in this context."""
