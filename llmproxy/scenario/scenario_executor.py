"""LangWatch's import path of the executor: ``from scenario.scenario_executor import ScenarioExecutor``."""

from llmproxy.scenario.running.executor import ScenarioExecutor

__all__ = ["ScenarioExecutor"]
