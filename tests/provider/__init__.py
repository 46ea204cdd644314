"""A scripted upstream that speaks OpenAI, Anthropic, Gemini, Bedrock and Ollama, and refuses what it did not expect."""

from __future__ import annotations

from .answer import Answer, Piece, event, failed, json_answer, stream_answer, throttled
from .dialects import render
from .script import Call, Reply, Script, Step, load, step
from .seen import Seen
from .server import Provider

__all__ = [
    "Answer", "Call", "Piece", "Provider", "Reply", "Script", "Seen", "Step", "event", "failed", "json_answer", "load",
    "render", "step", "stream_answer", "throttled",
]  # fmt: skip
