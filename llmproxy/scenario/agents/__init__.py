"""Agents in any language as adapters: over HTTP, as a command that speaks JSON lines, as a Python callable, as a
running service.

Each answers a conversation that `AgentInput.thread_id` names, and gets the run's session at the proxy in the way that
suits it: variables for what is started, a header, a body field or a bound session for what runs already. An agent that
was never reached is AgentUnreachable (the environment's fault), one that was reached and crashed, hung or answered
nonsense is AgentError (it counts).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmproxy.scenario.agents.command import CommandAgent as CommandAgent
    from llmproxy.scenario.agents.config import agent_from as agent_from
    from llmproxy.scenario.agents.function import FunctionAgent as FunctionAgent
    from llmproxy.scenario.agents.http import HttpAgent as HttpAgent, OpenAIAgent as OpenAIAgent
    from llmproxy.scenario.agents.service import ServiceAgent as ServiceAgent

_HOMES = {
    "CommandAgent": "command",
    "FunctionAgent": "function",
    "HttpAgent": "http",
    "OpenAIAgent": "http",
    "ServiceAgent": "service",
    "agent_from": "config",
}

__all__ = [  # noqa: PLE0604 - the table above is the list
    *_HOMES
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the name stands for
    """Import a public name when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
