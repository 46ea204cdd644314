"""The findings of a sweep as a table: equal ones of neighbouring calls in one row, what breaks the agent marked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from llmproxy.client.sweep.findings import SweepFinding, SweepOutcome


def lines_of(findings: Sequence[SweepFinding]) -> list[str]:
    """Return the table: fault, calls, what the agent did."""
    rows = [("fault", "call", "", "what the agent did"), *_rows(findings)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return ["  ".join((*(t.ljust(w) for t, w in zip(row, widths, strict=False)), row[3])).rstrip() for row in rows]


def _rows(findings: Sequence[SweepFinding]) -> Iterator[tuple[str, str, str, str]]:
    for kind, some in groupby(findings, lambda each: each.trial.kind.name):
        for said, alike in groupby(some, _group_key):
            found = list(alike)
            yield kind, _numbers([each.trial.number for each in found]), found[0].mark, _together(said, found)


def _group_key(finding: SweepFinding) -> tuple[str, str]:
    """Return what findings in one row have in common: of what is fine the number of retries, of everything else all."""
    detail = finding.detail.partition(",")[0] if finding.outcome is SweepOutcome.RECOVERED else finding.detail
    return finding.outcome.value, detail


def _together(said: tuple[str, str], found: Sequence[SweepFinding]) -> str:
    outcome, detail = said
    seconds = [each.detail.rpartition(", ")[2] for each in found] if outcome == SweepOutcome.RECOVERED else []
    most = max(seconds, key=lambda text: float(text.strip("+ s")), default="")
    return f"{outcome}: {detail}" + (f", {most}" if most else "")


def _numbers(numbers: Sequence[int]) -> str:
    """Write ``1-3,5``."""
    runs: list[list[int]] = []
    for each in numbers:
        if runs and each == runs[-1][-1] + 1:
            runs[-1].append(each)
        else:
            runs.append([each])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def summary_of(findings: Sequence[SweepFinding], typed: str) -> list[str]:
    """Return what the sweep comes to; `typed` is the command behind ``--faults X``."""
    counts = Counter(each.outcome for each in findings)
    weak = [each for each in findings if each.weak]
    parts = [f"{counts[outcome]} {outcome.value}" for outcome in SweepOutcome if counts[outcome]]
    lines = [f"{len(findings)} faults, one at a time: {', '.join(parts) or 'none'}"]
    if not findings:
        return lines
    if not weak:
        unsure = list(dict.fromkeys(each.trial.again for each in findings if each.mark == "?"))
        if not unsure:
            return [*lines, "None of them breaks the agent."]
        lines.append(f"None of them surely breaks the agent; of {', '.join(unsure)} this recording cannot say.")
        return [*lines, f"Again, alone: {typed.replace('FAULT', unsure[0])}"]
    kinds = list(dict.fromkeys(each.trial.kind.name for each in weak))
    lines.append(f"{len(weak)} of them break{'s' if len(weak) == 1 else ''} the agent: {', '.join(kinds)}")
    first = weak[0].trial
    return [*lines, f"A sound agent {first.kind.sound}.", f"Again, alone: {typed.replace('FAULT', first.again)}"]


def as_json(findings: Sequence[SweepFinding]) -> list[dict[str, Any]]:
    """Return plain values."""
    return [
        {
            "kind": each.trial.kind.name,
            "call": each.trial.number,
            "outcome": each.outcome.value,
            "detail": each.detail,
            "weak": each.weak,
        }
        for each in findings
    ]
