"""Simulated users and judges for testing an agent, under the names of LangWatch Scenario.

    from llmproxy import scenario

    result = await scenario.run(
        name="refund", description="User wants the money back for a broken lamp",
        agents=[MyAgent(), scenario.UserSimulatorAgent(), scenario.JudgeAgent(criteria=["Agent offers a refund"])],
    )

It uses llmproxy from outside: a run with a proxy records its simulator, judge and agent there, and replays them without
a call. Importing this opens no connection and imports no LLM library.
"""

from __future__ import annotations

import llmproxy
from llmproxy.scenario import agent_adapter, config, scenario_executor, scenario_state, script, types
from llmproxy.scenario.agent_adapter import AgentAdapter
from llmproxy.scenario.cache import scenario_cache  # binds the submodule, in whose place the function stands below
from llmproxy.scenario.cluster.scenarios_on_ray import on
from llmproxy.scenario.config import ModelConfig, ScenarioConfig
from llmproxy.scenario.judge_agent import JudgeAgent
from llmproxy.scenario.red_team_agent import (
    DEFAULT_GOAT_TECHNIQUES,
    DEFAULT_TECHNIQUES,
    AttackTechnique,
    CrescendoStrategy,
    GoatStrategy,
    RedTeamAgent,
    RedTeamStrategy,
    Technique,
)
from llmproxy.scenario.running.agent_caller import ConnectedAgentAdapter, ConnectedAgentCall
from llmproxy.scenario.running.run import arun, run, run_sync
from llmproxy.scenario.scenario_executor import ScenarioExecutor
from llmproxy.scenario.scenario_state import ScenarioState, ToolCall, ToolCalls
from llmproxy.scenario.script import agent, fail, judge, message, proceed, succeed, user
from llmproxy.scenario.types import (
    AgentInput,
    AgentReturnTypes,
    AgentRole,
    CriterionResult,
    JudgmentRequest,
    ScenarioResult,
    ScriptStep,
)
from llmproxy.scenario.user_simulator_agent import UserSimulatorAgent
from llmproxy.scenario.values.data_files import Case, cases

__all__ = [
    "DEFAULT_GOAT_TECHNIQUES", "DEFAULT_TECHNIQUES", "AgentAdapter", "AgentInput", "AgentReturnTypes", "AgentRole",
    "AttackTechnique", "Case", "ConnectedAgentAdapter", "ConnectedAgentCall", "CrescendoStrategy", "CriterionResult",
    "GoatStrategy", "JudgeAgent", "JudgmentRequest", "ModelConfig", "RedTeamAgent", "RedTeamStrategy", "ScenarioConfig",
    "ScenarioExecutor", "ScenarioResult", "ScenarioState", "ScriptStep", "Technique", "ToolCall", "ToolCalls",
    "UserSimulatorAgent", "agent", "agent_adapter", "arun", "cache", "cases", "config", "configure", "default_config",
    "fail", "judge", "message", "on", "proceed", "run", "run_sync", "scenario_executor", "scenario_state", "script",
    "succeed", "types", "user",
]  # fmt: skip

__version__ = llmproxy.__version__

cache = scenario_cache
configure = ScenarioConfig.configure
default_config = ScenarioConfig.default_config
"""A copy from import time, like the original; `configure` changes `ScenarioConfig.default_config`."""


def __dir__() -> list[str]:
    return list(__all__)
