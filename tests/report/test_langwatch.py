"""Events for a LangWatch endpoint: their JSON, the stream that hands them on, the bus that posts them in order and never in the way."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from http.server import HTTPServer
from typing import Any, ClassVar

import pytest

from llmproxy.errors import UpstreamError
from llmproxy.report.langwatch import (
    EventReporter,
    ScenarioEvent,
    ScenarioEventBus,
    ScenarioEventStream,
    ScenarioMessageSnapshotEvent,
    ScenarioRunFinishedEvent,
    ScenarioRunFinishedEventResults,
    ScenarioRunFinishedEventStatus,
    ScenarioRunFinishedEventVerdict,
    ScenarioRunStartedEvent,
    ScenarioRunStartedEventMetadata,
    to_langwatch_messages,
)
from tests.support import free_port
from tests.support.services import QuietHandler, serving


class Posts:
    """A reporter that fails so many times for each event."""

    def __init__(self, failures: int = 0, held: threading.Event | None = None) -> None:
        self.failures, self.held = failures, held or threading.Event()
        if held is None:
            self.held.set()
        self.tried: list[str] = []
        self.taken: list[str] = []

    async def post_event(self, event: ScenarioEvent) -> None:
        self.tried.append(event.scenario_run_id)
        while not self.held.is_set():
            await asyncio.sleep(0.01)
        if self.tried.count(event.scenario_run_id) <= self.failures:
            raise ConnectionError("not now")
        self.taken.append(event.scenario_run_id)


def event(number: int) -> ScenarioEvent:
    about = ScenarioRunStartedEventMetadata(name="x", description="d")
    return ScenarioRunStartedEvent(batch_run_id="b", scenario_id="x", scenario_run_id=str(number), metadata=about)


def posted(reporter: Any, count: int = 3, patience: float = 20.0) -> ScenarioEventBus:
    stream, bus = ScenarioEventStream(), ScenarioEventBus(reporter)
    bus.subscribe_to_events(stream)
    for number in range(count):
        stream.on_next(event(number))
    stream.on_completed()
    bus.drain(patience)
    return bus


def test_events_are_posted_in_order() -> None:
    """On a thread of their own; afterwards nothing is left."""
    posts = Posts()
    bus = posted(posts)
    assert posts.taken == ["0", "1", "2"]
    assert bus.is_completed()
    assert not [thread for thread in threading.enumerate() if thread.name == "llmproxy-events"]


def test_an_event_is_tried_again() -> None:
    """Up to three times, then given up, and the next one comes."""
    posts = Posts(failures=2)
    posted(posts, 1)
    assert (len(posts.tried), posts.taken) == (3, ["0"])
    hopeless = Posts(failures=3)
    posted(hopeless, 2)
    assert (len(hopeless.tried), hopeless.taken) == (6, [])


def test_a_slow_endpoint_is_not_waited_for_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    """`drain` has an end."""
    posts = Posts(held=threading.Event())
    posted(posts, 1, patience=0.1)
    assert "left to themselves" in caplog.text
    posts.held.set()


def test_without_an_endpoint_there_is_no_thread_and_no_word(caplog: pytest.LogCaptureFixture) -> None:
    """Row of 1.17: silent, no error and no connection."""
    stream, bus = ScenarioEventStream(), ScenarioEventBus(EventReporter(endpoint=""))
    bus.subscribe_to_events(stream)
    stream.on_next(event(1))
    assert (stream.has_listeners, bus.busy, caplog.text) == (False, False, "")
    bus.drain()
    reporter = EventReporter()
    asyncio.run(reporter.post_event(event(1)))
    assert not reporter.active


def test_a_bus_listens_to_one_stream() -> None:
    posts, first, second = Posts(), ScenarioEventStream(), ScenarioEventStream()
    bus = ScenarioEventBus(posts)
    bus.subscribe_to_events(first)
    bus.subscribe_to_events(second)
    second.on_next(event(2))
    first.on_next(event(1))
    bus.drain()
    assert posts.taken == ["1"]


class Endpoint(QuietHandler):
    seen: ClassVar[list[Any]] = []
    status: ClassVar[int] = 201

    def do_POST(self) -> None:  # noqa: N802 - as the library names it
        body = self.rfile.read(int(self.headers["content-length"]))
        self.seen.append((self.path, self.headers["X-Auth-Token"], json.loads(body)))
        self.answer(b"taken", status=self.status)


@pytest.fixture
def endpoint() -> Iterator[str]:
    Endpoint.seen.clear()
    Endpoint.status = 201
    with serving(HTTPServer(("127.0.0.1", 0), Endpoint)) as url:
        yield url


def test_an_event_is_posted_with_the_key(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To /api/scenario-events, whatever the endpoint ends in; the environment is read when the reporter is made."""
    asyncio.run(EventReporter(endpoint + "/", "key").post_event(event(1)))
    ((path, key, body),) = Endpoint.seen
    assert (path, key, body["scenarioRunId"]) == ("/api/scenario-events", "key", "1")
    monkeypatch.setenv("LANGWATCH_ENDPOINT", endpoint)
    monkeypatch.setenv("LANGWATCH_API_KEY", "from env")
    reporter = EventReporter()
    asyncio.run(reporter.post_event(event(1)))
    assert reporter.active
    assert Endpoint.seen[1][1] == "from env"


def test_an_endpoint_that_does_not_take_it_is_an_error(endpoint: str) -> None:
    """With its status and its words; the bus tries again."""
    Endpoint.status = 500
    with pytest.raises(UpstreamError, match="answered 500 to an event: taken"):
        asyncio.run(EventReporter(endpoint).post_event(event(1)))
    with pytest.raises(UpstreamError, match="did not take an event"):
        asyncio.run(EventReporter(f"http://127.0.0.1:{free_port()}").post_event(event(1)))


COMMON = {"batch_run_id": "b", "scenario_id": "x", "scenario_run_id": "r", "timestamp": 5}
JSON = {"batchRunId": "b", "scenarioId": "x", "scenarioRunId": "r", "scenarioSetId": "default", "timestamp": 5}


def test_started() -> None:
    """With name and description; with the messages so far."""
    event = ScenarioRunStartedEvent(**COMMON, metadata=ScenarioRunStartedEventMetadata(name="x", description="d"))  # type: ignore[arg-type]
    assert event.type_ == "SCENARIO_RUN_STARTED"
    assert event.to_dict() == JSON | {"type": "SCENARIO_RUN_STARTED", "metadata": {"name": "x", "description": "d"}}
    messages = to_langwatch_messages([{"role": "user", "content": "hi"}])
    told = ScenarioMessageSnapshotEvent(**COMMON, messages=messages)  # type: ignore[arg-type]
    assert told.to_dict()["type"] == "SCENARIO_MESSAGE_SNAPSHOT"
    assert told.to_dict()["messages"] == [{"id": "scenariomsg_0", "role": "user", "content": "hi"}]


def test_a_finished_event() -> None:
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
    assert abs(event(1).timestamp - time.time() * 1000) < 60_000


@pytest.mark.parametrize(
    ("message", "want"),
    [
        ({"role": "user", "content": "hi", "id": "m1"}, {"id": "m1", "role": "user", "content": "hi"}),
        ({"role": "user", "content": ""}, {"id": "scenariomsg_0", "role": "user", "content": ""}),
        ({"role": "system", "content": None}, {"id": "scenariomsg_0", "role": "system", "content": ""}),
        ({"role": "developer", "content": [1]}, {"id": "scenariomsg_0", "role": "developer", "content": "[1]"}),
        ({"role": "critic", "content": "x"}, {"id": "scenariomsg_0", "role": "critic", "content": "x"}),
        ({"role": "tool", "content": "12", "tool_call_id": "c1"},
         {"id": "scenariomsg_0", "role": "tool", "content": "12", "toolCallId": "c1"}),
        ({"role": "tool"}, {"id": "scenariomsg_0", "role": "tool", "content": "", "toolCallId": ""}),
        ({"role": "assistant", "content": "a", "tool_calls": None},
         {"id": "scenariomsg_0", "role": "assistant", "content": "a", "toolCalls": []}),
        ({"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": "{}"}}, {}]},
         {"id": "scenariomsg_0", "role": "assistant", "content": "", "toolCalls": [
             {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
             {"id": "call_1", "type": "function", "function": {"name": "unknown", "arguments": "{}"}}]}),
    ],
)  # fmt: skip
def test_every_role(message: dict[str, Any], want: dict[str, Any]) -> None:
    """Empty content and unknown roles crashed the original's snapshot."""
    assert [each.to_dict() for each in to_langwatch_messages([message])] == [want]


def test_ids_are_places_and_not_random() -> None:
    twice = [to_langwatch_messages([{"role": "user", "content": "x"}] * 2) for _ in range(2)]
    assert twice[0] == twice[1]
    assert [each.id for each in twice[0]] == ["scenariomsg_0", "scenariomsg_1"]


def test_listeners_hear_what_comes_after_them() -> None:
    stream = ScenarioEventStream()
    first: list[str] = []
    second: list[str] = []
    ends: list[int] = []
    stream.subscribe(first.append, None, lambda: ends.append(1))
    stream.on_next("a")
    stream.subscribe(second.append)
    stream.on_next("b")
    stream.on_completed()
    stream.on_completed()
    stream.on_next("c")
    assert (first, second, ends) == (["a", "b"], ["b"], [1])


def test_an_observer_object_may_listen() -> None:
    """As Rx allows it."""

    class Observer:
        def __init__(self) -> None:
            self.heard: list[Any] = []

        def on_next(self, event: Any) -> None:
            self.heard.append(event)

        def on_error(self, error: Exception) -> None: ...

        def on_completed(self) -> None:
            self.heard.append("end")

    observer, stream = Observer(), ScenarioEventStream()
    stream.subscribe(observer)  # type: ignore[arg-type]
    stream.on_next(1)
    stream.on_completed()
    assert observer.heard == [1, "end"]


def test_a_subscription_can_end() -> None:
    """Twice does no harm; a stream nobody listens to says so; who comes late hears its end, and nothing else."""
    stream = ScenarioEventStream()
    heard: list[int] = []
    listening = stream.subscribe(heard.append)
    assert stream.has_listeners
    listening.dispose()
    listening.dispose()
    stream.on_next(1)
    assert (heard, stream.has_listeners) == ([], False)
    stream = ScenarioEventStream()
    ends: list[int] = []
    stream.on_completed()
    stream.subscribe(None, None, lambda: ends.append(1))
    assert ends == [1]
