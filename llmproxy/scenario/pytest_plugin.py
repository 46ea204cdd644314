"""LangWatch's import path of the pytest plugin; its hooks are those of `llmproxy.pytest.plugin`, which every pytest run loads."""

from llmproxy.pytest.plugin import scenario_reporter
from llmproxy.pytest.scenario_report import ScenarioReporter

__all__ = ["ScenarioReporter", "scenario_reporter"]
