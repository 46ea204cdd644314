"""Tells the world what happens in one run: report events to handlers, LangWatch events to the stream. One Started, one Finished, always the last.

Handlers may be shared by runs that go on in parallel threads; they are called one at a time. A handler that raises is logged and never
disturbs the run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llmproxy.report.events import Criterion, Event, Finished, Handler, Message as Said, Started, Status, Step, Verdict
from llmproxy.report.handlers import tell
from llmproxy.report.langwatch import (
    ScenarioMessageSnapshotEvent,
    ScenarioRunFinishedEvent,
    ScenarioRunFinishedEventResults,
    ScenarioRunFinishedEventStatus,
    ScenarioRunFinishedEventVerdict,
    ScenarioRunStartedEvent,
    ScenarioRunStartedEventMetadata,
    Stream,
    convert_messages_to_api_client_messages,
)
from llmproxy.scenario.types import Message, ScenarioResult
from llmproxy.scenario.values.messages import copies, copy_value

_ONE_AT_A_TIME = threading.RLock()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIdentity:
    name: str
    scenario: str = ""
    """Its id, where that is not its name."""
    description: str = ""
    suite: str = ""
    tags: Sequence[str] = ()
    rerun: str = ""
    place: str = ""
    set_id: str = "default"
    batch_id: str = ""
    run_id: str = ""
    cassette: str = ""
    sample: int = 1
    runs: int = 1
    metadata: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Narrator:
    """The voice of one run."""

    who: RunIdentity
    handlers: Sequence[Handler]
    stream: Stream | None = field(default_factory=Stream)
    """Takes LangWatch's events; None where nobody can subscribe to them."""
    clock: Callable[[], float] = time.time
    _begun: bool = False
    _over: bool = False
    _steps: int = 0

    def tell_start(self, *, criteria: Sequence[str] = (), mode: str = "") -> None:
        """Say that the run begins; once."""
        if self._begun:
            return
        self._begun = True
        who = self.who
        if self.stream is not None:
            metadata = ScenarioRunStartedEventMetadata(
                name=who.name, description=who.description, fields=dict(who.fields), more=dict(who.metadata)
            )
            self.stream.on_next(ScenarioRunStartedEvent(**self._common(), metadata=metadata))
        self.tell(
            Started(
                run_id=who.run_id,
                scenario=who.scenario or who.name,
                name=who.name,
                description=who.description,
                suite=who.suite,
                tags=who.tags,
                rerun=who.rerun,
                place=who.place,
                set_id=who.set_id,
                batch_id=who.batch_id,
                sample=who.sample,
                runs=who.runs,
                criteria=tuple(criteria),
                cassette=who.cassette,
                mode=mode,
                metadata=dict(who.metadata),
                at=self.clock(),
            )
        )

    def tell_message(self, message: Message, conversation: Sequence[Message], **about: Any) -> None:  # noqa: ANN401 (fields of the event)
        """Say that a message joined the conversation."""
        if not self._telling():
            return
        if self.stream is not None and self.stream.heard:
            snapshot = convert_messages_to_api_client_messages(copies(conversation))
            self.stream.on_next(ScenarioMessageSnapshotEvent(**self._common(), messages=snapshot))
        self.tell(Said(run_id=self.who.run_id, message=copy_value(message), at=self.clock(), **about))

    def step(self, kind: str, **about: Any) -> None:  # noqa: ANN401 - fields of the event
        if self._telling():
            self.tell(Step(run_id=self.who.run_id, index=self._steps, kind=kind, **about))
            self._steps += 1

    def verdict(self, judge: str, result: ScenarioResult | None, *, forced: bool, decided: bool) -> None:
        """Say what a judge said; `result` is None where it wants to see more."""
        if not self._telling():
            return
        success = None if result is None or not decided else result.success
        criteria, reasoning = ((), "") if result is None else (_list_criteria(result), result.reasoning or "")
        self.tell(
            Verdict(
                run_id=self.who.run_id,
                judge=judge,
                success=success,
                reasoning=reasoning,
                criteria=criteria,
                forced=forced,
            )
        )

    def tell_end(self, result: ScenarioResult, *, broken: bool = False) -> bool:
        """Say how a run of a script ended; only the first call counts, and returns True. `broken`: by an error, whatever the status."""
        return self.over(
            _ending(result, broken=broken),
            status=result.status or Status.FAILED,
            reasoning=result.reasoning or "",
            criteria=_list_criteria(result),
            total_seconds=result.total_time,
            agent_seconds=result.agent_time,
            waited_seconds=result.waited,
            usage=dict(result.usage),
            replayed=result.replayed,
            bound=result.bound,
            bound_names=tuple(result.bound_names),
            misses=tuple(result.misses),
            error=result.error,
            labels=tuple(result.labels),
        )

    def over(self, last: Mapping[str, Any] | None = None, **about: Any) -> bool:  # noqa: ANN401 (fields of `Finished`)
        """Say that the run is over; only the first call counts, and returns True. `last` goes into LangWatch's event."""
        with _ONE_AT_A_TIME:
            over, self._over = self._over, True
        if over:
            return False
        if self.stream is not None:
            self.stream.on_next(ScenarioRunFinishedEvent(**self._common(), **(last or {})))
            self.stream.on_completed()
        who = self.who
        self.tell(Finished(run_id=who.run_id, scenario=who.scenario or who.name, at=self.clock(), **about))
        return True

    def _telling(self) -> bool:
        """Return whether the run has begun and not ended: an executor that is used without `run` tells nothing."""
        return self._begun and not self._over

    def _common(self) -> dict[str, Any]:
        who = self.who
        return {
            "batch_run_id": who.batch_id,
            "scenario_id": who.name,
            "scenario_run_id": who.run_id,
            "scenario_set_id": who.set_id,
            "timestamp": int(self.clock() * 1000),
        }

    def tell(self, event: Event) -> None:
        with _ONE_AT_A_TIME:
            tell(self.handlers, event)


def _list_criteria(result: ScenarioResult) -> tuple[Criterion, ...]:
    return tuple(each.to_event() for each in result.criteria)


def _ending(result: ScenarioResult, *, broken: bool) -> dict[str, Any]:
    """Return status and results of the LangWatch event."""
    status, verdict = ScenarioRunFinishedEventStatus, ScenarioRunFinishedEventVerdict
    results = ScenarioRunFinishedEventResults(
        verdict=verdict.SUCCESS if result.success else verdict.FAILURE,
        reasoning=result.reasoning or "",
        met_criteria=list(result.passed_criteria),
        unmet_criteria=list(result.failed_criteria),
        error=result.error,
    )
    ended = status.ERROR if broken else status.SUCCESS if result.success else status.FAILED
    return {"status": ended, "results": results}
