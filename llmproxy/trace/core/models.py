"""Evalcraft's import path of the models: ``from evalcraft.core.models import Cassette, SpanKind``."""

from llmproxy.trace.span_models import AssertionResult, EvalResult, Provenance, Span, SpanKind, TokenUsage
from llmproxy.trace.trace_file import AgentRun, Cassette

__all__ = ["AgentRun", "AssertionResult", "Cassette", "EvalResult", "Provenance", "Span", "SpanKind", "TokenUsage"]
