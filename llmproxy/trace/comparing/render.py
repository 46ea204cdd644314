"""Rendering of a diff: side by side for a terminal, JSON, Markdown for a pull request. Nothing is printed here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from difflib import SequenceMatcher
from itertools import groupby
from typing import Any, Literal

from llmproxy.amount_formatting import dollars, duration
from llmproxy.core.traffic.json_diff import clip, show_json
from llmproxy.errors import printable
from llmproxy.trace.comparing.diff import MISSING, ReplayDiff, ToolFieldChange

Form = Literal["text", "json", "markdown"]
_TICKS = re.compile("`+")
_RED, _GREEN, _YELLOW, _DIM, _OFF = "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[2m", "\x1b[0m"


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
        yield "latency", duration(diff.old_latency_ms), duration(diff.new_latency_ms), False


def align_side_by_side(old: list[str], new: list[str]) -> Iterator[tuple[str, str, bool]]:
    """Yield lines side by side: left, right, whether they are equal; an unpaired one has an empty side."""
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        for n in range(max(i2 - i1, j2 - j1)):
            left = old[i1 + n] if i1 + n < i2 else ""
            right = new[j1 + n] if j1 + n < j2 else ""
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
    return "(missing)" if value is MISSING else show_json(value, 1000)


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
