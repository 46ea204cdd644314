"""Carries events from a run to the reporter, on a thread of its own, so that no run ever waits for somebody's server.

The thread starts with the first event and ends with `drain`. Without an endpoint neither queue nor thread is made.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Protocol

from llmproxy.report.langwatch.event_reporter import EventReporter
from llmproxy.report.langwatch.events import ScenarioEvent

PATIENCE = 30.0
"""Seconds that `drain` waits at most."""
_BACK_OFF = 0.1
_log = logging.getLogger(__name__)


class EventTaker(Protocol):
    async def post_event(self, event: ScenarioEvent) -> None:
        """Take an event; an exception means: again."""


class Subscribable(Protocol):
    """Whatever has events to listen to: our own stream, or a subject of Rx."""

    def subscribe(
        self,
        on_next: Callable[[ScenarioEvent], None],
        on_error: Callable[[Exception], None],
        on_completed: Callable[[], None],
        /,
    ) -> object: ...


class ScenarioEventBus:
    """Posts the events of the streams that it subscribes to, in order, each up to `max_retries` times."""

    def __init__(self, event_reporter: EventTaker | None = None, max_retries: int = 3) -> None:
        """Post by `event_reporter`, or to the endpoint that the environment names."""
        self._reporter = event_reporter or EventReporter()
        self._retries = max(1, max_retries)
        self._events: queue.SimpleQueue[ScenarioEvent | None] = queue.SimpleQueue()
        self._worker: threading.Thread | None = None
        self._subscription: object = None
        self._completed = False

    def subscribe_to_events(self, event_stream: Subscribable) -> None:
        """Listen to anything with `subscribe(on_next, on_error, on_completed)`; a second stream is ignored.

        Without an endpoint there is nothing to listen for.
        """
        if self._subscription is None and getattr(self._reporter, "active", True):
            self._subscription = event_stream.subscribe(self._take, self._log_failure, self._complete)

    def drain(self, patience: float = PATIENCE) -> None:
        """Wait until everything is posted, or given up; for `patience` seconds at most."""
        worker, self._worker = self._worker, None
        if worker is None:
            return
        self._events.put(None)
        worker.join(patience)
        if worker.is_alive():
            _log.warning("events are still being posted after %g s; they are left to themselves", patience)

    @property
    def busy(self) -> bool:
        """Whether there is anything to drain."""
        return self._worker is not None

    def is_completed(self) -> bool:
        """Return whether the stream ended and nothing waits."""
        return self._completed and self._events.empty()

    def _take(self, event: ScenarioEvent) -> None:
        self._events.put(event)
        if self._worker is None:
            self._worker = threading.Thread(target=self._work, name="llmproxy-events", daemon=True)
            self._worker.start()

    def _log_failure(self, error: Exception) -> None:
        _log.error("error in event stream: %s", error)

    def _complete(self) -> None:
        self._completed = True

    def _work(self) -> None:
        while (event := self._events.get()) is not None:
            self._post(event)

    def _post(self, event: ScenarioEvent) -> None:
        for attempt in range(self._retries):
            try:
                asyncio.run(self._reporter.post_event(event))
            except Exception as error:  # noqa: BLE001 (anybody's reporter; a run must not fail because of it)
                _log.warning("event %s (attempt %d of %d): %s", event.type_, attempt + 1, self._retries, error)
                if attempt + 1 < self._retries:
                    time.sleep(_BACK_OFF * 2**attempt)
            else:
                return
