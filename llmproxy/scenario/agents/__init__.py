"""Agents in any language as adapters: over HTTP, as a command that speaks JSON lines, as a callable, as a service.

Each answers a conversation that `AgentInput.thread_id` names, and gets the run's session at the proxy in the way that
suits it: variables for what is started, a header, a body field or a bound session for what runs already. An agent that
was never reached is AgentUnreachable (the environment's fault), one that was reached and crashed, hung or answered
nonsense is AgentError (it counts).
"""

from llmproxy.scenario.agents.command import CommandAgent
from llmproxy.scenario.agents.config import build_agent
from llmproxy.scenario.agents.function import FunctionAgent
from llmproxy.scenario.agents.http import HttpAgent, OpenAIAgent
from llmproxy.scenario.agents.running_service import ServiceAgent

__all__ = ["CommandAgent", "FunctionAgent", "HttpAgent", "OpenAIAgent", "ServiceAgent", "build_agent"]
