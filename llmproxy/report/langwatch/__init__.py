"""Events of runs for a LangWatch endpoint: what they are, the bus that carries them, and who posts them."""

from __future__ import annotations

from llmproxy.report.langwatch.event_bus import ScenarioEventBus
from llmproxy.report.langwatch.event_reporter import EventReporter
from llmproxy.report.langwatch.events import (
    ScenarioEvent,
    ScenarioMessageSnapshotEvent,
    ScenarioRunFinishedEvent,
    ScenarioRunFinishedEventResults,
    ScenarioRunFinishedEventStatus,
    ScenarioRunFinishedEventVerdict,
    ScenarioRunStartedEvent,
    ScenarioRunStartedEventMetadata,
)
from llmproxy.report.langwatch.messages import (
    AssistantMessage,
    DeveloperMessage,
    FunctionCall,
    LangWatchToolCall,
    MessageType,
    SystemMessage,
    ToolMessage,
    UserMessage,
    convert_messages_to_api_client_messages,
)
from llmproxy.report.langwatch.stream import Stream

__all__ = [
    "AssistantMessage",
    "DeveloperMessage",
    "EventReporter",
    "FunctionCall",
    "LangWatchToolCall",
    "MessageType",
    "ScenarioEvent",
    "ScenarioEventBus",
    "ScenarioMessageSnapshotEvent",
    "ScenarioRunFinishedEvent",
    "ScenarioRunFinishedEventResults",
    "ScenarioRunFinishedEventStatus",
    "ScenarioRunFinishedEventVerdict",
    "ScenarioRunStartedEvent",
    "ScenarioRunStartedEventMetadata",
    "Stream",
    "SystemMessage",
    "ToolMessage",
    "UserMessage",
    "convert_messages_to_api_client_messages",
]
