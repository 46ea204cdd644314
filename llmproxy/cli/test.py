"""``llmproxy test suite.yaml``: run suites against an agent, its LLM traffic through the proxy.

Recordings of tests live in ``tests/cassettes/*.yaml``, which are committed; the database is in ``.llmproxy/``, which is not: it is made
from them. ``--store`` and ``--cassette-dir`` say otherwise. Where LLMPROXY_URL names a running proxy, that one is used as it is.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from llmproxy.cli.parts.options import OwnFirst, flags_of, gather
from llmproxy.errors import Exit, SettingsError

if TYPE_CHECKING:
    from llmproxy.client.process.attach import Attached
    from llmproxy.report.events import Handler
    from llmproxy.settings import Loaded as LoadedSettings
    from llmproxy.suite.reading.load import Case, Loaded
    from llmproxy.suite.run.runner import Tested

CASSETTES = Path("tests") / "cassettes"
STORE = Path(".llmproxy") / "llmproxy.db"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("test", cls=OwnFirst)(run_tests)


def run_tests(
    ctx: typer.Context,
    paths: list[str] = typer.Argument(
        None, metavar="[SUITE]...", help="Suites: files, folders, globs. Default: this folder."
    ),
    tags: str = typer.Option("", "--tags", metavar="EXPRESSION", help='Scenarios by tags: "smoke and not slow".'),
    tag: list[str] = typer.Option(
        [], "--tag", metavar="TAG", help="Scenarios with this tag; repeated: with all of them."
    ),
    ids: list[str] = typer.Option([], "--id", metavar="ID", help="This scenario; repeated: any of them."),
    grep: str = typer.Option("", "--grep", metavar="TEXT", help="Scenarios with this in id, name or description."),
    step: str = typer.Option("", "--step", metavar="LABEL", help="Run up to this step."),
    runs: int = typer.Option(None, "--runs", min=1, metavar="N", help="Executions of each scenario."),
    parallel: int = typer.Option(
        1, "--parallel", min=1, metavar="N", help="Runs at the same time, where they do not disturb each other."
    ),
    last_failed: bool = typer.Option(
        False, "--last-failed", help="Only the scenarios that did not pass the last time."
    ),
    watch: bool = typer.Option(False, "--watch", help="Run again whenever a file of the suites or the agent changes."),
    update: bool = typer.Option(False, "--update", help="Store expectations that are snapshots anew; never in CI."),
    keep_going: bool = typer.Option(
        False, "--continue-on-failure", help="Go on with a scenario after a step that failed."
    ),
    fast_waits: bool = typer.Option(False, "--fast-waits", help="Let `wait` look as often as it can."),
    max_cost: str = typer.Option("", "--max-cost", metavar="USD", help="Stop before more than this is spent."),
    report: list[str] = typer.Option(
        [],
        "--report",
        metavar="KIND=FILE",
        help="junit=FILE, html=FILE, json=FILE, jsonl=FILE or github; may be repeated.",
    ),
    agent: str = typer.Option("", "--agent", metavar="URL|YAML", help="The agent, instead of the suites' own."),
    entity_store: str = typer.Option(
        "", "--entity-store", metavar="URL|YAML", help="Where entities are, instead of the suites' own."
    ),
    init: bool = typer.Option(
        False, "--init", help="Write a first suite that runs; asks how to reach the agent, unless --agent says so."
    ),
) -> None:
    """Test an agent by YAML suites; LLM calls are replayed, or recorded with --mode record."""
    if init:
        from llmproxy.cli.suite import write_first

        raise typer.Exit(write_first(paths or [], agent))
    asked = Asked(
        flags=flags_of(ctx), paths=tuple(paths or ["."]), tags=tags, tag=tuple(tag), ids=tuple(ids), grep=grep, step=step, runs=runs,
        parallel=parallel, last_failed=last_failed, update=update, keep_going=keep_going, fast_waits=fast_waits,
        max_cost=_money(max_cost), reports=tuple(report), agent=agent, store=entity_store,
    )  # fmt: skip
    raise typer.Exit(asked.watch(os.environ) if watch else asked.execute(os.environ))


def _money(text: str) -> Decimal | None:
    try:
        value = Decimal(text) if text else None
    except InvalidOperation:
        value = Decimal(-1)
    if value is not None and not (value.is_finite() and value >= 0):
        raise SettingsError(f"--max-cost is {text!r}; it is US dollars, such as 0.50")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What was typed."""

    flags: Mapping[str, object]
    paths: tuple[str, ...]
    tags: str = ""
    tag: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    grep: str = ""
    step: str = ""
    runs: int | None = None
    parallel: int = 1
    last_failed: bool = False
    update: bool = False
    keep_going: bool = False
    fast_waits: bool = False
    max_cost: Decimal | None = None
    reports: tuple[str, ...] = ()
    agent: str = ""
    store: str = ""

    def execute(self, env: Mapping[str, str]) -> int:
        """Load, select, run; return the exit code.

        Raises:
            LLMProxyError: nothing was run.

        """
        from llmproxy.report.choices import handler_of
        from llmproxy.suite.checks.update import refuse_in_ci
        from llmproxy.suite.reading.load import load

        if self.update:
            refuse_in_ci(env)
        settings = gather(self.flags)
        loaded = load(self.paths)
        cases = self.selected(loaded)
        handlers = [console(verbose=settings.settings.verbose), *map(handler_of, self.reports)]
        for doubt in loaded.warnings:
            typer.echo(f"llmproxy: {doubt}", err=True)
        if not cases:
            typer.echo(
                f"llmproxy: nothing selected: none of {len(loaded.scenarios)} scenarios is what was asked for", err=True
            )
            return Exit.NOTHING
        try:
            tested = self.run(cases, settings, handlers, env)
        finally:
            for handler in handlers:
                handler.close()
        from llmproxy.suite.choose.last_failed import remember

        remember(Path.cwd(), tested.runs, tested.failed)
        return tested.exit_code

    def selected(self, loaded: Loaded) -> list[Case]:
        """Return the cases that were asked for. Raises SuiteError."""
        from llmproxy.suite.choose.last_failed import last_failed
        from llmproxy.suite.choose.selection import Wanted, select

        only = None
        if self.last_failed:
            only = last_failed(Path.cwd())
            if only is None:
                typer.echo("llmproxy: nothing is known of a last run; all scenarios are run", err=True)
        wanted = Wanted(tags=self.tags, tag=self.tag, ids=self.ids, grep=self.grep, label=self.step, only=only)
        return select(loaded.scenarios, wanted)

    def run(
        self, cases: Sequence[Case], settings: LoadedSettings, handlers: Sequence[Handler], env: Mapping[str, str]
    ) -> Tested:
        """Run cases at a proxy: the running one, or one of our own."""
        import tempfile

        from llmproxy.client.process.attach import attached, running_at

        mode = str(settings.settings.mode) if settings.sources["mode"] != "default" else None
        options = [] if running_at(env) else proxy_options(self.flags, settings)
        with (
            tempfile.TemporaryDirectory(prefix="llmproxy-test-") as folder,
            attached(options, env, log=Path(folder) / "proxy.log") as proxy,
        ):
            mode = mode or proxy.control.health().mode
            return self.at(proxy, cases, handlers, mode, settings)

    def at(
        self, proxy: Attached, cases: Sequence[Case], handlers: Sequence[Handler], mode: str, settings: LoadedSettings
    ) -> Tested:
        """Run cases at a proxy that serves."""
        from llmproxy.suite.choose.cost import refuse_costs
        from llmproxy.suite.choose.options import Options
        from llmproxy.suite.choose.project import described, project
        from llmproxy.suite.run.runner import run_cases
        from llmproxy.suite.run.world import World

        defaults, folder = project(Path.cwd())
        options = Options(
            mode=mode, runs=self.runs, parallel=self.parallel, keep_going=self.keep_going, label=self.step,
            fast_waits=self.fast_waits, update=self.update, max_cost=self.max_cost, command=self.command,
            partly=bool(self.tags or self.tag or self.ids or self.grep or self.step or self.last_failed),
        )  # fmt: skip
        notes = refuse_costs(settings.settings.store, cases, options)
        world = World(
            options=options,
            proxy=proxy.url,
            handlers=handlers,
            agent=described(self.agent, "--agent") if self.agent else None,
            store=described(self.store, "--entity-store") if self.store else None,
            folder=Path.cwd(),
            defaults=defaults,
            defaults_folder=folder,
        )
        try:
            return asyncio.run(_until_signal(run_cases(world, cases, notes)))
        finally:
            for path in world.save():
                typer.echo(f"llmproxy: wrote {path}", err=True)
            world.close()

    @property
    def command(self) -> str:
        """The command without what selects scenarios."""
        from llmproxy.cli.run import start_options

        given = {"--agent": self.agent, "--entity-store": self.store}
        words = [word for name, value in given.items() if value for word in (name, value)]
        proxy = start_options({name: value for name, value in self.flags.items() if name != "mode"})
        return shlex.join(["llmproxy", "test", *(path for path in self.paths if path != "."), *words, *proxy])

    def watch(self, env: Mapping[str, str]) -> int:
        """Run, and run again after each change, until Ctrl-C."""
        from llmproxy.suite.choose.watch import watch

        return watch(lambda: self.execute(env), self.paths, lambda text: typer.echo(text, err=True))


async def _until_signal(pending: Coroutine[Any, Any, Tested]) -> Tested:
    """Take SIGTERM for Ctrl-C: what is under way cleans up."""
    import signal

    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(pending)
    try:
        loop.add_signal_handler(signal.SIGTERM, task.cancel)
    except (NotImplementedError, ValueError):  # no such signals here
        return await task
    try:
        return await task
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


def console(*, verbose: bool) -> Handler:
    """Return what shows a suite at this terminal."""
    from llmproxy.report.console import wants_colour
    from llmproxy.report.suite_console import SuiteConsole

    def write(text: str) -> None:
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()

    colour = wants_colour(sys.stdout, os.environ)
    return SuiteConsole(write, colour=colour, live=sys.stdout.isatty(), verbose=verbose)


def proxy_options(flags: Mapping[str, object], settings: LoadedSettings) -> list[str]:
    """Return the options of a proxy for tests: recordings in `tests/cassettes`, the database in `.llmproxy`, unless something else is said."""
    from llmproxy.cli.run import start_options

    words = start_options(flags)
    if settings.sources["store"] == "default":
        store = Path.cwd() / STORE
        store.parent.mkdir(exist_ok=True)
        ignore = store.parent / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n", encoding="utf-8")
        words.append(f"--store={store}")
    if settings.sources["cassette_dir"] == "default":
        folder = Path.cwd() / CASSETTES
        folder.mkdir(
            parents=True, exist_ok=True
        )  # a proxy in replay insists on it; nothing recorded is each scenario's to say
        words.append(f"--cassette-dir={folder}")
    return words
