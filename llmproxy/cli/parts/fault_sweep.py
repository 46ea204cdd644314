"""``llmproxy run --faults sweep``: run the command repeatedly, with one injected fault each."""

from __future__ import annotations

import os
import shlex
import stat
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

from llmproxy.cli.parts.options import advise_record, refuse_live
from llmproxy.cli.parts.run_ending import write_json_result
from llmproxy.cli.parts.run_options import RunArguments
from llmproxy.cli.parts.session_setup import find_agent_tools, plan_environment, redirect_tools, start_options
from llmproxy.client.fault_sweep_judging import (
    SweepFinding,
    findings_to_json,
    format_findings,
    select_kinds,
    summarize_findings,
)
from llmproxy.client.fault_sweep_runner import Sweep, SweepOptions, SweepSession
from llmproxy.client.proxy_process import ProxyHandle, find_program
from llmproxy.errors import Exit, SettingsError
from llmproxy.server_store_path import show_store
from llmproxy.settings import Loaded


def run_sweep(asked: RunArguments, loaded: Loaded, env: Mapping[str, str]) -> int:
    """Replay the command once for each injected fault; returns 1 if one breaks it. Raises LLMProxyError."""
    refuse_live(loaded, "llmproxy run --faults sweep")
    kinds = select_kinds(loaded.settings.faults)
    if str(asked.flags.get("mode") or "replay") not in ("replay", "none"):
        raise SettingsError("a sweep replays: leave --mode out.", hint=f"Record first: {advise_record(loaded)}")
    find_program(asked.command, env)
    if asked.options.json is not None:
        write_json_result(asked.options.json, {})  # a file of an earlier run says nothing of this one
    declared, tools = asked.list_run_variables(env), find_agent_tools(asked, env)
    flags = {**asked.flags, "faults": None, "faults_seed": None, "mode": "replay"}
    jobs = asked.options.jobs or os.cpu_count() or 1
    with tempfile.TemporaryDirectory(prefix="llmproxy-run-") as folder:

        def open_trial(proxy: ProxyHandle, number: int, faults: Mapping[str, Any]) -> SweepSession:
            report = proxy.control.open_session(
                f"sweep-{os.getpid()}-{number}",
                cassette=loaded.settings.cassette,
                mode="replay",
                upstreams=(tools.config.upstreams or None) if tools else None,
                run_variables=declared,
                faults=faults,
                patience=10.0,
            )
            own = Path(tempfile.mkdtemp(dir=folder))
            mine, _ = redirect_tools(asked, tools, proxy.url, report.name, own)
            plan = plan_environment(proxy, report, env, mine, Path(folder))
            return SweepSession(report.name, mine.command, plan.apply_to(env))

        swept = SweepOptions(
            options=start_options(flags, forward=asked.options.intercept),
            env={name: value for name, value in env.items() if not name.startswith("LLMPROXY_FAULTS")},
            open=open_trial,
            kinds=kinds,
            jobs=jobs,
            patience=asked.options.patience,
            stdin=read_stdin(),
            tell=make_progress_printer(),
            started_by=asked.run_line,
            record=advise_record(loaded),
        )
        run = Sweep(swept)
        named = {"store": show_store(loaded.settings.store), "cassette": loaded.settings.cassette}
        same = [
            f"--{name} {shlex.quote(value)}"
            for name, value in named.items()
            if loaded.sources[name].was_typed(environment=False)
        ]
        typed = " ".join([asked.run_line, "--faults FAULT", *same, "--", shlex.join(asked.command)])
        try:
            run.run()
        except KeyboardInterrupt:
            print_findings(run.findings, typed, asked.options.json)
            return Exit.INTERRUPTED
    return print_findings(run.findings, typed, asked.options.json)


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


def print_findings(findings: Sequence[SweepFinding], typed: str, file: Path | None = None) -> int:
    """Print the table and result, and write them to `file`; returns the exit code. `typed` has FAULT in it."""
    if sys.stderr.isatty():
        typer.echo("\r", err=True, nl=False)
    for line in [*format_findings(findings), "", *summarize_findings(findings, typed)]:
        typer.echo(line)
    if file is not None:
        write_json_result(file, findings_to_json(findings))
    return Exit.FAILED if any(each.weak for each in findings) else Exit.OK
