"""What happens while agents are tested, as one stream of events: whoever runs something emits them, reporters show
them.

    Selected, then for each run  Started, (Message | Step | Verdict)*, Finished,  at last Completed

A *run* is one execution of a scenario (a YAML scenario or `scenario.run`); `runs: N` makes N of them, told apart by
`sample`. Events are plain data (every field goes into JSON as it is); what is not known is None, never 0. The engine
never prints: handlers in this package do, one file each (`Handler`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Any, Protocol

from llmproxy.amounts import sum_known


class Status(StrEnum):
    """How a run, a step or an assertion ended."""

    PASSED = "passed"
    FAILED = "failed"
    AGENT_ERROR = "agent_error"
    """The agent was reached, then crashed, timed out, or gave no answer. Counts against it."""
    ENVIRONMENT_ERROR = "environment_error"
    """Nothing can be said about the agent: it was not reached; proxy, store or provider failed; a miss in replay."""
    SKIPPED = "skipped"
    FLAKY = "flaky"
    """Of a scenario with several runs: some passed, some did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    """What a judge found about one criterion."""

    id: str
    text: str
    status: str
    """``passed``, ``failed`` or ``inconclusive``."""
    evidence: str = ""
    """Quoted from the conversation."""
    reason: str = ""
    votes: Sequence[str] = ()
    """The status that each judge gave, where there were several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assertion:
    name: str
    """As the user wrote it: ``tools.createTask``, ``response.contains``, ``created[0].fields.title``."""
    status: Status
    """PASSED, FAILED, or ENVIRONMENT_ERROR where it could not be evaluated."""
    expected: Any = None
    actual: Any = None
    message: str = ""
    """Says what happened in words that a stranger understands. Empty when it passed."""
    where: str = ""
    """Where it was seen: ``interaction 12``, a row's id, a line of the file."""
    evidence: str = ""
    """Of what is not seen directly: declared, proven, inferred, unobservable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartyUse:
    """What one party (agent, user, judge) used, of which nothing is missing: `proxy_calls.Use` counts lower bounds."""

    calls: int = 0
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: str | None = None
    """A decimal number; None when the price of a call is not known."""

    def __add__(self, other: PartyUse) -> PartyUse:
        """Add up; what one of them does not know, the sum does not know. One without calls adds nothing."""
        if not (self.calls and other.calls):
            return self if self.calls else other
        cost = sum_known(None if each.cost_usd is None else Decimal(each.cost_usd) for each in (self, other))
        return PartyUse(
            calls=self.calls + other.calls,
            input_tokens=sum_known((self.input_tokens, other.input_tokens)),
            output_tokens=sum_known((self.output_tokens, other.output_tokens)),
            cost_usd=None if cost is None else format(cost, "f"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    title: str
    """Name of the suite or of the batch."""
    scenarios: int
    runs: int
    """Executions in all, every scenario's runs counted."""
    mode: str = ""
    """Of the proxy; empty without one."""
    at: float = 0.0
    """Unix time, seconds."""
    shard: Mapping[str, Any] | None = None
    """Which part of a test this is, and of what (`report.sharding.shard_split_to_json`); None for a whole one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    run_id: str
    scenario: str
    """Id of the scenario; its name where it has no id."""
    name: str
    description: str = ""
    suite: str = ""
    set_id: str = "default"
    batch_id: str = ""
    sample: int = 1
    runs: int = 1
    tags: Sequence[str] = ()
    criteria: Sequence[str] = ()
    cassette: str = ""
    mode: str = ""
    rerun: str = ""
    """The command that runs only this one again."""
    place: str = ""
    """Where it is written: ``tasks.suite.yaml:12``, relative to the working directory; empty if nobody knows."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """What `scenario.run(metadata=...)` says of it: a commit, a ticket."""
    at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    run_id: str
    message: Mapping[str, Any]
    """As in the conversation: role, content, tool_calls ..., a copy."""
    author: str = ""
    """Class or name of who wrote it; empty for scripted text."""
    turn: int | None = None
    conversation: str = ""
    """Of a suite with several conversations."""
    ms: float | None = None
    """How long its author took, milliseconds."""
    tool_calls: Sequence[Mapping[str, Any]] = ()
    """What the agent called on the wire before this message: {name, arguments, result, where}."""
    recordings: Sequence[str] = ()
    """What it asked models before this message, as of a step."""
    at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    run_id: str
    index: int
    kind: str
    """``chat``, ``verify``, ``wait``, ``setup``, ``simulate``, ``judge``, ``user``, ``agent``, ``script``."""
    label: str = ""
    status: Status = Status.PASSED
    ms: float | None = None
    assertions: Sequence[Assertion] = ()
    message: str = ""
    """Why it did not pass, if no assertion says so."""
    interactions: Sequence[int] = ()
    """Recorded interactions that belong to it, as `llmproxy show` names them."""
    recordings: Sequence[str] = ()
    """The same for another store that is made of the same cassettes; empty texts for exchanges that nobody recorded."""
    place: str = ""
    """Where it is written, as of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    run_id: str
    judge: str
    success: bool | None
    """None: it goes on."""
    reasoning: str = ""
    criteria: Sequence[Criterion] = ()
    forced: bool = False
    """Whether it had to decide: the last turn, or asked by the script."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    run_id: str
    scenario: str
    status: Status
    reasoning: str = ""
    criteria: Sequence[Criterion] = ()
    total_seconds: float | None = None
    agent_seconds: float | None = None
    waited_seconds: float | None = None
    """How long it waited for its turn, because agents in one process take turns."""
    usage: Mapping[str, PartyUse] = field(default_factory=dict)
    """By party; empty when no proxy measured it."""
    replayed: bool | None = None
    """Whether every call was answered from a recording; None when that is not known."""
    bound: int | None = None
    """Hits with this run's values (folder, day, ids) in place of recorded ones; None when that is not known."""
    bound_names: Sequence[str] = ()
    """What was bound in them."""
    carried: int = 0
    """Hits that were given although their requests have changed, because somebody accepted it."""
    carried_names: Sequence[str] = ()
    """The changes under which they were."""
    stale: int = 0
    """Hits on recordings that are older than their max age."""
    dealt: int = 0
    """Hits that equal concurrent requests got in the order of arrival, though their answers differ."""
    misses: Sequence[str] = ()
    """Texts of the requests that were never recorded."""
    unrecorded: bool = False
    """Whether nothing at all was recorded for it, so that it was not run."""
    xfail: bool = False
    """Whether it was expected to fail, and ended so or passed: `reasoning` begins with which."""
    error: str = ""
    """What went wrong, when something did, in the words of the error."""
    labels: Sequence[str] = ()
    """Marks: ``open-loop from turn 3``, ``unattributed traffic``."""
    live: Mapping[str, Any] | None = None
    """Which channels were live, in which cassette, and what no recording could answer; None for a run without."""
    at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """Everything ended."""

    exit_code: int
    seconds: float
    notes: Sequence[str] = ()
    part_notes: Sequence[str] = ()
    """Those of `notes` that count only the scenarios that ran here; where parts are merged they are made anew."""
    scenarios: Sequence[Mapping[str, Any]] = ()
    """One row a scenario: {scenario, status, passed, failed, agent_error, environment_error, skipped, rate, interval,
    cost_usd, latency_ms}.

    Cost (US dollars) and latency (milliseconds) are the agent's for a run, as recorded; None where that is not known.
    """
    times: Mapping[str, int] = field(default_factory=dict)
    """How long each scenario (all runs) or pytest test took, in milliseconds, by which shards are balanced."""


Event = Selected | Started | Message | Step | Verdict | Finished | Completed


class Handler(Protocol):
    """Whoever shows events. Called from one thread at a time, in order; must not raise into the run."""

    def handle(self, event: Event) -> None: ...

    def close(self) -> None:
        """Write what is left. Nothing comes after it."""


class ImmediateHandler:
    """What is common to handlers that do all they have to at each event."""

    def close(self) -> None:
        """Nothing is kept back."""
