"""Context shared by all runs of a test: proxy, agents, stores, event handlers, clocks."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmproxy.errors import SuiteError
from llmproxy.report.events import Event, Handler, notify_handlers
from llmproxy.scenario.agent_adapter import AgentAdapter
from llmproxy.suite.checks.chat_steps import StoredAnswerSnapshots
from llmproxy.suite.project_settings import SuiteCommandOptions
from llmproxy.suite.reading.load import SuiteCase
from llmproxy.suite.run.rejudge import ReportedRuns
from llmproxy.suite.schema.steps import SetupStep, Talk, VerifyStep, WaitStep
from llmproxy.suite.schema.suite import Scenario
from llmproxy.suite.schema.values import WaitFor
from llmproxy.suite.stores import ResetPolicy, StoreAdapter, build_store, parse_reset_policy
from llmproxy.yaml_reader import YamlPlace


@contextmanager
def reraise_with_place(place: YamlPlace | None) -> Iterator[None]:
    try:
        yield
    except SuiteError as error:
        if place is None:
            raise
        raise SuiteError(f"{place}: {error.message}", hint=error.hint) from error


def list_scenario_entity_names(scenario: Scenario) -> list[str]:
    found = [item.insert for item in scenario.setup] + [entity for entity, _ in list_checked_entities(scenario)]
    found += [item.insert for step in scenario.steps if isinstance(step, SetupStep) for item in step.setup]
    return list(dict.fromkeys([*found, *(item.delete for item in scenario.teardown if item.delete)]))


def list_checked_entities(scenario: Scenario) -> Iterator[tuple[str, Mapping[str, object]]]:
    for step in scenario.steps:
        match step:
            case Talk():
                yield from ((item.entity, item.fields) for item in step.created or ())
            case VerifyStep(verify=look) | WaitStep(wait=WaitFor() as look):
                yield look.entity, look.filters


@dataclass(slots=True, kw_only=True)
class RunContext:
    """Shared by all runs; `close` it at the end."""

    options: SuiteCommandOptions
    proxy: str | None
    """Its URL; None: without a proxy no assertion about traffic can be evaluated."""
    token: str = ""
    handlers: Sequence[Handler] = ()
    agent: Mapping[str, Any] | None = None
    """Agent in place of the suites' `agent`, with its base folder."""
    store: Mapping[str, Any] | None = None
    folder: Path = field(default_factory=Path.cwd)
    """Base of paths in `agent` and `store`."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """``agent`` and ``store`` for suites without any."""
    defaults_folder: Path = field(default_factory=Path.cwd)
    users: frozenset[str] = frozenset()
    """Users of this test's runs; empty if not all are known."""
    faults: Mapping[str, Any] | None = None
    """Injected faults of every session, in place of the scenarios' own, for a sweep."""
    keeps_calls: bool = False
    """Whether calls are kept after a run, for a sweep."""
    files: tuple[Path, Path] | None = None
    """The store and the cassette folder; None if unknown."""
    recorded: ReportedRuns | None = None
    """Runs to judge again; None if agents are run."""
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    execute: Callable[..., Awaitable[Any]] | None = None
    """Runs a case elsewhere, with the signature of `run_case_once`; None: here."""
    stopped: threading.Event = field(default_factory=threading.Event)
    _agents: dict[int, AgentAdapter] = field(default_factory=dict)
    _stores: dict[int, tuple[StoreAdapter, ResetPolicy] | None] = field(default_factory=dict)
    _snapshots: dict[Path, StoredAnswerSnapshots] = field(default_factory=dict)
    _entities: dict[int, list[str]] = field(default_factory=dict)

    def emit_event(self, event: Event) -> None:
        notify_handlers(self.handlers, event)

    def sleep(self, seconds: float) -> None:
        """Wait in a thread; raises when everything is to end."""
        if self.stopped.wait(seconds):
            raise SuiteError("the tests were interrupted")

    def count_samples(self, case: SuiteCase) -> int:
        if self.recorded is not None:
            return self.options.runs or self.recorded.count_samples(case.id)
        return self.options.runs or case.scenario.runs

    # -- what suites describe

    def agent_for_case(self, case: SuiteCase) -> AgentAdapter:
        """Return an agent for one run. Raises SuiteError: none, or an invalid one."""
        known = self._agents.get(id(case.suite))
        if known is None:
            mapping, folder = self._find_agent_or_store_config("agent", case)
            if mapping is None:
                raise SuiteError(
                    f"{case.path}: no agent is described, so there is nothing to test.",
                    hint='Write e.g. `agent: {http: "http://127.0.0.1:8000/v1"}` into the suite, or give --agent.',
                )
            from llmproxy.scenario.agents.config import build_agent

            with reraise_with_place(None if self.agent is not None else case.suite.at("agent")):
                known = self._agents[id(case.suite)] = build_agent(mapping, folder)
        return known.clone()

    def get_shared_suite_store(self, case: SuiteCase) -> tuple[StoreAdapter, ResetPolicy] | None:
        """Return a suite's store, shared by all runs, with its reset policy; or None. Raises SuiteError, StoreError."""
        if id(case.suite) not in self._stores:
            mapping, folder = self._find_agent_or_store_config("store", case)
            with reraise_with_place(None if self.store is not None else case.suite.at("store")):
                made = None if mapping is None else (build_store(mapping, folder), parse_reset_policy(mapping))
            self._stores[id(case.suite)] = made
        return self._stores[id(case.suite)]

    def list_case_entities(self, case: SuiteCase) -> list[str]:
        """Return all entities of store and suite, once each: an agent may write rows that no scenario names."""
        if self.recorded is not None:
            return []
        mapping, _ = self._find_agent_or_store_config("store", case)
        if mapping is None:
            return list_scenario_entity_names(case.scenario)
        described = mapping.get("entities")
        found = dict.fromkeys(map(str, described)) if isinstance(described, Mapping) else {}
        found |= dict.fromkeys(list_scenario_entity_names(case.scenario))
        if id(case.suite) not in self._entities:
            scenarios = [each for each in case.suite.scenarios if not isinstance(each, str)]
            self._entities[id(case.suite)] = [name for each in scenarios for name in list_scenario_entity_names(each)]
        return list(found | dict.fromkeys(self._entities[id(case.suite)]))

    def snapshots_for(self, case: SuiteCase) -> StoredAnswerSnapshots:
        if case.path not in self._snapshots:
            self._snapshots[case.path] = StoredAnswerSnapshots.load_for_suite(case.path, update=self.options.update)
        found = self._snapshots[case.path]
        found.command = self.options.command  # pytest's differs by test
        return found

    def _find_agent_or_store_config(self, key: str, case: SuiteCase) -> tuple[Mapping[str, Any] | None, Path]:
        if (given := getattr(self, key)) is not None:
            return given, self.folder
        said = getattr(case.suite, key)
        return (said, case.folder) if said is not None else (self.defaults.get(key), self.defaults_folder)

    def save_snapshots(self) -> list[Path]:
        return [each.path for each in self._snapshots.values() if each.save_changes()]

    def close(self) -> None:
        for made in self._stores.values():
            if made is not None:
                made[0].close()
        self._stores.clear()
