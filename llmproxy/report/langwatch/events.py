"""The events of a run that a LangWatch endpoint takes: started, a snapshot of the messages, finished.

Their JSON form has camel-case names; `type_` is called ``type`` there. Ids: the scenario's is its name.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

from llmproxy.report.langwatch.messages import MessageType


def _now() -> int:
    return int(time.time() * 1000)


class ScenarioRunFinishedEventVerdict(StrEnum):
    SUCCESS = "success"
    FAILURE = "failure"
    INCONCLUSIVE = "inconclusive"


class ScenarioRunFinishedEventStatus(StrEnum):
    """How a run ended."""

    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    ERROR = "ERROR"
    CANCELLED = "CANCELLED"


@dataclass(kw_only=True)
class ScenarioRunStartedEventMetadata:
    name: str
    description: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)
    """What the user says beside it."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        own = {"name": self.name, "description": self.description} | ({"fields": self.fields} if self.fields else {})
        return {**self.more, **own}


@dataclass(kw_only=True)
class ScenarioRunFinishedEventResults:
    verdict: ScenarioRunFinishedEventVerdict
    reasoning: str = ""
    met_criteria: list[str] = field(default_factory=list)
    unmet_criteria: list[str] = field(default_factory=list)
    error: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        found: dict[str, Any] = {
            "verdict": self.verdict.value,
            "reasoning": self.reasoning,
            "metCriteria": list(self.met_criteria),
            "unmetCriteria": list(self.unmet_criteria),
        }
        return found | ({"error": self.error} if self.error else {})


@dataclass(kw_only=True)
class ScenarioEvent:
    type_: ClassVar[str] = ""
    batch_run_id: str
    scenario_id: str
    scenario_run_id: str
    scenario_set_id: str = "default"
    timestamp: int = field(default_factory=_now)
    """Unix time in milliseconds."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "type": self.type_,
            "batchRunId": self.batch_run_id,
            "scenarioId": self.scenario_id,
            "scenarioRunId": self.scenario_run_id,
            "scenarioSetId": self.scenario_set_id,
            "timestamp": self.timestamp,
        }


@dataclass(kw_only=True)
class ScenarioRunStartedEvent(ScenarioEvent):
    type_: ClassVar[str] = "SCENARIO_RUN_STARTED"
    metadata: ScenarioRunStartedEventMetadata

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return super().to_dict() | {"metadata": self.metadata.to_dict()}


@dataclass(kw_only=True)
class ScenarioMessageSnapshotEvent(ScenarioEvent):
    """The conversation so far; one for every message that joins it."""

    type_: ClassVar[str] = "SCENARIO_MESSAGE_SNAPSHOT"
    messages: Sequence[MessageType]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return super().to_dict() | {"messages": [each.to_dict() for each in self.messages]}


@dataclass(kw_only=True)
class ScenarioRunFinishedEvent(ScenarioEvent):
    """A run ended; the last event of its stream."""

    type_: ClassVar[str] = "SCENARIO_RUN_FINISHED"
    status: ScenarioRunFinishedEventStatus
    results: ScenarioRunFinishedEventResults | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        results = None if self.results is None else self.results.to_dict()
        return super().to_dict() | {"status": self.status.value, "results": results}
