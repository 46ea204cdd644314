"""Spans of an agent's run: reading recordings and trace files, changing, comparing, asserting.

    Cassette.from_store("llmproxy.db", cassette="weather")      spans from recorded traffic

This package imports `core`, never mitmproxy; every name at its first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmproxy.trace.assertions import (
        cost_under as cost_under,
        evaluate as evaluate,
        latency_under as latency_under,
        no_loops as no_loops,
        no_tool_called as no_tool_called,
        output_contains as output_contains,
        output_json as output_json,
        output_json_schema as output_json_schema,
        output_matches as output_matches,
        same_tool_calls as same_tool_calls,
        token_count_under as token_count_under,
        tool_called as tool_called,
        tool_order as tool_order,
        tool_trajectory as tool_trajectory,
    )
    from llmproxy.trace.comparing.diff import (
        ReplayDiff as ReplayDiff,
        ToolFieldChange as ToolFieldChange,
        render as render,
    )
    from llmproxy.trace.export import otlp as otlp, write_otlp as write_otlp, write_trace as write_trace
    from llmproxy.trace.reading.recording_spans import spans_of as spans_of
    from llmproxy.trace.replay.engine import (
        NetworkBlocked as NetworkBlocked,
        NetworkGuard as NetworkGuard,
        OverrideNotUsed as OverrideNotUsed,
        OverrideWarning as OverrideWarning,
        ReplayEngine as ReplayEngine,
        replay as replay,
    )
    from llmproxy.trace.span_models import (
        AssertionResult as AssertionResult,
        EvalResult as EvalResult,
        Provenance as Provenance,
        Span as Span,
        SpanKind as SpanKind,
        TokenUsage as TokenUsage,
    )
    from llmproxy.trace.trace_file import (
        AgentRun as AgentRun,
        Cassette as Cassette,
        behavior_fingerprint as behavior_fingerprint,
    )

_HOMES = {
    "assertions": ("cost_under", "evaluate", "latency_under", "no_loops", "output_contains", "output_json",
                   "output_json_schema", "output_matches", "token_count_under", "no_tool_called", "same_tool_calls",
                   "tool_called", "tool_order", "tool_trajectory"),
    "trace_file": ("AgentRun", "Cassette", "behavior_fingerprint"),
    "comparing.diff": ("ReplayDiff", "ToolFieldChange", "render"),
    "export": ("otlp", "write_otlp", "write_trace"),
    "span_models": ("AssertionResult", "EvalResult", "Provenance", "Span", "SpanKind", "TokenUsage"),
    "reading.recording_spans": ("spans_of",),
    "replay.engine": ("NetworkBlocked", "NetworkGuard", "OverrideNotUsed", "OverrideWarning", "ReplayEngine", "replay"),
}  # fmt: skip
_MODULE = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [  # noqa: PLE0604 - the table above is the list
    *sorted(_MODULE)
]


def __getattr__(name: str) -> Any:
    """Import a public name at its first use; ``assert_<name>`` is Evalcraft's spelling of an assertion."""
    plain = name.removeprefix("assert_")
    home = _MODULE.get(plain)
    if home is None or (plain != name and home != "assertions"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{home}"), plain)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return list(__all__)
