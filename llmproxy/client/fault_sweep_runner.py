"""Fault sweep of a command: runs it undisturbed first, then with one fault each, several at a time.

Each run is a session of its own at one proxy, and replays the same cassette. The command's output is captured, not
shown; a run that exceeds its time is killed with all its processes. Two undisturbed runs come first, the second in
parallel with others like the trials: if they differ, the trials run one at a time.
"""

from __future__ import annotations

import itertools
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from llmproxy.amounts import format_count, format_seconds
from llmproxy.client.control import ControlError
from llmproxy.client.fault_sweep_judging import (
    SweepFinding,
    SweepRun,
    Trial,
    find_failure_message,
    give_bound_hits_recorded_keys,
    judge_trial,
    plan_trials,
)
from llmproxy.client.proxy_process import ProxyHandle, ensure_proxy, kill_group, to_exit_code
from llmproxy.core.faults import FaultKind
from llmproxy.errors import Exit, MachineError

MOST_KEPT = 1 << 20
"""Maximum compared bytes of a run's output."""
PATIENCE, TIMES = 20.0, 5.0
"""Timeout of a run: this many seconds, or this many times its undisturbed duration, whichever is more."""


class SweepImpossible(MachineError):
    """The undisturbed run cannot serve as a baseline."""

    code = "llmproxy_sweep"


class SweepSession(NamedTuple):
    """A session at a proxy, and the command to run in it."""

    name: str
    command: Sequence[str]
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    options: Sequence[str]
    """Options of ``llmproxy start``."""
    env: Mapping[str, str]
    open: Callable[[ProxyHandle, int, Mapping[str, Any]], SweepSession]
    """Opens the nth session at the proxy, with faults."""
    kinds: Sequence[FaultKind]
    jobs: int = 1
    patience: float | None = None
    """Timeout in seconds; None or 0: see PATIENCE."""
    stdin: bytes | None = None
    tell: Callable[[str], None] = lambda _: None
    started_by: str = ""
    record: str = ""
    """The command that records missing calls."""


class Sweep:
    def __init__(self, swept: SweepOptions) -> None:
        self._swept = swept
        self._opened = itertools.count(1)
        self._patience = swept.patience or 10 * PATIENCE
        self._children: set[subprocess.Popen[bytes]] = set()
        self._guard, self._ended = threading.Lock(), False
        self._bound: set[int | None] = set()
        """Recordings that were bound in some run."""
        self.findings: list[SweepFinding] = []
        self.baseline: list[SweepRun] = []

    def run(self) -> list[SweepFinding]:
        """Run the sweep. Raises SweepImpossible, MachineError; after KeyboardInterrupt `findings` has those so far."""
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="llmproxy-sweep-")))
            options, env, log = self._swept.options, self._swept.env, folder / "proxy.log"
            self._proxy = stack.enter_context(ensure_proxy(options, env, log=log, started_by=self._swept.started_by))
            self.baseline = [self._run_undisturbed()]
            trials = plan_trials(self.baseline[0].calls, self._swept.kinds)
            jobs = self._compare_undisturbed(max(1, min(self._swept.jobs, len(trials))))
            longest = max(each.seconds for each in self.baseline)
            self._patience = self._swept.patience or max(PATIENCE, TIMES * longest)
            calls = len({(trial.key, trial.occurrence) for trial in trials})
            self._swept.tell(
                f"sweep: {format_count(calls, 'call')}, {format_count(len(trials), 'fault')}, {jobs} at a time; "
                f"without faults it takes {format_seconds(longest)}"
            )
            self._play_trials(trials, jobs)
        return self.findings

    def _run_undisturbed(self) -> SweepRun:
        """Return a successful undisturbed run. Raises SweepImpossible."""
        went = self._run_once({})
        missed = next((call for call in went.calls if call.miss), None)
        if missed is not None:
            error = SweepImpossible(
                f"undisturbed, the command asks what is not recorded (call {missed.seq}): there is nothing to compare "
                "with.",
                hint=f"{missed.note.partition(chr(10))[0]}\nRecord it first: {self._swept.record}",
            )
            error.exit_code = Exit.MISS
            raise error
        if not went.calls:
            raise SweepImpossible(
                "undisturbed, the command asked the proxy nothing: there is no call to break.",
                hint="llmproxy doctor -- COMMAND",
            )
        if went.hung or went.failed:
            said = f"did not end within {format_seconds(went.seconds)}" if went.hung else f"fails: {went.failed}"
            raise SweepImpossible(f"undisturbed, the command {said}; a sweep needs one that ends well.")
        return went

    def _compare_undisturbed(self, jobs: int) -> int:
        """Run undisturbed again, in parallel like the trials; return the possible parallelism."""
        alone = [(call.key, call.occurrence) for call in self.baseline[0].calls]
        with ThreadPoolExecutor(jobs) as pool:
            try:
                more = list(pool.map(lambda _: self._run_undisturbed(), range(jobs)))
            except SweepImpossible:
                if jobs == 1:
                    raise
                more = []
        if more and all(
            sorted((c.key or "", c.occurrence or 0) for c in each.calls) == sorted((k or "", o or 0) for k, o in alone)
            for each in more
        ):
            self.baseline += more
            return jobs
        if jobs == 1:
            raise SweepImpossible("two undisturbed runs ask differently: what a fault does cannot be told from that.")
        self._swept.tell("sweep: several runs at once disturb each other; one at a time, then")
        return self._compare_undisturbed(1)

    def _play_trials(self, trials: Sequence[Trial], jobs: int) -> None:
        with ThreadPoolExecutor(jobs) as pool:
            try:
                pending = [pool.submit(self._run_trial, trial) for trial in trials]
                for number, found in enumerate(pending, 1):
                    self.findings.append(found.result())
                    self._swept.tell(f"\r{number}/{len(trials)}")
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                with self._guard:
                    self._ended = True
                    for each in list(self._children):
                        kill_group(each)
                raise

    def _run_trial(self, trial: Trial) -> SweepFinding:
        return judge_trial(trial, self._run_once({"faults": [trial.rule]}), self.baseline)

    def _run_once(self, faults: Mapping[str, Any]) -> SweepRun:
        control = self._proxy.control
        opened = self._swept.open(self._proxy, next(self._opened), faults or {"faults": []})
        try:
            since = time.monotonic()
            code, out, err, hung = self._run_child(opened)
            seconds = time.monotonic() - since
            calls = give_bound_hits_recorded_keys(control.calls(opened.name), self._bound)
        finally:
            with suppress(ControlError):
                control.close_session(opened.name)
        failed, crashed = find_failure_message(out, err, code) if code else ("", False)
        return SweepRun(calls=calls, seconds=seconds, said=out, failed=failed, crashed=crashed, hung=hung)

    def _run_child(self, opened: SweepSession) -> tuple[int, str, str, bool]:
        """Run the command; returns exit code, output, errors, and whether it was killed."""
        given = subprocess.PIPE if self._swept.stdin is not None else subprocess.DEVNULL
        with self._guard:
            if self._ended:
                raise KeyboardInterrupt
            popen = subprocess.Popen(
                opened.command,
                env=dict(opened.env),
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            self._children.add(popen)
        hung = False
        try:
            try:
                out, err = popen.communicate(self._swept.stdin, timeout=self._patience)
            except subprocess.TimeoutExpired:
                hung = True
                kill_group(popen)
                out, err = popen.communicate()
        finally:
            self._children.discard(popen)
        return to_exit_code(popen.returncode), _decode_tail(out), _decode_tail(err), hung


def _decode_tail(data: bytes) -> str:
    return data[-MOST_KEPT:].decode("utf-8", "replace")
