"""Events -> what can be told when everything is over: scenarios, their runs, and what happened in each.

Handlers that write one document at the end (JUnit, JSON, HTML) fold the stream with :class:`Story`; those that show things as they
happen need none of it. A run that never finished (Ctrl-C, a crash) stays in the story, without an end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from llmproxy.report.events import (
    Completed,
    Criterion,
    Event,
    Finished,
    Message,
    Selected,
    Started,
    Status,
    Step,
    Verdict,
)

UNFINISHED = "it did not end: the tests were interrupted"
_WORST = (Status.AGENT_ERROR, Status.ENVIRONMENT_ERROR, Status.FAILED, Status.SKIPPED, Status.PASSED)


@dataclass(slots=True)
class Run:
    started: Started
    parts: list[Message | Step | Verdict] = field(default_factory=list)
    """In the order in which they happened."""
    finished: Finished | None = None

    @property
    def status(self) -> Status:
        """How it ended; one that did not says nothing about the agent."""
        return self.finished.status if self.finished else Status.ENVIRONMENT_ERROR

    @property
    def why(self) -> str:
        """Why it ended so, in one text."""
        if self.finished is None:
            return UNFINISHED
        return self.finished.error or self.finished.reasoning

    @property
    def steps(self) -> Iterator[Step]:
        return (part for part in self.parts if isinstance(part, Step))

    @property
    def messages(self) -> Iterator[Message]:
        return (part for part in self.parts if isinstance(part, Message))

    @property
    def criteria(self) -> tuple[Criterion, ...]:
        """What the judge found at last."""
        if self.finished and self.finished.criteria:
            return tuple(self.finished.criteria)
        found = [part.criteria for part in self.parts if isinstance(part, Verdict) and part.criteria]
        return tuple(found[-1]) if found else ()


@dataclass(slots=True)
class StoryScenario:
    id: str
    name: str
    suite: str
    runs: list[Run] = field(default_factory=list)
    verdict: Status | None = None
    """What whoever ran it says that it comes to (it may ask for less than all runs); None until the end."""

    @property
    def status(self) -> Status:
        """The status of its runs together: as it was told, else all of one kind, or flaky where some passed and some failed."""
        if self.verdict is not None:
            return self.verdict
        found = {run.status for run in self.runs}
        if Status.PASSED in found and found & {Status.FAILED, Status.AGENT_ERROR}:
            return Status.FLAKY
        return next((status for status in _WORST if status in found), Status.ENVIRONMENT_ERROR)


@dataclass(slots=True)
class Story:
    """Everything that happened so far."""

    selected: Selected | None = None
    completed: Completed | None = None
    runs: dict[str, Run] = field(default_factory=dict)
    """By run_id, in the order of their beginning."""

    def add(self, event: Event) -> None:
        """Take the next event. One of a run that never started is dropped: nothing could be said about it."""
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

    def scenarios(self) -> list[StoryScenario]:
        """Return the scenarios in the order of their first run, the runs of each by sample."""
        found: dict[tuple[str, ...], StoryScenario] = {}
        for run in self.runs.values():
            start = run.started
            # Two tests may run scenarios of one name: that one passes says nothing about the other.
            place = (start.suite, start.set_id, start.scenario, start.place, start.cassette)
            found.setdefault(place, StoryScenario(start.scenario, start.name, start.suite)).runs.append(run)
        told = {
            str(row.get("scenario")): row.get("status") for row in (self.completed.scenarios if self.completed else ())
        }
        for scenario in found.values():
            alone = sum(each.id == scenario.id for each in found.values()) == 1
            status = told.get(scenario.id) if alone else None
            scenario.verdict = Status(str(status)) if status in set(Status) else None
            scenario.runs.sort(key=lambda run: run.started.sample)
        return list(found.values())


def plain(value: Any) -> Any:  # noqa: ANN401 - any field of an event
    """Return an event (or a part of one) as plain JSON values; half a surrogate pair becomes its escape, which JSON can carry."""
    if hasattr(value, "__dataclass_fields__"):
        return {"event": type(value).__name__.lower()} | {name: plain(part) for name, part in asdict(value).items()}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(part) for part in value]
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return value if value is None or isinstance(value, bool | int | float) else str(value)
