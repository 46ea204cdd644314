"""Differences between two runs, and whether they matter.

Calls are paired by tool name, in order; extra calls of one side are a difference of the sequence. A changed argument
changes the *contract* between agent and tool, unless both values are incidental (a UUID, a time, a call's id, a
temporary path). A changed result is information, latency never a change. Paths are as in Evalcraft.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import zip_longest
from typing import Any, Literal

from llmproxy.core.traffic.canonical_json import equals_json, parse_json_or_text
from llmproxy.core.traffic.json_diff import clip_json
from llmproxy.trace.spans import Span, SpanKind, get_span_arguments_or_text
from llmproxy.trace.trace_file import Cassette

CONTRACT, INFO = "contract", "info"
MISSING: Any = object()
_DEPTH = 64
_SHOWN = 400

_INCIDENTAL: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("uuid", r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"),
        # With a time of day: a bare date is what somebody asked for.
        ("time", r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?"),
        ("temporary path", r"(?:/private)?/(?:tmp|var/folders|var/tmp)/\S+|[A-Za-z]:\\(?:\S+\\)?[Tt]e?mp\\\S+"),
        ("id", r"(?:call|toolu|tooluse|fc|chatcmpl|resp|msg|run|thread|req)[_-](?=\w*\d)[\w-]{8,}"),
    )
)


@dataclass(frozen=True)
class ToolFieldChange:
    tool: str
    call: int
    """Number of the call of this tool, from 1."""
    field: str
    """``arguments.order_id``, ``result.items[0].price``."""
    old: Any
    new: Any
    severity: str
    """``contract`` or ``info``."""
    looks: str | None = None
    """Kind of an incidental value: ``uuid``, ``time``, ``temporary path``, ``id``."""

    @property
    def label(self) -> str:
        if self.severity == CONTRACT:
            return "Tool contract changed"
        if self.field.startswith("result"):
            return "Tool result changed"
        return "Tool argument changed (run-time value)"

    def describe(self) -> str:
        return (
            f"{self.label}: {self.tool} (call {self.call})  {self.field}: {_format_value(self.old)} → "
            f"{_format_value(self.new)}"
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "tool": self.tool,
            "call": self.call,
            "field": self.field,
            "old": None if self.old is MISSING else self.old,
            "new": None if self.new is MISSING else self.new,
            "old_missing": self.old is MISSING,
            "new_missing": self.new is MISSING,
            "severity": self.severity,
        }


def _format_value(value: object) -> str:
    return "(missing)" if value is MISSING else clip_json(value, _SHOWN)


def pair_calls_by_number(old: Iterable[Span], new: Iterable[Span]) -> Iterator[tuple[str, int, Span, Span]]:
    """Yield tool, number of the call from 1, and the two spans, for every call that both sides have."""
    later: dict[str, list[Span]] = defaultdict(list)
    for span in new:
        later[span.tool_name or ""].append(span)
    seen = Counter[str]()
    for span in old:
        name = span.tool_name or ""
        seen[name] += 1
        if seen[name] <= len(later[name]):
            yield name, seen[name], span, later[name][seen[name] - 1]


def find_tool_call_changes(
    old: Iterable[Span], new: Iterable[Span], *, ignore: Iterable[str] = (), results: bool = True
) -> list[ToolFieldChange]:
    """Return the differences of paired calls; `ignore` are globs on ``<tool>.<field>`` or ``<field>``."""
    globs = tuple(ignore)
    found: list[ToolFieldChange] = []
    for tool, n, before, after in pair_calls_by_number(old, new):
        places = list(
            _find_json_differences(
                "arguments", get_span_arguments_or_text(before), get_span_arguments_or_text(after), 0
            )
        )
        if results:
            places += _find_json_differences(
                "result", _read_result(before.tool_result), _read_result(after.tool_result), 0
            )
        for path, left, right in places:
            if any(fnmatchcase(path, glob) or fnmatchcase(f"{tool}.{path}", glob) for glob in globs):
                continue
            looks = classify_incidental(left, right)
            harmless = looks is not None or path.startswith("result")
            found.append(ToolFieldChange(tool, n, path, left, right, INFO if harmless else CONTRACT, looks))
    return found


def _read_result(value: Any) -> Any:
    return parse_json_or_text(value) if isinstance(value, str) and value.lstrip()[:1] in ("{", "[") else value


def classify_incidental(old: object, new: object) -> str | None:
    if isinstance(old, str) and isinstance(new, str):
        return next((name for name, pattern in _INCIDENTAL if pattern.fullmatch(old) and pattern.fullmatch(new)), None)
    return None


def _find_json_differences(path: str, old: Any, new: Any, depth: int) -> Iterator[tuple[str, Any, Any]]:
    if depth < _DEPTH and isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(old.keys() | new.keys(), key=str):
            yield from _find_json_differences(
                f"{path}.{name}", old.get(name, MISSING), new.get(name, MISSING), depth + 1
            )
    elif depth < _DEPTH and isinstance(old, list) and isinstance(new, list):
        for n, (left, right) in enumerate(zip_longest(old, new, fillvalue=MISSING)):
            yield from _find_json_differences(f"{path}[{n}]", left, right, depth + 1)
    elif not equals_json(old, new):
        yield path, old, new


FailOn = Literal["contract", "any"]
_FLAGS = ("tool_sequence_changed", "output_changed", "token_count_changed", "cost_changed", "span_count_changed")
_SIDES = ("tool_sequence", "output", "tokens", "cost")


@dataclass
class ReplayDiff:
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
    """The model's texts before its output; the original compares the output only."""
    new_texts: list[str] = field(default_factory=list)

    @staticmethod
    def compute(
        old: Cassette, new: Cassette, *, ignore_fields: Iterable[str] = (), compare_results: bool = True
    ) -> ReplayDiff:
        """Compare two runs; `ignore_fields` are globs on ``<tool>.<field>`` or ``<field>`` (``*.arguments.date``)."""
        sequences = old.get_tool_sequence(), new.get_tool_sequence()
        texts = list_intermediate_texts(old, new)
        return ReplayDiff(
            tool_sequence_changed=sequences[0] != sequences[1], output_changed=old.output_text != new.output_text,
            token_count_changed=old.total_tokens != new.total_tokens,
            cost_changed=old.total_cost_usd != new.total_cost_usd,
            span_count_changed=len(old.spans) != len(new.spans), old_tool_sequence=sequences[0],
            new_tool_sequence=sequences[1], old_output=old.output_text, new_output=new.output_text,
            old_tokens=old.total_tokens, new_tokens=new.total_tokens, old_cost=old.total_cost_usd,
            new_cost=new.total_cost_usd, old_span_count=len(old.spans), new_span_count=len(new.spans),
            tool_changes=find_tool_call_changes(
                old.get_tool_calls(), new.get_tool_calls(), ignore=ignore_fields, results=compare_results
            ),
            old_latency_ms=old.total_duration_ms, new_latency_ms=new.total_duration_ms, old_texts=texts[0],
            new_texts=texts[1],
        )  # fmt: skip

    @property
    def contract_changes(self) -> list[ToolFieldChange]:
        """Changed arguments that are not incidental."""
        return [change for change in self.tool_changes if change.severity == CONTRACT]

    @property
    def tool_args_changed(self) -> bool:
        """Whether any argument changed, incidental ones included."""
        return any(change.field.startswith("arguments") for change in self.tool_changes)

    @property
    def intermediate_texts_changed(self) -> bool:
        return self.old_texts != self.new_texts

    @property
    def has_changes(self) -> bool:
        """Whether anything but latency changed."""
        return bool(self.tool_changes) or self.intermediate_texts_changed or any(getattr(self, flag) for flag in _FLAGS)

    def fails(self, on: FailOn) -> bool:
        """Return whether this is a failure: of the ``contract`` (tools, arguments), or for ``any`` change."""
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
        if self.intermediate_texts_changed:
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


def list_intermediate_texts(old: Cassette, new: Cassette) -> tuple[list[str], list[str]]:
    """Return the model's texts in either run, in order, without the last one if it is a run's output."""
    before, after = _list_model_texts(old), _list_model_texts(new)
    if before == after:
        return before, after
    shorter = (said[:-1] if said[-1:] == [run.output_text] else said for said, run in ((before, old), (after, new)))
    return next(shorter), next(shorter)


def _list_model_texts(cassette: Cassette) -> list[str]:
    for kind in (SpanKind.LLM_RESPONSE, SpanKind.AGENT_OUTPUT):
        said = [span.output for span in cassette.spans if span.kind is kind]
        if texts := [text for text in said if isinstance(text, str) and text]:
            return texts
    return []
