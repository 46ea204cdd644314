"""``llmproxy run -- COMMAND``: a proxy for the length of one command, which needs no change to use it.

The child has our stdin, stdout and signals, and an environment in which every SDK finds the proxy. We say one line at the end, on
stderr, and end with the child's exit code.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from llmproxy.cli.parts.live_runs import LiveRuns, check_recorded
from llmproxy.cli.parts.options import OnAFreePort, flags_of, gather, refuse_live
from llmproxy.cli.parts.recording import record_first
from llmproxy.errors import ENDED_BY_USER, Exit, LLMProxyError, MachineError, SettingsError
from llmproxy.protocol import UnknownTool
from llmproxy.store_server import show_store

if TYPE_CHECKING:
    from llmproxy.client.control.client import Report
    from llmproxy.client.environment.build import EnvironmentPlan, Interception
    from llmproxy.client.process.attach import Attached
    from llmproxy.client.tools.agents import FoundTools
    from llmproxy.settings import Loaded, Settings

_OF_THE_CHILD = (
    "fail_on_miss",
    "strict",
    "quiet",
    "mode",
    "cassette",
    "speed",
    "exhausted",
    "verbose",
    "bind",
    "faults",
    "faults_seed",
    "live",
    "unknown_tool",
    "read_only",
)
"""Options that make sense with a proxy that runs already."""
_SUMMARY = re.compile(r"^[0-9][0-9,]* hits?(?: \([^)\n]*\))?, .*$", re.MULTILINE)
_CALLS = re.compile(r"^[0-9:]{8}\s+(REPLAY|RECORD|PASS|REFUSE|MISS|FAULT)\b", re.MULTILINE)
_MISSES = re.compile(r"([0-9][0-9,]*) miss(?:es)?\b")


def register(app: typer.Typer) -> None:
    """Add the command."""
    settings = {"allow_interspersed_args": False}
    app.command("run", cls=OnAFreePort, context_settings=settings)(run)


def run(
    ctx: typer.Context,
    command: list[str] = typer.Argument(..., metavar="-- COMMAND", help="What to run, with its own options."),
    intercept: bool = typer.Option(
        False, "--intercept", help="Intercept HTTPS as well, for clients whose base URL cannot be changed."
    ),
    base_urls: bool = typer.Option(
        True, "--base-urls/--no-base-urls", help="Set base-URL variables; without, only --intercept is used."
    ),
    mount_at: Path | None = typer.Option(
        None,
        "--mount-at",
        metavar="PATH",
        help="Show this folder to the command at PATH, so that it has one path wherever it is recorded and replayed. (Linux)",
    ),
    circumstance: list[str] = typer.Option(
        [],
        "--circumstance",
        metavar="NAME=VALUE",
        help="What is true of this run only, besides its folder, home and day: recorded and present values are exchanged.",
    ),
    mcp_config: str | None = typer.Option(
        None,
        "--mcp-config",
        metavar="FILE",
        help="The agent's MCP configuration: its servers are recorded, or replayed, too. The command gets a copy in its place. Claude Code's and Codex's are found; none leaves them.",
    ),
    as_json: Path | None = typer.Option(
        None,
        "--json",
        metavar="FILE",
        help="Write what it came to there, for a program: counts, costs, misses, exit code.",
    ),
    jobs: int | None = typer.Option(
        None, "--jobs", min=1, max=64, metavar="N", help="Of --faults sweep: runs at once."
    ),
    runs: int | None = typer.Option(
        None,
        "--runs",
        min=1,
        max=1000,
        metavar="N",
        help="With --live: run the command so often, each a recording of its own.",
    ),
    patience: float = typer.Option(
        0.0,
        "--patience",
        min=0,
        metavar="SECONDS",
        help="Of --faults sweep: how long a run may take. [20, or 5 times as long as undisturbed]",
    ),
) -> None:
    """Run a command with the proxy: its LLM calls are replayed, or recorded."""
    if not base_urls and not intercept:
        raise SettingsError("--no-base-urls leaves nothing to do without --intercept")
    asked = RunAsked(
        flags_of(ctx),
        tuple(command),
        intercept,
        base_urls,
        mount_at,
        tuple(circumstance),
        as_json,
        mcp_config,
        runs=runs,
    )
    raise typer.Exit(execute(asked, os.environ, Sweeping(jobs, patience)))


class Sweeping(NamedTuple):
    """How a sweep is run, if one is asked for."""

    jobs: int | None = None
    """Runs at once; None: as many as usual."""
    patience: float = 0
    """Seconds that one may take; 0: as long as usual."""


@dataclass(frozen=True, slots=True)
class RunAsked:
    """What was typed."""

    flags: Mapping[str, object]
    command: tuple[str, ...]
    intercept: bool
    base_urls: bool
    mount_at: Path | None = None
    circumstance: tuple[str, ...] = ()
    as_json: Path | None = None
    mcp_config: str | None = None
    """The agent's MCP configuration, as typed; `agents.NONE` for none."""
    recorded: tuple[str, ...] = ()
    """Hosts of other services that are recorded too."""
    runs: int | None = None
    """How often, with live channels; None: once."""

    def circumstances(self, env: Mapping[str, str]) -> list[dict[str, str]]:
        """Return what is true of this run only; what was typed takes the place of what was found. Raises SettingsError."""
        from llmproxy.client.environment.circumstances import gather_circumstances, read_circumstances

        found = gather_circumstances(env, Path.cwd(), git=True)
        if self.mount_at is not None:
            found = [{"name": "cwd", "value": str(self.mount_at)}, *(each for each in found if each["name"] != "cwd")]
        typed = read_circumstances(list(self.circumstance))
        names = {each["name"] for each in typed}
        return [*(each for each in found if each["name"] not in names), *typed]

    @property
    def child(self) -> tuple[str, ...]:
        """The command line that is run."""
        if self.mount_at is None:
            return self.command
        from llmproxy.client.process.mounted import mounted_command

        return mounted_command(self.mount_at, self.command)

    @property
    def typed(self) -> str:
        """Return how it begins, for what a miss advises; the command itself may hold what nobody else should read."""
        switches = {"--intercept": self.intercept, "--no-base-urls": not self.base_urls}
        return " ".join(["llmproxy run", *(name for name, given in switches.items() if given)])


def execute(asked: RunAsked, env: Mapping[str, str], sweeping: Sweeping | None = None) -> int:
    """Do everything and return the exit code.

    Raises:
        LLMProxyError: nothing was run.

    """
    from llmproxy.client.environment.clients import warn
    from llmproxy.client.process import child
    from llmproxy.client.process.attach import attach, running_at

    loaded = gather(asked.flags)
    hosts = loaded.settings.record_host
    asked = replace(asked, intercept=asked.intercept or bool(hosts), recorded=hosts)
    if loaded.settings.faults.partition(":")[0] == "sweep":
        return sweep(asked, loaded, env, sweeping or Sweeping())
    faults_of(loaded.settings)  # what cannot be meant is said before anything starts
    if asked.runs is not None and not loaded.settings.live:
        raise SettingsError(
            "--runs needs --live: a replay is the same each time.",
            hint="`llmproxy run --live llm --runs 5 -- ...` tries another model on recorded tools.",
        )
    if loaded.settings.live:
        check_recorded(loaded)
    child.find(asked.command, env)
    if asked.as_json is not None:
        write_result(asked.as_json, {})  # a file of an earlier run says nothing of this one
    if asked.mount_at is not None:
        from llmproxy.client.process.mounted import check_mount

        check_mount(asked.mount_at)
    if running_at(env):
        _refuse_options_of_start(asked.flags)
    tools = read_tools(asked, env)
    declared = asked.circumstances(env)
    since = time.time()
    with tempfile.TemporaryDirectory(prefix="llmproxy-run-") as folder:
        log = Path(folder) / "proxy.log"
        options = start_options(asked.flags, forward=asked.intercept)
        options += [f"--upstream={name}={url}" for name, url in tools.config.upstreams.items()] if tools else []
        with attach(options, env, log=log, started_by=asked.typed) as proxy:
            opened = open_session(proxy, loaded, env, declared, tools)
            if tools is not None:
                asked, told = place_tools(asked, tools, proxy.url, opened.name, Path(folder))
                _say(*(f"llmproxy: mcp: {each}" for each in told))
            plan = plan_for(proxy, opened, env, asked, Path(folder))
            _say(*(f"llmproxy: {note}" for note in plan.notes), *(() if asked.intercept else warn(asked.command)))
            end, runs = RunEnding(proxy, opened.name, since, loaded, asked.command), LiveRuns(loaded)
            code = _run_all(asked, plan, end, runs, env, lambda: open_session(proxy, loaded, env, declared, tools))
        said = proxy.process.said if proxy.process else ""
        if loaded.settings.verbose:
            _say(said.rstrip())
        final = end.tell(code, said, plan)
        _say(*runs.tell())
        if asked.as_json is not None:
            write_result(asked.as_json, end.to_json(said, code, final) | runs.to_json())
        return final


def _run_all(
    asked: RunAsked,
    plan: EnvironmentPlan,
    end: RunEnding,
    runs: LiveRuns,
    env: Mapping[str, str],
    again: Callable[[], object],
) -> int:
    """Run the command, as often as was asked, and close its sessions; `again` opens the next. Returns the last exit code that was not 0."""
    from llmproxy.client.process import child

    heard: list[int] = []
    code = int(Exit.OK)
    for left in range(asked.runs or 1, 0, -1):
        ended = child.run(asked.child, plan.applied_to(env), heard=heard.append)
        code, last = ended or code, left == 1 or bool(heard)
        end.close(failed=ended != Exit.OK, last=last)
        runs.add(end.report, ended)
        if last or end.trouble:
            break
        again()
    return code


def sweep(asked: RunAsked, loaded: Loaded, env: Mapping[str, str], how: Sweeping) -> int:
    """Run the command again and again in replay, with one fault on purpose each; returns 1 if one breaks it. Raises LLMProxyError."""
    from llmproxy.cli.parts.telling.sweep import given_input, tell_findings, teller, usual_jobs
    from llmproxy.client.process import child
    from llmproxy.client.process.attach import running_at
    from llmproxy.client.sweep import asked_kinds
    from llmproxy.client.sweep.command import OpenedRun, Sweep, Swept

    refuse_live(loaded, "llmproxy run --faults sweep")
    kinds = asked_kinds(loaded.settings.faults)
    if str(asked.flags.get("mode") or "replay") not in ("replay", "none"):
        raise SettingsError("a sweep replays: leave --mode out.", hint=f"Record first: {record_first(loaded)}")
    child.find(asked.command, env)
    if asked.as_json is not None:
        write_result(asked.as_json, {})  # a file of an earlier run says nothing of this one
    declared, tools = asked.circumstances(env), read_tools(asked, env)
    flags = {**asked.flags, "faults": None, "faults_seed": None, "mode": "replay"}
    jobs = 1 if running_at(env) else how.jobs or usual_jobs()
    with tempfile.TemporaryDirectory(prefix="llmproxy-run-") as folder:

        def open_trial(proxy: Attached, faults: Mapping[str, Any]) -> OpenedRun:
            report = proxy.control.open(
                loaded.settings.cassette,
                mode="replay",
                upstreams=(tools.config.upstreams or None) if tools else None,
                circumstances=declared,
                faults=faults,
                patience=10.0,
            )
            mine, own = asked, Path(tempfile.mkdtemp(dir=folder))
            if tools is not None:
                mine, _ = place_tools(asked, tools, proxy.url, report.name, own)
            return OpenedRun(report.name, mine.child, plan_for(proxy, report, env, mine, Path(folder)).applied_to(env))

        run = Sweep(
            Swept(
                options=start_options(flags, forward=asked.intercept),
                env={name: value for name, value in env.items() if not name.startswith("LLMPROXY_FAULTS")},
                open=open_trial,
                kinds=kinds,
                jobs=jobs,
                patience=how.patience,
                stdin=given_input(),
                tell=teller(),
                started_by=asked.typed,
                record=record_first(loaded),
            )
        )
        tools_typed = [] if asked.mcp_config is None else [f"--mcp-config {shlex.quote(asked.mcp_config)}"]
        typed = " ".join(
            [asked.typed, "--faults FAULT", *_format_choice(loaded), *tools_typed, "--", shlex.join(asked.command)]
        )
        try:
            run.run()
        except KeyboardInterrupt:
            tell_findings(run.findings, typed, asked.as_json)
            return Exit.INTERRUPTED
    return tell_findings(run.findings, typed, asked.as_json)


def _format_choice(loaded: Loaded) -> list[str]:
    """Return the options that say which recording is meant, as they were typed."""
    named = {"store": show_store(loaded.settings.store), "cassette": loaded.settings.cassette}
    return [
        f"--{name} {shlex.quote(value)}" for name, value in named.items() if loaded.sources[name].startswith("flag")
    ]


def start_options(flags: Mapping[str, object], *, forward: bool = False) -> list[str]:
    """Return what was typed as options of ``llmproxy start``; the files and variables it reads itself."""
    from llmproxy.settings import options

    words: list[str] = []
    for option in options():
        value = flags.get(option.name)
        if option.name == "forward" and forward:
            words.append(option.flag)
        elif value is None or value in ((), []) or option.name == "quiet" or not option.has_flag:
            continue
        elif option.boolean:
            words.append(option.flag if value else f"--no-{option.key}")
        else:
            values = value if isinstance(value, list | tuple) else [value]
            words += [f"{option.flag}={each}" for each in values]
    return words


def open_session(
    proxy: Attached,
    loaded: Loaded,
    env: Mapping[str, str],
    declared: Sequence[Mapping[str, str]] = (),
    tools: FoundTools | None = None,
) -> Report:
    """Open the session that the child's URLs name: the cassette's; `declared` are its circumstances."""
    from llmproxy.client.environment.build import upstreams_of

    settings, sources = loaded.settings, loaded.sources
    if proxy.process is not None:
        return proxy.control.open(settings.cassette, circumstances=declared)
    return proxy.control.open(
        settings.cassette,
        mode=str(settings.mode) if sources["mode"] != "default" else None,
        exhausted=str(settings.exhausted) if sources["exhausted"] != "default" else None,
        speed=settings.speed if sources["speed"] != "default" else None,
        upstreams={**upstreams_of(env, proxy.url), **(tools.config.upstreams if tools else {})} or None,
        circumstances=declared,
        bind=str(settings.bind) if sources["bind"] != "default" else None,
        faults=faults_of(settings),
        live=live_of(loaded),
    )


def live_of(loaded: Loaded) -> Mapping[str, Any] | None:
    """Return what is to go live as a session takes it, of what was typed or set; None where nothing was."""
    settings = loaded.settings
    if loaded.sources["live"] == "default":
        return None
    return {
        "live": [str(each) for each in settings.live],
        "unknown_tool": str(settings.unknown_tool),
        "read_only": list(settings.read_only),
    }


def read_tools(asked: RunAsked, env: Mapping[str, str]) -> FoundTools | None:
    """Return the servers of the agent that is to run, as far as they are known. Raises SettingsError."""
    from llmproxy.client.tools.agents import find_tools

    return find_tools(asked.mcp_config, asked.command, env, Path.cwd())


def place_tools(asked: RunAsked, tools: FoundTools, url: str, session: str, folder: Path) -> tuple[RunAsked, list[str]]:
    """Let the command have its servers behind us for this run, by a copy; and what was done, in words."""
    from llmproxy.client.tools.configuring import rewrite

    made, told = rewrite(tools.config, url, session, [sys.executable, "-m", "llmproxy"])
    return replace(asked, command=tools.place(made, folder)), [*told, *tools.notes]


def faults_of(settings: Settings) -> Mapping[str, Any] | None:
    """Return the faults that were asked for as a session takes them; None without. Raises BadFaults."""
    if not settings.faults:
        return None
    from llmproxy.core.faults import load_faults

    return load_faults(settings.faults, Path.cwd(), seed=settings.faults_seed).to_json()


def plan_for(proxy: Attached, opened: Report, env: Mapping[str, str], asked: RunAsked, folder: Path) -> EnvironmentPlan:
    """Return the child's variables."""
    from llmproxy.client.environment.build import plan

    interception = intercept_files(proxy, env, folder) if asked.intercept else None
    aws = (Path.home() / ".aws").is_dir()
    return plan(
        proxy.url,
        opened.name,
        env,
        replay=opened.offline,
        base_urls=asked.base_urls,
        interception=interception,
        aws_files=aws,
        recorded=asked.recorded,
    )


def intercept_files(proxy: Attached, env: Mapping[str, str], folder: Path) -> Interception:
    """Write the bundle that an intercepted child trusts.

    Raises:
        MachineError: the proxy does not intercept, or its certificate is gone.

    """
    from llmproxy.client.environment.build import Interception
    from llmproxy.client.environment.certificates import combine, java_truststore, presets

    ca = proxy.control.health().ca
    if ca is None:
        raise MachineError(
            f"the proxy at {proxy.url} does not intercept HTTPS.",
            hint="Start it with --forward, or leave --intercept out.",
        )
    bundle = combine(Path(ca), presets(env), folder / "bundle.pem")
    return Interception(ca, str(bundle), java_truststore(Path(ca), folder))


def _refuse_options_of_start(flags: Mapping[str, object]) -> None:
    from llmproxy.settings import options

    typed = [
        each.flag
        for each in options()
        if each.name not in _OF_THE_CHILD and flags.get(each.name) is not None and flags[each.name] not in ((), [])
    ]
    if typed:
        hint = "Unset LLMPROXY_URL to start a proxy of its own."
        raise SettingsError(
            f"{', '.join(typed)}: LLMPROXY_URL is set, and the proxy that runs there has options of its own.", hint=hint
        )


def write_result(path: Path, told: Mapping[str, object]) -> None:
    """Write a run's result. Raises MachineError."""
    try:
        path.write_text(json.dumps(told, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise MachineError(f"--json {path} cannot be written: {error.strerror or error}") from error


LONGEST_SHUT = 61.0
"""Seconds; longer than a fault may close the port."""
LOOKED_AT = 500
"""Calls that are looked at for refusals: each comes with its recording, and a long session has many."""


@dataclass(slots=True)
class RunEnding:
    """What is said and returned after the child."""

    proxy: Attached
    session: str
    since: float
    """Unix time when the run began: older misses in the journal are not ours."""
    loaded: Loaded
    command: tuple[str, ...] = ()
    report: Report | None = None
    misses: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    """Why requests were refused, other than misses: an upstream that could not be reached."""
    trouble: str = ""

    def close(self, *, failed: bool = False, last: bool = True) -> None:
        """Close the session and, after the last run, end the proxy, if it is ours; what goes wrong is told later, it must not hide the child's code.

        A command that `failed`, or was interrupted, leaves its cassette open: mode `once` records what is missing the next time.
        """
        from llmproxy.client.control.client import ControlError

        self._wait_for_port()
        try:
            self.refused += self._read_refusals()
            self.report = self.proxy.control.close(self.session, complete=False if failed else None)
            if self.proxy.process is None or self.report.live is not None:
                self.misses += self.report.miss_texts  # the journal has those that the model is told of, too
            else:
                self.misses = tuple(miss.text for miss in self.proxy.control.misses() if miss.at >= self.since)
        except ControlError as error:
            self.trouble = str(error)
        if last or self.trouble:
            self.proxy.end()

    def _wait_for_port(self) -> None:
        """Wait for the proxy to listen again, where a fault on purpose may have closed its port."""
        from llmproxy.client.control.client import ProxyGone

        process, until = self.proxy.process, time.monotonic() + LONGEST_SHUT
        while self.loaded.settings.faults and process is not None and process.alive and time.monotonic() < until:
            try:
                self.proxy.control.health()
            except ProxyGone:
                time.sleep(0.05)
            else:
                return

    def _read_refusals(self) -> tuple[str, ...]:
        """Return the words of the last refusals, as far as they can be had: nothing else of the ending depends on them."""
        from llmproxy.client.control.client import ControlError
        from llmproxy.protocol import Decision

        found: list[str] = []
        with suppress(ControlError):
            if self.proxy.process is not None:  # of one that others use too, nobody knows whose such a request was
                strays = self.proxy.control.read_refused()
                found += [f"{each.method} {each.target}: {each.text}" for each in strays if each.at >= self.since]
            told = self.proxy.control.report(self.session)
            if told.refused:
                calls = self.proxy.control.walk(self.session, max(0, told.arrived - LOOKED_AT))
                found += [call.note for call in calls if call.decision == Decision.REFUSE and not call.miss]
        return tuple(found)

    def tell(self, code: int, log: str, plan: EnvironmentPlan) -> int:
        """Say what it came to, and return the exit code."""
        from llmproxy.client.control.summary import first_lines, one_line
        from llmproxy.core.traffic.advice import look
        from llmproxy.settings import shown_path

        if self.trouble or self.report is None:
            _say(f"llmproxy: the proxy ended before the command did: {self.trouble}", log[-2000:].rstrip())
            return code or Exit.ENVIRONMENT
        sums: list[str] = _SUMMARY.findall(log)
        line = sums[-1] if sums else one_line(self.report)
        store = self.loaded.settings.store
        where = f", store {shown_path(store)}" if self.report.recorded else ""
        _say(f"llmproxy: {line}  ({self.report.mode}, cassette {self.report.cassette}{where})")
        _say(*first_lines(self.misses, prefix="  miss: "))
        _say(*first_lines(self.refused, prefix="  refused: "))
        _say(*(f"  {text}" for text in (self.report.faults or {}).get("idle", ())))
        if self.misses:
            _say(f"  `{look('why', shown_path(store))}` says what each asked for and which recording is nearest.")
        used = self.report.calls or _CALLS.search(log) or code in ENDED_BY_USER
        if not used:
            _say(*never_used(plan, self.proxy.url, self.command))
        if self.report.recorded:
            _say(*self._varying())
        lost = self.report.failed or self.proxy.exit_code == Exit.ENVIRONMENT
        if lost:
            _say("llmproxy: an answer could not be recorded: this recording is incomplete.")
        if doubts := self._doubts(self.report, line, used=bool(used)):
            failing = self.loaded.settings.unknown_tool is UnknownTool.FAIL and not self.loaded.settings.fail_on_miss
            named = (
                "--unknown-tool fail" if failing else "--strict" if self.loaded.settings.strict else "--fail-on-miss"
            )
            _say(f"llmproxy: {named}: {', '.join(doubts)}: exit code {Exit.MISS}.")
            return Exit.MISS
        return code or (Exit.ENVIRONMENT if lost else Exit.OK)

    def to_json(self, log: str, code: int, final: int) -> dict[str, object]:
        """Return what it came to as plain values: the session's report, the proxy's own sum, and both exit codes."""
        sums: list[str] = _SUMMARY.findall(log)
        told = {} if self.report is None else self.report.to_json()
        counted = max(int(told.get("misses", 0)), _count_misses(sums[-1]) if sums else 0)
        return told | {
            "misses": counted,
            "miss_texts": list(self.misses),
            "refused_texts": list(self.refused),
            "summary": sums[-1] if sums else "",
            "trouble": self.trouble,
            "command_exit_code": code,
            "exit_code": int(final),
        }

    def _varying(self) -> list[str]:
        """Say how many values vary between this run and earlier ones of the cassette; what goes wrong there is no matter of this run."""
        from llmproxy.cli.parts.stores.varying import compare
        from llmproxy.core.misses.again import Again
        from llmproxy.settings import shown_path

        settings = self.loaded.settings
        learn = Again(f"llmproxy learn {shlex.quote(settings.cassette)}", "", self.loaded.list_typed(environment=False))
        typed = learn.command("", store=shown_path(settings.store))
        try:
            number = len(compare(self.loaded).lessons)
        except LLMProxyError:
            return []
        return (
            [f"llmproxy: {number} value{'s vary' if number > 1 else ' varies'} from run to run: {typed}"]
            if number
            else []
        )

    def _doubts(self, report: Report, line: str, *, used: bool) -> tuple[str, ...]:
        """Return why this run proves nothing, where a proof was asked for."""
        from llmproxy.core.sessions.outcomes.certify import Came, find_doubts

        settings = self.loaded.settings
        unused = None if report.unused is None else len(report.unused)
        came = Came(requests=int(used), misses=report.misses or _count_misses(line), unused=unused, bound=report.bound)
        fails = settings.fail_on_miss or (bool(settings.live) and settings.unknown_tool is UnknownTool.FAIL)
        return find_doubts(came, fail_on_miss=fails, strict=settings.strict)


def _count_misses(line: str) -> int:
    """Return the misses of a summary, those of other sessions among them."""
    found = _MISSES.search(line)
    return int(found[1].replace(",", "")) if found else 0


NAMED = 6
"""Variables that are named before the rest is only counted."""


def never_used(plan: EnvironmentPlan, url: str, command: tuple[str, ...] = ()) -> list[str]:
    """Return what to say when no request arrived."""
    from llmproxy.client.environment.clients import PROJECTS, advise, find_clients, is_configured
    from llmproxy.protocol import PROXIES

    files = {name: Path(name).read_text("utf-8", "replace") for name in PROJECTS if Path(name).is_file()}
    clients = [each for each in find_clients(command, files) if not is_configured(each, command)]

    names = [*plan.base_urls, *(name for name in PROXIES if name in plan.others)]
    given = " ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
    return [
        f"llmproxy: THE COMMAND NEVER USED THE PROXY: no request arrived at {url}; nothing was replayed or recorded.",
        f"  It was given: {given}",
        *advise(clients),
        "  A client whose base URL stands in code or in a file does not read them. Next:",
        "    llmproxy doctor -- COMMAND      says which program went past the proxy, and what to do about it",
        "    llmproxy run --intercept -- ... catches clients whose base URL cannot be changed",
    ]


def _say(*lines: str) -> None:
    """Write lines to stderr, each whole."""
    text = "".join(f"{line}\n" for line in lines if line)
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    typer.echo(text.encode(encoding, "backslashreplace").decode(encoding), nl=False, err=True)
