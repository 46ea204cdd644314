"""The tree of runs built from events: scenarios, their runs, and the events of each.

A run that never finished (Ctrl-C, a crash) stays in the tree, without an end. `to_plain` converts an event to plain
JSON values, and `deserialize_event` back, for events from another process.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any

from llmproxy.amount_formatting import name_some, sum_if_all_known
from llmproxy.errors import Exit
from llmproxy.report.events import (
    Assertion,
    Completed,
    Event,
    Finished,
    JudgedCriterion,
    Message,
    PartyUse,
    Selected,
    Started,
    Status,
    Step,
    Verdict,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

UNFINISHED = "it did not end: the tests were interrupted"
_WORST = (Status.AGENT_ERROR, Status.ENVIRONMENT_ERROR, Status.FAILED, Status.SKIPPED, Status.PASSED)


@dataclass(slots=True)
class Run:
    started: Started
    parts: list[Message | Step | Verdict] = field(default_factory=list)
    finished: Finished | None = None

    @property
    def status(self) -> Status:
        return self.finished.status if self.finished else Status.ENVIRONMENT_ERROR

    @property
    def reason(self) -> str:
        return self.finished.error or self.finished.reasoning if self.finished else UNFINISHED

    @property
    def rerun(self) -> str:
        return (self.finished.rerun if self.finished else "") or self.started.rerun

    @property
    def steps(self) -> Iterator[Step]:
        return (part for part in self.parts if isinstance(part, Step))

    @property
    def failed_assertions(self) -> list[tuple[Step, Assertion]]:
        good = (Status.PASSED, Status.SKIPPED)
        return [(step, each) for step in self.steps for each in step.assertions if each.status not in good]

    @property
    def messages(self) -> Iterator[Message]:
        return (part for part in self.parts if isinstance(part, Message))

    @property
    def criteria(self) -> tuple[JudgedCriterion, ...]:
        if self.finished and self.finished.criteria:
            return tuple(self.finished.criteria)
        found = [part.criteria for part in self.parts if isinstance(part, Verdict) and part.criteria]
        return tuple(found[-1]) if found else ()


@dataclass(slots=True)
class RunsOfOneScenario:
    id: str
    name: str
    suite: str
    runs: list[Run] = field(default_factory=list)
    verdict: Status | None = None
    """The runner's verdict (it may require less than all runs); None until the end."""

    @property
    def status(self) -> Status:
        """The runner's status, else that of all runs: flaky if some passed and some failed."""
        if self.verdict is not None:
            return self.verdict
        found = {run.status for run in self.runs}
        if Status.PASSED in found and found & {Status.FAILED, Status.AGENT_ERROR}:
            return Status.FLAKY
        return next((status for status in _WORST if status in found), Status.ENVIRONMENT_ERROR)


@dataclass(slots=True)
class EventsGroupedByRun:
    selected: Selected | None = None
    completed: Completed | None = None
    runs: dict[str, Run] = field(default_factory=dict)

    def add_event(self, event: Event) -> None:
        """Add an event. One of a run that never started is dropped."""
        if isinstance(event, Selected):
            self.selected = event
        elif isinstance(event, Completed):
            self.completed = event
        elif isinstance(event, Started):
            self.runs[event.run_id] = Run(event)
        elif (run := self.runs.get(event.run_id)) is not None:
            if isinstance(event, Finished):
                run.finished = event
            else:
                run.parts.append(event)

    @property
    def title(self) -> str:
        return self.selected.title if self.selected and self.selected.title else "llmproxy"

    def scenarios(self) -> list[RunsOfOneScenario]:
        """Return the scenarios in the order of their first run, the runs of each by sample."""
        found: dict[tuple[str, ...], RunsOfOneScenario] = {}
        for run in self.runs.values():
            start = run.started
            # Two tests may run scenarios of one name: that one passes says nothing about the other.
            place = (start.suite, start.set_id, start.scenario, start.place, start.cassette)
            found.setdefault(place, RunsOfOneScenario(start.scenario, start.name, start.suite)).runs.append(run)
        rows = self.completed.scenarios if self.completed else ()
        told = {str(row.get("scenario")): row.get("status") for row in rows}
        for scenario in found.values():
            alone = sum(each.id == scenario.id for each in found.values()) == 1
            status = told.get(scenario.id) if alone else None
            scenario.verdict = Status(str(status)) if status in set(Status) else None
            scenario.runs.sort(key=lambda run: run.started.sample)
        return list(found.values())


def to_plain(value: Any) -> Any:
    """Return an event (or a part) as plain JSON; a lone surrogate becomes its escape."""
    if hasattr(value, "__dataclass_fields__"):
        return {"event": type(value).__name__.lower()} | {name: to_plain(part) for name, part in asdict(value).items()}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {str(name): to_plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_plain(part) for part in value]
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    is_json = value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value))
    return value if is_json else str(value)


_EVENTS: Mapping[str, type[Event]] = {
    each.__name__.lower(): each for each in (Selected, Started, Message, Step, Verdict, Finished, Completed)
}
_SCALARS: Mapping[str, Callable[[Any], bool]] = {
    "Any": lambda _: True,
    "str": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "int": lambda value: isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MOST,
    "float": lambda value: isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MOST,
}
MOST_SHARDS = 10_000
_MOST = 1 << 53
"""Maximum of a number in a report; NaN fails the comparison too."""
LATEST = 253_402_300_800
"""Unix time after the last representable year."""


def value_has_annotated_type(value: object, kind: str) -> bool:
    """Return whether a plain value has the annotated type; True for unknown annotations."""
    kind, _, optional = kind.partition(" | ")
    if optional and value is None:
        return True
    if kind.startswith("Sequence["):
        return isinstance(value, list | tuple) and all(value_has_annotated_type(each, kind[9:-1]) for each in value)
    if kind.startswith("Mapping["):
        inner = kind.partition(", ")[2][:-1]
        return isinstance(value, dict) and all(
            isinstance(name, str) and value_has_annotated_type(each, inner) for name, each in value.items()
        )
    return kind not in _SCALARS or _SCALARS[kind](value)


def _check_fields[T: DataclassInstance](made: T) -> T:
    """Return an object if all its fields have the declared types. Raises TypeError."""
    for each in fields(made):
        value = getattr(made, each.name)
        right = value_has_annotated_type(value, str(each.type))
        if right and each.name == "at":
            right = 0 <= value < LATEST
        if right and each.name == "cost_usd" and value is not None:
            right = is_decimal(value)
        if not right:
            raise TypeError(f"`{each.name}` of {type(made).__name__.lower()} is {value!r:.60}, which is no {each.type}")
    return made


def is_decimal(text: str) -> bool:
    try:
        return Decimal(text).is_finite() and abs(Decimal(text)) < _MOST
    except ArithmeticError:
        return False


def check_shard_split_json(shard: Any) -> None:
    """Check the form of `shard_split_to_json`. Raises TypeError."""
    shard = shard if isinstance(shard, dict) else {}
    number, of, items, parts = (shard.get(name) for name in ("number", "of", "items", "parts"))
    if (
        shard.get("by") not in ("test", "pytest")
        or not _is_list_of([number, of], int)
        or not 1 <= number <= of <= MOST_SHARDS
    ):
        raise TypeError("it does not say which part of a test it is")
    cut = _is_list_of(items, str) and _is_list_of(parts, int) and len(parts) == len(items) == len(set(items))
    runs = shard.get("runs", {})
    named = isinstance(runs, dict) and _is_list_of([*runs, *runs.values()], str)
    if not (cut and named and all(1 <= part <= of for part in parts)):
        raise TypeError("it does not say how its test was cut")


def _is_list_of(values: Any, kind: type) -> bool:
    return isinstance(values, list) and all(isinstance(each, kind) and not isinstance(each, bool) for each in values)


def deserialize_event(tree: Mapping[str, Any]) -> Event:
    """Return the event for plain values. Raises KeyError, TypeError or ValueError if invalid."""
    said = {name: value for name, value in tree.items() if name != "event"}
    if "status" in said:
        said["status"] = Status(said["status"])
    if "assertions" in said:
        found = [{**each, "status": Status(each["status"])} for each in said["assertions"]]
        said["assertions"] = tuple(_check_fields(Assertion(**each)) for each in found)
    if tree["event"] in {"verdict", "finished"}:
        said["criteria"] = tuple(_check_fields(JudgedCriterion(**each)) for each in said.get("criteria", ()))
    if "usage" in said:
        said["usage"] = {party: _check_fields(PartyUse(**use)) for party, use in said["usage"].items()}
    event = _check_fields(_EVENTS[tree["event"]](**said))
    if isinstance(event, Selected) and event.shard is not None:
        check_shard_split_json(event.shard)
    return event


_LONGEST = 300
"""Maximum characters of a value on one line."""


def show_value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}… ({len(text)} characters)"


def describe_assertion(assertion: Assertion) -> str:
    said = f"{assertion.name}: {assertion.message or assertion.status.value}"
    rest = ", ".join(filter(None, [f"evidence: {assertion.evidence}" if assertion.evidence else "", assertion.where]))
    return f"{said} ({rest})" if rest else said


def describe_abnormal_test_end(ended: Completed | None) -> str:
    """Describe an end that no run explains: none, or a failure without a failed run (a broken suite); else empty."""
    if ended is None:
        return "the test did not end"
    if ended.exit_code in (Exit.OK, Exit.FAILED):
        return ""
    return "\n".join([*ended.notes, f"the test ended with exit code {ended.exit_code:d}"])


def format_message_content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list):
        return "\n".join(_format_part(part) for part in content)
    return json.dumps(content, ensure_ascii=False, default=str)


def _format_part(part: object) -> str:
    if not isinstance(part, dict):
        return str(part)
    text = part.get("text")
    return text if isinstance(text, str) else f"[{part.get('type', 'part')}]"


def format_tool_calls(message: Message) -> Iterator[str]:
    for call in message.tool_calls:
        said = "" if call.get("result") is None else show_value(call["result"])
        yield f"  {call.get('name')}({_format_args(call.get('arguments'))})" + (f" -> {said}" if said else "")
    if not message.tool_calls:
        for call in message.message.get("tool_calls") or ():
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict):
                yield f"  {function.get('name')}({_format_args(function.get('arguments'))})"


def _format_args(value: object) -> str:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return str(value)
    if isinstance(value, dict):
        return ", ".join(f"{name}={json.dumps(part, ensure_ascii=False, default=str)}" for name, part in value.items())
    return "" if value is None else json.dumps(value, ensure_ascii=False, default=str)


def format_conversation(run: Run) -> str:
    lines: list[str] = []
    for message in run.messages:
        lines += format_tool_calls(message)
        if text := format_message_content(message.message):
            lines.append(f"{message.message.get('role', '?')}: {text}")
    return "\n".join(lines)


def describe_replay_match_kinds(finished: Finished) -> str:
    """Describe a replayed run: bound answers, their variables, and answers assigned in order of arrival."""
    bound = f"{finished.bound:,} bound: {', '.join(finished.bound_names)}" if finished.bound else ""
    carried = f"{finished.carried:,} carried under {name_some(finished.carried_names)}" if finished.carried else ""
    stale = f"{finished.stale:,} older than its max age" if finished.stale else ""
    dealt = f"{finished.dealt:,} of equal requests, dealt as they came" if finished.dealt else ""
    return ", ".join(filter(None, ("replayed" if finished.replayed else "", bound, carried, stale, dealt)))


def format_run_facts(finished: Finished) -> list[str]:
    agent = finished.usage.get("agent", PartyUse())
    tokens = sum_if_all_known((agent.input_tokens, agent.output_tokens))
    facts = "" if tokens is None else f"{tokens:,} tokens", describe_replay_match_kinds(finished)
    return [*filter(None, facts), *finished.labels]
