"""What all runs share: agents and stores from the command line, the suite or the project, in this order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llmproxy.errors import SuiteError
from llmproxy.suite.reading.project_settings import SuiteCommandOptions
from llmproxy.suite.run.run_context import RunContext, list_scenario_entity_names
from tests.suite import rig

TEXT = """
name: t
agent: {http: "http://127.0.0.1:1/v1"}
store: {memory: {}, entities: {notes: {}}}
scenarios:
  - id: one
    setup: [{insert: tasks, data: {title: x}}]
    steps:
      - {chat: x, created: [{entity: logs}]}
      - {verify: {entity: tasks, count: 1, filters: {title: x}}}
      - {wait: {entity: reminders, until: {status: done}}}
      - {wait: {ms: 1}}
      - {setup: [{insert: users, data: {name: y}}]}
    teardown: [{delete: files, filters: {id: 1}}]
  - {id: two, steps: [{chat: x}]}
"""


def world(**more: Any) -> RunContext:
    return RunContext(options=SuiteCommandOptions(), proxy=None, **more)


def test_entities_of_the_whole_suite_are_cleaned(tmp_path: Path) -> None:
    """A scenario that names none may still make its agent write rows."""
    one, two = rig.cases_of(tmp_path, TEXT)
    assert list_scenario_entity_names(one.scenario) == ["tasks", "logs", "reminders", "users", "files"]
    assert world().list_case_entities(two) == ["notes", "tasks", "logs", "reminders", "users", "files"]


def test_the_nearest_description_wins(tmp_path: Path) -> None:
    """An agent of the command line, else the suite's, else the project's; without any, an error that says what to write."""
    one, _ = rig.cases_of(tmp_path, TEXT)
    (bare,) = rig.cases_of(tmp_path, "name: b\nscenarios: [{id: b, steps: [{chat: x}]}]\n", "b.suite.yaml")
    project = {"agent": {"http": "http://127.0.0.1:2/v1"}}
    assert ":1/" in getattr(world(defaults=project).agent_for_case(one), "url")  # noqa: B009
    assert ":2/" in getattr(world(defaults=project).agent_for_case(bare), "url")  # noqa: B009
    assert ":3/" in getattr(world(agent={"http": "http://127.0.0.1:3/v1"}).agent_for_case(one), "url")  # noqa: B009
    with pytest.raises(SuiteError, match="no agent is described"):
        world().agent_for_case(bare)
    assert world().get_shared_suite_store(bare) is None


def test_agents_are_one_for_each_run_and_stores_are_shared(tmp_path: Path) -> None:
    """Runs at the same time do not share an agent's connections."""
    one, two = rig.cases_of(tmp_path, TEXT)
    here = world()
    assert here.agent_for_case(one) is not here.agent_for_case(one)
    assert here.get_shared_suite_store(one) is here.get_shared_suite_store(two)
    here.close()


def test_waiting_ends_when_everything_ends() -> None:
    here = world()
    here.stopped.set()
    with pytest.raises(SuiteError, match="interrupted"):
        here.sleep(60)
