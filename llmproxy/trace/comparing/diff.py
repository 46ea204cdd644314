"""Differences between two runs, whether they matter, and their rendering. Nothing is printed here.

Calls are paired by tool name, in order; extra calls of one side are a difference of the sequence. A changed argument
changes the *contract* between agent and tool, unless both values are incidental (a UUID, a time, a call's id, a
temporary path). A changed result is information, latency never a change. Paths are as in Evalcraft.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from fnmatch import fnmatchcase
from itertools import groupby, zip_longest
from typing import Any, Literal

from llmproxy.amount_formatting import dollars, format_milliseconds
from llmproxy.core.traffic.canonical_json import is_equal_json, parse_json_or_text
from llmproxy.core.traffic.json_diff import clip, clip_json, format_clipped_json
from llmproxy.errors import printable
from llmproxy.trace.span_models import Span, SpanKind, get_span_arguments_or_text
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
FailOn = Literal["contract", "any"]
_FLAGS = ("tool_sequence_changed", "output_changed", "token_count_changed", "cost_changed", "span_count_changed")
_SIDES = ("tool_sequence", "output", "tokens", "cost")
Form = Literal["text", "json", "markdown"]
_TICKS = re.compile("`+")
_RED, _GREEN, _YELLOW, _DIM, _OFF = "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[2m", "\x1b[0m"


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


def pair_nth_calls_per_tool(old: Iterable[Span], new: Iterable[Span]) -> Iterator[tuple[str, int, Span, Span]]:
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
    for tool, n, before, after in pair_nth_calls_per_tool(old, new):
        arguments = get_span_arguments_or_text(before), get_span_arguments_or_text(after)
        places = [*_find_json_differences("arguments", *arguments)]
        if results:
            outcomes = _read_result(before.tool_result), _read_result(after.tool_result)
            places += _find_json_differences("result", *outcomes)
        for path, left, right in places:
            if any(fnmatchcase(path, glob) or fnmatchcase(f"{tool}.{path}", glob) for glob in globs):
                continue
            looks = classify_incidental_difference(left, right)
            harmless = looks is not None or path.startswith("result")
            found.append(ToolFieldChange(tool, n, path, left, right, INFO if harmless else CONTRACT, looks))
    return found


def _read_result(value: Any) -> Any:
    return parse_json_or_text(value) if isinstance(value, str) and value.lstrip()[:1] in ("{", "[") else value


def classify_incidental_difference(old: object, new: object) -> str | None:
    if isinstance(old, str) and isinstance(new, str):
        return next((name for name, pattern in _INCIDENTAL if pattern.fullmatch(old) and pattern.fullmatch(new)), None)
    return None


def _find_json_differences(path: str, old: Any, new: Any, depth: int = 0) -> Iterator[tuple[str, Any, Any]]:
    if depth < _DEPTH and isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(old.keys() | new.keys(), key=str):
            yield from _find_json_differences(
                f"{path}.{name}", old.get(name, MISSING), new.get(name, MISSING), depth + 1
            )
    elif depth < _DEPTH and isinstance(old, list) and isinstance(new, list):
        for n, (left, right) in enumerate(zip_longest(old, new, fillvalue=MISSING)):
            yield from _find_json_differences(f"{path}[{n}]", left, right, depth + 1)
    elif not is_equal_json(old, new):
        yield path, old, new


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
        told = (
            (self.tool_sequence_changed, f"Tool sequence: {self.old_tool_sequence} → {self.new_tool_sequence}"),
            (self.intermediate_texts_changed, "Intermediate texts changed"),
            (self.output_changed, "Output text changed"),
            (self.token_count_changed, f"Tokens: {self.old_tokens} → {self.new_tokens}"),
            (self.cost_changed, f"Cost: ${self.old_cost:.4f} → ${self.new_cost:.4f}"),
            (self.span_count_changed, f"Spans: {self.old_span_count} → {self.new_span_count}"),
        )
        lines = [change.describe() for change in self.tool_changes] + [text for changed, text in told if changed]
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


def render(diff: ReplayDiff, form: Form = "text", *, color: bool = False, width: int = 100) -> str:
    """Return a diff as ``text`` (side by side in `width` columns), ``json`` or ``markdown``; ends without a newline."""
    if form == "json":
        return json.dumps(diff_to_dict(diff), indent=2, ensure_ascii=False, default=str)
    if form == "markdown":
        return _render_markdown(diff)
    if form != "text":
        raise ValueError(f"a diff is rendered as text, json or markdown, not {form!r}")
    if not diff.has_changes:
        return "No changes detected."
    return "\n".join(_render_text(diff, color=color, width=max(width, 60)))


def diff_to_dict(diff: ReplayDiff) -> dict[str, Any]:
    """Return a whole diff as plain values; more than `ReplayDiff.to_dict`, whose members are the original's."""
    data = diff.to_dict()
    for change, plain in zip(diff.tool_changes, data["tool_changes"], strict=True):
        plain["looks"] = change.looks
    sides = (
        "intermediate_texts_changed", "old_texts", "new_texts", "old_span_count", "new_span_count", "old_latency_ms",
        "new_latency_ms",
    )  # fmt: skip
    return data | {name: getattr(diff, name) for name in sides} | {"contract_changed": diff.fails("contract")}


def _name_severity(change: ToolFieldChange) -> str:
    if change.looks:
        return f"incidental: {change.looks}"
    return "contract" if change.severity == "contract" else "result"


def _list_totals(diff: ReplayDiff) -> Iterator[tuple[str, str, str, bool]]:
    """Yield name, old, new and whether it counts as a change."""
    yield "tokens", str(diff.old_tokens), str(diff.new_tokens), diff.token_count_changed
    yield "cost", dollars(diff.old_cost), dollars(diff.new_cost), diff.cost_changed
    yield "spans", str(diff.old_span_count), str(diff.new_span_count), diff.span_count_changed
    if diff.old_latency_ms != diff.new_latency_ms:
        yield "latency", format_milliseconds(diff.old_latency_ms), format_milliseconds(diff.new_latency_ms), False


def align_side_by_side(old: list[str], new: list[str]) -> Iterator[tuple[str, str, bool]]:
    """Yield lines side by side: left, right, whether they are equal; an unpaired one has an empty side."""
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        for left, right in zip_longest(old[i1:i2], new[j1:j2], fillvalue=""):
            yield left, right, tag == "equal"


def _render_text(diff: ReplayDiff, *, color: bool, width: int) -> Iterator[str]:
    half = (width - 5) // 2

    def paint(text: str, code: str) -> str:
        return f"{code}{text}{_OFF}" if color and text.strip() else text

    def row(left: str, right: str, *, same: bool = False) -> str:
        left, right = clip(left, half), clip(right, half)
        mark = " " if same else "|"
        codes = (_DIM, _DIM) if same else (_RED, _GREEN)
        return f"  {paint(left.ljust(half), codes[0])} {mark} {paint(right, codes[1])}".rstrip()

    def section(title: str, old: list[str], new: list[str]) -> Iterator[str]:
        yield title
        yield from (row(left, right, same=same) for left, right, same in align_side_by_side(old, new))

    if diff.tool_sequence_changed:
        yield from section("Tool sequence", diff.old_tool_sequence, diff.new_tool_sequence)
    for (tool, call), changes in groupby(diff.tool_changes, key=lambda change: (change.tool, change.call)):
        yield f"{tool} (call {call})"
        for change in changes:
            colour = _YELLOW if change.severity == "contract" else _DIM
            yield f"  {change.field}  [{paint(_name_severity(change), colour)}]"
            yield row(_show_value(change.old), _show_value(change.new))
    if diff.intermediate_texts_changed:
        yield from section("Texts before the output", _split_lines(diff.old_texts), _split_lines(diff.new_texts))
    if diff.output_changed:
        yield from section("Output", diff.old_output.splitlines(), diff.new_output.splitlines())
    totals = [total for total in _list_totals(diff) if total[3] or total[0] == "latency"]
    if totals:
        yield "Totals"
        for name, old, new, counts in totals:
            yield f"  {name.ljust(8)} {paint(old, _RED if counts else _DIM)} → {paint(new, _GREEN if counts else _DIM)}"


def _split_lines(texts: list[str]) -> list[str]:
    return [line for text in texts for line in text.splitlines()]


def _show_value(value: object) -> str:
    return "(missing)" if value is MISSING else format_clipped_json(value, 1000)


def _choose_fence(text: str, least: int) -> str:
    return "`" * max(least, *(len(run) + 1 for run in _TICKS.findall(text)), least)


def _format_cell(text: str) -> str:
    """Return text as code in a table's cell: bars, line breaks and backticks cannot end it."""
    safe = clip(text, 200).replace("|", "\\|")
    fence = _choose_fence(safe, 1)
    between = " " if "`" in safe else ""
    return f"{fence}{between}{safe}{between}{fence}" if safe else ""


def _render_markdown(diff: ReplayDiff) -> str:
    if not diff.has_changes:
        return "**No changes detected.**"
    breaks = diff.fails("contract")
    lines = ["**The tool contract changed.**" if breaks else "**Changed; the tool contract is the same.**"]
    rows = []
    if diff.tool_sequence_changed:
        sequences = (" → ".join(names) or "(none)" for names in (diff.old_tool_sequence, diff.new_tool_sequence))
        rows.append(f"| tool sequence | {' | '.join(_format_cell(text) for text in sequences)} | contract |")
    for change in diff.tool_changes:
        what = _format_cell(f"{change.tool} (call {change.call}) {change.field}")
        old, new = (_format_cell(_show_value(value)) for value in (change.old, change.new))
        rows.append(f"| {what} | {old} | {new} | {_name_severity(change)} |")
    for name, old, new, counts in _list_totals(diff):
        if counts or name == "latency":
            rows.append(f"| {name} | {old} | {new} | {'' if counts else 'not counted'} |")
    if rows:
        lines += ["", "| what | old | new | |", "| --- | --- | --- | --- |", *rows]
    if diff.intermediate_texts_changed:
        both = _build_fenced_diff(_split_lines(diff.old_texts), _split_lines(diff.new_texts))
        lines += ["", "<details><summary>texts before the output</summary>", "", *both, "", "</details>"]
    if diff.output_changed:
        both = _build_fenced_diff(diff.old_output.splitlines(), diff.new_output.splitlines())
        lines += ["", "<details><summary>output</summary>", "", *both, "", "</details>"]
    return "\n".join(lines)


def _build_fenced_diff(old: list[str], new: list[str]) -> list[str]:
    lines = []
    for left, right, same in align_side_by_side(old, new):
        if same:
            lines.append(f"  {printable(left)}")
        else:
            lines += [f"- {printable(left)}"] * bool(left) + [f"+ {printable(right)}"] * bool(right)
    fence = _choose_fence("\n".join(lines), 3)
    return [f"{fence}diff", *lines, fence]
