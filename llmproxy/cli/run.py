"""``llmproxy run -- COMMAND``: a proxy for the length of one command, which needs no change to use it.

The child has our stdin, stdout and signals, and an environment in which every SDK finds the proxy. We say one line at the end, on
stderr, and end with the child's exit code.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from llmproxy.cli.parts.live_runs import LiveRuns, check_recorded
from llmproxy.cli.parts.options import OnAFreePort, flags_of, gather
from llmproxy.cli.parts.running.asked import RunAsked
from llmproxy.cli.parts.running.ending import RunEnding, write_result
from llmproxy.cli.parts.running.opening import (
    faults_of,
    open_session,
    place_tools,
    plan_for,
    read_tools,
    refuse_options_of_start,
    start_options,
)
from llmproxy.cli.parts.running.sweeping import Sweeping, sweep
from llmproxy.cli.parts.telling.lines import tell_lines
from llmproxy.errors import Exit, SettingsError

if TYPE_CHECKING:
    from llmproxy.client.environment.build import EnvironmentPlan


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
        0,
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
        tuple(circumstance),
        as_json,
        mcp_config,
        runs=runs,
    )
    raise typer.Exit(execute(asked, os.environ, Sweeping(jobs, patience)))


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
    if running_at(env):
        refuse_options_of_start(asked.flags)
    tools = read_tools(asked, env)
    declared = asked.circumstances(env)
    since = time.time()
    with tempfile.TemporaryDirectory(prefix="llmproxy-run-") as folder:
        log = Path(folder) / "proxy.log"
        options = start_options(asked.flags, forward=asked.intercept, tools=tools)
        with attach(options, env, log=log, started_by=asked.typed) as proxy:
            opened = open_session(proxy, loaded, env, declared, tools)
            if tools is not None:
                asked, told = place_tools(asked, tools, proxy.url, opened.name, Path(folder))
                tell_lines(*(f"llmproxy: mcp: {each}" for each in told))
            plan = plan_for(proxy, opened, env, asked, Path(folder))
            tell_lines(*(f"llmproxy: {note}" for note in plan.notes), *(() if asked.intercept else warn(asked.command)))
            end, runs = RunEnding(proxy, opened.name, since, loaded, asked.command), LiveRuns(loaded)
            code = _run_all(asked, plan, end, runs, env, lambda: open_session(proxy, loaded, env, declared, tools))
        said = proxy.process.said if proxy.process else ""
        if loaded.settings.verbose:
            tell_lines(said.rstrip())
        final = end.tell(code, said, plan)
        tell_lines(*runs.tell())
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
        ended = child.run(asked.command, plan.applied_to(env), heard=heard.append)
        code, last = ended or code, left == 1 or bool(heard)
        end.close(failed=ended != Exit.OK, last=last)
        runs.add(end.report, ended)
        if last or end.trouble:
            break
        again()
    return code
