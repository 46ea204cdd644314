"""Context shared by all runs of a test: proxy, agents, stores, event handlers, clocks; recorded runs to judge again.

When recorded runs are judged again, the agent is not run: one repeats the answers of a JSON report, a session the
recorded traffic; everything else is a run like any other. Judges are recorded as ``CASSETTE.rejudge``; a replay without
such a recording uses the run's own. An assertion that needs the original run (rows, a user simulator's next text, a
changed user message) is an error, never a pass.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from llmproxy.calls_and_totals import Call
from llmproxy.client.control import ControlApiClient
from llmproxy.client.session_reports import SessionReport
from llmproxy.errors import AgentError, MachineError, SettingsError, SuiteError
from llmproxy.protocol import AGENT, OFFLINE, Decision
from llmproxy.report.events import Assertion, Event, Handler, Status, notify_handlers
from llmproxy.report.json_report import read_report_runs
from llmproxy.scenario.agent_adapter import AgentAdapter
from llmproxy.scenario.run_session import RunSession
from llmproxy.scenario.types import AgentInput, AgentReturnTypes, Message
from llmproxy.scenario.values.messages import get_message_text
from llmproxy.suite.checks.chat_step_assertions import SuiteSnapshotFile
from llmproxy.suite.matchers.apply import make_error_assertion
from llmproxy.suite.reading.load import SuiteCase
from llmproxy.suite.reading.project_settings import SuiteCommandOptions
from llmproxy.suite.schema.assertions import WaitForRows
from llmproxy.suite.schema.suite import ChatOrSimulateStep, Scenario, SetupStep, VerifyStep, WaitStep
from llmproxy.suite.stores import StoreAdapter, StoreResetSettings, build_suite_store, parse_store_reset_method
from llmproxy.trace.observing.agent_activity import build_store_independent_id
from llmproxy.trace.reading.recording_spans import read_interactions_as_json
from llmproxy.yaml_reader import YamlPlace

_TALKS = ("chat", "simulate")
_OVER = (Status.PASSED.value, Status.FAILED.value, Status.AGENT_ERROR.value)
"""Statuses of runs that say something about the agent."""
_PASSED = {"party": AGENT, "decision": Decision.PASS.value, "status": 200}
_UNKEPT = Call.from_json({**_PASSED, "operation": "chat.completions"})
"""An unrecorded call: its content is unknown."""


class RunNotRejudgeable(MachineError):
    """A run's recording lacks what an assertion needs."""

    code = "llmproxy_unjudgeable"


def build_not_rejudgeable_assertion(
    name: str, why: str = "rows were looked at when the agent ran, and are others now"
) -> Assertion:
    return make_error_assertion(name, f"cannot be judged again: {why}")


@dataclass(slots=True)
class _TurnToRejudge:
    said: str
    answers: list[Message] = field(default_factory=list)
    recordings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _TalkStep:
    kind: str
    turns: Sequence[_TurnToRejudge]
    late: Sequence[str] = ()
    """Recordings of calls after its last answer."""
    given: str = ""
    """Digest of its circumstances (`case_runner.hash_step_inputs_affecting_answer`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFromJsonReport:
    case: str
    sample: int
    run_id: str
    cassette: str
    status: str
    why: str
    talks: Mapping[int, _TalkStep]
    """Chat steps by index."""


@dataclass(frozen=True, slots=True)
class RunsToRejudge:
    path: Path
    runs: Mapping[tuple[str, int], RunFromJsonReport]
    store: Path

    def count_samples(self, case: str) -> int:
        """Return the number of a case's runs to judge; at least one, which may be missing."""
        return max((sample for name, sample in self.runs if name == case), default=1)

    def get_judgeable_run(self, case: str, sample: int) -> RunFromJsonReport:
        """Return a run. Raises RunNotRejudgeable: missing, or it says nothing about the agent."""
        if (run := self.runs.get((case, sample))) is None:
            raise RunNotRejudgeable(f"{self.path} has no run {sample} of {case}, so there is nothing to judge again.")
        if run.status not in _OVER:
            raise RunNotRejudgeable(
                f"{case}: the recorded run ended as {run.status.replace('_', ' ')}, which says nothing about the"
                f" agent: {run.why}"
            )
        return run

    def list_run_calls(self, run: RunFromJsonReport, control: ControlApiClient) -> dict[str, Call]:
        """Return a run's calls by their names in reports. Raises RunNotRejudgeable if some are gone."""
        wanted = {
            name
            for talk in run.talks.values()
            for names in (*(t.recordings for t in talk.turns), talk.late)
            for name in names
            if name
        }
        if not wanted:
            return {}
        opened = control.open_session(run.run_id, cassette=run.cassette, sample=run.sample, mode="replay")
        control.close_session(opened.name)  # so that it is in the store
        found = {
            build_store_independent_id(line): _recording_to_call(line)
            for line in read_interactions_as_json(self.store, cassette=run.cassette, sample=run.sample)
        }
        if gone := wanted - found.keys():
            raise RunNotRejudgeable(
                f"{run.case}: {len(gone)} of {len(wanted)} recordings of {self.path} are not in {self.store}:"
                " it was recorded anew since, or lies elsewhere.",
                hint="Make a report of what is recorded now: llmproxy test --report json=FILE",
            )
        return found


def load_runs_to_rejudge(path: Path, cases: Iterable[str] | None, store: Path) -> RunsToRejudge:
    """Read a JSON report of `cases` (None: any). Raises SettingsError: invalid, or without these cases."""
    try:
        found = {(run.case, run.sample): run for run in (_events_to_run(*entry) for entry in read_report_runs(path))}
    except OSError as error:
        raise SettingsError(f"--rejudge {path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        hint = "llmproxy test --report json=FILE writes one."
        raise SettingsError(f"--rejudge {path} is no JSON report of a test.", hint=hint) from error
    if cases is not None and not {case for case, _ in found} & set(cases):
        there = ", ".join(dict.fromkeys(case for case, _ in found)) or "nothing"
        raise SettingsError(f"--rejudge {path} is of other suites: it has {there}, and none of what is selected.")
    return RunsToRejudge(path, found, store)


def _events_to_run(
    started: Mapping[str, Any], parts: Sequence[Mapping[str, Any]], finished: Mapping[str, Any] | None
) -> RunFromJsonReport:
    end = finished or {"status": Status.ENVIRONMENT_ERROR.value, "error": "it did not end"}
    return RunFromJsonReport(
        case=str(started["scenario"]),
        sample=int(started["sample"]),
        run_id=str(started["run_id"]),
        cassette=str(started["cassette"]),
        status=str(end["status"]),
        why=str(end.get("error") or end.get("reasoning") or ""),
        talks=_list_talk_steps(parts),
    )


def _list_talk_steps(parts: Sequence[Mapping[str, Any]]) -> dict[int, _TalkStep]:
    """Return the chat steps by index: a step's event follows its messages."""
    found: dict[int, _TalkStep] = {}
    turns: list[_TurnToRejudge] = []
    for part in parts:
        if part["event"] == "message":
            message = part["message"]
            if part.get("author") != "agent":
                turns.append(_TurnToRejudge(get_message_text(message)))
            else:
                turns[-1].answers.append(message)
                turns[-1].recordings += part["recordings"]
        elif part["event"] == "step" and part["kind"] in _TALKS and turns:
            known = {name for turn in turns for name in turn.recordings if name}
            late = [name for name in part["recordings"] if name and name not in known]
            found[int(part["index"])] = _TalkStep(part["kind"], turns, late, part.get("given", ""))
            turns = []
    return found


def _recording_to_call(line: Mapping[str, Any]) -> Call:
    recorded = line["recorded"]
    given = {name: line.get(name, recorded.get(name)) for name in Call._fields}
    given |= {"decision": Decision.REPLAY.value, "status": line["status"], "interaction": recorded["id"]}
    return Call.from_json(given | {"miss": False, "recording": line})


class RejudgingSession(RunSession):
    @classmethod
    async def open(cls, proxy: str, *, cassette: str, **how: Any) -> Self:
        """Open the judges' own cassette; in a replay, the run's one if nothing is recorded in theirs."""
        made = await super().open(proxy, cassette=f"{cassette}.rejudge", **how)
        if made.opened.unused or made.mode not in OFFLINE:
            return made
        await made.close()
        return await super().open(proxy, cassette=cassette, **how)

    def __init__(self, control: ControlApiClient, opened: SessionReport) -> None:
        super().__init__(control, opened)
        self._passed: list[Call] = []
        self._asked = 0

    def feed_calls(self, calls: Iterable[Call]) -> None:
        self._passed += [call._replace(seq=n, party=AGENT) for n, call in enumerate(calls, len(self._passed) + 1)]

    async def calls(self, after: int = 0) -> tuple[Call, ...]:
        new = await super().calls(self._asked)
        self._asked = max((call.seq for call in new), default=self._asked)
        self._passed += [call._replace(seq=n) for n, call in enumerate(new, len(self._passed) + 1)]
        return tuple(call for call in self._passed if call.seq > after)

    async def misses(self, after: int = 0) -> tuple[str, ...]:
        return tuple((await self.report()).miss_texts)

    async def count_unattributed(self) -> int:
        return 0


class ReplayingAgentAdapter(AgentAdapter):
    uses_session: ClassVar[bool] = True
    in_process: ClassVar[bool] = False
    who = "the recorded agent"

    def __init__(self, run: RunFromJsonReport, session: RejudgingSession, calls: Mapping[str, Call]) -> None:
        self.run = run
        self._session, self._calls = session, calls
        self._turns: list[_TurnToRejudge] = []
        self._late: Sequence[str] = ()

    def list_user_texts(self) -> Sequence[str]:
        return [turn.said for turn in self._turns]

    def begin_step(self, index: int, kind: str, given: str) -> None:
        """Start a chat step. Raises RunNotRejudgeable: not recorded, or in other circumstances (`given`)."""
        talk = self.run.talks.get(index)
        if talk is None and self.run.status == Status.AGENT_ERROR:
            raise AgentError(f"in the recorded run: {self.run.why}")
        if talk is None or talk.kind != kind:
            was = f"was a `{talk.kind}`" if talk else "was not run"
            raise RunNotRejudgeable(
                f"step {index + 1} {was} in the recorded run {self.run.run_id}: it has to be run, not judged again."
            )
        if talk.given != given:
            raise RunNotRejudgeable(
                f"step {index + 1}: the user or the task, the conversation, rows of `setup`, the mocks or the faults"
                f" are others than in the recorded run {self.run.run_id}: it has to be run, not judged again."
            )
        self._turns, self._late = list(talk.turns), talk.late

    async def call(self, input: AgentInput) -> AgentReturnTypes:  # noqa: A002 - the documented name
        """Return the recorded answer, after its traffic. Raises RunNotRejudgeable: another user message."""
        said = get_message_text(input.messages[-1])
        turn = self._turns.pop(0) if self._turns else None
        if turn is None or turn.said != said:
            then = "nothing" if turn is None else repr(turn.said)
            raise RunNotRejudgeable(
                f"the user says {said!r} now and said {then} in the recorded run, so no answer to it is recorded."
            )
        names = [*turn.recordings, *(() if self._turns else self._late)]
        self._session.feed_calls(self._calls.get(name, _UNKEPT) for name in names)
        if not turn.answers:
            raise AgentError(f"in the recorded run: {self.run.why}")
        return list(turn.answers)


@contextmanager
def add_yaml_place_to_errors(place: YamlPlace | None) -> Iterator[None]:
    try:
        yield
    except SuiteError as error:
        if place is None:
            raise
        raise SuiteError(f"{place}: {error.message}", hint=error.hint) from error


def list_store_entities_of_scenario(scenario: Scenario) -> list[str]:
    found = [item.insert for item in scenario.setup] + [entity for entity, _ in list_checked_entities(scenario)]
    found += [item.insert for step in scenario.steps if isinstance(step, SetupStep) for item in step.setup]
    return list(dict.fromkeys([*found, *(item.delete for item in scenario.teardown if item.delete)]))


def list_checked_entities(scenario: Scenario) -> Iterator[tuple[str, Mapping[str, object]]]:
    for step in scenario.steps:
        match step:
            case ChatOrSimulateStep():
                yield from ((item.entity, item.fields) for item in step.created or ())
            case VerifyStep(verify=look) | WaitStep(wait=WaitForRows() as look):
                yield look.entity, look.filters


@dataclass(slots=True, kw_only=True)
class SuiteRunContext:
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
    recorded: RunsToRejudge | None = None
    """Runs to judge again; None if agents are run."""
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    execute: Callable[..., Awaitable[Any]] | None = None
    """Runs a case elsewhere, with the signature of `run_case_once`; None: here."""
    stopped: threading.Event = field(default_factory=threading.Event)
    _agents: dict[int, AgentAdapter] = field(default_factory=dict)
    _stores: dict[int, tuple[StoreAdapter, StoreResetSettings] | None] = field(default_factory=dict)
    _snapshots: dict[Path, SuiteSnapshotFile] = field(default_factory=dict)
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

    def agent_for_case(self, case: SuiteCase) -> AgentAdapter:
        """Return an agent for one run. Raises SuiteError: none, or an invalid one."""
        if (known := self._agents.get(id(case.suite))) is None:
            mapping, folder = self._find_agent_or_store_config("agent", case)
            if mapping is None:
                raise SuiteError(
                    f"{case.path}: no agent is described, so there is nothing to test.",
                    hint='Write e.g. `agent: {http: "http://127.0.0.1:8000/v1"}` into the suite, or give --agent.',
                )
            from llmproxy.scenario.agents.config import build_agent

            with add_yaml_place_to_errors(None if self.agent is not None else case.suite.at("agent")):
                known = self._agents[id(case.suite)] = build_agent(mapping, folder)
        return known.clone()

    def get_shared_suite_store(self, case: SuiteCase) -> tuple[StoreAdapter, StoreResetSettings] | None:
        """Return a suite's store, shared by all runs, with its reset policy; or None. Raises SuiteError, StoreError."""
        if id(case.suite) not in self._stores:
            mapping, folder = self._find_agent_or_store_config("store", case)
            with add_yaml_place_to_errors(None if self.store is not None else case.suite.at("store")):
                made = (
                    None if mapping is None else (build_suite_store(mapping, folder), parse_store_reset_method(mapping))
                )
            self._stores[id(case.suite)] = made
        return self._stores[id(case.suite)]

    def list_case_entities(self, case: SuiteCase) -> list[str]:
        """Return all entities of store and suite, once each: an agent may write rows that no scenario names."""
        if self.recorded is not None:
            return []
        mapping, _ = self._find_agent_or_store_config("store", case)
        if mapping is None:
            return list_store_entities_of_scenario(case.scenario)
        described = mapping.get("entities")
        found = dict.fromkeys(map(str, described)) if isinstance(described, Mapping) else {}
        found |= dict.fromkeys(list_store_entities_of_scenario(case.scenario))
        if id(case.suite) not in self._entities:
            scenarios = [each for each in case.suite.scenarios if not isinstance(each, str)]
            self._entities[id(case.suite)] = [
                name for each in scenarios for name in list_store_entities_of_scenario(each)
            ]
        return list(found | dict.fromkeys(self._entities[id(case.suite)]))

    def snapshots_for(self, case: SuiteCase) -> SuiteSnapshotFile:
        if case.path not in self._snapshots:
            self._snapshots[case.path] = SuiteSnapshotFile.load_for_suite(case.path, update=self.options.update)
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
