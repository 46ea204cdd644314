"""``llmproxy doctor``: check whether this shell, a command or a running agent uses the proxy, and explain why not."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import typer

from llmproxy.advice import StartCommand
from llmproxy.cli.env import find_configured_proxy_url, open_control
from llmproxy.cli.parts.options import FreePortCommand, get_given_flag_values, get_given_run_options, load_settings
from llmproxy.cli.parts.printing import print_line, to_line
from llmproxy.cli.parts.run_options import RunArguments
from llmproxy.cli.parts.session_setup import open_session, plan_environment, start_options
from llmproxy.client.bypass_monitor import (
    MonitoredProcess,
    ProcessMonitor,
    find_lookup_bypasses,
    make_lookup_env,
    read_lookups,
)
from llmproxy.client.child_env import find_upstreams
from llmproxy.client.control import ControlError
from llmproxy.client.doctor import (
    BAD,
    NOTE,
    OK,
    Diagnosis,
    check_certificates,
    check_own_address_exempt,
    check_processes,
    check_variables,
    diagnose_traffic,
    parse_url_address,
)
from llmproxy.client.proxy_process import ensure_proxy, find_program, run_child
from llmproxy.errors import Exit, MachineError, SettingsError
from llmproxy.protocol import DEFAULT_PORT

WATCHED = 3.0
"""Seconds for which a running agent is watched."""


def register(app: typer.Typer) -> None:
    app.command("doctor", cls=FreePortCommand, context_settings={"allow_interspersed_args": False})(doctor)


def doctor(
    ctx: typer.Context,
    command: list[str] = typer.Argument(None, metavar="-- COMMAND", help="The agent's command, to run and observe."),
    pid: int = typer.Option(0, "--pid", metavar="PID", help="Process id of a running agent to observe."),
) -> None:
    """Find out why an agent does not use the proxy, and what to do about it."""
    if command and pid:
        raise SettingsError("--pid watches an agent that runs already; it takes no command")
    asked = RunArguments(get_given_flag_values(ctx), tuple(command or ()), get_given_run_options(ctx))
    findings = _run_and_watch_command(asked, os.environ) if command else _examine_environment(os.environ, pid)
    for each in findings:
        print_line(f"{each.verdict:<4}  {to_line(each.text)}")
        for advice in each.advice:
            print_line(f"        {to_line(advice)}")
    raise typer.Exit(Exit.FAILED if any(each.verdict == "BAD" for each in findings) else Exit.OK)


def _examine_environment(env: Mapping[str, str], pid: int) -> list[Diagnosis]:
    """Examine this shell, or the process `pid`."""
    monitor = ProcessMonitor()
    seen = _watch_process(monitor, pid) if pid else {}
    env = seen if pid else env
    control = open_control(find_configured_proxy_url(env))
    found, url, arrived = [], control.url, False
    try:
        health = control.health()
        found.append(Diagnosis(OK, f"llmproxy {health.version} answers at {url}, mode {health.mode}"))
        reports = control.sessions()
        arrived = any(report.calls for report in reports)
        heard = diagnose_traffic(reports)
        found += check_certificates(env, health.ca, time.time())
        found.append(heard if arrived else Diagnosis(NOTE, heard.text))
    except ControlError as error:
        _, port = parse_url_address(url)
        start = StartCommand(options=() if port == DEFAULT_PORT else (("port", str(port)),)).command("replay")
        advice = (start, "or say where it is: export LLMPROXY_URL=http://...")
        found.append(Diagnosis(BAD, error.message, advice))
    found += [*check_variables(env, url), *check_own_address_exempt(env, url)]
    if pid:
        found += check_processes(
            monitor.seen, monitor.find_bypasses(parse_url_address(url)), url, intercepted=False, arrived=arrived
        )
    return found


def _watch_process(monitor: ProcessMonitor, pid: int) -> dict[str, str]:
    if not monitor.is_supported:
        raise MachineError(
            "--pid needs Linux's /proc", hint="Run the agent under the doctor instead: llmproxy doctor -- COMMAND"
        )
    monitor.poll(pid)
    if pid not in monitor.seen:
        raise MachineError(f"there is no process {pid}, or it is not yours")
    typer.echo(f"watching {monitor.seen[pid].program} ({pid}) for {WATCHED:.0f} s ...", err=True)
    monitor.start(pid)
    time.sleep(WATCHED)
    monitor.stop()
    return monitor.seen[pid].env or {}


def _run_and_watch_command(asked: RunArguments, env: Mapping[str, str]) -> list[Diagnosis]:
    loaded = load_settings(asked.flags)
    find_program(asked.command, env)
    monitor = ProcessMonitor()
    found = [] if monitor.is_supported else [Diagnosis(NOTE, "connections can only be watched on Linux")]
    options = start_options(asked.flags, forward=asked.options.intercept)
    with (
        tempfile.TemporaryDirectory(prefix="llmproxy-doctor-") as folder,
        ensure_proxy(options, env, started_by=asked.run_command_prefix) as proxy,
    ):
        opened = open_session(proxy, loaded, env)
        given = plan_environment(proxy, opened, env, asked, Path(folder)).apply_to(env)
        found.append(Diagnosis(OK, f"the proxy runs at {proxy.url}, mode {opened.mode}"))
        found += check_variables(given, proxy.url, intercepted=asked.options.intercept)
        found += check_own_address_exempt(given, proxy.url)
        if asked.options.intercept:
            found += check_certificates(given, proxy.control.health().ca, time.time())
        given |= make_lookup_env(given, Path(folder))
        code = run_child(asked.command, given, monitor.start if monitor.is_supported else lambda _pid: None)
        monitor.stop()
        by_name = find_lookup_bypasses(read_lookups(Path(folder)), socket.gethostname())
        reports = proxy.control.sessions()
        proxy.control.close_session(opened.name)
    upstreams = frozenset(map(parse_url_address, find_upstreams(env, proxy.url).values()))
    past = monitor.find_bypasses(parse_url_address(proxy.url), upstreams)
    for pid, (program, hosts) in by_name.items():
        monitor.seen.setdefault(pid, MonitoredProcess(pid, program))
        past[pid] = hosts  # what a name resolved to says less than the name
    found += [Diagnosis(OK if code == 0 else NOTE, f"the command ended with {code}"), diagnose_traffic(reports)]
    arrived = any(report.calls for report in reports)
    found += check_processes(monitor.seen, past, proxy.url, intercepted=asked.options.intercept, arrived=arrived)
    return found
