"""Evalcraft's import path of the values: ``from evalcraft.core.models import Cassette, SpanKind``."""

from llmproxy.trace.files.cassette import Cassette
from llmproxy.trace.files.run import AgentRun
from llmproxy.trace.values.model import (
    AssertionResult,
    EvalResult,
    Provenance,
    Span,
    SpanKind,
    TokenUsage,
)

__all__ = ["AgentRun", "AssertionResult", "Cassette", "EvalResult", "Provenance", "Span", "SpanKind", "TokenUsage"]
