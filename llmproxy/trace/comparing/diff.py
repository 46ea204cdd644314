"""What is different between two runs, and whether it matters.

    (old cassette, new cassette) -> ReplayDiff

Totals are compared as they stand in the cassettes, as the original does. Latency is told and never counts as a change:
no two recordings take the same time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from llmproxy.trace.comparing.pairing import CONTRACT, ToolFieldChange, changes
from llmproxy.trace.values.model import SpanKind

if TYPE_CHECKING:
    from llmproxy.trace.files.cassette import Cassette

FailOn = Literal["contract", "any"]
_FLAGS = (
    "tool_sequence_changed",
    "output_changed",
    "token_count_changed",
    "cost_changed",
    "span_count_changed",
)
_SIDES = ("tool_sequence", "output", "tokens", "cost")


@dataclass
class ReplayDiff:
    """Every difference that a comparison found."""

    tool_sequence_changed: bool = False
    output_changed: bool = False
    token_count_changed: bool = False
    cost_changed: bool = False
    span_count_changed: bool = False
    old_tool_sequence: list[str] = field(default_factory=list)
    new_tool_sequence: list[str] = field(default_factory=list)
    old_output: str = ""
    new_output: str = ""
    old_tokens: int = 0
    new_tokens: int = 0
    old_cost: float = 0.0
    new_cost: float = 0.0
    old_span_count: int = 0
    new_span_count: int = 0
    tool_changes: list[ToolFieldChange] = field(default_factory=list)
    old_latency_ms: float = 0.0
    new_latency_ms: float = 0.0
    old_texts: list[str] = field(default_factory=list)
    """What the model said on the way to its output; the original looks at the output alone."""
    new_texts: list[str] = field(default_factory=list)

    @staticmethod
    def compute(
        old: Cassette, new: Cassette, *, ignore_fields: Iterable[str] = (), compare_results: bool = True
    ) -> ReplayDiff:
        """Compare two runs; `ignore_fields` are globs on ``<tool>.<field>`` or ``<field>`` (``*.arguments.date``)."""
        sequences = old.get_tool_sequence(), new.get_tool_sequence()
        texts = texts_of(old, new)
        return ReplayDiff(
            tool_sequence_changed=sequences[0] != sequences[1],
            output_changed=old.output_text != new.output_text,
            token_count_changed=old.total_tokens != new.total_tokens,
            cost_changed=old.total_cost_usd != new.total_cost_usd,
            span_count_changed=len(old.spans) != len(new.spans),
            old_tool_sequence=sequences[0],
            new_tool_sequence=sequences[1],
            old_output=old.output_text,
            new_output=new.output_text,
            old_tokens=old.total_tokens,
            new_tokens=new.total_tokens,
            old_cost=old.total_cost_usd,
            new_cost=new.total_cost_usd,
            old_span_count=len(old.spans),
            new_span_count=len(new.spans),
            tool_changes=changes(
                old.get_tool_calls(), new.get_tool_calls(), ignore=ignore_fields, results=compare_results
            ),
            old_latency_ms=old.total_duration_ms,
            new_latency_ms=new.total_duration_ms,
            old_texts=texts[0],
            new_texts=texts[1],
        )

    @property
    def contract_changes(self) -> list[ToolFieldChange]:
        """The changed arguments that are not incidental."""
        return [change for change in self.tool_changes if change.severity == CONTRACT]

    @property
    def tool_args_changed(self) -> bool:
        """Whether any argument changed, an incidental one included."""
        return any(change.field.startswith("arguments") for change in self.tool_changes)

    @property
    def texts_changed(self) -> bool:
        """Whether the model said something else before its output."""
        return self.old_texts != self.new_texts

    @property
    def has_changes(self) -> bool:
        """Whether anything changed; latency aside."""
        return bool(self.tool_changes) or self.texts_changed or any(getattr(self, flag) for flag in _FLAGS)

    def fails(self, on: FailOn) -> bool:
        """Tell whether this is a failure: of the ``contract`` (which tools, with which arguments), or for ``any`` change."""
        if on not in ("contract", "any"):
            raise ValueError(f"fails() takes 'contract' or 'any', not {on!r}")
        return self.has_changes if on == "any" else self.tool_sequence_changed or bool(self.contract_changes)

    def to_dict(self) -> dict[str, Any]:
        """Return the original's members: all but the counts of spans and the latency."""
        data: dict[str, Any] = {"has_changes": self.has_changes}
        data |= {flag: getattr(self, flag) for flag in _FLAGS}
        for side in _SIDES:
            data |= {f"{when}_{side}": getattr(self, f"{when}_{side}") for when in ("old", "new")}
        data["tool_args_changed"] = self.tool_args_changed
        data["tool_changes"] = [change.to_dict() for change in self.tool_changes]
        return data

    def summary(self) -> str:
        """Return a line for each change, or ``No changes detected.``."""
        lines = [change.describe() for change in self.tool_changes]
        if self.tool_sequence_changed:
            lines.append(f"Tool sequence: {self.old_tool_sequence} → {self.new_tool_sequence}")
        if self.texts_changed:
            lines.append("Intermediate texts changed")
        if self.output_changed:
            lines.append("Output text changed")
        if self.token_count_changed:
            lines.append(f"Tokens: {self.old_tokens} → {self.new_tokens}")
        if self.cost_changed:
            lines.append(f"Cost: ${self.old_cost:.4f} → ${self.new_cost:.4f}")
        if self.span_count_changed:
            lines.append(f"Spans: {self.old_span_count} → {self.new_span_count}")
        return "\n".join(lines) or "No changes detected."


def texts_of(old: Cassette, new: Cassette) -> tuple[list[str], list[str]]:
    """Return what the model said in either run, in order; the last words are left out where they are a run's output."""
    before, after = _find_texts(old), _find_texts(new)
    if before == after:
        return before, after
    shorter = (said[:-1] if said[-1:] == [run.output_text] else said for said, run in ((before, old), (after, new)))
    return next(shorter), next(shorter)


def _find_texts(cassette: Cassette) -> list[str]:
    for kind in (SpanKind.LLM_RESPONSE, SpanKind.AGENT_OUTPUT):
        said = [span.output for span in cassette.spans if span.kind is kind]
        if texts := [text for text in said if isinstance(text, str) and text]:
            return texts
    return []
