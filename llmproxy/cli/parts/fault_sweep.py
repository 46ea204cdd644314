"""``llmproxy run --faults sweep``: run the command undisturbed first, then with one fault each, several at a time.

Each run is a session of its own at one proxy, and replays the same cassette. Two undisturbed runs come first, the
second in parallel with others like the trials: if they differ, the trials run one at a time.
"""

from __future__ import annotations

import itertools
import os
import shlex
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

from llmproxy.amount_formatting import format_count, format_seconds
from llmproxy.cli.parts import session_setup as setup
from llmproxy.cli.parts.options import CliRunArguments, format_record_command, refuse_live_channels
from llmproxy.cli.parts.run_ending import write_json_result_file
from llmproxy.client import fault_sweep_judging as judging
from llmproxy.client.control import ControlError
from llmproxy.client.proxy_process import ensure_proxy, find_command_path, kill_group_at_once, to_shell_exit_code
from llmproxy.core.faults.rules import FaultKind
from llmproxy.errors import Exit, MachineError, SettingsError
from llmproxy.postgres_store_paths import format_store_location
from llmproxy.settings import Loaded

MOST_KEPT = 1 << 20
PATIENCE, TIMES = 20.0, 5.0
"""Timeout of a run: this many seconds, or this many times its undisturbed duration, whichever is more."""


def _list_call_identities(run: judging.FaultSweepRunOutcome) -> list[tuple[str, int]]:
    return sorted((call.key or "", call.occurrence or 0) for call in run.calls)


class FaultSweepImpossibleError(MachineError):
    code = "llmproxy_sweep"


def run_fault_sweep(asked: CliRunArguments, loaded: Loaded, env: Mapping[str, str]) -> int:
    """Replay the command once for each injected fault; returns 1 if one breaks it. Raises LLMProxyError."""
    refuse_live_channels(loaded, "llmproxy run --faults sweep")
    kinds = judging.parse_fault_sweep_kinds(loaded.settings.faults)
    if str(asked.flags.get("mode") or "replay") not in ("replay", "none"):
        raise SettingsError("a sweep replays: leave --mode out.", hint=f"Record first: {format_record_command(loaded)}")
    find_command_path(asked.command, env)
    if asked.options.json is not None:
        write_json_result_file(asked.options.json, {})  # a file of an earlier run says nothing of this one
    named = {"store": format_store_location(loaded.settings.store), "cassette": loaded.settings.cassette}
    typed_names = [name for name in named if loaded.sources[name].was_typed(environment=False)]
    same = [f"--{name} {shlex.quote(named[name])}" for name in typed_names]
    typed = " ".join([asked.run_command_prefix, "--faults FAULT", *same, "--", shlex.join(asked.command)])
    with tempfile.TemporaryDirectory(prefix="llmproxy-run-") as folder:
        sweep = FaultSweep(asked, loaded, env, kinds, Path(folder))
        try:
            sweep.run()
        except KeyboardInterrupt:
            print_sweep_findings(sweep.findings, typed, asked.options.json, interrupted=True)
            return Exit.INTERRUPTED
    return print_sweep_findings(sweep.findings, typed, asked.options.json)


class FaultSweep:
    def __init__(
        self, asked: CliRunArguments, loaded: Loaded, env: Mapping[str, str], kinds: Sequence[FaultKind], folder: Path
    ) -> None:
        """`folder` takes the files of the proxy and of the runs. Raises SettingsError."""
        self._asked, self._loaded, self._env, self._kinds, self._folder = asked, loaded, env, kinds, folder
        self._declared, self._tools = asked.list_run_variables(env), setup.find_mcp_servers_of_agent_command(asked, env)
        self._stdin, self._tell = read_stdin(), make_progress_printer()
        self._opened = itertools.count(1)
        self._patience = asked.options.patience or 10 * PATIENCE
        self._children: set[subprocess.Popen[bytes]] = set()
        self._guard, self._ended = threading.Lock(), False
        self._bound: set[int | None] = set()
        self.findings: list[judging.FaultTrialFinding] = []
        self.baseline: list[judging.FaultSweepRunOutcome] = []

    def run(self) -> None:
        """Run the sweep. Raises FaultSweepImpossibleError, MachineError; interrupted, `findings` has those so far."""
        asked = self._asked
        flags = {**asked.flags, "faults": None, "faults_seed": None, "mode": "replay"}
        options = setup.build_start_flags(flags, forward=asked.options.intercept)
        env = {name: value for name, value in self._env.items() if not name.startswith("LLMPROXY_FAULTS")}
        log = self._folder / "proxy.log"
        with ensure_proxy(options, env, log=log, started_by=asked.run_command_prefix) as self._proxy:
            self.baseline = [self._run_undisturbed()]
            trials = judging.plan_fault_trials(self.baseline[0].calls, self._kinds)
            wanted = asked.options.jobs or os.cpu_count() or 1
            jobs = self._determine_safe_parallelism(max(1, min(wanted, len(trials))))
            longest = max(each.seconds for each in self.baseline)
            self._patience = asked.options.patience or max(PATIENCE, TIMES * longest)
            calls = len({(trial.key, trial.occurrence) for trial in trials})
            work = f"{format_count(calls, 'call')}, {format_count(len(trials), 'fault')}, {jobs} at a time"
            self._tell(f"sweep: {work}; without faults it takes {format_seconds(longest)}")
            self._run_trials_in_parallel(trials, jobs)

    def _run_undisturbed(self) -> judging.FaultSweepRunOutcome:
        """Return a successful undisturbed run. Raises FaultSweepImpossibleError."""
        went = self._run_once()
        if (missed := next((call for call in went.calls if call.miss), None)) is not None:
            msg = f"undisturbed, the command asks what is not recorded (call {missed.seq})"
            hint = f"{missed.note.partition(chr(10))[0]}\nRecord it first: {format_record_command(self._loaded)}"
            error = FaultSweepImpossibleError(f"{msg}: there is nothing to compare with.", hint=hint)
            error.exit_code = Exit.MISS
            raise error
        if not went.calls:
            msg = "undisturbed, the command asked the proxy nothing: there is no call to break."
            raise FaultSweepImpossibleError(msg, hint="llmproxy doctor -- COMMAND")
        if went.hung or went.failed:
            said = f"did not end within {format_seconds(went.seconds)}" if went.hung else f"fails: {went.failed}"
            raise FaultSweepImpossibleError(f"undisturbed, the command {said}; a sweep needs one that ends well.")
        return went

    def _determine_safe_parallelism(self, jobs: int) -> int:
        """Run undisturbed again, in parallel like the trials; return the possible parallelism."""
        alone = _list_call_identities(self.baseline[0])
        with ThreadPoolExecutor(jobs) as pool:
            try:
                more = list(pool.map(lambda _: self._run_undisturbed(), range(jobs)))
            except FaultSweepImpossibleError:
                if jobs == 1:
                    raise
                more = []
        if more and all(_list_call_identities(each) == alone for each in more):
            self.baseline += more
            return jobs
        if jobs == 1:
            raise FaultSweepImpossibleError(
                "two undisturbed runs ask differently: what a fault does cannot be told from that."
            )
        self._tell("sweep: several runs at once disturb each other; one at a time, then")
        return self._determine_safe_parallelism(1)

    def _run_trials_in_parallel(self, trials: Sequence[judging.PlannedFaultTrial], jobs: int) -> None:
        with ThreadPoolExecutor(jobs) as pool:
            try:
                pending = [pool.submit(self._run_trial, trial) for trial in trials]
                for number, found in enumerate(pending, 1):
                    self.findings.append(found.result())
                    self._tell(f"\r{number}/{len(trials)}")
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                with self._guard:
                    self._ended = True
                    for each in list(self._children):
                        kill_group_at_once(each)
                raise

    def _run_trial(self, trial: judging.PlannedFaultTrial) -> judging.FaultTrialFinding:
        return judging.judge_fault_trial(trial, self._run_once([trial.rule]), self.baseline)

    def _run_once(self, rules: Sequence[Mapping[str, Any]] = ()) -> judging.FaultSweepRunOutcome:
        control, asked = self._proxy.control, self._asked
        opened = control.open_session(
            f"sweep-{os.getpid()}-{next(self._opened)}",
            cassette=self._loaded.settings.cassette,
            mode="replay",
            upstreams=(self._tools.config.upstreams or None) if self._tools else None,
            run_variables=self._declared,
            faults={"faults": list(rules)},
            patience=10.0,
        )
        own = Path(tempfile.mkdtemp(dir=self._folder))
        mine, _ = setup.redirect_mcp_servers(asked, self._tools, self._proxy.url, opened.name, own)
        plan = setup.plan_environment(self._proxy, opened, self._env, mine, self._folder)
        try:
            since = time.monotonic()
            code, out, err, hung = self._run_child(mine.command, plan.apply_to(self._env))
            seconds = time.monotonic() - since
            calls = judging.give_bound_hits_recorded_keys(control.calls(opened.name), self._bound)
        finally:
            with suppress(ControlError):
                control.close_session(opened.name)
        failed, crashed = judging.find_failure_in_output(out, err, code) if code else ("", False)
        return judging.FaultSweepRunOutcome(
            calls=calls, seconds=seconds, said=out, failed=failed, crashed=crashed, hung=hung
        )

    def _run_child(self, command: Sequence[str], env: Mapping[str, str]) -> tuple[int, str, str, bool]:
        """Run the command; returns exit code, output, errors, and whether it was killed."""
        with self._guard:
            if self._ended:
                raise KeyboardInterrupt
            popen = subprocess.Popen(  # noqa: S603 - the user's own words
                command,
                env=env,
                stdin=subprocess.PIPE if self._stdin is not None else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            self._children.add(popen)
        hung = False
        try:
            try:
                out, err = popen.communicate(self._stdin, timeout=self._patience)
            except subprocess.TimeoutExpired:
                hung = True
                kill_group_at_once(popen)
                out, err = popen.communicate()
        finally:
            self._children.discard(popen)
        return to_shell_exit_code(popen.returncode), _decode_tail(out), _decode_tail(err), hung


def _decode_tail(data: bytes) -> str:
    return data[-MOST_KEPT:].decode("utf-8", "replace")


def read_stdin() -> bytes | None:
    """Return the contents of stdin, for reuse in each run; None for a terminal."""
    with suppress(OSError, ValueError):
        if sys.stdin is not None and not sys.stdin.isatty():
            mode = os.fstat(sys.stdin.fileno()).st_mode
            if stat.S_ISFIFO(mode) or stat.S_ISREG(mode):  # not what a service manager leaves open for ever
                return sys.stdin.buffer.read()
    return None


def make_progress_printer() -> Callable[[str], None]:
    live = sys.stderr.isatty()

    def print_progress(text: str) -> None:
        if text.startswith("\r"):
            if live:
                typer.echo(f"{text} ", err=True, nl=False)
        else:
            typer.echo(f"llmproxy: {text}", err=True)

    return print_progress


def print_sweep_findings(
    findings: Sequence[judging.FaultTrialFinding], typed: str, file: Path | None = None, *, interrupted: bool = False
) -> int:
    """Print the table and result, and write them to `file`; returns the exit code. `typed` has FAULT in it."""
    if sys.stderr.isatty():
        typer.echo("\r", err=True, nl=False)
    begun = "interrupted, so not all faults were tried:" if interrupted else ""
    for line in [*judging.format_sweep_findings(findings), begun, *judging.format_sweep_summary_lines(findings, typed)]:
        typer.echo(line)
    if file is not None:
        write_json_result_file(file, judging.sweep_findings_to_json(findings))
    return Exit.FAILED if any(each.weak for each in findings) else Exit.OK
