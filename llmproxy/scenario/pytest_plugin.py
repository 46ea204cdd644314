"""LangWatch's import path of the pytest plugin, whose hooks are in `llmproxy.pytest.plugin`."""

from llmproxy.pytest.plugin import scenario_reporter
from llmproxy.pytest.scenario_report import ScenarioReporter

__all__ = ["ScenarioReporter", "scenario_reporter"]
