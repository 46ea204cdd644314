"""``llmproxy replay -- COMMAND``: the living agent on a recording in which something is different; ``llmproxy fork`` by hand.

The agent runs, and the tools that it has in itself; its calls of a model are replayed, and what its servers of tools were asked. Overridden results of tools are swapped in its requests, overridden
answers sent instead of recorded ones. From the first request that is not in the recording the run forks: it stops there, or goes on live
and is recorded in a cassette of its own. What was overridden, where it forked and what changed is said at the end, on stderr.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from llmproxy.cli.parts.completing import cassettes
from llmproxy.cli.parts.options import OnRecordings, flags_of, gather, options_of, refuse_live
from llmproxy.cli.parts.recording import record_first
from llmproxy.cli.parts.running.asked import RunAsked, RunOptions
from llmproxy.cli.parts.stores.naming import check_new_name
from llmproxy.cli.parts.stores.opening import STORE, open_given
from llmproxy.cli.parts.telling.lines import tell_lines
from llmproxy.cli.parts.telling.printing import line, say
from llmproxy.cli.parts.telling.replayed import ReplayEnding
from llmproxy.errors import CassetteNotFound, SettingsError
from llmproxy.protocol import VCR_MODES, Mode
from llmproxy.store_server import is_there

if TYPE_CHECKING:
    from llmproxy.client.process import Attached
    from llmproxy.client.reports import Report
    from llmproxy.core.forks.overrides import Overrides
    from llmproxy.settings import Loaded


def register(app: typer.Typer) -> None:
    """Add the commands."""
    settings = {"allow_interspersed_args": False}
    app.command("replay", cls=OnRecordings, context_settings=settings)(replay)
    app.command("fork")(fork)


def replay(
    ctx: typer.Context,
    command: list[str] = typer.Argument(..., metavar="-- COMMAND", help="The agent, with its own options."),
    override_tool: list[str] = typer.Option(
        [],
        "--override-tool",
        metavar="NAME=RESULT",
        help="What a tool is to have returned; NAME#2 for its second call. Repeatable.",
    ),
    override_llm: list[str] = typer.Option(
        [],
        "--override-llm",
        metavar="N=ANSWER",
        help="What the model is to answer to the agent's call N, from 0. Repeatable.",
    ),
    live: bool = typer.Option(
        False, "--live", help="Go on with the provider where the run differs, and record that as a fork."
    ),
    from_: int | None = typer.Option(
        None, "--from", metavar="N", min=1, help="With --live: fork at the agent's request N, from 1."
    ),
    as_: str | None = typer.Option(
        None, "--as", metavar="NAME", help="With --live: the fork's cassette, else CASSETTE@fork-N."
    ),
) -> None:
    """Run an agent on its recording, with results of tools or answers of the model overridden."""
    from llmproxy.core.forks.overrides import parse_overrides

    if not live and (from_ is not None or as_ is not None):
        raise SettingsError(
            f"{'--from' if from_ is not None else '--as'} needs --live: without it nothing new is recorded."
        )
    flags = dict(flags_of(ctx))
    mode = flags.get("mode")
    if mode is not None and VCR_MODES.get(str(mode), mode) != Mode.REPLAY:
        raise SettingsError(
            f"--mode {mode}: `llmproxy replay` replays.",
            hint=f"Record with {record_first(gather({**flags, 'mode': None}))}",
        )
    asked = ReplayAsked(
        flags, tuple(command), parse_overrides(override_tool, override_llm), live, from_, as_, options_of(ctx)
    )
    raise typer.Exit(execute(asked, os.environ))


@dataclass(frozen=True, slots=True)
class ReplayAsked:
    """What was typed."""

    flags: Mapping[str, object]
    command: tuple[str, ...]
    overrides: Overrides
    live: bool
    at: int | None
    child: str | None
    options: RunOptions

    @property
    def fork(self) -> dict[str, Any]:
        """The member `fork` of a session."""
        return {"live": self.live, "from": self.at, "as": self.child}


def execute(asked: ReplayAsked, env: Mapping[str, str]) -> int:
    """Do everything and return the exit code.

    Raises:
        LLMProxyError: nothing was run.

    """
    from llmproxy.cli.parts.running.ending import never_used
    from llmproxy.cli.parts.running.opening import place_tools, plan_for, read_tools, start_options
    from llmproxy.client.process import attach, find_program, run_child, running_at

    flags: dict[str, object] = {**asked.flags, "mode": str(Mode.REPLAY)}
    if asked.live and not running_at(env):
        flags["allow_live"] = True
    loaded = gather(flags)
    refuse_live(loaded, "llmproxy replay")
    find_program(asked.command, env)
    if not running_at(env) and not is_there(loaded.settings.store) and loaded.settings.cassette_dir is None:
        raise _nothing(loaded)  # before anything is made
    run = RunAsked(flags, asked.command, asked.options)
    tools = read_tools(run, env)
    with tempfile.TemporaryDirectory(prefix="llmproxy-replay-") as folder:
        log = Path(folder) / "proxy.log"
        options = start_options(flags, forward=asked.options.intercept, tools=tools)
        with attach(options, env, log=log, started_by=run.typed) as proxy:  # `replay` itself records nothing
            session = _open(proxy, loaded, asked, tools.config.upstreams if tools and proxy.process is None else {})
            if tools is not None:
                run, told = place_tools(run, tools, proxy.url, session.name, Path(folder))
                tell_lines(*(f"llmproxy: mcp: {each}" for each in told))
            plan = plan_for(proxy, session, env, run, Path(folder))
            tell_lines(*(f"llmproxy: {note}" for note in plan.notes))
            began = time.time()
            code = run_child(run.command, plan.applied_to(env))
            start = run.spell("llmproxy replay")
            end = ReplayEnding(proxy, session.name, loaded, asked.command, live=asked.live, start=start)
            end.close()
        if loaded.settings.verbose and proxy.process is not None:
            tell_lines(proxy.process.said.rstrip())
        if end.report is not None and not end.report.requests:
            tell_lines(*never_used(plan, proxy.url))
        return end.tell(code, time.time() - began)


def _open(proxy: Attached, loaded: Loaded, asked: ReplayAsked, upstreams: Mapping[str, str]) -> Report:
    """Open the session, over a cassette that holds something; `upstreams` are those that the proxy does not have yet."""
    from llmproxy.client.control import CONFLICT, ControlError
    from llmproxy.client.environment.circumstances import gather_circumstances

    settings = loaded.settings
    try:
        session = proxy.control.open(
            settings.cassette,
            mode=str(Mode.REPLAY),
            speed=settings.speed,
            exhausted=str(settings.exhausted),
            overrides=asked.overrides.to_json(),
            fork=asked.fork,
            upstreams=upstreams or None,
            circumstances=gather_circumstances(os.environ, Path.cwd(), git=True),
        )
    except ControlError as error:
        if error.status == CONFLICT and asked.child is not None:  # the name that was typed is taken
            raise SettingsError(f"--as {asked.child}: {error.message}", hint=error.hint) from error
        raise
    if not session.unused:
        proxy.control.close(session.name)
        raise _nothing(loaded)
    return session


def _nothing(loaded: Loaded) -> CassetteNotFound:
    name, store = loaded.settings.cassette, loaded.settings.store
    hint = f"Record it first: {record_first(loaded)}"
    return CassetteNotFound(f"nothing is recorded in cassette {name!r} of {store}.", hint=hint)


# --- fork ------------------------------------------------------------------------------------------------------------


def fork(
    parent: str = typer.Argument(
        ...,
        metavar="CASSETTE",
        autocompletion=cassettes,
        help="The cassette to begin with; NAME~2 for its second sample.",
    ),
    at: int | None = typer.Option(
        None, "--at", metavar="N", min=1, help="Take its first N interactions; all by default."
    ),
    as_: str | None = typer.Option(
        None, "--as", metavar="NAME", help="Name of the new cassette, else CASSETTE@fork-N."
    ),
    store: Path | None = STORE,
) -> None:
    """Make a new cassette that begins as another one does."""
    import platform

    from llmproxy.amounts import format_count
    from llmproxy.core.forks.table import by_hand
    from llmproxy.core.misses.again import Again
    from llmproxy.core.sessions.session import split_name
    from llmproxy.settings import shown_path

    if as_ is not None:
        check_new_name(as_)
    with open_given(store, writable=True) as database:
        holder = f"llmproxy fork {os.getpid()} on {platform.node()}"
        made = by_hand(database, split_name(parent), at, as_, holder, time.time())
    say(f"{line(made.cassette)}: {format_count(made.shared, 'interaction')} of {line(parent)}")
    again = Again("llmproxy run", " -- COMMAND")
    say(f"Go on with it: {again.command('auto', made.cassette, store=shown_path(database.path))}")
