"""``llmproxy run -- COMMAND``: run an unchanged command with a proxy of its own, in an environment in which every SDK
uses it. Stdin, stdout, signals and the exit code are the child's; one line is printed on stderr.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import typer

from llmproxy.cli.parts import session_setup as setup
from llmproxy.cli.parts.options import CliRunArguments, RunCommandOptions, TyperCommandUsingFreeProxyPort, load_settings
from llmproxy.cli.parts.printing import write_stderr_lines
from llmproxy.cli.parts.run_ending import LiveRunsVsRecordingSummary, RunFinisher, write_json_result_file
from llmproxy.cli.parts.store_arguments import require_store_exists_or_dir_given
from llmproxy.client.bypass_monitor import list_known_bypasser_warnings
from llmproxy.client.proxy_process import ensure_proxy, find_command_path, read_llmproxy_url, run_child
from llmproxy.errors import ENDED_BY_USER, Exit, SettingsError
from llmproxy.protocol import OFFLINE


def register(app: typer.Typer) -> None:
    app.command("run", cls=TyperCommandUsingFreeProxyPort, context_settings={"allow_interspersed_args": False})(run)


def run(
    ctx: typer.Context,
    command: list[str] = typer.Argument(..., metavar="-- COMMAND", help="The command to run, with its options."),
) -> None:
    """Run a command with the proxy: its LLM calls are replayed, or recorded."""
    raise typer.Exit(run_command_with_proxy(CliRunArguments.from_context(ctx, command), os.environ))


def run_command_with_proxy(asked: CliRunArguments, env: Mapping[str, str]) -> int:
    """Run the command and return the exit code. Raises LLMProxyError: nothing was run."""
    loaded = load_settings(asked.flags)
    hosts = loaded.settings.record_host
    how = replace(asked.options, intercept=asked.options.intercept or bool(hosts))
    if not how.base_urls and not how.intercept:
        raise SettingsError("--no-base-urls leaves nothing to do without --intercept")
    asked = replace(asked, options=how, recorded=hosts)
    if loaded.settings.faults.partition(":")[0] == "sweep":
        from llmproxy.cli.parts.fault_sweep import run_fault_sweep

        if how.only:
            raise SettingsError("--only makes no network for a sweep.", hint="Leave one of the two out.")
        return run_fault_sweep(asked, loaded, env)
    reach = _read_allowed_places(how)
    setup.read_faults(loaded.settings)  # what cannot be meant is said before anything starts
    if how.runs is not None and not loaded.settings.live:
        hint = "`llmproxy run --live llm --runs 5 -- COMMAND` tries another model on recorded tools."
        raise SettingsError("--runs needs --live: a replay is the same each time.", hint=hint)
    if loaded.settings.live:
        require_store_exists_or_dir_given(loaded)
    find_command_path(asked.command, env)
    if how.json is not None:
        write_json_result_file(how.json, {})  # a file of an earlier run says nothing of this one
    if read_llmproxy_url(env):
        setup.refuse_start_only_flags(asked.flags)
    tools = setup.find_mcp_servers_of_agent_command(asked, env)
    declared = asked.list_run_variables(env)
    since = time.time()
    with tempfile.TemporaryDirectory(prefix="llmproxy-run-") as folder:
        log = Path(folder) / "proxy.log"
        options = setup.build_start_flags(asked.flags, forward=how.intercept, tools=tools)
        with ensure_proxy(options, env, log=log, started_by=asked.run_command_prefix) as proxy:
            opened = setup.open_session(proxy, loaded, env, declared, tools)
            asked, told = setup.redirect_mcp_servers(asked, tools, proxy.url, opened.name, Path(folder))
            write_stderr_lines(*told)
            plan = setup.plan_environment(proxy, opened, env, asked, Path(folder))
            warnings = () if how.intercept else list_known_bypasser_warnings(asked.command)
            write_stderr_lines(*(f"llmproxy: {note}" for note in plan.notes), *warnings)
            end = RunFinisher(proxy, opened.name, since, loaded, asked.command)
            runs = LiveRunsVsRecordingSummary(loaded)
            given = plan.apply_to(env) | ({} if opened.mode in OFFLINE else {"LLMPROXY_MODE": opened.mode})
            run_once = partial(_run_once, asked, given, reach, end)
            again = partial(setup.open_session, proxy, loaded, env, declared, tools)
            code = _run_command_repeatedly(asked, run_once, end, runs, again)
        if loaded.settings.verbose and proxy.process is not None:
            write_stderr_lines(proxy.process.log_text.rstrip())
        final = end.report_bypass_attempts(end.print_end(code, plan), only=how.only)
        write_stderr_lines(*runs.describe())
        if how.json is not None:
            write_json_result_file(how.json, end.to_json(code, final) | runs.to_json())
        return final


def _run_command_repeatedly(
    asked: CliRunArguments,
    run_once: Callable[[Callable[[int], object]], int],
    end: RunFinisher,
    runs: LiveRunsVsRecordingSummary,
    again: Callable[[], object],
) -> int:
    """Run the command as often as requested; `again` opens the next session. Returns the last nonzero exit code."""
    heard: list[int] = []
    code = int(Exit.OK)
    for left in range(asked.options.runs or 1, 0, -1):
        ended = run_once(heard.append)
        code, last = ended or code, left == 1 or bool(heard)
        end.close_session(failed=ended != Exit.OK, interrupted=bool(heard) or ended in ENDED_BY_USER, last=last)
        runs.add(end.report, ended)
        if last or end.trouble:
            break
        again()
    return code


def _read_allowed_places(options: RunCommandOptions) -> list[tuple[str, int] | str]:
    """Return the places named by --only-allow. Raises SettingsError, MachineError: no isolated network here."""
    if not options.only:
        if options.only_allow:
            raise SettingsError("--only-allow says what --only lets through: type --only, too.")
        return []
    from llmproxy.client.isolated_network import parse_host_port_or_socket_path, require_network_namespace_support

    reach = [parse_host_port_or_socket_path(each) for each in options.only_allow]
    require_network_namespace_support()
    return reach


def _run_once(
    asked: CliRunArguments,
    env: Mapping[str, str],
    reach: Sequence[tuple[str, int] | str],
    end: RunFinisher,
    heard: Callable[[int], object],
) -> int:
    if not asked.options.only:
        return run_child(asked.command, env, heard=heard)
    from llmproxy.client.isolated_network import IsolatedCommandNetwork

    proxy = urlsplit(end.proxy.url)
    place = (proxy.hostname or "", proxy.port or (443 if proxy.scheme == "https" else 80))
    with IsolatedCommandNetwork([*reach, place]) as network:
        code = run_child(asked.command, env, network.serve, heard, network.enter)
    end.tries.update(network.tries)
    return code
