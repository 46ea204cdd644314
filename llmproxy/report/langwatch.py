"""Events of runs for a LangWatch endpoint: a handler converts ours, a stream passes them on, a bus posts them to
``/api/scenario-events``.

Their JSON form has camel-case names. The bus posts on a thread of its own, so that no run waits for a server: it starts
with the first event and ends with `drain`. Without LANGWATCH_ENDPOINT it does nothing, silently.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, ClassVar
from urllib.parse import urlsplit

from pydantic.alias_generators import to_camel

from llmproxy.errors import UpstreamError
from llmproxy.report.events import Event, EventHandlerWithNothingToClose, Finished, Message, Started

PATIENCE = 30.0
"""Maximum seconds that `drain` waits."""
_BACK_OFF = 0.1
_TIMEOUT = 10.0
_GOOD = range(200, 300)
_log = logging.getLogger(__name__)


class ScenarioRunFinishedEventVerdict(StrEnum):
    SUCCESS = "success"
    FAILURE = "failure"
    INCONCLUSIVE = "inconclusive"


class ScenarioRunFinishedEventStatus(StrEnum):
    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    ERROR = "ERROR"
    CANCELLED = "CANCELLED"


@dataclass(kw_only=True)
class ScenarioMessage:
    """A message with an id, and with text in place of parts; never refused."""

    id: str
    role: str
    content: str
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return {to_camel(name): value for name, value in vars(self).items() if value is not None}


def to_langwatch_messages(messages: Iterable[Mapping[str, Any]]) -> list[ScenarioMessage]:
    """Return a conversation in the endpoint's form; a message's id is its index by default."""
    return [_convert_message(index, message) for index, message in enumerate(messages)]


def _convert_message(index: int, message: Mapping[str, Any]) -> ScenarioMessage:
    said, role = message.get("content"), str(message.get("role"))
    id_, text = str(message.get("id") or f"scenariomsg_{index}"), "" if said is None else str(said)
    made = ScenarioMessage(id=id_, role=role, content=text)
    if role == "assistant":
        made.tool_calls = [_convert_call(number, call) for number, call in enumerate(message.get("tool_calls") or ())]
    elif role == "tool":
        made.tool_call_id = str(message.get("tool_call_id") or "")
    return made


def _convert_call(number: int, call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function") or {}
    made = {"name": str(function.get("name", "unknown")), "arguments": str(function.get("arguments", "{}"))}
    return {"id": str(call.get("id") or f"call_{number}"), "type": "function", "function": made}


@dataclass(kw_only=True)
class ScenarioRunStartedEventMetadata:
    name: str
    description: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
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
        return {to_camel(name): value for name, value in vars(self).items() if name != "error" or value}


@dataclass(kw_only=True)
class ScenarioEvent:
    type_: ClassVar[str] = ""
    batch_run_id: str
    scenario_id: str
    scenario_run_id: str
    scenario_set_id: str = "default"
    timestamp: int = field(default_factory=lambda: int(time.time() * 1000))
    """Unix time in milliseconds."""

    def to_dict(self) -> dict[str, Any]:
        return {"type": self.type_} | {to_camel(name): _to_plain(value) for name, value in vars(self).items()}


def _to_plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_to_plain(each) for each in value]
    return value.to_dict() if hasattr(value, "to_dict") else value


@dataclass(kw_only=True)
class ScenarioRunStartedEvent(ScenarioEvent):
    type_: ClassVar[str] = "SCENARIO_RUN_STARTED"
    metadata: ScenarioRunStartedEventMetadata


@dataclass(kw_only=True)
class ScenarioMessageSnapshotEvent(ScenarioEvent):
    """The conversation so far; one for every new message."""

    type_: ClassVar[str] = "SCENARIO_MESSAGE_SNAPSHOT"
    messages: Sequence[ScenarioMessage]


@dataclass(kw_only=True)
class ScenarioRunFinishedEvent(ScenarioEvent):
    type_: ClassVar[str] = "SCENARIO_RUN_FINISHED"
    status: ScenarioRunFinishedEventStatus
    results: ScenarioRunFinishedEventResults | None = None


@dataclass(eq=False)
class ScenarioEventSubscription:
    on_next: Callable[[Any], None] | None = None
    on_error: Callable[[Exception], None] | None = None
    on_completed: Callable[[], None] | None = None
    _stream: ScenarioEventStream | None = field(default=None, repr=False)

    def dispose(self) -> None:
        if self._stream is not None:
            self._stream.unsubscribe(self)
            self._stream = None


class ScenarioEventStream:
    """Passes every event to earlier subscribers. Nothing follows its end."""

    def __init__(self) -> None:
        self._listeners: list[ScenarioEventSubscription] = []
        self._ended = False

    def subscribe(
        self,
        on_next: Callable[[Any], None] | None = None,
        on_error: Callable[[Exception], None] | None = None,
        on_completed: Callable[[], None] | None = None,
        scheduler: object = None,  # noqa: ARG002 (the fourth parameter of Rx)
    ) -> ScenarioEventSubscription:
        """Subscribe. An object with `on_next` and `on_completed` methods may replace the three functions."""
        target: Any = on_next
        if on_next is not None and hasattr(on_next, "on_next"):
            on_next, on_error, on_completed = target.on_next, target.on_error, target.on_completed
        made = ScenarioEventSubscription(on_next, on_error, on_completed, self)
        self._listeners.append(made)
        if self._ended and on_completed:
            on_completed()
        return made

    @property
    def has_listeners(self) -> bool:
        return bool(self._listeners) and not self._ended

    def unsubscribe(self, listener: ScenarioEventSubscription) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)

    def on_next(self, event: object) -> None:
        for each in () if self._ended else tuple(self._listeners):
            if each.on_next:
                each.on_next(event)

    def on_completed(self) -> None:
        ended, self._ended = self._ended, True
        for each in () if ended else tuple(self._listeners):
            if each.on_completed:
                each.on_completed()


class LangWatchEventConverter(EventHandlerWithNothingToClose):
    def __init__(self, stream: ScenarioEventStream, run: Any, fields: Mapping[str, Any]) -> None:
        """`run` has `messages`, without withdrawn ones that events have contained, and the `outcome` at its end."""
        self._stream, self._run, self._fields = stream, run, fields
        self._common: dict[str, Any] = {}

    def handle(self, event: Event) -> None:
        if isinstance(event, Started):
            ids = {"batch_run_id": event.batch_id, "scenario_run_id": event.run_id}
            self._common = {**ids, "scenario_id": event.name, "scenario_set_id": event.set_id}
            metadata = ScenarioRunStartedEventMetadata(
                name=event.name, description=event.description, fields=self._fields, more=event.metadata
            )
            self._stream.on_next(ScenarioRunStartedEvent(**self._build_common_fields(event.at), metadata=metadata))
        elif isinstance(event, Message) and self._stream.has_listeners:
            snapshot = to_langwatch_messages(self._run.messages)
            self._stream.on_next(ScenarioMessageSnapshotEvent(**self._build_common_fields(event.at), messages=snapshot))
        elif isinstance(event, Finished):
            self._stream.on_next(self._build_finished(event))
            self._stream.on_completed()

    def _build_common_fields(self, at: float) -> dict[str, Any]:
        return {**self._common, "timestamp": int(at * 1000)}

    def _build_finished(self, event: Finished) -> ScenarioRunFinishedEvent:
        status, verdict = ScenarioRunFinishedEventStatus, ScenarioRunFinishedEventVerdict
        result = self._run.outcome
        results = ScenarioRunFinishedEventResults(
            verdict=verdict.SUCCESS if result.success else verdict.FAILURE,
            reasoning=event.reasoning,
            met_criteria=list(result.passed_criteria),
            unmet_criteria=list(result.failed_criteria),
            error=event.error,
        )
        ended = status.ERROR if event.error else status.SUCCESS if result.success else status.FAILED
        return ScenarioRunFinishedEvent(**self._build_common_fields(event.at), status=ended, results=results)


class EventReporter:
    def __init__(self, endpoint: str | None = None, api_key: str | None = None) -> None:
        """Post to `endpoint`, else to LANGWATCH_ENDPOINT; the key is `api_key`, else LANGWATCH_API_KEY."""
        self.endpoint = (endpoint or os.environ.get("LANGWATCH_ENDPOINT") or "").rstrip("/")
        self.api_key = api_key or os.environ.get("LANGWATCH_API_KEY", "")

    @property
    def active(self) -> bool:
        return bool(self.endpoint)

    async def post_event(self, event: ScenarioEvent) -> None:
        """Post one event. Raises UpstreamError if the endpoint rejects it."""
        if self.endpoint:
            await asyncio.to_thread(self._post_body, event.to_dict())

    def _post_body(self, body: object) -> None:
        import http.client

        parts = urlsplit(self.endpoint)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        headers = {"Content-Type": "application/json", "X-Auth-Token": self.api_key}
        try:
            with closing(kind(parts.hostname or "", parts.port, timeout=_TIMEOUT)) as wire:
                wire.request("POST", parts.path + "/api/scenario-events", json.dumps(body, default=str), headers)
                answer = wire.getresponse()
                status, text = answer.status, answer.read(300)
        except (OSError, http.client.HTTPException, ValueError) as error:
            why = str(error) or type(error).__name__
            raise UpstreamError(f"{self.endpoint} did not take an event: {why}") from error
        if status not in _GOOD:
            raise UpstreamError(f"{self.endpoint} answered {status} to an event: {text.decode(errors='replace')}")
        _log.debug("event.posted %s", status)


class ScenarioEventBus:
    def __init__(self, event_reporter: Any = None, max_retries: int = 3) -> None:
        """Post by the `post_event` of a reporter, whose exceptions cause retries, or to the environment's endpoint."""
        self._reporter: Any = event_reporter or EventReporter()
        self._retries = max(1, max_retries)
        self._events: queue.SimpleQueue[ScenarioEvent | None] = queue.SimpleQueue()
        self._worker: threading.Thread | None = None
        self._subscription: object = None
        self._completed = threading.Event()

    def subscribe_to_events(self, event_stream: Any) -> None:
        """Subscribe to a stream of ours, or a subject of Rx, once, if there is an endpoint."""
        if self._subscription is None and getattr(self._reporter, "active", True):
            log_error = partial(_log.error, "error in event stream: %s")
            self._subscription = event_stream.subscribe(self._queue_event, log_error, self._completed.set)

    def drain(self, patience: float = PATIENCE) -> None:
        """Wait until everything is posted or given up; at most `patience` seconds."""
        worker, self._worker = self._worker, None
        if worker is None:
            return
        self._events.put(None)
        worker.join(patience)
        if worker.is_alive():
            _log.warning("events are still being posted after %g s; they are left to themselves", patience)

    @property
    def busy(self) -> bool:
        return self._worker is not None

    def is_completed(self) -> bool:
        return self._completed.is_set() and self._events.empty()

    def _queue_event(self, event: ScenarioEvent) -> None:
        self._events.put(event)
        if self._worker is None:
            self._worker = threading.Thread(target=self._post_queued, name="llmproxy-events", daemon=True)
            self._worker.start()

    def _post_queued(self) -> None:
        while (event := self._events.get()) is not None:
            for attempt in range(self._retries):
                try:
                    asyncio.run(self._reporter.post_event(event))
                except Exception as error:  # noqa: BLE001 (anybody's reporter; a run must not fail because of it)
                    _log.warning("event %s (attempt %d of %d): %s", event.type_, attempt + 1, self._retries, error)
                    if attempt + 1 < self._retries:
                        time.sleep(_BACK_OFF * 2**attempt)
                else:
                    break
