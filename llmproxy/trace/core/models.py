"""Evalcraft's import path of the values: ``from evalcraft.core.models import Cassette, SpanKind``."""

from llmproxy.trace.cassette import AgentRun, Cassette
from llmproxy.trace.model import AssertionResult, EvalResult, Provenance, Span, SpanKind, TokenUsage

__all__ = ["AgentRun", "AssertionResult", "Cassette", "EvalResult", "Provenance", "Span", "SpanKind", "TokenUsage"]
