"""``llmproxy doctor``: check whether this shell, a command or a running agent uses the proxy, and explain why not."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import typer

from llmproxy.amount_formatting import name_some
from llmproxy.cli.env import find_llmproxy_url, open_control
from llmproxy.cli.parts.options import CliRunArguments, TyperCommandUsingFreeProxyPort, load_settings
from llmproxy.cli.parts.printing import print_line, to_safe_line
from llmproxy.cli.parts.session_setup import build_start_flags, open_session, plan_environment
from llmproxy.client import bypass_monitor, child_env
from llmproxy.client.bypass_monitor import OTHER, find_runtime_advice
from llmproxy.client.child_env import BASE_URLS, LOOPBACK, NO_PROXIES, find_env_upstreams, is_proxy_url
from llmproxy.client.control import ControlError
from llmproxy.client.proxy_process import ensure_proxy, find_command_path, run_child
from llmproxy.client.session_reports import SessionReport, format_session_counts, sum_session_reports
from llmproxy.errors import Exit, MachineError, SettingsError
from llmproxy.protocol import BUNDLES, NODE_CA, NODE_PROXY, PROXIES

_WATCHED = 3.0


def register(app: typer.Typer) -> None:
    app.command("doctor", cls=TyperCommandUsingFreeProxyPort, context_settings={"allow_interspersed_args": False})(
        doctor
    )


def doctor(
    ctx: typer.Context,
    command: list[str] = typer.Argument(None, metavar="-- COMMAND", help="The agent's command, to run and observe."),
    pid: int = typer.Option(0, "--pid", metavar="PID", help="Process id of a running agent to observe."),
) -> None:
    """Find out why an agent does not use the proxy, and what to do about it."""
    if command and pid:
        raise SettingsError("--pid watches an agent that runs already; it takes no command")
    asked = CliRunArguments.from_context(ctx, command)
    findings = _run_and_watch_command(asked, os.environ) if command else _examine_environment(os.environ, pid)
    for each in findings:
        print_line(f"{each.verdict:<4}  {to_safe_line(each.text)}")
        for advice in each.advice:
            print_line(f"        {to_safe_line(advice)}")
    raise typer.Exit(Exit.FAILED if any(each.verdict == "BAD" for each in findings) else Exit.OK)


class DiagnosisLevel(StrEnum):
    OK = "ok"
    NOTE = "note"
    BAD = "BAD"


OK, NOTE, BAD = DiagnosisLevel


class DoctorFinding(NamedTuple):
    verdict: DiagnosisLevel
    text: str
    advice: tuple[str, ...] = ()


def check_proxy_env_variables(env: Mapping[str, str], url: str, *, intercepted: bool = False) -> list[DoctorFinding]:
    given = {each.name: env[each.name] for each in BASE_URLS if env.get(each.name)}
    ours = [name for name, value in given.items() if is_proxy_url(value, url)]
    others = {name: value for name, value in given.items() if name not in ours}
    proxied = [name for name in PROXIES if env.get(name) and is_proxy_url(env[name], url)]
    found = []
    if ours:
        found.append(DoctorFinding(OK, f"{len(ours)} base-URL variables point to {url}: {name_some(ours, ' ')}"))
    for name, value in others.items():
        text = f"{name}={value[:80]} points elsewhere: what reads it goes past the proxy"
        found.append(DoctorFinding(NOTE if proxied else BAD, text, ('eval "$(llmproxy env)" sets it',)))
    if proxied:
        found.append(DoctorFinding(OK, f"{' '.join(proxied)} point to the proxy"))
        if env.get(NODE_PROXY) != "1":
            text = f"{NODE_PROXY} is not 1: Node ignores the proxy variables"
            found.append(DoctorFinding(BAD, text, (f"export {NODE_PROXY}=1",)))
    elif intercepted:
        found.append(DoctorFinding(BAD, "HTTPS_PROXY does not point to the proxy: nothing is intercepted"))
    if not ours and not proxied:
        advice = ('eval "$(llmproxy env)"          for this shell', "llmproxy run -- COMMAND         for one command")
        text = "no variable of this shell points to the proxy: what it starts goes past it"
        found.append(DoctorFinding(BAD, text, advice))
    return found


def check_own_address_exempt(env: Mapping[str, str], url: str) -> list[DoctorFinding]:
    names = ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
    foreign = [name for name in names if env.get(name) and not is_proxy_url(env[name], url)]
    words = {word.strip().lower() for name in NO_PROXIES for word in env.get(name, "").split(",")}
    host = (urlsplit(url).hostname or "").lower()
    if foreign and not words & {host, "*"}:
        how = "base URLs are asked through that proxy, and never arrive"
        text = f"{foreign[0]} is set and NO_PROXY does not name {host}: {how}"
        return [DoctorFinding(BAD, text, (f"export NO_PROXY={','.join(LOOPBACK)} no_proxy={','.join(LOOPBACK)}",))]
    if any(env.get(name) and is_proxy_url(env[name], url) for name in PROXIES) and "*" in words:
        return [DoctorFinding(BAD, "NO_PROXY is *: nothing goes through the proxy", ("unset NO_PROXY no_proxy",))]
    return [DoctorFinding(OK, f"NO_PROXY names {host}")] if words & {host, "*"} else []


def check_certificates(env: Mapping[str, str], ca: str | None, now: float) -> list[DoctorFinding]:
    """Check that the certificate exists, is valid at `now` (Unix time) and is in every configured bundle."""
    if ca is None:
        return [DoctorFinding(NOTE, "the proxy does not intercept HTTPS: clients reach it by base URL only")]
    if problem := child_env.describe_ca_file_problem(Path(ca), now):
        return [DoctorFinding(BAD, problem)]
    mark = _read_certificate_body(Path(ca))
    found = []
    for name in (*BUNDLES, NODE_CA):
        value = env.get(name, "")
        if value and not Path(value).is_file():
            found.append(DoctorFinding(BAD, f"{name} names {value}, which does not exist"))
        elif value and mark not in _read_certificate_body(Path(value)):
            advice = ("llmproxy run --intercept makes a bundle of both",)
            found.append(DoctorFinding(BAD, f"{name} names {value}, which lacks the proxy's certificate", advice))
    if not (trusting := [name for name in (*BUNDLES, NODE_CA) if env.get(name)]):
        found.append(DoctorFinding(NOTE, f"no variable names the proxy's certificate {ca}: only base URLs will work"))
    elif not found:
        found.append(DoctorFinding(OK, f"the certificate {ca} is trusted by {name_some(trusting, ' ')}"))
    return found


def _read_certificate_body(path: Path) -> str:
    """Return the file without white space; for one certificate, the part between BEGIN and END."""
    text = "".join(path.read_text("utf-8", "replace").split())
    begin = "-----BEGINCERTIFICATE-----"
    return text.partition(begin)[2].partition("-----END")[0] if text.count(begin) == 1 else text


def check_traffic_arrived(total: SessionReport) -> DoctorFinding:
    if not total.calls:
        return DoctorFinding(BAD, "no request arrived at the proxy")
    return DoctorFinding(OK, f"traffic arrived: {format_session_counts(total)}")


def diagnose_observed_proxy_bypasses(
    seen: Mapping[int, bypass_monitor.BypassMonitoredProcess],
    past: Mapping[int, Sequence[bypass_monitor.Address]],
    url: str,
    *,
    intercepted: bool,
    arrived: bool,
) -> list[DoctorFinding]:
    found = []
    for pid, addresses in past.items():
        who = seen[pid]
        text = f"{who.program} ({pid}) {_describe_connections(addresses)} itself, past the proxy"
        found.append(DoctorFinding(BAD, text, _list_runtime_advice([who], intercepted=intercepted)))
    names = (*(each.name for each in BASE_URLS), *PROXIES)
    for pid, who in seen.items():
        env = who.env or {}
        ours = any(env.get(name) and is_proxy_url(env[name], url) for name in names)
        if who.env is None or who.looks <= 1 or ours:
            continue
        why = "sudo, env -i, docker, ssh and systemd give their children another environment; a .env may override it"
        found.append(DoctorFinding(BAD, f"{who.program} ({pid}) runs without our variables", (why,)))
    if not arrived and not past:
        advice = _list_runtime_advice(seen.values(), intercepted=intercepted)
        text = "no connection to ports 80 and 443 of other machines, or to preset base URLs, was seen either"
        found.append(DoctorFinding(NOTE, f"{text}; other servers, such as a local Ollama, are not watched", advice))
    return found


def _describe_connections(addresses: Sequence[bypass_monitor.Address]) -> str:
    deeds: dict[str, list[str]] = {}
    for host, port in addresses[:5]:
        deed, what = ("went to", f"{host}:{port}") if port else ("looked up", host)
        deeds.setdefault(deed, []).append(what)
    return " and ".join(f"{deed} {', '.join(what)}" for deed, what in deeds.items())


def _list_runtime_advice(who: Iterable[bypass_monitor.BypassMonitoredProcess], *, intercepted: bool) -> tuple[str, ...]:
    """Return advice for the runtimes of these programs; for shells and the like only without other advice."""
    runtimes = list(dict.fromkeys(find_runtime_advice(each.program) for each in who))
    known = [each for each in runtimes if each is not OTHER] or runtimes or [OTHER]
    lines = []
    for runtime in known:
        lines.append(f"{runtime.name}, by base URL: {runtime.base_url}")
        lines.append(f"{runtime.name}, by interception{'' if intercepted else ' (--intercept)'}: {runtime.intercept}")
    return tuple(lines)


def parse_url_host_and_port(url: str) -> bypass_monitor.Address:
    """Return host and port of a URL; other names than localhost are not resolved."""
    parts = urlsplit(url)
    host = "127.0.0.1" if parts.hostname == "localhost" else parts.hostname or ""
    return host, parts.port or (443 if parts.scheme == "https" else 80)


def _examine_environment(env: Mapping[str, str], pid: int) -> list[DoctorFinding]:
    monitor = bypass_monitor.ProxyBypassMonitor()
    env = _watch_process(monitor, pid) if pid else env
    control = open_control(find_llmproxy_url(env))
    found, url, arrived = [], control.url, False
    try:
        health = control.health()
        found.append(DoctorFinding(OK, f"llmproxy {health.version} answers at {url}, mode {health.mode}"))
        total = sum_session_reports(control.sessions())
        arrived, heard = total.calls > 0, check_traffic_arrived(total)
        found += check_certificates(env, health.ca, time.time())
        found.append(heard if arrived else DoctorFinding(NOTE, heard.text))
    except ControlError as error:
        found.append(DoctorFinding(BAD, error.message, tuple(error.hint.splitlines())))
    found += [*check_proxy_env_variables(env, url), *check_own_address_exempt(env, url)]
    if pid:
        past = monitor.find_bypasses(parse_url_host_and_port(url))
        found += diagnose_observed_proxy_bypasses(monitor.seen, past, url, intercepted=False, arrived=arrived)
    return found


def _watch_process(monitor: bypass_monitor.ProxyBypassMonitor, pid: int) -> dict[str, str]:
    if not monitor.is_supported:
        hint = "Run the agent under the doctor instead: llmproxy doctor -- COMMAND"
        raise MachineError("--pid needs Linux's /proc", hint=hint)
    monitor.poll(pid)
    if pid not in monitor.seen:
        raise MachineError(f"there is no process {pid}, or it is not yours")
    typer.echo(f"watching {monitor.seen[pid].program} ({pid}) for {_WATCHED:.0f} s ...", err=True)
    monitor.start(pid)
    time.sleep(_WATCHED)
    monitor.stop()
    return monitor.seen[pid].env or {}


def _run_and_watch_command(asked: CliRunArguments, env: Mapping[str, str]) -> list[DoctorFinding]:
    loaded = load_settings(asked.flags)
    find_command_path(asked.command, env)
    monitor = bypass_monitor.ProxyBypassMonitor()
    found = [] if monitor.is_supported else [DoctorFinding(NOTE, "connections can only be watched on Linux")]
    options = build_start_flags(asked.flags, forward=asked.options.intercept)
    with (
        tempfile.TemporaryDirectory(prefix="llmproxy-doctor-") as folder,
        ensure_proxy(options, env, log=Path(folder) / "proxy.log", started_by=asked.run_command_prefix) as proxy,
    ):
        opened = open_session(proxy, loaded, env)
        given = plan_environment(proxy, opened, env, asked, Path(folder)).apply_to(env)
        found.append(DoctorFinding(OK, f"the proxy runs at {proxy.url}, mode {opened.mode}"))
        found += check_proxy_env_variables(given, proxy.url, intercepted=asked.options.intercept)
        found += check_own_address_exempt(given, proxy.url)
        if asked.options.intercept:
            found += check_certificates(given, proxy.control.health().ca, time.time())
        given |= bypass_monitor.build_dns_watch_env(given, Path(folder))
        code = run_child(asked.command, given, monitor.start if monitor.is_supported else lambda _pid: None)
        monitor.stop()
        by_name = bypass_monitor.find_bypasses_by_dns_lookup(
            bypass_monitor.read_observed_host_lookup_log(Path(folder)), socket.gethostname()
        )
        total = sum_session_reports(proxy.control.sessions())
        proxy.control.close_session(opened.name)
        proxy.end_if_started()
        if proxy.process is not None and (of_all_sessions := proxy.process.read_final_totals()[0]) is not None:
            total = SessionReport("", "")  # a test runner has closed its sessions
            total.merge(of_all_sessions)
    upstreams = frozenset(map(parse_url_host_and_port, find_env_upstreams(env, proxy.url).values()))
    past = monitor.find_bypasses(parse_url_host_and_port(proxy.url), upstreams)
    for pid, (program, hosts) in by_name.items():
        monitor.seen.setdefault(pid, bypass_monitor.BypassMonitoredProcess(pid, program))
        past[pid] = hosts  # what a name resolved to says less than the name
    found += [DoctorFinding(OK if code == 0 else NOTE, f"the command ended with {code}"), check_traffic_arrived(total)]
    arrived, intercepted = total.calls > 0, asked.options.intercept
    return found + diagnose_observed_proxy_bypasses(
        monitor.seen, past, proxy.url, intercepted=intercepted, arrived=arrived
    )
