"""Judging recorded runs again with the current assertions and judges. The agent is not run.

An agent repeats the answers of a JSON report, a session the recorded traffic; everything else is a run like any other.
Judges are recorded as ``CASSETTE.rejudge``; a replay without such a recording uses the run's own. An assertion that
needs the original run (rows, a user simulator's next text, a changed user message) is an error, never a pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from llmproxy.client.control import Control
from llmproxy.client.session_reports import Report
from llmproxy.errors import AgentError, MachineError, SettingsError
from llmproxy.protocol import AGENT, OFFLINE, Decision
from llmproxy.proxy_calls import Call
from llmproxy.report.events import Assertion, Status
from llmproxy.report.json_report import read_report_runs
from llmproxy.scenario.agent_adapter import AgentAdapter
from llmproxy.scenario.run_session import RunSession
from llmproxy.scenario.types import AgentInput, AgentReturnTypes, Message
from llmproxy.scenario.values.messages import get_text
from llmproxy.suite.matchers.apply import build_unclear
from llmproxy.trace.observing.agent_activity import build_portable_recording_name
from llmproxy.trace.reading.recording_spans import read_interactions_as_json

_TALKS = ("chat", "simulate")
_OVER = (Status.PASSED.value, Status.FAILED.value, Status.AGENT_ERROR.value)
"""Statuses of runs that say something about the agent."""
_UNKEPT = Call.from_json({"party": AGENT, "decision": Decision.PASS.value, "status": 200, "operation": "?"})
"""An unrecorded call: its content is unknown."""


class Unjudgeable(MachineError):
    """A run's recording lacks what an assertion needs."""

    code = "llmproxy_unjudgeable"


def build_unjudged_assertion(
    name: str, why: str = "rows were looked at when the agent ran, and are others now"
) -> Assertion:
    return build_unclear(name, f"cannot be judged again: {why}")


# -- the report --------------------------------------------------------------------------------------------------------


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    case: str
    sample: int
    run_id: str
    cassette: str
    status: str
    why: str
    talks: Mapping[int, _TalkStep]
    """Chat steps by index."""


@dataclass(frozen=True, slots=True)
class ReportedRuns:
    path: Path
    runs: Mapping[tuple[str, int], RecordedRun]
    store: Path

    def count_samples(self, case: str) -> int:
        """Return the number of a case's runs to judge; at least one, which may be missing."""
        return max((sample for name, sample in self.runs if name == case), default=1)

    def get_judgeable_run(self, case: str, sample: int) -> RecordedRun:
        """Return a run. Raises Unjudgeable: missing, or it says nothing about the agent."""
        run = self.runs.get((case, sample))
        if run is None:
            raise Unjudgeable(f"{self.path} has no run {sample} of {case}, so there is nothing to judge again.")
        if run.status not in _OVER:
            raise Unjudgeable(
                f"{case}: the recorded run ended as {run.status.replace('_', ' ')}, which says nothing about the"
                f" agent: {run.why}"
            )
        return run

    def list_run_calls(self, run: RecordedRun, control: Control) -> dict[str, Call]:
        """Return a run's calls by their names in reports. Raises Unjudgeable if some are gone."""
        wanted = {
            name
            for talk in run.talks.values()
            for names in (*(t.recordings for t in talk.turns), talk.late)
            for name in names
            if name
        }
        if not wanted:
            return {}
        control.close_session(
            control.open_session(run.run_id, cassette=run.cassette, sample=run.sample, mode="replay").name
        )  # so that it is in the store
        found = {
            build_portable_recording_name(line): _recording_to_call(line)
            for line in read_interactions_as_json(self.store, cassette=run.cassette, sample=run.sample)
        }
        if gone := wanted - found.keys():
            raise Unjudgeable(
                f"{run.case}: {len(gone)} of {len(wanted)} recordings of {self.path} are not in {self.store}:"
                " it was recorded anew since, or lies elsewhere.",
                hint="Make a report of what is recorded now: llmproxy test --report json=FILE",
            )
        return found


def read_report(path: Path, cases: Iterable[str] | None, store: Path) -> ReportedRuns:
    """Read a JSON report of `cases` (None: any). Raises SettingsError: invalid, or without these cases."""
    try:
        found = {(run.case, run.sample): run for run in (_events_to_run(*entry) for entry in read_report_runs(path))}
    except OSError as error:
        raise SettingsError(f"--rejudge {path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        hint = "llmproxy test --report json=FILE writes one."
        raise SettingsError(f"--rejudge {path} is no JSON report of a test.", hint=hint) from error
    if cases is not None and not {case for case, _ in found} & set(cases):
        there = ", ".join(dict.fromkeys(case for case, _ in found)) or "nothing"
        raise SettingsError(f"--rejudge {path} is of other suites: it has {there}, and none of what is selected.")
    return ReportedRuns(path, found, store)


def _events_to_run(
    started: Mapping[str, Any], parts: Sequence[Mapping[str, Any]], finished: Mapping[str, Any] | None
) -> RecordedRun:
    end = finished or {"status": Status.ENVIRONMENT_ERROR.value, "error": "it did not end"}
    return RecordedRun(
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
                turns.append(_TurnToRejudge(get_text(message)))
            else:
                turns[-1].answers.append(message)
                turns[-1].recordings += part["recordings"]
        elif part["event"] == "step" and part["kind"] in _TALKS and turns:
            known = {name for turn in turns for name in turn.recordings if name}
            late = [name for name in part["recordings"] if name not in known]
            found[int(part["index"])] = _TalkStep(part["kind"], turns, late)
            turns = []
    return found


# -- what passed -------------------------------------------------------------------------------------------------------


def _recording_to_call(line: Mapping[str, Any]) -> Call:
    recorded = line["recorded"]
    given = {name: line.get(name, recorded.get(name)) for name in Call._fields}
    given |= {"decision": Decision.REPLAY.value, "status": line["status"], "interaction": recorded["id"]}
    return Call.from_json(given | {"miss": False, "recording": line})


class RecordedCallsSession(RunSession):
    """A session for judges, in which the agent's recorded traffic appears as if new."""

    @classmethod
    async def open(cls, proxy: str, *, cassette: str, **how: Any) -> Self:
        """Open the judges' own cassette; in a replay, the run's one if nothing is recorded in theirs."""
        made = await super().open(proxy, cassette=f"{cassette}.rejudge", **how)
        if made.opened.unused or made.mode not in OFFLINE:
            return made
        await made.close()
        return await super().open(proxy, cassette=cassette, **how)

    def __init__(self, control: Control, opened: Report) -> None:
        super().__init__(control, opened)
        self._passed: list[Call] = []
        self._asked = 0

    def feed_calls(self, calls: Iterable[Call]) -> None:
        for call in calls:
            self._passed.append(call._replace(seq=len(self._passed) + 1, party=AGENT))

    async def calls(self, after: int = 0) -> tuple[Call, ...]:
        new = await super().calls(self._asked)
        self._asked = max((call.seq for call in new), default=self._asked)
        for call in new:
            self._passed.append(call._replace(seq=len(self._passed) + 1))
        return tuple(call for call in self._passed if call.seq > after)

    async def misses(self, after: int = 0) -> tuple[str, ...]:
        return tuple((await self.report()).miss_texts)

    async def count_unattributed(self) -> int:
        return 0


class RecordedAgent(AgentAdapter):
    uses_session: ClassVar[bool] = True
    in_process: ClassVar[bool] = False
    who = "the recorded agent"

    def __init__(self, run: RecordedRun, session: RecordedCallsSession, calls: Mapping[str, Call]) -> None:
        self.run = run
        self._session, self._calls = session, calls
        self._turns: list[_TurnToRejudge] = []
        self._late: Sequence[str] = ()

    def begin_step(self, index: int, kind: str) -> Sequence[str]:
        """Start a chat step; returns its recorded user message. Raises Unjudgeable: not recorded."""
        talk = self.run.talks.get(index)
        if talk is None and self.run.status == Status.AGENT_ERROR:
            raise AgentError(f"in the recorded run: {self.run.why}")
        if talk is None or talk.kind != kind:
            was = f"was a `{talk.kind}`" if talk else "was not run"
            raise Unjudgeable(
                f"step {index + 1} {was} in the recorded run {self.run.run_id}: it has to be run, not judged again."
            )
        self._turns, self._late = list(talk.turns), talk.late
        return [turn.said for turn in self._turns]

    async def call(self, input: AgentInput) -> AgentReturnTypes:  # noqa: A002 - the documented name
        """Return the recorded answer, after its traffic. Raises Unjudgeable: another user message."""
        said = get_text(input.messages[-1])
        turn = self._turns.pop(0) if self._turns else None
        if turn is None or turn.said != said:
            then = "nothing" if turn is None else repr(turn.said)
            raise Unjudgeable(
                f"the user says {said!r} now and said {then} in the recorded run, so no answer to it is recorded."
            )
        names = [*turn.recordings, *(() if self._turns else self._late)]
        self._session.feed_calls(self._calls.get(name, _UNKEPT) for name in names)
        if not turn.answers:
            raise AgentError(f"in the recorded run: {self.run.why}")
        return list(turn.answers)
