"""The event stream of test runs: a runner emits events, reporters show them.

    Selected, then for each run  Started, (Message | Step | Verdict)*, Finished,  at last Completed

A *run* is one execution of a scenario; `runs: N` gives N of them, distinguished by `sample`. Events are plain data
(every field is valid JSON); unknown values are None, never 0. The engine never prints: handlers do (`Handler`).
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from decimal import Decimal
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import Any, Protocol, cast

from llmproxy.amount_formatting import sum_if_all_known


class Status(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    AGENT_ERROR = "agent_error"
    """The agent was reached, then crashed, timed out, or gave no answer: counts as its failure."""
    ENVIRONMENT_ERROR = "environment_error"
    """No statement about the agent: it was not reached; proxy, store or provider failed; a miss in replay."""
    SKIPPED = "skipped"
    FLAKY = "flaky"
    """Some of a scenario's runs passed, some did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedCriterion:
    id: str
    text: str
    status: str
    """``passed``, ``failed`` or ``inconclusive``."""
    evidence: str = ""
    reason: str = ""
    votes: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Assertion:
    name: str
    """Name as in the suite: ``tools.createTask``, ``response.contains``, ``created[0].fields.title``."""
    status: Status
    """PASSED, FAILED, or ENVIRONMENT_ERROR if it could not be evaluated."""
    expected: Any = None
    actual: Any = None
    message: str = ""
    """Explanation for a reader who does not know the suite. Empty if it passed."""
    where: str = ""
    """Source: ``interaction 12``, a row's id, a line of the file."""
    evidence: str = ""
    """Kind of evidence for indirect observations: declared, proven, inferred, unobservable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartyUse:
    """Complete usage of one party (agent, user, judge), unlike the lower bounds of `calls_and_totals.UsageSums`."""

    calls: int = 0
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: str | None = None
    """A decimal number; None if a call's price is unknown."""

    def __add__(self, other: PartyUse) -> PartyUse:
        """Add up; what one of them does not know, the sum does not know. One without calls adds nothing."""
        if not (self.calls and other.calls):
            return self if self.calls else other
        cost = sum_if_all_known(None if each.cost_usd is None else Decimal(each.cost_usd) for each in (self, other))
        return PartyUse(
            calls=self.calls + other.calls,
            input_tokens=sum_if_all_known((self.input_tokens, other.input_tokens)),
            output_tokens=sum_if_all_known((self.output_tokens, other.output_tokens)),
            cost_usd=None if cost is None else format(cost, "f"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    title: str
    scenarios: int
    runs: int
    mode: str = ""
    at: float = 0.0
    """Unix time, seconds."""
    shard: Mapping[str, Any] | None = None
    """Shard of the test (`report.sharding.shard_split_to_json`); None for a whole one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    run_id: str
    scenario: str
    """Id of the scenario; its name without an id."""
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
    place: str = ""
    """File and line: ``tasks.suite.yaml:12``, relative to the working directory; empty if unknown."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Metadata given to `scenario.run(metadata=...)`: a commit, a ticket."""
    at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    run_id: str
    message: Mapping[str, Any]
    """A copy of the conversation's message: role, content, tool_calls ..."""
    author: str = ""
    """Class or name of its author; empty for scripted text."""
    turn: int | None = None
    conversation: str = ""
    """Name of the conversation in a suite with several."""
    ms: float | None = None
    """Time that its author took, milliseconds."""
    tool_calls: Sequence[Mapping[str, Any]] = ()
    """The agent's tool calls on the wire before this message: {name, arguments, result, where}."""
    recordings: Sequence[str] = ()
    """Model calls before this message, in the form of a step's."""
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
    """Reason of a failure, if no assertion gives one."""
    interactions: Sequence[int] = ()
    """Ids of its recorded interactions, as in `llmproxy show`."""
    recordings: Sequence[str] = ()
    """The same for any store with the same cassettes; empty texts for unrecorded exchanges."""
    place: str = ""
    """File and line, like a run's."""
    given: str = ""
    """Digest of what a chat's answers depend on besides its texts: the simulated user's task, mocks, faults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    run_id: str
    judge: str
    success: bool | None
    """None: undecided, the conversation continues."""
    reasoning: str = ""
    criteria: Sequence[JudgedCriterion] = ()
    forced: bool = False
    """Whether the judge had to decide: at the last turn, or by the script."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    run_id: str
    scenario: str
    status: Status
    reasoning: str = ""
    criteria: Sequence[JudgedCriterion] = ()
    total_seconds: float | None = None
    agent_seconds: float | None = None
    waited_seconds: float | None = None
    """Seconds that it waited for its turn, since agents in one process take turns."""
    usage: Mapping[str, PartyUse] = field(default_factory=dict)
    """Usage by party; empty without a proxy."""
    replayed: bool | None = None
    """Whether every call was answered from a recording; None if unknown."""
    bound: int | None = None
    """Hits with this run's values (folder, day, ids) in place of recorded ones; None if unknown."""
    bound_names: Sequence[str] = ()
    carried: int = 0
    """Hits on recordings of changed requests, by accepted changes."""
    carried_names: Sequence[str] = ()
    stale: int = 0
    """Hits on recordings older than their max age."""
    dealt: int = 0
    """Hits of equal concurrent requests with different answers, assigned in order of arrival."""
    misses: Sequence[str] = ()
    unrecorded: bool = False
    """Whether it was not run because it has no recordings."""
    xfail: bool = False
    """Whether it was expected to fail, and failed or passed: `reasoning` begins with which."""
    error: str = ""
    rerun: str = ""
    """Command that reruns it, with the mode that requests failed answers again; empty: its start's."""
    labels: Sequence[str] = ()
    """Labels: ``open-loop from turn 3``, ``unattributed traffic``."""
    live: Mapping[str, Any] | None = None
    """The live channels, their cassette, and unanswered calls; None without live channels."""
    at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    exit_code: int
    seconds: float
    notes: Sequence[str] = ()
    part_notes: Sequence[str] = ()
    """Notes of `notes` that count only local scenarios; they are rebuilt when parts are merged."""
    scenarios: Sequence[Mapping[str, Any]] = ()
    """One row a scenario: {scenario, status, passed, failed, agent_error, environment_error, skipped, rate, interval,
    cost_usd, latency_ms}.

    Cost (US dollars) and latency (milliseconds) are the agent's per run, as recorded; None if unknown."""
    times: Mapping[str, int] = field(default_factory=dict)
    """Milliseconds by scenario (all runs) or pytest test, for balancing shards."""


Event = Selected | Started | Message | Step | Verdict | Finished | Completed


class Handler(Protocol):
    """A handler of events. Called from one thread at a time, in order; must not raise into the run."""

    def handle(self, event: Event) -> None: ...

    def close(self) -> None:
        """Write the rest. No more events follow."""


class EventHandlerWithNothingToClose:
    def close(self) -> None:
        """Do nothing: no output is buffered."""


_log = logging.getLogger(__name__)

HandlerLike = Handler | Callable[[Event], object]


@dataclass(frozen=True, slots=True)
class _FunctionHandler(EventHandlerWithNothingToClose):
    call: Callable[[Event], object]

    def handle(self, event: Event) -> None:
        self.call(event)


def convert_to_event_handlers(given: object) -> tuple[Handler, ...]:
    """Return handlers; functions are wrapped. Raises ValueError for anything else, which would get no events."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ValueError(f"handlers takes a list of handlers or functions, not {given!r}")
    return tuple(_to_handler(each) for each in given)


def notify_handlers(handlers: Iterable[Handler], event: Event) -> None:
    """Pass an event to every handler; for a failing one a warning is issued and the traceback logged."""
    for handler in handlers:
        try:
            handler.handle(event)
        except Exception as error:  # noqa: BLE001 - whatever it is, the run is not its business
            name = getattr(getattr(handler, "call", handler), "__qualname__", type(handler).__name__)
            _log.exception("the handler %s failed at %s", name, type(event).__name__)
            with suppress(RuntimeWarning):  # where warnings are errors
                text = f"the handler {name} failed: {type(error).__name__}: {error}"
                warnings.warn(text, RuntimeWarning, stacklevel=2)


def _to_handler(given: object) -> Handler:
    if isinstance(given, type):
        raise ValueError(f"handlers: {given.__name__} is a class; write {given.__name__}()")
    if callable(getattr(given, "handle", None)):
        return cast("Handler", given)
    if callable(given):
        return _FunctionHandler(cast("Callable[[Event], object]", given))
    why = "it has no method `handle(event)`, and is no function that takes an event"
    raise ValueError(f"handlers: {given!r} hears nothing: {why}")


_KNOWN, _NAME = 1024, 120
"""Size of the cache of checked texts, and the longest text cached."""


class RedactingEventHandler:
    def __init__(self, inner: Handler, env: Mapping[str, str] | None = None) -> None:
        self._inner, self._env = inner, os.environ if env is None else env

    def handle(self, event: Event) -> None:
        self._inner.handle(cast("Event", redact_plain_data(event, self._redact)))

    def close(self) -> None:
        self._inner.close()

    @cached_property
    def _redact(self) -> Callable[[str], str]:
        from llmproxy.core.secrets.redact import Redactor  # late: a run without a report needs none

        redactor = Redactor(self._env)
        known = lru_cache(_KNOWN)(redactor.text)  # names, ids and states come with every event
        return lambda text: known(text) if len(text) <= _NAME else redactor.text(text)


def redact_plain_data(value: object, text: Callable[[str], str], name: str = "") -> object:
    """Redact all texts in a value; `name`: of the member, which may be what makes it a secret."""
    if isinstance(value, str):
        shown = text(f"{name}: " + value).removeprefix(f"{name}: ") if name else text(value)
        return value if shown == value else shown
    if is_dataclass(value) and not isinstance(value, type):
        old: dict[str, Any] = {each.name: getattr(value, each.name) for each in fields(value) if each.init}
        changed = {name: new for name, one in old.items() if (new := redact_plain_data(one, text)) is not one}
        return replace(value, **changed) if changed else value
    if isinstance(value, Mapping):
        items = {redact_plain_data(key, text): redact_plain_data(one, text, str(key)) for key, one in value.items()}
        return items if any(items.get(key, value) is not one for key, one in value.items()) else value
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        made = [redact_plain_data(one, text) for one in value]
        same = all(one is other for one, other in zip(made, value, strict=True))
        return value if same else (tuple(made) if isinstance(value, tuple) else made)
    return value


class ScenarioRunListener(Handler, Protocol):
    """Gets every scenario run of this process and its events, from any thread."""

    # An executor and its result: this layer is below scenarios.
    def on_run_end(self, scenario: Any, result: Any) -> None:
        """Handle the end of a run, once, also after an exception."""


@dataclass(slots=True)
class RunSettingsFromPytest:
    """Settings of a test runner: how scenarios are recorded. Here, since every pytest run loads the plugin."""

    listener: ScenarioRunListener | None = None
    mode: str = ""
    """Mode of sessions of runs that set none; empty: the proxy's."""
    place: Callable[[str], str] | None = None
    """Returns a recording's name at the current place (in a test) from its own name."""
    faults: Any = None
    """Injected faults for sessions of runs, as plain values; None: the proxy's."""
    session: str = ""
    """Session of the running test, for calls outside an agent's turn. Empty: none."""
    ready: Callable[[], object] | None = None
    """Waits until the environment's proxy serves; called in a thread before a session opens. Raises MachineError."""

    @property
    def handlers(self) -> tuple[Handler, ...]:
        return () if self.listener is None else (self.listener,)

    def emit_scenario_run_end(self, scenario: Any, result: Any) -> None:
        if self.listener is not None:
            self.listener.on_run_end(scenario, result)


HOST = RunSettingsFromPytest()
"""The test runner's settings in this process; values set by `configure` belong to the user and are not changed."""
