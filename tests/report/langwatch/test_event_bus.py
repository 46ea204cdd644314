"""The bus: in order, again after an error, and never in the way."""

# ruff: noqa: ANN401

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from llmproxy.report.langwatch import (
    EventReporter,
    ScenarioEvent,
    ScenarioEventBus,
    ScenarioRunStartedEvent,
    ScenarioRunStartedEventMetadata,
    Stream,
)


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
    """Return an event that can be told from others."""
    about = ScenarioRunStartedEventMetadata(name="x", description="d")
    return ScenarioRunStartedEvent(batch_run_id="b", scenario_id="x", scenario_run_id=str(number), metadata=about)


def posted(reporter: Any, count: int = 3, patience: float = 20.0) -> ScenarioEventBus:
    """Send events through a bus and drain it."""
    stream, bus = Stream(), ScenarioEventBus(reporter)
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
    """Row of 1.17: silent."""
    stream, bus = Stream(), ScenarioEventBus(EventReporter(endpoint=""))
    bus.subscribe_to_events(stream)
    stream.on_next(event(1))
    assert (stream.heard, bus.busy, caplog.text) == (False, False, "")
    bus.drain()


def test_a_bus_listens_to_one_stream() -> None:
    """A second one is ignored."""
    posts, first, second = Posts(), Stream(), Stream()
    bus = ScenarioEventBus(posts)
    bus.subscribe_to_events(first)
    bus.subscribe_to_events(second)
    second.on_next(event(2))
    first.on_next(event(1))
    bus.drain()
    assert posts.taken == ["1"]
