"""Adapters for agents in any language: over HTTP, as a command with JSON lines, as a callable, as a service.

An agent that was never reached is AgentUnreachable (the environment's fault), one that was reached and crashed, hung or
answered nonsense is AgentError (it counts).
"""

from llmproxy.scenario.agents.command import CommandAgent
from llmproxy.scenario.agents.config import build_agent
from llmproxy.scenario.agents.function import FunctionAgent
from llmproxy.scenario.agents.http import HttpAgent, OpenAIAgent, ServiceAgent

__all__ = ["CommandAgent", "FunctionAgent", "HttpAgent", "OpenAIAgent", "ServiceAgent", "build_agent"]
