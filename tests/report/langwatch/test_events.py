"""The JSON of the three events."""

from __future__ import annotations

import time

from llmproxy.report.langwatch import (
    ScenarioMessageSnapshotEvent,
    ScenarioRunFinishedEvent,
    ScenarioRunFinishedEventResults,
    ScenarioRunFinishedEventStatus,
    ScenarioRunFinishedEventVerdict,
    ScenarioRunStartedEvent,
    ScenarioRunStartedEventMetadata,
    convert_messages_to_api_client_messages,
)

COMMON = {"batch_run_id": "b", "scenario_id": "x", "scenario_run_id": "r", "timestamp": 5}
JSON = {"batchRunId": "b", "scenarioId": "x", "scenarioRunId": "r", "scenarioSetId": "default", "timestamp": 5}


def test_started() -> None:
    """With name and description."""
    event = ScenarioRunStartedEvent(**COMMON, metadata=ScenarioRunStartedEventMetadata(name="x", description="d"))  # type: ignore[arg-type]
    assert event.type_ == "SCENARIO_RUN_STARTED"
    assert event.to_dict() == JSON | {"type": "SCENARIO_RUN_STARTED", "metadata": {"name": "x", "description": "d"}}


def test_snapshot() -> None:
    """With the messages so far."""
    messages = convert_messages_to_api_client_messages([{"role": "user", "content": "hi"}])
    event = ScenarioMessageSnapshotEvent(**COMMON, messages=messages)  # type: ignore[arg-type]
    assert event.to_dict()["type"] == "SCENARIO_MESSAGE_SNAPSHOT"
    assert event.to_dict()["messages"] == [{"id": "scenariomsg_0", "role": "user", "content": "hi"}]


def test_finished() -> None:
    """With status, verdict and criteria; the results may be missing."""
    results = ScenarioRunFinishedEventResults(
        verdict=ScenarioRunFinishedEventVerdict.FAILURE, reasoning="rude", met_criteria=["a"], unmet_criteria=["b"]
    )
    event = ScenarioRunFinishedEvent(**COMMON, status=ScenarioRunFinishedEventStatus.FAILED, results=results)  # type: ignore[arg-type]
    said = event.to_dict()
    assert (said["type"], said["status"]) == ("SCENARIO_RUN_FINISHED", "FAILED")
    assert said["results"] == {"verdict": "failure", "reasoning": "rude", "metCriteria": ["a"], "unmetCriteria": ["b"]}
    results.error = "ValueError: x"
    assert results.to_dict()["error"] == "ValueError: x"
    bare = ScenarioRunFinishedEvent(**COMMON, status=ScenarioRunFinishedEventStatus.ERROR)  # type: ignore[arg-type]
    assert bare.to_dict()["results"] is None


def test_the_time_is_in_milliseconds() -> None:
    """Now, unless it is said."""
    event = ScenarioRunStartedEvent(
        batch_run_id="b", scenario_id="x", scenario_run_id="r",
        metadata=ScenarioRunStartedEventMetadata(name="x", description="d"),
    )  # fmt: skip
    assert abs(event.timestamp - time.time() * 1000) < 60_000
