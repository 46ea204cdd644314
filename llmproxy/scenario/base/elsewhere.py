"""What LangWatch Scenario 1.6 has and we have not: voice, and what is computed on LangWatch's servers. Named, never silently ignored."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypedDict

from llmproxy.did_you_mean import nearest
from llmproxy.errors import SettingsError

VOICE = "is part of voice, which is not here: conversations are text."
SERVERS = "needs LangWatch's servers, to which nothing is sent from here."
SPANS = "reads OpenTelemetry spans; what the agent called is read off the wire, with a proxy."
_REASONS = {
    "on_audio_chunk": VOICE,
    "on_voice_event": VOICE,
    "audio_playback": VOICE,
    "voice": VOICE,
    "audio_effects": VOICE,
    "interrupt_probability": VOICE,
    "modality": VOICE,
    "voice_style": VOICE,
    "wait": VOICE,
    "include_audio": VOICE,
    "include_timeline": VOICE,
    "evaluators": SERVERS + " A check of your own is a step of the script, or a JudgeAgent.",
    "fetch_remote_traces": SERVERS + " What the agent called is read off the wire, with a proxy.",
    "trace_wait_timeout": SERVERS,
    "trace_wait_extension": SERVERS,
    "remote_trace_fetcher": SERVERS,
    "span_collector": SPANS,
    "include_traces": SPANS,
}
NOT_OF_A_STATE = {
    **dict.fromkeys(("spans", "traces", "contexts"), "reads OpenTelemetry spans; state.tool_calls() reads the wire."),
    **dict.fromkeys(("timeline", "set_effects"), VOICE),
    **dict.fromkeys(
        (
            "forget_turns",
            "note_empty_contexts",
            "note_missing_tool_call",
            "note_trace",
            "set_span_provider",
            "start_read_tracking",
            "take_reads",
        ),
        "belongs to evaluators, and each " + SERVERS,
    ),
}
"""Attributes of a state there, and why they are none here."""
NAMES_ELSEWHERE = {
    **dict.fromkeys(
        [
            "AdapterCapabilities",
            "AgentStreamEndedError",
            "AudioSegment",
            "ElevenLabsSTTProvider",
            "ElevenLabsVoiceAgent",
            "FirstChunkTimeoutError",
            "InterruptionConfig",
            "LatencyMetrics",
            "ModalityNegotiationError",
            "OpenAISTTProvider",
            "PipecatRecvError",
            "TunnelNotReadyError",
            "UnsupportedCapabilityError",
            "VoiceAgentAdapter",
            "VoiceEvent",
            "VoiceRecording",
            "WebRTCAgentAdapter",
            "WebSocketAgentAdapter",
            "WebSocketProtocol",
            "realtime_langwatch_session",
            "register_tts_provider",
            "set_stt_provider",
            "OpenAIRealtimeAgentAdapter",
            "GeminiLiveAgentAdapter",
            "ElevenLabsAgentAdapter",
            "TwilioAgentAdapter",
            "PipecatAgentAdapter",
            "LiveKitAgentAdapter",
            "VapiAgentAdapter",
            "ComposableVoiceAgent",
            "AudioChunk",
            "STTProvider",
            "audio",
            "silence",
            "sleep",
            "dtmf",
            "interrupt",
            "effects",
            "voice",
        ],
        VOICE,
    ),
    **dict.fromkeys(
        [
            "evaluator",
            "ScenarioEvaluator",
            "EvaluationResult",
            "EvaluatorMapping",
            "conversation",
            "field",
            "scenario_source",
            "setup_scenario_tracing",
            "trace",
            "value",
            "scenario_only",
            "with_custom_scopes",
            "StateMapping",
            "evaluators",
        ],
        SERVERS,
    ),
    "TraceView": SPANS,
    "TurnView": "belongs to annotations of state.turns, whose entries have index, messages and tool_calls() here too.",
    "connected_agent": "belongs to modules; ConnectedAgentAdapter and ConnectedAgentCall are names of scenario itself.",
    "litellm": "belongs to programs that import it; scenarios need none of it here.",
    "AttackerOutput": "belongs to attackers of one's own that parse their model's output; RedTeamStrategy is what one writes here.",
}
"""Names of the package there, and why they are none here."""
_CLOSE = 0.84
"""How alike a keyword must be to one of ours to be a slip: `criterion` is, `headers` is not."""


class NotHere(TypedDict, total=False):
    """Keywords of `run` that are known by name and refused when they ask for something."""

    evaluators: Any
    fetch_remote_traces: bool | None
    trace_wait_timeout: float | None
    trace_wait_extension: float | None
    on_audio_chunk: Any
    on_voice_event: Any
    audio_playback: bool


def refuse_elsewhere(where: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords that are not of the list; one of it that is None, False, 0 or empty asks for nothing and is dropped.

    Raises:
        SettingsError: one of the list asks for something.

    """
    for name, value in given.items():
        if name in _REASONS and value:
            raise SettingsError(f"{where}({name}=...) {_REASONS[name]}", hint=f"Leave {name} out.")
    return {name: value for name, value in given.items() if name not in _REASONS}


def refuses(name: str) -> bool:
    """Return whether a keyword of this name is refused where it asks for something."""
    return name in _REASONS


def refuse_slips(where: str, given: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Return keywords that are for litellm. Raises TypeError for one that is nearly a parameter of ours."""
    found = refuse_elsewhere(where, given)
    for name in found:
        near = nearest(name, known, _CLOSE)
        if near and name not in known:
            raise TypeError(f"{where} has no parameter {name!r}; did you mean {near!r}?")
    return found
