"""``llmproxy replay -- COMMAND``: run the real agent on its recording with changes; ``llmproxy fork`` creates a fork by
hand.

The agent and its built-in tools run; calls to models and MCP servers are replayed. At the first request that is not in
the recording the run forks: it stops there, or continues live and is recorded as a cassette of its own.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import typer

from llmproxy.advice import SuggestedCommandTemplate, format_llmproxy_command
from llmproxy.amount_formatting import format_count, format_milliseconds, format_times
from llmproxy.calls_and_totals import Call
from llmproxy.cli.parts import session_setup as setup
from llmproxy.cli.parts.completion import complete_cassette_names
from llmproxy.cli.parts.options import (
    CliRunArguments,
    CommandWithoutLiveOptions,
    format_record_command,
    load_settings,
    refuse_live_channels,
)
from llmproxy.cli.parts.printing import print_line, to_safe_line, write_stderr_lines
from llmproxy.cli.parts.run_ending import explain_unused_proxy
from llmproxy.cli.parts.store_arguments import (
    STORE,
    build_cassette_not_recorded_error,
    open_given_store,
    require_store_exists_or_dir_given,
    validate_cassette_name,
)
from llmproxy.client.child_env import detect_cwd_home_date_variables
from llmproxy.client.control import CONFLICT, ControlError
from llmproxy.client.proxy_process import ProxyHandle, ensure_proxy, find_command_path, read_llmproxy_url, run_child
from llmproxy.client.session_reports import SessionReport, format_session_counts, list_shortened_misses_with_counts
from llmproxy.core.forks.fork_rows import fork_cassette
from llmproxy.core.forks.overrides import AnswerOverrides, parse_answer_override_options
from llmproxy.core.sessions.session import split_cassette_and_sample
from llmproxy.errors import ENDED_BY_USER, Exit, LLMProxyError, SettingsError
from llmproxy.postgres_store_paths import refuse_postgres_store_for_option
from llmproxy.protocol import AUTHENTICATION, VCR_MODES, Channel, Decision, Mode
from llmproxy.settings import Loaded, format_shown_path
from llmproxy.trace import Cassette, ReplayDiff, render
from llmproxy.trace.export import build_trace_from_calls


def register(app: typer.Typer) -> None:
    app.command("replay", cls=CommandWithoutLiveOptions, context_settings={"allow_interspersed_args": False})(replay)
    app.command("fork")(fork)


def replay(
    ctx: typer.Context,
    command: list[str] = typer.Argument(..., metavar="-- COMMAND", help="The agent's command, with its options."),
    override_tool: list[str] = typer.Option(
        [],
        "--override-tool",
        metavar="NAME=RESULT",
        help="Result of this tool, instead of the recorded one; NAME#2 for its second call. Repeatable.",
    ),
    override_llm: list[str] = typer.Option(
        [], "--override-llm", metavar="N=ANSWER", help="Answer to call N, from 0, for the recorded one. Repeatable."
    ),
    live: bool = typer.Option(
        False, "--live", help="Send requests to the provider once the run differs, and record them as a fork."
    ),
    from_: int | None = typer.Option(
        None, "--from", metavar="N", min=1, help="With --live: fork at the agent's request N, from 1."
    ),
    as_: str | None = typer.Option(
        None, "--as", metavar="NAME", help="With --live: name of the fork's cassette; default: CASSETTE@fork-N."
    ),
) -> None:
    """Run an agent on its recording, with tool results or model answers overridden."""
    if not live and (from_ is not None or as_ is not None):
        flag = "--from" if from_ is not None else "--as"
        raise SettingsError(f"{flag} needs --live: without it nothing new is recorded.")
    run = CliRunArguments.from_context(ctx, command)
    mode = run.flags.get("mode")
    if mode is not None and VCR_MODES.get(str(mode), mode) != Mode.REPLAY:
        record = format_record_command(load_settings({**run.flags, "mode": None}))
        raise SettingsError(f"--mode {mode}: `llmproxy replay` replays.", hint=f"Record with {record}")
    run = replace(run, flags={**run.flags, "mode": str(Mode.REPLAY)})
    asked = ReplayCommandArguments(run, parse_answer_override_options(override_tool, override_llm), live, from_, as_)
    raise typer.Exit(run_replay(asked, os.environ))


class ReplayCommandArguments(NamedTuple):
    run: CliRunArguments
    overrides: AnswerOverrides
    live: bool
    at: int | None
    child: str | None


def run_replay(asked: ReplayCommandArguments, env: Mapping[str, str]) -> int:
    """Run the command and return the exit code. Raises LLMProxyError: nothing was run."""
    run = asked.run
    if asked.live and not read_llmproxy_url(env):
        run = replace(run, flags={**run.flags, "allow_live": True})
    loaded = load_settings(run.flags)
    refuse_live_channels(loaded, "llmproxy replay")
    find_command_path(run.command, env)
    if asked.live and not read_llmproxy_url(env):
        refuse_postgres_store_for_option("--live", loaded.settings.store)
    if not read_llmproxy_url(env):
        require_store_exists_or_dir_given(loaded)  # before anything is made
    tools = setup.find_mcp_servers_of_agent_command(run, env)
    with tempfile.TemporaryDirectory(prefix="llmproxy-replay-") as folder:
        log = Path(folder) / "proxy.log"
        options = setup.build_start_flags(run.flags, forward=run.options.intercept, tools=tools)
        # `replay` itself records nothing
        with ensure_proxy(options, env, log=log, started_by=run.run_command_prefix) as proxy:
            upstreams = tools.config.upstreams if tools and proxy.process is None else {}
            session = _open_session(proxy, loaded, asked, upstreams)
            run, told = setup.redirect_mcp_servers(run, tools, proxy.url, session.name, Path(folder))
            write_stderr_lines(*told)
            plan = setup.plan_environment(proxy, session, env, run, Path(folder))
            write_stderr_lines(*(f"llmproxy: {note}" for note in plan.notes))
            began = time.time()
            code = run_child(run.command, plan.apply_to(env))
            start = run.append_flags_to_command("llmproxy replay")
            end = ReplayCommandReporter(proxy, session.name, loaded, asked.run.command, live=asked.live, start=start)
            end.close_session()
        if loaded.settings.verbose and proxy.process is not None:
            write_stderr_lines(proxy.process.log_text.rstrip())
        if end.report is not None and not end.report.calls:
            write_stderr_lines(*explain_unused_proxy(plan, proxy.url))
        return end.print_end(code, time.time() - began)


def _open_session(
    proxy: ProxyHandle, loaded: Loaded, asked: ReplayCommandArguments, upstreams: Mapping[str, str]
) -> SessionReport:
    """Open the session of a non-empty cassette; `upstreams` are those unknown to the proxy so far."""
    settings = loaded.settings
    try:
        session = proxy.control.open_session(
            settings.cassette,
            mode=str(Mode.REPLAY),
            speed=settings.speed,
            exhausted=str(settings.exhausted),
            overrides=asked.overrides.to_json(),
            fork={"live": asked.live, "from": asked.at, "as": asked.child},
            upstreams=upstreams or None,
            run_variables=detect_cwd_home_date_variables(os.environ, Path.cwd(), git=True),
        )
    except ControlError as error:
        if error.status == CONFLICT and asked.child is not None:  # the name that was typed is taken
            raise SettingsError(f"--as {asked.child}: {error.message}", hint=error.hint) from error
        raise
    if not session.unused:
        proxy.control.close_session(session.name)
        raise build_cassette_not_recorded_error(loaded)
    return session


def fork(
    parent: str = typer.Argument(
        ..., metavar="CASSETTE", autocompletion=complete_cassette_names, help="The source; NAME~2: its second sample."
    ),
    at: int | None = typer.Option(None, "--at", metavar="N", min=1, help="Copy the first N interactions; default all."),
    as_: str | None = typer.Option(
        None, "--as", metavar="NAME", help="Name of the new cassette; default: CASSETTE@fork-N."
    ),
    store: Path | None = STORE,
) -> None:
    """Make a new cassette that begins like another one."""
    if as_ is not None:
        validate_cassette_name(as_)
    with open_given_store(store, writable=True) as database:
        holder = f"llmproxy fork {os.getpid()} on {platform.node()}"
        made = fork_cassette(database, split_cassette_and_sample(parent), at, as_, holder, time.time())
    print_line(f"{to_safe_line(made.cassette)}: {format_count(made.shared, 'interaction')} of {to_safe_line(parent)}")
    again = SuggestedCommandTemplate("llmproxy run", " -- COMMAND")
    print_line(f"Go on with it: {again.command('auto', made.cassette, store=format_shown_path(database.path))}")


SHOWN_RESULT = 60


@dataclass(slots=True)
class ReplayCommandReporter:
    proxy: ProxyHandle
    session: str
    loaded: Loaded
    command: tuple[str, ...]
    live: bool
    report: SessionReport | None = None
    calls: tuple[Call, ...] = ()
    trouble: str = ""
    start: str = "llmproxy replay"

    def close_session(self) -> None:
        try:
            self.calls = self.proxy.control.calls(self.session)
            self.report = self.proxy.control.close_session(self.session)
        except ControlError as error:
            self.trouble = str(error)
        self.proxy.end_if_started()

    def print_end(self, code: int, seconds: float) -> int:
        report = self.report
        if report is None or report.overrides is None:
            write_stderr_lines(f"llmproxy: the proxy did not end the session: {self.trouble}")
            return code or Exit.ENVIRONMENT
        said = report.overrides
        long = format_milliseconds(seconds * 1000)
        write_stderr_lines(f"llmproxy: {format_session_counts(report)}  (replay of {said['parent']}, {long})")
        refused = [each.note for each in self.calls if each.decision is Decision.REFUSE and not each.miss]
        write_stderr_lines(*list_shortened_misses_with_counts(refused, prefix="  refused: "))
        write_stderr_lines(*(f"  {to_safe_line(text)}" for text in self.describe_overrides(said)))
        write_stderr_lines(*(f"  {to_safe_line(text)}" for text in self.describe_fork(said, report)))
        unmatched = [] if code in ENDED_BY_USER else list(self.describe_unused_overrides(said))
        write_stderr_lines(*unmatched)
        if report.failed or self.proxy.exit_code == Exit.ENVIRONMENT:
            write_stderr_lines("llmproxy: an answer could not be recorded: this recording is incomplete.")
            return code or Exit.ENVIRONMENT
        if report.misses:
            write_stderr_lines(*report.miss_texts[:1])
            return Exit.MISS
        if report.refused and not report.recorded:
            return Exit.USAGE if unmatched else code
        if said["fork"] is not None or any(each["used"] for each in (*said["tools"], *said["answers"])):
            write_stderr_lines(*self.describe_trace_changes(said, report.cassette))
        return Exit.USAGE if unmatched else code

    def describe_overrides(self, said: Mapping[str, Any]) -> list[str]:
        lines = []
        for each in said["tools"]:
            if each["used"]:
                name = each["tool"] if each["nth"] is None else f"{each['tool']}#{each['nth']}"
                of = f" (recorded with {said['parent']})" if each["inherited"] else ""
                swapped = f"swapped {format_times(each['used'])}{of}"
                lines.append(f"{name}: returned {each['result'][:SHOWN_RESULT]}, {swapped}")
        return lines + [f"LLM call {each['call']}: answer overridden" for each in said["answers"] if each["used"]]

    def describe_fork(self, said: Mapping[str, Any], report: SessionReport) -> list[str]:
        if (fork := said["fork"]) is None:
            none = self.live and not report.refused
            return [f"no fork: every request is in {said['parent']}, so nothing was recorded"] if none else []
        if fork["cassette"] is None:
            return []  # the miss says it
        path = f", first at {fork['path']}" if fork["path"] else ""
        store = format_shown_path(self.loaded.settings.store)
        typed = tuple(each for each in self.loaded.list_typed(environment=False) if each[0] != "allow_live")
        again = SuggestedCommandTemplate(self.start, f" -- {shlex.join(self.command)}", typed)
        compared = format_llmproxy_command(f"diff {shlex.quote(said['parent'])} {shlex.quote(fork['cassette'])}", store)
        begun = f"forked from {said['parent']} at request {fork['step']}: {fork['why']}{path}"
        recorded = (each for each in self.calls if each.decision is Decision.RECORD and each.channel is Channel.LLM)
        denied = next((each.status for each in recorded if each.status in AUTHENTICATION), 0)
        if denied or (report.refused and not report.recorded):
            rm = format_llmproxy_command(f"rm {shlex.quote(fork['cassette'])}", store)
            got = f"was answered {denied} (check the key)" if denied else "got no answer (see above)"
            return [begun, f"its request {got}, so this fork cannot be replayed; remove it: {rm}"]
        return [
            begun,
            f"recorded {report.recorded} new; replay it: {again.command('', fork['cassette'], store=store)}",
            f"compare: {compared}",
        ]

    def describe_unused_overrides(self, said: Mapping[str, Any]) -> list[str]:
        seen = ", ".join(said["seen"]) or "none"
        lines = [
            f"llmproxy: --override-tool {each['tool']}{'' if each['nth'] is None else '#' + str(each['nth'])}: no such "
            f"result was in the agent's requests. Tools seen: {seen}."
            for each in said["tools"]
            if not each["used"] and not each["inherited"]
        ]
        calls = said["llm_calls"]
        return lines + [
            f"llmproxy: --override-llm {each['call']}: the agent called the model {format_times(calls)}"
            + (f" (0 to {calls - 1})." if calls else ".")
            for each in said["answers"]
            if not each["used"]
        ]

    def describe_trace_changes(self, said: Mapping[str, Any], cassette: str) -> list[str]:
        run, store = build_trace_from_calls(self.calls, cassette), self.loaded.settings.store
        try:
            parent = Cassette.from_store(store, cassette=said["parent"], sample=said["parent_sample"])
        except LLMProxyError:  # a proxy elsewhere, with a store of its own
            return []
        diff = ReplayDiff.compute(parent, run)
        if not diff.has_changes:
            return [f"  nothing is different from {to_safe_line(parent.name)}"]
        width = min(shutil.get_terminal_size().columns - 2, 160)
        return ["What is different:", *(f"  {row}" for row in render(diff, color=False, width=width).splitlines())]
