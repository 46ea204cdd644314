"""Steps of a recording in a few lines each: prompts, tool calls, answers.

Read from the spans of the trace (`trace.reading.span_builder`), so it agrees with suites and judges. Steps are plain
values in order:

    {"kind": "user" | "says" | "tool" | "answer" | "failed" | "call", "call": id, "depth": n, ...}

`call` is the interaction that contains the step; `depth` is its level of sub-agents.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from llmproxy.core.dialects.messages import keep_user_text
from llmproxy.core.traffic.interaction import Interaction
from llmproxy.trace.reading.decoded_exchange import make_span_id
from llmproxy.trace.reading.span_builder import build_spans
from llmproxy.trace.spans import Span, SpanKind

TEXT = 6000
"""Maximum characters of a step's text; the call has the rest."""

Step = dict[str, Any]


def summarize_recorded_steps(interactions: Iterable[Interaction]) -> list[Step]:
    reader = _SpanToStepConverter()
    steps = [step for span in build_spans(reader.remember_interactions(interactions)) for step in reader.read(span)]
    return steps + [{**step, "call": None} for step in reader.waiting]  # user inputs without a following request


@dataclass(slots=True)
class _SpanToStepConverter:
    depth: dict[str, int] = field(default_factory=dict)
    """Depth of agent_step spans by id."""
    of: dict[str, tuple[int | None, int]] = field(default_factory=dict)
    """Interaction and depth by span id."""
    waiting: list[Step] = field(default_factory=list)
    """User texts until the request that contains them names its interaction."""
    words: dict[str, str] = field(default_factory=dict)
    """Text of an answer by span, until it is known whether tool calls follow."""
    answers: dict[str, int | None] = field(default_factory=dict)
    """Interactions by answer span: a retry's differs from that of the shared request."""

    def remember_interactions(self, interactions: Iterable[Interaction]) -> Iterator[Interaction]:
        for each in interactions:
            self.answers[make_span_id(each, "response")] = each.id
            yield each

    def read(self, span: Span) -> Iterator[Step]:
        if span.kind is SpanKind.AGENT_STEP:
            yield from self._make_attempt_and_call_steps(span)
        elif span.kind is SpanKind.USER_INPUT:
            said = span.input
            if not isinstance(said, str) or (said := keep_user_text(said)):  # else the client wrote all of it
                step = {"kind": "user", "text": _shorten_text(said), "depth": self.depth.get(span.parent_id or "", 0)}
                self.waiting.append(step)
        elif span.kind is SpanKind.LLM_REQUEST:
            here = span.metadata.get("llmproxy.interaction"), self.depth.get(span.parent_id or "", 0)
            self.of[span.id] = here
            for step in self.waiting:
                yield {**step, "call": here[0]}
            self.waiting.clear()
        elif span.kind is SpanKind.LLM_RESPONSE:
            yield from self._make_failure_or_keep_text(span)
        elif span.kind is SpanKind.TOOL_CALL:
            self.of[span.id] = here = self.of.get(span.parent_id or "", (None, 0))
            if words := self.words.pop(span.parent_id or "", ""):
                yield {"kind": "says", "call": here[0], "depth": here[1], "text": words}
            yield _make_tool_step(span, *here)
        elif span.kind is SpanKind.AGENT_OUTPUT:
            call, depth = self.of.get(span.parent_id or "", (None, 0))
            yield {"kind": "answer", "call": call, "depth": depth, "text": _shorten_text(span.output)}

    def _make_attempt_and_call_steps(self, span: Span) -> Iterator[Step]:
        inside = self.of.get(span.parent_id or "")
        depth = inside[1] + 1 if inside else 0
        self.depth[span.id] = depth
        number = span.metadata.get("llmproxy.interaction")
        if span.name == "llm_attempt":
            depth = self.of.get(span.parent_id or "", (None, 0))[1]
            call = self.answers.get(span.id, number)
            yield {"kind": "failed", "call": call, "depth": depth, "text": _shorten_text(span.error), "again": True}
        elif span.metadata.get("llmproxy.model_call"):
            yield {"kind": "call", "call": number, "depth": depth, "text": span.name, "error": span.error}

    def _make_failure_or_keep_text(self, span: Span) -> Iterator[Step]:
        asked, depth = self.of.get(span.parent_id or "", (None, 0))
        call = self.answers.get(span.id, asked)
        self.of[span.id] = call, depth
        if span.error:
            yield {"kind": "failed", "call": call, "depth": depth, "text": _shorten_text(span.error), "again": False}
        elif span.output:
            self.words[span.id] = _shorten_text(span.output)


def _make_tool_step(span: Span, call: int | None, depth: int) -> Step:
    given = span.tool_args if span.tool_args is not None else span.input
    return {
        "kind": "tool",
        "call": call,
        "depth": depth,
        "name": span.tool_name,
        "given": _shorten_text(given),
        "result": None if span.tool_result is None else _shorten_text(span.tool_result),
        "ms": span.duration_ms,
    }


def _shorten_text(value: object) -> str:
    value = "" if value is None else value
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= TEXT else f"{text[:TEXT]}… ({len(text):,} characters)"
