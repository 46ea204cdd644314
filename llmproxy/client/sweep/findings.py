"""What an agent made of one fault, read off what it said, how it ended and which calls it made: a pure comparison with undisturbed runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from llmproxy.amounts import format_count, seconds
from llmproxy.core.keys.mcp import is_call
from llmproxy.core.providers.table import MCP_PREFIX
from llmproxy.protocol import AGENT, Decision

if TYPE_CHECKING:
    from llmproxy.client.control.values import Call
    from llmproxy.client.sweep.trials import Trial


class SweepOutcome(StrEnum):
    """What the agent did."""

    RECOVERED = "recovered"
    """It ended as it does undisturbed."""
    WENT_ON = "went on"
    """It asked something that was not recorded: what would have come of it, this recording cannot say."""
    GAVE_UP = "gave up"
    QUIET = "wrong but quiet"
    """It ended as if all were well, and is not where it ends undisturbed."""
    HUNG = "hung"
    UNMET = "not met"
    """The call did not come: the agent asks otherwise from run to run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Went:
    """How a run went."""

    calls: Sequence[Call]
    seconds: float
    said: str = ""
    """What it printed, or answered."""
    failed: str = ""
    """With which message it gave up; empty if it ended well."""
    crashed: bool = False
    """The message is an error that nobody caught."""
    wrong: str = ""
    """What a test of it found wrong although it ended well."""
    hung: bool = False
    """It was ended because it did not end."""


class SweepFinding(NamedTuple):
    trial: Trial
    outcome: SweepOutcome
    detail: str
    weak: bool
    """The agent breaks; False for what a sound one does too."""

    @property
    def mark(self) -> str:
        """``!`` for what breaks the agent, ``?`` for what this recording cannot say, else a space."""
        return "!" if self.weak else "?" if self.outcome in (SweepOutcome.WENT_ON, SweepOutcome.UNMET) else " "


LONGEST = 120
"""Characters of a message."""
_NUMBERS = re.compile(r"[0-9]+")


def find(trial: Trial, went: Went, baseline: Sequence[Went]) -> SweepFinding:
    """Say what the agent did; `baseline` are undisturbed runs, at least one: where they differ from each other counts for nothing."""
    mine = [call for call in went.calls if call.party == AGENT]
    before = [call for call in baseline[0].calls if call.party == AGENT]
    struck = [call for call in mine if call.fault]
    if not struck:
        return SweepFinding(trial, SweepOutcome.UNMET, "the call did not come", weak=False)
    missed = next((call for call in mine if call.miss), None)
    if went.hung:
        return SweepFinding(trial, SweepOutcome.HUNG, f"had not ended after {seconds(went.seconds)}", weak=True)
    if missed is not None:
        return SweepFinding(
            trial, SweepOutcome.WENT_ON, f"to something that is not recorded, at {_place(mine, missed)}", weak=False
        )
    if went.failed:
        return SweepFinding(trial, SweepOutcome.GAVE_UP, short(went.failed), weak=trial.kind.again or went.crashed)
    wrong = went.wrong or _left_out(trial, mine, before) or _differs(went.said, [each.said for each in baseline])
    if wrong:
        return SweepFinding(trial, SweepOutcome.QUIET, wrong, weak=True)
    asked, usual = (sum(call.key == trial.key for call in calls) for calls in (mine, before))
    retries = max(0, asked - usual)
    usual_seconds = median(each.seconds for each in baseline)
    return SweepFinding(
        trial, SweepOutcome.RECOVERED, _describe_recovery(retries, went.seconds - usual_seconds), weak=False
    )


def _describe_recovery(retries: int, seconds: float) -> str:
    times = format_count(retries, "retry", "retries") if retries else "not disturbed"
    return f"{times}, +{max(0.0, seconds):.1f} s"


def _place(mine: Sequence[Call], missed: Call) -> str:
    """Return which call of the agent a miss is, retries left out; those of tools have numbers of their own."""
    calls = [call for call in mine if call.is_of_tool == missed.is_of_tool]
    answered: dict[str | None, int] = {}
    for call in calls:
        if call.seq < missed.seq and call.decision == Decision.REPLAY:
            answered[call.key] = answered.get(call.key, 0) + 1
    taken = {call.key for call in calls if call.fault and call.seq < missed.seq} - set(answered)
    return _name_call(missed, sum(answered.values()) + len(taken) + 1)


def _name_call(call: Call, number: int) -> str:
    return f"call {number}" if not call.is_of_tool else f"{call.operation.removeprefix(MCP_PREFIX)} ({number})"


def _left_out(trial: Trial, mine: Sequence[Call], before: Sequence[Call]) -> str:
    """Say which calls of an undisturbed run were never made; the struck one itself need not come again."""
    served = {(call.key, call.occurrence) for call in mine if call.decision == Decision.REPLAY}
    served.add((trial.key, trial.occurrence))
    models = [call for call in before if not call.is_of_tool]
    lacking = [str(n) for n, call in enumerate(models, 1) if (call.key, call.occurrence) not in served]
    tools = [
        call.operation.removeprefix(MCP_PREFIX)
        for call in before
        if is_call(call.operation) and (call.key, call.occurrence) not in served
    ]
    said = [f"call{'s' if len(lacking) > 1 else ''} {', '.join(lacking)}"] if lacking else []
    return f"ended well, without {' and '.join([*said, *tools])}" if said or tools else ""


def _differs(said: str, usual: Sequence[str]) -> str:
    """Say where an output differs from what undisturbed runs all say; numbers count only where those never differ."""
    if said in usual:
        return ""
    lines, first = _lines(said, usual), _lines(usual[0], usual)
    steady = [line for line in first if all(line in _lines(each, usual) for each in usual)]
    for line in steady:
        if line not in lines:
            instead = next((each for each in lines if each not in first), "nothing")
            return f"says {_quote_text(instead)}, not {_quote_text(line)}"
    new = next((each for each in lines if each not in first), "")
    return f"says {_quote_text(new)} besides" if new and len(steady) == len(first) else ""


def _lines(text: str, usual: Sequence[str]) -> list[str]:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines if len(set(usual)) == 1 else [_NUMBERS.sub("#", line) for line in lines]


def _quote_text(text: str) -> str:
    return text if text == "nothing" else repr(text if len(text) <= LONGEST // 2 else text[: LONGEST // 2] + "...")


def short(text: str) -> str:
    """Return a message on one line of moderate length."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= LONGEST else line[: LONGEST - 3] + "..."


_TRACE = re.compile(
    r"Traceback \(most recent call last\)|^\s+at .+\(.+:\d+|Unhandled|panicked at|Exception in thread", re.MULTILINE
)
"""How Python, JavaScript, Rust and Java say that nobody caught an error."""
_GROUP = re.compile(r"^ *[|+](?: |-+.*$)", re.MULTILINE)
"""What stands before each line of a group of Python's exceptions."""


def last_words(stdout: str, stderr: str, code: int) -> tuple[str, bool]:
    """Return with which message a command gave up, and whether that is an error that nobody caught."""
    crashed = _TRACE.search(stderr) is not None
    text = _GROUP.sub("", stderr.strip() or stdout.strip())
    lines = [line for line in text.splitlines() if line.strip()]
    plain = [line for line in lines if not line[0].isspace() and not line.startswith(("Node.js v", "}", "{"))]
    named = [line for line in plain if re.match(r"[\w.$ ]*(Error|Exception|panicked)\b", line)]
    said = (named if crashed and named else plain or lines or [f"exit code {code}"])[-1]
    return said, crashed
