"""LangWatch's import path of the executor: ``from scenario.scenario_executor import ScenarioExecutor, run``."""

from llmproxy.scenario.running.executor import ScenarioExecutor
from llmproxy.scenario.running.run import run

__all__ = ["ScenarioExecutor", "run"]
