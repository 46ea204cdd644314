"""Lines that documents of LangWatch Scenario and Evalcraft import by, with our package's name in place of theirs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINES = [
    "from llmproxy import scenario",
    "from llmproxy.scenario.agent_adapter import AgentAdapter",
    "from llmproxy.scenario.cache import context_scenario, scenario_cache",
    "from llmproxy.scenario.config import ModelConfig, ScenarioConfig",
    "from llmproxy.scenario.judge_agent import JudgeAgent",
    "from llmproxy.scenario.pytest_plugin import ScenarioReporter, scenario_reporter",
    "from llmproxy.scenario.scenario_executor import ScenarioExecutor, run",
    "from llmproxy.scenario.scenario_state import ScenarioState",
    "from llmproxy.scenario.script import agent, fail, judge, message, proceed, succeed, user",
    "from llmproxy.scenario.types import AgentInput, AgentReturnTypes, AgentRole, ScenarioResult, ScriptStep",
    "from llmproxy.scenario.user_simulator_agent import UserSimulatorAgent",
    "from llmproxy.trace import replay",
    "from llmproxy.trace.core.models import Cassette, SpanKind",
    "from llmproxy.trace.replay.engine import ReplayDiff, ReplayEngine",
]


@pytest.mark.parametrize("line", LINES)
def test_a_line_of_the_documents_imports(line: str) -> None:
    exec(line)


def test_each_is_the_first_import_of_a_program() -> None:
    """In any order: the last of them first, too."""
    code = "\n".join([*reversed(LINES), "assert callable(scenario.cache) and scenario.run is run and callable(replay)"])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


def test_the_addons_are_scripts_of_mitmproxy() -> None:
    """At the paths that documents load them from."""
    assert sorted(path.name for path in (ROOT / "addons").glob("*.py")) == ["inject_faults.py", "record_replay.py"]
