"""Fault sweeps: the same run repeated, each time with one injected fault at one call of its recording.

Pure: `plan_fault_trials` picks faults for the calls of an undisturbed run; `judge_fault_trial` compares output, end and
calls of a disturbed one (run by `cli.parts.fault_sweep` or a suite) with undisturbed ones.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from statistics import median
from typing import Any, NamedTuple

from llmproxy.amount_formatting import align_rows, format_count, format_seconds
from llmproxy.calls_and_totals import Call
from llmproxy.core.faults.kinds import KINDS
from llmproxy.core.faults.parsing import BadFaults
from llmproxy.core.faults.rules import (
    CallSeenByFaultRules as Asked,
    FaultKind,
    FaultRule,
    build_fault_candidate_call,
    can_fault_occur,
    matches_rule_filters,
)
from llmproxy.core.keys.mcp import is_mcp_tool_call
from llmproxy.core.providers.provider_table import MCP_PREFIX
from llmproxy.did_you_mean import did_you_mean
from llmproxy.protocol import AGENT, Channel, Decision
from llmproxy.trace.reading.recording_spans import parse_recording_json_of_call


class PlannedFaultTrial(NamedTuple):
    kind: FaultKind
    number: int
    """Number of the agent's call among those that the fault kind applies to, from 1, in undisturbed order."""
    key: str
    occurrence: int
    rule: Mapping[str, Any]

    @property
    def label(self) -> str:
        return f"{self.kind.name}@{self.number}"


def parse_fault_sweep_kinds(asked: str) -> list[FaultKind]:
    """Return the fault kinds of a sweep. Raises BadFaults for an unknown kind, or one that needs several calls."""
    names = [name.strip() for name in asked.partition(":")[2].split(",") if name.strip()]
    for name in names:
        if name not in KINDS:
            raise BadFaults(
                f"--faults {asked[:80]}: there is no kind {name[:60]!r}{did_you_mean(name, KINDS)}",
                hint="`llmproxy faults` lists the kinds.",
            )
        if KINDS[name].shared or "http" not in KINDS[name].transports:
            raise BadFaults(f"--faults {asked[:80]}: {name} meets a connection, not one call: give it alone.")
    return [KINDS[name] for name in names] or [kind for kind in KINDS.values() if kind.sweep is not None]


def plan_fault_trials(calls: Sequence[Call], kinds: Sequence[FaultKind]) -> list[PlannedFaultTrial]:
    replayed = [each for each in calls if each.party == AGENT and each.decision == Decision.REPLAY and each.key]
    made = [(each, parse_recording_json_of_call(each)) for each in replayed]
    found = [(each, build_fault_candidate_call(recording)) for each, recording in made if recording is not None]
    trials = []
    for kind in kinds:
        sweep = dict(kind.sweep or {})
        for number, each, call in _number_eligible_calls(kind, found):
            if kind.do(call, kind.defaults | sweep) is not None:
                rule = {"kind": kind.name, **sweep, "recording": each.interaction, "call": 1}
                trials.append(PlannedFaultTrial(kind, number, each.key or "", each.occurrence or 1, rule))
    return trials


def _number_eligible_calls(kind: FaultKind, calls: Sequence[tuple[Call, Asked]]) -> Iterator[tuple[int, Call, Asked]]:
    """Yield the calls to which the kind applies, each key and occurrence once, with the number as in ``KIND@N``."""
    rule, seen, number = FaultRule(kind), set[tuple[str | None, int | None]](), 0
    for each, call in calls:
        if can_fault_occur(rule, call) and matches_rule_filters(rule, call):
            number += 1
            if (each.key, each.occurrence) not in seen:
                seen.add((each.key, each.occurrence))
                yield number, each, call


class FaultTrialOutcome(StrEnum):
    RECOVERED = "recovered"
    WENT_ON = "went on"
    """It sent a request that was not recorded, so the recording cannot show the rest."""
    GAVE_UP = "gave up"
    QUIET = "wrong but quiet"
    """It ended without an error, but with another result."""
    HUNG = "hung"
    UNMET = "not met"
    """The call did not occur: the agent varies from run to run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSweepRunOutcome:
    calls: Sequence[Call]
    seconds: float
    said: str = ""
    failed: str = ""
    """Message with which it failed; empty if it succeeded."""
    crashed: bool = False
    """Whether the message is an uncaught error."""
    wrong: str = ""
    """Failures of a test of it although it ended well."""
    hung: bool = False


class FaultTrialFinding(NamedTuple):
    trial: PlannedFaultTrial
    outcome: FaultTrialOutcome
    detail: str
    weak: bool
    """Whether the agent breaks; False for reactions that a sound agent shows too."""
    extra_seconds: float | None = None

    @property
    def severity_mark(self) -> str:
        """``!`` if the agent breaks, ``?`` if the recording cannot show it, else a space."""
        unknown = self.outcome in (FaultTrialOutcome.WENT_ON, FaultTrialOutcome.UNMET)
        return "!" if self.weak else "?" if unknown else " "

    @property
    def full_detail(self) -> str:
        return self.detail if self.extra_seconds is None else f"{self.detail}, +{self.extra_seconds:.1f} s"


LONGEST = 120
"""Maximum characters of a message."""
_NUMBERS = re.compile(r"[0-9]+")


def give_bound_hits_recorded_keys(calls: Sequence[Call], bound: set[int | None]) -> list[Call]:
    """Assign bound hits their recording's key, since their own differs in each run. `bound` remembers which."""
    bound |= {call.interaction for call in calls if call.bound}
    named = {call.key: f"#{call.interaction}" for call in calls if call.interaction in bound}
    return [call._replace(key=named.get(call.key, call.key)) for call in calls]


def judge_fault_trial(
    trial: PlannedFaultTrial, went: FaultSweepRunOutcome, baseline: Sequence[FaultSweepRunOutcome]
) -> FaultTrialFinding:
    """Compare with `baseline`, one or more undisturbed runs; differences among those are ignored."""
    mine = [call for call in went.calls if call.party == AGENT]
    before = [call for call in baseline[0].calls if call.party == AGENT]
    if not [call for call in mine if call.fault]:
        return FaultTrialFinding(trial, FaultTrialOutcome.UNMET, "the call did not come", weak=False)
    missed = next((call for call in mine if call.miss), None)
    if went.hung:
        late = f"had not ended after {format_seconds(went.seconds)}"
        return FaultTrialFinding(trial, FaultTrialOutcome.HUNG, late, weak=True)
    if missed is not None:
        where = f"to a request that is not recorded, at {_number_missed_call(mine, missed)}"
        return FaultTrialFinding(trial, FaultTrialOutcome.WENT_ON, where, weak=False)
    if went.failed:
        weak = trial.kind.again or went.crashed
        return FaultTrialFinding(trial, FaultTrialOutcome.GAVE_UP, shorten(went.failed), weak=weak)
    wrong = (
        went.wrong
        or _describe_calls_agent_omitted(trial, mine, before)
        or _describe_output_difference(went.said, [each.said for each in baseline])
    )
    if wrong:
        return FaultTrialFinding(trial, FaultTrialOutcome.QUIET, wrong, weak=True)
    asked, usual = (sum(call.key == trial.key for call in calls) for calls in (mine, before))
    times = format_count(asked - usual, "retry", "retries") if asked > usual else "not disturbed"
    extra_seconds = max(0.0, went.seconds - median(each.seconds for each in baseline))
    return FaultTrialFinding(trial, FaultTrialOutcome.RECOVERED, times, weak=False, extra_seconds=extra_seconds)


def _number_missed_call(mine: Sequence[Call], missed: Call) -> str:
    """Return the number of the agent's call that missed, without retries; tool calls are counted separately."""
    calls = [call for call in mine if call.channel is missed.channel]
    answered = [call.key for call in calls if call.seq < missed.seq and call.decision == Decision.REPLAY]
    taken = {call.key for call in calls if call.fault and call.seq < missed.seq}.difference(answered)
    number = len(answered) + len(taken) + 1
    tool = missed.operation.removeprefix(MCP_PREFIX)
    return f"{tool} ({number})" if missed.channel is Channel.MCP else f"call {number}"


def _describe_calls_agent_omitted(trial: PlannedFaultTrial, mine: Sequence[Call], before: Sequence[Call]) -> str:
    """Describe the calls of an undisturbed run that are missing; the faulty one itself need not be repeated."""
    served = {(call.key, call.occurrence) for call in mine if call.decision == Decision.REPLAY}
    served.add((trial.key, trial.occurrence))
    models = [call for call in before if call.channel is not Channel.MCP]
    lacking = [str(n) for n, call in enumerate(models, 1) if (call.key, call.occurrence) not in served]
    gone = [call for call in before if is_mcp_tool_call(call.operation) and (call.key, call.occurrence) not in served]
    tools = [call.operation.removeprefix(MCP_PREFIX) for call in gone]
    said = [f"call{'s' if len(lacking) > 1 else ''} {', '.join(lacking)}"] if lacking else []
    return f"ended well, without {' and '.join([*said, *tools])}" if said or tools else ""


def _describe_output_difference(said: str, usual: Sequence[str]) -> str:
    """Describe where an output differs from all undisturbed runs; numbers count only if those agree on them."""
    if said in usual:
        return ""
    lines, first = _normalize_output_lines(said, usual), _normalize_output_lines(usual[0], usual)
    steady = [line for line in first if all(line in _normalize_output_lines(each, usual) for each in usual)]
    for line in steady:
        if line not in lines:
            instead = next((each for each in lines if each not in first), "nothing")
            return f"says {_quote_text(instead)}, not {_quote_text(line)}"
    new = next((each for each in lines if each not in first), "")
    return f"says {_quote_text(new)} besides" if new and len(steady) == len(first) else ""


def _normalize_output_lines(text: str, usual: Sequence[str]) -> list[str]:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines if len(set(usual)) == 1 else [_NUMBERS.sub("#", line) for line in lines]


def _quote_text(text: str) -> str:
    return text if text == "nothing" else repr(text if len(text) <= LONGEST // 2 else text[: LONGEST // 2] + "...")


def shorten(text: str) -> str:
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= LONGEST else line[: LONGEST - 3] + "..."


_TRACE = re.compile(
    r"Traceback \(most recent call last\)|^\s+at .+\(.+:\d+|Unhandled|panicked at|Exception in thread", re.MULTILINE
)
"""Beginning of reports of uncaught errors in Python, JavaScript, Rust and Java."""
_GROUP = re.compile(r"^ *[|+](?: |-+.*$)", re.MULTILINE)
"""Line prefix in a Python exception group."""


def find_failure_in_output(stdout: str, stderr: str, code: int) -> tuple[str, bool]:
    crashed = _TRACE.search(stderr) is not None
    lines = [line for line in _GROUP.sub("", stderr.strip() or stdout.strip()).splitlines() if line.strip()]
    plain = [line for line in lines if not line[0].isspace() and not line.startswith(("Node.js v", "}", "{"))]
    named = [line for line in plain if re.match(r"[\w.$ ]*(Error|Exception|panicked)\b", line)]
    return (named if crashed and named else plain or lines or [f"exit code {code}"])[-1], crashed


def format_sweep_findings(findings: Sequence[FaultTrialFinding]) -> list[str]:
    rows = [("fault", "call", "", "what the agent did")]
    for kind, some in groupby(findings, lambda each: each.trial.kind.name):
        for _, alike in groupby(some, lambda each: (each.outcome, each.detail)):
            found = list(alike)
            slowest = max(found, key=lambda each: each.extra_seconds or 0.0)
            text = f"{slowest.outcome}: {slowest.full_detail}"
            rows.append((kind, _format_ranges([each.trial.number for each in found]), found[0].severity_mark, text))
    return align_rows(rows)


def _format_ranges(numbers: Sequence[int]) -> str:
    """Write ``1-3,5``."""
    runs: list[list[int]] = []
    for each in numbers:
        if runs and each == runs[-1][-1] + 1:
            runs[-1].append(each)
        else:
            runs.append([each])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def format_sweep_summary_lines(findings: Sequence[FaultTrialFinding], typed: str) -> list[str]:
    counts = Counter(each.outcome for each in findings)
    weak = [each for each in findings if each.weak]
    parts = [f"{counts[outcome]} {outcome.value}" for outcome in FaultTrialOutcome if counts[outcome]]
    lines = [f"{len(findings)} faults, one at a time: {', '.join(parts) or 'none'}"]
    if not findings:
        return lines
    if not weak:
        unsure = list(dict.fromkeys(each.trial.label for each in findings if each.severity_mark == "?"))
        if not unsure:
            return [*lines, "None of them breaks the agent."]
        lines.append(f"None of them surely breaks the agent. Unknown, for want of recordings: {', '.join(unsure)}")
        return [*lines, f"Run one alone: {typed.replace('FAULT', unsure[0])}"]
    kinds = list(dict.fromkeys(each.trial.kind.name for each in weak))
    lines.append(f"{len(weak)} of them break{'s' if len(weak) == 1 else ''} the agent: {', '.join(kinds)}")
    first = weak[0].trial
    return [*lines, f"A robust agent {first.kind.sound}.", f"Run one alone: {typed.replace('FAULT', first.label)}"]


def sweep_findings_to_json(findings: Sequence[FaultTrialFinding]) -> list[dict[str, Any]]:
    found = []
    for each in findings:
        about = {"kind": each.trial.kind.name, "call": each.trial.number, "outcome": each.outcome.value}
        found.append({**about, "detail": each.full_detail, "weak": each.weak})
    return found
