"""What is said where a recording is missing: of a whole run, of many at once, of one request. Always with the command that makes it.

A proxy that misses a request tells how to start a *proxy* that records it; who runs ``llmproxy test`` has a shorter way, which is told
first and instead.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from llmproxy.errors import MissError

_SHOWN = 10
"""Scenarios that are named."""
_DIFFERENCE = re.compile(r"^  \$\S*: (.*) -> (.*?)(?:  \[looks like [^\]]*\])?$", re.MULTILINE)
_NUMBER = re.compile(r"\d+")
_START = re.compile(r"llmproxy start (?:\S+ )*?--mode[ =](\w+)[^\n]*")


class NothingRecorded(MissError):
    """Nothing was ever recorded for this run, so there is nothing to replay."""

    code = "llmproxy_nothing_recorded"


def nothing_recorded(case: str, rerun: str, sample: int, runs: int, *, flag: str = "--mode") -> NothingRecorded:
    """Return the error of one run; `rerun` is the command that runs its case alone, `flag` its option for the mode."""
    number = f", run {sample}" if runs > 1 or sample > 1 else ""
    command = with_runs(f"{rerun} {flag} record", runs if runs > 1 and flag == "--mode" else None)
    return NothingRecorded(f"nothing is recorded for {case}{number}; record it: {command}")


def with_runs(command: str, runs: int | None) -> str:
    """Return the command with how often each scenario runs, where that was asked for."""
    return command if runs is None else f"{command} --runs {runs}"


def advice(cases: Sequence[str], selected: int, command: str, *, partly: bool) -> str:
    """Say once, for all cases without a recording, what records them.

    `selected` is how many cases were to run; `partly` whether those are only a part of the suites, which the command does not say.
    """
    names = ", ".join(cases[:_SHOWN]) + (f" and {len(cases) - _SHOWN} more" if len(cases) > _SHOWN else "")
    only = " ".join(f"--id {shlex.quote(case)}" for case in cases)
    if not partly:
        how = f"{command} --mode {'record' if len(cases) == selected else 'auto'}"
    elif len(cases) <= _SHOWN:
        how = f"{command} {only} --mode record"
    else:
        how = f"{command} --last-failed --mode auto"
    those = "it" if len(cases) == 1 else "them"
    many = "" if len(cases) == 1 else f"{len(cases)} of {selected} scenarios: "
    return f"nothing is recorded for {many}{names}; record {those}: {how}"


def explain_miss(
    text: str, rerun: str, *, flag: str = "--mode", counted: Sequence[str] = (), who: str = "the agent"
) -> str:
    """Return the proxy's text about a miss, led by the command that adds the request to what is recorded.

    `counted` are entities whose keys the store counts up, where the request differs from the nearest recording in numbers only.
    """
    lines = [f"a request of {who} was never recorded; to add it: {rerun} {flag} auto"]
    if counted:
        lines.append(
            f"it differs in numbers only, and the store counts the keys of {', '.join(counted)} up: if they are ids, its counter has moved"
            " since the recording. `store: {reset: truncate}` (or `copy`, `hook`, `http`) brings it back before each run, and"
            " `ids: deterministic` gives the rows of `setup` ids of their own; then record once more"
        )
    return "\n".join([*lines, _START.sub(lambda found: f"{rerun} {flag} {found[1]}", text)])


def numbers_only(text: str) -> bool:
    """Tell whether a miss differs from the nearest recording in nothing but numbers, by the lines of the proxy's text that show it."""
    found = _DIFFERENCE.findall(text)
    return bool(found) and all(_NUMBER.sub("#", old) == _NUMBER.sub("#", new) for old, new in found)
